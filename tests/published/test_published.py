"""Models of every family are published as ONNX and predict what the originals predict."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

pytest.importorskip("onnxruntime")
skl2onnx = pytest.importorskip("skl2onnx")

from sklearn import (  # noqa: E402
    calibration,
    discriminant_analysis,
    ensemble,
    linear_model,
    naive_bayes,
    neural_network,
    svm,
    tree,
)
from sklearn.neighbors import KNeighborsClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

from motet.errors import RunError, UsageError  # noqa: E402
from motet.published import (  # noqa: E402
    Feature,
    Manifest,
    ModelRefused,
    Privacy,
    Published,
    defaults,
    predict,
    publish,
)
from motet.published.folder import save  # noqa: E402
from motet.published.operators import KNOWN  # noqa: E402
from motet.runs.predict import open_model  # noqa: E402

NAMES = ("age", "hours", "wage", "sex", "owner")
KINDS = {n: "flag" if n in ("sex", "owner") else "number" for n in NAMES}
CLASSES = ("low", "middle", "high")


def table(rows: int = 300, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 5)).astype(np.float32)
    x[:, 0] = x[:, 0].round(1)  # values that are repeated are where thresholds lie
    x[:, 3:] = x[:, 3:] > 0
    return x


X = table()
TWO = (X[:, 0] + X[:, 3] > 0.3).astype(int)
THREE = np.digitize(X[:, 0] + X[:, 1], [-0.5, 0.6])
NUMBER = (10 * X[:, 0] + X[:, 1] * X[:, 3]).astype(np.float32)
FEATURES = defaults(X, KINDS)


def published_predictions(model: Any, y_kind: str, x: np.ndarray = X, **more: Any) -> np.ndarray:
    classes = {"two": ("no", "yes"), "three": CLASSES, "number": ()}[y_kind]
    task = "classes" if classes else "numbers"
    made = publish(model, FEATURES, client="a", task=task, classes=classes, **more)
    found, refused = predict([made], x, NAMES)
    assert not refused
    return found["a"]


CLASSIFIERS = {
    "forest": lambda: ensemble.RandomForestClassifier(15, random_state=0),
    "extra trees": lambda: ensemble.ExtraTreesClassifier(15, random_state=0),
    "boosting": lambda: ensemble.GradientBoostingClassifier(n_estimators=10, random_state=0),
    "histogram boosting": lambda: ensemble.HistGradientBoostingClassifier(max_iter=10),
    "adaboost": lambda: ensemble.AdaBoostClassifier(n_estimators=4, random_state=0),
    "bagging": lambda: ensemble.BaggingClassifier(n_estimators=3, random_state=0),
    "tree": lambda: tree.DecisionTreeClassifier(random_state=0),
    "logistic": lambda: linear_model.LogisticRegression(),
    "pipeline": lambda: make_pipeline(StandardScaler(), linear_model.LogisticRegression()),
    "sgd": lambda: linear_model.SGDClassifier(loss="log_loss", random_state=0),
    "mlp": lambda: neural_network.MLPClassifier((6,), max_iter=30, random_state=0),
    "bayes": lambda: naive_bayes.GaussianNB(),
    "lda": lambda: discriminant_analysis.LinearDiscriminantAnalysis(),
    "calibrated": lambda: calibration.CalibratedClassifierCV(linear_model.LogisticRegression(), cv=2),
    "voting": lambda: ensemble.VotingClassifier(
        [("l", linear_model.LogisticRegression()), ("t", tree.DecisionTreeClassifier(max_depth=3))],
        voting="soft",
    ),
}
REGRESSORS = {
    "forest": lambda: ensemble.RandomForestRegressor(15, random_state=0),
    "boosting": lambda: ensemble.GradientBoostingRegressor(n_estimators=10, random_state=0),
    "histogram boosting": lambda: ensemble.HistGradientBoostingRegressor(max_iter=10),
    "ridge": lambda: linear_model.Ridge(),
    "mlp": lambda: neural_network.MLPRegressor(hidden_layer_sizes=(6,), max_iter=30, random_state=0),
}


@pytest.mark.parametrize("y_kind", ["two", "three"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_published_classifier_predicts_as_the_original(name: str, y_kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = CLASSIFIERS[name]().fit(X, TWO if y_kind == "two" else THREE)
        fresh = table(seed=1)
        np.testing.assert_allclose(
            published_predictions(model, y_kind, fresh), model.predict_proba(fresh), atol=1e-5
        )


@pytest.mark.parametrize("name", REGRESSORS)
def test_a_published_regressor_predicts_as_the_original(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = REGRESSORS[name]().fit(X, NUMBER)
        fresh = table(seed=1)
        np.testing.assert_allclose(
            published_predictions(model, "number", fresh)[:, 0], model.predict(fresh), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("y_kind", ["two", "three", "number"])
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_published_boosted_trees_predict_as_the_original(library: str, y_kind: str) -> None:
    module = pytest.importorskip(library)
    y = {"two": TWO, "three": THREE, "number": NUMBER}[y_kind]
    kind = {"xgboost": "XGB", "lightgbm": "LGBM"}[library] + (
        "Regressor" if y_kind == "number" else "Classifier"
    )
    more = {"verbose": -1} if library == "lightgbm" else {}
    model = getattr(module, kind)(n_estimators=12, n_jobs=1, **more).fit(X, y)
    fresh = table(seed=1)
    expected = model.predict(fresh)[:, None] if y_kind == "number" else model.predict_proba(fresh)
    np.testing.assert_allclose(published_predictions(model, y_kind, fresh), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["RandomForestClassifier", "ExtraTreesClassifier", "RandomForestRegressor"])
def test_a_forest_of_scikit_learn_intelex_is_published_by_its_trees(kind: str) -> None:
    fast = pytest.importorskip("sklearnex.ensemble")
    x, fresh = X.round(0), table(seed=1).round(0)  # equal rows of both classes: leaves that are not pure
    number = kind.endswith("Regressor")
    model = getattr(fast, kind)(12, random_state=0).fit(x, NUMBER if number else THREE > 0)
    expected = model.predict(fresh)[:, None] if number else model.predict_proba(fresh)
    assert number or ((expected > 0.3) & (expected < 0.7)).any()
    np.testing.assert_allclose(
        published_predictions(model, "number" if number else "two", fresh), expected, atol=1e-5, rtol=1e-5
    )


def test_what_would_answer_otherwise_than_at_home_is_not_published() -> None:
    model = linear_model.LogisticRegression().fit(X, TWO)
    original = model.predict_proba
    model.predict_proba = lambda x: original(x)[:, ::-1]
    with pytest.raises(ValueError, match="would predict differently from the model"):
        published_predictions(model, "two")


class Residual(nn.Module):
    """No plain row of layers, so that torch's exporter has to take it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(x + torch.tanh(self.one(x)))


