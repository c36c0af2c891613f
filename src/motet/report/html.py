"""One HTML file about one run or many, worth sending to a colleague.

Self-contained: no request leaves the page, and its own policy forbids any. All text from stores is
escaped by the template. The same runs give the same bytes. Knows jinja2 and the other files of report/.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.report import figure_data, figures, terminal
from motet.report.audit_report import audits
from motet.report.downloads import SAVING, file_name, numbers
from motet.report.export_table import columns_of, name_of, typeset
from motet.report.figures import Picture
from motet.report.gains import NO_NETWORK
from motet.report.pictures import pictures
from motet.report.price import forgotten
from motet.report.privacy_figures import budgets
from motet.report.read import ALONE, ReportedRun
from motet.report.stack_variants import stacks
from motet.report.tables import client_scores, comparison, splits_and_seeds, summary
from motet.report.unscored import WEIGHTED, remark, with_unscored
from motet.report.verdict import CLAIMS, verdict

if TYPE_CHECKING:
    import pandas as pd

MOST_CLIENTS = 200  # rows of the table of clients
SCRIPT = (
    """
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => {
  const th = button.closest("th"), body = th.closest("table").tBodies[0], i = th.cellIndex;
  const up = th.getAttribute("aria-sort") !== "ascending";
  const value = row => row.cells[i].dataset.value ?? row.cells[i].textContent;
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)], d = x - y;
    return Number.isNaN(d) || x === "" || y === "" ? x.localeCompare(y, undefined, {numeric: true}) : d;
  };
  const rows = [...body.rows].sort((a, b) => up ? compare(a, b) : compare(b, a));
  for (const other of th.parentNode.cells) other.removeAttribute("aria-sort");
  th.setAttribute("aria-sort", up ? "ascending" : "descending");
  body.append(...rows);
});
"""
    + SAVING
)


def write(
    runs: Sequence[ReportedRun],
    to: Path,
    title: str | None = None,
    tuned: Mapping[str, str] | None = None,
    table: pd.DataFrame | None = None,
) -> Path:
    """Write the report on these runs to the file `to`, and return its path."""
    to = Path(to)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(render(runs, title, tuned, table), encoding="utf-8")
    return to


def render(
    runs: Sequence[ReportedRun],
    title: str | None = None,
    tuned: Mapping[str, str] | None = None,
    table: pd.DataFrame | None = None,
) -> str:
    """The whole page as text. `tuned` says of methods, by their labels, which settings were searched; `table` is
    the comparison of these runs, if it is there already."""
    table = comparison(runs) if table is None else table
    lines = verdict(runs, table)
    text: str = template("report.html").render(
        title=title or _title(runs), metric=table.attrs["metric"], unit=terminal.unit(table.attrs["metric"]),
        better=table.attrs["better"], script=SCRIPT, policy=policy(), verdict=lines,
        claim=next((word for word, start in CLAIMS.items() if lines[0].startswith(start)), ""),
        star_note=terminal.star_note(table), by_chance=terminal.BY_CHANCE,
        remarks=table.attrs["warnings"], varied=table.attrs["what_varies"],
        rows=table.to_dict("records"), troubles=_troubles(runs),
        columns=columns_of(table), tuned=dict(tuned or {}), alone=any(run.method == ALONE for run in runs),
        clients=_client_table(runs, table), forgotten=forgotten(runs), stacks=stacks(runs), audits=audits(runs),
        budgets=budgets(runs),
        pictures=[_picture(p) for p in pictures(runs, table)],
        about=_about(runs), recipes=[_recipe(run) for run in runs],
    )  # fmt: skip
    return text


def _picture(p: Picture) -> dict[str, Any]:
    return {
        "title": p.title, "caption": p.caption, "name": file_name(p.name), "svg": figures.in_page(p),
        "narrow": figures.in_narrow_page(p), "numbers": numbers(p),
    }  # fmt: skip


def template(name: str) -> Any:
    """A template of this folder, with our filters; all values are escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "score": lambda v, m: _typeset(terminal.score(v, m)), "gain": lambda v, m: _typeset(terminal.gain(v, m)),
        "number": lambda v: _typeset(terminal.number(v)), "known": lambda v: v is not None and not math.isnan(v),
        "typeset": _typeset, "name": name_of, "sentence": _sentence,
    }  # fmt: skip
    return environment.get_template(name)


def _typeset(text: str) -> str:
    return "–" if text == terminal.ABSENT else text.replace("-", "−")


def _sentence(text: str) -> Any:
    """A sentence with proper minus signs; options of the command line stay whole and as they are typed."""
    from markupsafe import Markup, escape

    parts = re.split(r"(--[a-z]+ [\d-]+)", text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else escape(typeset(part))
        for i, part in enumerate(parts)
    )


