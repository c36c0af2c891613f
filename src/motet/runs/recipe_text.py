"""Settings as text: TOML files and `section.name=value` words become plain tables, and tables are merged.

Whatever a file holds, there are settings or an error in words: a file may be a stranger's.
Knows TOML. Does not know which settings there are.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from motet.errors import MotetError

Settings = dict[str, Any]
LARGE = 1 << 63  # whole numbers stay below it: a checkpoint, a hash or torch could not hold larger ones
_NAMED = ("data", "net", "method", "engine")  # sections whose text is their name
_DEEP = 20  # tables and lists within each other; recipes have four


class RecipeError(MotetError, ValueError):
    """What is wrong with a recipe, all of it at once."""


def parse_file(path: Path) -> Settings:
    if not path.exists():
        raise RecipeError(
            f"there is no recipe {path}\nhint: `motet recipe > {path}` writes one to start from"
        )
    try:
        return parse(path.read_text())
    except OSError as e:
        raise RecipeError(f"{path} cannot be read: {e.strerror}") from e
    except ValueError as e:  # also for bytes that are no text
        raise RecipeError(f"{path} is not valid TOML: {e}") from None


def parse(text: str) -> Settings:
    """TOML as a table; a ValueError says what is wrong with it."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ValueError(f"tables or lists are nested more than {_DEEP} deep") from None
    except ValueError:  # Python reads no number of thousands of digits
        raise ValueError("a whole number has thousands of digits") from None
    if wrong := excess(found):
        raise ValueError(wrong)
    return found


def excess(settings: Settings) -> str:
    """What in these settings is too deep or too large to go on with; "" if nothing."""
    parts: list[tuple[Any, int]] = [(settings, 0)]
    while parts:
        value, depth = parts.pop()
        if depth > _DEEP:
            return f"tables or lists are nested more than {_DEEP} deep"
        if isinstance(value, int) and abs(value) >= LARGE:
            return "a whole number has more than 64 bits"
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        parts += [(v, depth + 1) for v in inner]
    return ""


def parse_word(word: str) -> Settings:
    """`method.lr=0.05` as {"method": {"lr": 0.05}}; what is no TOML value is text."""
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise RecipeError(f"cannot read {word!r}; expected section.name=value, say method.lr=0.05")
    number = re.sub(r"^([+-]?)\.(?=\d)", r"\g<1>0.", text)  # people write .05, TOML does not
    try:
        value = parse(f"v = {number}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    except ValueError as e:
        raise RecipeError(f"cannot read {word[:40]!r}…: {e}") from None
    if value != value:
        value = text  # nan is a number in TOML; here it is the name of an attack
    tables = key.strip().split(".")
    if len(tables) > _DEEP:
        raise RecipeError(f"cannot read {word[:40]!r}…: tables are nested more than {_DEEP} deep")
    for part in reversed(tables):
        value = {part: value}
    return dict(value)


def check_given_once(words: Iterable[str]) -> None:
    """Refuse a setting that a command line gives twice with different values: one of them would count for nothing."""
    wrong, given = [], dict[str, str]()
    for word in words:
        key = word.partition("=")[0].strip()
        name = f"{key}.name" if key in _NAMED else key
        before = given.setdefault(name, word)
        values = [parse_word(f"v={w.partition('=')[2]}") for w in (before, word)]
        if values[0] != values[1]:
            wrong.append(f"{name} is given twice: {before} and {word}\nhint: leave one of them out")
    if wrong:
        raise RecipeError("\n".join(wrong))


def merge(into: Settings, extra: Mapping[str, Any]) -> None:
    """Sections are merged; a section given as text is its name (`method = "ditto"`)."""
    named = {k for k in _NAMED if isinstance(extra.get(k), str)}
    _merge_tables(into, {k: {"name": v} if k in named else v for k, v in extra.items()})


def _merge_tables(into: Settings, extra: Mapping[str, Any]) -> None:
    """Nested tables are merged too, so that method.agent.tau=0.1 leaves the agent's other settings as they are."""
    for key, value in extra.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge_tables(into[key], value)
        else:
            into[key] = deepcopy(value) if isinstance(value, dict | list) else value
