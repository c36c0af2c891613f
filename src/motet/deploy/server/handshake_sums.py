"""Masked sums before a run: letters to all sites of a sum, all of which must answer.

    summed = HandshakeSums(sites, "r1", least=3)
    summed("count", {"classes": []}, ["a", "b", "c"], 3)

Knows letters and the server's part of a sum. Does not know what is summed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from msgspec.structs import replace

from motet.core import Client, Tree
from motet.deploy.agreement.handshake import trees_of
from motet.deploy.agreement.masked_sums import counted
from motet.deploy.agreement.schema import Agreement
from motet.deploy.agreement.site_replies import UnusableReplies
from motet.deploy.server.all_sites import AllSites
from motet.engines.flare import Flare, TooFew
from motet.engines.letters import BEFORE, Letter, asked_for, asked_in
from motet.engines.masked_asks import MaskedSum, MaskSettings
from motet.errors import MotetError
from motet.runs.store import Store


class HandshakeSums:
    """Sums of one run's sites."""

    def __init__(self, sites: AllSites, run: str, least: int) -> None:
        self.sites, self.run, self.least = sites, run, least
        self.number = 0

    def __call__(
        self, job: Any, send: Mapping[str, object], sites: Sequence[str], many: int
    ) -> list[Fraction]:
        from motet.guard.masks.exact import DIGITS, digit_sums, exact_sums
        from motet.guard.masks.refused import MaskRefused

        letter = Letter(job, self.run, BEFORE, self.number, send=dict(send))
        self.number += 1
        ask = BeforeSum(self.sites, letter, self.least, many * DIGITS)
        try:
            total = ask.total(sorted(sites))
        except MaskRefused as e:
            if ask.server.refused:
                raise UnusableReplies(ask.server.refused) from e
            raise TooFew(f"{job}: {e}; it is tried again with new keys") from e
        return exact_sums(digit_sums(ask.server.terms.numbers, total))


class BeforeSum(MaskedSum):
    """One of them."""

    def __init__(self, sites: AllSites, letter: Letter, least: int, width: int) -> None:
        super().__init__(asked_in(letter, asked_for(letter.job, letter.part, letter.send)), least)
        self.sites, self.letter, self.width = sites, letter, width

    def step(self, step: str, to: list[Client], **said: Any) -> dict[Client, Tree]:
        send = {"step": step, "session": self.server.session, **said}
        return trees_of(self.sites(replace(self.letter, job="mask", verb=self.letter.job, send=send), to))

    def masked_replies(self) -> None:
        letters = {c: replace(self.letter, **more) for c, more in self.letters().items()}
        for client, tree in trees_of(self.sites.each(letters)).items():
            words = tree.get("words") if isinstance(tree, dict) else None
            self.server.take_masked(client, words, self.width)


# ---- what later jobs of the run need to know ----


def sums_of(sites: AllSites, run: str, masks: MaskSettings | None) -> HandshakeSums | None:
    return HandshakeSums(sites, run, masks.min_in_sum) if masks else None


def remember(engine: Flare, store: Store, agreement: Agreement) -> None:
    """What sites hide from this run's server, for this job and those that follow."""
    engine.unit = float(agreement.totals.get("train", 0))
    engine.hides_scores = "scores" in agreement.hidden and engine.masks is not None
    if hidden := sorted(agreement.hidden):
        store.set_facts(hidden=hidden, totals=agreement.totals, hides_scores=engine.hides_scores)


def recall(
    engine: Flare, store: Store, facts: dict[str, Any], new: set[Client], summed: HandshakeSums | None
) -> None:
    """The same in a run that goes on. With newcomers rows are counted anew: no weight may be above all rows."""
    totals = facts.get("totals") or {}
    engine.unit, engine.hides_scores = float(totals.get("train", 0)), bool(facts.get("hides_scores"))
    if not (totals and new and summed) or len(engine.present) < summed.least:
        return
    try:
        now, _ = counted(summed, sorted(engine.present))
    except MotetError as e:
        store.event("note", f"numbers of rows could not be counted anew with {', '.join(sorted(new))}: {e}")
        return
    engine.unit = max(engine.unit, float(now["train"]))
    store.set_facts(totals={part: max(many, now.get(part, 0)) for part, many in totals.items()})


def write_hidden(engine: Flare, store: Store) -> None:
    """At a run's end: how far masked scores of sites are apart, and who was left out."""
    if engine.hides_scores:
        store.set_facts(site_scores=engine.spreads)
    for text in engine.left_out:
        store.event("left out", text)
    engine.left_out.clear()
