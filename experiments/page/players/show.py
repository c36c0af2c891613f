"""What each player adds over constant actions, and what the length of the step adds, with intervals."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import paired

STEP = ", step"  # the end of the names of rows whose server chooses a length


def show(done: list[Any], table: dict[str, Any], out: Path) -> list[str]:
    one_by_one = [one for one in done if not one.planned.row.endswith(STEP)]
    stepping = [one for one in done if one.planned.row.endswith(STEP)]
    return ["", *added(one_by_one, "constant"), *added(stepping, f"constant{STEP}"), *lengths(done)]


def added(done: list[Any], base: str) -> list[str]:
    """By how many points each row is above constant actions."""
    groups = paired.by_row(done)
    rows = [row for row in groups if row != base and base in groups]
    head = [f"over {base}, points, with 95 % intervals:"] if rows else []
    return head + [f"  {row:<16}  {paired.compared(groups[row], groups[base])}" for row in rows]


def lengths(done: list[Any]) -> list[str]:
    """By how many points each player is better where the server chooses the length of its step."""
    groups = paired.by_row(done)
    rows = [row for row in groups if f"{row}{STEP}" in groups]
    head = ["with the length of the step, over without:"] if rows else []
    return head + [f"  {row:<16}  {paired.compared(groups[f'{row}{STEP}'], groups[row])}" for row in rows]
