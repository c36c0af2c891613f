"""A site's part in masked sums: its keys and shares, letter by letter, and what it has let be summed.

    sums = SiteSums("a", identity, ledger)
    tree, written = sums.step(letter, rules)  # keys, shares, consent, unmask
    leaving = sums.leaving(letter, digest, reply)  # the reply to a verb, masked
    words = sums.exact(letter, numbers)  # scores, sums of columns or counts, masked

Secrets of a sum are in memory alone, and of few sums at once. A site that was started anew has none, so it drops out
of sums that were under way, and the round begins again with new keys. Which replies a site let be summed stands in
its ledger, for good: the same replies are never summed with others missing, or weighed in another way, because the
two sums would differ by theirs. Replies are the same if the same was asked and replied, in whatever run and round. Nor
are replies to one verb of one round, whatever was sent with it: of weights that nearly are the same, the two sums would
differ by nearly as much. A sum counts as soon as this site revealed its shares for it; before, its reply may be summed
with others. Two thirds of a sum's sites reveal theirs, so no two sums that differ by a few sites are without one that
revealed its shares for both.
Sums of columns and counts before a run are the same in every run, and sites come and go: they may be summed with a few
different sets of sites.
Knows letters, rules and the ledger. Does not know rows, nor how letters are carried.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec.structs import asdict, replace
from torch.utils import _pytree as pytree

from motet.core import Tree
from motet.deploy.site.contract import Contract
from motet.deploy.site.ledger import NO_VERB, Ledger, LedgerLine
from motet.deploy.site.policy import Policy, RefusedByPolicy
from motet.deploy.site.site_identity import SiteIdentity
from motet.deploy.site.training_budget import check_left
from motet.engines.letters import BEFORE, Label, Letter, Reply, asked_for, asked_in
from motet.engines.masked_asks import asked_hash, is_number
from motet.guard.masks.exact import RANGE, WIDTH, digits_of
from motet.guard.masks.messages import KeyNote, SumTerms
from motet.guard.masks.refused import MaskRefused
from motet.guard.outline import outline
from motet.text import round_name
from motet.wire import WireError

_OPEN = 32  # sums that are under way at once, over all runs; a group's each
_CLOSE = 1e-6  # by which accountants of other versions may differ
_STEPS = ("keys", "shares", "consent", "unmask")


@dataclass(frozen=True)
class SumRules:
    """What a site holds a sum to."""

    least: int  # replies in it
    bits: int  # of each number
    range: float  # largest number
    sites: tuple[str, ...] | None = None  # who may take part; None: every site that the root vouches for
    exact: bool = False  # whether digits of exact numbers are summed, which weigh the same
    sets: int = (
        1  # of sites that it may be summed with: a verb's replies in one round; before a run, over all runs
    )
    noise: float = 0.0  # deviation of this site's share of the noise in a sum of replies
    floor: int = 0  # where the number of rows is hidden: what refusals depend on in its place

    @classmethod
    def of(cls, contract: Contract, exact: bool, sets: int = 1) -> SumRules:
        """Of a run: for replies, or for scores."""
        bits, most = (WIDTH, RANGE) if exact else (contract.mask_bits, contract.mask_range)
        shared = contract.private if contract.private and contract.private.of_sites and not exact else None
        noise = shared.share if shared else 0.0
        floor = max(contract.least_rows, 1) if contract.counts == "masked" else 0
        return cls(contract.min_in_sum, bits, most, contract.sites, exact, sets, noise, floor)

    @classmethod
    def before(cls, policy: Policy) -> SumRules:
        """Before a run: for sums of columns and for counts."""
        return cls(policy.min_in_sum, WIDTH, RANGE, None, True, policy.cohorts)


@dataclass
class OpenSum:
    """One sum that this site takes part in."""

    member: Any
    run: str
    label: Label
    verb: str  # whose replies are summed; of a sum before a run the job
    rules: SumRules
    what: str = ""  # sha256 of what was asked and replied, once it was masked
    numbers: bool = True  # whether the replies hold any

    @property
    def how(self) -> str:
        """How replies are weighed in the sum."""
        return "evenly" if self.member.terms.even else f"by rows over {self.member.terms.unit!r}"

    def written(self, alive: Sequence[str]) -> dict[str, str]:
        """What the ledger says of the sum, if it is of these sites."""
        verb = NO_VERB if self.rules.exact or not self.numbers else self.verb
        return {"sum_of": ",".join(alive), "sum_for": self.what, "sum_as": self.how, "sum_verb": verb}


class SiteSums:
    """All sums of one site."""

    def __init__(self, name: str, identity: SiteIdentity | None, ledger: Ledger) -> None:
        self.name, self.identity, self.ledger = name, identity, ledger
        self.open: OrderedDict[bytes, OpenSum] = OrderedDict()

    # ---- steps ----

    def step(self, letter: Letter, rules: SumRules) -> tuple[Tree, dict[str, str]]:
        """The answer to a step; with the last one, what the ledger says of it: whose replies, and to which letter."""
        said = letter.send
        if not isinstance(said, dict) or said.get("step") not in _STEPS:
            raise WireError("no step of a masked sum")
        if said["step"] == "keys":
            return self.keys(letter, rules), {}
        found = self.of(letter, said.get("session"))
        if said["step"] == "shares":
            return self.shares(found, said), {}
        alive = tuple(sorted(names(said, "alive")))
        self.check_alive(found, alive)
        if said["step"] == "consent":
            return found.member.consent(alive), {}
        consents = msgspec.convert(said.get("consents"), dict[str, bytes])
        revealed = asdict(found.member.unmask(alive, names(said, "gone"), consents))
        return revealed, found.written(alive)

    def keys(self, letter: Letter, rules: SumRules) -> Tree:
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
            min_in_sum=rules.least, certificate=self.identity.certificate,
        )  # fmt: skip
        self.open[session] = OpenSum(member, letter.run, letter.label, letter.verb, rules)
        while len(self.open) > _OPEN:
            self.open.popitem(last=False)
        return asdict(member.keys())

    def shares(self, found: OpenSum, said: dict[str, Any]) -> Tree:
        terms, rules = msgspec.convert(said.get("terms"), SumTerms), found.rules
        notes = msgspec.convert(said.get("notes"), list[KeyNote])
        if rules.sites is not None and (strange := sorted({n.client for n in notes} - set(rules.sites))):
            raise MaskRefused(
                f"{strange[0]} takes part in the sum, and is no site of the run that was offered"
            )
        if (terms.bits, terms.range) != (rules.bits, rules.range):
            raise MaskRefused(
                f"the sum is to hold numbers up to {terms.range:g} in {terms.bits} bits, and the run was offered with "
                f"{rules.range:g} in {rules.bits}: other numbers would be rounded away"
            )
        if rules.exact and not (terms.even and terms.unit == 1):
            raise MaskRefused("in a sum of scores, columns or counts all sites weigh the same")
        return asdict(found.member.share(terms, notes))

    def check_alive(self, found: OpenSum, alive: tuple[str, ...]) -> None:
        """Refuse a sum of the same replies as before, or of the same round's, without some of them or with others."""
        if not found.what:
            raise MaskRefused("nothing was masked in this sum: there is nothing to unmask")
        line = LedgerLine(run=found.run, round=found.label[0])
        check_sum(replace(line, **found.written(alive)), self.ledger, found.rules.sets)

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
        found = self.masking(letter, exact=False)
        noise = checked_noise(found, letter.masked.get("noise"))
        sealed = msgspec.convert(letter.masked.get("sealed"), dict[str, bytes])
        values = [torch.as_tensor(v) for v in pytree.tree_leaves(reply.tree)]
        row = np.concatenate([np.zeros(0), *(v.detach().double().reshape(-1).numpy() for v in values)])
        asked = asked_hash(letter.verb, letter.send, noise)
        words = found.member.mask(row, weight_in(found, reply.n), sealed, asked_in(letter, asked))
        # without numbers there is nothing to tell by a difference, and the reply is the same in every round
        found.numbers = len(row) > 0
        found.what = sha256(asked + packed).hexdigest() if found.numbers else digest
        return Reply({"form": outline(reply.tree, is_number), "words": words}).pack()

    def exact(self, letter: Letter, numbers: Sequence[Fraction | float]) -> bytes:
        """Scores, sums of columns or counts as they leave: digits with masks on them."""
        found = self.masking(letter, exact=True)
        sealed = msgspec.convert(letter.masked.get("sealed"), dict[str, bytes])
        row, asked = digits_of(numbers), asked_for(letter.job, letter.part, letter.send)
        words: bytes = found.member.mask(row, 1.0, sealed, asked_in(letter, asked))
        found.what = sha256(asked + row.tobytes()).hexdigest()
        return words

    def masking(self, letter: Letter, exact: bool) -> OpenSum:
        """The sum that a letter wants a reply in, if it is one for such replies."""
        found = self.of(letter, letter.masked.get("session"))
        before = letter.job in ("measure", "count")  # counted by `cohorts`, and sums of a run are not
        verb = letter.job if before else letter.verb
        if (found.rules.exact, found.verb) != (exact, verb) or before != (letter.round == BEFORE):
            raise MaskRefused("the sum was begun for another kind of reply")
        return found


