"""A site's end of a FLARE job. Knows how FLARE starts a job; the site's service answers letters."""

from __future__ import annotations

from pathlib import Path

from nvflare.collab import collab

from motet.deploy.flare.credentials import objection_to_job
from motet.deploy.flare.kits import open_kit
from motet.deploy.site.config import open_service


class SiteJob:
    """Made by FLARE in the job's own process; passes letters to the service of the kit that it was started from."""

    def __init__(self, version: str = "", revoked: str = "") -> None:
        self.version, self.revoked = (
            version,
            revoked,
        )  # the server's motet, and its list of revoked certificates

    @collab.init
    def open(self) -> None:
        folder = Path(collab.workspace.get_root_dir())
        self.objection = objection_to_job(open_kit(folder, "site"), self.version, self.revoked)
        self.service = open_service(folder)

    @collab.publish
    def answer(self, message: bytes) -> bytes:
        """FLARE publishes this to every party of the job, and knows by its certificate which one calls."""
        caller = str(collab.caller)
        if self.objection:
            return self.service.decline(self.objection, caller)
        return self.service.answer(message, caller)

    @collab.publish
    def alive(self) -> bool:
        """A sign of life, also while a letter is worked at."""
        return True
