"""Columns of text in the terms of published models: a flag `column=category` for each category.

    kinds = {"age": "number", "sex": "category", "job": ("clerk", "nurse")}

A category that few rows have says something about few people, and names of categories stand in the manifest: those of
fewer than `rare` rows are left out, and their rows are read as rows of no known category.
Knows data frames. Does not know models.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from motet.errors import UsageError
from motet.published.manifest import Feature, Kind
from motet.published.yes_no import EMPTY
from motet.text import respelled

Declared = Kind | Literal["category"] | Sequence[str]  # what a column holds; a sequence names its categories
MOST = 100  # categories of one column
MISSING = "\x00"  # stands for no category, where values are looked up by their text
UNKNOWN = "\x00 no category \x00"  # a category that nobody has
RARE = 5  # rows below which a category is left out


def text_of(value: Any) -> str:
    """The text of a category; whole numbers without a decimal point.

    >>> text_of(2.0), text_of("2.0"), text_of(True)
    ('2', '2.0', 'True')
    """
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value)


def is_text(column: Any) -> bool:
    return column.dtype.kind not in "biuf"


def declared_flags(table: Any, kinds: Mapping[str, Declared], rare: int = RARE) -> dict[str, Kind]:
    """Every feature with its kind: columns of categories become their flags, in the order of names."""
    found: dict[str, Kind] = {}
    for name, kind in kinds.items():
        if kind == "number":
            found[name] = "number"
        elif kind == "flag":
            found[name] = "flag"
        else:
            names = _categories(table, name, rare) if kind == "category" else [str(k) for k in kind]
            found |= {f"{name}={category}": "flag" for category in names}
    return found


def _categories(table: Any, name: str, rare: int) -> list[str]:
    if not hasattr(table, "columns") or name not in table.columns:
        raise UsageError(
            f"{name!r} is a column of categories, and the table is no data frame that has it\n"
            f"hint: pass a data frame, or kinds={{{name!r}: ('first', 'second', …)}} with the categories' names"
        )
    _check_no_dates(table, name)
    counts = table[name].dropna().map(text_of).value_counts()
    kept = sorted(str(k) for k, many in counts.items() if many >= rare)
    if not kept or len(kept) > MOST:
        raise UsageError(
            f"column {name!r} has {len(kept)} categories with at least {rare} rows; expected 1 to {MOST}\n"
            f"hint: leave it out, group its values, or name those to publish: kinds={{{name!r}: (…)}}"
        )
    if left := len(counts) - len(kept):
        warnings.warn(
            f"column {name!r}: {left} of {len(counts)} categories have fewer than {rare} rows and are left out of "
            "the published model (rare=1 keeps them)",
            stacklevel=4,
        )
    return kept


def _check_no_dates(frame: Any, name: str) -> None:
    if frame[name].dtype.kind in "mM":
        raise UsageError(f"column {name!r} holds dates\nhint: turn them into numbers, say days since a date")


# ---- rows ----


def encoded(frame: Any, names: Sequence[str]) -> np.ndarray[Any, Any]:
    """The features `names` of a data frame, columns of text as flags; of an array, the array."""
    if not hasattr(frame, "columns"):
        return np.asarray(frame)
    columns = [_column(frame, name, names) for name in names]
    return np.stack(columns, axis=1) if columns else np.zeros((len(frame), 0))


def _column(frame: Any, name: str, every: Sequence[str]) -> np.ndarray[Any, Any]:
    if name not in frame.columns:
        source = source_of(name, map(str, frame.columns))
        if source is None:
            hint = ", ".join(map(str, frame.columns))
            raise UsageError(
                f"the data frame has no column {name.partition('=')[0]!r}\nhint: its columns are {hint}"
            )
        return np.asarray(_texts(frame[source], source, every) == name[len(source) + 1 :], float)
    if is_text(frame[name]):
        _check_no_dates(frame, name)
        raise UsageError(
            f"column {name!r} holds text, and published models read numbers and flags\n"
            f"hint: feature_defaults(frame, kinds) with kinds = {{{name!r}: 'category'}} makes flags of it"
        )
    return np.asarray(frame[name].to_numpy(dtype=float, na_value=np.nan))


def _texts(column: Any, source: str, names: Sequence[str]) -> Any:
    """A column's cells as text; where the categories among `names` are yes and no, in their spelling; empty ones by
    their name, where that is a category of its own."""
    texts = column.astype(object).map(text_of, na_action="ignore")
    if f"{source}={EMPTY}" in names:
        texts = texts.where(column.notna(), EMPTY)
    categories = [
        n[len(source) + 1 :] for n in names if n.startswith(f"{source}=") and n != f"{source}={EMPTY}"
    ]
    other = respelled(map(str, texts.dropna().unique()), categories)
    return texts.replace(other) if other else texts


def in_32_bits(frame: Any) -> Any:
    """The same data frame, with numbers as published models read them."""
    numbers = [n for n in frame.columns if frame[n].dtype.kind == "f"]
    return frame.assign(**{n: frame[n].astype(np.float32).astype(np.float64) for n in numbers})


def source_of(flag: str, columns: Iterable[str]) -> str | None:
    """The column that a flag `column=category` was made of; the longest name that fits."""
    fitting = [c for c in columns if flag.startswith(f"{c}=")]
    return max(fitting, key=len, default=None)


def with_empty(features: Sequence[Feature], columns: Iterable[str]) -> tuple[Feature, ...]:
    """The features, and one more for each of these columns of text: that its cell is empty."""
    return (*features, *(Feature(f"{c}={EMPTY}", "flag", 0.0) for c in columns))


def with_flags(frame: Any, known: Mapping[str, Sequence[str]]) -> Any:
    """A data frame of numbers: columns of text become flags of their `known` categories."""
    flags = [f"{column}={category}" for column, some in known.items() for category in some]
    found = _numbers(frame, flags)
    return found.drop(columns=[n for n in known if n in found.columns])  # all missing, it looks like numbers


def as_models_read(frame: Any, features: Iterable[str]) -> tuple[np.ndarray[Any, Any], list[str]]:
    """The numbers of a data frame, and those of `features` that are flags of its columns; and all their names."""
    columns = [str(n) for n in frame.columns]
    flags = [n for n in dict.fromkeys(features) if n not in columns and source_of(n, columns) is not None]
    found = _numbers(frame, flags)
    _warn_of_strange_columns(frame, found, flags)
    return found.to_numpy(dtype=float, na_value=np.nan), [str(n) for n in found.columns]


def _numbers(frame: Any, flags: Sequence[str]) -> Any:
    import pandas as pd

    for name in frame.columns:
        _check_no_dates(frame, name)
    parts: dict[str, Any] = {str(n): frame[n] for n in frame.columns if not is_text(frame[n])}
    return pd.DataFrame(parts | {f: _column(frame, f, flags) for f in flags}, index=frame.index)


def _warn_of_strange_columns(frame: Any, found: Any, flags: Sequence[str]) -> None:
    """Say which columns hold no category that a model knows, in any row: they are written otherwise, perhaps."""
    sources = [source_of(f, map(str, frame.columns)) for f in flags]
    for column in sorted({c for c in sources if c is not None}):
        known = [f for f in flags if f.startswith(f"{column}=") and f != f"{column}={EMPTY}"]
        there = frame[column].dropna()
        if known and len(there) and not found[known].to_numpy().any():
            some = [text_of(v) for v in there.unique()[:5]]
            warnings.warn(
                f"column {column!r} holds none of the categories that the models know "
                f"({', '.join(f[len(column) + 1 :] for f in known[:5])}): it has {', '.join(some)}; its rows are "
                "read as of no known category",
                stacklevel=4,
            )


def categories_of(frame: Any) -> dict[str, list[str]]:
    """The categories of all columns of text."""
    texts = [n for n in frame.columns if is_text(frame[n])]
    return {str(n): sorted(set(frame[n].dropna().map(text_of))) for n in texts}


def decoded(
    x: np.ndarray[Any, Any],
    names: Sequence[str],
    wanted: Sequence[str],
    values: Mapping[str, Mapping[str, Any]] | None = None,
) -> Any:
    """A data frame with the columns `wanted` of rows whose columns are `names`: flags become text again, and rows
    without a flag are missing there, or of an unknown category where empty cells have a flag. `values`: what a column
    holds for the text of a category."""
    import pandas as pd

    at = {n: k for k, n in enumerate(names)}
    found: dict[str, Any] = {}
    for column in wanted:
        flags = [n for n in names if source_of(n, wanted) == column]
        if column in at:
            found[column] = x[:, at[column]]
        elif flags:
            known = (values or {}).get(column, {})
            texts = [n[len(column) + 1 :] for n in flags]
            known = {**known, EMPTY: known.get(MISSING, np.nan)} if EMPTY in texts else known
            none = UNKNOWN if EMPTY in texts else known.get(MISSING, np.nan)
            options = np.array([*(known.get(t, t) for t in texts), none], dtype=object)
            on = x[:, [at[n] for n in flags]] > 0.5
            found[column] = options[np.where(on.any(1), on.argmax(1), len(flags))]
        else:
            raise KeyError(column)
    return pd.DataFrame(found)
