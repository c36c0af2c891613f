"""How many messages and bytes every client sends and receives, by what it was asked.

Knows numbers. Does not know what is in a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from motet.client.population import MANY
from motet.core import Client

Asked = tuple[
    Client, str, str
]  # client, verb or job, what the server learns: average, collect, scores, nothing
Counts = tuple[int, int, int]  # messages, bytes up, bytes down
Traffic = dict[Client, tuple[int, int]]  # bytes up and down
TRAINING = ("average", "collect")  # what asks of a method let the server learn


@dataclass(frozen=True)
class Alike:
    """One message to each of very many clients, and as large an answer from each of them."""

    clients: Sequence[Client]
    what: str
    learn: str
    up: int  # bytes of each
    down: int


class Meter:
    """Counts until it is emptied."""

    def __init__(self) -> None:
        self.asked: dict[Asked, list[int]] = {}
        self.alike: list[Alike] = []

    def count_all(self, clients: Sequence[Client], what: str, learn: str, up: int, down: int) -> None:
        """One message to each of these clients; very many of them are counted at once."""
        if len(clients) >= MANY:
            self.alike.append(Alike(clients, what, learn, up, down))
            return
        for client in clients:
            self.count(client, what, learn, up, down)

    def count(self, client: Client, what: str, learn: str, up: int, down: int, many: int = 1) -> None:
        """So many messages to a client and as many answers, with all their bytes."""
        counts = self.asked.setdefault((client, what, learn), [0, 0, 0])
        counts[:] = counts[0] + many, counts[1] + up, counts[2] + down

    def take(self) -> dict[Asked, Counts]:
        """All that was counted since the last call."""
        taken = {key: (many, up, down) for key, (many, up, down) in sorted(self.asked.items())}
        self.asked.clear()
        return taken

    def take_alike(self) -> list[Alike]:
        """The same of messages to very many clients."""
        taken, self.alike = self.alike, []
        return taken


def by_client(asked: Mapping[Asked, Iterable[int]]) -> Traffic:
    """(up, down) of every client, all that it was asked together."""
    found: Traffic = {}
    for (client, _, _), (_, up, down) in asked.items():
        before = found.get(client, (0, 0))
        found[client] = before[0] + up, before[1] + down
    return found


def in_training(asked: Mapping[Asked, Counts]) -> dict[Asked, Counts]:
    """Without scores, saved models, and letters before a run; with files and steps of masked sums."""
    return {key: counts for key, counts in asked.items() if key[2] in TRAINING or key[1] in ("files", "mask")}


def totals(traffic: Traffic, alike: Sequence[Alike]) -> tuple[int, int, int]:
    """How many clients there are in both, and all their bytes up and down.

    >>> totals({"a": (1, 2), "b": (3, 4)}, [Alike(["b", "c"], "train", "average", 10, 20)])
    (3, 24, 46)
    """
    up, down = (sum(b[i] for b in traffic.values()) for i in (0, 1))
    up += sum(a.up * len(a.clients) for a in alike)
    down += sum(a.down * len(a.clients) for a in alike)
    if len(alike) == 1 and not traffic:
        return len(alike[0].clients), up, down
    return len(set(traffic).union(*(a.clients for a in alike))), up, down
