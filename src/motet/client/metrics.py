"""Metrics: how good predictions are, as functions of predictions and targets, for many clients at once.

Arrays have a first axis of clients, then one of rows; `live` is the weight of a real row, 1 where rows have none,
and 0 for padding, which never counts. A mean over rows is sum(weight x value) / sum(weight). Classes are predicted by
scores (clients, rows, classes): logits, or logarithms of probabilities. A metric is nan where a client has none: its
rows are of one class, say, and it has no AUC.
Knows arrays of predictions and targets. Does not know networks, nor where clients live.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from inspect import signature
from typing import Any

import numpy as np
import torch

from motet.client.losses import Criterion
from motet.client.ranks import rank_sums, weight_sums
from motet.errors import MotetError
from motet.survival import comparable_pairs, concordance

Array = np.ndarray[Any, Any]
CLASSES = ("accuracy", "balanced", "auc", "f1", "brier", "ece", "loss")
NUMBERS = ("rmse", "mae", "r2", "loss")
SURVIVAL = ("cindex", "loss")
OF_LOSSES = {"quantile": "pinball", "poisson": "deviance"}  # metrics that only fit models of one loss
NAMES = tuple(dict.fromkeys((*CLASSES[:-1], *SURVIVAL[:-1], *OF_LOSSES.values(), *NUMBERS)))
OWN = "own"  # the name of a user's own metric among the others
LARGER = {"accuracy", "balanced", "auc", "f1", "r2", "cindex"}  # larger is better; of all others, smaller is
_BINS = 15  # of the calibration error
_CELLS = 1 << 18  # numbers (clients x rows x classes) that are measured at once: some MiB of arrays


class MetricFailed(MotetError):
    """A user's own metric that raised, or returned what is no score; says which, where and what."""


def fitting(kind: str, loss: str = "") -> tuple[str, ...]:
    """The metrics that fit a kind of target, and a loss that has one of its own."""
    own = (OF_LOSSES[loss],) if loss in OF_LOSSES else ()
    return own + {"classes": CLASSES, "numbers": NUMBERS, "survival": SURVIVAL}[kind]


