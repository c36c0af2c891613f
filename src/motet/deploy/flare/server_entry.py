"""The server's end of a FLARE job. Knows how FLARE starts a job; what the job does is in server/job.py."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from nvflare.collab import collab

from motet.deploy.server.job import run_job
from motet.deploy.server.run_files import RunOrder, report_waiting
from motet.engines.group_calls import group_calls

_BEFORE = 120.0  # seconds at least for the answers before training


class ServerJob:
    """Made by FLARE in the job's own process, from the job's settings."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @collab.main
    def main(self) -> None:
        folder = Path(self.folder)
        seconds = RunOrder.read(folder).timeout
        there = [c.name for c in collab.clients]
        waiting = partial(report_waiting, folder)
        slow = group_calls(max(seconds, _BEFORE), waiting)
        run_job(folder, group_calls(seconds, waiting), there, slow)
