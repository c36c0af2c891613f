"""Predictions of several models for the same rows, in the columns of the caller's own classes.

A model is a `Published` one (ONNX, run in a child process with limits) or any fitted one with predict_proba
or predict, which runs in this process: pass only those that you trust. Columns that a model does not read are
dropped; columns that a published model reads and the rows lack are filled with its defaults.

Knows models, columns and classes. Does not know what is made of the predictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from motet.published import ModelRefused, Published, predict
from motet.published.text_columns import decoded

Array = np.ndarray[Any, Any]
_BITS = 13  # of a probability, that a meta-model sees: steps of 0.00012
FINER = (
    2.0**-7
)  # the step of a stack's own probabilities, in those steps: equal votes for two classes stay equal


def named(models: Any) -> dict[str, Any]:
    """Models by name: a mapping as it is, a sequence by clients' names or by number."""
    if isinstance(models, Mapping):
        return {str(k): v for k, v in models.items()}
    found: dict[str, Any] = {}
    for k, m in enumerate(models):
        name = m.client if isinstance(m, Published) else f"model {k}"
        if name in found:
            raise ValueError(f"two models have the name {name!r}.\nhint: pass a dict of names and models")
        found[name] = m
    return found


def predictions(
    models: Mapping[str, Any], x: Array, names: Sequence[str] | None, classes: Sequence[Any]
) -> tuple[dict[str, Array], dict[str, str]]:
    """Each model's predictions by its name, and the reasons why some models were refused.

    Predictions are probabilities (rows, classes), or numbers (rows, 1) if there are no `classes`. `names` are
    those of x's columns.
    """
    columns = names or [f"x{k}" for k in range(x.shape[1])]
    published = [_renamed(m, name) for name, m in models.items() if isinstance(m, Published)]
    outputs, refused = predict(published, np.asarray(x, np.float32), columns) if published else ({}, {})
    found: dict[str, Array] = {}
    for name in [k for k in models if k not in refused]:
        model = models[name]
        known = model.manifest.classes if name in outputs else getattr(model, "classes_", ())
        output = outputs[name] if name in outputs else _output(name, model, x, names, len(classes) > 0)
        try:
            found[name] = _in_classes(name, output, known, classes)
        except ModelRefused as e:
            refused[name] = str(e)
    return found, refused


def prediction(model: Any, x: Array, names: Sequence[str] | None, classes: Sequence[Any]) -> Array:
    """The predictions of one model, of the caller's own."""
    found, refused = predictions({"own": model}, x, names, classes)
    if refused:
        raise ValueError(f"a client's own model was refused: {refused['own']}")
    return found["own"]


def features(predicted: Iterable[Array], step: float = 0.0) -> Array:
    """The meta-model's columns (rows, models x columns): of two classes only the second one's probability; rounded to
    multiples of `step`, if it is not 0."""
    z = np.concatenate([p[:, 1:] if p.shape[1] == 2 else p for p in predicted], axis=1)
    return rounded(z, step)


def rounded(values: Array, step: float) -> Array:
    """Multiples of `step`; the values themselves if it is 0."""
    return np.asarray(np.round(values / step) * step) if step else values


def step_of(y: Array, *, classes: bool) -> float:
    """What a meta-model's columns are rounded to. Equal votes of trees are added in an order that depends on threads
    and differ in the 7th decimal; a meta-model would split there. The step is a power of two: dividing by it is exact,
    and votes k / T of T trees never lie half-way between two steps. Of numbers it goes with their spread.

    >>> step_of(np.array([0, 1]), classes=True) == 2**-13, step_of(np.array([0.0, 6.0]), classes=False) == 2**-12
    (True, True)
    """
    spread = 1.0 if classes else float(np.std(y))
    return float(2.0 ** (-_BITS + np.floor(np.log2(spread)))) if spread > 0 else 0.0


def _renamed(model: Published, name: str) -> Published:
    return replace(model, manifest=replace(model.manifest, client=name))


def _output(name: str, model: Any, x: Array, names: Sequence[str] | None, classes: bool) -> Array:
    """A fitted model's own output; it gets the columns that it was fitted on, if it knows their names."""
    wanted: Any = getattr(model, "feature_names_in_", None)
    rows: Any = x
    if names is not None and wanted is not None:
        try:
            rows = decoded(x, names, [str(n) for n in wanted])
        except KeyError as e:
            raise ValueError(
                f"model {name!r} needs the column {e}, which the rows lack.\n"
                "hint: have it published (motet.publish): its defaults fill missing columns"
            ) from e
    return np.asarray(model.predict_proba(rows) if classes else model.predict(rows))


def _in_classes(name: str, output: Array, known: Sequence[Any], classes: Sequence[Any]) -> Array:
    """A model's output in the columns of `classes`; a class that it does not know has probability 0."""
    output = output.reshape(len(output), -1) if len(output) else np.zeros((0, max(len(known), 1)))
    if not len(classes):
        if len(known):
            raise ModelRefused(name, "its model predicts classes, and numbers are wanted")
        return output
    if not len(known):
        raise ModelRefused(name, "its model predicts numbers, and classes are wanted")
    shared = shared_classes(known, classes)
    if not shared:
        raise ModelRefused(name, _no_class_of_ours(known, classes))
    wide = np.zeros((len(output), len(classes)), output.dtype)
    for k, place in shared:
        wide[:, place] = output[:, k]
    return wide


def shared_classes(known: Sequence[Any], classes: Sequence[Any]) -> list[tuple[int, int]]:
    """Which column of a model is which of our classes; 1, 1.0 and "1" are the same class.

    >>> shared_classes(["ill", "1"], [1.0, 0.0])
    [(1, 0)]
    """
    at = {_label(c): k for k, c in enumerate(classes)}
    return [(k, at[_label(c)]) for k, c in enumerate(known) if _label(c) in at]


def _label(name: Any) -> str:
    """The text of a class; whole numbers without a decimal point."""
    number = isinstance(name, float | np.floating) and float(name).is_integer()
    return str(int(name)) if number else str(name)


def _no_class_of_ours(known: Sequence[Any], classes: Sequence[Any]) -> str:
    theirs, ours = ([_label(c) for c in some[:5]] for some in (list(known), list(classes)))
    why = f"its model predicts the classes {theirs}, none of which is ours ({ours})"
    if _are_numbers(known) == _are_numbers(classes):
        return f"{why}; hint: name classes alike"
    return f"{why}; hint: one names classes and the other numbers them: publish(..., classes={ours})"


def _are_numbers(names: Sequence[Any]) -> bool:
    return all(_label(n).lstrip("-").isdigit() for n in names)
