"""One HTML file about one run or many, worth sending to a colleague.

Self-contained: no request leaves the page, and its own policy forbids any. All text from stores is
escaped by the template. The same runs give the same bytes. Knows jinja2 and the other files of report/.
"""

from __future__ import annotations

import base64
import hashlib
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.report import contribution_graph, figures, terminal
from motet.report.read import ReportedRun
from motet.report.tables import client_scores, comparison, history, summary
from motet.report.verdict import verdict

if TYPE_CHECKING:
    import pandas as pd

Pictures = list[dict[str, str]]  # title, caption and svg of each; none where there is nothing to draw
MOST_CLIENTS = 200  # rows of the table of clients
MOST_PANELS = 2  # methods in the picture of gains
SORTING = """
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


def write(runs: Sequence[ReportedRun], to: Path, title: str | None = None) -> Path:
    """Write the report on these runs to the file `to`, and return its path."""
    to = Path(to)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(render(runs, title), encoding="utf-8")
    return to


def render(runs: Sequence[ReportedRun], title: str | None = None) -> str:
    """The whole page as text."""
    table, clients = comparison(runs), _with_global(runs, client_scores(runs))
    text: str = template("report.html").render(
        title=title or _title(runs), metric=table.attrs["metric"], unit=terminal.unit(table.attrs["metric"]),
        better=table.attrs["better"], sorting=SORTING, policy=policy(),
        verdict=verdict(runs, table), remarks=table.attrs["warnings"],
        rows=table.to_dict("records"), troubles=[r for r in table.to_dict("records") if r["trouble"]],
        with_seeds="seed_sd" in table, with_server_test=bool(table["server_test"].notna().any()),
        clients=_client_table(clients, table), pictures=_pictures(runs, table, clients),
        about=_about(runs), recipes=[_recipe(run) for run in runs],
    )  # fmt: skip
    return text


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
    }  # fmt: skip
    return environment.get_template(name)


def _typeset(text: str) -> str:
    return "–" if text == terminal.ABSENT else text.replace("-", "−")


def policy() -> str:
    """Nothing may be loaded, and no script may run but our own."""
    digest = base64.b64encode(hashlib.sha256(SORTING.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _title(runs: Sequence[ReportedRun]) -> str:
    data, methods = runs[0].facts.get("data", "data"), {run.label for run in runs}
    return f"{next(iter(methods))} on {data}" if len(methods) == 1 else f"{len(methods)} methods on {data}"


# ---- clients ----


def _with_global(runs: Sequence[ReportedRun], clients: pd.DataFrame) -> pd.DataFrame:
    """Of a single run, also the global model's score; with several runs the table would get too wide."""
    clients.attrs["columns"] = list(clients.attrs["labels"])
    if len(runs) == 1 and len(runs[0].of("global")) and len(clients):
        clients["global model"] = runs[0].of("global").reindex(clients.index)
        clients.attrs["columns"].append("global model")
    return clients


def _columns(table: pd.DataFrame, clients: pd.DataFrame) -> list[str]:
    """The columns of scores, in the order of the comparison."""
    place = {name: i for i, name in enumerate(table["method"])}
    return sorted(clients.attrs["columns"], key=lambda name: place.get(name, len(place)))


def _client_table(clients: pd.DataFrame, table: pd.DataFrame) -> dict[str, Any]:
    """Rows of the table of clients; of very many, the worst and best served by the leading method."""
    labels = _columns(table, clients)
    leader = next((name for name in labels if name in clients.attrs["rivals"]), None)
    shown, cut = clients, ""
    if leader and len(clients) > MOST_CLIENTS:
        half = MOST_CLIENTS // 2
        order = (clients[leader] * table.attrs["better"]).sort_values(kind="stable").index
        shown = clients.loc[[*order[:half], *order[-half:]]]
        cut = f"Shown are {MOST_CLIENTS} of {len(clients):,} clients: "
        cut += f"the {half} worst and the {half} best served by {leader}."
    rows = [
        {"client": client, "train": row["train"], "cells": [row[name] for name in labels]}
        for client, row in zip(shown.index, shown.to_dict("records"), strict=True)
    ]  # fmt: skip
    return {"labels": labels, "rows": rows, "cut": cut, "many": len(clients)}


# ---- pictures ----


def _pictures(runs: Sequence[ReportedRun], table: pd.DataFrame, clients: pd.DataFrame) -> Pictures:
    """Title, caption and SVG of each picture that these runs have numbers for."""
    styles = figures.styles_of(list(table["method"]))
    return [
        *_picture_of_rounds(runs, styles, table.attrs["metric"]),
        *_picture_of_clients(table, clients, styles),
        *_picture_of_gains(table, clients, styles),
        *_picture_of_groups(runs),
        *_picture_of_client_rows(runs[0]),
        *(picture for run in runs for picture in contribution_graph.picture(run)),
    ]


