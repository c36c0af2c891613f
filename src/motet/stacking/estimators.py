"""StackedClassifier and StackedRegressor: one organisation's own model on top of models that it fetched.

Scikit-learn's way of stacking (Wolpert 1992) with models of others, after Cantu-Cervini 2024: a private model
learns from one's own rows, a meta-model learns from what it and the fetched models say about rows, and its
importances tell whom it relies on. "held-out" teaches the meta-model rows that the private model has not
seen, "pooled" (BaggingWrapper) the same ones; "auto" chooses between them, the held-out share, and not
stacking at all by cross-validation on the rows that fit() is given.

Fetched models are asked once about the rows that fit() is given, whatever is tried on them.
Knows rows, models and scikit-learn. Does not know servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.metrics import balanced_accuracy_score, r2_score
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from motet.published import Published
from motet.stacking.contribution import importances
from motet.stacking.fetching import order, within
from motet.stacking.predictions import Array, listen, named
from motet.stacking.search import model_of
from motet.stacking.stack import OWN, held_out

SHARES = (0.2, 0.35, 0.5)  # of the rows, for the meta-model, that "auto" tries
ALONE = "alone"  # the private model without any stack


@dataclass(frozen=True)
class Plan:
    """One way to stack."""

    variant: str
    share: float = 0.0

    def __str__(self) -> str:
        return f"{self.variant} {self.share:g}" if self.share else self.variant


@dataclass(frozen=True)
class Fitted:
    """A private model and the meta-model above it; without one, the private model speaks alone."""

    private: Any
    meta: Any = None
    taught: Array | None = None  # places of the rows that taught the meta-model


class _Stacked(BaseEstimator):  # type: ignore[misc]
    _task = "classes"

    def __init__(
        self,
        models: Any = (),
        *,
        private: Any = "forest",
        meta: Any = "forest",
        variant: str = "held-out",
        share: float = 0.25,
        names: Any = None,
        budget: int = 0,
        trust: Any = None,
        importance: Any = "mdi",
        cv: int = 3,
        random_state: int | None = None,
    ) -> None:
        self.models, self.private, self.meta = models, private, meta
        self.variant, self.share, self.names = variant, share, names
        self.budget, self.trust, self.importance = budget, trust, importance
        self.cv, self.random_state = cv, random_state

    def __sklearn_clone__(self) -> Any:
        """A copy to be fitted, say in cross-validation: fetched models stay fitted, they are never taught."""
        given = self.get_params(deep=False)
        return type(self)(**{k: v if k == "models" else clone(v, safe=False) for k, v in given.items()})

    # ---- learning ----

    def _learn(self, x: Array, y: Array) -> None:
        """`y` holds places of classes, or numbers."""
        self.fetched_ = self._within_budget()
        said, self.refused_ = listen(self.fetched_, x, self._names(), self._ours)
        self.fetched_ = {k: self.fetched_[k] for k in said}
        self.plan_ = self._plan(x, y, said)
        found = self._stack(x, y, said, self.plan_)
        self.private_, self.meta_ = found.private, found.meta
        self.importances_ = self._importances(found, x, y, said)

    def _plan(self, x: Array, y: Array, said: dict[str, Array]) -> Plan:
        if self.variant in ("held-out", "pooled"):
            return Plan(self.variant, self.share if self.variant == "held-out" else 0.0)
        if self.variant != "auto":
            raise ValueError(f"variant is {self.variant!r}; expected held-out, pooled or auto")
        plans = [Plan(ALONE), Plan("pooled"), *(Plan("held-out", s) for s in SHARES)]
        marks = {p: self._score(x, y, said, p) for p in plans}
        self.choices_ = {str(p): m for p, m in marks.items()}
        return max(plans, key=lambda p: marks[p])

    def _score(self, x: Array, y: Array, said: dict[str, Array], plan: Plan) -> float:
        """Mean over folds of balanced accuracy, or R squared."""
        split = StratifiedKFold if self._task == "classes" else KFold
        folds = split(self.cv, shuffle=True, random_state=self._seed)
        marks = []
        for train, test in folds.split(x, y):
            found = self._stack(x[train], y[train], {k: v[train] for k, v in said.items()}, plan)
            told = self._says(found, x[test], {k: v[test] for k, v in said.items()})
            classes = self._task == "classes"
            guess = told.argmax(1) if classes else told[:, 0]
            marks.append(balanced_accuracy_score(y[test], guess) if classes else r2_score(y[test], guess))
        return float(np.mean(marks))

    def _stack(self, x: Array, y: Array, said: dict[str, Array], plan: Plan) -> Fitted:
        everything = np.arange(len(y))
        train, meta = everything, everything
        if plan.share:
            train, meta = held_out(y, plan.share, self._seed, classes=self._task == "classes")
            if not len(train) or len(np.unique(y[meta])) < len(np.unique(y)) or len(np.unique(y[train])) < 2:
                train, meta = everything, everything
        private = model_of(self.private, self._task, self._seed, self.cv).fit(x[train], y[train])
        if plan.variant == ALONE:
            return Fitted(private)
        z = self._features(private, x[meta], {k: v[meta] for k, v in said.items()})
        return Fitted(private, model_of(self.meta, self._task, self._seed, self.cv).fit(z, y[meta]), meta)

    def _features(self, private: Any, x: Array, said: dict[str, Array]) -> Array:
        """(rows, models times columns): the private model's first."""
        own = listen({OWN: private}, x, None, self._places)[0][OWN]
        return np.concatenate([own, *said.values()], axis=1)

    def _importances(self, found: Fitted, x: Array, y: Array, said: dict[str, Array]) -> dict[str, float]:
        players = [OWN, *said]
        if found.meta is None or found.taught is None:
            return {OWN: 1.0, **dict.fromkeys(said, 0.0)}
        z = self._features(found.private, x[found.taught], {k: v[found.taught] for k, v in said.items()})
        group = [k for k in range(len(players)) for _ in range(z.shape[1] // len(players))]
        meta, rows = found.meta, y[found.taught]
        got = importances(
            meta,
            z,
            rows,
            group,
            self.importance,
            score=lambda a: meta.score(a, rows),
            seed=self._seed,
        )
        return dict(zip(players, got.tolist(), strict=True))

    # ---- answering ----

    def _says(self, found: Fitted, x: Array, said: dict[str, Array]) -> Array:
        """(rows, classes) or (rows, 1)."""
        model = found.private if found.meta is None else found.meta
        z = x if found.meta is None else self._features(found.private, x, said)
        if self._task == "numbers":
            return np.asarray(model.predict(z)).reshape(len(x), 1)
        wide = np.zeros((len(x), len(self._places)))
        wide[:, model.classes_] = model.predict_proba(z)
        return wide

    def _answers(self, X: Any) -> Array:
        check_is_fitted(self, "private_")
        x = validate_data(self, X, reset=False, dtype=float)
        said, refused = listen(self.fetched_, x, self._names(), self._ours)
        if refused:
            raise ValueError(f"fetched models do not run any more: {refused}\nhint: fit again without them")
        return self._says(Fitted(self.private_, self.meta_), x, said)

    # ---- what was given ----

    def _within_budget(self) -> dict[str, Any]:
        models = named(self.models)
        manifests = [m.manifest for m in models.values() if isinstance(m, Published)]
        if not self.budget or not manifests:
            return models
        mine = self._names() or sorted({n for m in manifests for n in m.names})
        chosen = within(self.budget, manifests, mine, self.trust)
        return {k: m for k, m in models.items() if not isinstance(m, Published) or m.client in chosen}

    def _names(self) -> list[str] | None:
        known = self.names if self.names is not None else getattr(self, "feature_names_in_", None)
        return None if known is None else list(known)

    @property
    def _seed(self) -> int:
        return 0 if self.random_state is None else int(self.random_state)

    @property
    def _ours(self) -> list[Any]:
        return list(getattr(self, "classes_", ()))

    @property
    def _places(self) -> list[int]:
        return list(range(len(self._ours)))


class StackedClassifier(ClassifierMixin, _Stacked):  # type: ignore[misc]
    """A classifier on top of fetched models.

    >>> from sklearn.datasets import load_wine
    >>> from sklearn.linear_model import LogisticRegression
    >>> x, y = load_wine(return_X_y=True)
    >>> others = {"clinic": LogisticRegression(max_iter=5000).fit(x[::2], y[::2])}
    >>> stack = StackedClassifier(others, random_state=1).fit(x[1::4], y[1::4])
    >>> sorted(stack.importances_), bool(stack.score(x[3::4], y[3::4]) > 0.8)
    (['clinic', 'private'], True)
    """

    def fit(self, X: Any, y: Any) -> StackedClassifier:
        x, y = validate_data(self, X, y, dtype=float)
        check_classification_targets(y)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"Classifier can't train when only one class is present: {self.classes_[0]!r}")
        self._learn(x, places)
        return self

    def predict_proba(self, X: Any) -> Array:
        return self._answers(X)

    def predict(self, X: Any) -> Array:
        places = self._answers(X).argmax(1)
        return np.asarray(self.classes_[places])


class StackedRegressor(RegressorMixin, _Stacked):  # type: ignore[misc]
    """A regressor on top of fetched models."""

    _task = "numbers"

    def fit(self, X: Any, y: Any) -> StackedRegressor:
        x, y = validate_data(self, X, y, dtype=float, y_numeric=True)
        self._learn(x, np.asarray(y, float))
        return self

    def predict(self, X: Any) -> Array:
        return np.asarray(self._answers(X)[:, 0])


def gains(stack: _Stacked, X: Any, y: Any) -> list[dict[str, Any]]:
    """How the score grows with the number of models fetched, by cross-validation on these rows.

    The most promising come first: by columns in common, size, and `stack.trust`, past importances. The first
    entry is the private model alone.
    """
    fitted = clone(stack).fit(X, y)
    x, y = validate_data(fitted, X, y, reset=False, dtype=float)
    places = np.unique(y, return_inverse=True)[1] if fitted._task == "classes" else np.asarray(y, float)
    said, _ = listen(fitted.fetched_, x, fitted._names(), fitted._ours)
    plan = fitted.plan_ if fitted.plan_.variant != ALONE else Plan("held-out", stack.share)
    line = _promising(fitted)
    alone = fitted._score(x, places, {}, Plan(ALONE))
    found: list[dict[str, Any]] = [{"models": 0, "bytes": 0, "score": alone, "gain": 0.0}]
    for k, name in enumerate(line, 1):
        model = fitted.fetched_[name]
        size = found[-1]["bytes"] + (len(model.model) if isinstance(model, Published) else 0)
        mark = fitted._score(x, places, {n: said[n] for n in line[:k]}, plan)
        found.append({"models": k, "bytes": size, "score": mark, "gain": mark - alone})
    return found


def _promising(fitted: _Stacked) -> list[str]:
    """Names of fetched models in the order in which one would fetch them."""
    manifests = {m.client: k for k, m in fitted.fetched_.items() if isinstance(m, Published)}
    listed = [m.manifest for m in fitted.fetched_.values() if isinstance(m, Published)]
    names = fitted._names() or sorted({n for m in listed for n in m.names})
    first = [manifests[m.client] for m in order(listed, names, fitted.trust)]
    return [*first, *(k for k in fitted.fetched_ if k not in first)]
