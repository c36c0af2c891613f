"""Numbers as people read them, and the comparison as plain text or records.

Shares (accuracy, AUC, F1, concordance, …) in percent with one decimal and their differences in points, all
else with three significant digits. Knows no store and no HTML.
"""

from __future__ import annotations

import io
import math
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from motet.report.spent_privacy import privacy_lines
from motet.text import function_name, round_name

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 100  # columns of a terminal
NARROWEST, WIDEST = 13, 28  # of the column of names, which wrap
ABSENT = "-"  # what does not apply or is not known
MISSING = "–"  # a score that a client has not
STAR = "*"  # at a gain that holds for all methods at once
BY_CHANCE = "each at 95 %: of 20 clients up to about one is called better or worse by chance"
MOST_NAMED = 3  # methods or clients in a line
PERCENT = ("accuracy", "balanced", "auc", "f1", "cindex")
NAMES = {
    "balanced": "balanced accuracy", "auc": "AUC", "f1": "F1", "brier": "Brier score", "rmse": "RMSE",
    "ece": "calibration error", "mae": "MAE", "r2": "R²", "own": "own metric", "cindex": "concordance",
    "pinball": "pinball loss", "deviance": "Poisson deviance",
}  # fmt: skip


def score(value: float | None, metric: str) -> str:
    if value is None or math.isnan(value):
        return ABSENT
    return f"{100 * value:.1f}" if metric in PERCENT else three_digits(value)


def said_score(value: float, metric: str) -> str:
    return f"{score(value, metric)} %" if metric in PERCENT else score(value, metric)


def gain(value: float | None, metric: str) -> str:
    text = score(value, metric)
    if text == ABSENT:
        return text
    if not text.strip("-0."):  # no minus before nothing
        return text.lstrip("-")
    return text if text.startswith("-") else f"+{text}"


def with_interval(mean: float, low: float, high: float, metric: str) -> str:
    """
    >>> with_interval(0.029, 0.011, 0.046, "accuracy"), with_interval(0.5, float("nan"), float("nan"), "rmse")
    ('+2.9 (+1.1 to +4.6)', '+0.500')
    """
    ends = "" if math.isnan(low + high) else f" ({gain(low, metric)} to {gain(high, metric)})"
    return gain(mean, metric) + ends


def three_digits(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.2e}")
    size = math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(0, 2 - size)}f}" if -4 <= size < 9 else f"{value:.2e}"


def number(value: float | None) -> str:
    """A count, share or cost: whole where it is whole or large, else one decimal."""
    if value is None or math.isnan(value):
        return ABSENT
    return f"{value:,.0f}" if value >= 100 or abs(value - round(value)) < 1e-9 else f"{value:.1f}"


