"""Whether a single client is better off, the same or worse, by its own test rows.

Accuracy: McNemar's exact test of the client's rows, each counted once (its mean over seeds). Other metrics, and rows
with weights: a bootstrap of the client's rows, paired, with a fixed generator. Without stored predictions: an interval
of two shares for accuracy, else it is not known. Each client is held to 95 %; where the interval holds zero, it is
the same. Knows predictions.parquet. Does not know tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from motet.checksums import file_checksum
from motet.errors import Damaged
from motet.report.certainty import LEVEL, Floats, sign_test, two_shares
from motet.report.gains import Pair, apart, gain_frame, unit_of
from motet.report.read import ReportedRun, settings_of
from motet.runs.store import Store

FILE = "predictions.parquet"
BETTER, SAME, WORSE, UNKNOWN = "better", "same", "worse", "not known"
OUTCOMES = (BETTER, SAME, WORSE, UNKNOWN)
RESAMPLES, FEWEST, CELLS = 1000, 200, 4_000_000  # of a client's rows: fewer where there are very many
FEWEST_ROWS = 10  # with fewer test rows, in all splits together, nothing is said of one client
FEWEST_OF_CLASS = 5  # of metrics that count classes alike, of the rarest class
BY_CLASS = ("auc", "balanced", "f1", "cindex")  # what the rarest kind of row decides
BINS = 15  # of the calibration error, as in the scores
_NOT_KNOWN = (float("nan"), float("nan"))  # an interval
Measure = Callable[..., Any]  # (targets, predictions, weights (resamples, rows)) -> (resamples,)


class Predicted(NamedTuple):
    """One client's test rows."""

    y: Any  # (rows,) targets
    p: Any  # (rows,) predictions, or (rows, classes) probabilities
    weight: Any = None  # (rows,) what each row counts; None: all alike

    @property
    def rows(self) -> float:
        """Equal rows whose mean is as sure as that of these (Kish 1965): with uneven weights, fewer."""
        return float(len(self.y) if self.weight is None else self.weight.sum() ** 2 / (self.weight**2).sum())

    def weighted(self, resamples: Any) -> Any:
        """How often a row was drawn (resamples, rows), times its weight."""
        return resamples if self.weight is None else resamples * self.weight


Rows = dict[int, list[tuple[Predicted, Predicted]]]  # by split: of each seed, the run's and the other's


@dataclass(frozen=True)
class Compared:
    """One unit under both: mean scores, the least number of test rows, and predictions where both have them."""

    own: float
    other: float
    tests: int
    rows: Rows | None
    share: float  # of the unit's rows that are test rows


def outcomes(some: Sequence[Pair]) -> dict[Any, str]:
    """For each unit: better, same, worse, or not known."""
    return {unit: _outcome(one, some[0].run) for unit, one in compared(some).items()}


def gain_intervals(some: Sequence[Pair]) -> dict[Any, tuple[float, float]]:
    """For each unit the interval of its gain, by a bootstrap of its own test rows; nan where it is not known."""
    return {unit: _gain_interval(one, some[0].run) for unit, one in compared(some).items()}


def compared(some: Sequence[Pair]) -> dict[Any, Compared]:
    frame = gain_frame(some)
    if not len(frame):
        return {}
    held, shares = _rows(some), _test_shares(some)
    each = frame.groupby("unit", sort=False).agg({"own": "mean", "other": "mean", "n": "min"})
    return {
        unit: Compared(own, other, int(n), held.get(unit), shares[unit])
        for unit, own, other, n in each.itertuples()
    }


def _outcome(one: Compared, run: ReportedRun) -> str:
    if run.hidden:
        return UNKNOWN
    if one.rows is None:
        return _by_scores(one.own, one.other, one.tests, run.metric)
    if run.metric == "accuracy" and len(one.rows) == 1 and not _weighted(one.rows):
        return _by_signs(next(iter(one.rows.values())))
    return _by_bootstrap(one.rows, run.metric, measure_of(run), run.better, one.share)


def _gain_interval(one: Compared, run: ReportedRun) -> tuple[float, float]:
    if one.rows is not None:
        return _bootstrapped(one.rows, run.metric, measure_of(run), run.better, one.share)
    shares = run.metric == "accuracy" and not run.hidden
    return two_shares(one.own, one.other, one.tests) if shares else _NOT_KNOWN


def _weighted(rows: Rows) -> bool:
    return any(one.weight is not None for seeds in rows.values() for one, _ in seeds)


