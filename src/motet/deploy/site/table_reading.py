"""How a site's owner wants the table to be read.

Knows names of settings. Does not know tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from motet.data.table_settings import Auto, DateForm, Decimal, MissingBy


@dataclass(frozen=True)
class TableReading:
    """How a site's table is read, besides what every site must say; as the settings of a table (table_settings.py)."""

    missing_by: MissingBy = "auto"
    missing_values: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    drop_rows: bool = False
    part: str = ""
    dates: DateForm = "days"
    day_first: bool | Auto = "auto"
    decimal: Decimal = "auto"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> TableReading:
        """From JSON, which has lists for tuples."""
        words: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        return cls(**words)
