"""Who shares masks with whom, and how many must stay for a sum: all with all, or the sparse graph of many clients.

Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning": everyone with everyone,
and with t of n holders of a secret's shares, 2t > n + (colluding holders), so that nobody's two secrets can both be
had, whatever the server says of dropouts. t is two thirds of n, and one more: fewer than a third may collude.

Bell et al. 2020, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", section 3: above 50 clients each
has k neighbours on a ring in random order. k and t are the smallest for which, with a fifth of the clients colluding
with the server and a tenth lost, every one of these fails with a probability below 2^-40: somebody's both secrets
can be had, the clients that are left and honest fall apart into groups, or (2^-30) the sum cannot be unmasked.
The order of the ring is drawn by the server, so the sparse graph is for servers that keep to the protocol.
Knows numbers and names. Does not know keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate
from math import comb

COMPLETE = 50  # clients up to which everyone has everyone as a neighbour
COLLUDING, LOST = 0.2, 0.1  # shares of the clients that a sparse graph bears
_SAFE, _SURE = 2.0**-40, 2.0**-30  # how likely the first two may fail, and the third


@dataclass(frozen=True)
class Graph:
    """How a sum of n clients is masked."""

    n: int
    neighbours: int  # of each client
    threshold: int  # shares of a secret that give it; a client and its neighbours hold one each
    least: int  # clients whose replies must be in the sum

    @property
    def complete(self) -> bool:
        return self.neighbours == self.n - 1


def complete_graph(n: int) -> Graph:
    """Everyone with everyone.

    >>> [(complete_graph(n).threshold, n - complete_graph(n).least) for n in (3, 4, 7, 10)]
    [(3, 0), (3, 1), (5, 2), (7, 3)]
    """
    t = 2 * n // 3 + 1
    return Graph(n, n - 1, t, t)


@lru_cache(maxsize=64)
def sparse_graph(n: int) -> Graph:
    """The smallest number of neighbours that is safe; all with all where there is none.

    >>> sparse_graph(50), sparse_graph(1000).neighbours
    (Graph(n=50, neighbours=20, threshold=16, least=45), 158)
    """
    colluding, lost = int(COLLUDING * n), int(LOST * n)
    for k in range(2, n - 1, 2):
        if colluding + lost >= k and n * ((colluding + lost) / n) ** (k // 2) > _SAFE:
            continue
        both, stuck = tails(n - 1, colluding, k), tails(n - 1, lost, k)
        for t in range(k // 2 + 1, k + 2):
            if n * both[min(2 * t - (k + 1), k + 1)] <= _SAFE and n * stuck[k + 2 - t] <= _SURE:
                return Graph(n, k, t, n - lost)
    return complete_graph(n)


def tails(all_: int, marked: int, drawn: int) -> list[float]:
    """How likely at least 0, 1, 2, … of those that are drawn are marked.

    >>> tails(4, 2, 2)  # of 6 pairs, 5 have a marked one and 1 has two
    [1.0, 0.8333333333333334, 0.16666666666666666, 0.0]
    """
    ways = [comb(marked, i) * comb(all_ - marked, drawn - i) for i in range(drawn + 1)]
    sums = list(accumulate(reversed(ways), initial=0))
    return [s / sums[-1] for s in reversed(sums)]


def usual_graph(n: int) -> Graph:
    return complete_graph(n) if n <= COMPLETE else sparse_graph(n)


def ring(names: tuple[str, ...], session: bytes) -> list[str]:
    """The clients in an order that depends on the session alone."""
    return sorted(names, key=lambda c: sha256(session + c.encode()).digest())


def neighbours_of(name: str, names: tuple[str, ...], graph: Graph, session: bytes) -> list[str]:
    """With whom a client shares masks, in the order of names."""
    if graph.complete:
        return [c for c in names if c != name]
    order = ring(names, session)
    at, half, n = order.index(name), graph.neighbours // 2, len(order)
    return sorted(order[(at + step) % n] for step in range(-half, half + 1) if step)
