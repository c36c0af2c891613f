"""New rows are read as the training rows were: the same fill, dates, categories and spellings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import messy
from motet.data.federated import DataError
from motet.runs.predict import open_model, predict
from motet.runs.recipe import read
from motet.runs.run import run


def table(seed: int) -> pd.DataFrame:
    frame = messy.patients(seed).astype({"age": float})
    frame.loc[seed::6, "age"], frame.loc[seed::7, "ward"] = np.nan, np.nan
    frame["seen"] = pd.to_datetime(frame["admitted"]).dt.strftime("%d/%m/%Y")
    return frame


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three hospitals, the last of which holds no crp."""
    base = tmp_path_factory.mktemp("messy")
    (base / "files").mkdir()
    for seed, site in enumerate(messy.SITES):
        frame = table(seed)
        messy.plain(base / "files" / f"{site}.csv", frame.drop(columns="crp") if seed == 2 else frame)
    words = ["data.target=outcome", "data.missing=median", "method=fedavg", "net=logistic", "train.rounds=2"]
    run(read(None, [f"data={base / 'files'}", *words]), base / "run")
    return base


def model(trained: Path, site: str = "east") -> Path:
    return trained / "run" / "models" / f"{site}.safetensors"


def test_empty_cells_are_filled_as_in_training_without_a_word(trained: Path, tmp_path: Path) -> None:
    file = trained / "files" / "east.csv"
    found, notes = predict(model(trained), file)
    assert found.notna().all().all()
    assert any("'age' are filled with the training median" in n for n in notes)
    facts = open_model(model(trained)).facts
    fill = facts["inputs"]["fill"][facts["columns"].index("age")]
    written = pd.read_csv(file)
    written["age"] = written["age"].fillna(fill)
    written.to_csv(tmp_path / "filled.csv", index=False)
    again, _ = predict(model(trained), tmp_path / "filled.csv")
    pd.testing.assert_frame_equal(found, again)
    with pytest.raises(DataError, match="'age' has 10 empty cells"):
        predict(model(trained), file, missing="refuse")


def test_other_spellings_of_the_same_rows_give_the_same_predictions(trained: Path, tmp_path: Path) -> None:
    right, _ = predict(model(trained), trained / "files" / "east.csv")
    frame = table(0).drop(columns="outcome")
    frame["smoker"] = frame["smoker"].map({"yes": "TRUE", "no": "False"})
    frame["admitted"] = pd.to_datetime(frame["admitted"]).dt.strftime("%d.%m.%Y")
    frame.to_csv(tmp_path / "new.csv", index=False, sep=";", decimal=",", encoding="utf-16", na_rep="n/a")
    found, _ = predict(model(trained), tmp_path / "new.csv")
    pd.testing.assert_frame_equal(found, right)
    from_frame = open_model(model(trained)).predict(table(0))
    pd.testing.assert_frame_equal(from_frame, right.drop(columns="row"))


def test_days_and_months_go_the_way_round_that_training_found(trained: Path, tmp_path: Path) -> None:
    frame = table(0)[:1].assign(seen="03/04/2020", admitted="2020-04-03")
    frame.to_csv(tmp_path / "new.csv", index=False)
    swapped, _ = predict(model(trained), tmp_path / "new.csv")
    frame.assign(seen="03.04.2020").to_csv(tmp_path / "new.csv", index=False)
    clear, _ = predict(model(trained), tmp_path / "new.csv")
    pd.testing.assert_frame_equal(swapped, clear)


def test_unseen_categories_and_wrong_dates_are_counted_and_not_shown(trained: Path, tmp_path: Path) -> None:
    frame = table(0)
    frame.loc[3, "ward"] = "Geheim"
    frame.to_csv(tmp_path / "new.csv", index=False)
    _, notes = predict(model(trained), tmp_path / "new.csv")
    assert any("1 values that the model never saw, in 1 rows" in n for n in notes)
    assert not any("Geheim" in n for n in notes)
    frame.loc[3, "admitted"] = "gestern"
    frame.drop(columns="crp").to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(DataError) as e:
        predict(model(trained), tmp_path / "new.csv")
    assert "column 'admitted' must hold dates, and 1 values are none: new.csv (1: line 5)" in str(e.value)
    assert "there is no column 'crp'" in str(e.value) and "gestern" not in str(e.value)