def weight_in(found: OpenSum, rows: int) -> float:
    """A reply's number of rows as its weight. If it is hidden, no refusal follows from it: a server that tries many
    units would find it by them. A weight above the unit is then the unit, which no honest server says."""
    terms, floor = found.member.terms, found.rules.floor
    if not floor or terms.even or not terms.unit > 0:
        return float(rows)
    if why := terms.numbers.rounded_away(min(floor / terms.unit, 1.0)):
        raise MaskRefused(why)
    return float(min(rows, terms.unit))


def checked_noise(found: OpenSum, said: Any) -> float:
    """The noise that each site of a sum adds, as all of them were told: masks follow from it. Another one than this
    site's contract has is refused, and so are weights by which noise would not be what it is."""
    known = float(said) if isinstance(said, int | float) else 0.0
    own = found.rules.noise
    if not abs(known - own) <= _CLOSE * own:  # also for one that is no number
        raise MaskRefused(
            f"each site of the sum is to add noise of deviation {known:g}, and this site's contract has "
            f"{own:g}: the others' share would be another one"
        )
    if own and not found.member.terms.even:
        raise MaskRefused(
            "replies are to be weighed by rows, and the noise of whole sites is for replies that weigh the same"
        )
    return known


def names(said: dict[str, Any], field: str) -> list[str]:
    return msgspec.convert(said.get(field), list[str])


