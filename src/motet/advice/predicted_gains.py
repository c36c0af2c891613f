"""What a probe predicts for each client: its gain over training alone, drawn to the mean of all clients.

A client's own validation rows are few, so its own difference says little. It is one of many clients whose true gains
vary by some standard deviation tau. The prediction is the mean of what its own rows say and of what all clients say,
each weighted by how sure it is. Tau is not known either: results are averaged over its values, each weighted by its
likelihood (Gelman et al., Bayesian Data Analysis, section 5.4, with a flat prior). The interval is about what these
methods have after the probe's rounds, not about a longer training.
Knows arrays of predictions. Does not know how they were made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import special

from motet.advice.probe import Probed
from motet.report.certainty import together
from motet.report.client_outcomes import METRICS, Predicted, row_interval

_GRID = 61  # spreads that are tried
LEVEL = float(special.ndtri(0.975))


@dataclass(frozen=True)
class Gain:
    """One client's predicted gain; a positive one is better."""

    client: str
    rows: int  # validation rows that both were scored on
    own: float  # the difference on its own rows
    predicted: float
    low: float
    high: float


@dataclass(frozen=True)
class Gains:
    """One method against training alone."""

    method: str
    mean: float
    low: float
    high: float
    spread: float  # standard deviation of true gains between clients
    clients: tuple[Gain, ...]

    @property
    def sure(self) -> str:
        """helps, hurts, or open: whether the interval of the mean holds zero."""
        return "helps" if self.low > 0 else "hurts" if self.high < 0 else "open"


def gains_of(method: Probed, alone: Probed, many: int = 1) -> Gains | None:
    """None where too few clients can be compared. The interval of the mean is one of `many` that hold together: the
    best of several methods is looked at."""
    names, own, errors, rows = [], [], [], []
    for client in sorted(method.predicted.keys() & alone.predicted.keys()):
        a, b = method.predicted[client], alone.predicted[client]
        difference = _difference(a, b, method)
        if not np.isfinite(difference):
            continue
        low, high = row_interval(a, b, method.metric, METRICS.get(method.metric), method.better)
        names.append(client)
        own.append(difference)
        errors.append((high - low) / (2 * LEVEL))
        rows.append(len(a.y))
    if len(names) < 2:
        return None
    mean, error, spread, centres, reach = shrunk(np.array(own), np.array(errors), np.array(rows, float))
    quantile = float(special.stdtrit(len(names) - 1, (1 + together(many)) / 2))
    clients = tuple(
        Gain(c, n, d, float(m), float(m - r), float(m + r))
        for c, n, d, m, r in zip(names, rows, own, centres, reach, strict=True)
    )
    return Gains(method.method, mean, mean - quantile * error, mean + quantile * error, spread, clients)


def _difference(a: Predicted, b: Predicted, method: Probed) -> float:
    measure, one = METRICS.get(method.metric), np.ones((1, len(a.y)))
    if measure is None or not len(a.y) or not np.array_equal(a.y, b.y):
        return float("nan")
    with np.errstate(divide="ignore", invalid="ignore"):
        both = [float(measure(found.y, found.p, found.weighted(one))[0]) for found in (a, b)]
    return (both[0] - both[1]) * method.better


def shrunk(
    own: np.ndarray, errors: np.ndarray, rows: np.ndarray
) -> tuple[float, float, float, np.ndarray, np.ndarray]:
    """The mean, its standard error, the spread between clients, and each client's centre and half interval.

    All clients share the variance of a row: two models that agree on a client's few rows have a bootstrap error of 0,
    and would outweigh everybody. Where no client has rows enough for an error, the differences themselves say it.
    """
    known = np.isfinite(errors)
    apart = float(own.var(ddof=1)) * float(rows.mean())
    of_a_row = float((errors[known] ** 2 * rows[known]).mean()) if known.any() else apart
    variance = max(of_a_row, apart * 1e-6, 1e-12) / rows
    taus = np.linspace(0, 3 * max(float(own.std(ddof=1)), 1e-6), _GRID)
    each = [_given(tau, own, variance) for tau in taus]
    weight = special.softmax([one[0] for one in each])  # of each spread; all are alike before
    means, errors2, centres, posteriors = (np.stack([one[k] for one in each]) for k in (1, 2, 3, 4))
    mean, centre = weight @ means, weight @ centres
    error2 = weight @ (errors2 + (means - mean) ** 2)
    posterior = weight @ (posteriors + (centres - centre) ** 2)
    return float(mean), float(np.sqrt(error2)), float(weight @ taus), centre, LEVEL * np.sqrt(posterior)


def _given(
    tau: float, own: np.ndarray, variance: np.ndarray
) -> tuple[float, float, float, np.ndarray, np.ndarray]:
    """With this spread between clients: its log likelihood, the mean and its variance, and each client's."""
    w = 1 / (variance + tau**2)
    mean = float((w * own).sum() / w.sum())
    likelihood = float(0.5 * (np.log(w).sum() - np.log(w.sum()) - (w * (own - mean) ** 2).sum()))
    trust = tau**2 * w  # how much a client's own rows count
    posterior = variance * trust + (1 - trust) ** 2 / w.sum()
    return likelihood, mean, 1 / w.sum(), mean + trust * (own - mean), posterior


def best(found: Mapping[str, Gains]) -> Gains | None:
    """The method with the highest mean gain on validation rows."""
    return max(found.values(), key=lambda g: g.mean, default=None)