def test_a_client_that_did_not_hold_a_column_needs_none(trained: Path) -> None:
    found, _ = predict(model(trained, "west"), trained / "files" / "west.csv")
    assert len(found) == messy.ROWS


def test_a_model_of_ja_and_nein_predicts_rows_of_any_language(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(20, 90, 90), "smoker": rng.choice(["ja", "nein"], 90)})
    frame["site"], frame["y"] = list("abc") * 30, np.where(frame["smoker"] == "ja", "tot", "lebt")
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = ["data.target=y", "data.client=site", "method=fedavg", "net=logistic", "train.rounds=2"]
    run(read(None, [f"data={tmp_path / 't.csv'}", *words]), tmp_path / "run")
    model = tmp_path / "run" / "models" / "a.safetensors"
    right, _ = predict(model, tmp_path / "t.csv")
    assert len(right["prediction"].unique()) == 2
    for yes, no in (("yes", "no"), (1, 0), (True, False), ("SÍ", "No"), ("tak", "nie")):
        frame.assign(smoker=frame["smoker"].map({"ja": yes, "nein": no})).to_csv(tmp_path / "new.csv")
        pd.testing.assert_frame_equal(predict(model, tmp_path / "new.csv")[0], right)
        frames = frame.assign(smoker=frame["smoker"].map({"ja": yes, "nein": no}))
        pd.testing.assert_frame_equal(open_model(model).predict(frames), right.drop(columns="row"))


def test_a_number_is_no_word_of_truth(german: Path) -> None:
    with pytest.raises(DataError, match="column 'amount' must hold numbers, and 1 values are none"):
        predicted(german, "amount;dose;code;seen\n1.234;2,5;01;2020-01-13\nno;2,5;01;2020-01-13\n")


