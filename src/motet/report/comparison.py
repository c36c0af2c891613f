"""The runs of a comparison, and what can be made of them: tables and a report."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from motet.report import html, tables
from motet.report.read import ReportedRun, read

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison:
    """Several runs on the same data."""

    folders: Sequence[Path]
    tuned: Mapping[str, str] = field(default_factory=dict)  # what tuning chose, by the rows' labels

    @cached_property
    def runs(self) -> list[ReportedRun]:
        """What the stores hold, read once for all tables and the report."""
        return read(self.folders)

    @property
    def table(self) -> pd.DataFrame:
        """One row per method, best first."""
        return tables.comparison(self.runs)

    @property
    def by_client(self) -> pd.DataFrame:
        """Every client's personal test score under every method."""
        return tables.by_client(self.runs)

    def report(self, to: str | Path | None = None) -> Path:
        """Write the HTML report, one file, by default into the folder of the runs."""
        return html.write(self.runs, Path(to) if to else self.folders[0].parent / f"{self.name}.html")

    @property
    def name(self) -> str:
        """The data's name and a hash of the runs."""
        text = "\n".join(f.name for f in self.folders)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"{self.folders[0].name.split('-')[0]}-comparison-{digest[:8]}"
