"""Numbers as people read them, and the comparison as plain text or records.

Accuracy in percent with one decimal, all else with three significant digits. Knows no store and no HTML.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 100  # columns of a terminal
ABSENT = "-"  # what does not apply or is not known


def score(value: float | None, metric: str) -> str:
    if value is None or math.isnan(value):
        return ABSENT
    return f"{100 * value:.1f}" if metric == "accuracy" else three_digits(value)


def gain(value: float | None, metric: str) -> str:
    text = score(value, metric)
    return text if text == ABSENT or text.startswith("-") else f"+{text}"


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


def short(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def unit(metric: str) -> str:
    return "accuracy %" if metric == "accuracy" else metric


def with_share(row: Any, rival: str, metric: str) -> str:
    """`+4.2 14/18`: the mean gain over a rival, and how many clients gain."""
    if math.isnan(row[f"gain_{rival}"]):
        return ABSENT
    return f"{gain(row[f'gain_{rival}'], metric)} {row[f'gainers_{rival}']}/{row[f'pairs_{rival}']}"


# ---- records ----


def as_records(comparison: pd.DataFrame) -> list[dict[str, Any]]:
    """The comparison for machines: one dict for each row, None where a number does not apply."""
    return [{k: plain(v) for k, v in row.items()} for row in comparison.to_dict("records")]


def plain(value: Any) -> Any:
    """A number that JSON knows, or None."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- text ----

Cell = Callable[[Any, str], str]

SCORES: dict[str, Cell] = {
    "personal ± sd": lambda r, m: _personal(r, m),
    "seeds sd": lambda r, m: score(r.get("seed_sd"), m),
    "worst 10 %": lambda r, m: score(r["worst"], m),
    "global": lambda r, m: score(r["global"], m),
    "over local": lambda r, m: with_share(r, "local", m),
    "over fedavg": lambda r, m: with_share(r, "fedavg", m),
    "best for": lambda r, m: number(r["best_for"]),
}
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


def as_text(comparison: pd.DataFrame) -> str:
    """The comparison for a terminal, at most 100 columns wide."""
    metric, rows = comparison.attrs["metric"], comparison.to_dict("records")
    columns = {k: v for k, v in SCORES.items() if k != "seeds sd" or "seed_sd" in comparison}
    scores = _table(f"test {unit(metric)}", rows, columns, metric)
    return printed([scores, _table("unseen, cost", rows, COSTS, metric), *footnotes(comparison)])


def printed(parts: Sequence[Any], width: int = WIDTH) -> str:
    """Tables and lines as rich prints them, without colour."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=False)
    for part in parts:
        console.print(part, markup=False, highlight=False)
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())


def _table(corner: str, rows: Sequence[Any], columns: dict[str, Cell], metric: str) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column(corner, overflow="fold", max_width=28)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=False, overflow="fold")
    for row in rows:
        name = f"{row['method']}, {row['role']}" if row["role"] else str(row["method"])
        table.add_row(Text(name), *(Text(cell(row, metric)) for cell in columns.values()))
    return table


def summary_text(summary: dict[str, Any]) -> str:
    """One run's summary for a terminal."""
    m = summary["metric"]
    lines = [("test", f"{unit(m)}, mean ± sd over {summary['clients']} clients")]
    for side in ("personal", "global"):
        if summary[side] is not None:
            mean, sd, worst = (score(summary[f"{side}{what}"], m) for what in ("", "_sd", "_worst"))
            lines.append((side, f"{mean} ± {sd}, worst 10 %: {worst}"))
    if summary["after_training"] is not None:
        mean, sd = score(summary["after_training"], m), score(summary["after_training_sd"], m)
        lines.append(("trained", f"{mean} ± {sd}, clients' models as they left the reported round"))
    if summary["arrival"] is not None:
        arrival, visit = score(summary["arrival"], m), score(summary["visit"], m)
        lines.append(("unseen", f"{arrival} on arrival, {visit} after a visit ({summary['unseen']} clients)"))
    if summary["server_test"] is not None:
        reached = score(summary["server_test"], m)
        lines.append(("server", f"{reached}, the global model on the server's own test set"))
    lines.append(("cost", _cost(summary)))
    lines += [("note", note) for note in summary["notes"]]
    if summary["trouble"]:
        lines.append(("trouble", summary["trouble"]))
    title = f"{summary['label']}, seed {summary['seed']}, reported round {summary['reported']}"
    return "\n".join([title, *(f"  {name:<9} {text}" for name, text in lines)])


def _cost(summary: dict[str, Any]) -> str:
    time = f"{number(summary['seconds'])} s, {summary['rounds']} rounds"
    if summary["up"] is None:
        return time
    up, down = number(summary["up"] / 1024), number(summary["down"] / 1024)
    return f"{time}; {up} KiB up and {down} KiB down per client and round"


def footnotes(comparison: pd.DataFrame) -> list[str]:
    """How to read the table, then what went wrong, in sentences."""
    points = "points" if comparison.attrs["metric"] == "accuracy" else comparison.attrs["metric"]
    lines = [
        "personal: each client's own model; sd: over clients; worst 10 %: mean of the worst tenth of them.",
        f"over ...: mean gain of a client in {points} (positive is better), and how many clients gain.",
        "best for: clients whose best model this is; ties are shared out. KiB: per client and round.",
    ]
    lines += comparison.attrs.get("warnings", [])
    lines += [f"{r['method']}: {r['trouble']}" for r in comparison.to_dict("records") if r["trouble"]]
    return lines
