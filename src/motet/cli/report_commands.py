"""The commands that make files of finished runs: `motet report` and `motet figures`; and the option `--to`.

Everything heavy is imported when a command needs it, so that `motet --help` answers at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.cli.command import Add, say

if TYPE_CHECKING:
    from motet.report.comparison import Comparison


def report_commands(add: Add) -> None:
    p = add(
        "report", do_report, "write the report of one or more runs, or their table as LaTeX, CSV or Markdown"
    )
    p.add_argument("runs", nargs="+", help="runs' folders")
    add_to(p, "default: report.html")

    p = add(
        "figures",
        do_figures,
        "write each figure of the report as a file, fit for a paper, and its numbers as CSV",
    )
    p.add_argument("runs", nargs="+", metavar="RUN", help="runs' folders")
    p.add_argument("--to", default="figures", metavar="FOLDER", help="default: figures")
    p.add_argument(
        "--format", default="pdf", metavar="pdf|svg|png", help="default: pdf, with its fonts inside"
    )


def add_to(p: argparse.ArgumentParser, default: str) -> None:
    """The option `--to`, which may be given several times."""
    p.add_argument(
        "--to",
        action="append",
        default=[],
        metavar="FILE",
        help=f"the table as .tex, .csv or .md, or the report as .html; several are allowed ({default})",
    )


def checked(names: Sequence[str]) -> list[Path]:
    """The files to write; one that we cannot write is refused before anything is run."""
    from motet.report.export_table import check

    paths = [Path(name) for name in names]
    for path in paths:
        check(path, page=True)
    return paths


def run_folders(names: Sequence[str]) -> list[Path]:
    """What `runs/digits-*` names, without the reports that lie beside the runs."""
    paths = [Path(name) for name in names]
    return [path for path in paths if not (path.is_file() and path.suffix == ".html")] or paths


def save_all(found: Comparison, paths: Sequence[Path]) -> None:
    """Write them, and print their paths."""
    for path in paths:
        print(found.save(path))


def do_report(args: Any) -> None:
    from motet.report.comparison import Comparison

    paths = checked(args.to or ["report.html"])
    save_all(Comparison(run_folders(args.runs)), paths)


def do_figures(args: Any) -> None:
    from motet.report import pictures
    from motet.report.comparison import Comparison

    pictures.check(args.format)
    found = Comparison(run_folders(args.runs))
    drawn = pictures.pictures(found.runs, found.table)
    for path in pictures.write_figures(drawn, Path(args.to), args.format, lambda text: say(f"note: {text}")):
        print(path)
