"""The server's end of a FLARE job. Knows how FLARE starts a job; what the job does is in conduct.py."""

from __future__ import annotations

from pathlib import Path

from nvflare.collab import collab

from motet.engines.flare import group_calls
from motet.federation.conduct import conduct
from motet.federation.orders import Orders


class Conductor:
    """Made by FLARE in the job's own process, from the job's settings."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @collab.main
    def main(self) -> None:
        folder = Path(self.folder)
        conduct(folder, group_calls(Orders.read(folder).timeout), [c.name for c in collab.clients])