def check_sum(line: LedgerLine, ledger: Ledger, sets: int) -> None:
    """Refuse a sum that differs from an earlier one of the same replies; one of a verb whose replies of this round were
    summed with as many sets of sites as may be; and, before a run, one with more sets of sites than the policy has."""
    if line.round == BEFORE:
        if line.sum_of not in ledger.cohorts and len(ledger.cohorts) >= sets:
            raise MaskRefused(
                f"this site's sums or counts left in sums of {len(ledger.cohorts)} different sets of sites, and this "
                f"site's policy has cohorts = {sets}: differences of sums show what one site adds to them"
            )
        return
    now = line.sum_of, line.sum_as
    if (before := ledger.sums.get(line.sum_for, now)) != now:
        raise MaskRefused(
            f"these replies were summed before, {how_they_differ(before, now)}: the difference would show single "
            "replies\nhint: a new run needs another seed"
        )
    known = ledger.sets.get((line.run, line.round, line.sum_verb), [])
    if line.sum_verb != NO_VERB and now not in known and len(known) >= sets:
        raise MaskRefused(
            f"replies to {line.sum_verb} of {round_name(line.round)} were summed before, "
            f"{how_they_differ(known[-1], now)}: if the weights that were sent are nearly the same, the difference "
            "would show single replies\nhint: the same sites may be asked again, and others in the next round"
        )


def how_they_differ(before: tuple[str, str], now: tuple[str, str]) -> str:
    """Of whom two sums are; if they are of the same sites, how replies are weighed in them."""
    was, is_ = (f"of {x[0]}" if before[0] != now[0] else x[1] for x in (before, now))
    return f"{was}, and are now to be summed {is_}"


def check_written(line: LedgerLine, policy: Policy, ledger: Ledger, sets: int = 1) -> None:
    """Refuse a line that lines of another process, written meanwhile, do not allow any more: runs that go on at once
    have a process each."""
    check_left(line, policy, ledger)
    if line.sum_of:
        check_sum(line, ledger, policy.cohorts if line.round == BEFORE else sets)
