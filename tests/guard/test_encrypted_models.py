"""A linear model that stays with its owner: asked under encryption by files, by commands and in a stack."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("tenseal")

from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from motet import EncryptedModel, KeptModel, StackedClassifier
from motet.cli.main import main
from motet.errors import UsageError
from motet.published import Feature, Manifest, defaults
from motet.published.public_choice import PublicChoice

KINDS: Any = {"age": "number", "job": "category", "hours": "number"}


def patients(rows: int = 120, seed: int = 0, classes: int = 2) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"age": rng.integers(18, 90, rows), "job": rng.choice(["clerk", "nurse", "baker"], rows)}
    )
    frame["hours"] = rng.normal(38, 9, rows).round(1)
    score = frame["age"] / 15 + 2.0 * (frame["job"] == "nurse") + rng.normal(size=rows)
    return frame, np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))


def linear(model: Any) -> Any:
    text = make_column_transformer((OneHotEncoder(), ["job"]), (StandardScaler(), ["hours", "age"]))
    return make_pipeline(text, model)


def kept(classes: int = 2, **more: Any) -> tuple[KeptModel, Any]:
    frame, y = patients(classes=classes)
    model = linear(LogisticRegression()).fit(frame, y)
    names = tuple(map(str, range(classes)))
    return KeptModel.of(model, defaults(frame, KINDS), client="clinic", classes=names, **more), model


@pytest.mark.parametrize("classes", [2, 3])
def test_answers_are_those_of_the_model_up_to_the_noise(classes: int) -> None:
    owner, model = kept(classes, rows=1000)
    new, _ = patients(50, seed=1)
    asked = EncryptedModel(owner.manifest, owner.answer)
    flags = pd.DataFrame(
        {n: (new["job"] == n[4:]).astype(float) if "=" in n else new[n] for n in owner.manifest.names}
    )
    np.testing.assert_allclose(asked.predict_proba(flags), model.predict_proba(new), atol=2e-3)
    assert owner.answered == 50


def test_numbers_are_predicted_too_and_a_model_that_is_not_linear_is_refused() -> None:
    frame, _ = patients()
    x = frame[["age", "hours"]]
    features = defaults(x, {"age": "number", "hours": "number"})
    model = Ridge().fit(x, x["age"] * 2 + 3)
    owner = KeptModel.of(model, features, client="clinic", rows=1000)
    np.testing.assert_allclose(
        EncryptedModel(owner.manifest, owner.answer).predict(x), model.predict(x), atol=0.1
    )
    with pytest.raises(UsageError, match="is not linear(.|\n)*hint: logistic"):
        KeptModel.of(
            RandomForestClassifier(3).fit(x, x["age"] > 50), features, client="clinic", classes=("no", "yes")
        )


def test_an_encrypted_model_is_one_of_a_stack() -> None:
    owner, _ = kept(rows=10_000)
    frame, y = patients(80, seed=2)
    stack = StackedClassifier({"clinic": EncryptedModel(owner.manifest, owner.answer)}, random_state=0)
    stack.fit(frame, y)
    new, truth = patients(80, seed=3)
    assert stack.score(new, truth) > 0.7 and stack.importances_["clinic"] > 0.2
    assert owner.answered == 160


def test_three_commands_ask_answer_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    owner, model = kept()
    owner.save("kept")
    new, _ = patients(1, seed=4)
    new.to_csv("new.csv", index=False)
    of = ["--of", "kept/clinic.json", "--key", "mine.key"]
    assert main(["encrypted", "ask", "new.csv", *of]) == 0
    for secret in ("mine.key", "kept/clinic.linear"):
        assert stat.S_IMODE(Path(secret).stat().st_mode) == 0o600
    assert main(["encrypted", "answer", "question.bin", "--model", "kept/clinic.linear"]) == 0
    assert main(["encrypted", "read", "answer.bin", *of, "--to", "out.csv"]) == 0
    out = pd.read_csv("out.csv")
    np.testing.assert_allclose(out[["p(0)", "p(1)"]], model.predict_proba(new), atol=2e-3)
    # the count stays: five columns, of which three are flags of one text, so five scores tell the weights
    assert main(["encrypted", "answer", "question.bin", "--model", "kept/clinic.linear"]) == 2
    assert "reveal the weights" in capsys.readouterr().err
    assert main(["encrypted", "answer", "question.bin", "--model", "kept/clinic.linear", "--rows", "8"]) == 0
    assert main(["encrypted", "ask", "new.csv", "--of", "kept/clinic.json", "--key", "other.key"]) == 0
    assert main(["encrypted", "read", "answer.bin", "--of", "kept/clinic.json", "--key", "other.key"]) == 2
    assert "made for another key" in capsys.readouterr().err


def test_damaged_messages_keys_and_models_are_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    owner, _ = kept()
    owner.save("kept")
    Path("question.bin").write_bytes(b"\x80\x04 a pickle")
    assert main(["encrypted", "answer", "question.bin", "--model", "kept/clinic.linear"]) == 2
    assert "no question" in capsys.readouterr().err
    other = EncryptedModel(owner.manifest)
    Path("question.bin").write_bytes(other.question(np.ones((1, 5))))
    assert main(["encrypted", "answer", "question.bin", "--model", "kept/clinic.linear"]) == 0
    Path("strange.key").write_bytes(b"no key")
    assert main(["encrypted", "read", "answer.bin", "--of", "kept/clinic.json", "--key", "strange.key"]) == 2
    assert "error: " in capsys.readouterr().err
    with pytest.raises(UsageError, match="holds no kept model"):
        KeptModel.load("question.bin")


def test_a_recipe_that_wants_an_encrypted_model_is_told_how_to_have_one() -> None:
    with pytest.raises(UsageError, match="stays with its owner(.|\n)*hint: motet encrypted"):
        PublicChoice.of("encrypted")


def coded(rows: int = 200) -> tuple[pd.DataFrame, Any]:
    """A column whose categories are whole numbers."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"age": rng.normal(50, 9, rows), "code": rng.integers(1, 4, rows)})
    return frame, (frame["code"] == 2).astype(int)


