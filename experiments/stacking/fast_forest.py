"""scikit-learn's random forest for two classes, tree for tree, grown by compiled code in a fraction of the time.

The draws, the order in which columns are tried, the splits and the thresholds are those of scikit-learn's
RandomForestClassifier with its defaults; a test compares every node. What is faster: values of a column are
numbered once for all trees, and a node counts them instead of sorting its rows. Sums are of whole numbers, so that
the order of the rows changes nothing.

Knows tables of numbers without gaps and two classes. Does not know weights, other classes, or stacks. Needs numba.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from fast_splits import Array, compiled, gini, split_node
from sklearn.base import BaseEstimator, ClassifierMixin

SEEDS = np.iinfo(np.int32).max  # scikit-learn draws seeds below it
EPSILON = np.finfo(np.float64).eps
BLOCK = 256  # rows that walk down all trees together
NODE = np.dtype(
    [("threshold", np.float64), ("positive", np.float64), ("column", np.int32), ("right", np.int32)]
)  # column -1: a leaf; right: places from the root to the right child; the left one is the next node
Numbered = tuple[
    Array, Array, Array
]  # distinct values of all columns, where each begins, (columns, rows) numbers


class FastForest(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """`RandomForestClassifier(n_estimators, random_state=random_state)` for the classes 0 and 1."""

    def __init__(self, n_estimators: int = 100, random_state: int = 0) -> None:
        self.n_estimators, self.random_state = n_estimators, random_state

    def fit(self, x: Array, y: Array) -> FastForest:
        x = np.ascontiguousarray(x, np.float32)
        return self.fit_numbered(numbered(x), np.arange(len(x)), y)

    def fit_numbered(self, table: Numbered, rows: Array, y: Array) -> FastForest:
        """The forest of some rows of a table whose values have been numbered before."""
        self.classes_ = np.unique(y)
        if not np.array_equal(self.classes_, [0, 1]):
            raise ValueError(
                f"a fast forest learns the classes 0 and 1; the rows have {self.classes_.tolist()}"
            )
        if np.shape(y) != np.shape(rows):
            raise ValueError(f"there are {len(rows)} rows, and answers of the shape {np.shape(y)}")
        values, start, codes = table
        self.n_features_in_ = len(codes)
        codes, y = np.ascontiguousarray(codes[:, rows]), np.asarray(y, np.int32)
        width = max(1, int(np.sqrt(len(codes))))
        draws = bootstraps(self.random_state, self.n_estimators, len(y))
        self._keep([grow(codes, values, start, y, times, width, state) for times, state in draws])
        return self

    def _keep(self, grown: list[tuple[Array, ...]]) -> None:
        sizes = [len(g[0]) for g in grown]
        self.roots_ = np.cumsum([0, *sizes[:-1]])
        self.nodes_ = np.zeros(sum(sizes), NODE)
        for k, name in enumerate(("column", "threshold", "right", "positive")):
            self.nodes_[name] = np.concatenate([g[k] for g in grown])
        self.importances_ = [g[4] for g, many in zip(grown, sizes, strict=True) if many > 1]

    @property
    def feature_importances_(self) -> Array:
        if not self.importances_:
            return np.zeros(self.n_features_in_)
        mean = np.mean(self.importances_, axis=0)
        return np.asarray(mean / mean.sum())

    def predict_proba(self, x: Array) -> Array:
        x = np.ascontiguousarray(x, np.float32)
        if x.ndim != 2 or x.shape[1] != self.n_features_in_ or not np.isfinite(x).all():
            raise ValueError(
                f"a fast forest of {self.n_features_in_} columns predicts rows of as many finite numbers"
            )
        return walked(x, self.roots_, self.nodes_) / self.n_estimators

    def predict(self, x: Array) -> Array:
        return np.asarray(self.predict_proba(x).argmax(1))


def numbered(x: Array) -> Numbered:
    """The table with the distinct values of each column as whole numbers from 0 on."""
    if not np.isfinite(x).all():
        raise ValueError("a fast forest learns from numbers; the table has gaps or infinite numbers")
    found = [np.unique(column, return_inverse=True) for column in np.ascontiguousarray(x.T)]
    start = np.cumsum([0, *(len(v) for v, _ in found)])
    small = np.uint16 if max(len(v) for v, _ in found) < 2**16 else np.int32
    return np.concatenate([v for v, _ in found]), start, np.stack([c for _, c in found]).astype(small)


def in_columns(table: Numbered, holds: Array) -> Numbered:
    """The same with some of its columns."""
    values, start, codes = table
    kept = np.flatnonzero(holds)
    parts = [values[start[c] : start[c + 1]] for c in kept]
    return np.concatenate(parts), np.cumsum([0, *map(len, parts)]), codes[kept]


@lru_cache(maxsize=4)
def bootstraps(seed: int, trees: int, rows: int) -> list[tuple[Array, np.uint32]]:
    """For each tree, how often each row is drawn, and the first state of its generator."""
    draws, again, found = np.random.RandomState(seed), np.random.RandomState(0), []
    for _ in range(trees):
        own = draws.randint(SEEDS)
        again.seed(own)
        times = np.bincount(again.randint(0, rows, rows), minlength=rows).astype(np.int32)
        again.seed(own)
        found.append((times, np.uint32(again.randint(0, SEEDS))))
    return found


@compiled
def grow(
    codes: Array, values: Array, start: Array, y: Array, times: Array, width: int, state: np.uint32
) -> tuple[Array, Array, Array, Array, Array]:
    """One tree, depth first, the left child behind its parent: columns (-1: a leaf), thresholds, right children,
    shares of class 1, and the columns' importances."""
    rows = np.flatnonzero(times).astype(np.uint32)
    kinds = (times[rows] * 2 + y[rows]).astype(np.int32)  # beside the rows: how often, and the class
    most, many = 2 * len(rows) + 1, len(codes)
    column, right = np.full(most, -1, np.int32), np.zeros(most, np.int32)
    threshold, positive = np.zeros(most), np.zeros(most)
    columns, constant = np.arange(many), np.arange(many)
    count, keys = np.zeros((np.diff(start).max(), 2), np.int32), np.zeros(len(rows), np.int64)
    gains, whole = np.zeros(many), float(times.sum())
    spans = np.zeros(
        (len(rows) + 2, 4), np.int64
    )  # of nodes to come: first row, end, parent or -1, constants
    impurities = np.zeros(len(rows) + 2)
    zeros, ones = sums(kinds, 0, len(rows))
    waiting, nodes = put(spans, impurities, 0, (0, len(rows), -1, 0), gini(zeros, ones)), 0
    while waiting:
        waiting -= 1
        a, b, parent, known = spans[waiting, 0], spans[waiting, 1], spans[waiting, 2], spans[waiting, 3]
        node, impurity = nodes, impurities[waiting]
        nodes += 1
        if parent >= 0:
            right[parent] = node
        zeros, ones = sums(kinds, a, b)
        positive[node] = ones / (zeros + ones)
        if b - a < 2 or impurity <= EPSILON:
            continue
        c, last, after, known, state = split_node(
            codes,
            values,
            start,
            rows,
            a,
            b,
            kinds,
            zeros,
            ones,
            columns,
            constant,
            known,
            width,
            state,
            count,
            keys,
        )
        if c < 0:
            continue
        middle = parted(codes, c, last, rows, kinds, a, b)
        gain, less, on_left, on_right = gained(kinds, a, middle, zeros, ones, impurity)
        if (zeros + ones) / whole * less + EPSILON < 0.0:
            continue
        column[node] = c
        threshold[node] = (
            np.float64(values[start[c] + last]) / 2.0 + np.float64(values[start[c] + after]) / 2.0
        )
        gains[c] += gain
        waiting = put(spans, impurities, waiting, (middle, b, node, known), on_right)
        waiting = put(spans, impurities, waiting, (a, middle, -1, known), on_left)
    return (
        column[:nodes].copy(),
        threshold[:nodes].copy(),
        right[:nodes].copy(),
        positive[:nodes].copy(),
        shares(gains, whole),
    )