def plain(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(5, 8), nn.ReLU()), nn.Linear(8, outputs))


@pytest.mark.parametrize("net", [plain(3), Residual()], ids=["plain", "residual"])
def test_a_published_network_predicts_its_probabilities(net: nn.Module) -> None:
    expected = net(torch.tensor(X)).softmax(1).detach().numpy()
    np.testing.assert_allclose(published_predictions(net, "three"), expected, atol=1e-5)


def test_a_network_with_one_score_is_of_two_classes() -> None:
    net = plain(1)
    expected = net(torch.tensor(X)).sigmoid().detach().numpy()
    np.testing.assert_allclose(published_predictions(net, "two")[:, 1:], expected, atol=1e-5)


def test_a_network_of_numbers_answers_with_numbers() -> None:
    net = plain(1)
    np.testing.assert_allclose(
        published_predictions(net, "number"), net(torch.tensor(X)).detach().numpy(), atol=1e-5
    )


def test_a_model_that_never_saw_a_class_gives_it_probability_0() -> None:
    model = linear_model.LogisticRegression().fit(X[THREE != 1], THREE[THREE != 1])
    p = published_predictions(model, "three")
    assert (p[:, 1] == 0).all()
    np.testing.assert_allclose(p[:, [0, 2]], model.predict_proba(X), atol=1e-5)


