"""One client's stack: a private model, and a meta-model that combines its predictions with those of others.

Wolpert 1992; Cantu-Cervini 2024, sections 3 and 4: a client's rows are divided into Train and Meta rows. The
private model learns from Train, the meta-model from the predictions of all models for Meta. "held-out" keeps the
two apart, "pooled" (BaggingWrapper) uses all rows for both. The method Stacking, the scikit-learn estimators and
the figures of the paper all build their stacks here.

Knows rows, predictions and models that are like scikit-learn's. Does not know servers, rounds or ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from motet.stacking.contribution import OWN, How, importances
from motet.stacking.families import model_of, weights_for
from motet.stacking.predictions import FINER, Array, features, prediction, rounded, step_of

Variant = Literal["held-out", "pooled", "auto"]
ALONE = "alone"  # the variant without a meta-model and without the models of others
_LEAST = 8  # rows from which a meta-model is learned


@dataclass(frozen=True)
class StackRows:
    """Examples of one client, in the columns that it holds."""

    x: Array  # (rows, columns)
    y: Array  # (rows,) positions of classes, or numbers
    kinds: Mapping[str, Any]  # name of each column: number or flag
    classes: tuple[Any, ...] = ()  # () for numbers
    weight: Array | None = None  # (rows,) what each row counts; None: all alike

    @property
    def names(self) -> list[str]:
        return list(self.kinds)

    @property
    def task(self) -> Any:
        return "classes" if self.classes else "numbers"

    def at(self, places: Array) -> StackRows:
        weight = None if self.weight is None else self.weight[places]
        return StackRows(self.x[places], self.y[places], self.kinds, self.classes, weight)

    def score(self, predicted: Array) -> float:
        """The score of predictions (rows, classes) or (rows, 1) for these rows."""
        best = predicted.argmax(1) if self.classes else predicted[:, 0]
        return score(self.y, best, classes=bool(self.classes), weight=self.weight)


@dataclass(frozen=True)
class StackSettings:
    """How a stack is built."""

    private: Any = "forest"  # a family (families.py) or an estimator
    meta: Any = "forest"
    trees: int = 100  # of every forest, and rounds of boosting
    variant: str = "held-out"  # or pooled, or alone
    share: float = 0.25  # of the rows that are Meta rows, if held out
    importance: How = "mdi"
    cv: int = 3  # folds of a search
    every_class: bool = False  # pool the rows unless Meta rows show every class
    rounded: bool = True  # whether the meta-model sees predictions without their last digits

    def __str__(self) -> str:
        return f"{self.variant} {self.share:g}" if self.variant == "held-out" else self.variant


@dataclass(frozen=True)
class Stack:
    """A private model, the owners of the other models in their order, and the meta-model above all of them."""

    private: Any
    meta: Any | None  # None: the prediction is the mean of all models'
    owners: tuple[str, ...]
    importances: dict[str, float]  # of OWN and all owners, summing to 1
    classes: tuple[Any, ...] = ()
    variant: str = ""  # which one it is; "mean" without a meta-model
    step: float = (
        0.0  # what predictions are rounded to for the meta-model, and answers 2^7 finer; 0: not at all
    )

    def predict(self, x: Array, names: Sequence[str] | None, predictions: Mapping[str, Array]) -> Array:
        """(rows, classes) or (rows, 1), from rows and the other models' predictions for them."""
        own = prediction(self.private, x, names, self.classes)
        every = [own, *(predictions[k] for k in self.owners)]
        if self.meta is None:
            found = np.asarray(np.mean(every, axis=0))
        else:
            z = features(every, self.step)
            found = prediction(self.meta, z, columns(self.owners, z.shape[1]), self.classes)
        return rounded(found, FINER * self.step) if self.classes else found


