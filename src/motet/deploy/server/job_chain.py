"""The driver: a federated run is a chain of FLARE jobs.

FLARE fixes who takes part for the length of a job, and does not bring a crashed job back. So the driver starts a
job with whoever is there; when it ended early (a site's worker died, too few answered, the server died), or when a
site came back or is new, the next job goes on from the run's checkpoint. It keeps nothing itself: killed and
started again, it goes on.
Knows jobs, sites' comings and goings, and the run's folder. Does not know rounds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from motet.deploy.flare.admin import AdminSession, Unreachable, over
from motet.deploy.flare.job_folder import write_job
from motet.deploy.flare.kits import FederationError, Kit
from motet.deploy.server.run_files import RunOrder, clear_notes, note, read_report, report
from motet.runs.run import Stopped

_LOOK = 0.5  # seconds between looks at a job
_COUNT = 1.5  # seconds between looks at who is there
_FINAL = ("done", "failed", "stopped")  # nothing more is to be done, for now
_ENDED = (*_FINAL, "again", "short")  # the job is over, whatever FLARE still has to tidy up
_LINE = 10.0  # seconds between lines about rounds
_STUCK = 120.0  # seconds that a job may take until it runs

Say = Callable[[str], None]


def drive(kit: Kit, order: RunOrder, say: Say, patience: float = float("inf")) -> Path:
    """Run to the end; the folder. `patience`: seconds to wait for the server or for enough sites."""
    folder = kit.runs / order.run
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / "driver.lock", timeout=0):
            Driver(kit, order, folder, say, patience).go()
    except Timeout as e:
        raise FederationError(
            f"another process drives {folder}\nhint: `motet federation status {kit.folder}` shows how it goes"
        ) from e
    return folder


@dataclass
class Driver:
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
    reached: int = -1  # the round when a job last ended short
    vain: int = 0  # jobs in a row that came no further

    def go(self) -> None:
        self.order.write(self.folder)  # how many sites a round needs may be another number now
        clear_notes(self.folder)
        if read_report(self.folder).get("state") in ("stopped", "failed"):
            report(self.folder, state="waiting")
        try:
            while (state := read_report(self.folder).get("state")) not in _FINAL:
                try:
                    self.one_job()
                except Unreachable as e:
                    self.hang_up()
                    self.say(str(e).splitlines()[0])
                    time.sleep(1.0)
        finally:
            self.hang_up()
        status = read_report(self.folder)
        if state == "failed":
            raise FederationError(str(status.get("why")))
        if state == "stopped":
            raise Stopped(f"stopped after round {status.get('round')} of {status.get('rounds')}")

    def hang_up(self) -> None:
        if self.admin is not None:
            self.admin.close()
        self.admin = None

    def one_job(self) -> None:
        admin = self.admin = self.admin or self.connected()
        for job in admin.running():
            if job.get("job_name") == self.order.run:
                admin.abort(str(job["job_id"]))
        sites = self.gathered(admin)
        report(self.folder, **read_report(self.folder) | {"state": "starting"})
        with tempfile.TemporaryDirectory() as scratch:
            status = {"folder": str(self.folder)}
            job_id = admin.submit(write_job(Path(scratch) / "job", self.order.run, sites, status, {}))
        self.say(f"job {job_id[:8]} with {', '.join(sites)}")
        self.follow(admin, job_id)

    def connected(self) -> AdminSession:
        until = time.monotonic() + self.patience
        while True:
            try:
                return AdminSession(self.kit)
            except Unreachable:
                if time.monotonic() > until:
                    raise
                time.sleep(1.0)

    def gathered(self, admin: AdminSession) -> list[str]:
        """Who is there, once they are enough and nobody else comes for a moment."""
        until, before = time.monotonic() + self.patience, set[str]()
        while True:
            now = admin.alive()
            all_back = now >= known if (known := self.known()) else now <= before
            if len(now) >= self.order.min_sites and (all_back or now <= before):
                return sorted(now)
            if time.monotonic() > until:
                there = ", ".join(sorted(now)) or "nobody"
                raise FederationError(
                    f"{there} of at least {self.order.min_sites} sites is there\n"
                    "hint: `motet federation join KIT --data …` at each site, or --min-sites"
                )
            if now != before:
                self.say(
                    f"there: {', '.join(sorted(now)) or 'nobody'}; at least {self.order.min_sites} wanted"
                )
            before = now
            time.sleep(_COUNT)

    def known(self) -> set[str]:
        """Who was in the run when it was last heard of."""
        status = read_report(self.folder)
        return {*status.get("present", ()), *status.get("away", ())}

    def follow(self, admin: AdminSession, job: str) -> None:
        """Look on until the job is over; whoever comes back is taken in at the next boundary."""
        began = counted = time.monotonic()
        status = read_report(self.folder)
        while status.get("state") not in _ENDED and not over(admin.status(job)):
            time.sleep(_LOOK)
            status = read_report(self.folder)
            if status.get("state") == "starting" and time.monotonic() - began > _STUCK:
                admin.abort(job)
            if status.get("state") == "running":
                self.show(status)
                if time.monotonic() - counted > _COUNT:
                    counted = time.monotonic()
                    self.welcome(admin, set(status["present"]))
        if status.get("state") == "short":
            self.say(str(status["why"]))
            self.rest(int(status.get("round", 0)))

    def rest(self, round_: int) -> None:
        """Between jobs that come no further, longer and longer."""
        self.vain = self.vain + 1 if round_ == self.reached else 0
        self.reached = round_
        time.sleep(min(2.0**self.vain - 1, 60.0))

    def show(self, status: dict[str, Any]) -> None:
        """The round now and then, and who goes away when it happens."""
        for site, why in status["away"].items():
            if self.shown.get(site) != why:
                self.say(f"{site} is away: {why}")
        self.shown = dict(status["away"])
        if time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + _LINE
            self.say(f"round {status['round']} of {status['rounds']}")

    def welcome(self, admin: AdminSession, present: set[str]) -> None:
        """Ask for a new job if somebody is there who is not in this one; less often the more often in vain."""
        now = time.monotonic()
        for site in admin.alive() - present:
            many, when = self.tries.get(site, (0, 0.0))
            if now >= when:
                self.tries[site] = (many + 1, now + min(10.0 * 2**many, 600.0))
                self.say(f"{site} is there: taken in after this round")
                note(self.folder, "again")
