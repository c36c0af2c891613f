"""A site's end of a FLARE job. Knows how FLARE starts a job; the site's service answers letters."""

from __future__ import annotations

from pathlib import Path

from nvflare.collab import collab

from motet.deploy.site.config import open_service


class SiteJob:
    """Made by FLARE in the job's own process; passes letters to the service of the kit that it was started from."""

    @collab.init
    def open(self) -> None:
        self.service = open_service(Path(collab.workspace.get_root_dir()))

    @collab.publish
    def answer(self, message: bytes) -> bytes:
        """FLARE publishes this to every party of the job, and knows by its certificate which one calls."""
        return self.service.answer(message, str(collab.caller))