def test_a_model_that_knows_categories_by_numbers_is_refused_and_not_kept_without_them() -> None:
    frame, y = coded()
    text = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["code"]), remainder="passthrough"
    )
    model = make_pipeline(text, LogisticRegression()).fit(frame, y)
    features = defaults(frame, {"age": "number", "code": "category"})
    with pytest.raises(UsageError, match="same for all categories of 'code'"):
        KeptModel.of(model, features, client="clinic", classes=("0", "1"))


def test_fewer_rows_are_answered_than_tell_the_weights_of_flags_that_sum_to_zero() -> None:
    frame, y = patients()
    frame = frame[["age", "job"]].assign(city=np.random.default_rng(2).choice(["a", "b", "c"], len(frame)))
    text = make_column_transformer((OneHotEncoder(), ["job", "city"]), (StandardScaler(), ["age"]))
    model = make_pipeline(text, LogisticRegression()).fit(frame, y)
    features = defaults(frame, {"age": "number", "job": "category", "city": "category"})
    own = KeptModel.of(model, features, client="clinic", classes=("0", "1"))
    assert own.telling == 6  # 7 weights and a bias, and two sums that are known
    asker = EncryptedModel(own.manifest, own.answer)
    rows = np.eye(7)[:3]
    with pytest.raises(UsageError, match="does not answer"):
        asker.predict_proba(rows)
    assert len(asker.predict_proba(rows[:2])) == 2


def test_answers_count_in_the_file_that_was_named(tmp_path: Path) -> None:
    own, frame = kept(rows=2)
    path = own.save(tmp_path).rename(tmp_path / "risk.linear")
    question = tmp_path / "q.bin"
    question.write_bytes(EncryptedModel(own.manifest).question(np.zeros((1, len(own.manifest.features)))))
    words = ["encrypted", "answer", str(question), "--model", str(path), "--to", str(tmp_path / "a.bin")]
    assert main(words) == 0 and main(words) == 0
    assert KeptModel.load(path).answered == 2 and not (tmp_path / "clinic.linear").exists()


