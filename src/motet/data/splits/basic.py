"""Splits that look at nothing but rows: evenly, as the data say, everything to everyone.

Does not know targets.
"""

from __future__ import annotations

import numpy as np

from motet.data.federated import DataError
from motet.data.splits.assignment import Deck, Hand, client_names


def iid(
    deck: Deck,
    *,
    clients: int = 20,  # how many clients the rows are dealt to
) -> Hand:
    """Shuffled and dealt in turn, so that sizes differ by one at most."""
    deck.check(clients)
    who = np.empty(len(deck), np.int64)
    who[deck.generator("iid", clients).permutation(len(deck))] = np.arange(len(deck)) % clients
    return deck.hand(who, clients)


def natural(deck: Deck) -> Hand:
    """As the data say whose each row is."""
    if deck.owner is None:
        raise DataError(
            "split is 'natural', and the data do not say which client a row belongs to.\n"
            'hint: name the column of clients (client = "..."), or use split = "dirichlet" or "iid"'
        )
    who, names = ranked(deck.owner, deck.names)
    return Hand(deck.rows, who, names)


def ranked(owner: np.ndarray, names: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The number of each row's client, and the clients' names in order. With `names`, owners are indices."""
    if not names:
        found, who = np.unique(owner.astype(str), return_inverse=True)
        return who.reshape(-1).astype(np.int64), tuple(map(str, found))
    order = sorted(range(len(names)), key=names.__getitem__)
    rank = np.empty(len(names), np.int64)
    rank[order] = np.arange(len(names))
    return rank[owner], tuple(names[i] for i in order)


def vertical(
    deck: Deck,
    *,
    clients: int = 10,  # how many clients hold all rows
    features: float = 0.5,  # share of the columns that each client holds
) -> Hand:
    """Everyone holds all rows, and columns of its own. Rows are cut into parts alike for all, so that
    nobody trains on what another one is tested on (in the stacking paper's code they do)."""
    deck.check(clients)
    who = np.repeat(np.arange(clients), len(deck))
    return Hand(np.tile(deck.rows, clients), who, client_names(clients), same=True)
