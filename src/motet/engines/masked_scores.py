"""Scores of sites by masked sums: the server learns their mean over sites and its spread, and no site's scores.

All sites of a sum were asked to score the same models: of sites that were asked different things masks do not cancel.
A method that sends sites models of their own (one for each group, say) is scored group by group, and sites whose group
is too small for a sum are not scored.
Knows letters and the server's part of a sum. Does not know any score of a site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from motet.core import Client, Part, Tree
from motet.engines.letters import LetterJob, asked_for
from motet.engines.masked_asks import MaskedSum, MaskSettings
from motet.engines.score_sums import mean_scores, score_names, width_of
from motet.errors import MotetError
from motet.text import ALL_SITES, round_name

if TYPE_CHECKING:
    from motet.engines.flare import Flare

Names = list[list[str]]  # (side, metric) in the order of the numbers
_NUMBERS = {"val": 1 << 20, "test": 1 << 21}  # of scorings, apart from those of a round's asks


class _TooFewScores(MotetError):
    """Fewer sites than a sum needs let themselves be scored."""


def masked_scores(
    engine: Flare, job: LetterJob, sent: Mapping[Client, Tree], part: Part, verb: str = "", like: Tree = None
) -> tuple[list[Client], Tree]:
    """Scores of all sites together as those of one client, by side or by part; nothing where there are none."""
    from motet.engines.flare import TooFew
    from motet.guard.masks.refused import MaskRefused

    masks = engine.masks or MaskSettings()
    names, sums, sites = list[list[str]](), list[Fraction](), 0
    for group in alike(job, part, {c: tree for c, tree in sent.items() if c in engine.present}):
        scoring = Scoring(engine, job, part, verb, sent[group[0]], masks.min_in_sum, like)
        try:
            found = scoring.sums(group)
        except _TooFewScores:
            engine.left_out.append(
                f"{round_name(engine.turn.number)}: {', '.join(group)} are not scored on {part} rows: too few sites "
                f"share a model or let scores leave for a masked sum (guard.min_in_sum={masks.min_in_sum})"
            )
            continue
        except MaskRefused as e:
            raise TooFew(f"scores, {round_name(engine.turn.number)}: {e}; tried again with new keys") from e
        if not names or scoring.names == names:
            sums = [a + b for a, b in zip(sums or [Fraction(0)] * len(found), found, strict=True)]
            names, sites = scoring.names, sites + len(scoring.server.alive)
    if not sites:
        return [], {}
    means, spreads = mean_scores(names, sums, sites, part)
    engine.spreads[part] = {"sites": sites, "sd": engine.spreads.get(part, {}).get("sd", {}) | spreads}
    return [ALL_SITES], means


def alike(job: str, part: str, sent: Mapping[Client, Tree]) -> list[list[Client]]:
    """Sites that are asked the same, in the order of names."""
    found: dict[bytes, list[Client]] = {}
    for client in sorted(sent):
        found.setdefault(asked_for(job, part, sent[client]), []).append(client)
    return list(found.values())


class Scoring(MaskedSum):
    """One sum of scores."""

    def __init__(
        self, engine: Flare, job: LetterJob, part: Part, verb: str, send: Tree, least: int, like: Tree
    ) -> None:
        super().__init__(engine.asked_now(job, verb, asked_for(job, part, send)), least)
        self.engine, self.job, self.send, self.like = engine, job, send, like
        key = (engine.turn.number, part)
        number = _NUMBERS[part] + engine.scorings[key]
        engine.scorings[key] += 1
        self.label, self.names = (engine.turn.number, number), Names()
        self.more: dict[str, Any] = {"part": part, "verb": verb, "number": number}

    def sums(self, to: Sequence[Client]) -> list[Fraction]:
        """The sums of all numbers of the scores."""
        from motet.guard.masks.exact import digit_sums, exact_sums

        before, _ = self.engine.summed.get(self.label, (list(to), 1.0))
        total = self.total(sorted(set(before) & set(to)))
        return exact_sums(digit_sums(self.server.terms.numbers, total))

    def open(self) -> None:
        if len(self.server.notes) < self.least:
            raise _TooFewScores
        super().open()

    def masked_replies(self) -> None:
        from motet.guard.masks.exact import DIGITS

        engine, server = self.engine, self.server
        sent = dict.fromkeys(sorted(server.shares), self.send)
        found = {c: r.tree for c, r in engine.call_sites(self.job, sent, self.letters(), **self.more).items()}
        self.names = self.usual_names(found)
        for client, tree in found.items():
            if not isinstance(tree, dict) or tree.get("names") != self.names:
                engine.exclude(client, "its masked scores are not what was asked for")
            else:
                server.take_masked(client, tree.get("words"), DIGITS * width_of(self.names))
        for client in server.refused.keys() & found.keys():
            engine.exclude(client, server.refused[client])

    def usual_names(self, found: Mapping[Client, Tree]) -> Names:
        """Which scores must come: those of a blank client; where there is none, those of most sites."""
        if self.like is not None:
            return score_names(self.like)
        said = [repr(t["names"]) for t in found.values() if isinstance(t, dict) and "names" in t]
        usual = Counter(said).most_common(1)[0][0] if said else ""
        every = [t["names"] for t in found.values() if isinstance(t, dict) and repr(t.get("names")) == usual]
        return Names(every[0]) if every else []

    def unmask(self) -> None:
        self.agree(self.engine, self.label, 1.0)
        super().unmask()

    def step(self, step: str, to: list[Client], **said: Any) -> dict[Client, Tree]:
        send = {"step": step, "session": self.server.session, "exact": True, **said}
        found = self.engine.call_sites("mask", dict.fromkeys(to, send), **self.more)
        return {c: r.tree for c, r in found.items()}
