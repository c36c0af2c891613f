"""Splits without regard to targets: iid, by the clients that the data name, and vertical.

Knows rows and clients. Does not know targets.
"""

from __future__ import annotations

import numpy as np

from motet.data.federated import DataError
from motet.data.splits.assignment import Assignment, Rows, client_names


def iid(
    all_rows: Rows,
    *,
    clients: int = 20,  # number of clients
) -> Assignment:
    """Rows are shuffled and divided evenly: sizes differ by one at most."""
    all_rows.check(clients)
    who = np.empty(len(all_rows), np.int64)
    who[all_rows.generator("iid", clients).permutation(len(all_rows))] = np.arange(len(all_rows)) % clients
    return all_rows.assignment(who, clients)


def natural(all_rows: Rows) -> Assignment:
    """Each row goes to the client that the data name."""
    if all_rows.owner is None:
        raise DataError(
            "split is 'natural', and the data do not say which client a row belongs to.\n"
            'hint: name the column of clients (client = "..."), or use split = "dirichlet" or "iid"'
        )
    who, names = ranked(all_rows.owner, all_rows.names)
    return Assignment(all_rows.rows, who, names)


def ranked(owner: np.ndarray, names: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The index of each row's client, and the clients' names in order. With `names`, owners are indices into them."""
    if not names:
        found, who = np.unique(owner.astype(str), return_inverse=True)
        return who.reshape(-1).astype(np.int64), tuple(map(str, found))
    order = sorted(range(len(names)), key=names.__getitem__)
    rank = np.empty(len(names), np.int64)
    rank[order] = np.arange(len(names))
    return rank[owner], tuple(names[i] for i in order)


def vertical(
    all_rows: Rows,
    *,
    clients: int = 10,  # number of clients; each holds all rows
    features: float = 0.5,  # share of the columns that each client holds
) -> Assignment:
    """Each client holds all rows, and some of the columns. The parts of rows are the same for all clients, so that
    no client trains on the test rows of another (in the stacking paper's code they do)."""
    all_rows.check(clients)
    who = np.repeat(np.arange(clients), len(all_rows))
    return Assignment(np.tile(all_rows.rows, clients), who, client_names(clients), same=True)
