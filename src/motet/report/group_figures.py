"""The figures of clients in groups: where they lie to each other, and what sets the groups apart.

Of runs whose method records `groups` and, in two principal components, what the server saw of clients (`places`).
Knows matplotlib and runs as they are read. Does not know how clients were grouped.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from motet.report.cells import cells, named_cells
from motet.report.figures import GREY, MARKERS, PALETTE, WIDE, Draw, Picture, narrow
from motet.report.point_names import name_points
from motet.report.read import ReportedRun, natural
from motet.report.terminal import short

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 2  # methods in a figure
KEYS = 10  # most groups that are named below
NAMED = 40  # most dots that are drawn with their names
LABELS = 20  # most labels in a figure
NUMBERS = 12  # labels, with which cells have numbers in them


def pictures(runs: Sequence[ReportedRun]) -> list[Picture]:
    """Of the first run of each method that groups clients."""
    grouped = {run.label: run for run in reversed(runs) if _record(run).get("groups")}
    found = list(reversed(grouped.values()))
    return [*_of_places([run for run in found if _record(run).get("places")]), *_of_labels(found)]


def _record(run: ReportedRun) -> Mapping[str, Any]:
    return run.facts.get("record") or {}


# ---- where clients lie ----


def _of_places(grouping: Sequence[ReportedRun]) -> list[Picture]:
    import pandas as pd

    some, left_out = grouping[:MOST_PANELS], [run.label for run in grouping[MOST_PANELS:]]
    if not some:
        return []
    said = [
        f"{run.label}: {len(set(_record(run)['groups'].values()))} groups, silhouette "
        f"{_record(run)['silhouette']:.2f}, {_record(run)['share']:.0%} of the variance shown"
        for run in some
    ]
    caption = (
        "Each dot is what the server saw of a client to group it, in two principal components; "
        f"a colour is a group. {'; '.join(said)}. A silhouette of 1 is groups far apart, 0 is none."
    )
    caption += f" Not drawn: {', '.join(left_out)}." * bool(left_out)
    rows = [
        (run.label, run.seed, client, *place, _record(run)["groups"].get(client))
        for run in some
        for client, place in _record(run)["places"].items()
    ]
    data = pd.DataFrame(rows, columns=["label", "seed", "client", "first", "second", "group"])
    tall = 0.4 + 4.4 * len(some)
    name, title = "groups-of-clients", "Groups of clients"
    return [Picture(name, title, caption, _places(some), (WIDE, 4.4), data, True, tall)]


def _places(runs: Sequence[ReportedRun]) -> Draw:
    def draw(figure: Figure) -> None:
        small, many = narrow(figure), len(runs)
        panels = figure.subplots(*((many, 1) if small else (1, many)), squeeze=False).flat
        for axes, run in zip(panels, runs, strict=True):
            _dots(axes, _record(run))
            axes.set_title(short(f"{run.label}, seed {run.seed}", 40 if small else 60), loc="left")
            axes.set(xlabel="first principal component", ylabel="second")
            axes.margins(0.1)
        _key(figure, runs)
        for axes, run in zip(figure.axes, runs, strict=True):
            _names(axes, _record(run)["places"])

    return draw


def _style(group: int) -> tuple[str, str]:
    """Colour and marker."""
    lap, i = divmod(group, len(PALETTE))
    return (PALETTE[i], MARKERS[lap % len(MARKERS)]) if group >= 0 else (GREY, "x")


def _key(figure: Figure, runs: Sequence[ReportedRun]) -> None:
    """Which colour is which group, as they are numbered in the figure of what sets them apart."""
    from matplotlib.lines import Line2D

    groups = sorted({int(g) for run in runs for g in _record(run)["groups"].values()})[:KEYS]
    styles = [(g, *_style(g)) for g in groups]
    handles = [Line2D([], [], ls="", marker=m, color=c, label=f"group {g + 1}") for g, c, m in styles]
    across = min(len(handles), 4 if narrow(figure) else KEYS)
    figure.legend(
        handles=handles, loc="outside lower left", ncols=across, handlelength=1.0, columnspacing=1.2
    )


def _dots(axes: Axes, record: Mapping[str, Any]) -> None:
    for client in sorted(record["places"], key=natural):
        (x, y), group = record["places"][client], int(record["groups"].get(client, -1))
        colour, marker = _style(group)
        axes.scatter([x], [y], s=34, c=colour, marker=marker, linewidths=0 if group >= 0 else 1)


def _names(axes: Axes, places: Mapping[str, Sequence[float]]) -> None:
    common = len(os.path.commonprefix(list(places)))  # what all names begin with says nothing
    if len(places) <= NAMED:
        order = sorted(places, key=natural)
        points = [(float(places[c][0]), float(places[c][1])) for c in order]
        name_points(axes, points, [short(c[common:] or c, 12) for c in order])


# ---- what sets groups apart ----


def shares(run: ReportedRun) -> pd.DataFrame:
    """label, group, clients, class, share, overall: how the training rows of a group's clients are divided among
    classes, and those of all clients; nothing where targets are no classes."""
    import pandas as pd

    groups, classes = _record(run)["groups"], [str(c) for c in run.facts.get("classes") or []]
    named = {str(i): name for i, name in enumerate(classes)}
    held: dict[int, Counter[str]] = {}
    for client, labels in zip(run.clients["client"], run.clients["labels"], strict=True):
        if client in groups:
            rows = {named.get(k, k): int(n) for k, n in json.loads(labels or "{}").items()}
            held.setdefault(int(groups[client]), Counter()).update(rows)
    total: Counter[str] = sum(held.values(), Counter())
    everything, many = sum(total.values()), Counter(int(g) for g in groups.values())
    order = sorted(total, key=lambda k: (classes.index(k) if k in classes else len(classes), natural(k)))
    rows_of = [
        (
            run.label,
            group,
            many[group],
            k,
            held[group][k] / max(sum(held[group].values()), 1),
            total[k] / everything,
        )
        for group in sorted(held)
        for k in order
    ]
    return pd.DataFrame(rows_of, columns=["label", "group", "clients", "class", "share", "overall"])


def _of_labels(grouping: Sequence[ReportedRun]) -> list[Picture]:
    import pandas as pd

    found = {run.label: shares(run) for run in grouping}
    found = {label: frame for label, frame in found.items() if frame["group"].nunique() > 1}
    if not found:
        return []
    shown = dict(list(found.items())[:MOST_PANELS])
    caption = (
        "Shares of classes in the training rows of each group, in percent. Blue: more than among all clients; "
        "orange: less; the deeper, the further apart. In brackets: clients of the group."
    )
    left_out = list(found)[MOST_PANELS:]
    caption += f" Not drawn: {', '.join(left_out)}." * bool(left_out)
    many = max(frame["class"].nunique() for frame in shown.values())
    caption += f" Only the {LABELS} most frequent classes are drawn." * (many > LABELS)
    rows = sum(frame["group"].nunique() for frame in shown.values())
    size = WIDE, 1.0 * len(shown) + 0.36 * rows
    data = pd.concat(list(found.values()), ignore_index=True)
    name, title = "what-sets-groups-apart", "What sets groups apart"
    return [Picture(name, title, caption, _tables(shown), size, data, True, size[1] * 1.25)]


def _tables(shown: Mapping[str, pd.DataFrame]) -> Draw:
    def draw(figure: Figure) -> None:
        heights = [frame["group"].nunique() for frame in shown.values()]
        panels = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (label, frame) in zip(panels, shown.items(), strict=True):
            _table(axes, frame, narrow(figure))
            axes.set_title(short(label, 40), loc="left")

    return draw


def _table(axes: Axes, frame: pd.DataFrame, small: bool) -> None:
    overall = frame.drop_duplicates("class").set_index("class")["overall"]
    kept = [k for k in overall.index if k in set(overall.nlargest(LABELS).index)]
    wide = frame.pivot(index="group", columns="class", values="share")[kept]
    apart = wide - overall[kept]
    most = float(apart.abs().to_numpy().max()) or 1.0
    texts = [[f"{100 * v:.0f}" for v in row] for row in wide.to_numpy()]
    letter = float(axes.xaxis.label.get_fontsize())
    size = 0.85 * letter if len(kept) <= NUMBERS * (1 if small else 2) else 0
    cells(axes, (apart / most).to_numpy().tolist(), texts, size)
    many = frame.drop_duplicates("group").set_index("group")["clients"]
    rows = [f"group {g + 1} ({many[g]})" for g in wide.index]
    labels = [short(str(k), 12) for k in kept]
    named_cells(axes, rows, labels, max(map(len, labels)) > 2)
