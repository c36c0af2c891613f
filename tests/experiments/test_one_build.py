"""On one partition, the figures, the estimators and the method Stacking give the same numbers: they share one build."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("onnxruntime")
from motet.client import Batch, Column, Data, Task
from motet.methods.stacking import Stacking
from motet.stacking.client_stack import classes_of, predictor, published, to_tree
from motet.stacking.client_stack import predict as answer
from motet.stacking.estimators import StackedClassifier
from motet.stacking.stack import StackRows, held_out, score

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "stacking"))
import paper_procedure
from paper_partition import Table, divide
from paper_procedure import How, Outcome, outcomes, public_models

from motet.data.federated import Pool

Array = np.ndarray[Any, Any]
NAMES = ("a", "b", "c", "d")
HOW = How(repeats=1, fast=False)
SEED = 1


@pytest.fixture(scope="module")
def table() -> Table:
    """Three clients of 200 rows; the first one is the one that stacks."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(600, 4)).round(2).astype(np.float32)
    y = (x[:, 0] * x[:, 1] + 0.5 * x[:, 2] + 0.4 * rng.normal(size=600) > 0).astype(np.int64)
    pool = Pool(x, y, "classes", ("no", "yes"), tuple(map(Column, NAMES)))
    return divide(pool, "iid", SEED, clients=3)


def places(y: Array, seed: int = 0, stratified: bool = True) -> tuple[Array, Array, Array]:
    """Train and Meta rows as the method and the estimators divide them, and the last fifth as Test rows."""
    rest = np.arange(len(y) * 4 // 5)
    train, meta = held_out(y[rest], 0.25, SEED, classes=True)
    return train, meta, np.arange(len(rest), len(y))


@pytest.fixture(scope="module")
def figures(table: Table) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper_procedure, "divide_rows", places)
        return outcomes(table, SEED, HOW)["all", 0.0]


def taught(table: Table, variant: str) -> tuple[Array, Array, Array, Array]:
    """Rows that a stack may learn from, in the order of the procedure, and Test rows."""
    x, y = table.x[table.rows[0]], table.y[table.rows[0]]
    train, meta, test = places(y)
    rest = np.arange(len(y) * 4 // 5) if variant == "held-out" else np.concatenate([train, meta])
    return x[rest], y[rest], x[test], y[test]


def expected(found: Outcome, variant: str) -> tuple[float, Array]:
    name = {"held-out": "held", "pooled": "pooled"}[variant]
    return float(getattr(found, name)[0, 0]), getattr(found, f"trust_{name}")[0]


@pytest.mark.parametrize("variant", ["held-out", "pooled"])
def test_the_estimator_has_the_score_and_importances_of_the_figures(
    table: Table, figures: Outcome, variant: str
) -> None:
    x, y, x_test, y_test = taught(table, variant)
    others = dict(zip(table.names[1:], public_models(table, SEED, HOW)[1:], strict=True))
    stack = StackedClassifier(others, variant=variant, random_state=SEED).fit(x, y)
    reached, shares = expected(figures, variant)
    assert score(y_test, stack.predict(x_test), classes=True) == reached
    assert list(stack.importances_.values()) == pytest.approx(shares)


@pytest.mark.parametrize("variant", ["held-out", "pooled"])
def test_the_method_has_the_score_and_importances_of_the_figures(
    table: Table, figures: Outcome, variant: str
) -> None:
    x, y, x_test, y_test = taught(table, variant)
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), "classes", 2)
    method = Stacking(task, trees=100, variant=variant, importance="mdi")
    kinds, classes = dict.fromkeys(NAMES, "number"), classes_of(task)
    served = {}
    for name, rows, model in zip(table.names, table.rows, public_models(table, SEED, HOW), strict=True):
        its_rows = StackRows(table.x[rows], table.y[rows], kinds, classes)
        served[name] = published(model, its_rows, name).tree()
    del served[table.names[0]]
    none = Batch.of(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    examples = torch.from_numpy(x), torch.from_numpy(y)
    data = Data(*examples, torch.tensor(len(y)), torch.tensor(SEED), none, tuple(map(Column, NAMES)))
    stack, found = method.build(served, data)
    own = predictor(to_tree(stack, served), served, [True] * 4)
    best = answer(own, torch.from_numpy(x_test), classes).argmax(1)
    reached, shares = expected(figures, variant)
    assert not found["refused"] and score(y_test, best, classes=True) == reached
    assert list(stack.importances.values()) == pytest.approx(shares)