def policy() -> str:
    """Nothing may be loaded, and no script may run but our own."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _title(runs: Sequence[ReportedRun]) -> str:
    data, methods = runs[0].facts.get("data", "data"), {run.label for run in runs}
    return f"{next(iter(methods))} on {data}" if len(methods) == 1 else f"{len(methods)} methods on {data}"


# ---- troubles ----


def _troubles(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """What went wrong, a paragraph for each method: a reason and a hint once, whatever the number of runs."""
    groups: dict[str, list[ReportedRun]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return [
        {"label": label, "what": _what(group), "reasons": _reasons(group)}
        for label, group in groups.items()
        if any(run.trouble for run in group)
    ]


def _what(group: Sequence[ReportedRun]) -> str:
    """`1 of 2 runs failed`, or is not finished."""
    failed = sum(run.failed for run in group)
    unfinished = sum(bool(run.trouble) for run in group) - failed
    parts = [f"{failed} of {len(group)} runs failed"] if failed else []
    return ", ".join(parts + ([f"{unfinished} of {len(group)} runs not finished"] if unfinished else []))


def _reasons(group: Sequence[ReportedRun]) -> list[str]:
    """`seeds 0, 1: what happened`, then the hints, each once."""
    found: dict[str, list[ReportedRun]] = {}
    hints: dict[str, None] = {}
    for run in group:
        if run.trouble:
            what, _, hint = run.trouble.partition("\nhint:")
            found.setdefault(what, []).append(run)
            hints |= {hint.strip(): None} if hint else {}
    lines = [f"{splits_and_seeds(some, group)}: {what}" for what, some in found.items()]
    return lines + [f"hint: {hint}" for hint in hints]


# ---- clients ----


def _client_table(runs: Sequence[ReportedRun], table: pd.DataFrame) -> dict[str, Any]:
    """Rows of the table of clients; of very many, the worst and best served by the leading method."""
    clients = figure_data.client_scores(runs, list(table["method"]))
    shown, cut = clients, ""
    names = list(clients.columns[1:])
    if names and len(clients) > MOST_CLIENTS:
        half = MOST_CLIENTS // 2
        order = (clients[names[0]] * table.attrs["better"]).sort_values(kind="stable").index
        shown = clients.loc[[*order[:half], *order[-half:]]]
        cut = f"Shown are {MOST_CLIENTS} of {len(clients):,} clients: "
        cut += f"the {half} worst and the {half} best served by {names[0]}."
    if len(runs) == 1 and len(shared := runs[0].of("global")):
        shown = shown.assign(**{"global model": shared.reindex(shown.index)})
    return {
        "labels": list(shown.columns[1:]),
        "rows": [*_cells(shown, runs, table), *_unscored(runs, len(shown.columns) - 1)],
        "cut": cut,
        "without": next((r for r in remark(runs) if r != WEIGHTED), ""),
    }


def _unscored(runs: Sequence[ReportedRun], columns: int) -> list[dict[str, Any]]:
    """Rows of clients that have no score in any run."""
    found = client_scores(runs)
    more = with_unscored(found, runs).iloc[len(found) :]
    blank = [(math.nan, "")] * columns
    return [{"client": c, "train": n, "cells": blank} for c, n in zip(more.index, more["train"], strict=True)]


def _cells(shown: pd.DataFrame, runs: Sequence[ReportedRun], table: pd.DataFrame) -> list[dict[str, Any]]:
    """Each client's scores, with what changed against training alone."""
    found = figure_data.gains(runs, table)
    change = {(r["label"], r["unit"]): r["change"] for r in found.to_dict("records")}
    return [
        {"client": client, "train": row["train"],
         "cells": [(row[name], change.get((name, client), "")) for name in shown.columns[1:]]}
        for client, row in zip(shown.index, shown.to_dict("records"), strict=True)
    ]  # fmt: skip


# ---- how it was done ----


def _about(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """What the runs say of themselves, each thing once."""
    facts = [run.facts for run in runs]
    seen = [run.clients[run.clients["seen"] == 1] for run in runs if len(run.clients)]
    return {
        "data": facts[0].get("data", "unknown"),
        "nets": _once(r.facts.get("net", "unknown") for r in runs if r.method not in NO_NETWORK),
        "seeds": sorted({run.seed for run in runs}),
        "splits": sorted({run.split for run in runs}), "fixed_tests": all(run.fixed_tests for run in runs),
        "clients": len(seen[0]) if seen else 0,
        "unseen": int((runs[0].clients["seen"] == 0).sum()), "kind": facts[0].get("kind", "classes"),
        "parts": [_spread(seen, part) for part in ("train", "val", "test")],
        "engines": _once(f"{f.get('engine', 'unknown')}: {f.get('engine_why', '')}" for f in facts),
        "versions": _once(f"{k} {v}" for f in facts for k, v in sorted((f.get("versions") or {}).items())),
        "code": _once(text for run in runs for text in run.code),
        "notes": _once(note for f in facts for note in f.get("notes") or []),
        "costs": [summary(run) for run in runs],
    }  # fmt: skip


def _once(items: Any) -> list[str]:
    return list(dict.fromkeys(str(item) for item in items if item is not None))


def _spread(seen: Sequence[pd.DataFrame], part: str) -> dict[str, Any]:
    import pandas as pd

    rows = pd.concat([frame[part] for frame in seen]) if seen else pd.Series([0])
    names = {"train": "training", "val": "validation", "test": "test"}
    return {
        "name": names[part],
        "least": int(rows.min()),
        "middle": float(rows.median()),
        "most": int(rows.max()),
    }


def _recipe(run: ReportedRun) -> dict[str, Any]:
    """A run's recipe, and its folder's name; the path to the folder is private."""
    text, folder = str(run.facts.get("recipe", "")), run.folder.name
    return {
        "label": run.label,
        "seed": run.seed,
        "folder": folder,
        "quoted": shlex.quote(folder),
        "text": text,
    }