@compiled
def put(spans: Array, impurities: Array, place: int, span: tuple[int, int, int, int], impurity: float) -> int:
    """Enters a node that is to come, and gives the next free place."""
    spans[place, 0], spans[place, 1], spans[place, 2], spans[place, 3] = span
    impurities[place] = impurity
    return place + 1


@compiled
def gained(
    kinds: Array, a: int, middle: int, zeros: float, ones: float, impurity: float
) -> tuple[float, float, float, float]:
    """What a cut takes off the impurity, weighted by rows and for a row, and the impurities of both children."""
    zeros_left, ones_left = sums(kinds, a, middle)
    size, left = zeros + ones, zeros_left + ones_left
    on_left, on_right = gini(zeros_left, ones_left), gini(zeros - zeros_left, ones - ones_left)
    less = impurity - (size - left) / size * on_right - left / size * on_left
    return size * impurity - left * on_left - (size - left) * on_right, less, on_left, on_right


@compiled
def shares(gains: Array, whole: float) -> Array:
    """Importances that sum to 1; a tree without a cut has none."""
    gains = gains / whole
    return gains / gains.sum() if gains.sum() > 0 else gains


@compiled
def sums(kinds: Array, a: int, b: int) -> tuple[float, float]:
    """Rows of class 0 and of class 1, each as often as it was drawn."""
    every, ones = 0, 0
    for p in range(a, b):
        every += kinds[p] >> 1
        ones += (kinds[p] >> 1) * (kinds[p] & 1)
    return float(every - ones), float(ones)


@compiled
def parted(codes: Array, c: int, last: int, rows: Array, kinds: Array, a: int, b: int) -> int:
    """Brings the rows of the left child to the front, and gives the place where those of the right one begin."""
    middle = a
    for p in range(a, b):
        row, kind = rows[p], kinds[p]
        if codes[c, row] <= last:
            rows[p], rows[middle] = rows[middle], row
            kinds[p], kinds[middle] = kinds[middle], kind
            middle += 1
    return middle


@compiled
def walked(x: Array, roots: Array, nodes: Array) -> Array:
    """(rows, 2): the sum over trees of each row's shares of the classes."""
    found = np.zeros((len(x), 2))
    for a in range(0, len(x), BLOCK):
        for root in roots:
            for r in range(a, min(a + BLOCK, len(x))):
                at = root
                while nodes[at].column >= 0:
                    right = root + nodes[at].right
                    at = at + 1 if x[r, nodes[at].column] <= nodes[at].threshold else right
                found[r, 1] += nodes[at].positive
                found[r, 0] += 1.0 - nodes[at].positive
    return found
