"""Accuracy on validation examples, and what agents earn, over the rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from motet.report import figures
from motet.report.read import ReportedRun, read


def show(done: list[Any], table: dict[str, Any], out: Path) -> list[str]:
    runs = {one.planned.row: read([one.folder])[0] for one in done if not one.failure}
    path = out / "figure2.png"
    path.write_bytes(figures.png(lambda figure: draw(figure, runs), (9.8, 3.6)))
    return [f"figure: {path}", *(line for row, run in runs.items() for line in rises(row, run))]


def draw(figure: Any, runs: dict[str, ReportedRun]) -> None:
    figure.subplots_adjust(wspace=0.5)
    for place, (side, player) in enumerate((("global", "server"), ("after_training", "clients")), 1):
        left = figure.add_subplot(1, 2, place)
        right = left.twinx()
        for colour, (row, run) in zip(figures.PALETTE, runs.items(), strict=False):
            past = run.val[run.val["side"] == side].sort_values("round")
            earned = run.metrics[run.metrics["name"] == player].sort_values("round")
            left.plot(past["round"], 100 * past["score"], color=colour, label=f"{row}: accuracy")
            right.plot(earned["round"], earned["value"], color=colour, linestyle=":", label=f"{row}: reward")
        left.set(xlabel="round", ylabel=f"{side} accuracy, validation, %", title=f"{side} model, {player}")
        right.set_ylabel(f"reward, {player} (dotted)")
        right.grid(False)
        left.legend(loc="lower right", fontsize=7)


def rises(row: str, run: ReportedRun) -> list[str]:
    """Mean rewards of the first and of the last tenth of the rounds."""
    lines = []
    for player in ("server", "clients"):
        value = run.metrics[run.metrics["name"] == player].sort_values("round")["value"]
        tenth = max(1, len(value) // 10)
        lines.append(
            f"{row}, {player}: reward {value[:tenth].mean():.2f} at first, {value[-tenth:].mean():.2f} at last"
        )
    return lines
