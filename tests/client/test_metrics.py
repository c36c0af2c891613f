"""Metrics of predictions: by hand, against scikit-learn, and blind to padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata
from sklearn import metrics as sk

from motet.client.metrics import MetricFailed, OwnMetric, metrics, probabilities
from motet.client.ranks import rank_sums

Array = np.ndarray[Any, Any]


def of(p: Any, y: Any, live: Any = None) -> dict[str, float]:
    """Metrics of one client with these probabilities."""
    p, y = np.asarray(p, float), np.asarray(y)
    rows = np.ones(len(y)) if live is None else np.asarray(live, float)
    found = metrics("classes", np.log(np.maximum(p, 1e-300))[None], y[None], rows[None])
    return {k: float(v[0]) for k, v in found.items()}


def one_sided(p: list[float]) -> Array:
    return np.stack([1 - np.array(p), np.array(p)], 1)


# ---- by hand ----


def test_accuracy_and_balanced_accuracy_by_hand() -> None:
    guesses = np.eye(3)[[0, 0, 1, 1, 0]]  # right: two of three 0s, the 1; wrong: the 2, which is padding
    found = of(guesses, [0, 0, 0, 1, 2], [1, 1, 1, 1, 0])
    assert found["accuracy"] == pytest.approx(3 / 4) and found["n"] == 4
    assert found["balanced"] == pytest.approx((2 / 3 + 1) / 2)


def test_auc_by_hand_counts_ties_half() -> None:
    found = of(one_sided([0.1, 0.4, 0.4, 0.8]), [0, 0, 1, 1])
    assert found["auc"] == pytest.approx((1 + 0.5 + 1 + 1) / 4) and found["pairs"] == 4


def test_auc_of_three_classes_is_the_mean_over_the_classes_that_are_there() -> None:
    p = [[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.5, 0.4, 0.1]]  # class 2 has no rows
    # class 0 against the rest: .6 and .5 against .2, both above; class 1: .5 against .3 and .4, both below
    assert of(p, [0, 1, 0])["auc"] == pytest.approx(1.0)
    # class 0: .6 > .2 and .5 > .2, now the row with .2 is of class 0 and the others are of class 1
    assert of(p, [1, 0, 1])["auc"] == pytest.approx(0.0)


def test_a_client_with_one_class_has_no_auc() -> None:
    found = of(one_sided([0.1, 0.9]), [1, 1])
    assert np.isnan(found["auc"]) and found["pairs"] == 0 and found["accuracy"] == 0.5


def test_a_client_without_rows_has_no_score_and_raises_nothing() -> None:
    found = metrics("classes", np.zeros((1, 0, 2)), np.zeros((1, 0), int), np.zeros((1, 0)))
    assert found["n"].tolist() == [0] and np.isnan(found["auc"]).all()


def test_auc_of_predictions_that_are_no_numbers_is_none() -> None:
    scores = np.array([[[0.0, np.nan], [0.0, 1.0]]])
    assert np.isnan(metrics("classes", scores, np.array([[0, 1]]), np.ones((1, 2)))["auc"][0])


def test_f1_loss_and_brier_by_hand() -> None:
    found = of(one_sided([0.8, 0.6, 0.3]), [1, 0, 0])  # guessed 1, 1, 0
    assert found["f1"] == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert found["loss"] == pytest.approx(-np.log([0.8, 0.4, 0.7]).mean())
    assert found["brier"] == pytest.approx((0.2**2 + 0.6**2 + 0.3**2) / 3)
    three = of([[0.5, 0.3, 0.2]], [1])
    assert three["brier"] == pytest.approx(0.5**2 + 0.7**2 + 0.2**2)


def test_calibration_error_by_hand() -> None:
    # confidences .9 (right), .9 (wrong), .6 (right): bins (13/15, 14/15] and (8/15, 9/15]
    found = of(one_sided([0.9, 0.9, 0.4]), [1, 0, 0])
    assert found["ece"] == pytest.approx((abs(1 - 1.8) + abs(1 - 0.6)) / 3)


def test_numbers_by_hand_in_the_targets_own_unit() -> None:
    y, z = np.array([[0.0, 1.0, 2.0, 9.0]]), np.array([[0.0, 1.0, 1.0, 0.0]])
    found = metrics("numbers", z, y, np.array([[1.0, 1.0, 1.0, 0.0]]), scale=10.0)
    assert found["rmse"][0] == pytest.approx((100 / 3) ** 0.5)
    assert found["mae"][0] == pytest.approx(10 / 3)
    assert found["r2"][0] == pytest.approx(0.5) and found["loss"][0] == pytest.approx(1 / 3)


def test_a_client_without_rows_has_no_error() -> None:
    found = of(one_sided([0.5]), [0], [0])
    assert found["n"] == 0 and np.isnan(found["auc"])


# ---- against scikit-learn ----

grid = st.integers(0, 8).map(lambda k: k / 8)  # few different values: many ties


@st.composite
def predictions(draw: Any, classes: int) -> tuple[Array, Array]:
    n = draw(st.integers(classes, 12))
    y = draw(
        st.permutations([*range(classes), *(draw(st.integers(0, classes - 1)) for _ in range(n - classes))])
    )
    p = np.array([[draw(grid) for _ in range(classes)] for _ in range(n)]) + 0.1
    return p / p.sum(1, keepdims=True), np.array(y)


@given(predictions(2))
@settings(max_examples=50, deadline=None)
def test_two_classes_are_measured_as_scikit_learn_does(found: tuple[Array, Array]) -> None:
    p, y = found
    ours = of(p, y)
    assert ours["auc"] == pytest.approx(sk.roc_auc_score(y, np.float32(np.log(p[:, 1]) - np.log(p[:, 0]))))
    assert ours["brier"] == pytest.approx(sk.brier_score_loss(y, p[:, 1]))
    assert_the_rest(ours, p, y)


@given(predictions(4))
@settings(max_examples=50, deadline=None)
def test_four_classes_are_measured_as_scikit_learn_does(found: tuple[Array, Array]) -> None:
    p, y = found
    ours, exact = of(p, y), probabilities(np.log(p)).astype(np.float32)
    areas = [sk.roc_auc_score(y == k, exact[:, k]) for k in range(4)]
    assert ours["auc"] == pytest.approx(np.mean(areas))
    assert ours["brier"] == pytest.approx(((p - np.eye(4)[y]) ** 2).sum(1).mean())
    assert_the_rest(ours, p, y)


def assert_the_rest(ours: dict[str, float], p: Array, y: Array) -> None:
    guess, labels = p.argmax(1), range(p.shape[1])
    assert ours["accuracy"] == pytest.approx(sk.accuracy_score(y, guess))
    assert ours["balanced"] == pytest.approx(sk.balanced_accuracy_score(y, guess))
    assert ours["f1"] == pytest.approx(sk.f1_score(y, guess, average="macro", labels=labels, zero_division=0))
    assert ours["loss"] == pytest.approx(sk.log_loss(y, p, labels=labels))


@given(predictions(3), st.integers(1, 5), st.integers(0, 2))
@settings(max_examples=50, deadline=None)
def test_padding_never_counts(found: tuple[Array, Array], more: int, label: int) -> None:
    p, y = found
    padded = np.concatenate([p, np.tile([[0.7, 0.2, 0.1]], (more, 1))])
    live = [1] * len(y) + [0] * more
    alone, beside = of(p, y), of(padded, np.append(y, [label] * more), live)
    assert {k: repr(v) for k, v in beside.items()} == {k: repr(v) for k, v in alone.items()}, "not in any bit"


def test_many_clients_are_measured_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    scores, y = random.normal(size=(7, 9, 3)), random.integers(0, 3, (7, 9))
    live = (np.arange(9) < random.integers(1, 10, (7, 1))).astype(float)
    whole = metrics("classes", scores, y, live)
    monkeypatch.setattr("motet.client.metrics._CELLS", 30)  # one client at a time
    for name, found in metrics("classes", scores, y, live).items():
        np.testing.assert_array_equal(found, whole[name])


# ---- a user's own ----


def own(function: Any) -> Array:
    y, p = np.array([[1, 0, 1], [0, 0, 0]]), np.ones((2, 3, 2)) / 2
    return OwnMetric("mine:share", function).of(["a", "b"], y, p, np.array([[1, 1, 0], [0, 0, 0]]))


def test_an_own_metric_sees_a_clients_real_rows_alone() -> None:
    seen = []
    found = own(lambda y, p: seen.append((y.tolist(), p.shape)) or y.mean())
    assert seen == [([1, 0], (2, 2))] and found[0] == 0.5 and np.isnan(found[1])


def test_an_own_metric_may_say_that_a_client_has_no_score() -> None:
    assert np.isnan(own(lambda y, p: None)).all()


def fails(y: Array, p: Array) -> float:
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (fails, "KeyError"),
        (lambda y, p: float("nan"), "nan"),
        (lambda y, p: "good", "good"),
        (lambda y, p: p, ""),
    ],
)
def test_an_own_metric_that_gives_no_score_is_named_with_its_client(function: Any, said: str) -> None:
    with pytest.raises(MetricFailed, match=f"mine:share, client a: .*{said}(.|\n)*hint"):
        own(function)


def test_larger_is_better_unless_the_function_says_otherwise() -> None:
    def cost(y: Array, p: Array) -> float:
        return 0.0

    assert OwnMetric("m:cost", cost).better == 1
    cost.smaller_is_better = True  # type: ignore[attr-defined]
    assert OwnMetric("m:cost", cost).better == -1


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(
            st.lists(
                st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1e-30]), min_size=3 * n, max_size=3 * n
            ),
            st.lists(st.integers(-1, 2), min_size=n, max_size=n),
            st.lists(st.booleans(), min_size=n, max_size=n),
        )
    ),
    st.sampled_from([1.0, -1.0]),
)
def test_rank_sums_are_those_of_mean_ranks_with_ties_and_without(drawn: Any, sign: float) -> None:
    numbers, column, live = drawn
    values, real = sign * np.array(numbers, np.float32).reshape(len(column), 3), np.array(live)
    found = rank_sums(values[None], np.array(column)[None], real[None])[0]
    for k in range(3):
        ranks = rankdata(values[real, k])
        assert found[k] == pytest.approx(ranks[np.array(column)[real] == k].sum())