def _called(low: float, high: float) -> str:
    if not np.isfinite([low, high]).all():
        return UNKNOWN
    return BETTER if low > 0 else WORSE if high < 0 else SAME


# ---- predictions ----


def _rows(some: Sequence[Pair]) -> dict[Any, Rows]:
    """Predictions of both for each unit, where both have them of the same rows. Where the data fix the test rows,
    splits score the same rows, as seeds do."""
    found: dict[Any, Rows] = {}
    bad = set()
    for pair in some:
        own, other = predictions(pair.run.folder, "personal"), predictions(pair.against.folder, pair.side)
        for client in pair.run.of("personal").index:
            unit, one, two = unit_of(pair.run, client), own.get(client), other.get(client)
            if one is None or two is None or not np.array_equal(one[0], two[0]):
                bad.add(unit)
                continue
            split = 0 if pair.run.fixed_tests else pair.run.split
            found.setdefault(unit, {}).setdefault(split, []).append((one, two))
    return {unit: rows for unit, rows in found.items() if unit not in bad}


def predictions(folder: Path, side: str) -> dict[str, Predicted]:
    """Each client's targets and predictions, in the order of its rows; nothing where there is no file."""
    path = folder / FILE
    with closing(Store(folder)) as store:
        known = store.files().get(FILE, "")  # "" in runs of earlier versions, and where there is no such file
    if not path.exists():
        if known:
            raise Damaged(f"{path} is missing.\nhint: restore it from a copy, or run anew with --fresh")
        return {}
    return _read(path, side, path.stat().st_mtime_ns, known)


@lru_cache(maxsize=128)
def _read(path: Path, side: str, changed: int, known: str) -> dict[str, Predicted]:
    import pandas as pd

    content = path.read_bytes()
    if known and file_checksum(content) != known:
        raise Damaged(
            f"{path} is damaged: its checksum does not match.\nhint: restore it from a copy, or run anew with --fresh"
        )
    frame = pd.read_parquet(BytesIO(content), filters=[("side", "==", side)]).sort_values(
        ["client", "row"], kind="stable"
    )
    names = [c for c in frame.columns if c == "value" or (c[0] == "p" and c[1:].isdigit())]
    names.sort(key=lambda c: int(c[1:]) if c[1:].isdigit() else 0)
    values = frame[names].to_numpy(dtype=float)
    values, target = values[:, 0] if names == ["value"] else values, frame["target"].to_numpy()
    clients, starts = np.unique(frame["client"].to_numpy(dtype=str), return_index=True)
    ends = [*starts[1:].tolist(), len(frame)]
    places = zip(clients.tolist(), starts.tolist(), ends, strict=True)
    weight = frame["weight"].to_numpy(dtype=float) if "weight" in frame else None
    return {
        c: Predicted(target[a:b], values[a:b], None if weight is None else weight[a:b]) for c, a, b in places
    }


def _test_shares(some: Sequence[Pair]) -> dict[Any, float]:
    """The share of each unit's rows that are test rows: so much do two splits' test rows overlap."""
    found: dict[Any, float] = {}
    for pair in some:
        rows = pair.run.clients.set_index("client")[["train", "val", "test"]]
        share = rows["test"] / rows.sum(axis="columns")
        found |= {unit_of(pair.run, str(c)): float(v) for c, v in share.items()}
    return found


# ---- three ways to tell ----


def _by_signs(seeds: Sequence[tuple[Predicted, Predicted]]) -> str:
    """A row is better where more seeds have it right."""
    right = [(_right(one) - _right(two)) for one, two in seeds]
    signs = np.sign(np.sum(right, axis=0))
    up, down = int((signs > 0).sum()), int((signs < 0).sum())
    return SAME if sign_test(up, down) >= 1 - LEVEL else BETTER if up > down else WORSE


def _right(found: Predicted) -> Floats:
    return np.asarray(found.p.argmax(-1) == found.y, dtype=float)


def _by_scores(own: float, other: float, rows: int, metric: str) -> str:
    """By the scores and their number of rows alone: over seeds and splits the rows are counted once."""
    return _called(*two_shares(own, other, rows)) if metric == "accuracy" else UNKNOWN


def _by_bootstrap(rows: Rows, metric: str, measure: Measure | None, better: int, share: float) -> str:
    return _called(*_bootstrapped(rows, metric, measure, better, share))