def test_a_limit_of_rows_holds_for_one_call_and_zero_means_none(tmp_path: Path, capsys: Any) -> None:
    own, _ = kept()
    path, question = own.save(tmp_path), tmp_path / "q.bin"
    question.write_bytes(EncryptedModel(own.manifest).question(np.zeros((1, 5))))
    words = ["encrypted", "answer", str(question), "--model", str(path), "--to", str(tmp_path / "a.bin")]
    assert main([*words, "--rows", "0"]) == 2 and KeptModel.load(path).answered == 0
    assert main([*words, "--rows", "5"]) == 0 and main([*words, "--rows", "5"]) == 0
    found = KeptModel.load(path)
    assert found.answered == 2 and found.rows is None
    assert main(words) == 2 and "more than 1, and" in capsys.readouterr().err
    assert KeptModel.load(kept(rows=0)[0].save(tmp_path)).rows == 0


def test_an_encrypted_model_finds_the_columns_of_a_frame_by_name() -> None:
    own, model = kept(rows=100)
    frame, _ = patients(6, seed=5)
    asked = EncryptedModel(own.manifest, own.answer)
    expected = model.predict_proba(frame)
    np.testing.assert_allclose(asked.predict_proba(frame[["hours", "job", "age"]]), expected, atol=2e-3)


def with_imputer() -> tuple[KeptModel, Any]:
    frame, y = patients()
    frame = frame.astype({"job": object})
    frame.loc[::9, "job"] = np.nan
    text = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    columns = make_column_transformer((text, ["job"]), (StandardScaler(), ["hours", "age"]))
    model = make_pipeline(columns, LogisticRegression()).fit(frame, y)
    features = defaults(frame, KINDS)
    return KeptModel.of(model, features, client="clinic", classes=("0", "1"), rows=100), model


def test_empty_text_and_unknown_categories_are_scored_as_the_model_does() -> None:
    owner, model = with_imputer()
    new, _ = patients(12, seed=5)
    new["job"] = ["astronaut", None, "nurse", "clerk"] * 3
    found = EncryptedModel(owner.manifest, owner.answer).predict_proba(new)
    np.testing.assert_allclose(found, model.predict_proba(new.astype({"job": object})), atol=2e-3)
    assert owner.telling == 5  # as without a flag of empty cells


def test_ask_counts_empty_cells_and_unknown_categories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    owner, _ = with_imputer()
    owner.save("kept")
    new, _ = patients(6, seed=5)
    new["job"] = ["astronaut", None, None, "clerk", "nurse", "baker"]
    new.astype({"age": float}).assign(age=[np.nan, *new["age"][1:]]).to_csv("new.csv", index=False)
    assert main(["encrypted", "ask", "new.csv", "--of", "kept/clinic.json", "--key", "mine.key"]) == 0
    said = capsys.readouterr().err
    assert "1 empty cells of numbers; defaults stand there" in said
    assert "2 empty cells of job: asked as empty" in said
    assert "1 cells of job are of categories that the model does not know" in said


def test_a_limit_that_was_raised_is_said_and_holds_for_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    owner, _ = kept()
    owner.save("kept")
    Path("q.bin").write_bytes(EncryptedModel(owner.manifest).question(np.zeros((1, 5))))
    words = ["encrypted", "answer", "q.bin", "--model", "kept/clinic.linear"]
    assert main([*words, "--rows", "1000"]) == 0
    said = capsys.readouterr().err
    assert f"the limit of 1000 rows held for this call alone; the model's is {owner.limit}" in said
    assert "1 in all of at most 1000" in said
    for _ in range(owner.limit - 1):
        assert main(words) == 0
    assert main(words) == 2
    assert sorted(p.name for p in Path("kept").glob("[!.]*")) == ["clinic.json", "clinic.linear"]
    assert main(["encrypted", "read", "nothing.bin", "--of", "kept/clinic.json", "--key", "q.bin"]) == 2
    assert "the answer nothing.bin cannot be read: No such file" in capsys.readouterr().err


# Large and small numbers.


