"""A loss of the user's own that a method minimises chooses the round, and is scored on rows that trained nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from motet.errors import RunError
from motet.runs.build import resolve
from motet.runs.recipe import read
from motet.runs.run import run

LOSSES = """
def one_minus_auc(scores, y):
    z = scores[:, 1] - scores[:, 0]
    gap = z[y == 1][:, None] - z[y == 0]
    return (gap < 0).double().mean() + (gap == 0).double().mean() / 2


def with_a_feature(scores, y, x):
    return ((scores.argmax(1) != y) * (x[:, 0] > 0)).double().mean()


def broken_on_few(scores, y):
    if len(y) < 40:
        raise RuntimeError("too few rows")
    return (scores.argmax(1) != y).double().mean()
"""
WORDS = [
    "data=breast_cancer",
    "data.split=iid",
    "data.clients=4",
    "data.unseen=0",
    "net=logistic",
    "method=swarm",
]
SHORT = ["method.stretch=3", "method.particles=5", "train.rounds=4"]


@pytest.fixture(autouse=True)
def losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "swarm_losses_here.py").write_text(LOSSES)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_the_loss_that_is_trained_chooses_the_round_and_is_scored(tmp_path: Path) -> None:
    name = "swarm_losses_here:one_minus_auc"
    done = run(read(words=[*WORDS, *SHORT, f"method.loss={name}"]), tmp_path / "r")
    facts = done.facts
    assert (facts["metric"], facts["metric_name"], facts["better"]) == ("own", name, -1)
    assert facts["metric_why"] == f"{name}, because it is the loss that is trained"
    scores = done.scores.query("side in ['global', 'personal']")
    assert set(scores["part"]) == {"val", "test"} and len(scores) > 8
    assert np.allclose(scores["own"], 1 - scores["auc"], atol=1e-6)
    by_round = scores.query("part == 'val' and side == 'personal'").groupby("round")["own"].mean()
    assert by_round[facts["reported"]] <= by_round.iloc[0]


@pytest.mark.parametrize("engine", ["loop", "vmap", "threads"])
def test_a_loss_may_need_a_feature_of_the_rows_it_is_scored_on(tmp_path: Path, engine: str) -> None:
    words = ["method.loss=swarm_losses_here:with_a_feature", f"engine.name={engine}"]
    found = run(read(words=[*WORDS, *SHORT, *words]), tmp_path / "r").test.query("side == 'personal'")
    assert ((found["own"] >= 0) & (found["own"] <= 1 - found["accuracy"] + 1e-9)).all()


def test_a_metric_that_is_named_is_the_metric(tmp_path: Path) -> None:
    words = ["method.loss=swarm_losses_here:one_minus_auc", "train.metric=accuracy"]
    done = run(read(words=[*WORDS, *SHORT, *words]), tmp_path / "r")
    assert done.facts["metric"] == "accuracy" and done.scores.get("own") is None


def test_a_network_that_is_left_open_is_one_layer_for_a_method_without_gradients() -> None:
    """A swarm moves few weights well, and many badly."""
    short = ["data=digits", "train.rounds=1"]
    nets = {
        m: resolve(read(words=[*short, f"method={m}"])).recipe["net"]["name"] for m in ("swarm", "fedavg")
    }
    assert nets == {"swarm": "logistic", "fedavg": "mlp"}


def test_a_loss_that_fails_on_validation_rows_is_named(tmp_path: Path) -> None:
    words = [*WORDS, *SHORT, "method.loss=swarm_losses_here:broken_on_few"]
    with pytest.raises(RunError, match=r"swarm_losses_here:broken_on_few, client .*too few rows.*\n?hint:"):
        run(read(words=words), tmp_path / "r")