def row_interval(
    own: Predicted, other: Predicted, metric: str, measure: Measure | None, better: int
) -> tuple[float, float]:
    """The interval of one client's gain by a bootstrap of its rows; nan where that is not known."""
    return _bootstrapped({0: [(own, other)]}, metric, measure, better, share=1.0)


def _bootstrapped(
    rows: Rows, metric: str, measure: Measure | None, better: int, share: float
) -> tuple[float, float]:
    """The interval of the difference, mean over seeds and splits; the splits' rows overlap by a share."""
    many = rows_that_count(rows, metric, share)
    if measure is None or many < (FEWEST_OF_CLASS if metric in BY_CLASS else FEWEST_ROWS):
        return _NOT_KNOWN
    found = resampled(rows, measure, better, np.random.default_rng(0))
    point, drawn = found[0], found[1:][np.isfinite(found[1:])]
    if len(drawn) < len(found) / 2:
        return _NOT_KNOWN
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    wider = overlap(rows, share) * _student(2 * many if metric in BY_CLASS else many)
    return float(point + (low - point) * wider), float(point + (high - point) * wider)


def resampled(rows: Rows, measure: Measure, better: int, draw: Any, times: int | None = None) -> Floats:
    """(1 + times,) the gain of one unit, mean over seeds and splits: of the rows as they are, then of resamples."""
    if times is None:
        largest = max(len(seeds[0][0][0]) for seeds in rows.values())
        times = int(np.clip(CELLS // largest, FEWEST, RESAMPLES))
    each = np.stack([_differences(seeds, measure, draw, times) for seeds in rows.values()])
    there = np.isfinite(each)  # a resample of one class has no AUC
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(there, each, 0).sum(0) / there.sum(0) * better, dtype=float)


def overlap(rows: Rows, share: float) -> float:
    """How much longer an interval is because several splits share test rows."""
    return float(np.sqrt(1 + (len(rows) - 1) * share))


def rows_that_count(rows: Rows, metric: str, share: float) -> float:
    """How many rows the difference rests on, over splits: no more than the client has. Where classes count alike,
    the rows of the rarest class; of survival, the rows with an event. Rows with uneven weights count for fewer."""
    first = [seeds[0][0] for seeds in rows.values()]
    targets, even = [one.y for one in first], [one.rows / max(len(one.y), 1) for one in first]
    if metric == "cindex":
        many = sum(float((y > 0).sum()) * e for y, e in zip(targets, even, strict=True))
    elif metric in BY_CLASS:
        counts = np.unique(np.concatenate(targets), return_counts=True)[1]
        many = float(counts.min() * np.mean(even)) if len(counts) > 1 else 0.0
    else:
        many = sum(one.rows for one in first)
    return min(many, many / len(targets) / share) if share > 0 else many


def _student(rows: float) -> float:
    """How much longer an interval of so few rows is than a bootstrap's, whose quantiles are the normal ones."""
    level = (1 + LEVEL) / 2
    return float(special.stdtrit(rows - 1, level) / special.ndtri(level) * np.sqrt(rows / (rows - 1)))


def _differences(
    seeds: Sequence[tuple[Predicted, Predicted]], measure: Measure, draw: Any, times: int
) -> Floats:
    """Of every resample of one split's rows, the same for all seeds and for both."""
    many = len(seeds[0][0][0])
    weights = np.vstack([np.ones(many), draw.multinomial(many, np.full(many, 1 / many), times)])
    with np.errstate(divide="ignore", invalid="ignore"):
        each = [
            apart(measure(one.y, one.p, one.weighted(weights)), measure(two.y, two.p, two.weighted(weights)))
            for one, two in seeds
        ]
    return np.asarray(np.mean(each, axis=0), dtype=float)


# ---- metrics of weighted rows: (targets, predictions, weights (resamples, rows)) -> (resamples,) ----


def _mean(per_row: Any, weights: Floats) -> Any:
    return weights @ per_row / weights.sum(-1)


def _at_target(p: Any, y: Any) -> Any:
    return p[np.arange(len(y)), y.astype(int)]


def _brier(y: Any, p: Any, w: Floats) -> Any:
    squares = (p**2).sum(-1) - 2 * _at_target(p, y) + 1
    return _mean(squares / (2 if p.shape[-1] == 2 else 1), w)


def _of_present(per_class: Any, truth: Any) -> Any:
    """The mean over the classes that a resample has."""
    return np.where(truth > 0, per_class, 0).sum(-1) / (truth > 0).sum(-1)


def _counts(y: Any, p: Any, w: Floats) -> tuple[Any, Any, Any]:
    """(resamples, classes): rows of each class, rows that are called so, and those of them that are."""
    classes = np.arange(p.shape[-1])
    true, called = y[:, None] == classes, p.argmax(-1)[:, None] == classes
    return w @ true, w @ called, w @ (true & called)


def _balanced(y: Any, p: Any, w: Floats) -> Any:
    truth, _, hits = _counts(y, p, w)
    return _of_present(hits / truth, truth)


def _f1(y: Any, p: Any, w: Floats) -> Any:
    truth, called, hits = _counts(y, p, w)
    return _of_present(2 * hits / (truth + called), truth)


def _auc(y: Any, p: Any, w: Floats) -> Any:
    """One class against the rest, the mean over classes that a resample has; nan where it has one only."""
    classes = [1] if p.shape[-1] == 2 else range(p.shape[-1])
    areas = np.stack([_area(y == k, p[:, k], w) for k in classes])
    some = np.isfinite(areas)
    return np.where(some, areas, 0).sum(0) / some.sum(0)


def _area(positive: Any, value: Any, w: Floats) -> Any:
    order = np.argsort(value, kind="stable")
    starts = np.flatnonzero(np.diff(value[order], prepend=-np.inf))  # equal values are one step
    up = np.add.reduceat((w * positive)[:, order], starts, axis=1)
    down = np.add.reduceat((w * ~positive)[:, order], starts, axis=1)
    below = np.cumsum(down, axis=1) - down / 2
    return (up * below).sum(-1) / (up.sum(-1) * down.sum(-1))


def _ece(y: Any, p: Any, w: Floats) -> Any:
    top = p.max(-1)
    bins = np.clip(np.ceil(top * BINS) - 1, 0, BINS - 1)[:, None] == np.arange(BINS)
    miss = ((p.argmax(-1) == y) - top)[:, None] * bins
    return np.abs(w @ miss).sum(-1) / w.sum(-1)


def _r2(y: Any, found: Any, w: Floats) -> Any:
    spread = _mean(y**2, w) - _mean(y, w) ** 2
    return 1 - _mean((found - y) ** 2, w) / spread


def _concordance(y: Any, risk: Any, w: Floats) -> Any:
    """The share of comparable pairs in the right order; nan where a resample has none (survival.py)."""
    time, seen = np.abs(y), y > 0
    first = seen[:, None] & ((time[:, None] < time) | ((time[:, None] == time) & ~seen))  # (rows, rows)
    right = (risk[:, None] > risk) + 0.5 * (risk[:, None] == risk)
    return ((w @ (first * right)) * w).sum(-1) / ((w @ first) * w).sum(-1)


def _deviance(y: Any, rate: Any, w: Floats) -> Any:
    return 2 * _mean(special.xlogy(y, y / rate) - y + rate, w)


def _pinball(y: Any, found: Any, w: Floats, level: float) -> Any:
    return _mean(np.maximum(level * (y - found), (level - 1) * (y - found)), w)


def measure_of(run: ReportedRun) -> Measure | None:
    """How the run's metric is computed of single rows; None where that is not known: a loss of another kind than
    cross-entropy and squared error is known to the run alone."""
    how = settings_of(run)
    if run.metric == "pinball":
        return partial(_pinball, level=float(how["net.quantile"]))
    usual = how.get("net.loss", "auto") in ("auto", "cross_entropy", "squared")
    if run.metric == "loss" and not (usual and how.get("net.class_weights", "none") == "none"):
        return None
    return None if run.metric == "loss" and run.facts.get("kind") == "survival" else METRICS.get(run.metric)


METRICS: dict[str, Measure] = {
    "cindex": _concordance,
    "deviance": _deviance,
    "accuracy": lambda y, p, w: _mean(p.argmax(-1) == y, w),
    "balanced": _balanced,
    "auc": _auc,
    "f1": _f1,
    "brier": _brier,
    "ece": _ece,
    "loss": lambda y, p, w: _mean(
        (p - y) ** 2 if p.ndim == 1 else -np.log(np.maximum(_at_target(p, y), 1e-12)), w
    ),
    "rmse": lambda y, p, w: np.sqrt(_mean((p - y) ** 2, w)),
    "mae": lambda y, p, w: _mean(np.abs(p - y), w),
    "r2": _r2,
}
