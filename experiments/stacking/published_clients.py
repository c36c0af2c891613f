"""Census as the authors of the stacking paper divided it, and their published result for every single client.

    python experiments/stacking/published_clients.py     # alpha 0.5 and 100: our numbers beside theirs, a minute

The authors' repository (github.com/emiliocantuc/personalized-fl-via-stacking, commit c659894, results/dirichlet) has
a table for every federation. `published_clients.json` holds the numbers of two of them, seed 1. Their rows can be
drawn again, because their generators are seeded: the order of the rows and the shares of the classes.

Knows the authors' draws and Census. Does not know forests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from paper_partition import Array, Table, weights
from paper_procedure import How, Outcome, outcomes

from motet.data.federated import Pool

WORDS = ("education", "occupation", "sex", "race", "relationship", "marital-status", "workclass")
CLIENTS, LEAST, REPEATS = 10, 10, 5
NAMES = ("baseline", "held", "pooled", "held self", "pooled self")
FILE = Path(__file__).with_name("published_clients.json")


def published() -> dict[float, Array]:
    """By alpha, (clients, numbers): what the authors report of each client, in the order of NAMES; both stacks as
    gains in balanced accuracy."""
    return {float(k): np.array(v) for k, v in json.loads(FILE.read_text())["clients"].items()}


def ours(alpha: float, seed: int = 1, **how: Any) -> Array:
    """The same numbers, computed here."""
    from motet.data.sets import census

    (found,) = outcomes(divided(census.load(), alpha, seed), seed, How(repeats=REPEATS, **how)).values()
    return numbers(found)


def numbers(found: Outcome) -> Array:
    base = found.baseline.mean(1)
    shares = [np.diag(t) / t.sum(1) for t in (found.trust_held, found.trust_pooled)]
    return np.column_stack([base, found.held.mean(1) - base, found.pooled.mean(1) - base, *shares])


def divided(pool: Pool, alpha: float, seed: int) -> Table:
    """Census with rows and columns in the authors' order, divided by label skew as they draw it."""
    order = np.random.RandomState(42).permutation(len(pool.y))
    columns = in_their_order(pool)
    x, y = np.asarray(pool.x, np.float32)[order][:, columns], np.asarray(pool.y)[order]
    kinds = np.array([pool.columns[c].kind == "number" for c in columns])
    names = tuple(f"client-{k}" for k in range(CLIENTS))
    holds = np.ones((CLIENTS, len(columns)), bool)
    return Table(x, y, (0, 1), kinds, weights(pool)[columns], names, label_skew(y, alpha, seed), holds)


def in_their_order(pool: Pool) -> list[int]:
    """Places of the columns: numbers first, then the flags of each word."""
    flags = [[k for k, c in enumerate(pool.columns) if c.group == word] for word in WORDS]
    return [k for k, c in enumerate(pool.columns) if c.kind == "number"] + sum(flags, [])


def label_skew(y: Array, alpha: float, seed: int) -> tuple[Array, ...]:
    """Each client's rows: shares of the classes from a symmetric Dirichlet distribution, drawn again with another
    seed until every client has ten rows of both classes."""
    size = int(np.bincount(y).min()) // CLIENTS
    while True:
        draws = np.random.RandomState(seed)
        counts = (draws.dirichlet(alpha * np.ones(2), CLIENTS) * size).astype(int)
        for count in counts:  # what rounding left goes to random classes
            np.add.at(count, draws.choice(2, size - count.sum()), 1)
        draws = np.random.RandomState(seed)
        of_class = [draws.permutation(np.flatnonzero(y == k)) for k in (0, 1)]
        if counts.min() >= LEAST:
            ends = [np.cumsum(counts[:, k])[:-1] for k in (0, 1)]
            parts = [np.split(rows[: counts[:, k].sum()], ends[k]) for k, rows in enumerate(of_class)]
            return tuple(np.concatenate(pair) for pair in zip(*parts, strict=True))
        seed = draws.randint(0, 2**32 - 1)


def main() -> None:
    for alpha, theirs in published().items():
        found = ours(alpha)
        print(f"alpha {alpha:g}, seed 1: {', '.join(NAMES)} of each client; ours, and the authors'")
        for k, (a, b) in enumerate(zip(found, theirs, strict=True)):
            print(f"  client {k}: " + "  ".join(f"{v:+.6f} {w:+.6f}" for v, w in zip(a, b, strict=True)))
        print(f"  largest difference {np.abs(found - theirs).max():.7f}")


if __name__ == "__main__":
    main()
