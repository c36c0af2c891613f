"""How a person's table is to be read, and how settings are written in hints.

Knows names and words. Does not know tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from motet.settings import TYPED

Missing = Literal["refuse", "mean", "median", "most_frequent", "indicator"]
MissingBy = Literal["auto", "federation", "client"]
DateForm = Literal["days", "parts", "leave_out"]
Decimal = Literal["auto", "comma", "point"]
Auto = Literal["auto"]
Names = Annotated[tuple[str, ...], TYPED]

SIGNS = {"auto": "auto", "comma": ",", "point": "."}


@dataclass(frozen=True)
class TableSettings:
    """Which column is what, and what becomes of cells."""

    target: str = ""
    client: str = ""  # the column that names each row's client
    part: str = ""  # the column that says train, val or test
    kind: str = "auto"  # classes | numbers | survival | auto
    missing: Missing = "refuse"
    missing_by: MissingBy = "auto"
    missing_values: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()  # columns that look like ids, and are none
    drop_rows: bool = False  # leave out rows without a target or a client
    dates: DateForm = "days"
    day_first: bool | Auto = "auto"
    decimal: Decimal = "auto"
    at_site: bool = (
        False  # one of many: other sites hold other classes, and settings are options of a command
    )
    event: str = ""  # survival: the column that says whether the event was seen
    weight: str = ""  # the column that says what each row counts
    categories: tuple[str, ...] = ()  # columns whose cells are names, whatever they look like

    @property
    def survival(self) -> bool:
        return self.kind == "survival" or bool(self.event)

    @property
    def sign(self) -> str:
        return SIGNS[self.decimal]

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns of names, whatever they look like."""
        target = self.target if self.kind == "classes" else ""
        return tuple(n for n in (self.client, target, *self.categories) if n)

    @property
    def fills(self) -> bool:
        return self.missing != "refuse"

    @property
    def filled_by(self) -> str:
        """Whose training rows fill cells."""
        return filled_by(self.missing, self.missing_by)

    def say(self, setting: str, value: str | Sequence[str]) -> str:
        """A setting as people type it.

        >>> TableSettings().say("drop", ["a", "b c"]), TableSettings(at_site=True).say("missing", "mean")
        ('\\'data.drop=["a","b c"]\\'', '--missing mean')
        """
        several = not isinstance(value, str)
        plain = all(re.fullmatch(r"[\w.:-]+", v) for v in ([value] if isinstance(value, str) else value))
        word = ",".join(value) if several else str(value)
        if self.at_site:
            word = word if plain else f'"{word}"'
            return f"--{setting.replace('_', '-')}" + ("" if value == "true" else f" {word}")
        if several and not plain:
            return f"'data.{setting}={json.dumps(list(value), ensure_ascii=False, separators=(',', ':'))}'"
        return f"data.{setting}={word}" if plain else f"'data.{setting}={word}'"


def filled_by(missing: str, by: str) -> str:
    """Sums of sites give a federation's means. Medians and most frequent values would need rows, or more that leaves;
    so these are each client's own unless somebody says otherwise."""
    if by != "auto":
        return by
    return "client" if missing in ("median", "most_frequent") else "federation"
