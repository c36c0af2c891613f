"""What changes something: signing in, starting, stopping, going on, promoting and exporting. Each needs the token."""

from __future__ import annotations

import getpass
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response

from motet.atomic import write_atomically
from motet.errors import MotetError, UsageError
from motet.runs.study_record import StudyRecord, lock_of_study
from motet.web import processes
from motet.web.dashboard import Dashboard
from motet.web.run_index import RunEntry
from motet.web.run_reading import plain_file
from motet.web.security import allowed_form, check_origin, cookie_name, owned_form, read_form, signed_in
from motet.web.start_form import FIRST, NAMED, StartForm, hidden

ONNX, SAFETENSORS = "onnx", "safetensors"


def to(address: str) -> RedirectResponse:
    """Show a page after a change; loading it again changes nothing."""
    return RedirectResponse(address, 303)


class Changes:
    """Handlers of forms."""

    def __init__(self, dashboard: Dashboard) -> None:
        self.dashboard, self.index = dashboard, dashboard.index
        self.started = dashboard.started

    # ---- signing in ----

    async def sign_in(self, request: Request) -> Response:
        if request.method == "GET":
            return self.dashboard.page(request, "sign_in.html", wrong="")
        check_origin(request)
        form = await read_form(request)
        if not self.dashboard.access.is_token(form.get("token", "")):
            return self.dashboard.page(
                request, "sign_in.html", 403, wrong="this is not the token that motet ui printed"
            )
        return signed_in(to("/"), request, self.dashboard.access)

    async def sign_out(self, request: Request) -> Response:
        await owned_form(request, self.dashboard.access)
        response = to("/")
        response.delete_cookie(cookie_name(request), httponly=True, samesite="strict")
        return response

    # ---- starting ----

    async def start_form(self, request: Request) -> Response:
        return await run_in_threadpool(self.show_form, request, StartForm(dict(request.query_params)))

    def show_form(self, request: Request, form: StartForm, status: int = 200) -> Response:
        if not form.sections:
            form.read_fields(self.dashboard.quick, not self.dashboard.access.knows(request))
        more = [
            s | {"fields": [r for r in s["fields"] if not hidden(r["name"], form.kind)]}
            for s in form.sections
        ]
        if form.kind == "study":
            more = [s for s in more if s["section"] != "method"]
        methods = next(s["names"] for s in form.sections if s["section"] == "method")
        by_name = {row["name"]: row for s in more for row in s["fields"]}
        first = [by_name[n] for n in FIRST if n in by_name and not hidden(n, form.kind)]
        shown = {"form": form, "sections": more, "first": first, "methods": methods, "named": NAMED}
        return self.dashboard.page(request, "start.html", status, **shown)

    async def start(self, request: Request) -> Response:
        form = StartForm(await allowed_form(request, self.dashboard.access))
        return await run_in_threadpool(self._start, request, form)

    def _start(self, request: Request, form: StartForm) -> Response:
        base = str(self.index.base)
        form.read_fields(self.dashboard.quick, stranger=False)
        found = {} if form.wrong else form.check(self.dashboard.quick, base)
        if form.wrong:
            return self.show_form(request, form, 422)
        name = str(found["name"])
        if self.is_running(name, form.kind):
            raise HTTPException(409, f"{name} is running already")
        self.started.start(name, form.command(found, base))
        return to(f"/{'runs' if form.kind == 'run' else 'studies'}/{quote(name)}?started=1")

    def is_running(self, name: str, kind: str) -> bool:
        lock = self.index.base / name / "lock" if kind == "run" else lock_of_study(self.index.base, name)
        return processes.writer_of(lock) is not None

    # ---- stopping and going on ----

    async def stop_run(self, request: Request) -> Response:
        await allowed_form(request, self.dashboard.access)
        entry = self.dashboard.run(request)
        return self.stop(entry.folder / "lock", f"/runs/{quote(entry.name)}")

    async def stop_study(self, request: Request) -> Response:
        await allowed_form(request, self.dashboard.access)
        name = self.study(request).name
        return self.stop(lock_of_study(self.index.base, name), f"/studies/{quote(name)}")

    def stop(self, lock: Path, address: str) -> Response:
        if not processes.can_see_processes():
            raise UsageError("this system does not say who writes a run\nhint: stop it where it was started")
        try:
            asked = processes.ask_to_stop(lock)
        except PermissionError as e:
            raise UsageError("the process belongs to another user\nhint: stop it where it was started") from e
        return to(f"{address}?stopping={int(asked)}")

    async def resume_run(self, request: Request) -> Response:
        await allowed_form(request, self.dashboard.access)
        entry = self.dashboard.run(request)
        if entry.state not in ("stopped", "failed", "unknown") or entry.facts.get("federation"):
            raise HTTPException(
                409, f"this run is {entry.state}; only one that was stopped goes on from here"
            )
        recipe = entry.folder / "recipe.toml"
        if not plain_file(recipe, entry.folder):
            raise HTTPException(409, "the folder of this run has no recipe.toml")
        # the folder may be a stranger's: code that a file names runs only where a person gives --trust
        await run_in_threadpool(lambda: self.dashboard.quick.ask("resumed", recipe=str(recipe)))
        self.started.start(entry.folder.name, ["run", str(recipe), "--out", str(entry.folder), "--quiet"])
        return to(f"/runs/{quote(entry.name)}?started=1")

    async def resume_study(self, request: Request) -> Response:
        await allowed_form(request, self.dashboard.access)
        study = self.study(request)
        if not study.asked:
            raise HTTPException(
                409,
                "the record of this study does not say what it is: give its command again where it was started",
            )
        if self.is_running(study.name, "study"):
            raise HTTPException(409, f"{study.name} is running already")
        text = await run_in_threadpool(lambda: self.dashboard.quick.ask("resumed", study=study.asked))
        self.started.make_folder()
        write_atomically(file := self.started.folder / f"{study.name}.toml", text)
        words = ["compare", str(file), *["--tune"] * study.tune, "--out", str(self.index.base), "--quiet"]
        self.started.start(study.name, words)
        return to(f"/studies/{quote(study.name)}?started=1")

    def study(self, request: Request) -> StudyRecord:
        found = self.index.study(request.path_params["study"])
        if found is None:
            raise HTTPException(404, "there is no such study")
        return found

    # ---- models ----

    async def promote(self, request: Request) -> Response:
        form = await allowed_form(request, self.dashboard.access)
        entry = self.dashboard.run(request)
        model = await run_in_threadpool(self._promote, entry, form)
        return to(f"/models?new={quote(model.name)}")

    def _promote(self, entry: RunEntry, form: dict[str, str]) -> Any:
        client = form.get("client", "")
        given = {"folder": str(entry.folder), "client": client, "form": SAFETENSORS}

        def write(path: Path) -> None:
            self.dashboard.slow.ask("export_model", **given, to=str(path))

        return self.dashboard.registry.promote(
            form.get("name", "").strip(), entry.folder.name, client,
            form.get("by", "").strip() or getpass.getuser(), write,
            form.get("note", "").strip()[:500], str(entry.facts.get("method")), str(entry.facts.get("data")),
        )  # fmt: skip

    async def export(self, request: Request) -> Response:
        """A promoted model as a file. Only who has the token may take one away: weights tell of rows."""
        if not self.dashboard.access.may_change(request):
            raise HTTPException(403, "this needs the token that motet ui printed: sign in first")
        name, version = request.path_params["model"], request.path_params["version"]
        model = self.dashboard.registry.model(name, version)
        form = request.query_params.get("form", SAFETENSORS)
        if model is None or form not in (SAFETENSORS, ONNX):
            raise HTTPException(404, "there is no such model, version or format")
        path = await run_in_threadpool(self.dashboard.registry.copy_of, model)
        file_name = f"{model.name}-v{model.version}.{form}"
        if form == SAFETENSORS:
            return FileResponse(path, filename=file_name, media_type="application/octet-stream")
        scratch = tempfile.TemporaryDirectory()
        made = Path(scratch.name) / file_name
        ask: Callable[..., Any] = self.dashboard.slow.ask
        try:
            await run_in_threadpool(lambda: ask("export_file", file=str(path), to=str(made)))
        except MotetError:
            scratch.cleanup()
            raise
        done = BackgroundTask(scratch.cleanup)
        return FileResponse(made, filename=file_name, media_type="application/octet-stream", background=done)