def _picture_of_rounds(runs: Sequence[ReportedRun], styles: figures.Styles, metric: str) -> Pictures:
    past = history(runs)
    if not len(past):
        return []
    reported: dict[str, list[int]] = {}
    for run in runs:
        if run.facts.get("reported") is not None:
            reported.setdefault(run.label, []).append(int(run.facts["reported"]))
    caption = (
        "Mean over clients and seeds of the validation score; solid: personal models, dashed: the global "
        "model. A marker is on each round whose models are reported; rounds are counted from 0. "
        "Early rounds may lie outside."
    )
    svg = figures.over_rounds(past, reported, styles, metric, runs[0].better)
    return [{"title": "Validation over rounds", "caption": caption, "svg": svg}]


def _picture_of_clients(table: pd.DataFrame, clients: pd.DataFrame, styles: figures.Styles) -> Pictures:
    labels = _columns(table, clients)
    if not labels:
        return []
    many = len(clients)
    caption = "Each dot is a client's own model on its own test rows; the line is the mean over all clients."
    caption += f" Of {many:,} clients, {figures.DOTS} evenly spaced ranks are drawn." * (many > figures.DOTS)
    svg = figures.each_client(clients, labels, styles, table.attrs["metric"])
    return [{"title": "Every client", "caption": caption, "svg": svg}]


def _picture_of_gains(table: pd.DataFrame, clients: pd.DataFrame, styles: figures.Styles) -> Pictures:
    alone, rivals = clients.attrs["alone"], clients.attrs["rivals"]
    names = [name for name in table["method"] if name in rivals and name != alone][:MOST_PANELS]
    if alone is None or not names:
        return []
    caption = (
        f"Test score against training alone, for {' and '.join(names)}; filled bars gain, hollow bars lose. "
        "Clients from few training rows to many (rows in brackets)."
    )
    many = len(clients)
    caption += f" {figures.DOTS} of {many:,} clients are drawn, evenly by size." * (many > figures.DOTS)
    svg = figures.gains(clients, names, styles, table.attrs["metric"], table.attrs["better"])
    return [{"title": "Who gains, who loses", "caption": caption, "svg": svg}]


def _picture_of_groups(runs: Sequence[ReportedRun]) -> Pictures:
    """Of the first run of each method that groups clients by what it saw of them."""
    seen = {run.label: run for run in reversed(runs) if (run.facts.get("record") or {}).get("places")}
    some = list(reversed(seen.values()))[:MOST_PANELS]
    if not some:
        return []
    said = [
        f"{run.label}: {len(set(run.facts['record']['groups'].values()))} groups, silhouette "
        f"{run.facts['record']['silhouette']:.2f}, {run.facts['record']['share']:.0%} of the variance shown"
        for run in some
    ]
    caption = (
        "Each dot is what the server saw of a client to group it, in two principal components; "
        f"a colour is a group. {'; '.join(said)}. A silhouette of 1 is groups far apart, 0 is none."
    )
    return [{"title": "Groups of clients", "caption": caption, "svg": figures.groups(some)}]


def _picture_of_client_rows(run: ReportedRun) -> Pictures:
    if not len(run.clients):
        return []
    many, unseen = len(run.clients), bool((run.clients["seen"] == 0).any())
    by_label, labels = run.facts.get("kind") == "classes", len(run.facts.get("classes") or [])
    caption = "Training rows of each client"
    caption += " by label; the area of a bubble is the number of rows" * by_label
    caption += f" (seed {run.seed})." + " A star marks clients never seen in training." * unseen
    caption += f" {figures.COLUMNS} of {many:,} clients are drawn, evenly by name." * (many > figures.COLUMNS)
    caption += f" Only the {figures.LABELS} most frequent labels are drawn." * (labels > figures.LABELS)
    return [{"title": "Who holds what", "caption": caption, "svg": figures.client_rows(run)}]


# ---- how it was done ----


def _about(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """What the runs say of themselves, each thing once."""
    facts = [run.facts for run in runs]
    seen = [run.clients[run.clients["seen"] == 1] for run in runs if len(run.clients)]
    return {
        "data": facts[0].get("data", "unknown"), "nets": _once(f.get("net") for f in facts),
        "seeds": sorted({run.seed for run in runs}), "clients": len(seen[0]) if seen else 0,
        "unseen": int((runs[0].clients["seen"] == 0).sum()), "kind": facts[0].get("kind", "classes"),
        "parts": [_spread(seen, part) for part in ("train", "val", "test")],
        "engines": _once(f"{f.get('engine', 'unknown')}: {f.get('engine_why', '')}" for f in facts),
        "versions": _once(f"{k} {v}" for f in facts for k, v in sorted((f.get("versions") or {}).items())),
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
