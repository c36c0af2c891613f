"""Pipelines fitted on data frames with columns of text are published, and answer as at home."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("skl2onnx")

from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.ensemble import (
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)

from motet.errors import MotetError, UsageError
from motet.published import Manifest, Published, defaults, predict, publish
from motet.published.folder import load_all

CLASSES = ("healthy", "ill")
KINDS: Any = {"age": "number", "job": "category", "hours": "number", "city": "category", "grade": "category"}
TEXTS = ["job", "city", "grade"]


def people(rows: int = 400, seed: int = 0, missing: Any = np.nan) -> tuple[pd.DataFrame, np.ndarray]:
    """Text with gaps, accents and rare values, a categorical column, whole numbers that stand for categories."""
    rng = np.random.default_rng(seed)
    job = rng.choice(["clerk", "nurse", "Bäcker", "self = employed"], rows, p=[0.5, 0.3, 0.15, 0.05]).astype(
        object
    )
    job[rng.random(rows) < 0.05] = missing
    frame = pd.DataFrame({"age": rng.integers(18, 90, rows), "job": job, "hours": rng.normal(38, 9, rows)})
    frame["hours"] = frame["hours"].astype(np.float32).astype(float)  # published models read 32 bits
    frame["city"] = pd.Categorical(rng.choice(["Oslo", "Rome", "Lima"], rows))
    frame["grade"] = rng.integers(1, 4, rows)
    ill = (frame["age"] > 55) ^ (frame["job"] == "nurse") ^ (frame["city"] == "Rome") & (frame["grade"] == 2)
    return frame, np.where(ill, "ill", "healthy")


FRAME, Y = people()
NEW, _ = people(300, seed=1)


def columns(encoder: Any, numbers: Any = "passthrough", texts: Any = tuple(TEXTS)) -> ColumnTransformer:
    return ColumnTransformer([("text", encoder, list(texts)), ("numbers", numbers, ["hours", "age"])])


def made(model: Any, **more: Any) -> Published:
    features = defaults(FRAME, KINDS, rare=1)
    about: Any = {"client": "north", "task": "classes", "classes": CLASSES, "sample": FRAME}
    return publish(model, features, **about | more)


ONE_HOT = OneHotEncoder(handle_unknown="ignore")
ORDINAL = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2)
IMPUTED = make_pipeline(
    SimpleImputer(strategy="most_frequent"), OneHotEncoder(sparse_output=False, drop="first")
)
MODELS: dict[str, Any] = {
    "one-hot, logistic": make_pipeline(columns(ONE_HOT, StandardScaler()), LogisticRegression(max_iter=500)),
    "ordinal, forest": make_pipeline(columns(ORDINAL), RandomForestClassifier(7, random_state=0)),
    "imputed and dropped": make_pipeline(columns(IMPUTED, MinMaxScaler()), LogisticRegression(max_iter=500)),
    "rare ones together": make_pipeline(
        columns(OneHotEncoder(min_frequency=30, handle_unknown="infrequent_if_exist")),
        HistGradientBoostingClassifier(max_iter=8),
    ),
    "target encoding": make_pipeline(
        columns(TargetEncoder(random_state=0)), LogisticRegression(max_iter=500)
    ),
    "scaled afterwards": make_pipeline(
        columns(ONE_HOT), StandardScaler(with_mean=False), RandomForestClassifier(5, random_state=0)
    ),
    "calibrated": make_pipeline(columns(ONE_HOT), CalibratedClassifierCV(RandomForestClassifier(5), cv=2)),
    "a search": GridSearchCV(
        Pipeline([("columns", columns(ONE_HOT)), ("model", LogisticRegression(max_iter=500))]),
        {"model__C": [0.1, 1.0]},
        cv=2,
    ),
    "all columns are text": make_pipeline(ONE_HOT, LogisticRegression(max_iter=500)),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_a_pipeline_with_text_answers_as_at_home(name: str) -> None:
    frame, new, kinds = FRAME, NEW, KINDS
    if name == "all columns are text":
        frame, new, kinds = FRAME[TEXTS], NEW[TEXTS], {n: "category" for n in TEXTS}
    model = MODELS[name].fit(frame, Y)
    published = publish(
        model, defaults(frame, kinds, rare=1), client="north", task="classes", classes=CLASSES, sample=frame
    )
    answered, refused = predict([published], new)
    assert not refused
    np.testing.assert_allclose(answered["north"], model.predict_proba(new), atol=1e-5)


def test_a_missing_category_is_what_it_is_at_home_none_too() -> None:
    frame, y = people(missing=None)
    model = MODELS["one-hot, logistic"].fit(frame, y)
    about: Any = {"client": "north", "task": "classes", "classes": CLASSES, "sample": frame}
    answered, _ = predict([publish(model, defaults(frame, KINDS, rare=1), **about)], frame)
    assert frame["job"].isna().sum() > 5
    np.testing.assert_allclose(answered["north"], model.predict_proba(frame), atol=1e-5)


def test_a_vectoriser_of_short_texts_is_a_table_too() -> None:
    texts = ColumnTransformer([("words", TfidfVectorizer(), "city"), ("age", "passthrough", ["age"])])
    model = make_pipeline(texts, LogisticRegression(max_iter=500)).fit(FRAME[["age", "city"]], Y)
    features = defaults(FRAME, {"age": "number", "city": "category"})
    about: Any = {"client": "north", "task": "classes", "classes": CLASSES, "sample": FRAME}
    answered, _ = predict([publish(model, features, **about)], NEW)
    np.testing.assert_allclose(answered["north"], model.predict_proba(NEW), atol=1e-5)


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
@pytest.mark.parametrize("encoder", [ONE_HOT, ORDINAL], ids=["one-hot", "ordinal"])
def test_xgboost_and_lightgbm_stand_behind_an_encoder(library: str, encoder: Any) -> None:
    own = pytest.importorskip(library)
    model: Any = (
        own.XGBClassifier(n_estimators=6)
        if library == "xgboost"
        else own.LGBMClassifier(n_estimators=6, verbose=-1)
    )
    model = make_pipeline(columns(encoder, StandardScaler()), model).fit(FRAME, (Y == "ill").astype(int))
    answered, refused = predict([made(model)], NEW)
    assert not refused
    np.testing.assert_allclose(answered["north"], model.predict_proba(NEW), atol=1e-5)


@pytest.mark.parametrize("sparse", [True, False])
def test_xgboost_behind_sparse_rows_is_refused_for_their_zeros(sparse: bool) -> None:
    xgboost = pytest.importorskip("xgboost")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": rng.normal(50, 9, 300), "job": rng.choice([f"job {k}" for k in range(8)], 300)}
    )
    y = ((frame["age"] > 50) ^ (frame["job"] == "job 1")).astype(int)
    text = make_column_transformer((OneHotEncoder(sparse_output=sparse), ["job"]), remainder="passthrough")
    model = make_pipeline(text, xgboost.XGBClassifier(n_estimators=10)).fit(frame, y)
    features = defaults(frame, {"age": "number", "job": "category"})
    about: Any = {"client": "north", "task": "classes", "classes": ("0", "1"), "sample": frame}
    if not sparse:
        answered, _ = predict([publish(model, features, **about)], frame)
        np.testing.assert_allclose(answered["north"], model.predict_proba(frame), atol=1e-5)
        return
    with pytest.raises(UsageError, match="zeros XGBoost takes for missing values(.|\n)*sparse_output=False"):
        publish(model, features, **about)


def test_numbers_are_predicted_from_text_too_and_without_a_sample() -> None:
    model = make_pipeline(columns(ONE_HOT), GradientBoostingRegressor(n_estimators=5)).fit(
        FRAME, FRAME["hours"]
    )
    kinds = KINDS | {"grade": "category"}
    text = FRAME.assign(grade=FRAME["grade"].map(str))  # without a sample, categories are their text
    model.fit(text, FRAME["hours"])
    published = publish(model, defaults(text, kinds, rare=1), client="north", task="numbers")
    answered, refused = predict([published], NEW.assign(grade=NEW["grade"].map(str)))
    assert not refused
    expected = model.predict(NEW.assign(grade=NEW["grade"].map(str)))
    np.testing.assert_allclose(answered["north"][:, 0], expected, rtol=1e-5)


def test_columns_in_another_order_are_found_by_name() -> None:
    model = RandomForestClassifier(5, random_state=0).fit(FRAME[["hours", "age"]], Y)
    features = defaults(FRAME, {"age": "number", "hours": "number"})
    about: Any = {"client": "north", "task": "classes", "classes": CLASSES, "sample": FRAME}
    answered, _ = predict([publish(model, features, **about)], NEW)
    np.testing.assert_allclose(answered["north"], model.predict_proba(NEW[["hours", "age"]]), atol=1e-5)


# Categories and what they disclose.


def test_categories_stand_in_the_manifest_as_flags_and_rare_ones_are_left_out() -> None:
    frame = FRAME.copy()
    frame.loc[:2, "job"] = "astronaut"
    with pytest.warns(UserWarning, match="'job': 1 of 5 categories have fewer than 5 rows"):
        features = defaults(frame, KINDS)
    names = [f.name for f in features]
    assert "job=nurse" in names and "job=self = employed" in names and "job=astronaut" not in names
    model = make_pipeline(columns(ONE_HOT), LogisticRegression(max_iter=500)).fit(frame, Y)
    about: Any = {"client": "north", "task": "classes", "classes": CLASSES, "sample": frame}
    published = publish(model, features, **about)
    assert b"astronaut" not in published.model and "astronaut" not in published.manifest.to_json()
    read = Manifest.from_json(published.manifest.to_json())
    assert {f.kind for f in read.features} == {"number", "flag"}
    job = [f for f in features if f.name.startswith("job=")]
    assert [f.name for f in job if f.default == 1.0] == ["job=clerk"]


def test_a_receiver_without_the_column_gets_the_most_frequent_category() -> None:
    model = MODELS["one-hot, logistic"].fit(FRAME, Y)
    answered, _ = predict([made(model)], NEW.drop(columns="job"))
    expected = model.predict_proba(NEW.assign(job="clerk"))
    np.testing.assert_allclose(answered["north"], expected, atol=1e-5)


def test_a_category_that_is_new_to_the_model_is_answered_as_at_home_and_not_as_the_default() -> None:
    model = MODELS["one-hot, logistic"].fit(FRAME, Y)
    for column in ("job", "city"):  # of jobs it has seen empty cells, of cities none
        answered, _ = predict([made(model)], NEW.assign(**{column: "Paris"}))
        expected = model.predict_proba(NEW.assign(**{column: pd.Series("Paris", NEW.index, object)}))
        np.testing.assert_allclose(answered["north"], expected, atol=1e-5)


def test_private_defaults_need_categories_that_are_public_knowledge() -> None:
    with pytest.raises(UsageError, match="would be read off the rows(.|\n)*hint: name them"):
        defaults(FRAME, {"job": "category"}, "dp", 1.0)
    named = defaults(FRAME, {"job": ("clerk", "nurse")})
    assert [f.name for f in named] == ["job=clerk", "job=nurse"]


@pytest.mark.parametrize(
    ("kinds", "why"),
    [
        ({"hours": "category"}, "has 0 categories with at least 5 rows"),
        ({"when": "category"}, "holds dates"),
        ({"job": "number"}, "'job' holds text"),
        ({"shoe": "number"}, "no column 'shoe'"),
    ],
)
def test_columns_that_are_no_categories_are_said(kinds: Any, why: str) -> None:
    frame = FRAME.assign(when=pd.Timestamp("2024-01-01"), hours=FRAME["hours"] + np.arange(len(FRAME)))
    with pytest.raises(UsageError, match=f"{why}(.|\n)*hint: "):
        defaults(frame, kinds)


# What cannot be converted is said.


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (
            VotingClassifier(
                [("a", MODELS["one-hot, logistic"]), ("b", MODELS["ordinal, forest"])], voting="soft"
            ),
            "text of column 'job' by itself(.|\n)*ColumnTransformer",
        ),
        (CalibratedClassifierCV(MODELS["one-hot, logistic"], cv=2), "text of column 'job' by itself"),
        (
            make_pipeline(columns(ONE_HOT, texts=["job", "city"]), LogisticRegression(max_iter=500)),
            "",
        ),
    ],
)
def test_text_that_no_step_encodes_is_said_with_a_hint(model: Any, why: str) -> None:
    model.fit(FRAME, Y)
    if not why:  # a column that the pipeline drops needs no flags, and may have them
        assert made(model).manifest.family == "LogisticRegression"
        return
    with pytest.raises(UsageError, match=f"cannot be converted to ONNX: (.|\n)*{why}"):
        made(model)


def test_a_column_that_the_model_reads_and_nobody_declared_is_said() -> None:
    model = MODELS["one-hot, logistic"].fit(FRAME, Y)
    features = defaults(FRAME, {k: v for k, v in KINDS.items() if k != "city"}, rare=1)
    with pytest.raises(UsageError, match="reads the column 'city', which is not among the features"):
        publish(model, features, client="north", task="classes", classes=CLASSES, sample=FRAME)


def test_a_number_that_shares_an_encoder_with_text_is_said() -> None:
    model = MODELS["one-hot, logistic"].fit(FRAME, Y)
    features = defaults(FRAME, KINDS | {"grade": "number"}, rare=1)
    with pytest.raises(UsageError, match=r"reads the number 'grade' together with text(.|\n)*'category'"):
        publish(model, features, client="north", task="classes", classes=CLASSES, sample=FRAME)


def test_categories_that_the_model_knows_as_numbers_are_refused_without_a_sample() -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"age": rng.normal(50, 9, 200), "code": rng.integers(1, 4, 200)})
    y = (frame["code"] == 2).astype(int)
    text = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["code"]), remainder="passthrough"
    )
    model = make_pipeline(text, LogisticRegression()).fit(frame, y)
    features = defaults(frame, {"age": "number", "code": "category"})
    about: Any = {"client": "a", "task": "classes", "classes": ("0", "1")}
    with pytest.raises(MotetError, match="same for all categories of 'code'"):
        publish(model, features, **about)
    made = publish(model, features, sample=frame, **about)
    found, refused = predict([made], frame, list(frame.columns))
    assert not refused and np.allclose(found["a"], model.predict_proba(frame), atol=1e-4)


def test_rows_with_empty_cells_do_not_spoil_a_model_for_other_rows() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 2))
    model = LogisticRegression().fit(x, x[:, 0] > 0)
    features = defaults(x, {"a": "number", "b": "number"})
    made = publish(model, features, client="a", task="classes", classes=("0", "1"))
    bad = x.copy()
    bad[0, 0] = np.nan
    assert "empty cells" in predict([made], bad, ["a", "b"])[1]["a"]
    assert not predict([made], x, ["a", "b"])[1]


@pytest.mark.parametrize("kind", ["text", "categorical", "numeric"])
def test_a_word_that_is_no_kind_is_refused_and_not_read_letter_by_letter(kind: Any) -> None:
    with pytest.raises(UsageError, match=f"declared as '{kind}'"):
        defaults(people(20)[0], {"job": kind})


def test_a_folder_that_is_not_there_is_no_empty_inbox(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="no folder"):
        load_all(tmp_path / "nowhere")


# ---- empty cells and unknown categories ----


def encoders() -> dict[str, Any]:
    impute = SimpleImputer(strategy="most_frequent")
    ordinal: Any = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
    return {
        "one-hot": OneHotEncoder(handle_unknown="ignore"),
        "imputed": make_pipeline(impute, OneHotEncoder(handle_unknown="ignore")),
        "infrequent": make_pipeline(impute, OneHotEncoder(handle_unknown="ignore", min_frequency=30)),
        "ordinal": OrdinalEncoder(**ordinal),
        "ordinal, empty is -2": OrdinalEncoder(encoded_missing_value=-2, **ordinal),
        "target": TargetEncoder(random_state=0),
    }


@pytest.mark.parametrize("encoder", list(encoders()))
def test_empty_cells_and_unknown_categories_are_answered_as_at_home(encoder: str) -> None:
    columns = make_column_transformer((encoders()[encoder], ["job", "city"]), remainder="passthrough")
    model = make_pipeline(columns, HistGradientBoostingClassifier(max_iter=20)).fit(NARROW, Y)
    kinds: Any = {"age": "number", "job": "category", "city": "category"}
    made = publish(model, defaults(NARROW, kinds), client="a", task="classes", classes=CLASSES, sample=NARROW)
    rows = NEW[list(kinds)].astype({"city": object}).head(12).reset_index(drop=True)
    rows.loc[:3, "job"], rows.loc[2:5, "city"] = "astronaut", np.nan
    rows.loc[6:8, "job"], rows.loc[8:, "city"] = np.nan, "Atlantis"
    found, refused = predict([made], rows)
    assert not refused
    np.testing.assert_allclose(found["a"], model.predict_proba(rows), atol=1e-5)


NARROW = FRAME[["age", "job", "city"]].astype({"city": object})


@pytest.mark.parametrize("sample", [FRAME, None], ids=["sample", "random rows"])
def test_columns_that_a_column_transformer_drops_need_not_be_declared(sample: Any) -> None:
    columns = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["job"]), ("passthrough", [0]))
    model = make_pipeline(columns, LogisticRegression(max_iter=500)).fit(FRAME, Y)
    features = defaults(FRAME, {"age": "number", "job": "category"})
    made = publish(model, features, client="a", task="classes", classes=CLASSES, sample=sample)
    found, _ = predict([made], NEW[["age", "job"]])
    np.testing.assert_allclose(found["a"], model.predict_proba(NEW), atol=1e-5)
    with pytest.raises(UsageError, match="column 'job', which is not among(.|\n)*: \\['age', 'job'\\]"):
        publish(model, defaults(FRAME, {"age": "number"}), client="a", task="classes", classes=CLASSES)
