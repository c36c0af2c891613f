"""What all pages share: the index of runs, readings, who may change what, templates, and errors in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from motet import __version__
from motet.runs.model_registry import ModelRegistry
from motet.web.questions import Questions
from motet.web.run_index import FederationEntry, RunEntry, RunIndex
from motet.web.run_reading import RunReader
from motet.web.security import Access
from motet.web.starting import Started
from motet.web.wording import FILTERS

TEMPLATES = Path(__file__).parent / "templates"


@dataclass
class Dashboard:
    """One dashboard: a folder of runs, and perhaps kits of federations."""

    index: RunIndex
    access: Access
    reader: RunReader = field(default_factory=RunReader)
    quick: Questions = field(default_factory=Questions)  # forms and small files
    slow: Questions = field(
        default_factory=lambda: Questions(300.0)
    )  # exports, and servers that may not answer

    @cached_property
    def registry(self) -> ModelRegistry:
        return ModelRegistry(self.index.base)

    @cached_property
    def started(self) -> Started:
        return Started(self.index.base)

    @cached_property
    def templates(self) -> jinja2.Environment:
        found = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        found.filters |= FILTERS
        found.globals["version"] = __version__
        return found

    def fragment(self, template: str, **shown: Any) -> str:
        return self.templates.get_template(template).render(**shown)

    def page(self, request: Request, template: str, status: int = 200, **shown: Any) -> HTMLResponse:
        """A whole page."""
        return HTMLResponse(self.fragment(template, **self.frame(request), **shown), status)

    def frame(self, request: Request) -> Mapping[str, Any]:
        """What the head of every page needs."""
        known = self.access.knows(request)
        shown = not self.access.private or known  # a page to sign in says nothing about what it hides
        return {
            "path": request.url.path, "may_change": self.access.may_change(request), "known": known,
            "can_change": self.access.changes, "takes_token": self.access.takes_token,
            "private": self.access.private, "form_word": self.access.form_word if known else "",
            "base": str(self.index.base) if shown else "",
        }  # fmt: skip

    def run(self, request: Request) -> RunEntry:
        """The run that an address names."""
        found = self.index.run(request.path_params["run"])
        if found is None:
            raise HTTPException(404, "there is no such run")
        return found

    def beginning(self, request: Request, name: str) -> HTMLResponse:
        """The page of a run or study that was started and wrote nothing yet."""
        found = self.started.begins(name)
        if found is None:
            raise HTTPException(404, "there is no such run or study")
        return self.page(
            request, "waiting.html", name=name, address=request.url.path, there=found[0], log=found[1]
        )

    def federation(self, request: Request) -> FederationEntry:
        found = self.index.federation(request.path_params["federation"])
        if found is None:
            raise HTTPException(404, "there is no such federation")
        return found

    def close(self) -> None:
        for questions in (self.quick, self.slow):
            questions.end()
