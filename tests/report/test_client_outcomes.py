"""Better, same or worse, by a client's own test rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from motet.report.client_outcomes import METRICS, Predicted, _by_bootstrap, outcomes
from motet.report.gains import pairs
from motet.report.read import read


def predict(folder, classes=None, values=None, target=None, side="personal"):
    """predictions.parquet of client a: classes that are called with 0.9, or probabilities of class 1, or numbers."""
    target = (
        np.zeros(len(classes if classes is not None else values), int)
        if target is None
        else np.asarray(target)
    )
    frame = pd.DataFrame({"side": side, "client": "a", "row": range(len(target)), "target": target})
    if classes is not None:
        p = (
            np.where(np.asarray(classes) == 1, 0.9, 0.1)
            if np.asarray(classes).dtype == int
            else np.asarray(classes)
        )
        frame["p0"], frame["p1"] = 1 - p, p
    else:
        frame["value"] = values
    frame.to_parquet(folder / "predictions.parquet")


def called(make, own, other, metric="accuracy", seeds=1, by=None):
    """What client a is called, where the k-th seed of both predicts own[k] and other[k]."""
    runs = {}
    for method, found in (("ditto", own), ("local", other)):
        for seed in range(seeds):
            folder = make(method, {"a": 0.5}, seed=seed, split=0, metric=metric, tests=40)
            if found is not None:
                predict(folder, **found[seed])
            run = read([folder])[0]
            runs.setdefault(method, []).append(replace(run, facts=run.facts | {"metric": by or metric}))
    (outcome,) = outcomes(pairs(runs["ditto"], runs["local"])).values()
    return outcome


def right(many, of=40):
    return {"classes": np.array([0] * many + [1] * (of - many))}


def test_six_rows_more_right_are_better(make):
    assert called(make, [right(26)], [right(20)]) == "better"


def test_five_rows_more_right_are_the_same(make):
    assert called(make, [right(25)], [right(20)]) == "same"


def test_fewer_rows_right_are_worse(make):
    assert called(make, [right(10)], [right(20)]) == "worse"


def test_a_row_counts_once_over_seeds(make):
    # four rows more right in each of three seeds are four rows, not twelve
    assert called(make, [right(24)] * 3, [right(20)] * 3, seeds=3) == "same"


def test_without_predictions_accuracies_are_compared_as_two_samples(make):
    assert called(make, None, None) == "same"


def test_without_predictions_errors_tell_nothing(make):
    assert called(make, None, None, metric="rmse") == "not known"


def test_rows_that_differ_are_not_compared_row_by_row(make):
    assert called(make, [right(40)], [{"classes": np.zeros(39, int)}]) == "same"  # by 0.5 and 0.5


def test_errors_are_told_apart_by_a_bootstrap_of_rows(make):
    draw = np.random.default_rng(0)
    target = draw.normal(size=60)
    noise = draw.normal(size=60)
    near, far = ({"values": target + k * noise, "target": target} for k in (0.5, 1.0))
    assert called(make, [near], [far], metric="rmse") == "better"


def test_errors_that_differ_by_chance_are_the_same(make):
    draw = np.random.default_rng(1)
    target = draw.normal(size=60)
    one, two = ({"values": target + draw.normal(size=60), "target": target} for _ in range(2))
    assert called(make, [one], [two], metric="rmse") == "same"


def test_areas_are_told_apart_where_accuracies_cannot_be(make):
    draw, target = np.random.default_rng(2), np.array([1] * 8 + [0] * 72)
    good = 0.3 * np.where(
        target == 1, draw.uniform(0.5, 1, 80), draw.uniform(0, 0.7, 80)
    )  # never above a half
    chance = 0.3 * draw.uniform(size=80)
    some = [[{"classes": p, "target": target}] for p in (good, chance)]
    assert called(make, *some, by="auc") == "better"


def test_metrics_of_rows_that_all_count_once_are_the_usual_ones():
    from sklearn import metrics as usual

    draw = np.random.default_rng(3)
    y, p = draw.integers(0, 3, 50), draw.dirichlet(np.ones(3), 50).round(2)
    p = p / p.sum(-1, keepdims=True)
    once, guess = np.ones((1, 50)), p.argmax(-1)
    areas = [usual.roc_auc_score(y == k, p[:, k]) for k in range(3)]
    expected = {
        "accuracy": usual.accuracy_score(y, guess), "balanced": usual.balanced_accuracy_score(y, guess),
        "f1": usual.f1_score(y, guess, average="macro"), "auc": np.mean(areas),
    }  # fmt: skip
    assert {k: float(METRICS[k](y, p, once)[0]) for k in expected} == pytest.approx(expected)
    real, found = draw.normal(size=50), draw.normal(size=50)
    assert METRICS["r2"](real, found, once)[0] == pytest.approx(usual.r2_score(real, found))
    assert METRICS["mae"](real, found, once)[0] == pytest.approx(usual.mean_absolute_error(real, found))


def test_a_row_of_weight_two_is_a_row_twice():
    draw = np.random.default_rng(4)
    y, p = draw.integers(0, 2, 30), draw.dirichlet(np.ones(2), 30)
    weights = draw.integers(0, 3, 30)
    twice = np.repeat(np.arange(30), weights)
    for name in ("accuracy", "balanced", "f1", "auc", "brier", "ece", "loss"):
        ours = METRICS[name](y, p, weights[None].astype(float))[0]
        assert ours == pytest.approx(METRICS[name](y[twice], p[twice], np.ones((1, len(twice))))[0]), name


def test_nothing_is_said_of_a_client_with_few_test_rows_and_little_that_is_false_of_others():
    draw = np.random.default_rng(3)

    def equal_models(rows):
        y, *found = draw.normal(size=(3, rows))
        one, two = (Predicted(y, y + f) for f in found)
        return _by_bootstrap({0: [(one, two)]}, "rmse", METRICS["rmse"], -1, 0.25)

    assert {equal_models(rows) for rows in (1, 2, 9)} == {"not known"}
    called = [equal_models(20) for _ in range(200)]
    assert called.count("same") >= 0.91 * 200


def test_splits_of_data_that_fix_the_test_rows_count_a_row_once(make):
    # four rows more right in each of three splits are four rows, as with three seeds
    found = {}
    for fixed in (True, False):
        runs = {}
        for method, many in (("ditto", 24), ("local", 20)):
            for split in range(3):
                where = make(
                    method, {"a": 0.5}, folder=f"{method}-{split}-{fixed}", split=split, natural=True,
                    given_tests=fixed, tests=40,
                )  # fmt: skip
                predict(where, **right(many))
                runs.setdefault(method, []).append(read([where])[0])
        (found[fixed],) = outcomes(pairs(runs["ditto"], runs["local"])).values()
    assert found == {True: "same", False: "better"}


def test_rows_with_uneven_weights_count_for_fewer():
    from motet.report.client_outcomes import Predicted, rows_that_count

    y, p = np.zeros(4), np.zeros((4, 2))
    one = Predicted(y, p, np.array([3.0, 1.0, 1.0, 1.0]))  # 6^2 / 12
    assert rows_that_count({0: [(one, one)]}, "accuracy", 0.2) == pytest.approx(3)
    same = Predicted(y, p)
    assert rows_that_count({0: [(same, same)]}, "accuracy", 0.2) == 4
