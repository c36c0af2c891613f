"""The one build of a stack: which rows teach which model, what combines them, and how it is scored."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from motet.stacking.families import forest
from motet.stacking.predictions import predictions, step_of
from motet.stacking.stack import Stack, StackRows, StackSettings, build, divide, held_out, score


def rows(many: int, seed: int = 0, classes: tuple[Any, ...] = (0, 1)) -> StackRows:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(many, 3))
    y = (x[:, 0] + x[:, 1] > 0).astype(int) if classes else x[:, 0] + x[:, 1]
    return StackRows(x, y, dict.fromkeys("abc", "number"), classes)


class Recorder(DecisionTreeClassifier):  # type: ignore[misc]
    """A tree that counts the rows it was fitted on."""

    def fit(self, X: Any, y: Any) -> Recorder:
        self.fitted_on_ = len(y)
        super().fit(X, y)
        return self


def test_held_out_divides_the_rows_and_pooled_uses_all_for_both_models() -> None:
    for variant, train, meta in (("held-out", 75, 25), ("pooled", 100, 100)):
        stack = build(StackSettings(Recorder(), Recorder(), variant=variant), rows(100), {}, 0)
        assert (stack.private.fitted_on_, stack.meta.fitted_on_) == (train, meta)


def test_of_two_classes_the_meta_model_sees_one_column_for_each_model_and_the_private_one_first() -> None:
    r = rows(60)
    other = LogisticRegression().fit(r.x, r.y)
    found, _ = predictions({"b": other, "a": other}, r.x, None, r.classes)
    stack = build(StackSettings(trees=3), r, found, 0)
    assert stack.owners == ("b", "a") and list(stack.importances) == ["private", "b", "a"]
    assert stack.meta.n_features_in_ == 3


def test_what_the_private_model_becomes_is_what_the_meta_model_learns_from() -> None:
    r = rows(60)
    stack = build(StackSettings(trees=3), r, {}, 0, prepare=lambda _: LogisticRegression().fit(r.x, r.y))
    assert isinstance(stack.private, LogisticRegression)


def test_with_fewer_than_eight_rows_the_prediction_is_the_mean_of_all_models() -> None:
    r = rows(7)
    other = np.tile([0.2, 0.8], (7, 1))
    stack = build(StackSettings(trees=3), r, {"o": other}, 0)
    own = stack.private.predict_proba(r.x)
    assert stack.meta is None and stack.importances == {"private": 0.5, "o": 0.5}
    assert np.allclose(stack.predict(r.x, None, {"o": other}), (own + other) / 2)


def test_rows_of_one_class_get_a_forest_because_linear_models_refuse_them() -> None:
    r = rows(20)
    one = StackRows(r.x, np.ones(20, int), r.kinds, r.classes)
    stack = build(StackSettings("linear", trees=3), one, {}, 0)
    assert stack.predict(r.x, None, {}).tolist() == [[0.0, 1.0]] * 20


def test_alone_is_the_private_model_without_others() -> None:
    r = rows(30)
    stack = build(StackSettings("linear", variant="alone"), r, {"o": np.full((30, 2), 0.5)}, 0)
    assert stack.importances == {"private": 1.0, "o": 0.0}
    assert np.allclose(stack.predict(r.x, None, {}), stack.private.predict_proba(r.x), rtol=0, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.floats(0.05, 0.3), st.integers(0, 99))
def test_where_meta_rows_show_two_classes_train_rows_do(y: list[int], share: float, seed: int) -> None:
    train, meta = held_out(np.array(y), share, seed, classes=True)
    assert sorted([*train, *meta]) == list(range(len(y)))
    assert len({y[k] for k in meta}) < 2 or len({y[k] for k in train}) >= 2


def test_rows_are_pooled_if_the_held_out_ones_would_show_one_class() -> None:
    r = rows(40)
    rare = StackRows(r.x, (np.arange(40) == 0).astype(int), r.kinds, r.classes)
    train, meta = divide(StackSettings(), rare, 0)
    assert len(train) == len(meta) == 40


def test_numbers_are_held_out_too() -> None:
    train, meta = divide(StackSettings(every_class=True), rows(40, classes=()), 0)
    assert (len(train), len(meta)) == (30, 10)


def test_meta_rows_must_show_every_class_only_where_wanted() -> None:
    r = rows(40)
    three = StackRows(r.x, np.r_[np.zeros(20), np.ones(19), 2].astype(int), r.kinds, (0, 1, 2))
    assert [len(divide(StackSettings(every_class=e), three, 0)[1]) for e in (False, True)] == [10, 40]


def test_scores_by_hand() -> None:
    y, predicted = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])
    assert score(y, predicted, classes=True) == pytest.approx((2 / 3 + 1) / 2)
    assert score(np.array([1.0, 3.0]), np.array([1.0, 2.0]), classes=False) == pytest.approx(1 - 1 / 2)
    assert score(np.array([1.0, 1.0]), np.array([1.0, 1.0]), classes=False) == 1.0


def test_a_model_of_other_classes_is_refused_with_the_reason() -> None:
    r = rows(30)
    words = LogisticRegression().fit(r.x, np.array(["no", "yes"])[r.y])
    found, refused = predictions({"w": words}, r.x, None, (0, 1))
    assert found == {} and refused["w"].startswith("client w: its model predicts the classes")
    assert "numbers are wanted" in predictions({"w": words}, r.x, None, ())[1]["w"]


@pytest.mark.parametrize("classes", [(0, 1), ()])
def test_a_meta_model_does_not_see_how_equal_votes_were_added(classes: tuple[Any, ...]) -> None:
    r, rng = rows(200, classes=classes), np.random.default_rng(1)
    votes = np.round(np.clip(r.x[:, :1] / 4 + 0.5 + rng.normal(size=(200, 1)) / 9, 0, 1), 1)  # of ten trees
    votes = np.hstack([1 - votes, votes]) if classes else votes

    def other() -> Any:
        return {"o": votes + rng.normal(size=votes.shape) * 1e-7}

    stack = build(StackSettings(trees=10), r, other(), 0)
    again = build(StackSettings(trees=10), r, other(), 0)
    assert again.importances == stack.importances
    expected = stack.predict(r.x, None, other())
    for _ in range(5):
        assert (again.predict(r.x, None, other()) == expected).all()


def test_votes_of_any_number_of_trees_are_never_half_way_between_two_steps() -> None:
    step = step_of(np.array([0, 1]), classes=True)
    for trees in range(1, 200):
        at = np.arange(trees + 1) / trees / step
        assert np.abs(at - np.floor(at) - 0.5).min() * step > 2e-7


def test_the_step_of_numbers_goes_with_their_spread() -> None:
    y = np.arange(10.0)
    small, large = (step_of(y * k, classes=False) for k in (2.0**-30, 2.0**30))
    assert large == small * 2.0**60 and 1e-5 < small / (y * 2.0**-30).std() < 2e-4


def test_equal_votes_for_two_classes_stay_equal() -> None:
    class Half:
        def __init__(self, off: float) -> None:
            self.off, self.classes_ = off, np.array([0, 1])

        def predict_proba(self, x: Any) -> Any:
            return np.tile(np.array([0.5 - self.off, 0.5 + self.off], np.float32), (len(x), 1))

    step = step_of(np.array([0, 1]), classes=True)
    for off in (-2e-7, 0.0, 2e-7):
        p = Stack(Half(off), None, (), {}, (0, 1), step=step).predict(np.zeros((3, 1)), None, {})
        assert (p == 0.5).all()


def test_forests_are_quiet_where_another_thread_took_the_warning_filters_away() -> None:
    some, heard = rows(40), list[str]()
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: heard.append(str(message))  # type: ignore[assignment]
        warnings.resetwarnings()
        forest("classes", 0, 3).fit(some.x, some.y)
        warnings.warn("another one", stacklevel=1)
    assert heard == ["another one"]
