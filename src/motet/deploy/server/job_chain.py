"""A federated run is a chain of FLARE jobs.

FLARE fixes who takes part for the length of a job, and does not restart a crashed job. So a job starts with the
sites that are there; when it ended early (a site's worker died, too few answered, the server died), or when a
site came back or is new, the next job goes on from the run's checkpoint. Nothing is kept in this process: killed
and started again, it goes on. A site that a job excluded is not taken in again, until the command is started anew;
and jobs that get no further, one after another, end the run with the last reason.
Knows jobs, sites' comings and goings, and the run's folder. Does not know rounds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout
from msgspec.structs import replace

from motet.deploy.flare.admin import UNSCHEDULED, AdminSession, Unreachable, over, unscheduled
from motet.deploy.flare.credentials import check_kit, ending_soon, unfit_sites
from motet.deploy.flare.job_folder import site_settings, write_job
from motet.deploy.flare.kits import FederationError, Kit
from motet.deploy.server.run_files import (
    CHAIN_LOCK,
    JobReport,
    RunOrder,
    clear_notes,
    note,
    read_note,
    read_report,
)
from motet.runs.run import Stopped

_POLL = 0.5  # seconds between readings of a job's report
_COUNT = 1.5  # seconds between questions who is there
_FINAL = ("done", "failed", "stopped")  # nothing more is to be done, for now
_ENDED = (*_FINAL, "again", "short")  # the job is over, whatever FLARE still has to tidy up
_LINE = 10.0  # seconds between lines about rounds
_STUCK = 120.0  # seconds that a job may take until it runs
_STALLED = 20  # jobs in a row without a new round, a quarter of an hour at least, after which the run ends

Say = Callable[[str], None]


def run_federated(kit: Kit, order: RunOrder, say: Say, patience: float = float("inf")) -> Path:
    """Run to the end, and return the folder. `patience`: seconds to wait for the server and for enough
    sites until a job runs."""
    folder = kit.runs / order.run
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with FileLock(folder / CHAIN_LOCK, timeout=0):
            JobChain(kit, order, folder, say, patience).run()
    except Timeout as e:
        raise FederationError(
            f"another process runs {folder}\nhint: `motet federation status {kit.folder}` shows how it goes"
        ) from e
    return folder


class _StopAsked(Exception):
    """A note in the run's folder says stop while no job runs."""


