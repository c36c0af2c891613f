"""StackedClassifier and StackedRegressor: one organisation's own model on top of models that it fetched.

Scikit-learn's way of stacking with models of others, after Cantu-Cervini 2024 (stack.py). "auto"
chooses between held-out, pooled, three shares of Meta rows, and the private model alone, by cross-validation on
the rows that fit() is given. Fetched models predict those rows once, whatever is tried on them.

Knows rows, models and scikit-learn. Does not know servers.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone, is_classifier
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from motet.errors import UsageError
from motet.published import Published
from motet.published.text_columns import categories_of, is_text, with_flags
from motet.stacking.contribution import OWN
from motet.stacking.fetching import order, within
from motet.stacking.predictions import Array, named, predictions
from motet.stacking.stack import ALONE, StackRows, StackSettings, build

SHARES = (0.2, 0.35, 0.5)  # of the rows that are Meta rows, which "auto" tries


class _Stacked(BaseEstimator):  # type: ignore[misc]
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
        """A copy to be fitted, say in cross-validation; fetched models stay fitted, they are never trained."""
        given = self.get_params(deep=False)
        return type(self)(**{k: v if k == "models" else clone(v, safe=False) for k, v in given.items()})

    # ---- learning ----

    def _learn(self, x: Array, y: Array) -> None:
        """`y` holds positions of classes, or numbers."""
        self.fetched_ = self._within_budget()
        found, self.refused_ = predictions(self.fetched_, x, self._names(), self._ours)
        for why in self.refused_.values():
            warnings.warn(f"left out of the stack: {why}", stacklevel=3)
        self.fetched_ = {k: self.fetched_[k] for k in found}
        rows = self._rows(x, y)
        self.plan_ = self._plan(rows, found)
        self.stack_ = build(self.plan_, rows, found, self._seed)
        self.private_, self.meta_ = self.stack_.private, self.stack_.meta
        self.importances_ = self.stack_.importances

    def _numbers(self, X: Any, *, learn: bool = False) -> Any:
        """Rows of numbers: columns of text become flags `column=category`, of the categories that `fit` saw."""
        if not hasattr(X, "columns"):
            return X
        if learn:
            self.categories_ = categories_of(X)
        known = getattr(self, "categories_", {})
        texts = [n for n in X.columns if is_text(X[n])]
        seen = {*getattr(self, "feature_names_in_", ())} if not learn else set()
        if strange := [n for n in texts if n in seen and n not in known]:
            raise UsageError(
                f"column {strange[0]!r} holds text, and fit saw numbers in it\n"
                f"hint: frame[{strange[0]!r}].astype(float)"
            )
        return with_flags(X, known) if texts or known else X

    def _rows(self, x: Array, y: Array) -> StackRows:
        kinds = dict.fromkeys(self._names() or [f"x{k}" for k in range(x.shape[1])], "number")
        return StackRows(x, y, kinds, tuple(range(len(self._ours))))

    def _plan(self, rows: StackRows, found: dict[str, Array]) -> StackSettings:
        if not 0 < self.share < 1:
            raise ValueError(f"share is {self.share!r}; expected a number between 0 and 1")
        if self.importance not in ("mdi", "permutation", "shapley"):
            raise ValueError(f"importance is {self.importance!r}; expected mdi, permutation or shapley")
        if self.variant in ("held-out", "pooled"):
            return self._settings(self.variant, self.share)
        if self.variant != "auto":
            raise ValueError(f"variant is {self.variant!r}; expected held-out, pooled or auto")
        tried = [(ALONE, 0.0), ("pooled", 0.0), *(("held-out", s) for s in SHARES)]
        plans = [self._settings(variant, share) for variant, share in tried]
        self.choices_ = {str(p): self._score(rows, found, p) for p in plans}
        return max(plans, key=lambda p: self.choices_[str(p)])

    def _settings(self, variant: str, share: float) -> StackSettings:
        how: Any = {"variant": variant, "share": share, "importance": self.importance, "cv": self.cv}
        return StackSettings(self.private, self.meta, every_class=True, **how)

    def _score(self, rows: StackRows, found: dict[str, Array], plan: StackSettings) -> float:
        """Mean over folds of balanced accuracy, or R squared."""
        split = StratifiedKFold if rows.classes else KFold
        folds = split(self.cv, shuffle=True, random_state=self._seed)
        scores = []
        for train, test in folds.split(rows.x, rows.y):
            stack = build(plan, rows.at(train), {k: p[train] for k, p in found.items()}, self._seed)
            p = stack.predict(rows.x[test], rows.names, {k: p[test] for k, p in found.items()})
            scores.append(rows.at(test).score(p))
        return float(np.mean(scores))

    # ---- predicting ----

    def _predict(self, X: Any) -> Array:
        """(rows, classes) or (rows, 1)."""
        check_is_fitted(self, "stack_")
        x = validate_data(self, self._numbers(X), reset=False, dtype=float)
        found, refused = predictions(self.fetched_, x, self._names(), self._ours)
        if refused:
            raise ValueError(f"fetched models do not run any more: {refused}\nhint: fit again without them")
        return self.stack_.predict(x, self._names(), found)

    # ---- what was given ----

    def _within_budget(self) -> dict[str, Any]:
        models = named(self.models)
        if OWN in models:
            raise ValueError(
                f"a fetched model is called {OWN!r}, as one's own is.\nhint: give it another name"
            )
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
        x, y = validate_data(self, self._numbers(X, learn=True), y, dtype=float)
        check_classification_targets(y)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"Classifier can't train when only one class is present: {self.classes_[0]!r}")
        self._learn(x, places)
        return self

    def predict_proba(self, X: Any) -> Array:
        return self._predict(X)

    def predict(self, X: Any) -> Array:
        places = self._predict(X).argmax(1)
        return np.asarray(self.classes_[places])


class StackedRegressor(RegressorMixin, _Stacked):  # type: ignore[misc]
    """A regressor on top of fetched models."""

    def fit(self, X: Any, y: Any) -> StackedRegressor:
        x, y = validate_data(self, self._numbers(X, learn=True), y, dtype=float, y_numeric=True)
        self._learn(x, np.asarray(y, float))
        return self

    def predict(self, X: Any) -> Array:
        return np.asarray(self._predict(X)[:, 0])


def gains(stack: _Stacked, X: Any, y: Any) -> list[dict[str, Any]]:
    """How the score grows with the number of models fetched, by cross-validation on these rows.

    The most promising come first: by columns in common, past importances (`stack.trust`), and size. The first
    entry is the private model alone.
    """
    fitted = clone(stack).fit(X, y)
    x, y = validate_data(fitted, fitted._numbers(X), y, reset=False, dtype=float)
    places = np.unique(y, return_inverse=True)[1] if is_classifier(fitted) else np.asarray(y, float)
    rows = fitted._rows(x, places)
    found, _ = predictions(fitted.fetched_, x, fitted._names(), fitted._ours)
    plan = fitted.plan_ if fitted.plan_.variant != ALONE else fitted._settings("held-out", stack.share)
    names = _by_promise(fitted)
    alone = fitted._score(rows, {}, fitted._settings(ALONE, 0.0))
    curve: list[dict[str, Any]] = [{"models": 0, "bytes": 0, "score": alone, "gain": 0.0}]
    for k, name in enumerate(names, 1):
        model = fitted.fetched_[name]
        size = curve[-1]["bytes"] + (len(model.model) if isinstance(model, Published) else 0)
        reached = fitted._score(rows, {n: found[n] for n in names[:k]}, plan)
        curve.append({"models": k, "bytes": size, "score": reached, "gain": reached - alone})
    return curve


def _by_promise(fitted: _Stacked) -> list[str]:
    """Names of fetched models in the order in which one would fetch them."""
    manifests = {m.client: k for k, m in fitted.fetched_.items() if isinstance(m, Published)}
    listed = [m.manifest for m in fitted.fetched_.values() if isinstance(m, Published)]
    names = fitted._names() or sorted({n for m in listed for n in m.names})
    first = [manifests[m.client] for m in order(listed, names, fitted.trust)]
    return [*first, *(k for k in fitted.fetched_ if k not in first)]