def test_a_model_that_was_taught_names_puts_its_classes_in_the_published_order() -> None:
    model = ensemble.RandomForestClassifier(5, random_state=0).fit(X, np.array(CLASSES)[THREE])
    assert list(model.classes_) == ["high", "low", "middle"]
    np.testing.assert_allclose(
        published_predictions(model, "three"), model.predict_proba(X)[:, [1, 2, 0]], atol=1e-5
    )


def test_classes_that_nobody_named_are_refused() -> None:
    model = linear_model.LogisticRegression().fit(X, np.array(["x", "y"])[TWO])
    with pytest.raises(ValueError, match="not among"):
        published_predictions(model, "two")


ROWS_INSIDE = {
    "alone": svm.SVC(),
    "in a pipeline": make_pipeline(StandardScaler(), svm.SVR()),
    "in a vote": ensemble.VotingClassifier([("n", KNeighborsClassifier())]),
    "in a bag": ensemble.BaggingRegressor(svm.SVR()),
}


class Ending(nn.Module):
    """No plain row of layers, with an ending."""

    def __init__(self, outputs: int, ending: nn.Module) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, outputs), ending

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("plain", [True, False], ids=["layers", "exported"])
@pytest.mark.parametrize(
    ("outputs", "ending"), [(1, nn.Sigmoid()), (3, nn.Softmax(1)), (3, nn.LogSoftmax(1))]
)
def test_a_network_that_ends_in_probabilities_is_published_as_it_answers(
    outputs: int, ending: nn.Module, plain: bool
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, outputs), ending) if plain else Ending(outputs, ending)
    p = net(torch.tensor(X)).detach()
    p = p.exp() if isinstance(ending, nn.LogSoftmax) else torch.cat([1 - p, p], 1) if outputs == 1 else p
    found = published_predictions(net, "two" if outputs == 1 else "three")
    np.testing.assert_allclose(found, p.numpy(), atol=1e-5)


def test_scores_that_happen_to_be_small_are_no_probabilities() -> None:
    net = nn.Linear(5, 1)
    with torch.no_grad():
        net.weight.fill_(0.01)
        net.bias.fill_(0.5)
    found = published_predictions(net, "two")
    np.testing.assert_allclose(found[:, 1:], net(torch.tensor(X)).sigmoid().detach().numpy(), atol=1e-5)


def test_several_sigmoids_are_refused_because_they_are_no_classes() -> None:
    with pytest.raises(UsageError, match="exclude each other\nhint: end it in scores"):
        published_predictions(nn.Sequential(nn.Linear(5, 3), nn.Sigmoid()), "three")


@pytest.mark.parametrize("where", ROWS_INSIDE)
def test_models_that_contain_rows_do_not_leave(where: str) -> None:
    with pytest.raises(ValueError, match="would contain rows"):
        published_predictions(ROWS_INSIDE[where], "two")


def test_models_that_contain_rows_leave_where_these_may_be_read_by_all() -> None:
    model = svm.SVR().fit(X, NUMBER)
    np.testing.assert_allclose(
        published_predictions(model, "number", rows_may_leave=True)[:, 0], model.predict(X), atol=1e-4
    )


def test_columns_are_dropped_filled_and_put_in_order() -> None:
    model = linear_model.LinearRegression().fit(X, NUMBER)
    made = publish(model, FEATURES, client="a", task="numbers")
    names = ("wage", "stranger", "age", "sex", "hours")
    given = np.stack([X[:, 2], X[:, 0] * 0 + 7, X[:, 0], X[:, 3], X[:, 1]], 1)
    filled = X.copy()
    filled[:, 4] = FEATURES[4].default
    found, _ = predict([made], given, names)
    np.testing.assert_allclose(found["a"][:, 0], model.predict(filled), atol=1e-5)


def test_rows_go_in_batches_and_come_back_in_order() -> None:
    model = linear_model.LinearRegression().fit(X, NUMBER)
    made = publish(model, FEATURES, client="a", task="numbers")
    many = np.tile(X, (70, 1))  # 21,000 rows, three batches
    found, _ = predict([made], many, NAMES)
    np.testing.assert_allclose(found["a"][:, 0], model.predict(many), atol=1e-4)
    assert predict([made], X[:0], NAMES)[0]["a"].shape == (0, 1)


