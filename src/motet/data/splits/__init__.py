"""Splits: which client gets which rows. A split is a function (all_rows, *, options) in a file of this folder.

Finds splits by their names. Does not know features, or training, validation and test parts.
"""

from __future__ import annotations

from collections.abc import Callable

from motet.data.federated import DataError
from motet.data.splits.assignment import Assignment, Rows
from motet.settings import functions_in
from motet.text import nearest

__all__ = ["Rows", "Assignment", "names", "source"]
Split = Callable[..., Assignment]


def names() -> list[str]:
    """The names of all splits."""
    return sorted(_found())


def source(name: str) -> Split:
    """A split by its name; `auto` has the options of dirichlet."""
    found = _found()
    if name == "auto":
        return found["dirichlet"]
    if name not in found:
        raise DataError(f"there is no split {name!r}.\nhint: {nearest(name, ['auto', *sorted(found)])}")
    return found[name]


def _found() -> dict[str, Split]:
    return functions_in(__name__, __path__, ["all_rows"])
