"""Models fitted on data frames, and ONNX files of one's own; what cannot be converted is said in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("skl2onnx")

from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler

from motet.errors import UsageError
from motet.published import Published, defaults, predict, publish
from motet.published.folder import save
from motet.published.outbox import Terms, from_outbox, in_terms

KINDS: Any = {"age": "number", "hours": "number", "married": "flag"}
CLASSES = ("healthy", "ill")


def people(rows: int = 200) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(18, 90, rows), "hours": rng.normal(38, 9, rows).round(1)})
    frame["married"] = rng.random(rows) < 0.5
    return frame, np.where(frame["age"] + 10 * frame["married"] > 60, "ill", "healthy")


FRAME, Y = people()


def made(model: Any, **more: Any) -> Published:
    about: Any = {"client": "north", "task": "classes", "classes": CLASSES, "sample": FRAME} | more
    return publish(model, defaults(FRAME, KINDS), **about)


def transformed(*names: str) -> Any:
    return ColumnTransformer(
        [("scale", StandardScaler(), list(names[:2])), ("rest", MinMaxScaler(), list(names[2:]))]
    )


@pytest.mark.parametrize("family", ["forest", "pipeline", "xgboost", "lightgbm"])
def test_a_model_fitted_on_a_data_frame_is_published_and_answers_as_at_home(family: str) -> None:
    model: Any = RandomForestClassifier(5, random_state=0)
    y: Any = Y
    if family == "pipeline":
        model = make_pipeline(transformed("hours", "age", "married"), LogisticRegression())
    elif family != "forest":
        library = pytest.importorskip(family)
        y = (Y == "ill").astype(int)
        model = (
            library.XGBClassifier(n_estimators=4)
            if family == "xgboost"
            else library.LGBMClassifier(n_estimators=4, verbose=-1)
        )
    model.fit(FRAME, y)
    published = made(model)
    answered, refused = predict([published], FRAME.to_numpy(np.float32), list(KINDS))
    assert not refused
    np.testing.assert_allclose(answered["north"], model.predict_proba(FRAME), atol=1e-4)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (make_pipeline(FunctionTransformer(np.log1p), LogisticRegression()), "cannot be converted to ONNX"),
        (RidgeClassifier(), "no predict_proba"),
    ],
)
def test_what_cannot_be_converted_is_said_with_a_hint(model: Any, why: str) -> None:
    with pytest.raises(UsageError, match=f"{why}(.|\n)*hint: "):
        made(model.fit(FRAME.to_numpy(float), Y))


def test_a_column_of_text_is_named_with_what_to_do() -> None:
    text = FRAME.assign(sex=np.where(FRAME["married"], "f", "m"))
    with pytest.raises(UsageError, match=r"'sex' holds text(.|\n)*'category'"):
        defaults(text, KINDS | {"sex": "flag"})


def test_classes_that_are_not_the_model_s_are_said() -> None:
    with pytest.raises(UsageError, match="'healthy', 'ill'"):
        made(RandomForestClassifier(3).fit(FRAME, Y), classes=("0", "1"))


# ONNX files of one's own.


def onnx_of(model: Any, path: Path) -> Path:
    from skl2onnx import to_onnx

    proto = to_onnx(model, FRAME.to_numpy(np.float32), options={"zipmap": False}, target_opset=15)
    path.write_bytes(proto.SerializeToString())
    return path


def test_an_onnx_file_is_published_as_its_maker_answers_and_refused_if_it_answers_differently(
    tmp_path: Path,
) -> None:
    x = FRAME.to_numpy(np.float32)
    model, other = LogisticRegression(max_iter=500).fit(x, Y), LogisticRegression(C=1e-6).fit(x, Y)
    file = onnx_of(model, tmp_path / "mine.onnx")
    assert made(file, maker=model).manifest.family == "LogisticRegression"
    assert made(str(file)).manifest.family == "ONNX model"
    with pytest.raises(UsageError, match="given as maker"):
        made(file, maker=other)


def test_a_file_that_is_no_onnx_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"no model")
    with pytest.raises(UsageError, match="not ONNX"):
        made(tmp_path / "x.onnx")


# The outbox.


def outbox(folder: Path) -> Published:
    published = made(RandomForestClassifier(5, random_state=0).fit(FRAME, Y))
    save(published, folder)
    return published


def test_a_model_of_the_outbox_speaks_in_the_federation_s_columns_and_classes(
    tmp_path: Path,
) -> None:
    before = outbox(tmp_path)
    x = FRAME.to_numpy(np.float32)
    terms = Terms({"age": (50.0, 20.0), "hours": (38.0, 9.0), "married": (0.0, 1.0)}, ("ill", "healthy"))
    after = in_terms(from_outbox(tmp_path), terms)
    assert after.manifest.classes == ("1", "0")
    own, _ = predict([before], x, list(KINDS))
    theirs, refused = predict([after], (x - [50, 38, 0]) / [20, 9, 1], list(KINDS))
    assert not refused
    np.testing.assert_allclose(
        theirs["public"], own["north"], atol=0.21
    )  # a tree of five may round another way
    assert np.abs(theirs["public"] - own["north"]).mean() < 0.01


@pytest.mark.parametrize("name", ["model.pkl", "model.joblib", "net.pt", "nameless"])
def test_an_outbox_with_a_pickle_is_refused_and_nothing_of_it_is_read(tmp_path: Path, name: str) -> None:
    import pickle

    outbox(tmp_path)
    (tmp_path / name).write_bytes(pickle.dumps({"x": 1}))
    with pytest.raises(UsageError, match="is a pickle(.|\n)*hint: motet.publish"):
        from_outbox(tmp_path)


def test_an_outbox_without_a_model_or_with_other_labels_or_columns_is_refused_in_words(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="holds 0 models"):
        from_outbox(tmp_path / "nowhere")
    outbox(tmp_path)
    with pytest.raises(UsageError, match="knows the class 'healthy', and this federation's are"):
        in_terms(from_outbox(tmp_path), Terms({"age": (0.0, 1.0)}, ("no", "yes")))
    with pytest.raises(UsageError, match="none of which this federation has"):
        in_terms(from_outbox(tmp_path), Terms({"weight": (0.0, 1.0)}, CLASSES))
    (tmp_path / "north.json").unlink()
    with pytest.raises(UsageError, match="no manifest beside it"):
        from_outbox(tmp_path)