def build(
    how: StackSettings,
    rows: StackRows,
    predictions: Mapping[str, Array],
    seed: int,
    *,
    places: tuple[Array, Array] | None = None,
    prepare: Callable[[Any], Any] = lambda model: model,
) -> Stack:
    """A stack of a private model that learns from `rows` and of other models, given their predictions for `rows`.

    `places` are Train and Meta rows that were chosen elsewhere. `prepare` turns the fitted private model into
    the form that will predict, say ONNX, before the meta-model learns from its predictions. With fewer than
    eight rows, or Meta rows with one class, there is no meta-model.
    """
    train, meta = places or divide(how, rows, seed)
    private = prepare(fitted(how.private, rows.at(train), seed, how.trees, how.cv))
    owners, at = tuple(predictions), rows.at(meta)
    step = step_of(rows.y, classes=bool(rows.classes)) if how.rounded else 0.0
    if how.variant == ALONE:
        shares = {OWN: 1.0, **dict.fromkeys(owners, 0.0)}
        return Stack(private, None, (), shares, rows.classes, ALONE, step)
    if len(rows.y) < _LEAST or len(np.unique(at.y)) < 2:
        equal = dict.fromkeys((OWN, *owners), 1 / (1 + len(owners)))
        return Stack(private, None, owners, equal, rows.classes, "mean", step)
    own = prediction(private, at.x, rows.names, rows.classes)
    z = features([own, *(p[meta] for p in predictions.values())], step)
    top, shares = meta_model(how, z, at.y, (OWN, *owners), rows.task, seed, at.weight)
    return Stack(private, top, owners, shares, rows.classes, how.variant, step)


def fitted(what: Any, rows: StackRows, seed: int, trees: int = 100, cv: int = 3) -> Any:
    """The model of these rows. Rows of one class get a forest, because linear models and boosting refuse them."""
    one_class = rows.classes and len(np.unique(rows.y)) < 2
    model = model_of("forest" if one_class else what, rows.task, seed, trees=trees, cv=cv)
    return model.fit(rows.x, rows.y, **weights_for(model, rows.weight))


def meta_model(
    how: StackSettings,
    z: Array,
    y: Array,
    models: Sequence[str],
    task: str,
    seed: int,
    weight: Array | None = None,
) -> tuple[Any, dict[str, float]]:
    """The meta-model of the features z (rows, models x columns), and how much it relies on each of the models."""
    top = model_of(how.meta, task, seed, trees=how.trees, cv=how.cv)
    top = top.fit(z, y, **weights_for(top, weight))
    group = [k for k in range(len(models)) for _ in range(z.shape[1] // len(models))]
    shares = importances(top, z, y, group, how.importance, seed=seed, weight=weight)
    return top, dict(zip(models, shares.tolist(), strict=True))


def columns(owners: Sequence[str], width: int) -> list[str]:
    """Names of the meta-model's columns: each model's name and the number of its output."""
    models = (OWN, *owners)
    return [f"{name} {k}" for name in models for k in range(width // len(models))]


def divide(how: StackSettings, rows: StackRows, seed: int) -> tuple[Array, Array]:
    """Places of Train and of Meta rows. All rows are both if pooled, or if either part would show one value alone."""
    everything = np.arange(len(rows.y))
    if how.variant != "held-out":
        return everything, everything
    train, meta = held_out(rows.y, how.share, seed, classes=bool(rows.classes))
    shown = [len(np.unique(rows.y[at])) for at in (train, meta)]
    lacking = how.every_class and rows.classes and shown[1] < len(np.unique(rows.y))
    return (everything, everything) if min(shown) < 2 or lacking else (train, meta)


def held_out(y: Array, share: float, seed: int, *, classes: bool) -> tuple[Array, Array]:
    """Places of Train rows, and of Meta rows, `share` of all; the shares of the classes are alike in both."""
    key = np.random.Generator(np.random.PCG64(seed)).random(len(y))
    order = np.lexsort((key, y if classes else np.zeros(len(y))))
    # `order` is sorted by class, in random order within a class; evenly spaced rows of it are held out.
    meta = np.zeros(len(y), bool)
    many = round(share * len(y))
    meta[order[((np.arange(many) + 0.5) * len(y) / max(many, 1)).astype(int)]] = True
    return np.flatnonzero(~meta), np.flatnonzero(meta)


def score(y: Array, predicted: Array, *, classes: bool, weight: Array | None = None) -> float:
    """Balanced accuracy of predicted classes, or R squared of predicted numbers; rows count by their weights."""
    if not classes:
        w, middle = 1.0 if weight is None else weight, np.average(y, weights=weight)
        return float(1 - (w * (y - predicted) ** 2).sum() / max((w * (y - middle) ** 2).sum(), 1e-12))
    right, w = y == predicted, np.ones(len(y)) if weight is None else weight
    return float(np.mean([np.average(right[y == k], weights=w[y == k]) for k in np.unique(y)]))
