"""A federation whose parts are known: honest clients, one with noise for labels, two with the same rows, and one that
the recipe's attack makes a free rider.

Rows have 600 features and three classes; the best linear model is the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import motet
from motet.data.federated import Pool
from motet.runs.build import drawn

NAMES = tuple(f"c{i}" for i in range(8))
FEATURES, VAL, TEST = 600, 600, 4


@dataclass(frozen=True)
class Parts:
    """Who is what."""

    free_rider: str
    noisy: str
    original: str
    copy: str

    @property
    def honest(self) -> list[str]:
        others = {self.free_rider, self.noisy, self.original, self.copy}
        return [c for c in NAMES if c not in others]


def parts_of(seed: int) -> Parts:
    """The recipe's seed draws who attacks; the other roles follow in the order of names."""
    rider = drawn(NAMES, 1, seed, "attackers")[0]
    return Parts(rider, *[c for c in NAMES if c != rider][:3])


def rows(
    rng: np.random.Generator, true: np.ndarray, noisy: bool, train: int
) -> tuple[np.ndarray, np.ndarray]:
    many = train + VAL + TEST
    x = rng.normal(size=(many, len(true))).astype(np.float32)
    scores = x @ true + rng.gumbel(size=(many, true.shape[1]))  # the classes of a multinomial logistic model
    y = rng.integers(0, true.shape[1], many) if noisy else scores.argmax(1)
    return x, y.astype(np.int64)


def known_parts(*, draw: int = 0, wide: int = FEATURES) -> Pool:
    """The whole federation; with as many training rows as features, what one client learns is mostly chance."""
    parts, rng = parts_of(draw), np.random.default_rng(draw)
    true = rng.normal(size=(wide, 3)) * 3.7 / np.sqrt(wide)
    found = {c: rows(rng, true, c == parts.noisy, wide) for c in NAMES if c != parts.copy}
    found[parts.copy] = tuple(v.copy() for v in found[parts.original])  # type: ignore[assignment]
    x, y = (np.concatenate([found[c][i] for c in NAMES]) for i in (0, 1))
    part = np.tile(np.repeat(["train", "val", "test"], [wide, VAL, TEST]), len(NAMES))
    owner = np.repeat(np.arange(len(NAMES)), wide + VAL + TEST)
    return Pool(x, y, "classes", ("a", "b", "c"), owner=owner, names=NAMES, part=part, scaling="none")


def run_known(seed: int, out: Path, wide: int = FEATURES, **more: Any) -> motet.Run:
    usual: dict[str, Any] = {"attack": "idle", "attackers": 1 / len(NAMES)}
    settings: dict[str, Any] = {"rounds": 5, "lr": 0.5, "epochs": 4, "batch": 600} | more
    guard = usual | settings.pop("guard", {})
    return motet.run(
        data={"name": "known_parts:known_parts", "draw": seed, "wide": wide}, method="fedavg",
        net="logistic", guard=guard,
        seed=seed, engine={"name": "loop"}, save={"models": "none"}, out=out, **settings,
    )  # fmt: skip
