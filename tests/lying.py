"""A federation for tests in which one site may answer anything; what the honest sites answer is computed once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from living import WORDS, table
from motet.deploy.server.job import run_job
from motet.deploy.server.run_files import JobReport, RunOrder, make_order, read_report
from motet.deploy.site.policy import Policy
from motet.deploy.site.service import SiteService
from motet.deploy.site.storage import site_key
from motet.deploy.site.table import SiteTable
from motet.engines.letters import Letter
from motet.runs import recipe as recipes
from motet.runs.run import Run, run
from motet.wire import pack, unpack

SITES = ("a", "b", "c")
LIAR = "b"
HONEST = ("a", "c")
ROUNDS = 2
ROWS = 100  # of the first site; each further one has 10 more
MORE = [
    "method.name=fedavg", "method.lr=0.1", "method.epochs=1", f"train.rounds={ROUNDS}",
    "train.after_training=true", "data.val=0.15",
]  # fmt: skip
Lie = Callable[[Letter, bytes], bytes]


class Slip(BaseException):
    """A lie that a test could not make; no job may take it for a reply."""


class LyingFederation:
    """Three sites with tables, of which `b` may lie; every run begins anew."""

    def __init__(self, folder: Path, *words: str, **policies: Policy) -> None:
        self.folder, self.policies, self.words = folder, policies, [*WORDS, *MORE, *words]
        self.known: dict[
            tuple[str, bytes], bytes
        ] = {}  # answers, by site and all letters that it got in the run
        self.letters: dict[str, list[bytes]] = {}  # that each site got in this run
        self.running: dict[str, SiteService] = {}  # of sites that got a letter whose answer was not known
        self.runs = 0
        (folder / "tables").mkdir(parents=True)
        for i, site in enumerate(SITES):
            table(i, ROWS).to_csv(folder / "tables" / f"{site}.csv", index=False)
        self.run = folder / "run"

    def order(self, min_sites: int = 2) -> RunOrder:
        return make_order("town", None, self.words, min_sites, 0, 60.0)

    def begin(
        self, lie: Lie = lambda letter, reply: reply, min_sites: int = 2, there: tuple[str, ...] = SITES
    ) -> JobReport:
        """The first job of a new run, with sites that are new, too."""
        self.letters, self.running, self.runs = {}, {}, self.runs + 1
        shutil.rmtree(self.run, ignore_errors=True)
        self.run.mkdir()
        self.order(min_sites).write(self.run)
        return self.job(lie, there)

    def job(self, lie: Lie = lambda letter, reply: reply, there: tuple[str, ...] = SITES) -> JobReport:
        """The next job, with these sites."""

        def post(letters: Mapping[str, bytes]) -> tuple[dict[str, bytes], dict[str, str]]:
            found = {site: self.answer(site, letter) for site, letter in letters.items()}
            try:
                return {s: lie(Letter.read(letters[s]), r) if s == LIAR else r for s, r in found.items()}, {}
            except Exception as e:
                raise Slip(repr(e)) from e

        run_job(self.run, post, there)
        return read_report(self.run)

    def answer(self, site: str, message: bytes) -> bytes:
        """An honest answer. A site answers the same letters in the same way, so it is asked once in all runs."""
        before = self.letters.setdefault(site, [])
        key = site, sha256(b"".join(sha256(m).digest() for m in [*before, message])).digest()
        if key not in self.known or site in self.running:
            if site not in self.running:
                self.running[site] = self.service(site)
                for earlier in before:
                    self.running[site].answer(earlier)
            self.known[key] = self.running[site].answer(message)
        before.append(message)
        return self.known[key]

    def service(self, site: str) -> SiteService:
        place = self.folder / f"sites-{self.runs}" / site
        source = SiteTable(site, self.folder / "tables" / f"{site}.csv", "y")
        policy = replace(self.policies.get(site, Policy()), secret_orders=False)  # as on the loop engine
        return SiteService(site, place, source, policy, site_key(place / "key"))

    def result(self) -> Run:
        return Run(self.run)

    def on_the_loop_engine(self, *sites: str) -> Run:
        """The same run on the loop engine, where the tables of these sites lie in one folder."""
        place = self.folder / "-".join(sites)
        place.mkdir()
        for site in sites:
            shutil.copy(self.folder / "tables" / f"{site}.csv", place)
        data = [f"data.name={place}", "data.target=y", "data.unseen=0", "engine.name=loop"]
        return run(recipes.read(None, [*self.words, *data]), self.folder / f"loop-{place.name}")


def lie_in(job: str, change: Callable[[Any], Any], at: int = 0) -> Lie:
    """Change what site b answers to one job, from its `at`-th letter on: the whole reply, as a dict of its fields."""
    seen = [0]

    def lie(letter: Letter, reply: bytes) -> bytes:
        if letter.job != job:
            return reply
        seen[0] += 1
        return pack(change(unpack(reply))) if seen[0] > at else reply

    return lie


def tree_in(job: str, change: Callable[[Any], Any], at: int = 0) -> Lie:
    """As `lie_in`, of the reply's tree."""
    return lie_in(job, lambda reply: reply | {"tree": change(reply["tree"])}, at)
