"""What fetched models say about rows: one array each, in the columns of the asker's own classes.

A fetched model is a `Published` (ONNX, run in a child process with limits), or any fitted model with
predict_proba or predict, which runs in this process: only those that one trusts. Columns that a model lacks
are dropped; columns that a published model needs and the rows lack are its defaults.

Knows models, columns and classes. Does not know what is made of what they say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from motet.published import Published, predict

Array = np.ndarray[Any, Any]


def named(models: Any) -> dict[str, Any]:
    """Fetched models by name: a mapping as it is, a sequence by clients' names or by number."""
    if isinstance(models, Mapping):
        return {str(k): v for k, v in models.items()}
    found: dict[str, Any] = {}
    for k, m in enumerate(models):
        name = m.client if isinstance(m, Published) else f"model {k}"
        if name in found:
            raise ValueError(
                f"two fetched models are called {name!r}.\nhint: pass a dict of names and models"
            )
        found[name] = m
    return found


def known_as(name: str, model: Published) -> Published:
    """The model under the name that the asker gave it."""
    return replace(model, manifest=replace(model.manifest, client=name))


def listen(
    models: Mapping[str, Any], x: Array, names: Sequence[str] | None, classes: Sequence[Any]
) -> tuple[dict[str, Array], dict[str, str]]:
    """(rows, columns) by name, and why some models were refused. Of two classes only the second is told."""
    said: dict[str, Array] = {}
    refused: dict[str, str] = {}
    strangers = {k: known_as(k, m) for k, m in models.items() if isinstance(m, Published)}
    if strangers:
        columns = names or [f"x{k}" for k in range(x.shape[1])]
        told, wrong = predict(list(strangers.values()), np.asarray(x, np.float32), columns)
        for k, m in strangers.items():
            if k in wrong:
                refused[k] = wrong[k]
            else:
                _hear(said, refused, k, told[k], list(m.manifest.classes), classes)
    for k, m in models.items():
        if k not in strangers:
            rows = x if names is None else _columns(k, m, x, names)
            answers = m.predict_proba(rows) if len(classes) else m.predict(rows)
            _hear(said, refused, k, answers, list(getattr(m, "classes_", ())), classes)
    return {k: said[k] for k in models if k in said}, refused


def _hear(
    said: dict[str, Array],
    refused: dict[str, str],
    name: str,
    answers: Any,
    theirs: Sequence[Any],
    ours: Sequence[Any],
) -> None:
    """Write down answers under our classes; models that know none of them are of no use."""
    answers = np.asarray(answers, float).reshape(len(answers), -1)
    if not len(ours):
        if len(theirs):
            refused[name] = f"client {name}: its model tells classes apart, and numbers are wanted"
        else:
            said[name] = answers
        return
    at = {str(c): k for k, c in enumerate(ours)}
    known = [(k, at[str(c)]) for k, c in enumerate(theirs) if str(c) in at]
    if not known:
        refused[name] = (
            f"client {name}: its model knows the classes {list(theirs)[:5]}, none of which are ours"
        )
        return
    wide = np.zeros((len(answers), len(ours)))
    for k, place in known:
        wide[:, place] = answers[:, k]
    said[name] = wide[:, 1:] if len(ours) == 2 else wide


def _columns(name: str, model: Any, x: Array, names: Sequence[str]) -> Any:
    """The columns that a fitted model of scikit-learn was taught, if it knows their names."""
    wanted = getattr(model, "feature_names_in_", None)
    if wanted is None:
        return x
    if lacking := [n for n in wanted if n not in names]:
        raise ValueError(
            f"model {name!r} needs the columns {lacking[:5]}, which the rows lack.\n"
            "hint: have it published (motet.published.publish): its defaults stand for missing columns"
        )
    import pandas as pd

    return pd.DataFrame(x, columns=list(names))[list(wanted)]
