"""Small runs with scores given by hand, written as a run writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from motet.runs.store import Store

REPORTED = 1


def made(
    root: Path, method: str, personal: Mapping[str, float], seed: int = 0, folder: str = "", **more: Any
) -> Path:
    place = root / (folder or f"{method}-{seed}")
    place.mkdir()
    write(place, method, personal, seed, **more)
    return place


def write(
    place: Path,
    method: str,
    personal: Mapping[str, float],
    seed: int,
    shared: Mapping[str, float] | None = None,
    unseen: Mapping[str, tuple[float, float]] | None = None,
    metric: str = "accuracy",
    rows: Mapping[str, int] | None = None,
    val: Mapping[str, float] | Sequence[Mapping[str, float]] | None = None,
    alone: Mapping[str, float] | None = None,
    constant: Mapping[str, float] | None = None,
    tests: int = 2,
    **facts: Any,
) -> None:
    store, newcomers = Store(place, writing=True), unseen or {}
    kind, better = ("classes", 1) if metric in ("accuracy", "auc") else ("numbers", -1)
    curve = [val or personal] * 3 if val is None or isinstance(val, Mapping) else list(val)
    known: dict[str, Any] = {
        "method": method, "data": "toy", "net": "mlp", "seed": seed, "kind": kind, "metric": metric,
        "better": better, "rounds": len(curve), "reported": REPORTED, "status": "done", "failure": "",
        "engine": "loop", "engine_why": "asked for", "versions": {"motet": "0"}, "classes": ["cat", "dog"],
        "recipe": f'# motet run recipe.toml\nseed = {seed}\n[method]\nname = "{method}"\n',
        "notes": ["a note"], "seconds": 6.0,
    }  # fmt: skip
    store.set_facts(**known | facts)
    labels = {"0": 3, "1": 4} if kind == "classes" else {}
    held = {c: (rows or {}).get(c, 7) for c in [*personal, *newcomers]}
    store.clients([(c, int(c in personal), n, 2, 2, labels) for c, n in held.items()])
    for number, scores in enumerate(curve):
        store.ended(number, 2.0, len(personal), 2048 * len(personal), 1024 * len(personal))
        score(store, number, "val", "personal", scores, metric)
    if known["status"] == "done":
        for side, scores in {
            "personal": personal,
            "global": shared,
            "alone": alone,
            "constant": constant,
        }.items():
            score(store, REPORTED, "test", side, scores or {}, metric, tests)
        score(store, REPORTED, "val", "constant", constant or {}, metric)
        score(store, REPORTED, "test", "arrival", {c: v[0] for c, v in newcomers.items()}, metric)
        score(store, REPORTED + 1, "test", "visit", {c: v[1] for c, v in newcomers.items()}, metric)
    store.commit()
    store.close()


def score(
    store: Store, number: int, part: str, side: str, scores: Mapping[str, float], metric: str, n: int = 2
) -> None:
    values = np.array(list(scores.values()), dtype=float)
    more = {"loss": np.full(len(scores), 0.5)} if np.isnan(values).any() else {}
    store.scored(number, part, side, list(scores), [n] * len(scores), {metric: values} | more)
