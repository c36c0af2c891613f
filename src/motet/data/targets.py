"""Targets: classes, numbers, or survival: how long a row was watched, and whether its event was seen.

Knows the values of one target. Does not know features, files or clients.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from motet.client.losses import Kind
from motet.data.federated import DataError
from motet.text import one_spelling, truth

_SHOWN = 12  # names of classes or clients that are listed
FEW = 20  # at most this many different whole numbers are taken for classes
KINDS = ("auto", "classes", "numbers", "survival")


def kind_of(values: np.ndarray) -> Kind:
    """Text, truth values and few different whole numbers are classes; anything else is a number.

    >>> kind_of(np.array([0, 1, 1])), kind_of(np.array([0.5, 1.0]))
    ('classes', 'numbers')
    """
    if values.dtype.kind in "bOUS":
        return "classes"
    whole = values.dtype.kind in "iu" or bool((values == np.round(values)).all())
    return "classes" if whole and len(np.unique(values)) <= FEW else "numbers"


def encode(values: np.ndarray, kind: str) -> tuple[np.ndarray, Kind, tuple[str, ...]]:
    """Targets as int64 classes or float numbers, their kind, and the classes' names in order. Yes and no that are
    written in several ways are two classes.

    >>> encode(np.array(["ja", "no", "1", "nein"]), "auto")
    (array([1, 0, 1, 0]), 'classes', ('no', 'yes'))
    """
    found = kind_of(values) if kind == "auto" else kind
    if found == "classes":
        values = values.astype(str) if values.dtype.kind in "OS" else values
        unique, y = np.unique(values, return_inverse=True)
        names = list(map(name_of, unique.tolist()))
        if spelled := one_spelling(names):
            known, place = np.unique([spelled[n] for n in names], return_inverse=True)
            names, y = known.tolist(), place[y]
        return y.reshape(-1).astype(np.int64), "classes", tuple(map(str, names))
    if found != "numbers":
        raise DataError(f"kind is {kind!r}; expected 'auto', 'classes' or 'numbers' for a single target")
    if values.dtype.kind in "OUS":
        raise DataError("kind is 'numbers', and the target holds text.\nhint: say kind = \"classes\"")
    return values.astype(np.float64), "numbers", ()


def name_of(value: object) -> str:
    """The name of a class or a client; whole numbers have no decimal point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def by_value(name: str) -> tuple[int, float, str]:
    """Orders names of classes: whole numbers in their own order, other names as text."""
    return (0, float(name), "") if name.lstrip("-").isdecimal() else (1, 0.0, name)


def foreign_classes(seen: Mapping[str, Collection[str]], who: str) -> str:
    """What is wrong where some have classes none of which anybody else has: they name the same things otherwise, and
    would train for themselves. `who` is what they are, sites or clients.

    >>> foreign_classes({"a": ["0", "1"], "b": ["0", "1"], "c": ["ill", "well"]}, "site")
    'no class of c is a class of any other site: site c has ill, well; the other sites have 0, 1'
    """
    many = Counter(c for classes in seen.values() for c in set(classes))
    alone = [s for s, classes in seen.items() if classes and all(many[c] == 1 for c in classes)]
    if not alone or sum(map(bool, seen.values())) == 1:
        return ""
    said = "; ".join(f"{who} {s} has {_some(seen[s])}" for s in alone[:_SHOWN])
    rest = {c for s in seen if s not in alone for c in seen[s]}
    said += f"; the other {who}s have {_some(rest)}" if rest else ""
    return f"no class of {_some(alone, str)} is a class of any other {who}: {said}"


def _some(names: Collection[str], order: Callable[[str], Any] = by_value) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(sorted(names, key=order)[:_SHOWN]) + more


def classes_of_one(rows: np.ndarray, classes: Sequence[str], clients: Sequence[str]) -> list[str]:
    """What is wrong with classes, given the rows of each client and class (clients, classes): those of one client
    alone are another spelling, or cannot be learned from anybody. Of two clients, one may lack classes of the other.
    """
    seen = {
        c: [classes[j] for j in np.flatnonzero(some).tolist()] for c, some in zip(clients, rows, strict=True)
    }
    seen = {c: names for c, names in seen.items() if names}
    drawn = "clients that a split draws may have classes of their own: data.split=dirichlet"
    counts = all(map(is_whole, classes)) and len(classes) > 2
    alike = "name classes alike in all rows of the table" + "; or data.kind=numbers, if they count" * counts
    if foreign := foreign_classes(seen, "client"):
        return [f"{foreign}.\nhint: {alike}; {drawn}"]
    alone = np.flatnonzero((rows > 0).sum(0) == 1)
    whose = {j: clients[int(np.argmax(rows[:, j] > 0))] for j in alone.tolist()}
    if len(seen) < 2 or not whose or (len(seen) == 2 and len(set(whose.values())) == 1):
        return []
    hint = (
        f"{alike}; or put it together with another class, or leave its rows or its client out: data.without="
    )
    found = [
        f"the class {classes[j]!r} is one client's alone: {c}, in {rows[:, j].sum()} rows.\nhint: {hint}{c}; {drawn}"
        for j, c in whose.items()
    ]
    return found[:_SHOWN] + [f"and {len(found) - _SHOWN} more such classes"] * (len(found) > _SHOWN)


def is_whole(text: str) -> bool:
    """Whether a text is a whole number and nothing else: codes such as 01 and 3E2, and longer ones, are names.

    >>> [is_whole(t) for t in ("12", "-1", "3.0", "01", "3E2", "1.10", "9007199254740993")]
    [True, True, True, False, False, False, False]
    """
    return bool(re.fullmatch(r"-?(0|[1-9]\d{0,14})(\.0)?", text))


def seen_events(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which rows had their event, and which rows say neither yes nor no, in words of some language or as 1 and 0.

    >>> [v.tolist() for v in seen_events(np.array(["Yes", "n", "perhaps"], object))]
    [[True, False, False], [False, False, True]]
    """
    known = {v: truth(name_of(v)) for v in set(values.tolist())}
    said = [known[v] for v in values.tolist()]
    return np.array([v == 1 for v in said]), np.array([v is None for v in said])


def survival_target(time: np.ndarray, event: np.ndarray) -> np.ndarray:
    """Times and events as one number a row: the time if the event was seen, minus the time if the row is censored.
    A time of 0 has no sign; it becomes half of the smallest positive time, which is still before all others.

    >>> survival_target(np.array([0.0, 5.0, 4.0]), np.array([True, True, False])).tolist()
    [2.0, 5.0, -4.0]
    """
    time = np.asarray(time, np.float64)
    positive = time[time > 0]
    time = np.where(time == 0, positive.min() / 2 if len(positive) else 1.0, time)
    return np.where(np.asarray(event, bool), time, -time)
