"""What the fields of a stranger's JSON may be: each function gives the value back, or says what is wrong.

Knows JSON's values. Does not know what they are said of.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_LONG = 200  # letters of a name
_MANY = 100_000  # entries of a list
_T = TypeVar("_T")


def record(said: Any, what: str, kinds: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise ValueError(f"a {what} is an object with {', '.join(kinds)}")
    if said.keys() != kinds.keys():
        odd = sorted(said.keys() ^ kinds.keys())
        raise ValueError(f"a {what} has exactly the fields {', '.join(kinds)}; wrong or missing: {odd[:5]}")
    read = {}
    for k, kind in kinds.items():
        try:
            read[k] = kind(said[k])
        except ValueError as e:
            raise ValueError(f"{what}.{k}: {e}") from e
    return read


def text(v: Any) -> str:
    if not isinstance(v, str) or len(v) > 5 * _LONG or not v.isprintable():
        raise ValueError(f"not a line of text with at most {5 * _LONG} letters")
    return v


def name(v: Any) -> str:
    if not text(v) or len(v) > _LONG:
        raise ValueError(f"not a name of 1 to {_LONG} letters")
    return str(v)


def whole(v: Any) -> int:
    if not isinstance(v, int) or isinstance(v, bool) or not 0 <= v < 1 << 53:
        raise ValueError("not a whole number of at least 0")
    return v


def number(v: Any) -> float:
    # A whole number of a thousand digits is JSON, and no float.
    if not isinstance(v, int | float) or isinstance(v, bool) or not abs(v) < 1e38:
        raise ValueError("not a finite number of 32 bits")
    return float(v)


def default(v: Any) -> float:
    return math.nan if v is None else number(v)


def budget(v: Any) -> float:
    if number(v) < 0:
        raise ValueError("less than 0")
    return float(v)


def chance(v: Any) -> float:
    if not 0 <= number(v) <= 1:
        raise ValueError("not between 0 and 1")
    return float(v)


def digest(v: Any) -> str:
    if not isinstance(v, str) or not re.fullmatch("[0-9a-f]{64}", v):
        raise ValueError("not 64 hexadecimal digits")
    return v


def one_of(*words: str) -> Callable[[Any], str]:
    def check(v: Any) -> str:
        if v not in words:
            raise ValueError(f"neither {' nor '.join(words)}")
        return str(v)

    return check


def maybe(kind: Callable[[Any], float]) -> Callable[[Any], float | None]:
    return lambda v: None if v is None else kind(v)


def list_of(kind: Callable[[Any], _T]) -> Callable[[Any], tuple[_T, ...]]:
    def check(v: Any) -> tuple[_T, ...]:
        if not isinstance(v, list) or len(v) > _MANY:
            raise ValueError(f"not a list of at most {_MANY}")
        return tuple(kind(one) for one in v)

    return check


def doubled(names: tuple[str, ...]) -> str | None:
    seen: set[str] = set()
    return next((n for n in names if n in seen or seen.add(n)), None)  # type: ignore[func-returns-value]
