"""The server's part in one masked sum: it gathers what clients say, and takes masks off the sum.

Whatever a client says that cannot be used is refused by name, and the client counts as lost from then on. Below the
threshold nothing can be unmasked, and the sum fails.
Knows what clients sent. Does not know any reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from motet.guard.masks import keys as crypto
from motet.guard.masks.fixed_point import FixedPoint, Words
from motet.guard.masks.keystream import add_mask
from motet.guard.masks.messages import KeyNote, ShareNote, SumTerms, UnmaskNote
from motet.guard.masks.neighbours import Graph, complete_graph, neighbours_of
from motet.guard.masks.refused import MaskRefused
from motet.guard.masks.shares import combined

S = TypeVar("S", bound=msgspec.Struct)


class SumServer:
    """One sum. Call `take_keys`, `open`, `take_shares`, `take_masked`, `take_unmasked` in this order, then `total`."""

    def __init__(self, session: bytes) -> None:
        self.session, self.sent = (
            session,
            b"",
        )  # `sent`: a hash of what clients were asked, from which masks follow
        self.notes: dict[str, KeyNote] = {}
        self.shares: dict[str, ShareNote] = {}
        self.total_of: Words | None = None  # the sum of what came, masks on it
        self.alive: set[str] = set()  # whose numbers are in it
        self.consents: dict[str, bytes] = {}
        self.revealed: dict[str, UnmaskNote] = {}
        self.refused: dict[str, str] = {}  # who was refused, and why
        self.terms: SumTerms
        self.context = b""

    # ---- step by step ----

    def take_keys(self, client: str, said: Any) -> None:
        if (note := self.read(client, said, KeyNote, self.notes)) is None:
            return
        known = {k for n in self.notes.values() for k in (n.mask_key, n.share_key)}
        if note.client != client or {note.mask_key, note.share_key} & known:
            self.refuse(client, "its key is that of another client")
        else:
            self.notes[client] = note

    def open(
        self,
        numbers: FixedPoint,
        unit: float,
        graph: Graph | None = None,
        least: int = 1,
        even: bool = False,
    ) -> SumTerms:
        """The terms for those whose keys came."""
        n = len(self.notes)
        if n < max(least, 1):
            raise MaskRefused(f"{n} clients sent keys, and a masked sum needs {max(least, 1)}{self.why()}")
        self.terms = SumTerms.of(self.session, self.notes, graph or complete_graph(n), numbers, unit, even)
        self.context = self.terms.context(self.notes)
        return self.terms

    def take_shares(self, client: str, said: Any) -> None:
        if (note := self.read(client, said, ShareNote, self.shares)) is None:
            return
        near = set(self.neighbours(client))
        if client not in self.notes or set(note.sealed) != near or set(note.hashes) != near | {client}:
            self.refuse(client, "its shares are not one for each of its neighbours")
        else:
            self.shares[client] = note

    def sealed_for(self, client: str) -> dict[str, bytes]:
        """The shares that others sealed for a client."""
        return {c: self.shares[c].sealed[client] for c in self.neighbours(client) if c in self.shares}

    def check_shared(self) -> None:
        if len(self.shares) < self.terms.least:
            raise MaskRefused(
                f"{len(self.shares)} clients shared their keys, and {self.terms.least} must{self.why()}"
            )

    def take_masked(self, client: str, said: Any, numbers: int) -> None:
        """A client's masked numbers, of which the last is its weight."""
        kind = self.terms.numbers.dtype
        if client in self.alive or client not in self.shares:
            return self.refuse(client, "it sent masked numbers twice, or without its shares")
        if not isinstance(said, bytes) or len(said) != kind.itemsize * (numbers + 1):
            return self.refuse(
                client, f"its masked reply has a wrong length; {numbers} numbers were asked for"
            )
        words = np.frombuffer(said, kind)
        if self.total_of is None:
            self.total_of = words.copy()
        else:
            self.total_of += words
        self.alive.add(client)
        return None

    @property
    def gone(self) -> set[str]:
        """Who shared its keys, and whose numbers did not come."""
        return set(self.shares) - self.alive

    def check_alive(self) -> None:
        if len(self.alive) < self.terms.least:
            raise MaskRefused(
                f"{len(self.alive)} of {len(self.notes)} masked replies came, and {self.terms.least} must; "
                f"nothing was unmasked{self.why()}"
            )

    @property
    def needs_consent(self) -> bool:
        """Whether somebody was lost after keys were shared, so that the others must sign who is left."""
        return bool(self.gone)

    def take_consent(self, client: str, said: Any) -> None:
        if client in self.alive and isinstance(said, bytes) and client not in self.consents:
            self.consents[client] = said
        else:
            self.refused[client] = "its consent cannot be used"

    def take_unmasked(self, client: str, said: Any) -> None:
        if (note := self.read(client, said, UnmaskNote, self.revealed)) is None:
            return
        for shares, half in ((note.alive, slice(0, 32)), (note.gone, slice(32, 64))):
            for other, share in shares.items():
                known = self.shares[other].hashes.get(client) if other in self.shares else None
                if known is None or crypto.mark(share) != known[half]:
                    return self.refuse(client, f"it sent a false share of {other}")
        self.revealed[client] = note
        return None

    # ---- the sum ----

    def total(self) -> Words:
        """The sum without masks; MaskRefused where too few shares came."""
        self.check_alive()
        assert self.total_of is not None
        total = self.total_of.copy()
        for client in sorted(self.alive):
            seed = self.opened(
                client, {c: n.alive[client] for c, n in self.revealed.items() if client in n.alive}
            )
            add_mask(total, crypto.self_mask(seed, self.context), negative=True)
        for client in sorted(self.gone):
            seed = self.opened(
                client, {c: n.gone[client] for c, n in self.revealed.items() if client in n.gone}
            )
            self.without_pairs(total, client, seed)
        return total

    def without_pairs(self, total: Words, client: str, seed: bytes) -> None:
        """Take off the masks that others share with a client that was lost."""
        key = crypto.private_key(seed)
        if crypto.public_bytes(key) != self.notes[client].mask_key:
            raise MaskRefused(f"the shares of {client} do not give its key: {client} shared something else")
        for other in self.neighbours(client):
            if other in self.alive:
                mask = crypto.pair_mask(key, self.notes[other].mask_key, self.context + self.sent)
                add_mask(total, mask, negative=other < client)

    def opened(self, client: str, shares: Mapping[str, bytes]) -> bytes:
        need = self.terms.threshold
        if len(shares) < need:
            raise MaskRefused(
                f"{len(shares)} shares of {client} came, and {need} must; nothing was unmasked{self.why()}"
            )
        holders = sorted([client, *self.neighbours(client)])
        return combined({holders.index(c) + 1: share for c, share in sorted(shares.items())}, need)

    # ---- what the steps need ----

    def neighbours(self, client: str) -> list[str]:
        return neighbours_of(client, self.terms.clients, self.terms.graph, self.session)

    def read(self, client: str, said: Any, kind: type[S], known: Mapping[str, Any]) -> S | None:
        """What a client said, if it is what was asked and said once."""
        if client in known:
            self.refuse(client, f"it sent its {kind.__name__} twice; the first one stands")
            return None
        try:
            return said if isinstance(said, kind) else msgspec.convert(said, kind)
        except (msgspec.ValidationError, ValueError, TypeError) as e:
            self.refuse(client, f"what it said is no {kind.__name__}: {e}")
            return None

    def refuse(self, client: str, why: str) -> None:
        self.refused[client] = why

    def why(self) -> str:
        return "".join(f"; {c}: {why}" for c, why in sorted(self.refused.items()))
