"""Which figures a report has: title, caption, drawing and numbers of each; and all of them as files.

Knows runs as they are read and the table of methods. Does not know pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.atomic import write_atomically
from motet.errors import UsageError
from motet.report import (
    audit_report,
    class_figures,
    client_figures,
    contribution_graph,
    curves,
    figure_data,
    fonts,
    group_figures,
    method_figures,
    privacy_figures,
    survival_figures,
    tradeoff_figures,
)
from motet.report.downloads import file_name
from motet.report.export_table import as_csv
from motet.report.figures import FORMATS, WIDE, Picture, Styles, as_file, styles_of
from motet.report.read import ReportedRun
from motet.text import nearest

if TYPE_CHECKING:
    import pandas as pd

MOST_PANELS = 2  # methods in figures with a panel for each


def pictures(runs: Sequence[ReportedRun], table: pd.DataFrame) -> list[Picture]:
    """Each figure that these runs have numbers for, in the order of the page."""
    labels = [str(name) for name in table["method"]]
    styles, metric = styles_of(labels), str(table.attrs["metric"])
    found = [*_of_rounds(runs, styles, metric), *_of_clients(runs, styles, metric)]
    found += tradeoff_figures.plane(runs, table, styles, metric)
    found += [*survival_figures.picture(runs, _best(table)), *_of_gains(runs, table, metric)]
    found += class_figures.confusion(runs, _best(table))
    found += class_figures.calibration(runs, labels, _best(table), styles)
    found += [*group_figures.pictures(runs), *_of_client_rows(runs[0])]
    found += method_figures.pictures(runs, labels)
    found += tradeoff_figures.cost(runs, table, styles, metric)
    found += privacy_figures.price_of_privacy(runs, metric)
    found += [picture for run in runs for picture in contribution_graph.picture(run)]
    return _named_apart(found + audit_report.audit_pictures(runs))


def _named_apart(found: Sequence[Picture]) -> list[Picture]:
    """The second of one name is `name-2`: names are those of files."""
    many, apart = Counter[str](), []
    for picture in found:
        many[picture.name] += 1
        again = many[picture.name]
        apart.append(replace(picture, name=f"{picture.name}-{again}") if again > 1 else picture)
    return apart


def _best(table: pd.DataFrame) -> str:
    """The method that validation chose, or the first of the table."""
    chosen = table.loc[table["best"].astype(bool), "method"] if "best" in table else table["method"]
    return str((chosen if len(chosen) else table["method"]).iloc[0])


def _of_rounds(runs: Sequence[ReportedRun], styles: Styles, metric: str) -> list[Picture]:
    past, marked = figure_data.curves(runs), figure_data.reported(runs)
    found = curves.distinct(past, styles, marked)
    if not found:
        return []
    constant = figure_data.constant(runs)
    limits = curves.window(found, metric, runs[0].better, constant)
    draw, size = curves.drawing(found, limits, metric, constant)
    alike = any(len(group) > 1 for group in curves.look_alike(found, limits))
    caption = "Validation score, mean over clients, of personal models"
    caption += "; dotted: the global model where it is another" * any(c.side == "global" for c in found)
    if (past["runs"] > 1).any():
        caption += ". Lines are means over runs, bands reach from the lowest run to the highest"
        caption += _ends(past)
    caption += ". A marker is on each round whose models are reported" * bool(marked)
    caption += ". Early rounds may lie outside."
    caption += " A line ends at its last round with validation scores; " * bool(late := _unscored_ends(runs))
    caption += f"{', '.join(late)} trained for some rounds more." * bool(late)
    caption += " Lines that are equal (=) or look so (≈) lie on each other, thin on thick." * alike
    return [Picture("validation-over-rounds", "Validation over rounds", caption, draw, size, past, True)]


def _unscored_ends(runs: Sequence[ReportedRun]) -> list[str]:
    """The methods whose runs went on after the last round that was scored."""
    found = [
        run.label
        for run in runs
        if len(run.val) and len(run.rounds) and run.rounds["round"].max() > run.val["round"].max()
    ]
    return list(dict.fromkeys(found))


def _ends(past: pd.DataFrame) -> str:
    uneven = past.groupby(["label", "side"])["runs"].nunique().max() > 1
    return "; a run that has ended keeps its last score" if uneven else ""


def _of_clients(runs: Sequence[ReportedRun], styles: Styles, metric: str) -> list[Picture]:
    clients = figure_data.client_scores(runs, list(styles))
    if not len(clients):
        return []
    many, most = len(clients), client_figures.DOTS
    caption = "Each dot is a client's own model on its own test rows; the line is the mean over all clients."
    caption += f" Of {many:,} clients, {most} evenly spaced ranks are drawn." * (many > most)
    size = WIDE, 0.9 + _row_height(len(clients.columns) - 1)
    draw = client_figures.each_client(clients, styles, metric)
    data = clients.rename_axis("client").reset_index()
    return [Picture("test-of-each-client", "Every client", caption, draw, size, data, True)]


def _row_height(rows: int) -> float:
    """Inches for so many methods below each other."""
    return rows * (0.42 if rows <= 6 else 0.34)


def _of_gains(runs: Sequence[ReportedRun], table: pd.DataFrame, metric: str) -> list[Picture]:
    found = figure_data.gains(runs, table)
    if not len(found):
        return []
    intervals = figure_data.mean_gains(found, table)
    known = any(low == low for _, low, _ in intervals.values())
    many, most = found["unit"].nunique(), client_figures.DOTS
    cut = f" {most} of {many:,} clients are drawn, evenly by gain." * (many > most)
    caption = (
        "What each client gains on its test rows over training alone; diamonds are means over clients"
        + ", bars their 95 % intervals" * known
        + ". Up: better; dot: the same; down: worse."
        + cut
    )
    draw = client_figures.gains(found, intervals, metric)
    size = WIDE, 1.2 + _row_height(len(intervals))
    first = Picture("gains-of-methods", "What clients gain", caption, draw, size, found, True)
    return [first, _gains_by_size(found, metric)]


def _gains_by_size(found: pd.DataFrame, metric: str) -> Picture:
    names = list(dict.fromkeys(found["label"]))[:MOST_PANELS]
    some = found[found["label"].isin(names)]
    many, most = some["unit"].nunique(), client_figures.DOTS
    caption = (
        f"Gain of each client over training alone, for {' and '.join(names)}. Clients stand from few training "
        "rows to many (rows in brackets)."
    )
    caption += f" {most} of {many:,} clients are drawn, evenly by size." * (many > most)
    draw = client_figures.gains_by_size(found, names, metric)
    size = WIDE, 1.4 + 1.5 * len(names)
    return Picture("gains-by-size", "Who gains, who loses", caption, draw, size, some)


def _of_client_rows(run: ReportedRun) -> list[Picture]:
    if not len(run.clients):
        return []
    rows, classes = figure_data.client_rows(run), [str(c) for c in run.facts.get("classes") or []]
    many, unseen = len(run.clients), bool((run.clients["seen"] == 0).any())
    labels, most = int(rows["label"].nunique()), client_figures.COLUMNS
    by_label, drawn = bool(rows["label"].any()), min(labels, figure_data.MOST_LABELS)
    caption = "Training rows of each client"
    caption += " by label; the area of a bubble is the number of rows" * by_label
    caption += "." if run.fixed_tests else f" (split {run.split})."
    caption += " A star marks clients never seen in training." * unseen
    caption += f" {most} of {many:,} clients are drawn, evenly by name." * (many > most)
    caption += f" Only the {drawn} most frequent labels are drawn." * (labels > drawn)
    size = WIDE, 1.3 + 0.26 * drawn if by_label else 2.8
    draw = client_figures.client_rows(rows, classes)
    return [Picture("rows-of-clients", "Who holds what", caption, draw, size, rows)]


# ---- files ----


def check(kind: str) -> None:
    """Refuse a format that we cannot write, before anything is drawn."""
    if kind not in FORMATS:
        raise UsageError(
            f"the format of figures is {kind!r}; expected {', '.join(FORMATS)}\nhint: {nearest(kind, FORMATS)}"
        )


def write_figures(found: Sequence[Picture], folder: Path, kind: str, say: Callable[[str], Any]) -> list[Path]:
    """Each picture as a file in this folder, its numbers as CSV beside it; what is lacking is said once."""
    check(kind)
    folder.mkdir(parents=True, exist_ok=True)
    lacking: set[str] = set()
    written = []
    for picture in found:
        path = folder / f"{file_name(picture.name)}.{kind}"
        write_atomically(path, as_file(picture, kind, lacking))
        write_atomically(path.with_suffix(".csv"), as_csv(picture.data))
        written += [path]
    if lacking:
        say(fonts.sentence(sorted(lacking)))
    return written
