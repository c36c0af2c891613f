"""Tables as plain arrays: categories as columns of 0 and 1, and names of columns as bytes.

Knows one-hot encoding and names of columns. Does not know any data set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from motet.client import Column
from motet.data.federated import DataError, Pool

if TYPE_CHECKING:
    import pandas as pd

_IS = "="  # a flag is called column=word


def one_hot(words: pd.Series) -> pd.DataFrame:
    """A column of 0 and 1 for every word that occurs, in alphabetical order; a missing word is 0 in all."""
    import pandas as pd

    known = sorted(words.dropna().unique())
    codes = pd.Categorical(words, categories=known).codes
    flags = (codes[:, None] == np.arange(len(known))).astype(np.float32)
    return pd.DataFrame(flags, columns=[f"{words.name}{_IS}{word}" for word in known], index=words.index)


def as_bytes(names: Iterable[object]) -> np.ndarray:
    """Names as an array that can be memory-mapped; NumPy can save arrays of objects only as pickles."""
    return np.array([str(name).encode() for name in names])


def as_texts(names: np.ndarray) -> tuple[str, ...]:
    """What `as_bytes` was given.

    >>> as_texts(as_bytes(["Mexico", "Perú"]))
    ('Mexico', 'Perú')
    """
    return tuple(name.decode() for name in names.tolist())


def columns(names: Iterable[str], flags: Collection[str] = ()) -> tuple[Column, ...]:
    """Descriptions of columns: column=word is a flag of the group `column`; `flags` belong to no group.

    >>> [(c.kind, c.group) for c in columns(["age", "sex=Male", "member"], {"member"})]
    [('number', ''), ('flag', 'sex'), ('flag', '')]
    """
    return tuple(_column(name, name in flags) for name in names)


def _column(name: str, flag: bool) -> Column:
    group, is_, _ = name.partition(_IS)
    return Column(name, "flag", group) if is_ else Column(name, "flag" if flag else "number")


def classes_of(raw: Any) -> Pool:
    """One of scikit-learn's own tables of numbers with classes."""
    columns, classes = tuple(map(Column, map(str, raw.feature_names))), tuple(map(str, raw.target_names))
    return Pool(raw.data, raw.target.astype(np.int64), "classes", classes, columns)


def expect(path: Path, what: str, got: object, expected: object) -> None:
    """Refuse a file in which a number, say of rows, is not the expected one."""
    if got != expected:
        raise DataError(
            f"{path} is not the file it should be: {what}: {got}; expected {expected}.\nhint: get it again"
        )
