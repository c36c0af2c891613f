"""Rows of the table of clients, names of very many clients as one value, and tables with a row for each of them.

In a round of a million clients all are sent the same bytes. The database holds that once, with the names as one
compressed column; tables are as if there were a row for each client.
Knows names and columns. Does not know SQL. Imports no torch.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def as_column(names: Sequence[str]) -> bytes:
    """
    >>> names_in(as_column(["a", "b"]))
    ['a', 'b']
    """
    return zlib.compress(json.dumps(list(names)).encode(), 1)


def names_in(column: bytes) -> list[str]:
    return list(json.loads(zlib.decompress(column)))


def with_alike(frame: pd.DataFrame, alike: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    """The table of asks or of traffic, with a row for each client of those that were asked alike."""
    import pandas as pd

    more = [
        pd.DataFrame(
            {"client": names_in(clients), "round": number, "verb": verb, "learn": learn, "messages": 1, "up": up,
             "down": down}
        )
        for number, _, verb, learn, up, down, _, clients in alike
    ]  # fmt: skip
    whole = pd.concat([frame, *(m[list(frame.columns)] for m in more)], ignore_index=True)
    keys = [k for k in ("round", "client", "verb", "learn") if k in frame]
    numbers = [c for c in frame if c not in keys]
    return whole.groupby(keys, as_index=False, sort=True)[numbers].sum()[list(frame.columns)]


# ---- the table of clients ----


def client_rows(
    clients_data: Mapping[str, Any], seen: bool, which: Iterable[str] | None = None
) -> list[tuple[Any, ...]]:
    """What is known of each client, or of those that are scored."""
    some = ((c, clients_data[c]) for c in (clients_data if which is None else which))
    return [(c, int(seen), h.n, len(h.val), len(h.test), labels(h)) for c, h in some]


def labels(client_data: Any) -> dict[str, int]:
    """How many training examples of each class; nothing for numbers."""
    if client_data.train.y.is_floating_point():
        return {}
    found, counts = client_data.train.y.unique(return_counts=True)
    return {str(k): int(n) for k, n in zip(found.tolist(), counts.tolist(), strict=True)}
