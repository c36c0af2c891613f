"""The runs of a comparison, and what can be made of them: tables and a report."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from motet.report import html as page
from motet.report import tables

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison:
    """Several runs on one federation."""

    folders: Sequence[Path]

    @property
    def table(self) -> pd.DataFrame:
        """One row per method, best first."""
        return tables.comparison(tables.read(self.folders))

    @property
    def by_client(self) -> pd.DataFrame:
        """Every client's personal test score under every method."""
        return tables.by_client(tables.read(self.folders))

    def report(self, to: str | Path | None = None) -> Path:
        """Write the one-file HTML report, beside the runs by default."""
        return page.write(self.folders, Path(to) if to else self.folders[0].parent / f"{self.name}.html")

    @property
    def name(self) -> str:
        """The data's name and a hash of the runs."""
        text = "\n".join(f.name for f in self.folders)
        return (
            f"{self.folders[0].name.split('-')[0]}-comparison-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        )
