"""StackedClassifier and StackedRegressor, with models in memory and models that were published."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from motet.errors import UsageError
from motet.published import Feature, defaults, publish
from motet.stacking.estimators import StackedClassifier, StackedRegressor, gains

NAMES = ["age", "wage", "rent", "male"]


def rows(many: int, seed: int = 0, classes: int = 2) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(many, 4))
    z = x[:, 0] + x[:, 1] - 0.5 * x[:, 2] + 0.3 * rng.normal(size=many)
    return x, np.digitize(z, np.quantile(z, np.arange(1, classes) / classes))


def small(**more: Any) -> dict[str, Any]:
    return {"private": DecisionTreeClassifier(max_depth=3, random_state=0), "random_state": 0} | more


def expert(classes: int = 2) -> Any:
    return LogisticRegression().fit(*rows(2000, 9, classes))


@parametrize_with_checks(
    [
        StackedClassifier(private=DecisionTreeClassifier(random_state=0), meta="linear"),
        StackedRegressor(private=LinearRegression(), meta="linear"),
    ]
)
def test_the_estimators_are_those_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("variant", ["held-out", "pooled"])
def test_an_expert_that_is_fetched_helps_and_is_trusted(classes: int, variant: str) -> None:
    x, y = rows(150, 1, classes)
    xt, yt = rows(1000, 2, classes)
    stack = StackedClassifier({"expert": expert(classes)}, **small(variant=variant)).fit(x, y)
    alone = clone(small()["private"]).fit(x, y)
    assert stack.score(xt, yt) > alone.score(xt, yt) + 0.03
    assert stack.importances_["expert"] > 0.5 and sum(stack.importances_.values()) == pytest.approx(1)
    assert np.allclose(stack.predict_proba(xt).sum(1), 1)


def test_words_are_classes_too_and_their_order_in_a_fetched_model_does_not_matter() -> None:
    x, y = rows(200, 1)
    words = np.array(["no", "yes"])[y]
    flipped = LogisticRegression().fit(*rows(2000, 9))
    flipped.coef_, flipped.intercept_ = -flipped.coef_, -flipped.intercept_
    flipped.classes_ = np.array(["yes", "no"])
    stack = StackedClassifier({"f": flipped}, **small()).fit(x, words)
    xt, yt = rows(500, 2)
    assert set(stack.predict(xt)) == {"no", "yes"}
    assert stack.score(xt, np.array(["no", "yes"])[yt]) > 0.85


def test_numbers_are_stacked_too() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4))
    y = x @ [1, 2, -1, 0] + 0.1 * rng.normal(size=120)
    other = LinearRegression().fit(x[:60], y[:60])
    for meta in ("forest", "linear"):
        stack = StackedRegressor([other], meta=meta, random_state=0).fit(x[60:], y[60:])
        assert stack.score(x[:60], y[:60]) > 0.7 and stack.importances_["model 0"] > 0.5


def published(client: str, names: list[str], many: int = 800) -> Any:
    x, y = rows(many, hash(client) % 100)
    at = [NAMES.index(n) for n in names]
    features = defaults(x[:, at], dict.fromkeys(names, "number"))
    return publish(
        LogisticRegression().fit(x[:, at], y), features, client=client, task="classes", classes=("0", "1")
    )


def test_published_models_with_other_columns_get_theirs_by_name() -> None:
    x, y = rows(200, 1)
    frame = pd.DataFrame(x[:, :2], columns=NAMES[:2])
    whole, part = published("whole", NAMES), published("part", ["wage", "age"])
    stack = StackedClassifier([whole, part], **small()).fit(frame, y)
    assert stack.refused_ == {} and set(stack.importances_) == {"private", "whole", "part"}
    by_names = StackedClassifier([whole, part], **small(names=NAMES[:2])).fit(x[:, :2], y)
    assert np.allclose(stack.predict_proba(frame), by_names.predict_proba(x[:, :2]))


def test_a_model_that_cannot_be_used_is_named_and_the_stack_goes_on() -> None:
    x, y = rows(200, 1)
    good = published("good", NAMES)
    broken = type(good)(good.manifest, good.model[:-5])
    known, odd = LogisticRegression().fit(x, y), {"task": "classes", "classes": ("a", "b")}
    strange = publish(known, [Feature(n) for n in NAMES], client="strange", **odd)
    stack = StackedClassifier({"good": good, "broken": broken, "strange": strange}, **small(names=NAMES))
    with pytest.warns(UserWarning, match="left out of the stack"):
        stack.fit(x, y)
    assert set(stack.refused_) == {"broken", "strange"} and "good" in stack.importances_
    assert stack.refused_["broken"].startswith("client broken: ")


def test_a_fitted_model_that_needs_columns_which_are_missing_says_so() -> None:
    x, y = rows(100, 1)
    model = LogisticRegression().fit(pd.DataFrame(x, columns=NAMES), y)
    with pytest.raises(ValueError, match="hint: have it published"):
        StackedClassifier({"m": model}, **small()).fit(pd.DataFrame(x[:, :2], columns=NAMES[:2]), y)


def test_a_budget_of_bytes_chooses_by_columns_in_common() -> None:
    x, y = rows(100, 1)
    models = [published("alike", ["age", "wage"]), published("other", ["rent", "male"])]
    room = max(len(m.model) for m in models)
    stack = StackedClassifier(models, **small(names=["age", "wage"], budget=room)).fit(x[:, :2], y)
    assert list(stack.fetched_) == ["alike"]


def test_auto_does_not_stack_where_nobody_helps_and_stacks_where_somebody_does() -> None:
    x, y = rows(300, 1)
    auto = small(variant="auto", private=LogisticRegression(), meta="linear")
    noise = StackedClassifier({"n": DummyClassifier(strategy="prior").fit(x, y)}, **auto).fit(x, y)
    assert noise.choices_["alone"] >= max(noise.choices_.values()) - 0.01 and len(noise.choices_) == 5
    weak = StackedClassifier({"e": expert()}, **small(variant="auto", meta="linear")).fit(x, y)
    assert weak.plan_.variant in ("held-out", "pooled") and weak.importances_["e"] > 0.4


def test_fetched_models_predict_once_whatever_is_tried() -> None:
    class Counting(LogisticRegression):  # type: ignore[misc]
        times = 0

        def predict_proba(self, X: Any) -> Any:
            Counting.times += 1
            return super().predict_proba(X)

    x, y = rows(150, 1)
    StackedClassifier({"a": Counting().fit(x, y)}, **small(variant="auto", meta="linear")).fit(x, y)
    assert Counting.times == 1


def test_private_and_meta_models_can_be_searched() -> None:
    x, y = rows(120, 1)
    stack = StackedClassifier({"e": expert()}, private="search", meta="search", cv=2, random_state=0).fit(
        x, y
    )
    assert "model" in stack.private_.best_params_ and "model" in stack.meta_.best_params_


@pytest.mark.parametrize("how", ["permutation", "shapley"])
def test_importances_of_any_meta_model(how: str) -> None:
    x, y = rows(150, 1)
    meta = RandomForestClassifier(20, random_state=0)
    stack = StackedClassifier({"e": expert()}, **small(meta=meta, importance=how)).fit(x, y)
    assert stack.importances_["e"] > stack.importances_["private"]


def test_a_copy_for_cross_validation_keeps_what_was_fetched_as_it_is() -> None:
    stack = StackedClassifier({"e": expert()}, **small())
    assert clone(stack).models is stack.models and clone(stack).private is not stack.private


def test_the_gain_grows_with_the_experts_that_are_fetched() -> None:
    x, y = rows(150, 1)
    models = {"expert": expert(), "noise": DummyClassifier(strategy="prior").fit(x, y)}
    curve = gains(StackedClassifier(models, **small()), x, y)
    assert [p["models"] for p in curve] == [0, 1, 2] and curve[0]["gain"] == 0
    assert curve[1]["gain"] > 0.02


def test_what_is_unknown_is_refused_with_what_would_do() -> None:
    x, y = rows(50)
    with pytest.raises(ValueError, match="held-out, pooled or auto"):
        StackedClassifier(variant="both").fit(x, y)
    with pytest.raises(ValueError, match="forest, boosting, linear, search"):
        StackedClassifier(meta="deep").fit(x, y)


# ---- text, and labels that do not match ----


def patients(rows: int = 240, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": rng.integers(18, 90, rows), "job": rng.choice(["clerk", "nurse"], rows)})
    return frame, np.where((frame["age"] > 50) ^ (frame["job"] == "nurse"), "ill", "well")


def encoded_forest() -> Any:
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    text = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["job"]), remainder="passthrough")
    return make_pipeline(text, RandomForestClassifier(8, random_state=0))


def test_a_frame_with_text_stacks_published_and_fitted_models_that_read_text() -> None:
    frame, y = patients(seed=1)
    model = encoded_forest().fit(*patients())
    about: Any = {"client": "clinic", "task": "classes", "classes": ("ill", "well")}
    shared = publish(model, defaults(frame, {"age": "number", "job": "category"}), **about)
    stack = StackedClassifier({"clinic": shared, "own": model}, random_state=0).fit(frame, y)
    assert set(stack.importances_) == {"private", "clinic", "own"} and stack.refused_ == {}
    new, truth = patients(seed=2)
    assert stack.score(new, truth) > 0.9
    stack.predict(new.assign(job="pilot"))  # nobody knows pilots
    assert [c["models"] for c in gains(stack, frame, y)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("theirs", "ours", "why"),
    [
        (("ill", "well"), (0, 1), r"none of which is ours \(\['0', '1'\]\); hint: one names classes"),
        (("sick", "fine"), ("ill", "well"), "hint: name classes alike"),
    ],
)
def test_labels_that_do_not_match_are_said_and_the_others_are_stacked(
    theirs: Any, ours: Any, why: str
) -> None:
    frame, y = patients()
    labels = np.where(y == "ill", *theirs)
    about: Any = {"client": "clinic", "task": "classes", "classes": tuple(sorted(theirs))}
    model = publish(
        encoded_forest().fit(frame, labels), defaults(frame, {"age": "number", "job": "category"}), **about
    )
    with pytest.warns(UserWarning, match=f"left out of the stack: client clinic: (.|\n)*{why}"):
        stack = StackedClassifier([model], random_state=0).fit(frame, np.where(y == "ill", *ours))
    assert set(stack.importances_) == {"private"} and "clinic" in stack.refused_


def test_whole_numbers_are_the_same_classes_with_and_without_a_decimal_point() -> None:
    frame, y = patients()
    about: Any = {"client": "clinic", "task": "classes", "classes": ("0", "1")}
    model = encoded_forest().fit(frame, (y == "ill").astype(int))
    shared = publish(model, defaults(frame, {"age": "number", "job": "category"}), **about)
    stack = StackedClassifier([shared], random_state=0).fit(frame, (y == "ill").astype(float))
    assert "clinic" in stack.importances_


def test_a_text_column_without_any_value_is_of_no_category_and_numbers_as_text_are_refused() -> None:
    frame, y = patients()
    stack = StackedClassifier([], random_state=0).fit(frame, y)
    empty = stack.predict_proba(frame.assign(job=np.nan))
    np.testing.assert_array_equal(empty, stack.predict_proba(frame.assign(job="never seen")))
    with pytest.raises(UsageError, match="column 'age' holds text, and fit saw numbers(.|\n)*hint: "):
        stack.predict(frame.assign(age=frame["age"].astype(str)))