@pytest.fixture(scope="module")
def german(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on semicolons, decimal commas, codes with zeros before them, and dates in one order of the year alone."""
    base = tmp_path_factory.mktemp("german")
    (base / "files").mkdir()
    for site in "ab":
        rows = [
            f"{i % 5 + 1}.{i:03};{i % 7},5;{['01', 'x', 'z'][i % 3]};2020-01-{i % 28 + 1:02};{i % 2}"
            for i in range(40)
        ]
        (base / "files" / f"{site}.csv").write_text("\n".join(["amount;dose;code;seen;y", *rows]) + "\n")
    words = ["data.target=y", "method=fedavg", "net=logistic", "train.rounds=2"]
    run(read(None, [f"data={base / 'files'}", *words]), base / "run")
    return base


def predicted(base: Path, text: str) -> tuple[list[float], list[str]]:
    (base / "new.csv").write_text(text)
    found, notes = predict(base / "run" / "models" / "a.safetensors", base / "new.csv")
    return found.iloc[:, 2].tolist(), notes


def test_predictions_of_a_row_do_not_depend_on_the_other_rows(german: Path) -> None:
    names, row = "amount;dose;code;seen;y\n", "1.234;2,125;01;2020-01-03;0\n"
    both, notes = predicted(german, names + row + "2.005;0,5;x;2020-01-04;1\n")
    alone, more = predicted(german, names + row)
    assert alone == both[:1] and not any("never saw" in n for n in notes + more)
    commas, _ = predicted(german, 'amount,dose,code,seen\n1.234,"2,125",01,2020-01-03\n')
    assert commas == alone


def test_dates_of_new_rows_that_go_both_ways_are_refused(german: Path) -> None:
    with pytest.raises(DataError, match="either way round") as e:
        predicted(german, "amount;dose;code;seen\n1.234;2,5;01;03/01/2020\n")
    assert "hint: write them as 2020-12-31" in str(e.value)
    clear, _ = predicted(german, "amount;dose;code;seen\n1.234;2,5;01;13/01/2020\n")
    assert clear == predicted(german, "amount;dose;code;seen\n1.234;2,5;01;2020-01-13\n")[0]


def test_names_are_found_as_training_merged_them(german: Path) -> None:
    right, _ = predicted(german, "amount;dose;code;seen\n1.234;2,5;01;2020-01-13\n")
    found, notes = predicted(german, "Amount; DOSE;CODE;Seen\n1.234;2,5;01;2020-01-13\n")
    assert found == right and "column 'Amount' is read as 'amount'" in notes


def test_missing_columns_are_those_of_the_table_each_once(german: Path) -> None:
    with pytest.raises(DataError) as e:
        predicted(german, "amount;dose\n1.234;2,5\n")
    said = str(e.value)
    assert said.count("there is no column 'code'") == 1 and said.count("there is no column 'seen'") == 1
    assert "code=" not in said and "01" not in said


def test_every_prediction_has_the_number_of_its_row_in_the_file(german: Path) -> None:
    rows = [
        "1.234;2,125;01;2020-01-03;0",
        "",
        ";;;;",
        "2.005;0,5;x;2020-01-04;1",
        "   ",
        "3.001;1,5;z;2020-01-05;1",
    ]
    (german / "gaps.csv").write_text("\n".join(["", "amount;dose;code;seen;y", *rows]) + "\n")
    found, _ = predict(german / "run" / "models" / "a.safetensors", german / "gaps.csv")
    assert list(found.columns)[:2] == ["row", "prediction"] and found["row"].tolist() == [1, 4, 6]


def test_a_cell_with_a_line_break_is_one_row(german: Path) -> None:
    text = 'amount;dose;code;seen;note\n1.234;2,5;01;2020-01-13;"two\nlines"\n1.234;2,5;01;2020-01-13;one\n'
    (german / "breaks.csv").write_text(text)
    found, _ = predict(german / "run" / "models" / "a.safetensors", german / "breaks.csv")
    assert found["row"].tolist() == [1, 2]


def test_rows_of_several_files_are_named_by_their_file(german: Path) -> None:
    found, _ = predict(german / "run" / "models" / "a.safetensors", german / "files")
    assert found[["file", "row"]].iloc[[0, 40]].to_numpy().tolist() == [["a.csv", 1], ["b.csv", 1]]


def test_a_spelling_of_yes_beside_a_third_value_is_the_category_that_training_made(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for site, words in {"a": "0 1", "b": "nein ja", "c": "no yes unknown"}.items():
        cells = [f"{i / 7:.3f},{words.split()[i % len(words.split())]},{i % 2}" for i in range(60)]
        (tmp_path / "files" / f"{site}.csv").write_text("\n".join(["age,smoker,outcome", *cells]) + "\n")
    words = ["data.target=outcome", "method=fedavg", "net=logistic", "train.rounds=1"]
    run(read(None, [f"data={tmp_path / 'files'}", *words]), tmp_path / "run")
    model = tmp_path / "run" / "models" / "c.safetensors"

    def said(no: object, yes: object) -> tuple[pd.DataFrame, list[str]]:
        frame = pd.DataFrame({"age": [1.0, 2.0, 3.0], "smoker": [no, yes, "unknown"]})
        frame.to_csv(tmp_path / "new.csv", index=False)
        return predict(model, tmp_path / "new.csv")

    right, notes = said("no", "yes")
    assert notes == [] and "smoker=unknown" in open_model(model).columns
    for no, yes in ((0, 1), ("Nein", "ja"), ("non", "OUI"), ("N", "Y")):
        found, notes = said(no, yes)
        pd.testing.assert_frame_equal(found, right)
        assert notes == []
    assert any("the model never saw" in note for note in said("no", 2)[1])