def test_a_missing_value_may_be_a_default() -> None:
    model = ensemble.RandomForestRegressor(5, random_state=0)
    x = X.copy()
    x[::3, 4] = np.nan
    features = (*FEATURES[:4], Feature("owner", "flag", float("nan")))
    made = publish(model.fit(x, NUMBER), features, client="a", task="numbers")
    made = Published.from_tree(made.tree(), "a")
    x[:, 4] = np.nan
    found, _ = predict([made], X[:, :4], NAMES[:4])
    np.testing.assert_allclose(found["a"][:, 0], model.predict(x), atol=1e-5)


def test_boosting_of_rows_that_are_too_few_for_a_split_is_published() -> None:
    model = ensemble.HistGradientBoostingClassifier(max_iter=3).fit(X[:24], np.arange(24) % 7 % 3)
    np.testing.assert_allclose(published_predictions(model, "three"), model.predict_proba(X), atol=1e-5)


def test_every_allowed_operator_is_one_of_onnx() -> None:
    onnx = pytest.importorskip("onnx")
    real = {(s.domain or "ai.onnx", s.name) for s in onnx.defs.get_all_schemas()}
    assert [(d, n) for d, names in KNOWN.items() for n in names if (d, n) not in real] == []
    assert "Gather" in KNOWN["ai.onnx"]


# Manifests.


def made() -> Published:
    net = nn.Linear(5, 2)
    privacy = Privacy("DP-SGD", 1.5, 1e-5, "noise 1.1")
    return publish(net, FEATURES, client="a", task="classes", classes=("no", "yes"), privacy=privacy)


def test_a_published_model_travels_as_plain_data() -> None:
    one = made()
    tree_ = one.tree()
    assert {k: v.dtype for k, v in tree_.items()} == {"manifest": torch.uint8, "model": torch.uint8}
    assert Published.from_tree(tree_, "a") == one


def test_a_manifest_is_of_the_client_that_sent_it() -> None:
    with pytest.raises(ModelRefused, match="client b: its manifest says that it is of 'a'"):
        Published.from_tree(made().tree(), "b")


def test_a_manifest_that_lies_about_bytes_is_refused_by_name() -> None:
    one = made()
    for lie, words in (
        (replace(one.manifest, sha256="0" * 64), "sha256"),
        (replace(one.manifest, size=1), "says 1"),
    ):
        with pytest.raises(ModelRefused, match=f"client a: .*{words}"):
            Published.from_tree(Published(lie, one.model).tree(), "a")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task": "texts"}, "task: .*expected classes or numbers"),
        ({"features": []}, "no features"),
        ({"features": [{"name": "a", "kind": "number", "default": 0}] * 2}, "'a' twice"),
        (
            {"features": [{"name": "a", "kind": "text", "default": 0}]},
            "features.*kind: .*expected number or flag",
        ),
        (
            {"features": [{"name": "a", "kind": "flag", "default": 10**400}]},
            "default: .*expected a finite number",
        ),
        ({"classes": ["no"]}, "at least two"),
        ({"task": "numbers"}, "has no classes"),
        ({"classes": ["no", 3]}, "classes.*Expected `str`, got `int`"),
        (
            {"privacy": {"mechanism": "x", "epsilon": -1, "delta": None, "note": ""}},
            "privacy.epsilon: .*expected a number of at least 0",
        ),
        ({"privacy": "trust me"}, "privacy: Expected `object`, got `str`"),
        ({"sha256": "x"}, "sha256: .*expected 64 hexadecimal digits"),
        ({"size": True}, "size: .*expected a whole number"),
        ({"size": -1}, "size: .*expected a whole number"),
        ({"client": ""}, "client: .*expected a name"),
        ({"family": "a\nb"}, "is not a line of text"),
        ({"more": 1}, "unknown field `more`"),
    ],
)
def test_a_malformed_manifest_is_refused_with_the_field(change: dict[str, Any], words: str) -> None:
    found = json.loads(made().manifest.to_json()) | change
    with pytest.raises(ModelRefused, match=f"client a: its manifest is malformed: .*{words}"):
        Manifest.from_json(json.dumps(found), "a")


