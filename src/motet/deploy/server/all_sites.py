"""Letters before a run trains, to all sites that are there: all must answer, and each may be left out with a reason.

Knows letters, and who is there. Does not know what is asked, nor how letters are carried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from motet.core import Tree
from motet.deploy.agreement.refusals import LASTING, explained
from motet.deploy.agreement.site_replies import UnusableReplies, each_site
from motet.deploy.flare.kits import FederationError
from motet.engines.flare import Flare, Post, TooFew, length
from motet.engines.letters import Letter, Reply
from motet.text import printable
from motet.wire import WireError


class AllSites:
    """One letter to all sites that are there; all must answer before anything trains."""

    def __init__(self, engine: Flare, post: Post, min_sites: int = 1) -> None:
        self.engine, self.post, self.min_sites = engine, post, min_sites

    def __call__(self, letter: Letter, to: Collection[str] | None = None) -> Mapping[str, Reply]:
        """Replies by site; those that cannot be read at all are an UnusableReplies."""
        return self.each(dict.fromkeys(self.engine.present if to is None else to, letter))

    def each(self, letters: Mapping[str, Letter]) -> Mapping[str, Reply]:
        """The same, with a letter for each site; all are of one job."""
        sites, letter = sorted(letters), next(iter(letters.values()), Letter("describe"))
        packed = {s: letters[s].pack() for s in sites}
        came, failed = self.post(packed)
        self.engine.received(came, letter.job, letter.verb, "", letter.round, letter.number)
        for site in sites:
            self.engine.meter.count(site, letter.job, "handshake", length(came.get(site)), len(packed[site]))
        missing = {s: printable(failed.get(s, "no answer")) for s in sites if s in failed or s not in came}
        for site, why in missing.items():
            self.engine.lose(site, why)
        if missing:
            raise TooFew("; ".join(f"site {s} did not answer: {why}" for s, why in missing.items()))

        def read(site: str, message: bytes) -> Reply:
            try:
                return Reply.read_for(letter.job, message)
            except WireError as e:
                raise WireError(f"its reply to {letter.job} cannot be read: {e}") from e

        return each_site({s: came[s] for s in sites}, read)

    def admit(
        self, letter: Letter, read: Callable[[str, Tree], object], to: Collection[str] | None = None
    ) -> None:
        """As a call, in a run that has begun: who refuses, or whose reply cannot be read, stays out, and the others
        go on."""
        sites = set(self.engine.present if to is None else to)
        while sites:
            try:
                replies = self(letter, sites)
                for site, refusal in {s: r.refusal for s, r in replies.items() if r.refusal}.items():
                    stay_out = self.engine.exclude if refusal in LASTING else self.engine.lose
                    stay_out(site, f"refused: {explained(refusal)}")
                each_site({s: r.tree for s, r in replies.items() if not r.refusal}, read)
                return
            except UnusableReplies as e:
                self.exclude(e)
                sites -= set(e.why)

    def exclude(self, unusable: UnusableReplies) -> None:
        """Leave sites out of the run; too few others, and it ends."""
        for site, why in unusable.why.items():
            self.engine.exclude(site, why)
        if len(self.engine.present) < self.min_sites:
            left = ", ".join(sorted(self.engine.present)) or "nobody"
            raise FederationError(
                f"{unusable}\nhint: without them {left} is left, and --min-sites is {self.min_sites}"
            )
