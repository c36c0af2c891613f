"""Who gets which rows. A split is a function (all_rows, *, options) in a file of this folder, found by its name.

Knows what splits share. Does not know features, parts or homes.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from inspect import isfunction, signature

from motet.data.federated import DataError
from motet.data.splits.assignment import Assignment, Rows
from motet.text import nearest

__all__ = ["Rows", "Assignment", "names", "source"]
Split = Callable[..., Assignment]


def names() -> list[str]:
    """All splits there are."""
    return sorted(_found())


def source(name: str) -> Split:
    """A split by its name; `auto` shows the options of dirichlet, which it falls back to."""
    found = _found()
    if name == "auto":
        return found["dirichlet"]
    if name not in found:
        raise DataError(f"there is no split {name!r}.\nhint: {nearest(name, ['auto', *sorted(found)])}")
    return found[name]


def _found() -> dict[str, Split]:
    modules = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    here = [f for m in modules for f in vars(m).values() if isfunction(f) and f.__module__ == m.__name__]
    return {f.__name__: f for f in here if next(iter(signature(f).parameters), "") == "all_rows"}