def metrics(
    kind: str,
    scores: Array,
    y: Array,
    live: Array,
    scale: float = 1.0,
    criterion: Criterion | None = None,
) -> dict[str, Array]:
    """Every metric that fits, by name, each (clients,); with `n`, the clients' numbers of rows, and for classes
    and survival `pairs`, the numbers of pairs of rows that AUC and concordance compare. `loss` is the loss that
    the criterion trains, without one cross-entropy or squared error.

    >>> one = metrics("numbers", np.array([[1.0, 5.0]]), np.array([[1.0, 2.0]]), np.array([[1.0, 0.0]]))
    >>> float(one["rmse"][0]), float(one["n"][0])
    (0.0, 1.0)
    """
    many = -(-scores.size // _CELLS)
    step = max(1, -(-len(y) // max(1, many)))
    parts = [slice(k, k + step) for k in range(0, max(len(y), 1), step)]
    known: dict[str, Callable[..., dict[str, Array]]] = {"classes": of_classes, "survival": of_survival}
    of = known.get(kind) or _of_numbers(scale, criterion or Criterion("squared"))
    found = [of(scores[at], y[at], live[at]) for at in parts]
    if criterion and kind != "survival" and not criterion.usual:
        for one, at in zip(found, parts, strict=True):
            one |= _as_trained(criterion, scale, scores[at], y[at], live[at])
    return {k: np.concatenate([f[k] for f in found]) for k in found[0]}


def sums(per_row: Array) -> Array:
    """(clients,): sums over rows, one row after another, so that padding changes no bit of them."""
    return np.bincount(clients_of(*per_row.shape), per_row.astype(np.float64).ravel(), len(per_row))


@lru_cache(maxsize=4)
def clients_of(clients: int, rows: int) -> Array:
    """The place of each row's client."""
    return np.repeat(np.arange(clients), rows)


def share(part: Array, whole: Array) -> Array:
    """part / whole, and part where whole is 0: a client without rows, or a class without any."""
    return np.asarray(part / np.where(whole > 0, whole, 1.0))


# ---- classes ----


@dataclass(frozen=True)
class ClassRows:
    """Predictions of classes with what several metrics need of them."""

    scores: Array  # (clients, rows, classes)
    y: Array  # (clients, rows)
    live: Array  # (clients, rows)

    @cached_property
    def by_class(self) -> tuple[Array, Array, Array]:
        """(clients, classes, rows): scores below the largest of their row, and probabilities; (clients, rows): the
        largest probability. With rows last, sums over classes add whole rows of memory, which is several times
        faster."""
        z = np.swapaxes(self.scores, -1, -2).astype(np.float64, order="C")
        z -= z.max(-2, keepdims=True)
        p = np.exp(z)
        largest = 1 / p.sum(-2, keepdims=True)  # the largest score has become exp(0)
        p *= largest
        return z, p, largest[:, 0]

    @cached_property
    def log_p(self) -> Array:
        """(clients, rows): the logarithm of the probability of the true class."""
        z, _, largest = self.by_class
        return np.asarray(np.take_along_axis(z, self.y[:, None], -2)[:, 0] + np.log(largest))

    @property
    def p(self) -> Array:
        """(clients, rows, classes)"""
        return np.swapaxes(self.by_class[1], -1, -2)

    @cached_property
    def finite(self) -> Array:
        """Whether all scores of a client's rows are; what stands in its padding does not matter."""
        fine = np.isfinite(self.scores)
        if fine.all():
            return np.ones(len(fine), bool)
        return np.asarray((fine | ~(self.live > 0)[..., None]).all((1, 2)))

    @cached_property
    def n(self) -> Array:
        return sums(self.live > 0)

    @cached_property
    def total(self) -> Array:
        """The sum of each client's weights."""
        return sums(self.live)

    @cached_property
    def guess(self) -> Array:
        """The class with the largest score, the first of equals."""
        z, classes = self.by_class[0], self.scores.shape[-1]
        if classes > 255 or not self.finite.all():
            return np.asarray(self.scores.argmax(-1))
        others = (z < 0).view(np.uint8) * np.uint8(255)  # no class has this number
        return np.asarray((others | np.arange(classes, dtype=np.uint8)[:, None]).min(-2, initial=255))

    @cached_property
    def right(self) -> Array:
        return np.asarray((self.guess == self.y) * self.live, np.float64)

    @cached_property
    def truth(self) -> Array:
        """How many rows each client has of each class, counted by their weights."""
        return self.count(self.y, self.live)

    def count(self, which: Array, weight: Array) -> Array:
        """(clients, classes): sums of weights by a class of each row."""
        clients, classes = len(self.y), self.scores.shape[-1]
        place = np.arange(clients)[:, None] * classes + which
        summed = np.bincount(place.ravel(), weight.astype(np.float64).ravel(), clients * classes)
        return summed.reshape(clients, classes)

    def mean(self, per_row: Array) -> Array:
        return share(sums(per_row * self.live), self.total)

    def mean_of_present(self, per_class: Array) -> Array:
        """The mean over the classes that a client's rows have."""
        present = self.truth > 0
        return np.asarray((per_class * present).sum(-1) / np.maximum(present.sum(-1), 1))


def of_classes(scores: Array, y: Array, live: Array) -> dict[str, Array]:
    rows = ClassRows(scores, y, live)
    hits, truth = rows.count(y, rows.right), rows.truth
    area, pairs = auc(rows)
    guessed = rows.count(rows.guess, live)
    return {
        "n": rows.n,
        "accuracy": share(sums(rows.right), rows.total),
        "balanced": rows.mean_of_present(share(hits, truth)),  # absent classes do not count
        "auc": area,
        "f1": rows.mean_of_present(share(2 * hits, truth + guessed)),
        "brier": brier(rows),
        "ece": ece(rows),
        "loss": rows.mean(-rows.log_p),
        "pairs": pairs,
    }


def brier(rows: ClassRows) -> Array:
    """Mean squared distance of the probabilities to the truth, summed over classes; of two classes half of it,
    which is the usual score of one probability."""
    p = rows.by_class[1]
    squares = np.einsum("ckr,ckr->cr", p, p) - 2 * np.exp(rows.log_p) + 1
    return rows.mean(squares) / (2 if p.shape[1] == 2 else 1)


def ece(rows: ClassRows) -> Array:
    """Expected calibration error: how far confidence, the largest probability, is from accuracy, by 15 bins of
    equal width, weighted by their rows."""
    top = rows.by_class[2]
    sure = top if rows.finite.all() else np.nan_to_num(top)
    at = np.maximum(np.ceil(sure * _BINS) - 1, 0).astype(np.int64)
    place = np.arange(len(top))[:, None] * _BINS + at
    miss = np.bincount(place.ravel(), (rows.right - top * rows.live).ravel(), len(top) * _BINS)
    return share(np.abs(miss.reshape(len(top), _BINS)).sum(-1), rows.total)


def auc(rows: ClassRows) -> tuple[Array, Array]:
    """The area under the ROC curve, one class against the rest, the mean over the classes that a client's rows
    have; and how many pairs of rows it compares. Ties count half. A pair counts by the product of its weights. nan
    where all rows are of one class."""
    z = np.swapaxes(rows.by_class[0], -1, -2)
    two = z.shape[-1] == 2  # both classes have the same area
    values = z[..., 1:] - z[..., :1] if two else rows.p
    real = rows.live > 0
    truth, many = (c[:, 1:] if two else c for c in (rows.truth, rows.count(rows.y, real)))
    pairs = many * (rows.n[:, None] - many)
    both = truth * (rows.total[:, None] - truth)  # pairs, counted by their weights
    if (rows.live[real] == 1).all():
        above = rank_sums(values, rows.y - two, real) - truth * (truth + 1) / 2
    else:
        above = weight_sums(values, rows.y - two, rows.live) - truth**2 / 2
    some = pairs > 0
    area = (share(above, both) * some).sum(-1) / np.maximum(some.sum(-1), 1)
    return np.where(some.any(-1) & rows.finite, area, np.nan), pairs.sum(-1)


# ---- numbers ----


def _of_numbers(scale: float, criterion: Criterion) -> Callable[[Array, Array, Array], dict[str, Array]]:
    """As `of_classes`: errors in the target's own unit, the loss as it is trained, in standardised units."""

    def of(scores: Array, y: Array, live: Array) -> dict[str, Array]:
        scores = criterion.numbers(scores)
        live, y = live.astype(np.float64), y.astype(np.float64)
        total, miss = sums(live), scores - y
        squares = sums(miss**2 * live)
        middle = share(sums(y * live), total)
        spread = sums((y - middle[:, None]) ** 2 * live)
        r2 = np.where(spread > 0, 1 - squares / np.where(spread > 0, spread, 1), 0.0)
        loss, mae = share(squares, total), share(sums(np.abs(miss) * live), total) * scale
        return {"n": sums(live > 0), "rmse": np.sqrt(loss) * scale, "mae": mae, "r2": r2, "loss": loss}

    return of


def _as_trained(criterion: Criterion, scale: float, scores: Array, y: Array, live: Array) -> dict[str, Array]:
    """The loss that a criterion other than the usual ones trains; pinball and deviance in the target's own unit."""
    z, live = torch.from_numpy(np.asarray(scores, np.float64)), live.astype(np.float64)
    target = torch.from_numpy(y if y.dtype.kind in "iu" else np.asarray(y, np.float64))
    rows = np.where(live > 0, criterion.of_rows(z, target).numpy(), 0.0)
    loss = share(sums(rows * live), sums(live))
    units = {"pinball": scale, "deviance": 2 * criterion.rate}
    own = OF_LOSSES.get(criterion.name)
    return {"loss": loss} | ({own: loss * units[own]} if own else {})


# ---- survival ----


def of_survival(scores: Array, y: Array, live: Array) -> dict[str, Array]:
    """As `of_classes`: outputs are logarithms of risks. With `events`, how many of the rows had their event."""
    there = [np.asarray(rows) > 0 for rows in live]
    each = [
        (y[i][rows].astype(np.float64), scores[i][rows].astype(np.float64)) for i, rows in enumerate(there)
    ]
    found = {
        "n": [len(t) for t, _ in each],
        "cindex": [concordance(t, z) for t, z in each],
        "loss": [partial_likelihood(t, z) for t, z in each],
        "pairs": [comparable_pairs(t) for t, _ in each],
        "events": [(t > 0).sum() for t, _ in each],
    }
    return {k: np.asarray(v, np.float64) for k, v in found.items()}


def partial_likelihood(target: Array, z: Array) -> float:
    """Minus the logarithm of Cox's partial likelihood of all of a client's rows, by row (losses.cox says more)."""
    order = np.argsort(-np.abs(target), kind="stable")  # watched longest first
    time, z = np.abs(target)[order], z[order]
    watched = np.logaddexp.accumulate(z) if len(z) else z  # of all rows that were watched as long or longer
    last_tie = len(time) - 1 - np.searchsorted(time[::-1], time, "left")
    costs = np.where(target[order] > 0, watched[last_tie] - z, 0.0)
    return float(costs.sum() / max(len(z), 1))


# ---- a user's own metric ----


@dataclass(frozen=True)
class OwnMetric:
    """A user's own metric: `function(targets, predictions)` of one client's rows returns a number, or None for a
    client that has no score. Predictions are probabilities (rows, classes), or numbers in the target's unit. Where
    rows have weights, it must take them as `sample_weight`, as scikit-learn's metrics do.
    Larger is better, unless the function has an attribute `smaller_is_better = True`."""

    name: str
    function: Callable[[Array, Array], Any]

    @property
    def takes_weights(self) -> bool:
        return "sample_weight" in signature(self.function).parameters

    @property
    def better(self) -> int:
        return -1 if getattr(self.function, "smaller_is_better", False) else 1

    def of(self, clients: Sequence[str], y: Array, predictions: Array, live: Array) -> Array:
        """One score for each client; nan where it has none, or no rows."""
        rows = [np.asarray(some) > 0 for some in live]
        found = [
            self.one(c, y[i][at], predictions[i][at], live[i][at]) if at.any() else np.nan
            for i, (c, at) in enumerate(zip(clients, rows, strict=True))
        ]
        return np.array(found, np.float64)

    def one(self, client: str, y: Array, predictions: Array, weights: Array | None = None) -> float:
        """The score of one client; MetricFailed if the function raises, or returns what is no score."""
        where = f"the metric {self.name}, client {client or '?'}"
        try:
            more = {} if weights is None or (weights == 1).all() else {"sample_weight": weights}
            score = self.function(y, predictions, **more)
            if score is None:
                return float("nan")
            number = float(score)
        except Exception as e:  # whatever a user's function raises is the user's to know
            raise MetricFailed(f"{where}: {type(e).__name__}: {e}\n{_EXPECTED}") from e
        if not np.isfinite(number):
            raise MetricFailed(f"{where}: it returned {score!r}\n{_EXPECTED}")
        return number


_EXPECTED = (
    "hint: function(targets, predictions) must return a finite number, or None for a client that has no score"
)


def probabilities(scores: Array) -> Array:
    """(…, classes), each row summing to 1."""
    return ClassRows(scores, scores[..., 0], scores[..., 0]).p
