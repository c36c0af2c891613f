"""The runs of a comparison, and what can be made of them: a verdict, tables, figures and a report."""

from __future__ import annotations

import hashlib
import html as escaping
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from motet.report import export_table, html, pictures, tables
from motet.report.read import ReportedRun, read
from motet.report.verdict import verdict

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Comparison:
    """Several runs on the same data.

    `table` has a row for each method, `frame` every test score in rows, `by_client` a row for each client;
    `verdict` says in plain lines what they mean. `report`, `figures` and `save` write files.
    """

    folders: Sequence[Path]
    tuned: Mapping[str, str] = field(default_factory=dict)  # which settings were searched, by a row's label

    @cached_property
    def runs(self) -> list[ReportedRun]:
        """What the stores hold, read once for all tables and the report."""
        return read(self.folders)

    @property
    def verdict(self) -> list[str]:
        """What the runs found, in at most five plain lines."""
        return verdict(self.runs, self.table)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per method, best validation score first."""
        return tables.comparison(self.runs)

    @property
    def chosen(self) -> list[ReportedRun]:
        """The runs of the federated method that validation rows chose, where it is better than training alone; else of
        the method with the best validation score. By split and seed. Methods whose runs are all finished go first; of
        another, the finished runs; and all its runs where none is finished."""
        rows = [row for row in self.table.to_dict("records") if row["role"] != "constant"]
        better = [row for row in rows if row["best"] and row["gain_local_low"] > 0]
        runs = sorted(self.runs, key=lambda run: (run.split, run.seed))
        groups = [[run for run in runs if run.label == row["method"]] for row in better + rows]
        finished = [[run for run in group if not run.trouble] for group in groups]
        whole = [some for some, group in zip(finished, groups, strict=True) if len(some) == len(group)]
        return next((some for some in whole + finished + groups if some), runs)

    @property
    def frame(self) -> pd.DataFrame:
        """split, seed, method, label, side, client, metric, value, n: every test score in a row of its own."""
        return tables.long(self.runs)

    @property
    def by_client(self) -> pd.DataFrame:
        """Every client's personal test score under every method."""
        return tables.by_client(self.runs)

    def report(self, to: str | Path | None = None) -> Path:
        """Write the HTML report, one file, by default into the folder of the runs."""
        path = Path(to) if to else self.folders[0].parent / f"{self.name}.html"
        if not to and path.is_symlink():
            path.unlink()  # the folder may be somebody else's: what a link there names is not written
        return html.write(self.runs, path, tuned=self.tuned, table=self.table)

    def figures(self, folder: str | Path, format: str = "pdf") -> list[Path]:
        """Write each figure of the report into a folder, as pdf, svg or png, and its numbers as CSV beside it."""
        pictures.check(format)
        found = pictures.pictures(self.runs, self.table)
        return pictures.write_figures(
            found, Path(folder), format, lambda text: warnings.warn(text, stacklevel=3)
        )

    def save(self, to: str | Path) -> Path:
        """Write the table as .tex, .csv or .md, or the report as .html."""
        path = Path(to)
        export_table.check(path, page=True)
        if path.suffix.lower() == export_table.PAGE:
            return self.report(path)
        return export_table.write_table(self.table, path)

    @property
    def name(self) -> str:
        """The data's name and a hash of the runs."""
        text = "\n".join(f.name for f in self.folders)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"{self.folders[0].name.split('-')[0]}-comparison-{digest[:8]}"

    def __repr__(self) -> str:
        """
        >>> Comparison([])
        Comparison of 0 runs
        """
        many = f"Comparison of {len(self.folders)} run{'s' * (len(self.folders) != 1)}"
        return "\n".join([many, *self.verdict]) if self.folders else many

    def _repr_html_(self) -> str:
        """The verdict and the table, for a notebook."""
        lines = "".join(f"<p>{escaping.escape(export_table.typeset(line))}</p>" for line in self.verdict)
        return f"<div>{lines}{export_table.as_html(self.table)}</div>"
