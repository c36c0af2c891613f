"""Explainable boosting machines with differential privacy (interpret-core), as trees that can be published.

Nori et al. 2021, "Accuracy, interpretability, and differential privacy via explainable boosting": a sum of
one learned step function for each column. A step function is a tree of its cuts, so that ONNX's tree
operator runs it. The budget covers both the cuts and the steps, as interpret-core accounts for it.

Differs from interpret-core's defaults: few large steps (20 of rate 0.5, 16 bins) instead of many small ones (300
of 0.01, 32 bins), which divide a budget badly among the 65 columns and 4,664 rows of a client of Census.

Two classes, or numbers whose target's bounds are public. Knows rows. Does not know clients.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from motet.errors import need
from motet.published.graph import assemble, two_classes
from motet.published.manifest import Privacy
from motet.published.trees import EnsembleTree, ensemble


@dataclass(eq=False, repr=False)
class _Boosting(BaseEstimator):
    """What both share; `bounds` are public pairs (lowest, highest) of each column."""

    target: tuple[float, float] = (0.0, 1.0)
    epsilon: float = 1.0
    delta: float = 1e-5
    bounds: Any = None
    max_bins: int = 16
    max_rounds: int = 20
    rate: float = 0.5
    random_state: int | None = None

    def _fit(self, kind: Any, x: np.ndarray, y: np.ndarray, **more: Any) -> Any:
        x = np.asarray(x, np.float64)
        bounds = (
            np.tile([0.0, 1.0], (x.shape[1], 1)) if self.bounds is None else np.asarray(self.bounds, float)
        )
        self.n_features_in_ = x.shape[1]
        self.model_ = kind(
            epsilon=self.epsilon,
            delta=self.delta,
            max_bins=self.max_bins,
            max_rounds=self.max_rounds,
            learning_rate=self.rate,
            privacy_bounds=bounds,
            feature_types=["continuous"] * x.shape[1],
            random_state=self.random_state,
            n_jobs=1,
            **more,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of a fixed seed, which the manifest also states
            self.model_.fit(x, y)
        return self

    @property
    def privacy(self) -> Privacy:
        repeats = "" if self.random_state is None else "; the noise is drawn from a seed"
        return Privacy(
            "DP-EBM",
            float(self.epsilon),
            float(self.delta),
            f"interpret-core's Gaussian accounting; rows, classes and bounds are taken as public{repeats}",
        )

    def _scores(self, to: str) -> Any:
        """The sum of all step functions, as one operator."""
        trees = [
            _steps(self.model_.bins_[f][0], np.asarray(s, np.float64), f)
            for (f,), s in zip(self.model_.term_features_, self.model_.term_scores_, strict=True)
        ]
        return ensemble(trees, to, base=np.ravel(self.model_.intercept_))


@dataclass(eq=False, repr=False)
class DPBoostingClassifier(ClassifierMixin, _Boosting):
    """Two classes."""

    target: tuple[float, float] = field(default=(0.0, 1.0), init=False)  # classes have no bounds

    def fit(self, x: np.ndarray, y: np.ndarray) -> DPBoostingClassifier:
        need("private boosting", "privacy", "interpret")
        from interpret.privacy import DPExplainableBoostingClassifier

        if (many := len(np.unique(y))) != 2:
            raise ValueError(
                f"private boosting knows two classes, and there are {many}\nhint: DPNetwork knows more"
            )
        self._fit(DPExplainableBoostingClassifier, x, y)
        self.classes_ = self.model_.classes_
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.model_.predict_proba(np.asarray(x, np.float64)))

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.classes_[self.predict_proba(x).argmax(1)])

    def to_onnx(self) -> Any:
        from onnx import helper

        odds = helper.make_node("Sigmoid", ["s"], ["p"])
        nodes = [self._scores("s"), odds, *two_classes("p", "y")]
        return assemble(nodes, [("one", [1.0])], self.n_features_in_, 2)


class DPBoostingRegressor(RegressorMixin, _Boosting):
    """Numbers; `target` are public bounds of what is predicted."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> DPBoostingRegressor:
        need("private boosting", "privacy", "interpret")
        from interpret.privacy import DPExplainableBoostingRegressor

        low, high = self.target
        self._fit(DPExplainableBoostingRegressor, x, y, privacy_target_min=low, privacy_target_max=high)
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.model_.predict(np.asarray(x, np.float64)))

    def to_onnx(self) -> Any:
        return assemble([self._scores("s")], [], self.n_features_in_, 1, last="s")


def _steps(cuts: np.ndarray, scores: np.ndarray, feature: int) -> EnsembleTree:
    """A step function as a tree: scores[0] without a value, scores[i] from cuts[i - 2] on to below cuts[i - 1].

    The root parts rows without a value from the others; below it, cuts are halved again and again.
    """
    nodes: list[tuple[float, int, int, float]] = []  # threshold, left, right, score

    def grow(low: int, high: int) -> int:
        """The tree of bins low to high - 1; its first node."""
        at = len(nodes)
        if high - low == 1:
            nodes.append((0.0, -1, -1, float(scores[1 + low])))
            return at
        middle = (low + high) // 2
        nodes.append((0.0, 0, 0, 0.0))
        below = float(np.nextafter(cuts[middle - 1], -np.inf))  # a value at the cut goes right
        nodes[at] = (below, grow(low, middle), grow(middle, high), 0.0)
        return at

    nodes.append((np.inf, 1, 0, 0.0))
    grow(0, len(cuts) + 1)
    nodes[0] = (float(np.finfo(np.float32).max), 1, len(nodes), 0.0)
    nodes.append((0.0, -1, -1, float(scores[0])))
    threshold, left, right, value = (np.array(c) for c in zip(*nodes, strict=True))
    features = np.full(len(nodes), feature)
    return EnsembleTree(features, threshold, left, right, np.zeros(len(nodes), bool), value[:, None])
