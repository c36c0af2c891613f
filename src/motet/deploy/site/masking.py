"""A site's part in masked sums: its keys and shares, letter by letter, and what it has let be summed.

    sums = SiteSums("a", identity, ledger)
    tree, written = sums.step(letter, contract)  # keys, shares, consent, unmask
    leaving = sums.leaving(letter, digest, reply)  # the reply to a verb, masked

Secrets of a sum are in memory alone, and of few sums at once. A site that was started anew has none, so it drops out
of sums that were under way, and the round begins again with new keys. Which replies a site let be summed stands in
its ledger, for good: the same replies are never summed with others missing, because the two sums would differ by
theirs.
Knows letters, contracts and the ledger. Does not know rows, nor how letters are carried.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec.structs import asdict
from torch.utils import _pytree as pytree

from motet.core import Tree
from motet.deploy.site.contract import Contract
from motet.deploy.site.ledger import Ledger
from motet.deploy.site.policy import RefusedByPolicy
from motet.deploy.site.site_identity import SiteIdentity
from motet.engines.letters import Label, Letter, Reply
from motet.engines.masked_asks import is_number
from motet.guard.masks.messages import KeyNote, SumTerms
from motet.guard.masks.refused import MaskRefused
from motet.guard.outline import outline
from motet.wire import WireError

_OPEN = 32  # sums that are under way at once, over all runs; a group's each
_STEPS = ("keys", "shares", "consent", "unmask")


@dataclass
class OpenSum:
    """One sum that this site takes part in."""

    member: Any
    run: str
    label: Label
    letter: str = ""  # sha256 of the letter whose reply was masked


class SiteSums:
    """All sums of one site."""

    def __init__(self, name: str, identity: SiteIdentity | None, ledger: Ledger) -> None:
        self.name, self.identity, self.ledger = name, identity, ledger
        self.open: OrderedDict[bytes, OpenSum] = OrderedDict()

    # ---- steps ----

    def step(self, letter: Letter, contract: Contract) -> tuple[Tree, dict[str, str]]:
        """The answer to a step; with the last one, what the ledger says of it: whose replies, and to which letter."""
        said = letter.send
        if not isinstance(said, dict) or said.get("step") not in _STEPS:
            raise WireError("no step of a masked sum")
        if said["step"] == "keys":
            return self.keys(letter, contract), {}
        found = self.of(letter, said.get("session"))
        if said["step"] == "shares":
            return self.shares(found, said, contract), {}
        alive = tuple(sorted(names(said, "alive")))
        self.check_alive(found, alive)
        if said["step"] == "consent":
            return found.member.consent(alive), {}
        consents = msgspec.convert(said.get("consents"), dict[str, bytes])
        revealed = asdict(found.member.unmask(alive, names(said, "gone"), consents))
        return revealed, {"sum_of": ",".join(alive), "sum_for": found.letter}

    def keys(self, letter: Letter, contract: Contract) -> Tree:
        from motet.guard.masks.member import Member

        if self.identity is None:
            raise RefusedByPolicy(
                "this site has no certificate to sign the keys of masked sums with", "masks"
            )
        session = letter.send.get("session")
        if not isinstance(session, bytes) or not 16 <= len(session) <= 64 or session in self.open:
            raise WireError("a masked sum has a session of its own, of 16 to 64 bytes")
        member = Member(
            self.name, session, self.identity.sign, self.identity.verify,
            min_in_sum=contract.min_in_sum, certificate=self.identity.certificate,
        )  # fmt: skip
        self.open[session] = OpenSum(member, letter.run, letter.label)
        while len(self.open) > _OPEN:
            self.open.popitem(last=False)
        return asdict(member.keys())

    def shares(self, found: OpenSum, said: dict[str, Any], contract: Contract) -> Tree:
        terms = msgspec.convert(said.get("terms"), SumTerms)
        notes = msgspec.convert(said.get("notes"), list[KeyNote])
        if strange := sorted({n.client for n in notes} - set(contract.sites)):
            raise MaskRefused(
                f"{strange[0]} takes part in the sum, and is no site of the run that was offered"
            )
        return asdict(found.member.share(terms, notes))

    def check_alive(self, found: OpenSum, alive: tuple[str, ...]) -> None:
        """Refuse a sum of the same replies as before without some of them, or with others."""
        before = self.ledger.sums.get((found.run, *found.label, found.letter))
        if not found.letter or (before is not None and before != ",".join(alive)):
            raise MaskRefused(
                f"these replies were summed before, of {before}, and are now to be summed of {','.join(alive)}: "
                "the difference would show single replies"
            )

    def of(self, letter: Letter, session: Any) -> OpenSum:
        found = self.open.get(session) if isinstance(session, bytes) else None
        if found is None or (found.run, found.label) != (letter.run, letter.label):
            raise MaskRefused(
                "this site knows no such sum: it began before this process, or is another ask's"
            )
        return found

    # ---- replies ----

    def leaving(self, letter: Letter, digest: str, packed: bytes) -> bytes:
        """A reply as it leaves: in a masked sum with masks on its numbers, and with its form."""
        if not letter.masked or (reply := Reply.read(packed)).spoilt:
            return packed
        found = self.of(letter, letter.masked.get("session"))
        sealed = msgspec.convert(letter.masked.get("sealed"), dict[str, bytes])
        values = [torch.as_tensor(v) for v in pytree.tree_leaves(reply.tree)]
        row = np.concatenate([np.zeros(0), *(v.detach().double().reshape(-1).numpy() for v in values)])
        words = found.member.mask(row, float(reply.n), sealed)
        found.letter = digest
        return Reply({"form": outline(reply.tree, is_number), "words": words}).pack()


def names(said: dict[str, Any], field: str) -> list[str]:
    return msgspec.convert(said.get(field), list[str])
