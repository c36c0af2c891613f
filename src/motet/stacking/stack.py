"""A client's stack as plain data: a private model, a meta-model, and whose models it asks.

Models are ONNX with a manifest (parts/published), one's own too, so that what a client keeps can be stored
and moved without pickle. Meta features are the models' probabilities (of two classes the second one alone)
or numbers, the private model's first. Knows rows, models and forests. Does not know servers or rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from motet.published import Feature, Published, defaults, predict, publish
from motet.stacking.contribution import How, importances
from motet.stacking.forests import forest

Array = np.ndarray[Any, Any]
Family = Literal["forest", "boosting", "linear"]
Variant = Literal["held-out", "pooled", "auto"]
OWN = "private"  # the name of one's own model among those that a stack asks
_LEAST = 8  # rows from which a meta-model is learned at all


@dataclass(frozen=True)
class StackRows:
    """Examples of one client, in the columns that it holds."""

    x: Array  # (rows, columns) float32
    y: Array  # (rows,) places of classes, or numbers
    kinds: Mapping[str, Any]  # name of each column: number or flag
    classes: tuple[str, ...] = ()  # () for numbers

    @property
    def names(self) -> list[str]:
        return list(self.kinds)

    @property
    def task(self) -> Any:
        return "classes" if self.classes else "numbers"

    def at(self, places: Array) -> StackRows:
        return StackRows(self.x[places], self.y[places], self.kinds, self.classes)


def model_of(family: str, task: str, seed: int, trees: int) -> Any:
    """A model to be fitted: a random forest, gradient boosting, or a linear model of standardised columns."""
    if family == "forest":
        return forest(task, seed, trees, plain=True)
    if family == "boosting":
        import sklearn.ensemble as ensembles

        name = "HistGradientBoostingClassifier" if task == "classes" else "HistGradientBoostingRegressor"
        return getattr(ensembles, name)(max_iter=trees, random_state=seed % 2**31)
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=500) if task == "classes" else Ridge())


def fitted(family: str, rows: StackRows, seed: int, trees: int) -> Any:
    """The model of these rows; of a single class, which no linear model or boosting learns, a forest."""
    if rows.classes and len(np.unique(rows.y)) < 2:
        family = "forest"
    return model_of(family, rows.task, seed, trees).fit(rows.x, rows.y)


def dp_linear(rows: StackRows, epsilon: float, seed: int) -> Any:
    """Logistic regression by DP-SGD. Numbers are taken to lie within three deviations: that must be known of
    them without looking, as of columns that are standardised for the whole federation."""
    from motet.guard.private_models.dp_network import DPLogistic

    if not rows.classes:
        raise ValueError("dp-linear tells classes apart, and these targets are numbers.\nhint: public=linear")
    bounds = [(0.0, 1.0) if kind == "flag" else (-3.0, 3.0) for kind in rows.kinds.values()]
    places = list(range(len(rows.classes)))
    return DPLogistic(epsilon, bounds=bounds, classes=places, random_state=seed).fit(rows.x, rows.y)


def published(
    model: Any, rows: StackRows, client: str, features: Sequence[Feature] = (), **more: Any
) -> Published:
    """The model as ONNX; without `features`, plain medians and modes stand for missing columns."""
    told = tuple(features) or defaults(rows.x, rows.kinds)
    return publish(model, told, client=client, task=rows.task, classes=rows.classes, **more)


def held_out(y: Array, share: float, seed: int, *, classes: bool) -> tuple[Array, Array]:
    """Places of the rows to teach private models, and of those to teach the meta-model, classes alike in both."""
    key = np.random.Generator(np.random.PCG64(seed)).random(len(y))
    order = np.lexsort((key, y if classes else np.zeros(len(y))))
    # StackRows stand sorted by class, in random order within; evenly spaced ones are held out.
    meta = np.zeros(len(y), bool)
    many = round(share * len(y))
    meta[order[((np.arange(many) + 0.5) * len(y) / max(many, 1)).astype(int)]] = True
    return np.flatnonzero(~meta), np.flatnonzero(meta)


def opinions(
    models: Sequence[Published], x: Array, names: Sequence[str]
) -> tuple[dict[str, Array], dict[str, str]]:
    """What models say about rows, (rows, columns) by client, and why some were refused."""
    said, refused = predict(models, x, names)
    return {c: narrow(p) for c, p in said.items()}, refused


def narrow(p: Array) -> Array:
    """Of two classes, the second one's probability says it all."""
    return p[:, 1:] if p.shape[1] == 2 else p