def width_here() -> int:
    """As wide as the terminal, at least 60 columns; as our other tables where there is none."""
    return max(60, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH


def short(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def named(metric: str) -> str:
    """A metric as people call it."""
    return NAMES.get(metric) or function_name(metric)


def listed(names: Sequence[str]) -> str:
    """
    >>> listed(["a", "b", "c", "d"]), listed(["a", "b"])
    ('a, b, c and 1 more', 'a and b')
    """
    shown, more = list(names[:MOST_NAMED]), len(names) - MOST_NAMED
    shown += [f"{more} more"] if more > 0 else []
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def unit(metric: str) -> str:
    return f"{named(metric)} %" if metric in PERCENT else named(metric)


_LACK = {"auc": "rows of one class and no", "cindex": "no pair of times to compare, so no"}


def lack(many: int, metric: str) -> str:
    """
    >>> lack(2, "auc"), lack(1, "f1")
    ('2 have rows of one class and no AUC', '1 has no F1')
    """
    return f"{many:,} {'has' if many == 1 else 'have'} {_LACK.get(metric, 'no')} {named(metric)}"


def over_clients(many: int, without: int, metric: str) -> str:
    """
    >>> over_clients(10, 2, "auc"), over_clients(10, 0, "auc")
    ('8 of 10 clients (2 have rows of one class and no AUC)', '10 clients')
    """
    if not without:
        return f"{many:,} client{'s' * (many != 1)}"
    return f"{many - without:,} of {many:,} clients ({lack(without, metric)})"


# ---- records ----


def as_records(comparison: pd.DataFrame) -> list[dict[str, Any]]:
    """The comparison for machines: one dict for each row, None where a number does not apply."""
    return [{k: plain(v) for k, v in row.items()} for row in comparison.to_dict("records")]


def plain(value: Any) -> Any:
    """A number that JSON knows, or None."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- the comparison ----

Cell = Callable[[Any, str], str]

SCORES: dict[str, Cell] = {
    "personal ± sd": lambda r, m: _personal(r, m),
    "runs sd": lambda r, m: score(r.get("seed_sd"), m),
    "worst 10 %": lambda r, m: score(r["worst"], m),
    "global": lambda r, m: score(r["global"], m),
    "over alone (95 %)": lambda r, m: (
        with_interval(r["gain_local"], r["gain_local_low"], r["gain_local_high"], m) + STAR * r["starred"]
    ),
    "better, same, worse": lambda r, m: _counted(r),
    "rounds (needed)": lambda r, m: _rounds(r),
    "epsilon": lambda r, m: number(r.get("epsilon")),
}
FIRST_TO_GO = (  # where the terminal is narrow
    "runs sd", "global", "worst 10 %", "rounds (needed)", "better, same, worse",
    "failed", "runs", "visit", "unseen: arrival",
)  # fmt: skip
COSTS: dict[str, Cell] = {
    "unseen: arrival": lambda r, m: score(r["arrival"], m),
    "visit": lambda r, m: score(r["visit"], m),
    "seconds": lambda r, m: number(r["seconds"]),
    "KiB up": lambda r, m: number(r["kib_up"]),
    "KiB down": lambda r, m: number(r["kib_down"]),
    "runs": lambda r, m: str(r["runs"]),
    "failed": lambda r, m: str(r["failed"]),
}


def _personal(row: Any, metric: str) -> str:
    if math.isnan(row["personal"]):
        return "failed" if row["failed"] else "running"
    return f"{score(row['personal'], metric)} ± {score(row['sd'], metric)}"


def _counted(row: Any) -> str:
    known = [row[f"clients_{what}"] for what in ("better", "same", "worse")]
    return "/".join(map(str, known)) if any(known) else ABSENT


def _rounds(row: Any) -> str:
    """`50 (300)`: a run of 50 rounds that would need about 300; `50 (500+)`: more than 500."""
    ran = number(row["rounds"]) if row["rounds"] else ABSENT
    few = row["needs"].split()[-1] + "+" * row["needs"].startswith("more") if row["needs"] else ""
    return f"{ran} ({few})" if few else ran


def as_text(
    comparison: pd.DataFrame, verdict: Sequence[str] = (), width: int = WIDTH, *, wide: bool = False
) -> str:
    """The verdict and the comparison for a terminal; with `wide`, unseen clients and costs too."""
    metric, rows = comparison.attrs["metric"], comparison.to_dict("records")
    columns = {k: v for k, v in SCORES.items() if any(v(r, metric) != ABSENT for r in rows)}
    parts = [*folded(verdict, width), "", *_table(f"test {unit(metric)}", rows, columns, metric, width)]
    if wide:
        parts += ["", *_table("unseen, cost", rows, COSTS, metric, width)]
    return "\n".join([*parts, "", *folded(footnotes(comparison, wide=wide), width)]).strip("\n")


def folded(lines: Sequence[str], width: int) -> list[str]:
    """Lines of at most so many columns; a number stays with its percent sign."""
    return [part for line in lines for part in _wrapped(" ".join(line.split()), width)]


def _wrapped(text: str, width: int) -> list[str]:
    return [part.replace("\xa0", " ") for part in textwrap.wrap(text.replace(" %", "\xa0%"), width)]


@dataclass(frozen=True)
class TableLayout:
    """Columns that fit into a width: their headings, and how wide they are."""

    columns: dict[str, Cell]
    heads: list[list[str]]
    sizes: list[int]
    first: int  # width of the column of names

    @property
    def width(self) -> int:
        return self.first + sum(self.sizes) + 2 * len(self.sizes)


def _layout(
    names: Sequence[str], rows: Sequence[Any], columns: dict[str, Cell], metric: str, width: int
) -> TableLayout:
    """Names wrap, then columns are left out, the least needed first."""
    longest = min(max(map(len, names)), WIDEST)
    for gone in range(len(FIRST_TO_GO) + 1):
        kept = {k: cell for k, cell in columns.items() if k not in FIRST_TO_GO[:gone]}
        texts = [[cell(row, metric) for row in rows] for cell in kept.values()]
        cells = [_longest([text.rstrip(STAR) for text in column]) for column in texts[:-1]]
        cells += [_longest(column) for column in texts[-1:]]
        heads = [_wrapped(k, max(size, 8)) for k, size in zip(kept, cells, strict=True)]
        sizes = [max(size, _longest(head)) for size, head in zip(cells, heads, strict=True)]
        found = TableLayout(
            kept, heads, sizes, max(NARROWEST, min(longest, width - sum(sizes) - 2 * len(sizes)))
        )
        if found.width <= width:
            break
    return found


def _longest(texts: Sequence[str]) -> int:
    return max(map(len, texts), default=0)


def _table(corner: str, rows: Sequence[Any], columns: dict[str, Cell], metric: str, width: int) -> list[str]:
    """Lines of a table that fits; a row without numbers says why."""
    good = [row for row in rows if not math.isnan(row["personal"])]
    layout = _layout([corner, *(row["name"] for row in rows)], good, columns, metric, width)
    lines = [*_lines(_wrapped(corner, layout.first), layout.heads, layout), "─" * min(width, layout.width)]
    for row in rows:
        if math.isnan(row["personal"]):
            lines.append(short(f"{row['name'].ljust(layout.first)}  {failed(row)}", width))
            continue
        cells = [[cell(row, metric)] for cell in layout.columns.values()]
        lines += _lines(_wrapped(row["name"], layout.first), cells, layout)
    return lines + _hidden([name for name in columns if name not in layout.columns], width)


def _hidden(names: Sequence[str], width: int) -> list[str]:
    """What a narrow terminal leaves out, and where it is."""
    if not names:
        return []
    return _wrapped(f"Not shown: {'; '.join(names)}. Widen the terminal, or --to FILE.csv.", width)


def failed(row: Any) -> str:
    """Why a row has no numbers, in a few words."""
    reason = row["trouble"].split(": ", 1)[-1].split("\n")[0]
    return reason if not row["failed"] or reason.startswith("diverged") else f"failed: {reason}"


def _lines(name: Sequence[str], cells: Sequence[Sequence[str]], layout: TableLayout) -> list[str]:
    """A row of the table: the name flush left, numbers flush right, as many lines as it needs. A star stands in the
    space behind its column, so that digits stay below digits."""
    columns = [[text.ljust(layout.first) for text in name]]
    columns += [
        [text.rjust(size + text.endswith(STAR)).ljust(size + 1) for text in cell]
        for cell, size in zip(cells, layout.sizes, strict=True)
    ]
    columns[0] = [text + " " for text in columns[0]]
    blank = [" " * (size + 1) for size in (layout.first, *layout.sizes)]
    tall = max(map(len, columns))
    full = [column + [space] * (tall - len(column)) for column, space in zip(columns, blank, strict=True)]
    return [" ".join(parts).rstrip() for parts in zip(*full, strict=True)]


def footnotes(comparison: pd.DataFrame, *, wide: bool = True) -> list[str]:
    """How to read the table, then what went wrong, in sentences."""
    metric, rows = comparison.attrs["metric"], comparison.to_dict("records")
    points = "points" if metric in PERCENT else named(metric)
    lines = [
        "personal ± sd: each client's own model on its own test rows, mean and sd over clients. "
        "Rows are in the order of their validation scores."
    ]
    if kinds := {row["alone_is"] for row in rows if row["alone_is"]}:
        what = next(iter(kinds)) if len(kinds) == 1 else _kinds(rows)
        lines.append(
            f"over alone: mean gain of a client in {points} over its own kind trained alone ({what}); positive "
            "is better."
            + f" {star_note(comparison)}".rstrip()
            + f" better, same, worse: clients by their own test rows, {BY_CHANCE}."
            * any(_counted(row) != ABSENT for row in rows)
        )
    if any(row["needs"] for row in rows):
        lines.append("rounds (needed): it was still improving when it stopped; so many would do.")
    if comparison.attrs.get("what_varies"):
        lines.append(
            "Repeated runs differ by training alone; on other test rows scores would differ by more. The 95 % interval "
            "covers that only as far as the clients differ by it."
        )
    lines += ["KiB: per client and round."] if wide else []
    lines += comparison.attrs.get("warnings", [])
    return lines + [f"{r['method']}: {r['trouble']}" for r in rows if r["trouble"]]


def star_note(comparison: pd.DataFrame) -> str:
    """How the intervals of several methods are to be read; nothing of one method."""
    if (many := comparison.attrs["corrected_for"]) < 2 or not comparison["gain_local_low"].notna().any():
        return ""
    return f"Each interval by itself at 95 %; {STAR} a gain also when corrected for the {many} federated methods."


def _kinds(rows: Sequence[Any]) -> str:
    """`fedavg, ditto: local, linear; stacking: …`."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["alone_is"]:
            found.setdefault(row["alone_is"], []).append(row["method"])
    return "; ".join(f"{', '.join(who)}: {what}" for what, who in found.items())


def clients_text(by_client: pd.DataFrame, metric: str) -> str:
    """Every client's scores for a terminal: rows as whole numbers, shares in percent."""
    from motet.text import aligned

    names = list(by_client.columns)
    rows = [
        [_client_cell(row[name], str(name), metric) for name in names] for row in by_client.to_dict("records")
    ]
    methods = len([name for name in names if name not in ("client", "train", "split")])
    head = ["training rows" if name == "train" else name for name in names]
    right = [i for i, name in enumerate(names) if name != "client"]
    lines = [f"test {unit(metric)} of each client's own model", *aligned([head, *rows], right)]
    if without := sum(all(cell == MISSING for cell in row[len(row) - methods :]) for row in rows):
        lines.append(
            f"{MISSING}: {lack(without, metric)}; means leave {'it' if without == 1 else 'them'} out"
        )
    return "\n".join(lines)


def _client_cell(value: Any, column: str, metric: str) -> str:
    if column == "client":
        return str(value)
    found = f"{value:,.0f}" if column in ("train", "split") else score(value, metric)
    return MISSING if found == ABSENT else found


def printed(parts: Sequence[Any], width: int = WIDTH) -> str:
    """Tables and lines as rich prints them, without colour."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=False)
    for part in parts:
        console.print(part, markup=False, highlight=False)
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())


# ---- one run ----


def summary_text(summary: dict[str, Any]) -> str:
    """One run's summary for a terminal."""
    m = summary["metric"]
    who = over_clients(summary["clients"], len(summary["unscored"]), m)
    lines = [("test", f"{unit(m)}, mean ± sd over {who}")]
    if summary["weighted"]:
        lines.append(("", "weighted: a test row counts by its weight, and every client the same"))
    for side in ("personal", "global"):
        if summary[side] is not None:
            mean, sd, worst = (score(summary[f"{side}{what}"], m) for what in ("", "_sd", "_worst"))
            lines.append((side, f"{mean} ± {sd}, worst 10 %: {worst}"))
    if summary["alone"] is not None:
        lines.append(("alone", f"{score(summary['alone'], m)}, the client's own model, trained alone"))
    if summary["constant"] is not None:
        name = summary["constant_name"]
        said = f"{name} target" if name in ("mean", "median", "quantile") else name
        said = name if name == "equal risks" else f"the {said} of the client's training rows"
        lines.append(("constant", f"{score(summary['constant'], m)}, {said}"))
    if summary["after_training"] is not None:
        mean, sd = score(summary["after_training"], m), score(summary["after_training_sd"], m)
        lines.append(("trained", f"{mean} ± {sd}, clients' models as they left the reported round"))
    if summary["arrival"] is not None:
        arrival, visit = score(summary["arrival"], m), score(summary["visit"], m)
        lines.append(("unseen", f"{arrival} on arrival, {visit} after a visit ({summary['unseen']} clients)"))
    if summary["server_test"] is not None:
        reached = score(summary["server_test"], m)
        lines.append(("server", f"{reached}, the global model on the server's own test set"))
    if sizes := summary["groups"]:
        lines.append(("groups", f"{len(sizes)}, with {', '.join(map(str, sizes))} clients"))
    lines += [*privacy_lines(summary), ("cost", _cost(summary))]
    if summary["needs"]:
        lines.append(("rounds", f"still improving when it stopped; {summary['needs']} rounds would do"))
    if summary["code"]:
        lines.append(("code", f"not motet's: {', '.join(summary['code'])}"))
    if summary["halved"]:
        lines.append(("rate", summary["halved"]))
    lines += [("note", note) for note in summary["notes"]]
    if summary["below_constant"]:
        lines.append(("trouble", summary["below_constant"]))
    if summary["trouble"]:
        lines.append(("trouble", summary["trouble"]))
    reported = "no round" if summary["reported"] is None else round_name(summary["reported"])
    title = f"{summary['label']}, seed {summary['seed']}, reported {reported}"
    return "\n".join([title, *(f"  {name:<9} {text}" for name, text in lines)])


def _cost(summary: dict[str, Any]) -> str:
    where = "" if summary["device"] == "cpu" else f" on {summary['device']}"
    time = f"{number(summary['seconds'])} s{where}, {summary['rounds']} rounds"
    if summary["up"] is None:
        return time
    up, down = number(summary["up"] / 1024), number(summary["down"] / 1024)
    sent, per = summary.get("rounds_sent"), "and round"
    if sent is not None and sent < summary["rounds"]:
        per = f"in {'the one round' if sent == 1 else f'each of {sent:.0f} rounds'} that sent anything"
    return f"{time}; {up} KiB up and {down} KiB down per client {per}"
