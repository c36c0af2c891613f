"""Yes and no in two forms: one flag `smoker`, or a flag for each category, `smoker=no` and `smoker=yes`.

A federation reads a column of yes and no as one flag; a model whose owner declared it as categories reads two. Each
form says the other, so that a model reads either. A column with a third category has the second form alone.
Knows names, features and graphs. Does not know whose they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from motet.published.graph import gathered
from motet.published.manifest import Feature, Published
from motet.text import truths

EMPTY = "(empty)"  # the category of empty cells, where a model answers them otherwise than unknown categories


@dataclass(frozen=True)
class FlagLink:
    """A column that says what a feature is to be."""

    column: str
    turned: bool  # 1 where the feature is 0


def yes_no(names: Iterable[str]) -> dict[str, dict[float, str]]:
    """Columns of which there are flags for yes and no, and nothing else: the name of each flag by its truth.

    >>> yes_no(["age", "smoker=no", "smoker=yes", "sex=f", "sex=m"])
    {'smoker': {0.0: 'smoker=no', 1.0: 'smoker=yes'}}
    """
    by_source: dict[str, list[str]] = {}
    for name in names:
        source, sign, category = name.partition("=")
        if sign and category != EMPTY:
            by_source.setdefault(source, []).append(category)
    found = {source: (some, truths(some)) for source, some in by_source.items()}
    return {
        source: {truth: f"{source}={category}" for truth, category in zip(values, some, strict=True)}
        for source, (some, values) in found.items()
        if values is not None and len(set(values)) == len(values)
    }


def links(features: Iterable[Feature], names: Collection[str], flags: Collection[str]) -> dict[str, FlagLink]:
    """For features that are not among the columns `names`: the column that says them in the other form; `flags` are
    those columns that hold 0 and 1."""
    lacking = [f for f in features if f.kind == "flag" and f.name not in names]
    theirs, ours = yes_no(f.name for f in lacking), yes_no(names)
    found: dict[str, FlagLink] = {}
    for f in lacking:
        source = f.name.partition("=")[0]
        if source in theirs and source in flags:
            found[f.name] = FlagLink(source, theirs[source].get(0.0) == f.name)
        elif f.name in ours:
            known = ours[f.name]
            found[f.name] = FlagLink(known[1.0], False) if 1.0 in known else FlagLink(known[0.0], True)
    return found


def linked_columns(features: Sequence[Feature], x: Any, names: Sequence[str]) -> tuple[Any, list[str]]:
    """Rows with one more column for each feature that another column says in the other form; a missing value is
    neither yes nor no."""
    at = {name: k for k, name in enumerate(names)}
    sources = {f.name.partition("=")[0] for f in features if "=" in f.name and f.name not in at}
    flags = [n for n in sources if n in at and _holds_truths(x[:, at[n]])]
    found = links(features, at, flags)
    if not found:
        return x, list(names)
    more = [x[:, at[link.column]] == (0 if link.turned else 1) for link in found.values()]
    return np.concatenate([x, np.stack(more, axis=1).astype(x.dtype)], axis=1), [*names, *found]


def _holds_truths(column: Any) -> bool:
    return bool(np.isin(column[~np.isnan(column)], (0, 1)).all())


def reading(model: Published, names: Collection[str], flags: Collection[str]) -> Published:
    """The same model, which reads yes and no in the form that the columns `names` have; as it is, if it does."""
    said = model.manifest
    found = links(said.features, names, flags)
    if not found:
        return model
    read = {f.name: found.get(f.name, FlagLink(f.name, False)) for f in said.features}
    columns = list(dict.fromkeys(link.column for link in read.values()))
    places = [columns.index(link.column) for link in read.values()]
    raw = gathered(model.model, places, [link.turned for link in read.values()], len(columns))
    about: Any = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    features = tuple(_as_read(c, said.features, read) for c in columns)
    return Published(replace(said, features=features, **about), raw)


def _as_read(column: str, features: Sequence[Feature], read: dict[str, FlagLink]) -> Feature:
    """The feature that a column is, with the default of the feature that it says."""
    of = [f for f in features if read[f.name].column == column]
    first = next((f for f in of if not read[f.name].turned), of[0])
    default = 1 - first.default if read[first.name].turned else first.default
    return Feature(column, first.kind, default)