@dataclass(frozen=True)
class Stack:
    """What a client keeps: its private model, its meta-model, and the owners of the others, in their order."""

    private: Published
    meta: Published | None  # None: too few rows to learn from; all models count alike
    whom: tuple[str, ...]
    trust: dict[str, float]  # importances of all owners and OWN
    variant: str

    def says(self, said: Mapping[str, Array], x: Array, names: Sequence[str]) -> Array:
        """(rows, classes) or (rows, 1), from what the others' models say about the rows."""
        own, refused = predict([self.private], x, names)
        if refused:
            raise ValueError(f"one's own model was refused: {refused}")
        if self.meta is None:
            rest = [wide(said[c], self.private.manifest.outputs) for c in self.whom]
            return np.asarray(np.mean([own[OWN], *rest], axis=0))
        z = np.concatenate([narrow(own[OWN]), *(said[c] for c in self.whom)], axis=1)
        found, refused = predict([self.meta], z, self.meta.manifest.names)
        if refused:
            raise ValueError(f"one's own meta-model was refused: {refused}")
        return found["meta"]


def wide(p: Array, outputs: int) -> Array:
    return np.concatenate([1 - p, p], axis=1) if outputs == 2 and p.shape[1] == 1 else p


@dataclass(frozen=True)
class StackSettings:
    """How stacks are made."""

    private: str = "forest"
    meta: str = "forest"
    trees: int = 100
    variant: str = "held-out"
    share: float = 0.25  # of the rows, for the meta-model
    importance: How = "mdi"


def build(
    recipe: StackSettings,
    rows: StackRows,
    said: Mapping[str, Array],
    val: StackRows,
    val_said: Any,
    seed: int,
) -> Stack:
    """A stack of these rows; "auto" takes the variant that scores better on validation rows."""
    if recipe.variant != "auto":
        return stacked(recipe, recipe.variant, rows, said, seed)
    both = [stacked(recipe, v, rows, said, seed) for v in ("held-out", "pooled")]
    if not len(val.y):
        return both[0]
    return max(both, key=lambda s: score(s.says(val_said, val.x, val.names), val))


def stacked(
    recipe: StackSettings, variant: str, rows: StackRows, said: Mapping[str, Array], seed: int
) -> Stack:
    """held-out: the meta-model learns from rows that the private model has not seen; pooled: from all rows."""
    train, meta = held_out(rows.y, recipe.share, seed, classes=bool(rows.classes))
    everything = np.arange(len(rows.y))
    if variant == "pooled" or len(np.unique(rows.y[meta])) < 2 or len(train) < 1:
        train = meta = everything
    model = fitted(recipe.private, rows.at(train), seed, recipe.trees)
    private, whom = published(model, rows, OWN), tuple(sorted(said))
    players = (OWN, *whom)
    if len(rows.y) < _LEAST or len(np.unique(rows.y[meta])) < 2:
        return Stack(private, None, whom, dict.fromkeys(players, 1 / len(players)), variant)
    own = narrow(predict([private], rows.x[meta], rows.names)[0][OWN])
    z = np.concatenate([own, *(said[c][meta] for c in whom)], axis=1)
    top = model_of(recipe.meta, rows.task, seed, recipe.trees).fit(z, rows.y[meta])
    group = [k for k in range(len(players)) for _ in range(own.shape[1])]
    got = importances(
        top, z, rows.y[meta], group, recipe.importance, score=scorer(top, rows.y[meta]), seed=seed
    )
    names = [f"{c} {k}" for c in players for k in range(own.shape[1])]
    features = [Feature(n) for n in names]
    told = publish(top, features, client="meta", task=rows.task, classes=rows.classes)
    return Stack(private, told, whom, dict(zip(players, got.tolist(), strict=True)), variant)


def scorer(model: Any, y: Array) -> Any:
    return lambda z: float(model.score(z, y))


def score(says: Array, rows: StackRows) -> float:
    """Balanced accuracy, or minus the mean squared error."""
    if not rows.classes:
        return -float(((says[:, 0] - rows.y) ** 2).mean())
    right = says.argmax(1) == rows.y
    return float(np.mean([right[rows.y == k].mean() for k in np.unique(rows.y)]))
