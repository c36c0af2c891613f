"""The owner's session with a FLARE server: who is there, jobs, and shutting down.

Knows FLARE's admin session. Does not know what jobs do.
"""

from __future__ import annotations

import contextlib
import io
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from motet.deploy.flare.credentials import Unreachable as Unreachable
from motet.deploy.flare.credentials import check_kit, check_server
from motet.deploy.flare.kits import OWNER, Kit
from motet.errors import need

_LOGIN = 10.0  # seconds to log in
_TIDYING = 60.0  # seconds that FLARE may take to end a job whose work is done
_SIGN = 3.0  # seconds in which a site that is there says so
UNSCHEDULED = 60.0  # seconds after which it is said that FLARE has not begun with a job


class AdminSession:
    """A session with the server; every call may raise Unreachable."""

    def __init__(self, kit: Kit, patience: float = _LOGIN) -> None:
        self.kit = kit
        check_kit(kit)
        try:  # say at once that nobody answers, which FLARE would find out after its timeout
            check_server(kit)
        except Unreachable as e:
            raise Unreachable(f"{e}\nhint: motet federation serve {kit.folder}") from e
        need("the server of a federation", "flare", "nvflare")
        logging.getLogger("nvflare").setLevel(logging.CRITICAL)
        logging.getLogger().setLevel(logging.ERROR)
        with reaching(kit):
            from nvflare.fuel.flare_api.flare_api import new_secure_session

            self.session = new_secure_session(OWNER, str(kit.owner), timeout=min(patience, _LOGIN))

    def registered(self) -> dict[str, float]:
        """Sites that the server knows, and when each last gave a sign."""
        with reaching(self.kit):
            info = self.session.get_system_info()
            return {c.name: float(c.last_connect_time) for c in info.client_info}

    def alive(self) -> set[str]:
        """Sites that answer at once."""
        names = sorted(self.registered())
        if not names:
            return set()
        try:
            return self.answering(names)
        except Unreachable:  # one that is frozen delays the answer of all, so each is asked alone
            found = set[str]()
            for name in names:
                with contextlib.suppress(Unreachable):
                    found |= self.answering([name])
            return found

    def answering(self, names: list[str]) -> set[str]:
        with reaching(self.kit):
            self.session.set_timeout(_SIGN)
            try:
                found = self.session.check_status("client", names)["client_status"]
            finally:
                self.session.unset_timeout()
        return {str(t["client_name"]) for t in found if t.get("status") != "no_reply"}

    # ---- jobs ----

    def submit(self, job: Path) -> str:
        with reaching(self.kit):
            return str(self.session.submit_job(str(job)))

    def status(self, job: str) -> str:
        with reaching(self.kit):
            return str(self.session.get_job_status(job) or "")

    def running(self) -> list[dict[str, Any]]:
        """Jobs that are not over."""
        with reaching(self.kit):
            jobs: list[dict[str, Any]] = self.session.list_jobs()
        return [j for j in jobs if not over(str(j.get("status", "")))]

    def not_begun(self) -> dict[str, float]:
        """Jobs that the server has and has not begun with, while it is busy with no other; and for how many seconds."""
        jobs = self.running()
        if any(j.get("status") != "SUBMITTED" for j in jobs):
            return {}
        now = datetime.now(UTC)
        came = {
            str(j["job_id"]): datetime.fromisoformat(t) for j in jobs if (t := str(j.get("submit_time", "")))
        }
        return {job: (now - at).total_seconds() for job, at in came.items()}

    def abort(self, job: str) -> None:
        """End a job, if it runs: a server that was killed still lists its jobs as running."""
        with contextlib.suppress(Unreachable), reaching(self.kit):
            self.session.abort_job(job)

    # ---- sites ----

    def disable(self, site: str) -> None:
        with reaching(self.kit):
            self.session.disable_client(site)

    def enable(self, site: str) -> None:
        with reaching(self.kit):
            self.session.enable_client(site)

    def shut_down(self) -> None:
        """The server and all sites that are there, once FLARE has tidied up the last job; it refuses before."""
        until = time.monotonic() + _TIDYING
        while self.running() and time.monotonic() < until:
            time.sleep(0.5)
        with reaching(self.kit):
            self.session.shutdown("all")

    def close(self) -> None:
        with contextlib.suppress(Unreachable), reaching(self.kit):
            self.session.close()


def unscheduled(job: str, seconds: float, log: Path) -> str:
    """What is said of a job with which the server does not begin."""
    return (
        f"the server has job {job[:8]} for {seconds:.0f} s and has not begun with it; why is in {log}\n"
        "hint: if it is busy with no other job, start the server anew: the run goes on from its checkpoint"
    )


def over(status: str) -> bool:
    return status.startswith("FINISHED") or status == "FAILED_TO_RUN"


@contextlib.contextmanager
def reaching(kit: Kit) -> Iterator[None]:
    """FLARE's many ways of not getting through become one; what it prints is not for people."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except Unreachable:
        raise
    except Exception as e:  # FLARE raises whatever went wrong below it
        raise Unreachable(
            f"the server of {kit.federation} at {kit.host}:{kit.port} does not answer: {e}\n"
            f"hint: motet federation serve {kit.folder}"
        ) from e
