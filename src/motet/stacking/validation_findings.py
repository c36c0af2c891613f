"""What a client finds out about the models of others on rows that taught no model of its stack: its validation rows.

On the rows that taught a meta-model every model looks useful, also one of nonsense. So contributions are measured on
others; and each served model is looked at by itself: how well it tells classes apart, and whether two are the same.
Knows rows and predictions. Does not know whose models are admitted or served.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from motet.stacking.contribution import OWN, importances
from motet.stacking.predictions import Array, features, prediction
from motet.stacking.stack import Stack, StackRows, StackSettings

Findings = dict[str, Any]  # refused, skill and alike, as a client sends them
_LEAST = 8  # rows from which contributions are measured
_MANY = (
    30  # rows from which a client says how skilled the models of others are: fewer tell skill from luck badly
)
_SAME = 1e-3  # mean difference of probabilities below which two models are the same
_FLAT = 1e-2  # spread of probabilities below which a model is constant, and is nobody's copy


@dataclass(frozen=True)
class ValidationRows:
    """Validation rows, and the predictions of the served models for them."""

    rows: StackRows
    shown: Mapping[str, Array]

    def importances(self, stack: Stack, how: StackSettings, seed: int) -> dict[str, float]:
        """How much the stack relies on each of its models, by what its predictions for these rows lose."""
        z = features([self.own(stack), *(self.shown[k] for k in stack.owners)], stack.step)
        models = (OWN, *stack.owners)
        group = [k for k in range(len(models)) for _ in range(z.shape[1] // len(models))]
        rows = self.rows
        shares = importances(stack.meta, z, rows.y, group, how.importance, seed=seed, weight=rows.weight)
        return dict(zip(models, shares.tolist(), strict=True))

    def own(self, stack: Stack) -> Array:
        """Predictions of the private model."""
        return prediction(stack.private, self.rows.x, self.rows.names, self.rows.classes)

    def findings(self, stack: Stack) -> Findings:
        """Each model's skill on these rows, the private model's among them; and which models are the same."""
        known = {OWN: self.own(stack), **self.shown} if len(self.rows.y) >= _MANY else {}
        return {"skill": {k: skill(self.rows, p) for k, p in known.items()}, "alike": alike(self.shown)}


def has_enough_rows(rows: StackRows) -> bool:
    return len(rows.y) >= _LEAST and len(np.unique(rows.y)) > 1


def skill(rows: StackRows, predicted: Array) -> float:
    """How well a model orders rows: the mean over classes of the area under the ROC curve, of numbers (1 + r) / 2 with
    the correlation r; 0.5 is chance."""
    from sklearn.metrics import roc_auc_score

    if rows.classes:
        there = [k for k in range(predicted.shape[1]) if 0 < (rows.y == k).sum() < len(rows.y)]
        return float(np.mean([roc_auc_score(rows.y == k, predicted[:, k]) for k in there]))
    if np.ptp(predicted) == 0:
        return 0.5
    return float((1 + np.corrcoef(rows.y, predicted[:, 0])[0, 1]) / 2)


def alike(shown: Mapping[str, Array]) -> list[list[str]]:
    """Pairs of models that answer the same, though not always the same."""
    varied = {k: p for k, p in shown.items() if len(p) and p.std(0).max() > _FLAT}
    return [
        [a, b] for a, b in combinations(sorted(varied), 2) if np.abs(varied[a] - varied[b]).mean() < _SAME
    ]
