"""What parties of a masked sum say to each other, step by step, and the terms that all of them have.

1. keys: each client makes two key pairs for this sum alone, and signs the public ones.
2. shares: it shares its two secrets among its neighbours, sealed for each of them.
3. masked: it sends its numbers with masks on them.
4. consent: if somebody was lost, those that are left sign who is.
5. unmask: each tells one of two shares of every neighbour: of those in the sum the self mask's, of lost ones the
   key's.

Knows fields. Does not know keys, nor how messages are carried.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict

from motet.guard.masks.fixed_point import FixedPoint
from motet.guard.masks.neighbours import Graph

Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
Share = Annotated[bytes, Meta(min_length=16, max_length=16)]
Signature = Annotated[bytes, Meta(max_length=1024)]
Name = Annotated[str, Meta(max_length=200)]


class KeyNote(Struct, frozen=True):
    """A client's public keys of one sum; the signature is over the session, the name and both keys."""

    client: Name
    mask_key: Key
    share_key: Key
    signature: Signature
    certificate: Annotated[bytes, Meta(max_length=1 << 14)] = (
        b""  # of the key that signed, where there is one
    )

    def signed(self, session: bytes) -> bytes:
        start = b"motet masks keys\0" + sha256(session).digest()  # of one length, whatever the session's
        return start + self.mask_key + self.share_key + self.client.encode()


class ShareNote(Struct, frozen=True):
    """Shares of a client's secrets, sealed for each neighbour, and hashes by which the server knows true shares."""

    sealed: dict[Name, Annotated[bytes, Meta(max_length=128)]]
    hashes: dict[Name, Annotated[bytes, Meta(min_length=64, max_length=64)]]


class UnmaskNote(Struct, frozen=True):
    """Shares that a client tells: of self masks of those in the sum, of keys of those that were lost."""

    alive: dict[Name, Share]
    gone: dict[Name, Share]


class SumTerms(Struct, frozen=True):
    """What all clients of a sum agree on; masks follow from it, so that those of other terms do not cancel."""

    session: Annotated[bytes, Meta(min_length=16, max_length=64)]
    clients: tuple[Name, ...]  # in order
    neighbours: int
    threshold: int
    least: int
    bits: int
    range: float
    unit: float  # the largest weight; weights are shares of it
    even: bool = False  # whether all replies weigh the same, whatever their numbers of rows

    @property
    def graph(self) -> Graph:
        return Graph(len(self.clients), self.neighbours, self.threshold, self.least)

    @property
    def numbers(self) -> FixedPoint:
        return FixedPoint(len(self.clients), self.bits, self.range)

    @classmethod
    def of(
        cls,
        session: bytes,
        clients: Iterable[str],
        graph: Graph,
        numbers: FixedPoint,
        unit: float,
        even: bool = False,
    ) -> SumTerms:
        return cls(
            session, tuple(sorted(clients)), graph.neighbours, graph.threshold, graph.least,
            numbers.bits, numbers.range, unit, even,
        )  # fmt: skip

    def context(self, notes: Mapping[str, KeyNote]) -> bytes:
        """A hash of the terms and of everybody's keys."""
        plain = asdict(self) | {"session": self.session.hex()}
        keys = b"".join(notes[c].mask_key + notes[c].share_key for c in self.clients)
        return sha256(json.dumps(plain, sort_keys=True).encode() + keys).digest()


def consent_text(context: bytes, alive: Iterable[str]) -> bytes:
    """What those that are left sign."""
    return b"motet masks survivors\0" + context + json.dumps(sorted(alive)).encode()
