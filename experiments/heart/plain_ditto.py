"""Ditto on Fed-Heart-Disease by a plain PyTorch loop: is a gap to published numbers motet's or not.

    python -m experiments.heart.plain_ditto [number of seeds]

15 rounds of 100 steps by AdamW with batches of 4, as in Tavakoli et al. 2024: both models step on the same batch, and
every hospital keeps the personal model of its lowest validation loss. AdamW's state is kept over rounds, as in
FL4Health, or made anew in each round, as in motet.
Knows the rows of the data set heart. Does not use motet's methods, engines or training loop.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from motet.data.federated import Pool
from motet.data.sets import heart

ROUNDS, STEPS, BATCH, RATE = 15, 100, 4, 0.1
_bce = nn.BCEWithLogitsLoss()


@dataclass
class Hospital:
    """One hospital's rows, standardised by its training rows, and its two models."""

    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    shared: nn.Module
    own: nn.Module


def hospitals(seed: int) -> list[Hospital]:
    pool = heart.load(as_flamby=True)
    torch.manual_seed(seed)
    initial = nn.Linear(pool.x.shape[1], 1)
    return [_hospital(pool, client, initial) for client in range(4)]


def _hospital(pool: Pool, client: int, initial: nn.Module) -> Hospital:
    mine, test = pool.owner == client, pool.part == 2
    x, held_out = pool.x[mine & ~test], pool.x[mine & test]
    mean, deviation = x.mean(0), x.std(0, ddof=1) + 1e-9

    def rows(x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
        return torch.tensor((x - mean) / deviation).float(), torch.tensor(y).float()[:, None]

    x_all, y_all = rows(x, pool.y[mine & ~test])
    order = torch.randperm(len(x_all))
    train, val = order[: (cut := round(0.8 * len(order)))], order[cut:]
    return Hospital(
        (x_all[train], y_all[train]),
        (x_all[val], y_all[val]),
        rows(held_out, pool.y[mine & test]),
        _copy(initial),
        _copy(initial),
    )


def _copy(model: nn.Module) -> nn.Module:
    copied = nn.Linear(13, 1)
    copied.load_state_dict(model.state_dict())
    return copied


def batches(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        for rows in torch.split(torch.randperm(len(x)), BATCH):
            yield x[rows], y[rows]


def train(hospital: Hospital, optimisers: list[torch.optim.AdamW], lam: float) -> None:
    """One round at one hospital: h(v; w) of Ditto, w as it was received."""
    received = [p.detach().clone() for p in hospital.shared.parameters()]
    for _, (x, y) in zip(range(STEPS), batches(*hospital.train), strict=False):
        pull = sum(((v - w) ** 2).sum() for v, w in zip(hospital.own.parameters(), received, strict=True))
        losses = _bce(hospital.shared(x), y), _bce(hospital.own(x), y) + lam / 2 * pull
        for optimiser, loss in zip(optimisers, losses, strict=True):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def average(federation: list[Hospital]) -> None:
    sizes = [len(h.train[0]) for h in federation]
    states = [h.shared.state_dict() for h in federation]
    mean = {k: sum(n * s[k] for n, s in zip(sizes, states, strict=True)) / sum(sizes) for k in states[0]}
    for hospital in federation:
        hospital.shared.load_state_dict(mean)


@torch.no_grad()
def scores(hospital: Hospital) -> tuple[float, float]:
    """Validation loss and test accuracy of the personal model."""
    x, y = hospital.test
    right = (hospital.own(x) > 0) == (y > 0.5)
    return float(_bce(hospital.own(hospital.val[0]), hospital.val[1])), float(right.float().mean())


def accuracy(seed: int, lam: float, keeps_state: bool) -> tuple[float, float]:
    """Mean test accuracy of the four: of the checkpoints with the lowest validation loss, and of the last round."""
    federation = hospitals(seed)
    made = [[torch.optim.AdamW(m.parameters(), lr=RATE) for m in (h.shared, h.own)] for h in federation]
    found: list[list[tuple[float, float]]] = []
    for _ in range(ROUNDS):
        for hospital, optimisers in zip(federation, made, strict=True):
            if not keeps_state:
                optimisers[:] = [
                    torch.optim.AdamW(m.parameters(), lr=RATE) for m in (hospital.shared, hospital.own)
                ]
            train(hospital, optimisers, lam)
        average(federation)
        found.append([scores(h) for h in federation])
    best = [min(of_one)[1] for of_one in zip(*found, strict=True)]
    return float(np.mean(best)), float(np.mean([a for _, a in found[-1]]))


def main(seeds: int = 10) -> None:
    torch.set_num_threads(1)
    for lam, keeps_state in ((0.01, True), (0.01, False), (0.1, True), (1.0, True)):
        of = 100 * np.array([accuracy(seed, lam, keeps_state) for seed in range(42, 42 + seeds)])
        state = "kept" if keeps_state else "new in each round"
        best, last = (f"{m:.1f} ± {d:.1f}" for m, d in zip(of.mean(0), of.std(0, ddof=1), strict=True))
        print(f"lam {lam}, AdamW's state {state}: validated {best}, last round {last}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
