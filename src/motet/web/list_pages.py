"""Pages that list: runs with search, studies, one study, models; and the comparison of runs on the same axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from motet.runs.study_record import StudyRecord, lock_of_study
from motet.web.charts import Chart, Line
from motet.web.curves_of_runs import several
from motet.web.dashboard import Dashboard
from motet.web.live import mark_of
from motet.web.processes import writer_of
from motet.web.run_index import RunEntry
from motet.web.run_reading import RunReading, plain_file, stamp_of
from motet.web.wording import percent_metric

_PAGE = 50  # runs on a page
_TOGETHER = 12  # runs on one pair of axes
STATES = ("running", "done", "stopped", "failed", "damaged")
# a report has scripts of its own: it is shown as a page of nobody, which reaches nothing of the dashboard
SANDBOX = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; font-src data:"
)


class ListPages:
    """Lists of what there is."""

    def __init__(self, dashboard: Dashboard) -> None:
        self.dashboard, self.index = dashboard, dashboard.index

    def runs(self, request: Request) -> Response:
        seen = mark_of(self.stamp_of_runs())
        return self.dashboard.page(request, "runs.html", **self.shown_runs(request), seen=seen)

    def stamp_of_runs(self) -> object:
        return [(r.name, r.state, r.latest) for r in self.index.runs()]

    def stamp_of_study(self, study: StudyRecord) -> object:
        lock, base = lock_of_study(self.index.base, study.name), self.index.base
        return study, writer_of(lock) is None, [stamp_of(base / f) for f in study.folders]

    def shown_runs(self, request: Request) -> dict[str, Any]:
        """A page of the runs that a search finds."""
        everything, asked = self.index.runs(), request.query_params
        words, state = asked.get("q", "").lower().split(), asked.get("state", "")
        found = [r for r in everything if r.matches(words) and state in ("", r.state)]
        number = int(asked["page"]) if asked.get("page", "").isdecimal() and len(asked["page"]) < 7 else 1
        pages = max(1, -(-len(found) // _PAGE))
        number = min(max(1, number), pages)
        kept = {k: v for k, v in (("q", asked.get("q", "")), ("state", state)) if v}
        return {
            "runs": found[(number - 1) * _PAGE : number * _PAGE], "many": len(found), "all": len(everything),
            "states": Counter(r.state for r in everything), "known_states": STATES, "q": asked.get("q", ""),
            "state": state, "number": number, "pages": pages, "kept": urlencode(kept),
            "with_splits": any(r.facts.get("split") for r in everything),  # else all are of split 0, or have none
        }  # fmt: skip

    def studies(self, request: Request) -> Response:
        by_folder = {r.folder.name: r for r in self.index.runs()}
        rows = [study_row(s, by_folder, self.dashboard) for s in self.index.studies()]
        return self.dashboard.page(request, "studies.html", studies=rows)

    def study(self, request: Request) -> Response:
        if self.index.study(request.path_params["study"]) is None:
            return self.dashboard.beginning(request, request.path_params["study"])
        study = self.named_study(request)
        seen = mark_of(self.stamp_of_study(study))
        return self.dashboard.page(request, "study.html", **self.shown_study(study), seen=seen)

    def named_study(self, request: Request) -> StudyRecord:
        found = self.index.study(request.path_params["study"])
        if found is None:
            raise HTTPException(404, "there is no such study")
        return found

    def shown_study(self, study: StudyRecord) -> dict[str, Any]:
        by_folder = {r.folder.name: r for r in self.index.runs()}
        row = study_row(study, by_folder, self.dashboard)
        began = [(job, by_folder[f]) for job, f in study.runs.items() if f in by_folder]
        readings = [(job, self.dashboard.reader.read_brief(r.folder)) for job, r in began[:_TOGETHER]]
        return {
            "study": study, "row": row, "chart": several(readings), "left_off": max(0, len(began) - _TOGETHER),
            "rows": [(job, dict(began).get(job), study.failures.get(job, "")) for job in study.jobs],
            "compare": urlencode([("run", r.name) for _, r in began[:_TOGETHER]]),
        }  # fmt: skip

    def report(self, request: Request) -> Response:
        """The report of a study, as its command wrote it."""
        study = self.named_study(request)
        path, base = self.index.base / study.report, self.index.base
        if path.parent != base or path.suffix != ".html" or not plain_file(path, base):
            raise HTTPException(404, "this study has no report yet: it is written at its end")
        return FileResponse(path, headers={"Content-Security-Policy": SANDBOX})

    def models(self, request: Request) -> Response:
        runs = {r.folder.name: r for r in self.index.runs()}
        rows = [(m, runs.get(m.run)) for m in self.dashboard.registry.models()]
        return self.dashboard.page(request, "models.html", models=rows)

    def compare(self, request: Request) -> Response:
        everything = self.index.runs()
        by_name = {r.name: r for r in everything}
        wanted = list(dict.fromkeys(request.query_params.getlist("run")))
        if strange := [w for w in wanted if w not in by_name]:
            raise HTTPException(404, f"there is no run {strange[0][:80]}")
        chosen = [by_name[w] for w in wanted[:_TOGETHER]]
        readings = [(r, self.dashboard.reader.read_brief(r.folder)) for r in chosen]
        return self.dashboard.page(request, "compare.html", **compared(readings), everything=everything,
                                   left_off=max(0, len(wanted) - _TOGETHER))  # fmt: skip


def study_row(study: StudyRecord, by_folder: dict[str, RunEntry], dashboard: Dashboard) -> dict[str, Any]:
    """A study in a list: how many of its runs are done, and whether a process is at it; failed where none is done."""
    runs = [by_folder[f] for f in study.folders if f in by_folder]
    lock = lock_of_study(dashboard.index.base, study.name)
    done = sum(r.state == "done" for r in runs)
    if writer_of(lock) is not None:
        state = "running"
    elif study.status != "done":
        state = "stopped"
    else:
        state = "failed" if study.failures and not done else "done"
    return {
        "study": study,
        "state": state,
        "done": done,
        "failed": len(study.failures),
        "all": len(study.jobs),
    }


# ---- comparing ----


def compared(readings: Sequence[tuple[RunEntry, RunReading]]) -> dict[str, Any]:
    """The same axes for all runs, a table of their test scores, and clients one by one where there are two."""
    names = short_names([entry for entry, _ in readings])
    labelled = [(name, run) for name, (_, run) in zip(names, readings, strict=True)]
    metrics = {run.metric for _, run in readings}
    data = {str(run.facts.get("data")) for _, run in readings}
    sides = [s for s in ("personal", "global") if any(run.mean_curve(s) for _, run in labelled)]
    return {
        "runs": [(name, entry, run, mean_tests(run)) for name, (entry, run) in zip(names, readings, strict=True)],
        "charts": [several(labelled, side) for side in sides] if len(metrics) == 1 else [],
        "metrics": sorted(metrics), "data": sorted(data),
        "clients": differences(labelled) if len(metrics) == 1 else None,
    }  # fmt: skip


def short_names(entries: Sequence[RunEntry]) -> list[str]:
    """The method, with seed and folder where that is not enough to tell runs apart."""
    methods = [str(e.facts.get("method") or e.folder.name) for e in entries]
    with_seed = [f"{m}, seed {e.facts.get('seed')}" for m, e in zip(methods, entries, strict=True)]
    found = [m if methods.count(m) == 1 else s for m, s in zip(methods, with_seed, strict=True)]
    return [n if found.count(n) == 1 else e.folder.name for n, e in zip(found, entries, strict=True)]


def mean_tests(run: RunReading) -> dict[str, float]:
    """Means of reported test scores by side, and of the worst tenth of clients."""
    found: dict[str, float] = {}
    for side in ("personal", "global"):
        scored = run.reported(side)
        if scored is None:
            continue
        found[side] = scored.mean
        known = np.sort(scored.score[np.isfinite(scored.score)]) * 1.0
        tenth = -(-len(known) // 10)
        if side == "personal" and tenth:
            found["worst"] = float((known[:tenth] if run.better > 0 else known[-tenth:]).mean())
    return found


def differences(labelled: Sequence[tuple[str, RunReading]]) -> dict[str, Any] | None:
    """Of two runs: how much better each client's personal model is in the second, worst first."""
    if len(labelled) != 2:
        return None
    (first, one), (second, two) = labelled
    a, b = one.reported("personal"), two.reported("personal")
    if a is None or b is None:
        return None
    both = [c for c in a.clients if c in b.places]
    found = sorted(((b.of(c) - a.of(c)) * one.better, c) for c in both if np.isfinite(b.of(c) - a.of(c)))
    if not found:
        return None
    points = [(float(i + 1), gain) for i, (gain, _) in enumerate(found)]
    title = f"Gain of each client from {first} to {second}, on test rows"
    chart = Chart(
        title, [Line("gain", points)], "client, by gain", "gain", percent_metric(one.metric), zero=True
    )
    better = sum(g > 0 for g, _ in found)
    return {
        "chart": chart, "first": first, "second": second, "better": better, "worse": sum(g < 0 for g, _ in found),
        "same": sum(g == 0 for g, _ in found), "metric": one.metric,
        "lowest": [f for f in found if f[0] < 0][:5], "highest": [f for f in found[::-1] if f[0] > 0][:5],
    }  # fmt: skip
