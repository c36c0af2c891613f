"""The application: addresses, errors as pages, and the server that runs it. Alone imports uvicorn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from motet.errors import MotetError
from motet.web.changes import Changes
from motet.web.dashboard import Dashboard
from motet.web.federation_pages import FederationPages
from motet.web.list_pages import ListPages
from motet.web.live import stream
from motet.web.run_pages import RunPages
from motet.web.security import Guarded, Refused

STATIC = Path(__file__).parent / "static"
_FILES = 65_536  # files that are asked for; more are slow to close in programs that this one starts
_MOST = 1_000  # connections
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


class Connections:
    """Those that are open, the one that was quiet longest first. None keeps the dashboard from others: a connection
    must send a whole request within `patience` seconds, and where there are too many, the one that waits longest ends.
    """

    def __init__(self, patience: float, most: int) -> None:
        self.patience, self.most = patience, most
        self.open: dict[Connection, None] = {}

    def __call__(self, **given: Any) -> Connection:
        return Connection(self, **given)

    def add(self, connection: Connection) -> None:
        if len(self.open) >= self.most:
            one = next((c for c in self.open if not c.is_answered), next(iter(self.open)))
            self.open.pop(one)
            one.transport.abort()
        self.open[connection] = None


class Connection(H11Protocol):
    """One connection. uvicorn has no time limit for a request that does not become whole."""

    def __init__(self, all_of_them: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.others = all_of_them
        self.ends: asyncio.TimerHandle | None = None

    @property
    def is_answered(self) -> bool:
        """Whether a whole request came, and its answer is on the way."""
        return self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.others.add(self)
        self.wait()

    def wait(self) -> None:
        if self.ends:
            self.ends.cancel()
        self.ends = self.loop.call_later(self.others.patience, self.give_up)

    def give_up(self) -> None:
        if not self.is_answered:
            self.transport.abort()  # without waiting for somebody to read what was sent

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self in self.others.open:
            self.others.open[self] = self.others.open.pop(self)
            self.wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self.others.open.pop(self, None)
        if self.ends:
            self.ends.cancel()
        super().connection_lost(exc)


def serve(
    dashboard: Dashboard, host: str, port: int, sockets: list[object] | None = None, patience: float = 20.0
) -> None:
    """Serve until Ctrl-C. Connections that watch are closed at once then. `patience`: seconds for a whole request."""
    files = _FILES
    with suppress(ImportError, OSError, ValueError):  # not on Windows
        import resource

        files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
        if 0 <= files < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            files = wanted
    # the rest is for pages, and for those that come and go at once
    most = max(8, min(files // 8 if files > 0 else _MOST, _MOST))
    config = uvicorn.Config(
        application(dashboard), host=host, port=port, log_level="warning", server_header=False, date_header=False,
        timeout_graceful_shutdown=1, proxy_headers=False, ws="none", backlog=min(most, 100),
        http=Connections(patience, most),  # type: ignore[arg-type]
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=sockets)  # type: ignore[arg-type]
