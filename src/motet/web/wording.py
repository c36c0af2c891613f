"""How pages write numbers, times and sizes. Scores are written as in reports."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Any

from motet.report.terminal import ABSENT, PERCENT, gain, named, score
from motet.text import duration


def size(many: float | None) -> str:
    """
    >>> size(512), size(2_500_000)
    ('512 B', '2.4 MiB')
    """
    if many is None:
        return ABSENT
    value, units = float(many), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def when(at: float | None) -> str:
    """In this machine's time zone; a number that is no time is absent.

    >>> when(1e300), when(float("nan"))
    ('-', '-')
    """
    return _time(at, "%Y-%m-%d %H:%M") or ABSENT


def machine_time(at: float | None) -> str:
    return _time(at, "%Y-%m-%dT%H:%M:%S%z")


def _time(at: float | None, form: str) -> str:
    with suppress(OSError, OverflowError, ValueError):
        return time.strftime(form, time.localtime(at)) if at else ""
    return ""


def percent_metric(metric: str) -> bool:
    return metric in PERCENT


def scored(value: Any, metric: str) -> str:
    if not isinstance(value, int | float):
        return ABSENT
    text = score(value, metric)
    return f"{text} %" if metric in PERCENT and text != ABSENT else text


def gained(value: Any, metric: str) -> str:
    return gain(value, metric) if isinstance(value, int | float) and math.isfinite(value) else ABSENT


FILTERS = {
    "size": size, "when": when, "machine_time": machine_time, "scored": scored, "gained": gained,
    "metric_name": named, "duration": lambda s: duration(s) if isinstance(s, int | float) else ABSENT,
    "count": lambda n: f"{n:,}" if isinstance(n, int) else ABSENT,
}  # fmt: skip
