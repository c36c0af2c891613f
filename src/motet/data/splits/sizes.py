"""Splits in which clients differ in their numbers of rows (quantity skew).

Knows numbers of rows; `lognormal` also knows classes.
"""

from __future__ import annotations

import numpy as np

from motet.data.federated import DataError
from motet.data.splits.assignment import Assignment, Rows, positive

_LEAST = 500  # rows that every client gets in the stacking paper


def quantity_skew(
    all_rows: Rows,
    *,
    clients: int = 20,  # number of clients
    beta: float = 0.5,  # near 0: one client has nearly all rows; 1: all have the same number
    least: int = 0,  # rows that every client gets first; 0: 500, or a quarter of an equal share
) -> Assignment:
    """Sizes by a power law: n_k = least + share_k (rows - clients least), in an order drawn by the seed.

    Cantu-Cervini 2024: share_k is the mass of density beta x^(beta-1) in the k-th of equal bins.
    Differs from its code: the shares are exact where it draws a histogram, and the few rows that
    rounding leaves are used too.
    """
    positive("quantity_skew", beta=beta)
    all_rows.check(clients, max(least, 1))
    least = least or min(_LEAST, max(len(all_rows) // (4 * clients), 1))
    edges = (np.arange(clients + 1) / clients) ** beta
    sizes = least + np.floor(np.diff(edges) * (len(all_rows) - clients * least) + 1e-9).astype(np.int64)
    sizes[1 : 1 + len(all_rows) - sizes.sum()] += 1  # rows that rounding left; none to the largest client
    rng = all_rows.generator("quantity_skew", clients, beta, least)
    who = np.empty(len(all_rows), np.int64)
    who[rng.permutation(len(all_rows))] = np.repeat(rng.permutation(clients), sizes)
    return all_rows.assignment(who, clients)


def lognormal(
    all_rows: Rows,
    *,
    clients: int = 20,  # number of clients
    sigma: float = 1.0,  # standard deviation of the logarithm of sizes; 0: equal sizes
    alpha: float = 0.3,  # each client's class shares are Dirichlet(alpha); 0: the shares of all rows
) -> Assignment:
    """Sizes from a log-normal draw around rows / clients, then classes by each client's own shares.

    PAGE's recipe (Chen et al. 2024, after FedDyn): clients take rows without replacement; a class
    that has run out is divided among their other classes.
    """
    all_rows.check(clients)
    if sigma < 0 or alpha < 0:
        raise DataError(f"split 'lognormal': sigma is {sigma} and alpha is {alpha}; expected 0 or more")
    rng = all_rows.generator("lognormal", clients, sigma, alpha)
    raw = rng.lognormal(0, sigma, clients)
    sizes = 1 + whole(raw / raw.sum() * (len(all_rows) - clients))
    groups = [rng.permutation(g) for g in all_rows.strata()]
    left, who = np.array([len(g) for g in groups]), np.empty(len(all_rows), np.int64)
    for client in rng.permutation(clients):
        share = rng.dirichlet(np.full(len(groups), alpha)) if alpha else left / left.sum()
        for g, n in enumerate(taken(share, int(sizes[client]), left, rng)):
            who[groups[g][left[g] - n : left[g]]] = client
            left[g] -= n
    return all_rows.assignment(who, clients)


def taken(share: np.ndarray, size: int, left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The number of rows of each class that a client of this size draws, if `left` rows are left of each."""
    count = np.zeros(len(left), np.int64)
    while (need := size - count.sum()) > 0:  # every turn ends the loop or empties a class
        free = left - count
        weight = np.where(free > 0, share, 0.0)
        weight = weight if weight.sum() > 0 else free.astype(float)
        count += np.minimum(rng.multinomial(need, weight / weight.sum()), free)
    return count


def whole(shares: np.ndarray) -> np.ndarray:
    """Whole numbers with the same sum: rounded down, and the rest added to the largest remainders.

    >>> whole(np.array([1.5, 2.2, 0.3])).tolist()
    [2, 2, 0]
    """
    count = np.floor(shares + 1e-9).astype(np.int64)
    rest = round(float(shares.sum())) - int(count.sum())
    count[np.argsort(count - shares, kind="stable")[:rest]] += 1
    return count
