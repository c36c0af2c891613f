"""A column of yes and no is one flag in a federation and two in a model that declares categories: each is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("onnxruntime")

from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from motet import StackedClassifier
from motet.published import Feature, Published, defaults, predict, publish
from motet.published.folder import save
from motet.published.outbox import Terms, in_terms, read_in_vain
from motet.runs.recipe import read
from motet.runs.run import run

CLASSES = ("healthy", "ill")


def patients(rows: int = 90) -> pd.DataFrame:
    """Who smokes is ill; seven in ten do not smoke."""
    k = np.arange(rows)
    return pd.DataFrame({"age": 40.0 + k % 30, "smoker": np.where(k % 10 < 3, "yes", "no")})


def ill(frame: pd.DataFrame) -> Any:
    return np.where(frame["smoker"] == "yes", "ill", "healthy")


def of_categories(client: str = "a") -> Published:
    frame = patients()
    columns = make_column_transformer((OneHotEncoder(), ["smoker"]), remainder="passthrough")
    model = make_pipeline(columns, RandomForestClassifier(5, random_state=0)).fit(frame, ill(frame))
    features = defaults(frame, {"age": "number", "smoker": "category"})
    return publish(model, features, client=client, task="classes", classes=CLASSES, sample=frame)


def of_flag(client: str = "a") -> Published:
    frame = patients().assign(smoker=lambda f: (f["smoker"] == "yes").astype(float))
    model = DecisionTreeClassifier(random_state=0).fit(frame, frame["smoker"].astype(int))
    features = defaults(frame, {"age": "number", "smoker": "flag"})
    return publish(model, features, client=client, task="classes", classes=CLASSES, sample=frame)


@pytest.mark.parametrize("yes", [1.0, True, "yes", "Y", "TRUE", 1])
def test_yes_is_read_however_it_is_written(yes: Any) -> None:
    no = {"yes": "no", "Y": "N", "TRUE": "FALSE"}.get(yes, type(yes)(0) if not isinstance(yes, str) else "")
    frame = pd.DataFrame({"age": [50.0, 50.0], "smoker": [yes, no]})
    found, _ = predict([of_categories()], frame)
    assert found["a"].argmax(1).tolist() == [1, 0]


def test_rows_of_an_array_with_a_flag_are_read_by_a_model_of_categories() -> None:
    found, _ = predict([of_categories()], np.array([[50.0, 1], [50, 0]]), ["age", "smoker"])
    assert found["a"].argmax(1).tolist() == [1, 0]


def test_rows_with_flags_of_categories_are_read_by_a_model_of_one_flag() -> None:
    names = ["age", "smoker=no", "smoker=yes"]
    found, _ = predict([of_flag()], np.array([[50.0, 0, 1], [50, 1, 0]]), names)
    assert found["a"].argmax(1).tolist() == [1, 0]
    found, _ = predict([of_flag()], np.array([[50.0, 0], [50, 1]]), names[:2])
    assert found["a"].argmax(1).tolist() == [1, 0]


def test_a_stack_on_numbers_reads_a_model_of_categories() -> None:
    frame, y = patients().assign(smoker=lambda f: (f["smoker"] == "yes").astype(float)), ill(patients())
    stack = StackedClassifier([of_categories()], private="linear", random_state=0).fit(frame, y)
    assert stack.importances_["a"] > 0.3 and stack.score(frame, y) == 1.0


def test_a_column_that_holds_no_known_category_is_named() -> None:
    frame = pd.DataFrame({"age": [50.0], "smoker": ["never"]})
    with pytest.warns(UserWarning, match=r"column 'smoker' holds none of the categories .*no, yes.*never"):
        predict([of_categories()], frame)


def test_a_model_of_categories_reads_the_flag_of_a_federation() -> None:
    terms = Terms({"age": (50.0, 10.0), "smoker": (0.25, 0.5)}, CLASSES, flags=frozenset(["smoker"]))
    model = in_terms(of_categories(), terms)
    assert model.manifest.names == ("age", "smoker")
    assert model.manifest.features[1] == Feature(
        "smoker", "flag", -0.5
    )  # most do not smoke: (0 - 0.25) / 0.5
    found, _ = predict([model], np.array([[0.0, 1.5], [0.0, -0.5]]), ["age", "smoker"])
    assert found["public"].argmax(1).tolist() == [1, 0]


def test_a_model_of_a_flag_reads_the_categories_of_a_federation() -> None:
    terms = Terms(dict.fromkeys(["age", "smoker=no", "smoker=yes"], (0.0, 1.0)), CLASSES)
    model = in_terms(of_flag(), terms)
    assert model.manifest.names == ("age", "smoker=yes")


def test_what_a_model_reads_and_its_owner_lacks_is_named() -> None:
    rest = ("age", "ward=a")
    terms = Terms(dict.fromkeys(rest, (0.0, 1.0)), CLASSES)
    assert read_in_vain(of_categories(), terms) == ["smoker=no", "smoker=yes"]
    held = Terms(dict.fromkeys((*rest, "smoker"), (0.0, 1.0)), CLASSES, flags=frozenset(["smoker"]))
    assert read_in_vain(of_categories(), held) == []
    assert read_in_vain(of_categories(), Terms(held.scaling, CLASSES, flags=held.flags, lacks=held.flags))


def federation(path: Path, frame: pd.DataFrame) -> list[str]:
    frame.assign(y=ill(patients(len(frame))), site=np.array(list("abc"))[np.arange(len(frame)) % 3]).to_csv(
        path, index=False
    )
    return [f"data={path}", "data.target=y", "data.client=site", "method=stacking", "train.rounds=1"]


def test_a_client_with_such_a_model_in_its_outbox_is_not_named_for_nonsense(tmp_path: Path) -> None:
    save(of_categories(), tmp_path / "outbox")
    words = federation(tmp_path / "t.csv", patients(900))
    done = run(read(None, [*words, f"method.outbox={tmp_path / 'outbox'}"]), tmp_path / "run")
    assert "nonsense" not in done.facts["record"]["named"].get("a", "") and done.facts["remarks"] == []


def test_a_run_says_which_columns_of_an_outbox_model_its_owner_lacks(tmp_path: Path) -> None:
    save(of_categories(), tmp_path / "outbox")
    frame = patients(120).rename(columns={"smoker": "smokes"})
    words = federation(tmp_path / "t.csv", frame)
    done = run(read(None, [*words, f"method.outbox={tmp_path / 'outbox'}"]), tmp_path / "run")
    (said,) = done.facts["remarks"]
    assert said.startswith(
        "client a: its model reads 'smoker=no', 'smoker=yes', which its own table does not"
    )
