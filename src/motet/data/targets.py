"""Targets: classes, numbers, or survival: how long a row was watched, and whether its event was seen.

Knows the values of one target. Does not know features, files or clients.
"""

from __future__ import annotations

import re

import numpy as np

from motet.client.losses import Kind
from motet.data.federated import DataError
from motet.text import one_spelling, truth

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
            names, place = np.unique([spelled[n] for n in names], return_inverse=True)
            y = place[y]
        return y.reshape(-1).astype(np.int64), "classes", tuple(map(str, names))
    if found != "numbers":
        raise DataError(f"kind is {kind!r}; expected 'auto', 'classes' or 'numbers' for a single target")
    if values.dtype.kind in "OUS":
        raise DataError("kind is 'numbers', and the target holds text.\nhint: say kind = \"classes\"")
    return values.astype(np.float64), "numbers", ()


def name_of(value: object) -> str:
    """The name of a class or a client; whole numbers have no decimal point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


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
