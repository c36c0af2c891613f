"""The page of a federation: for the server who is there and how rounds go, for a site's owner what left the site."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from motet.errors import MotetError
from motet.web.dashboard import Dashboard
from motet.web.live import mark_of, stream
from motet.web.processes import writer_of
from motet.web.run_index import FederationEntry
from motet.web.run_reading import stamp_of

_POLICY = 20_000  # characters of a policy that are shown


class FederationPages:
    """Federations whose kits the dashboard was given."""

    def __init__(self, dashboard: Dashboard) -> None:
        self.dashboard = dashboard

    def federations(self, request: Request) -> Response:
        return self.dashboard.page(
            request, "federations.html", federations=self.dashboard.index.federations()
        )

    def federation(self, request: Request) -> Response:
        entry = self.dashboard.federation(request)
        seen = mark_of(stamp_of_party(entry))  # taken before anything is read
        page = "server.html" if entry.is_server else "site.html"
        return self.dashboard.page(request, page, entry=entry, seen=seen, **self.shown(entry))

    async def live(self, request: Request) -> Response:
        """What a party's page shows, again whenever its files change."""
        entry = self.dashboard.federation(request)
        part = "server_live.html" if entry.is_server else "site_live.html"
        show = lambda: (self.dashboard.fragment(part, entry=entry, **self.shown(entry)), False)  # noqa: E731
        return stream(request, lambda: stamp_of_party(entry), show)

    def shown(self, entry: FederationEntry) -> dict[str, Any]:
        return self.shown_server(entry) if entry.is_server else self.shown_site(entry)

    def shown_server(self, entry: FederationEntry) -> dict[str, Any]:
        """How runs go, from the files at the server."""
        runs, trouble = self.asked("federation_runs", entry)
        entries = {
            r.folder.name: r for r in self.dashboard.index.runs() if r.folder.parent.parent == entry.folder
        }
        return {
            "runs": [(name, run, entries.get(name)) for name, run in (runs or {}).items()],
            "trouble": trouble,
        }

    def shown_site(self, entry: FederationEntry) -> dict[str, Any]:
        found, trouble = self.asked("site_ledger", entry)
        try:
            policy = (entry.folder / "policy.toml").read_text()[:_POLICY]
        except (OSError, ValueError):
            policy = ""
        return {"ledger": found, "trouble": trouble, "policy": policy}

    def asked(self, what: str, entry: FederationEntry) -> tuple[Any, str]:
        if entry.trouble:
            return None, entry.trouble
        try:
            return self.dashboard.quick.ask(what, kit=str(entry.folder)), ""
        except MotetError as e:
            return None, str(e)

    def who_is_there(self, request: Request) -> Response:
        """A part of the server's page that takes longer: the server itself is asked."""
        entry = self.dashboard.federation(request)
        try:
            status, trouble = self.dashboard.slow.ask("server_status", kit=str(entry.folder)), ""
        except MotetError as e:
            status, trouble = None, str(e)
        return HTMLResponse(self.dashboard.fragment("who_is_there.html", status=status, trouble=trouble))


def stamp_of_party(entry: FederationEntry) -> object:
    """Differs whenever the party's page has something new to show: of a server's runs the reports, rounds and whether
    a process is at them; of a site the ledger and the policy."""
    if not entry.is_server:
        return [state_of(entry.folder / "kept" / "ledger.jsonl"), state_of(entry.folder / "policy.toml")]
    folders = sorted(p for p in (entry.folder / "runs").glob("*") if p.is_dir())
    return [
        (f.name, state_of(f / "job.json"), stamp_of(f), writer_of(f / "chain.lock") is None) for f in folders
    ]


def state_of(file: Path) -> tuple[int, int]:
    """When a file was written and how long it is; zeros where there is none."""
    with suppress(OSError):
        found = file.stat()
        return found.st_mtime_ns, found.st_size
    return 0, 0
