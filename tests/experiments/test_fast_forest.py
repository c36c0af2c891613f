"""The fast forest is scikit-learn's, node for node; and with it the procedure gives the authors' published numbers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from motet.data.federated import DataError

pytest.importorskip("numba")
sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "stacking"))
import published_clients
from fast_forest import FastForest, in_columns, numbered
from paper_procedure import How

Array = np.ndarray
KINDS = ("numbers", "flags and ages", "shares of hundred trees", "nearly equal", "one column")


def table(kind: str, rows: int = 400) -> tuple[Array, Array]:
    rng = np.random.default_rng(KINDS.index(kind))
    x = rng.normal(size=(rows, 9))
    if kind == "flags and ages":
        x = np.column_stack([rng.integers(0, 2, (rows, 12)), rng.integers(17, 90, rows)])
    if kind == "shares of hundred trees":
        x = rng.integers(0, 101, (rows, 10)) / 100
    if kind == "nearly equal":
        x = 1 + np.round(x, 1) * 1e-7  # scikit-learn takes values for equal that are nearer than 1e-7
    if kind == "one column":
        x = x[:, :1]
    y = (x[:, 0] + x[:, -1] + rng.normal(size=rows) * x.std() > 2 * x.mean()).astype(int)
    return x.astype(np.float32), y


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 7])
def test_every_node_is_that_of_scikit_learn(kind: str, seed: int) -> None:
    x, y = table(kind)
    ours = FastForest(20, seed).fit(x[:300], y[:300])
    theirs = RandomForestClassifier(20, random_state=seed).fit(x[:300], y[:300])
    trees = [t.tree_ for t in theirs.estimators_]
    columns = np.concatenate([np.maximum(t.feature, -1) for t in trees])
    cuts = np.concatenate([np.where(t.feature < 0, 0, t.threshold) for t in trees])
    assert np.array_equal(ours.nodes_["column"], columns) and np.array_equal(ours.nodes_["threshold"], cuts)
    assert ours.predict_proba(x) == pytest.approx(theirs.predict_proba(x), abs=1e-14)
    assert np.array_equal(ours.predict(x), theirs.predict(x))
    assert ours.feature_importances_ == pytest.approx(theirs.feature_importances_, abs=1e-14)


def test_rows_and_columns_of_a_table_that_was_numbered_as_a_whole_give_the_same_forest() -> None:
    x, y = table("flags and ages")
    rows, holds = np.arange(0, 400, 3), np.arange(13) % 2 == 0
    whole = FastForest(5, 1).fit_numbered(in_columns(numbered(x), holds), rows, y[rows])
    alone = FastForest(5, 1).fit(x[rows][:, holds], y[rows])
    assert np.array_equal(whole.nodes_, alone.nodes_)


def test_what_it_does_not_know_is_refused() -> None:
    x, y = table("numbers")
    with pytest.raises(ValueError, match="0 and 1"):
        FastForest(2).fit(x, y + 1)
    x[3, 3] = np.nan
    with pytest.raises(ValueError, match="gaps"):
        FastForest(2).fit(x, y)


def test_a_result_names_the_library_that_made_it() -> None:
    assert set(How().library()) == {"forests", "grown by"}
    assert set(How(fast=False).library()) == {"forests"}


@pytest.mark.long
@pytest.mark.parametrize("alpha", [0.5, 100.0])
def test_every_client_of_census_has_the_authors_published_numbers(alpha: float) -> None:
    """Baseline, gains of both stacks and self-importances of ten clients, five repeats: to 1e-5."""
    try:
        found = published_clients.ours(alpha)
    except DataError as lacking:
        pytest.skip(str(lacking).splitlines()[0])
    assert np.abs(found - published_clients.published()[alpha]).max() < 1e-5


@pytest.mark.long
def test_scikit_learn_itself_gives_them_too() -> None:
    try:
        found = published_clients.ours(100.0, fast=False)
    except DataError as lacking:
        pytest.skip(str(lacking).splitlines()[0])
    assert np.abs(found - published_clients.published()[100.0]).max() < 1e-5
