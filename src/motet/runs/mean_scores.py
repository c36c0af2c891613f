"""Mean scores over clients, for choosing a round.

Knows metrics and how rows are counted. Does not know clients or rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

BY_PAIRS = ("auc", "cindex")  # metrics of pairs of rows, which a client may have none of


def has_score(metric: str, scores: Mapping[str, Any]) -> Any:
    """Which clients have a score: AUC needs two classes, concordance an event and a row that was watched for longer,
    and an own metric may say that there is none."""
    if metric in BY_PAIRS:
        return scores["pairs"] > 0
    return ~np.isnan(scores[metric]) if metric == "own" else np.ones(len(scores["n"]), bool)


def mean_score(metric: str, scores: Mapping[str, Any]) -> float:
    """The mean over clients that have a score; nan if none has one.

    The AUC or concordance of a few rows is mostly chance. So clients count by the pairs of rows that it compares:
    for two classes, and for survival, the mean is the share of all such pairs that are in the right order.
    """
    some = has_score(metric, scores)
    if not some.any():
        return math.nan
    weights = scores["pairs"][some] if metric in BY_PAIRS else None
    return float(np.average(scores[metric][some], weights=weights))
