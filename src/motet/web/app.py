"""The application: addresses, errors as pages, and the server that runs it. Alone imports uvicorn."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from motet.errors import MotetError
from motet.web.changes import Changes
from motet.web.dashboard import Dashboard
from motet.web.federation_pages import FederationPages
from motet.web.list_pages import ListPages
from motet.web.live import stream
from motet.web.run_pages import RunPages
from motet.web.security import Guarded, Refused

STATIC = Path(__file__).parent / "static"
_OVER = ("done", "failed", "damaged")


def application(dashboard: Dashboard, warm: bool = True) -> Guarded:
    """All addresses of a dashboard. `warm`: read all runs and start the process that answers before anybody asks."""
    errors = Errors(dashboard)
    handlers = {
        HTTPException: errors.http,
        MotetError: errors.ours,
        Refused: errors.refused,
        Exception: errors.bug,
    }

    @asynccontextmanager
    async def alive(_: Starlette) -> AsyncIterator[None]:
        if warm:
            threading.Thread(target=get_ready, args=(dashboard,), daemon=True).start()
        yield
        dashboard.close()

    app = Starlette(routes=addresses(dashboard), exception_handlers=handlers, lifespan=alive)  # type: ignore[arg-type]
    return Guarded(app, dashboard.access)


def addresses(dashboard: Dashboard) -> list[Route | Mount]:
    lists, runs, changes = ListPages(dashboard), RunPages(dashboard), Changes(dashboard)
    parties, live = FederationPages(dashboard), Live(dashboard, lists, runs)
    return [
        Route("/", lists.runs),
        Route("/live", live.runs),
        Route("/runs/{run}", runs.run),
        Route("/runs/{run}/live", live.run),
        Route("/runs/{run}/client", runs.client),
        Route("/runs/{run}/log", runs.log),
        Route("/runs/{run}/stop", changes.stop_run, methods=["POST"]),
        Route("/runs/{run}/resume", changes.resume_run, methods=["POST"]),
        Route("/runs/{run}/promote", changes.promote, methods=["POST"]),
        Route("/studies", lists.studies),
        Route("/studies/{study}", lists.study),
        Route("/studies/{study}/live", live.study),
        Route("/studies/{study}/report", lists.report),
        Route("/studies/{study}/stop", changes.stop_study, methods=["POST"]),
        Route("/studies/{study}/resume", changes.resume_study, methods=["POST"]),
        Route("/compare", lists.compare),
        Route("/federations", parties.federations),
        Route("/federations/{federation}", parties.federation),
        Route("/federations/{federation}/live", parties.live),
        Route("/federations/{federation}/who", parties.who_is_there),
        Route("/models", lists.models),
        Route("/models/{model}/{version:int}/file", changes.export),
        Route("/start", changes.start_form, methods=["GET"]),
        Route("/start", changes.start, methods=["POST"]),
        Route("/sign-in", changes.sign_in, methods=["GET", "POST"]),
        Route("/sign-out", changes.sign_out, methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]


def get_ready(dashboard: Dashboard) -> None:
    """Read the list of runs, and load what forms need, while nobody waits for it."""
    dashboard.index.runs()
    if dashboard.access.changes or dashboard.index.kits:
        dashboard.quick.ask("recipe_fields", names={"data": "digits", "net": "auto", "method": "finetune"})


class Errors:
    """What went wrong, as a page."""

    def __init__(self, dashboard: Dashboard) -> None:
        self.dashboard = dashboard

    def shown(self, request: Request, status: int, text: str) -> Response:
        return self.dashboard.page(request, "error.html", status, text=text, code=status)

    def http(self, request: Request, e: HTTPException) -> Response:
        return self.shown(request, e.status_code, str(e.detail))

    def ours(self, request: Request, e: MotetError) -> Response:
        return self.shown(request, 422, str(e))

    def bug(self, request: Request, e: Exception) -> Response:
        return self.shown(
            request, 500, "a bug of motet's; the terminal of `motet ui` shows where it happened"
        )

    def refused(self, request: Request, e: Refused) -> Response:
        return self.shown(request, 403, str(e))


class Live:
    """Parts of pages that are sent again when something changes."""

    def __init__(self, dashboard: Dashboard, lists: ListPages, runs: RunPages) -> None:
        self.dashboard, self.lists, self.pages = dashboard, lists, runs

    async def run(self, request: Request) -> Response:
        entry = self.dashboard.run(request)
        folder = entry.folder

        def show() -> tuple[str, bool]:
            now = self.dashboard.run(request)
            html = self.dashboard.fragment("run_live.html", **self.pages.shown_live(now))
            return html, now.state in _OVER

        return stream(request, lambda: self.pages.stamp(folder), show)

    async def runs(self, request: Request) -> Response:
        return stream(request, self.lists.stamp_of_runs, lambda: (self.runs_html(request), False))

    def runs_html(self, request: Request) -> str:
        return self.dashboard.fragment("runs_live.html", **self.lists.shown_runs(request))

    async def study(self, request: Request) -> Response:
        self.lists.named_study(request)  # says so if there is none

        def stamp() -> object:
            return self.lists.stamp_of_study(self.lists.named_study(request))

        def show() -> tuple[str, bool]:
            shown = self.lists.shown_study(self.lists.named_study(request))
            return self.dashboard.fragment("study_live.html", **shown), shown["row"]["state"] == "done"

        return stream(request, stamp, show)


def serve(dashboard: Dashboard, host: str, port: int, sockets: list[object] | None = None) -> None:
    """Serve until Ctrl-C. Connections that watch are closed at once then."""
    import uvicorn

    config = uvicorn.Config(
        application(dashboard), host=host, port=port, log_level="warning", server_header=False, date_header=False,
        timeout_graceful_shutdown=1, proxy_headers=False,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=sockets)  # type: ignore[arg-type]