@pytest.mark.parametrize("text", ["", "[]", "{", "nul", "[" * 100_000, '{"size": NaN}', b"\xff\xfe\xff"])
def test_what_is_no_manifest_is_refused(text: str | bytes) -> None:
    with pytest.raises(ModelRefused, match="client a: its manifest is malformed"):
        Manifest.from_json(text, "a")


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda s: st.lists(s, max_size=3)))
def test_any_value_in_any_field_is_read_or_refused(value: Any) -> None:
    found = json.loads(MANIFEST)
    for field in found:
        try:
            Manifest.from_json(json.dumps(found | {field: value}), "a")
        except ModelRefused as e:
            assert str(e).startswith("client a: ")


MANIFEST = made().manifest.to_json()


@pytest.mark.parametrize(
    "tree_", [{}, {"manifest": 3, "model": 4}, {"manifest": torch.zeros(3), "model": torch.zeros(3)}]
)
def test_what_is_no_published_model_is_refused(tree_: Any) -> None:
    with pytest.raises(ModelRefused, match="client a: what it published"):
        Published.from_tree(tree_, "a")


# Defaults.


def test_the_paper_s_noise_is_the_standard_deviation_times_epsilon() -> None:
    column = np.array([[1.0], [2.0], [9.0]])
    plain_, noisy = (
        defaults(column, {"age": "number"}, m, 2.0, seed=3)[0].default for m in ("plain", "noise")
    )
    assert plain_ == 2.0
    assert noisy == pytest.approx(2.0 + np.random.default_rng(3).normal() * 2.0 * np.std([1, 2, 9], ddof=1))


def test_a_flag_s_default_is_the_most_frequent_value_without_noise() -> None:
    flags = np.array([[1.0], [0.0], [1.0]])
    assert defaults(flags, {"sex": "flag"}, "noise", 16.0)[0].default == 1.0


def test_side_by_side_models_run_in_children_of_their_own_and_one_after_another_in_one() -> None:
    from motet.published import Limits
    from motet.published.runner import borrowed, runners

    limits = Limits(batch=77)  # of this test alone
    with borrowed(limits) as one:
        if not runners(limits).empty():
            with borrowed(limits) as two:
                assert one is not two
    with borrowed(limits) as again:
        assert again is one


def one_line_of_onnx(tmp_path: Path, **options: Any) -> tuple[Path, Any]:
    from skl2onnx import to_onnx

    model = ensemble.RandomForestClassifier(3, random_state=0).fit(X, TWO)
    path = tmp_path / "own.onnx"
    made = to_onnx(model, X[:1].astype(np.float32), target_opset=18, options={id(model): options})
    path.write_bytes(made.SerializeToString())
    return path, model


def test_refusals_say_what_is_wrong_and_what_would_help(tmp_path: Path) -> None:
    def refused(model: Any, **more: Any) -> str:
        about: Any = {"client": "a", "task": "classes", "classes": ("no", "yes"), **more}
        with pytest.raises(UsageError) as e:
            publish(model, FEATURES, **about)
        return str(e.value)

    zipped, _ = one_line_of_onnx(tmp_path, zipmap=True)
    assert "ZipMap" in (said := refused(zipped)) and "options={'zipmap': False}" in said
    plain, _ = one_line_of_onnx(tmp_path, zipmap=False)
    other = ensemble.RandomForestClassifier(3, random_state=5).fit(X, 1 - TWO)
    assert "than the model given as maker" in refused(plain, maker=other)
    assert "it is not fitted yet\nhint: model.fit" in refused(ensemble.RandomForestClassifier())
    assert "did you mean 'classes'?" in refused(linear_model.LogisticRegression(), task="class")
    ridge = linear_model.RidgeClassifier().fit(X, TWO)
    assert "no predict_proba)\nhint: LogisticRegression has them" in refused(ridge)
    with pytest.raises(UsageError, match="hint: did you mean 'number'"):
        defaults(X, dict.fromkeys(NAMES, "numeric"))  # type: ignore[arg-type]


def test_motet_predict_says_that_a_published_model_is_one(tmp_path: Path) -> None:
    made = publish(linear_model.Ridge().fit(X, X[:, 0]), FEATURES, client="a", task="numbers")
    with pytest.raises(RunError, match="is a published model(.|\n)*predict_published"):
        open_model(save(made, tmp_path))