@dataclass
class JobChain:
    """Starts jobs until one says that the run is over."""

    kit: Kit
    order: RunOrder
    folder: Path
    say: Say
    patience: float
    admin: AdminSession | None = None
    tries: dict[str, tuple[int, float]] = field(default_factory=dict)  # by site: returns, and when next
    shown: dict[str, str] = field(default_factory=dict)  # who was said to be away, and why
    next_line: float = 0.0  # when the round is said again
    reached: int = -1  # the round when a job last ended early
    stalled: int = 0  # jobs in a row without a new round
    warned: set[str] = field(default_factory=set)  # of certificates that end soon
    agreement: str = ""  # the table that was last shown
    until: float = float("inf")  # when patience ends, if no job runs before

    def run(self) -> None:
        self.order.write(self.folder)  # how many sites a round needs may be another number now
        clear_notes(self.folder)
        if (before := read_report(self.folder)).state in ("stopped", "failed"):
            JobReport("waiting").write(self.folder)
        elif before.excluded:  # whoever starts the run again gives everybody a chance
            replace(before, excluded={}).write(self.folder)
        self.until = time.monotonic() + self.patience
        try:
            while (report := read_report(self.folder)).state not in _FINAL:
                try:
                    self.one_job()
                except Unreachable as e:
                    self.disconnect()
                    if time.monotonic() > self.until:
                        raise
                    self.say(str(e).splitlines()[0])
                    time.sleep(1.0)
                except _StopAsked:
                    replace(report, state="stopped").write(self.folder)
        finally:
            self.disconnect()
        if report.state == "failed":
            raise FederationError(report.why)
        if report.state == "stopped":
            raise Stopped(f"stopped after round {report.round} of {report.rounds}")

    def disconnect(self) -> None:
        if self.admin is not None:
            self.admin.close()
        self.admin = None

    def one_job(self) -> None:
        admin = self.admin = self.admin or self.connected()
        for job in admin.running():
            if job.get("job_name") == self.order.run:
                admin.abort(str(job["job_id"]))
        self.warn()
        sites = self.wait_for_sites(admin)
        replace(read_report(self.folder), state="starting", waiting=[]).write(self.folder)
        with tempfile.TemporaryDirectory() as scratch:
            given, of_sites = {"folder": str(self.folder)}, site_settings(self.kit)
            job_id = admin.submit(write_job(Path(scratch) / "job", self.order.run, sites, given, of_sites))
        self.say(f"job {job_id[:8]} with {', '.join(sites)}")
        try:
            self.follow(admin, job_id)
        finally:
            self.until = time.monotonic() + self.patience  # from when the job ended, or was lost

    def warn(self) -> None:
        """Of certificates that end soon, once each; one of ours that is not good any more is the end."""
        for line in [*check_kit(self.kit), *ending_soon(self.kit)]:
            if line not in self.warned:
                self.warned.add(line)
                self.say(line)

    def connected(self) -> AdminSession:
        said = False
        while True:
            self.check_notes()
            try:
                return AdminSession(self.kit, max(self.until - time.monotonic(), 1.0))
            except Unreachable as e:
                if time.monotonic() > self.until:
                    raise
                if not said:
                    self.say(str(e))
                said = True
                time.sleep(min(1.0, max(self.until - time.monotonic(), 0.0)))

    def check_notes(self) -> None:
        """Between jobs nobody else reads the note that says stop."""
        if read_note(self.folder) == "stop":
            raise _StopAsked

    def wait_for_sites(self, admin: AdminSession) -> list[str]:
        """Who is there, once they are enough and nobody else comes for a moment."""
        before = set[str]()
        while True:
            self.check_notes()
            now = self.fit(admin.alive()) - self.excluded()
            all_back = now >= known if (known := self.known()) else now <= before
            if len(now) >= self.order.min_sites and (all_back or now <= before):
                return sorted(now)
            there = ", ".join(sorted(now)) or "nobody"
            if time.monotonic() > self.until:
                raise FederationError(
                    f"{there} of at least {self.order.min_sites} sites is there\n"
                    "hint: `motet federation join KIT --data …` at each site, or --min-sites"
                )
            if now != before:
                self.say(f"there: {there}; at least {self.order.min_sites} wanted")
            before = now
            time.sleep(_COUNT)

    def fit(self, there: set[str]) -> set[str]:
        """Those whose certificates are still good; of others it is said why they stay out."""
        unfit = unfit_sites(self.kit)
        for site in sorted(there & unfit.keys()):
            if self.shown.get(site) != unfit[site]:
                self.shown[site] = unfit[site]
                self.say(f"{site} is not taken in: {unfit[site]}")
        return there - unfit.keys()

    def known(self) -> set[str]:
        """Who was in the run at its last report."""
        report = read_report(self.folder)
        return {*report.present, *report.away} - set(report.excluded)

    def excluded(self) -> set[str]:
        """Sites that this run goes without: a job excluded them, or the recipe leaves them out (data.without)."""
        return set(read_report(self.folder).excluded) | set(self.order.recipe["data"].get("without", ()))

    def follow(self, admin: AdminSession, job: str) -> None:
        """Wait until the job is over; a site that comes back is taken in after the current round."""
        began = counted = time.monotonic()
        report, said = read_report(self.folder), False
        while report.state not in _ENDED and not over(admin.status(job)):
            if not said and report.state == "starting" and time.monotonic() - began > UNSCHEDULED:
                said = True
                for late, seconds in admin.not_begun().items():
                    self.say(unscheduled(late, seconds, self.kit.folder / "log.txt"))
            time.sleep(_POLL)
            report = read_report(self.folder)
            self.show(report)
            if report.state == "starting" and time.monotonic() - began > _STUCK:
                admin.abort(job)
            if report.state == "running" and time.monotonic() - counted > _COUNT:
                counted = time.monotonic()
                self.take_in_newcomers(admin, set(report.present))
        self.show(report)
        if report.state in _ENDED and report.away:
            admin.abort(job)  # FLARE would wait for answers of sites that are gone until their time is up
        time.sleep(self.pause_after(report))

    def pause_after(self, report: JobReport) -> float:
        """Seconds until the next job: longer and longer after jobs that end no further than the one before. After
        many of them the run has failed, with the reason of the last one."""
        if report.state in (*_FINAL, "again"):
            return 0.0
        why = (
            report.why
            if report.state == "short"
            else f"a job ended while it was {report.state}, without a word"
        )
        self.say(why)
        self.stalled = self.stalled + 1 if report.round == self.reached else 0
        self.reached = report.round
        if self.stalled >= _STALLED:
            text = f"{_STALLED} jobs in a row got no further than round {report.round}; the last one: {why}"
            replace(report, state="failed", why=text).write(self.folder)
        return min(2.0**self.stalled - 1, 60.0)

    def show(self, report: JobReport) -> None:
        """What sites hold, once; who goes away, when it happens; the round now and then."""
        if report.agreement and report.agreement != self.agreement:
            self.agreement = report.agreement
            self.say(f"\n{report.agreement}\n")
        for site, why in report.excluded.items():
            if self.shown.get(site) != why:
                self.say(f"{site} is excluded: {why}")
        self.shown |= report.excluded
        if report.state != "running":
            return
        for site, why in report.away.items():
            if self.shown.get(site) != why:
                self.say(f"{site} is away: {why}")
        for site, why in report.refused.items():
            if self.shown.get(site) != why:
                self.say(f"{site} takes part, and refuses something: {why}")
        self.shown = report.refused | report.away | report.excluded
        if time.monotonic() >= self.next_line and report.waiting:
            self.next_line = time.monotonic() + _LINE
            self.say(f"round {report.round} of {report.rounds}: waiting for {', '.join(report.waiting)}")
        if time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + _LINE
            self.say(f"round {report.round} of {report.rounds}")

    def take_in_newcomers(self, admin: AdminSession, present: set[str]) -> None:
        """Ask for a new job if a site is there that is not in this one; less often for one that came in vain."""
        now = time.monotonic()
        for site in self.fit(admin.alive()) - present - self.excluded():
            many, when = self.tries.get(site, (0, 0.0))
            if now >= when:
                self.tries[site] = (many + 1, now + min(10.0 * 2**many, 600.0))
                self.say(f"{site} is there: taken in after this round")
                note(self.folder, "again")
