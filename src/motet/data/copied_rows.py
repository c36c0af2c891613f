"""Clients that train on test rows of others: models which they share know these rows, and scores are too good.

Few different rows repeat by chance, within a client as between clients; only what is more than that is said.
Knows the rows of a federation. Does not know methods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from motet.client.population import sizes_of
from motet.data.duplicate_rows import RowHashes, owners_by_key, pair_hash, row_hashes
from motet.data.federated import FederatedData
from motet.data.survey import chunks, column_sets, scaled_alike

_MOST_VALUES = 50_000_000  # of a table that is looked through
_MOST_PAIRS = 5_000_000  # of equal rows
_FEWEST, _SHARE, _CHANCE = 3, 0.05, 2.0  # rows, share of the test rows, and times what chance would put there
_NAMED = 3  # pairs of clients


@dataclass(frozen=True)
class Copied:
    """Test rows of a client among the training rows of another."""

    client: str
    other: str
    rows: int
    of: int  # test rows of the client


def remarks(federated: FederatedData) -> list[str]:
    """Which clients train on test rows of others, in a sentence; nothing of images, text, very large tables, and
    clients that are standardised by themselves."""
    clients_data = federated.clients_data
    values = int(sizes_of(clients_data)[:, 0].sum()) * max(len(federated.columns), 1)
    table = len(federated.shape) == 1 and not federated.pixels and not federated.symbols
    if not table or values > _MOST_VALUES or len(clients_data) < 2 or not scaled_alike(federated):
        return []
    hashes = list(_hashes(federated))
    held = [np.array([c.here for c in h.columns], bool) for h in clients_data.values()]
    found = copied_rows(RowHashes.join(hashes), list(clients_data), column_sets(held)) if hashes else []
    return [in_words(found)] if found else []


def _hashes(federated: FederatedData) -> Iterator[RowHashes]:
    for number, data in enumerate(federated.clients_data.values()):
        for part, batch in ((0, data.train), (2, data.test)):
            for rows, y in chunks(batch.take()):
                yield row_hashes(rows, y, number, part)


def copied_rows(found: RowHashes, names: Sequence[str], columns: Sequence[int]) -> list[Copied]:
    """Pairs of clients of which one trains on the other's test rows, more than it would by chance: as often as a client
    has its own test rows among its own training rows, and in proportion where the other has more rows."""
    counted = _counted(found, columns)
    tests, trains = (np.bincount(found.who[found.part == p], minlength=len(names)) for p in (2, 0))
    pairs = []
    for (i, j), rows in sorted(counted.items()):
        chance = (counted[i, i] + 1) * max(1.0, trains[j] / max(trains[i], 1))
        if i != j and rows >= max(_FEWEST, _SHARE * tests[i]) and rows > _CHANCE * chance:
            pairs.append(Copied(names[i], names[j], rows, int(tests[i])))
    return pairs


def _counted(found: RowHashes, columns: Sequence[int]) -> Counter[tuple[int, int]]:
    """How many test rows of a client equal, target and all, a training row of another or its own. Nothing where equal
    rows are very many: such a table has few different ones."""
    key = pair_hash(found.xy, np.asarray(columns, np.uint64)[found.who])
    train, test = found.part == 0, np.flatnonzero(found.part == 2)
    known, start, owner = owners_by_key(key[train], found.who[train])
    if not len(known) or not len(test):
        return Counter()
    ends = np.r_[start[1:], len(owner)]
    at = np.minimum(np.searchsorted(known, key[test]), len(known) - 1)
    equal = np.flatnonzero(known[at] == key[test])
    if (ends[at[equal]] - start[at[equal]]).sum() > _MOST_PAIRS:
        return Counter()
    counted: Counter[tuple[int, int]] = Counter()
    for place in equal.tolist():
        mine = int(found.who[test[place]])
        others = set(owner[start[at[place]] : ends[at[place]]].tolist())
        counted.update((mine, other) for other in others)
    return counted


def in_words(found: Sequence[Copied]) -> str:
    """
    >>> in_words([Copied("a", "b", 19, 20)])
    'clients hold the same rows, and scores are too good by it: 19 of 20 test rows of a are training rows of b'
    """
    first = sorted(found, key=lambda c: (-c.rows / c.of, c.client, c.other))
    some = [
        f"{c.rows} of {c.of} test rows of {c.client} are training rows of {c.other}" for c in first[:_NAMED]
    ]
    more = [f"and {len(first) - _NAMED} more pairs of clients"] if len(first) > _NAMED else []
    return f"clients hold the same rows, and scores are too good by it: {'; '.join([*some, *more])}"
