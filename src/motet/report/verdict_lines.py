"""What a comparison found, in a few plain lines: the same in the page, in Python and in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from motet.report import tables
from motet.report.read import ReportedRun

if TYPE_CHECKING:
    import pandas as pd


def verdict_lines(runs: Sequence[ReportedRun]) -> list[str]:
    """The verdict, at most four lines."""
    if find_spec("motet.report.verdict"):
        return [str(line) for line in import_module("motet.report.verdict").verdict(runs)]
    from motet.report import finding

    return [finding.finding(tables.comparison(runs), tables.client_scores(runs))]


def remarks(runs: Sequence[ReportedRun], table: pd.DataFrame) -> list[str]:
    """What else there is to say."""
    warned: list[str] = table.attrs["warnings"]
    if find_spec("motet.report.verdict"):
        return warned
    from motet.report import finding

    return finding.remarks(runs, table, tables.client_scores(runs)) + warned