@pytest.mark.parametrize("size", [1e-9, 1e6, 1e9, 1e12])
def test_large_and_small_targets_are_answered_right(size: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    model = LinearRegression().fit(x, (x @ [1.0, 2.0, 3.0] + 20) * size)
    own = KeptModel.of(model, defaults(x, dict.fromkeys("abc", "number")), client="clinic", rows=300)
    off = np.abs(EncryptedModel(own.manifest, own.answer).predict(x) - model.predict(x))
    assert off.max() < 0.02 * size  # deviations of answers are 4 times the size


@pytest.mark.parametrize("size", [1e-9, 1e6, 1e9, 1e12])
@pytest.mark.parametrize("middle", [0.0, 1.0])
def test_large_and_small_columns_are_answered_right(size: float, middle: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = (x[:, 0] + x[:, 1] > 0).astype(int)
    x[:, 0] = (x[:, 0] * 0.1 + middle) * size
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
    features = defaults(x, dict.fromkeys("abc", "number"))
    own = KeptModel.of(model, features, client="clinic", classes=("0", "1"), rows=300)
    found = EncryptedModel(own.manifest, own.answer).predict_proba(x)
    np.testing.assert_allclose(found, model.predict_proba(x), atol=3e-3)


@pytest.mark.parametrize("cell", [np.inf, np.nan, 1e30, -1e4])
def test_a_row_that_cannot_be_held_is_refused_with_its_place(cell: float) -> None:
    own, _ = kept()
    rows = np.zeros((2, 5))
    rows[1, 0] = cell
    with pytest.raises(
        UsageError, match=r"row 2 has .* in column 'age'; expected a number between(.|\n)*hint:"
    ):
        EncryptedModel(own.manifest).question(rows)


def test_features_without_spreads_are_taken_by_their_defaults_and_rows_beyond_are_refused() -> None:
    x = np.random.default_rng(0).normal(size=(200, 2)) * [1.0, 1e9]
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, x[:, 1] > 0)
    own = KeptModel.of(model, [Feature("a"), Feature("b")], client="clinic", classes=("0", "1"), rows=200)
    with pytest.raises(UsageError, match="in column 'b'; expected a number between -128 and 128"):
        EncryptedModel(own.manifest, own.answer).predict_proba(x)


def test_a_model_whose_answers_cannot_be_held_is_not_kept() -> None:
    x = np.random.default_rng(0).normal(size=(200, 2))
    model = LinearRegression().fit(x, x[:, 0] * 1e35)
    with pytest.raises(UsageError, match="expected less than 1e\\+30(.|\n)*hint: measure"):
        KeptModel.of(model, defaults(x, dict.fromkeys("ab", "number")), client="clinic")


def test_a_question_and_an_answer_of_another_model_are_refused() -> None:
    (own, _), (other, _) = kept(), kept(3)
    question = EncryptedModel(other.manifest).question(np.zeros((1, 5)))
    with pytest.raises(UsageError, match="made for another model"):
        own.answer(question)
    asker = EncryptedModel(own.manifest)
    answer = own.answer(asker.question(np.zeros((1, 5))))
    with pytest.raises(UsageError, match="answer is of another model"):
        EncryptedModel(other.manifest, key=asker.asker.key).read(answer)


def test_units_of_a_kept_model_say_little_and_published_manifests_say_none() -> None:
    own, _ = kept()
    said = own.manifest.scaling
    assert said is not None and Manifest.from_json(own.manifest.to_json()) == own.manifest
    powers = np.log2([*said.spread, said.target[1]])
    assert np.all(powers == powers.round()) and said.target[0] == 0.0
    assert said.middle == tuple(f.default for f in own.manifest.features)
    assert "spread" not in replace(own.manifest, scaling=None).to_json()


@pytest.mark.parametrize("cell", ["inf", "1e30", None])
def test_the_command_refuses_rows_that_cannot_be_asked_before_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, cell: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    kept()[0].save("kept")
    row = f"{cell},nurse,38\n" if cell else ""
    Path("new.csv").write_text(f"age,job,hours\n{row}")
    assert main(["encrypted", "ask", "new.csv", "--of", "kept/clinic.json", "--key", "mine.key"]) == 2
    assert "hint: " in capsys.readouterr().err and {p.name for p in tmp_path.iterdir()} == {"kept", "new.csv"}


def test_the_command_refuses_an_answer_of_another_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for classes in (2, 3):
        kept(classes)[0].save(f"kept-{classes}")
    patients(1)[0].to_csv("new.csv", index=False)
    key = ["--key", "mine.key"]
    assert main(["encrypted", "ask", "new.csv", "--of", "kept-2/clinic.json", *key]) == 0
    assert main(["encrypted", "answer", "question.bin", "--model", "kept-2/clinic.linear"]) == 0
    assert main(["encrypted", "read", "answer.bin", "--of", "kept-3/clinic.json", *key]) == 2
    assert "of another model" in capsys.readouterr().err
