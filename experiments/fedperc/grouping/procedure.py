"""Which variant of FedPerC's sparsity vectors finds the groups: each image's are kept, and all variants use them.

The four groups are those that the split `groups` made, five consecutive clients each.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from motet import nets
from motet.client import Task, seed_of
from motet.core import Turn
from motet.data.load import load
from motet.engines.driver import play
from motet.engines.loop import Loop
from motet.methods.fedavg import FedAvg
from motet.parts import clusters, sparsity_vectors

FIRST, SHORT, ALL = 3, 32, 99  # layers and channels of the paper; more layers than any network here has
VARIANTS = tomllib.loads((Path(__file__).parent / "recipe.toml").read_text())["rows"]
Shares = list[np.ndarray]  # of each layer, (images, channels)


def perform(settings: dict[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    chosen = settings["only"]
    rows: dict[str, Any] = {
        row: {"values": {c: [] for c in settings["extractors"]}, "failures": []} for row in settings["rows"]
    }
    for name in chosen:
        for seed in settings["seeds"]:
            who, shares = images(settings["extractors"][name], seed, out)
            for row in settings["rows"]:
                found = [score(VARIANTS[row], who, shares, draw) for draw in range(settings["draws"])]
                rows[row]["values"][name].append(float(np.mean(found)))
            say(f"  {name}, seed {seed}: done")
    return rows


# ---- from images to shares of zeros, once ----


def images(extractor: dict[str, Any], seed: int, out: Path) -> tuple[np.ndarray, Shares]:
    """The client of each image, and its shares of zeros; read from a file if they were measured before."""
    words = "-".join(str(v) for v in extractor.values() if not isinstance(v, dict))
    file = out / f"{words}-seed{seed}.npz"
    if not file.exists():
        task, clients_data, w = trained(extractor, seed)
        found = [measured(task, w, client_data) for client_data in clients_data.values()]
        who = np.repeat(np.arange(len(found)), [len(f[0]) for f in found])
        layers = {f"layer{i}": np.concatenate([f[i] for f in found]) for i in range(len(found[0]))}
        np.savez(file, who=who, **layers)
    return kept_in(file)


def kept_in(file: Path) -> tuple[np.ndarray, Shares]:
    kept = np.load(file)
    return kept["who"], [kept[f"layer{i}"].astype(np.float64) for i in range(len(kept.files) - 1)]


def trained(extractor: dict[str, Any], seed: int) -> tuple[Task, dict[str, Any], Any]:
    f = load(extractor["data"], {"split": "groups", "unseen": 0.0, "seed": seed})
    name, how = extractor.get("net", "vgg11"), extractor.get("how", {}) or {"width": extractor["width"]}
    net = nets.build(name, how, f.shape, f.outputs, f.kind, seed)
    task = Task(net, f.kind, f.outputs, f.scale, f.pixels)
    method = FedAvg(task, lr=extractor.get("lr", 0.05), epochs=2, batch=64, momentum=0.5)
    engine, w = Loop(f.clients_data), task.w0
    for number in range(extractor["rounds"]):
        turn = Turn(number, engine.clients, engine.clients, seed_of(seed, "turn", number))
        w = play(engine, method, w, turn)
    return task, f.clients_data, w


def measured(task: Task, w: Any, client_data: Any) -> list[np.ndarray]:
    """Of a client's images, validation included: each layer's (images, channels), in half precision."""
    x = torch.cat([client_data.train.take().x, client_data.val.take().x])
    parts = [
        [s.float().reshape(*s.shape[:2], -1).mean(-1) for s in task.zero_masks(w, some, ALL)]
        for some in x.split(128)
    ]
    return [torch.cat([p[i] for p in parts]).half().numpy() for i in range(len(parts[0]))]


# ---- variants ----


def score(variant: dict[str, Any], who: np.ndarray, shares: Shares, draw: int) -> float:
    """The adjusted Rand index of the groups that a variant finds."""
    truth = np.arange(who.max() + 1) * 4 // (who.max() + 1)
    rows = compared(variant, who, shares, draw)
    k = variant.get("k", 4) or clusters.best_k(rows, draw)
    return clusters.agreement(clusters.kmeans(rows, k, draw), truth)


def compared(variant: dict[str, Any], who: np.ndarray, shares: Shares, draw: int = 0) -> np.ndarray:
    """The rows whose Euclidean distances a variant compares, one for each client."""
    x = side_by_side(variant, shares)
    how, epsilon = variant.get("distance", "euclidean"), variant.get("epsilon", 0.0)
    share, clip = 0.5 if how == "mahalanobis" else 1.0, variant.get("clip", 0.0)
    noise = sparsity_vectors.VectorNoise(epsilon * share, variant.get("noise", "gaussian"), clip)
    of_clients = [sparsity_vectors.clipped(torch.from_numpy(x[who == c]), clip) for c in range(who.max() + 1)]
    sizes = [torch.tensor(float(len(v))) for v in of_clients]
    seeds = [torch.tensor(seed_of(draw, c)) for c in range(len(of_clients))]
    vectors = [noise.on_vector(v.mean(0), *rest) for v, *rest in zip(of_clients, sizes, seeds, strict=True)]
    rows = torch.stack(vectors).clamp(0, 1).numpy()
    if how == "standardised":
        return (rows - rows.mean(0)) / rows.std(0).clip(1e-9)
    if how == "whitened":
        return np.linalg.svd(rows - rows.mean(0), full_matrices=False)[0][:, :5]
    if how == "mahalanobis":
        moments = [
            noise.on_moments((v - 0.5).T @ (v - 0.5) / len(v), *rest).numpy()
            for v, *rest in zip(of_clients, sizes, seeds, strict=True)
        ]
        added = np.mean([float(noise.variance(n, rows.shape[1])) for n in sizes])
        return rows @ clusters.whitening(np.mean(moments, 0), rows.mean(0) - 0.5, added)
    return rows


def side_by_side(variant: dict[str, Any], shares: Shares) -> np.ndarray:
    """(images, numbers): the layers and channels that a variant uses."""
    layers = variant.get("layers", "mean")
    if layers not in ("mean", "each"):
        return chosen(variant, shares[int(layers)])
    if layers == "each":
        return np.concatenate([chosen(variant, s) for s in shares[:FIRST]], 1)
    common = min(s.shape[1] for s in shares[:FIRST])
    return np.mean([chosen(variant, s, common) for s in shares[:FIRST]], 0)


def chosen(variant: dict[str, Any], share: np.ndarray, most: int = 0) -> np.ndarray:
    """The channels of one layer that a variant uses, among the first `most`."""
    common = most or share.shape[1]
    ways = {"first": np.arange(min(SHORT, common)), "all": np.arange(common)}
    drawn = sparsity_vectors.common_channels(common, SHORT).numpy()
    return share[:, ways.get(variant.get("channels", ""), drawn)]
