"""Who gets which row: evenly, by a Dirichlet draw for every class, or as the data say.

Knows targets and numbers of clients. Does not know features, parts or homes.
"""

from __future__ import annotations

import numpy as np

from motet.local import seed_of
from motet.tasks.federation import DataError

_REDRAWS = 100
_BINS = 10  # quantiles of a target that is a number: they take the place of classes


def names(clients: int) -> tuple[str, ...]:
    """Names whose alphabetical order is the clients' order.

    >>> names(2), names(11)[-1]
    (('client-0', 'client-1'), 'client-10')
    """
    width = len(str(clients - 1))
    return tuple(f"client-{i:0{width}}" for i in range(clients))


def iid(y: np.ndarray, clients: int, seed: int) -> np.ndarray:
    """The number of each row's client: shuffled and dealt in turn, so that sizes differ by one at most."""
    _check(len(y), clients, 1)
    who = np.empty(len(y), np.int64)
    who[_generator(seed, "iid", clients).permutation(len(y))] = np.arange(len(y)) % clients
    return who


def dirichlet(y: np.ndarray, clients: int, alpha: float, seed: int, least: int = 2) -> np.ndarray:
    """The number of each row's client: every class is divided by shares drawn from Dirichlet(alpha).

    Drawn again until every client has at least `least` rows. Targets that are numbers are divided
    by quantiles instead of classes.
    """
    _check(len(y), clients, least)
    if not alpha > 0:
        raise DataError(f"split 'dirichlet' has alpha {alpha}; expected more than 0.\nhint: 0.5 is usual")
    stratum = _quantile(y) if y.dtype.kind == "f" else y
    groups = [np.flatnonzero(stratum == c) for c in np.unique(stratum)]
    rng = _generator(seed, "dirichlet", clients, alpha)
    for _ in range(_REDRAWS):
        counts = [_parcels(len(g), rng.dirichlet(np.full(clients, alpha))) for g in groups]
        if np.sum(counts, axis=0).min() >= least:
            return _hand_out(groups, counts, rng)
    raise DataError(
        f"no division of {len(y)} rows among {clients} clients by Dirichlet({alpha}) gave everyone "
        f"at least {least} rows, in {_REDRAWS} draws.\nhint: take fewer clients or a larger alpha"
    )


def natural(owner: np.ndarray, names: tuple[str, ...] = ()) -> tuple[np.ndarray, tuple[str, ...]]:
    """The number of each row's client, and the clients' names in order. With `names`, owners are indices."""
    if not names:
        found, who = np.unique(owner.astype(str), return_inverse=True)
        return who.reshape(-1).astype(np.int64), tuple(map(str, found))
    order = sorted(range(len(names)), key=names.__getitem__)
    rank = np.empty(len(names), np.int64)
    rank[order] = np.arange(len(names))
    return rank[owner], tuple(names[i] for i in order)


def _parcels(rows: int, share: np.ndarray) -> np.ndarray:
    """How many of the rows each client gets; they add up."""
    ends = np.floor(np.cumsum(share) * rows + 0.5).astype(np.int64)
    ends[-1] = rows
    return np.diff(np.minimum(ends, rows), prepend=0)


def _hand_out(groups: list[np.ndarray], counts: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    who = np.empty(sum(map(len, groups)), np.int64)
    for rows, count in zip(groups, counts, strict=True):
        who[rng.permutation(rows)] = np.repeat(np.arange(len(count)), count)
    return who


def _quantile(y: np.ndarray) -> np.ndarray:
    edges = np.quantile(y, np.arange(1, _BINS) / _BINS)
    return np.searchsorted(edges, y, side="right")


def _generator(*words: object) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed_of(*words)))


def _check(rows: int, clients: int, least: int) -> None:
    if clients < 1:
        raise DataError(f"clients is {clients}; expected at least 1")
    if rows < clients * least:
        raise DataError(
            f"{rows} rows cannot be dealt to {clients} clients with at least {least} each.\n"
            f"hint: take at most {rows // least} clients"
        )
