"""Splits in which clients differ in their classes (label skew).

Numeric targets are divided by quantiles instead. Knows targets only.
"""

from __future__ import annotations

import numpy as np

from motet.data.federated import DataError
from motet.data.splits.assignment import REDRAWS, Assignment, Rows, never, positive

_USUAL = 10  # rows that every client must have in PAGE


def dirichlet(
    all_rows: Rows,
    *,
    clients: int = 20,  # number of clients
    alpha: float = 0.3,  # the smaller, the more clients differ in their classes; 0.3 is PAGE's
    capped: bool = True,  # clients with an equal share of the rows get no more, so that sizes are similar, as in PAGE
    least: int = 0,  # rows that every client must get; 0: ten, or as many as possible
) -> Assignment:
    """Every class is divided by shares drawn from Dirichlet(alpha); drawn again until all clients have enough rows.

    PAGE's recipe (Chen et al. 2024, after FedML): in the order of the classes, clients that hold
    rows / clients or more get nothing of the next one.
    """
    positive("dirichlet", alpha=alpha)
    all_rows.check(clients, max(least, 1))
    groups, rng = all_rows.strata(), all_rows.generator("dirichlet", clients, alpha)
    best, most = np.zeros((0, 0)), -1
    for _ in range(REDRAWS):
        counts = _shares(groups, clients, alpha, capped, rng)
        if (low := int(counts.sum(0).min())) > most:
            best, most = counts, low
        if most >= (least or _USUAL):
            break
    if most < max(least, 1):
        raise never("dirichlet", f"gave every client at least {max(least, 1)} rows")
    return all_rows.assignment(assigned(groups, best, rng, len(all_rows)), clients)


def _shares(
    groups: list[np.ndarray], clients: int, alpha: float, capped: bool, rng: np.random.Generator
) -> np.ndarray:
    """The number of rows of each class that each client gets, (classes, clients)."""
    held, fair = np.zeros(clients, np.int64), sum(map(len, groups)) / clients
    counts = []
    for rows in groups:
        share = rng.dirichlet(np.full(clients, alpha))
        if capped:
            below = held < fair
            share = share * below if (share * below).sum() > 0 else below.astype(float)
        counts.append(whole_counts(len(rows), share / share.sum()))
        held += counts[-1]
    return np.array(counts)


def label_skew(
    all_rows: Rows,
    *,
    clients: int = 20,  # number of clients
    alpha: float = 0.5,  # the smaller, the more clients differ in their classes
    prior: bool = False,  # Dirichlet(alpha p) with p the share of each class, instead of Dirichlet(alpha)
    size: int = 0,  # rows of each client; 0: half of (classes x rows of the rarest one) / clients
    least: int = 10,  # rows that a client must have of at least two classes
) -> Assignment:
    """Clients of one size; each draws its class shares, and gets floor(share size) rows of each class.

    Cantu-Cervini 2024: the rest of a client's size goes to random classes; drawn again until all clients
    have two classes. `prior` is what the paper's text says; its figures show the other. Rows that no client gets
    are not used.
    """
    positive("label_skew", alpha=alpha)
    groups = all_rows.strata()
    many = np.array([len(g) for g in groups])
    size = size or int(many.min() * len(many) / 2) // clients  # with two classes, the rarest / clients
    all_rows.check(clients, max(size, 2 * least))
    weight = alpha * (many / many.sum() if prior else np.ones(len(many)))
    rng = all_rows.generator("label_skew", clients, alpha, prior, size)
    for _ in range(REDRAWS):
        counts = np.array([_portion(rng.dirichlet(weight), size, rng) for _ in range(clients)])
        enough = np.sort(counts, axis=1)[:, -2].min() >= least if len(many) > 1 else True
        if enough and (counts.sum(0) <= many).all():
            return all_rows.assignment(assigned(groups, counts.T, rng, len(all_rows)), clients)
    raise never("label_skew", f"gave every client {least} rows of two classes while no class ran out")


def _portion(share: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """floor(share size) rows of each class, and the rest of random classes."""
    count: np.ndarray = np.floor(share * size).astype(np.int64)
    np.add.at(count, rng.integers(len(share), size=size - count.sum()), 1)
    return count


def classes(
    all_rows: Rows,
    *,
    clients: int = 20,  # number of clients
    per_client: int = 2,  # classes that each client holds
) -> Assignment:
    """Each client holds some classes; the rows of a class are divided evenly among the clients that hold it."""
    groups, rng = all_rows.strata(), all_rows.generator("classes", clients, per_client)
    all_rows.check(clients, per_client)
    if not 1 <= per_client <= len(groups):
        raise DataError(f"split 'classes': per_client is {per_client}; there are {len(groups)} classes")
    if clients * per_client < len(groups):
        raise DataError(
            f"split 'classes': {clients} clients with {per_client} classes each do not hold all "
            f"{len(groups)} classes.\nhint: take more clients or a larger per_client"
        )
    holds = np.zeros((len(groups), clients), bool)
    for client in rng.permutation(clients):
        rare = np.lexsort((rng.random(len(groups)), holds.sum(1)))  # those that the fewest clients hold first
        holds[rare[:per_client], client] = True
    counts = np.array([whole_counts(len(g), h / h.sum()) for g, h in zip(groups, holds, strict=True)])
    if (short := (counts == 0) & holds).any():
        raise DataError(
            f"split 'classes': {short.any(0).sum()} clients would get no row of one of their classes.\n"
            "hint: take fewer clients"
        )
    return all_rows.assignment(assigned(groups, counts, rng, len(all_rows)), clients)


def whole_counts(rows: int, share: np.ndarray) -> np.ndarray:
    """The number of rows that each client gets; the sum is `rows`, and a share of 0 gets no rows.

    >>> whole_counts(10, np.array([0.5, 0.0, 0.25, 0.25])).tolist()
    [5, 0, 3, 2]
    """
    ends = np.floor(np.cumsum(share) * rows + 0.5).astype(np.int64)
    last = np.flatnonzero(share)[-1]
    ends[last:] = rows
    return np.diff(np.minimum(ends, rows), prepend=0)


def assigned(groups: list[np.ndarray], counts: np.ndarray, rng: np.random.Generator, rows: int) -> np.ndarray:
    """The client of each row, -1 for none: counts[g, i] random rows of group g go to client i."""
    who = np.full(rows, -1, np.int64)
    for group, count in zip(groups, counts, strict=True):
        who[rng.permutation(group)[: count.sum()]] = np.repeat(np.arange(len(count)), count)
    return who
