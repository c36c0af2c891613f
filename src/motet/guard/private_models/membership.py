"""Membership inference: can an attacker with a published model and a row find out whether it was trained on it?

The loss-threshold attack (Yeom et al. 2018): rows with a low loss are taken to be members. Its
AUC is the chance that a random member has a lower loss than a random row from elsewhere: 0.5 is guessing.
It is a lower bound of what can be inferred; better attacks exist. Under (epsilon, 0) differential privacy no
attack has a larger advantage (true minus false positives) than (e^epsilon - 1) / (e^epsilon + 1).

Knows losses. Does not know models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from sklearn.metrics import roc_auc_score, roc_curve


@dataclass(frozen=True)
class Attack:
    """How well an attack separates members from other rows."""

    auc: float  # 0.5 is guessing
    advantage: float  # largest difference between true and false positives
    members: int
    others: int


def log_losses(probabilities: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """-log of the probability of each row's own class; `codes` are positions of classes."""
    right = probabilities[np.arange(len(codes)), codes]
    return np.asarray(-np.log(np.clip(right, 1e-12, 1)))


def attack(members: np.ndarray, others: np.ndarray) -> Attack:
    """Separate members from others by their losses.

    >>> attack(np.array([0.1, 0.2]), np.array([0.2, 0.9]))
    Attack(auc=0.875, advantage=0.5, members=2, others=2)
    """
    if not len(members) or not len(others):
        raise ValueError(f"an attack needs members and others, not {len(members)} and {len(others)} rows")
    is_member = np.repeat([True, False], [len(members), len(others)])
    suspicion = -np.concatenate([members, others])
    wrong, right, _ = roc_curve(is_member, suspicion, drop_intermediate=False)
    auc = roc_auc_score(is_member, suspicion)
    return Attack(float(auc), float((right - wrong).max()), len(members), len(others))


def most(epsilon: float, delta: float = 0.0) -> float:
    """The largest advantage that any attack may have on an (epsilon, delta)-private model.

    >>> most(0.0)
    0.0
    """
    return (math.expm1(min(epsilon, 700.0)) + 2 * delta) / (math.exp(min(epsilon, 700.0)) + 1)
