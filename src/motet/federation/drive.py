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

from filelock import FileLock, Timeout

from motet.federation.flare_office import Office, Unreachable, over
from motet.federation.job import write_job
from motet.federation.kits import FederationError, Kit
from motet.federation.orders import Orders, note, report, reported

_LOOK = 0.5  # seconds between looks at a job
_COUNT = 2.0  # seconds between looks at who is there
_FINAL = ("done", "failed", "stopped")  # nothing more is to be done, for now
_ENDED = (*_FINAL, "again", "short")  # the job is over, whatever FLARE still has to tidy up
_STUCK = 120.0  # seconds that a job may take until it runs

Say = Callable[[str], None]


def drive(kit: Kit, orders: Orders, say: Say, patience: float = float("inf")) -> Path:
    """Run to the end; the folder. `patience`: seconds to wait for the server or for enough sites."""
    folder = kit.runs / orders.run
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / "driver.lock", timeout=0):
            Driver(kit, orders, folder, say, patience).go()
    except Timeout as e:
        raise FederationError(
            f"another process drives {folder}\nhint: `motet federation status {kit.folder}` shows how it goes"
        ) from e
    return folder


@dataclass
class Driver:
    """Starts jobs until one says that the run is over."""

    kit: Kit
    orders: Orders
    folder: Path
    say: Say
    patience: float
    office: Office | None = None
    tries: dict[str, tuple[int, float]] = field(default_factory=dict)  # by site: returns, and when next

    def go(self) -> None:
        if not (self.folder / "orders.json").exists():
            self.orders.write(self.folder)
        if reported(self.folder).get("state") == "stopped":
            report(self.folder, state="waiting")
        try:
            while (state := reported(self.folder).get("state")) not in _FINAL:
                try:
                    self.one_job()
                except Unreachable as e:
                    self.hang_up()
                    self.say(str(e).splitlines()[0])
                    time.sleep(1.0)
        finally:
            self.hang_up()
        if state == "failed":
            raise FederationError(str(reported(self.folder).get("why")))

    def hang_up(self) -> None:
        if self.office is not None:
            self.office.close()
        self.office = None

    def one_job(self) -> None:
        office = self.office = self.office or self.connected()
        for job in office.running():
            if job.get("job_name") == self.orders.run:
                office.abort(str(job["job_id"]))
        sites = self.gathered(office)
        with tempfile.TemporaryDirectory() as scratch:
            told = {"folder": str(self.folder)}
            job_id = office.submit(write_job(Path(scratch) / "job", self.orders.run, sites, told, {}))
        self.say(f"job {job_id[:8]} with {', '.join(sites)}")
        report(self.folder, **reported(self.folder) | {"state": "starting", "job": job_id})
        self.follow(office, job_id)

    def connected(self) -> Office:
        until = time.monotonic() + self.patience
        while True:
            try:
                return Office(self.kit)
            except Unreachable:
                if time.monotonic() > until:
                    raise
                time.sleep(1.0)

    def gathered(self, office: Office) -> list[str]:
        """Who is there, once they are enough and nobody else comes for a moment."""
        until, before = time.monotonic() + self.patience, set[str]()
        while True:
            now = office.alive()
            if len(now) >= self.orders.min_sites and now <= before:
                return sorted(now)
            if time.monotonic() > until:
                there = ", ".join(sorted(now)) or "nobody"
                raise FederationError(
                    f"{there} of at least {self.orders.min_sites} sites is there\n"
                    "hint: `motet federation join KIT --data …` at each site, or --min-sites"
                )
            if now != before:
                self.say(
                    f"there: {', '.join(sorted(now)) or 'nobody'}; at least {self.orders.min_sites} wanted"
                )
            before = now
            time.sleep(_COUNT)

    def follow(self, office: Office, job: str) -> None:
        """Look on until the job is over; whoever comes back is taken in at the next boundary."""
        began, counted, shown = time.monotonic(), time.monotonic(), ""
        told = reported(self.folder)
        while told.get("state") not in _ENDED and not over(office.status(job)):
            time.sleep(_LOOK)
            told = reported(self.folder)
            if told.get("state") == "starting" and time.monotonic() - began > _STUCK:
                office.abort(job)
            shown = self.show(told, shown)
            if told.get("state") == "running" and time.monotonic() - counted > _COUNT:
                counted = time.monotonic()
                self.welcome(office, set(told["present"]))

    def show(self, told: dict[str, object], shown: str) -> str:
        away = told.get("away") or {}
        assert isinstance(away, dict)
        line = f"round {told.get('round')} of {told.get('rounds')}"
        line += "".join(f"; {s} is away: {why}" for s, why in away.items())
        if told.get("state") == "running" and line != shown:
            self.say(line)
        return line

    def welcome(self, office: Office, present: set[str]) -> None:
        """Ask for a new job if somebody is there who is not in this one; less often the more often in vain."""
        now = time.monotonic()
        for site in office.alive() - present:
            many, when = self.tries.get(site, (0, 0.0))
            if now >= when:
                self.tries[site] = (many + 1, now + min(10.0 * 2**many, 600.0))
                self.say(f"{site} is there: taken in after this round")
                note(self.folder, "again")
