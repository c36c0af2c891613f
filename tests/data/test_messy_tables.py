"""Every fault of people's tables ends in a run, or in one list with the setting that helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import messy
from motet.client import Column
from motet.data import in_memory, table_files, targets, user_table
from motet.data.federated import DataError, FederatedData, Pool
from motet.data.learned_columns import with_others
from motet.runs.build import federated_data
from motet.runs.recipe import read


def loaded(folder: Path, *words: str) -> FederatedData:
    """As `motet data` and every run read it."""
    return federated_data(read(None, [f"data={folder}", "data.target=outcome", *words]))


def cells_in(text: str, frame: pd.DataFrame) -> set[str]:
    """Text cells of a table that a message shows."""
    long = {str(v) for c in frame for v in frame[c] if len(str(v)) > 3 and not str(v).isdigit()}
    return {v for v in long - {"part", "train"} if v in text}


@pytest.mark.parametrize("name", messy.MESSES)
def test_every_mess_ends_in_rows_or_in_a_fault_with_its_setting(name: str, tmp_path: Path) -> None:
    mess = messy.MESSES[name]
    folder = messy.write_folder(tmp_path / "hospitals", mess)
    if mess.fault:
        with pytest.raises(DataError) as e:
            loaded(folder, *mess.always)
        said = str(e.value)
        assert mess.fault in said and "\nhint: " in said
        assert not cells_in(said.replace(str(folder), ""), messy.patients(2))
        assert all(word.split("=")[0] in said for word in mess.settings)
        if not mess.settings:
            return
    federated = loaded(folder, *mess.always, *mess.settings)
    x = np.concatenate([d.train.x.numpy() for d in federated.clients_data.values()])
    assert np.isfinite(x).all() and {"east", "north"} <= set(federated.clients_data)
    assert mess.note in "\n".join(federated.notes)
    assert not cells_in("\n".join(federated.notes), messy.patients(2))


SAME = ["semicolons and decimal commas", "tabs", "bars", "a mark of UTF-8", "UTF-16", "cp1252", "quoted cells",
        "an index without a name", "spaces around cells", "blank lines", "separators at the end",
        "separators at the end of rows", "a line for Excel", "dates with points", "dates of America",
        "dates with times", "another spelling of truth", "other case and spaces in names", "ids", "names"]  # fmt: skip


def test_ways_to_write_the_same_rows_give_the_same_bits(tmp_path: Path) -> None:
    clean = loaded(messy.write_folder(tmp_path / "clean", messy.MESSES["clean"]))
    for i, name in enumerate(SAME):
        other = loaded(messy.write_folder(tmp_path / str(i), messy.MESSES[name]))
        assert other.fingerprint() == clean.fingerprint(), name


def test_all_faults_of_all_files_are_said_at_once(tmp_path: Path) -> None:
    folder = messy.write_folder(tmp_path / "f", messy.MESSES["two columns of one name"])
    messy.holes("NA")(folder / "north.csv", messy.patients(1))
    messy.MESSES["words among dates"].write(folder / "east.csv", messy.patients(0))
    with pytest.raises(DataError) as e:
        loaded(folder)
    said = str(e.value)
    assert said.startswith("3 things are wrong")
    for fix in ("give each a name of its own", "data.missing=mean", "data.drop=admitted"):
        assert fix in said


def test_lists_are_typed_with_commas(tmp_path: Path) -> None:
    folder = messy.write_folder(tmp_path / "f", messy.MESSES["clean"])
    federated = loaded(folder, "data.drop=admitted,ward")
    assert [c.name for c in federated.columns] == ["age", "crp", "smoker"]


# ---- what becomes of columns ----


def test_dates_become_days_or_parts_or_are_left_out(tmp_path: Path) -> None:
    folder = messy.write_folder(tmp_path / "f", messy.MESSES["clean"])
    first = messy.patients(0)["admitted"]
    days = (pd.to_datetime(first) - pd.Timestamp("2000-01-01")).dt.days

    def column(name: str, *words: str) -> np.ndarray:
        d = loaded(folder, "data.scale=none", *words)
        at = [c.name for c in d.columns].index(name)
        east = d.clients_data["east"]
        return np.sort(np.concatenate([b.x[:, at].numpy() for b in (east.train, east.val, east.test)]))

    assert (column("admitted: days since 2000-01-01") == np.sort(days)).all()
    month = column("admitted: month", "data.dates=parts")
    assert (month == np.sort(pd.to_datetime(first).dt.month)).all()
    left = loaded(folder, "data.dates=leave_out")
    assert not any(c.name.startswith("admitted") for c in left.columns)
    assert "column 'admitted' holds dates: left out" in left.notes


def test_days_and_months_that_fit_both_ways_are_asked_for(tmp_path: Path) -> None:
    folder = messy.write_folder(
        tmp_path / "f", messy.Mess(messy.cells(lambda f: f.assign(seen="01/02/2020")))
    )
    for site in messy.SITES:
        messy.plain(folder / f"{site}.csv", messy.patients(0).assign(seen=["01/02/2020", "03/04/2020"] * 30))
    with pytest.raises(DataError, match=r"(?s)either way round.*data\.day_first=true"):
        loaded(folder)
    assert loaded(folder, "data.day_first=true").columns


def test_truth_values_are_one_column_and_letters_need_both(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    for i, site in enumerate(messy.SITES):
        frame = messy.patients(i).assign(t=["T", "F"] * 30, sex=["f", "m"] * 30, lone="n")
        messy.plain(folder / f"{site}.csv", frame)
    kinds = {c.name: c.kind for c in loaded(folder).columns}
    assert kinds["t"] == kinds["smoker"] == "flag" and "sex=f" in kinds and "lone=n" in kinds


# ---- missing cells ----


def filled(tmp_path: Path, *words: str) -> tuple[FederatedData, dict[str, pd.DataFrame]]:
    """Two hospitals with missing ages and wards, and their training rows as they were."""
    folder, frames = tmp_path / "f", {}
    folder.mkdir(exist_ok=True)
    for seed, site in enumerate(("east", "west")):
        frame = messy.patients(seed).astype({"age": float})
        frame["age"] += 100 * seed
        frame.loc[::5, "age"], frame.loc[1::6, "ward"] = np.nan, np.nan
        frame["row"] = np.arange(messy.ROWS) + 1000.5 * (seed + 1)
        messy.plain(folder / f"{site}.csv", frame)
        frames[site] = frame
    federated = loaded(folder, "data.scale=none", *words)
    at = [c.name for c in federated.columns].index("row")
    trained = {s: d.train.x[:, at].numpy() for s, d in federated.clients_data.items()}
    return federated, {s: f[f["row"].astype("float32").isin(trained[s])] for s, f in frames.items()}


def values_of(federated: FederatedData, site: str, column: str) -> np.ndarray:
    at = [c.name for c in federated.columns].index(column)
    return federated.fills[site][at]


@pytest.mark.parametrize("how", ["mean", "median", "most_frequent"])
@pytest.mark.parametrize("by", ["federation", "client"])
def test_cells_are_filled_with_what_training_rows_say(tmp_path: Path, how: str, by: str) -> None:
    federated, trained = filled(tmp_path, f"data.missing={how}", f"data.missing_by={by}")
    for site, own in trained.items():
        rows = own if by == "client" else pd.concat(trained.values())
        age = rows["age"].dropna()
        right = {"mean": age.mean(), "median": age.median(), "most_frequent": age.mode().iloc[0]}[how]
        assert values_of(federated, site, "age") == pytest.approx(right)
        ward = rows["ward"].dropna()
        share = float((ward == "Ost").mean()) if how == "mean" else float(ward.mode().iloc[0] == "Ost")
        assert values_of(federated, site, "ward=Ost") == pytest.approx(share)


def test_an_indicator_says_where_cells_were_missing(tmp_path: Path) -> None:
    federated, trained = filled(tmp_path, "data.missing=indicator")
    names = [c.name for c in federated.columns]
    assert names[-2:] == ["age is missing", "ward is missing"]
    x = federated.clients_data["east"].train.x.numpy()
    assert x[:, -2].sum() == trained["east"]["age"].isna().sum()
    assert len(set(x[x[:, -2] == 1, names.index("age")])) == 1


def test_rows_for_the_test_fill_no_cell_and_widen_no_network(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    for seed, site in enumerate(("east", "west")):
        frame = messy.patients(seed).assign(part=np.resize(["train", "val", "test"], messy.ROWS))
        frame.loc[::5, "crp"] = np.nan
        messy.plain(folder / f"{site}.csv", frame)
    words = ("data.part=part", "data.missing=indicator")
    before = loaded(folder, *words)
    changed = frame.copy()
    changed.loc[changed["part"] == "test", ["crp", "ward"]] = [np.nan, "Nord"]
    changed.loc[changed["part"] == "test", "age"] = np.nan
    folder = folder.rename(tmp_path / "changed")
    messy.plain(folder / "west.csv", changed)
    after = loaded(folder, *words)
    assert [c.name for c in before.columns] == [c.name for c in after.columns]
    for site in ("east", "west"):
        a, b = before.clients_data[site].train, after.clients_data[site].train
        assert (a.x == b.x).all() and (a.y == b.y).all()
    assert "categories that no training row has are no inputs: 1 of 'ward'" in after.notes


def test_a_column_of_parts_is_obeyed(tmp_path: Path) -> None:
    folder = messy.write_folder(tmp_path / "f", messy.MESSES["parts"])
    federated = loaded(folder, "data.part=part")
    west = federated.clients_data["west"]
    assert (west.n, len(west.val), len(west.test)) == (30, 15, 15)
    folder = folder.rename(tmp_path / "changed")
    messy.plain(folder / "west.csv", messy.patients(2).assign(part="trial"))
    with pytest.raises(DataError, match="60 values that are none of train, val and test"):
        loaded(folder, "data.part=part")


def test_a_column_of_parts_that_nobody_named_is_noted(tmp_path: Path) -> None:
    folder = messy.write_folder(tmp_path / "f", messy.MESSES["parts"])
    noted = "column 'part' says which rows are for training: if so, data.part=part"
    assert noted in loaded(folder).notes and noted not in loaded(folder, "data.part=part").notes
    assert noted not in loaded(folder, "data.drop=part").notes


def test_an_indicator_replaces_no_column_of_its_name(tmp_path: Path) -> None:
    rows = [f"{'' if i % 3 == 0 else i},{i % 2},{i % 2}" for i in range(12)]
    (tmp_path / "t.csv").write_text("\n".join(["bp,bp is missing,y", *rows]) + "\n")
    with pytest.raises(DataError, match="the table has a column 'bp is missing'") as e:
        user_table.load(str(tmp_path / "t.csv"), target="y", missing="indicator")
    drop = ("bp is missing",)
    assert """hint: give it another name, or leave it out: 'data.drop=["bp is missing"]'""" in str(e.value)
    pool = user_table.load(str(tmp_path / "t.csv"), target="y", missing="indicator", drop=drop)
    assert pool.x[:, 1].sum() == 4


def test_columns_that_are_left_out_leave_the_given_rows_alone() -> None:
    x = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    columns = tuple(Column(f"ward={v}", "flag", "ward") for v in ("a", "b", "other"))
    found = with_others(x, columns, np.array([True, False, True]))
    assert found.tolist() == [[1, 0], [0, 1], [0, 1]] and (x == np.eye(3)).all()


# ---- decimal signs ----


def cells_of(path: Path, text: str, **how: Any) -> dict[str, list[Any]]:
    path.write_text(text)
    frame = table_files.read(path, **how).frame
    return {c: frame[c].tolist() for c in frame}


def test_a_group_of_thousands_does_not_begin_with_a_zero(tmp_path: Path) -> None:
    found = cells_of(tmp_path / "t.csv", "p;y\n0,123;1\n1,456;0\n1;1\n")
    assert found["p"] == [0.123, 1.456, 1.0]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("a;b\n1.234;0,5\n2.500;0,7\n", {"a": [1234, 2500], "b": [0.5, 0.7]}),
        ("a;b\n1,234.50;1,234\n7,000.25;2,500\n", {"a": [1234.5, 7000.25], "b": [1234, 2500]}),
        ("a;b\n0.5;1,234\n0.25;2,500\n", {"a": [0.5, 0.25], "b": [1234, 2500]}),
        ("a;b\n1,234;7\n2,500;8\n", {"a": [1.234, 2.5], "b": [7, 8]}),
        ("a;b\n1.234;7\n2.500;8\n", {"a": [1.234, 2.5], "b": [7, 8]}),
        ('a,b\n1.234,"0,5"\n2.500,"0,7"\n', {"a": [1234, 2500], "b": [0.5, 0.7]}),
        ('a,b\n1.2,"1,234"\n2.5,"2,500"\n', {"a": [1.2, 2.5], "b": [1234, 2500]}),
    ],
)
def test_a_file_has_one_decimal_sign(tmp_path: Path, text: str, right: dict[str, list[float]]) -> None:
    assert cells_of(tmp_path / "t.csv", text) == right


def test_signs_that_differ_between_columns_decide_no_other(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a;b;c\n0.5;0,5;1,234\n0.7;0,7;2,500\n")
    table = table_files.read(tmp_path / "t.csv")
    assert table.unclear == {"c": ["t.csv"]} and table.frame["b"].tolist() == [0.5, 0.7]


def test_a_number_for_nothing_is_found_in_each_spelling(tmp_path: Path) -> None:
    found = cells_of(tmp_path / "t.csv", "a;b\n-999,00;2\n1,5;-999\n2,5;3\n", missing_values=["-999"])
    assert np.isnan(found["a"][0]) and np.isnan(found["b"][1]) and found["a"][1:] == [1.5, 2.5]


# ---- dates ----


def dated(folder: Path, **files: list[str]) -> Pool:
    for name, days in files.items():
        rows = [f"{day},{i},{i % 2}" for i, day in enumerate(days)]
        (folder / f"{name}.csv").write_text("\n".join(["seen,x,y", *rows]) + "\n")
    return user_table.load(str(folder), target="y")


def test_dates_of_one_file_do_not_decide_those_of_another(tmp_path: Path) -> None:
    pool = dated(tmp_path, eu=["01/03/2020", "25/03/2020"], us=["01/02/2020", "01/25/2020"])
    days = pool.x[:, [c.name.startswith("seen") for c in pool.columns]].ravel() - 20 * 365 - 5
    assert days.tolist() == [31 + 29, 31 + 29 + 24, 1, 24] and pool.reading["day_first"] == {}
    with pytest.raises(DataError) as e:
        dated(tmp_path, eu=["01/03/2020", "25/03/2020"], us=["01/02/2020", "03/04/2020"])
    assert "column 'seen' of us.csv holds dates whose day" in str(e.value)
    assert "hint: data.day_first=true" in str(e.value)


# ---- names ----

CODES = [
    (["3E2", "300", "1E1", "10"], ["10", "1E1", "300", "3E2"]),
    (["01", "1", "001"], ["001", "01", "1"]),
    (["1.10", "1.1"], ["1.1", "1.10"]),
    (["9007199254740993", "9007199254740992"], ["9007199254740992", "9007199254740993"]),
    (["2", "1", "10"], ["1", "10", "2"]),
    (["2.0", "1.0"], ["1", "2"]),
]


@pytest.mark.parametrize(("given_names", "right"), CODES)
def test_clients_of_different_names_are_different(
    tmp_path: Path, given_names: list[str], right: list[str]
) -> None:
    rows = [f"{name},{i + 0.5},{i % 2}" for i in range(8) for name in given_names]
    (tmp_path / "t.csv").write_text("\n".join(["site,x,y", *rows, ",0.5,1"]) + "\n")
    how: dict[str, Any] = {"target": "y", "client": "site", "drop_rows": True}
    pool = user_table.load(str(tmp_path / "t.csv"), **how)
    assert list(pool.names) == right and set(np.bincount(np.asarray(pool.owner))) == {8}
    rest = user_table.load(str(tmp_path / "t.csv"), **how, without=(right[0],))
    assert list(rest.names) == right[1:]


@pytest.mark.parametrize(("codes", "right"), [*CODES[:4], (["2", "1", "10"], ["1", "2", "10"])])
def test_classes_of_different_names_are_different(tmp_path: Path, codes: list[str], right: list[str]) -> None:
    rows = [f"{code},{i + 0.5}" for i in range(4) for code in codes]
    (tmp_path / "t.csv").write_text("\n".join(["y,x", *rows]) + "\n")
    assert list(user_table.load(str(tmp_path / "t.csv"), target="y", kind="classes").classes) == right


@pytest.mark.parametrize("other", ["y n", "Yes No", "TRUE FALSE", "t f", "1 0"])
def test_truth_values_of_several_files_are_one_column(tmp_path: Path, other: str) -> None:
    for name, words in (("a", ["yes", "no"]), ("b", other.split())):
        rows = [f"{words[i % 2]},{i % 3 % 2}" for i in range(8)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["smoker,y", *rows]) + "\n")
    pool = user_table.load(str(tmp_path), target="y")
    assert [c.name for c in pool.columns] == ["smoker"]
    assert pool.x[:, 0].tolist() == [1.0, 0.0] * 8


# ---- yes and no in the languages of Europe ----

LANGUAGES = ["0 1", "no yes", "nein ja", "non oui", "no sí", "NO SÌ", "não sim", "Nao Sim", "nee ja", "nie tak",
             "nej ja", "nei ja", "ne ano", "nu da", "nem igen", "ei kyllä", "Όχι Ναι", "нет да", "FALSCH WAHR",
             "Faux Vrai", "falso vero", "n j", "N Y", "hayır evet", "FAŁSZ PRAWDA", "N O"]  # fmt: skip


def hospitals_in(folder: Path, *words: str, rows: int = 12) -> Path:
    """A file for each pair of words, in which the target and the column `smoker` say no and yes in them."""
    folder.mkdir()
    for k, pair in enumerate(words):
        no, yes = pair.split()
        cells = [f"{k + i / 7:.3f},{yes if i % 3 else no},{yes if i % 2 else no}" for i in range(rows)]
        (folder / f"h{k:02}.csv").write_text("\n".join(["age,smoker,outcome", *cells]) + "\n")
    return folder


def test_yes_and_no_of_every_language_are_one_target_and_one_column(tmp_path: Path) -> None:
    pool = user_table.load(str(hospitals_in(tmp_path / "f", *LANGUAGES)), target="outcome")
    assert pool.classes == ("no", "yes") and pool.y.tolist() == [0, 1] * 6 * len(LANGUAGES)
    assert [c.name for c in pool.columns] == ["age", "smoker"]
    assert pool.x[:, 1].tolist() == [0.0, 1.0, 1.0] * 4 * len(LANGUAGES)


@pytest.mark.parametrize("many", [1, 3])
def test_0_and_1_beside_words_are_truth_whoever_has_the_majority(tmp_path: Path, many: int) -> None:
    folder = hospitals_in(tmp_path / "f", *["0 1"] * many, "nein ja")
    pool = user_table.load(str(folder), target="outcome")
    assert pool.classes == ("no", "yes") and pool.y.tolist() == [0, 1] * 6 * (many + 1)
    assert pool.x[:, 1].tolist() == [0.0, 1.0, 1.0] * 4 * (many + 1)


def test_one_pair_of_words_names_the_classes_as_its_owner_does(tmp_path: Path) -> None:
    pool = user_table.load(str(hospitals_in(tmp_path / "f", "nein ja", "nein ja")), target="outcome")
    assert pool.classes == ("ja", "nein")
    assert not any("in several ways" in note for note in pool.notes)


@pytest.mark.parametrize(
    "cells",
    [
        "no yes perhaps",
        "nie nein ja",
        "NO DA",
        "NE SE NO",
        "ano mes",
        "N O S",
        "o n",
        "no two",
        "si",
        "da",
        "f m",
    ],
)
def test_words_that_mean_something_else_stay_text(tmp_path: Path, cells: str) -> None:
    words = cells.split()
    rows = [f"{words[i % len(words)]},{i % 3 % 2}" for i in range(12)]
    (tmp_path / "a.csv").write_text("\n".join(["said,y", *rows]) + "\n")
    columns = [c.name for c in user_table.load(str(tmp_path / "a.csv"), target="y").columns]
    assert columns == [f"said={word}" for word in sorted(words)]


def smokers(folder: Path, **cells: str) -> Path:
    """A file for each name, whose column `smoker` holds these words in turn."""
    folder.mkdir()
    for name, words in cells.items():
        rows = [f"{i / 7:.3f},{words.split()[i % len(words.split())]},{i % 2}" for i in range(24)]
        (folder / f"{name}.csv").write_text("\n".join(["age,smoker,outcome", *rows]) + "\n")
    return folder


def test_spellings_of_yes_and_no_beside_a_third_value_are_one_category_each(tmp_path: Path) -> None:
    given = {"a": "0 1", "b": "nein ja", "c": "no yes unknown", "d": "N Y", "e": "No YES unknown"}
    pool = user_table.load(str(smokers(tmp_path / "f", **given)), target="outcome")
    assert [c.name for c in pool.columns] == ["age", "smoker=no", "smoker=unknown", "smoker=yes"]
    no, unknown, yes = pool.x[:, 1:].reshape(5, 24, 3).transpose(2, 0, 1)
    for k in (0, 1, 3):
        assert no[k].tolist() == [1.0, 0.0] * 12 and yes[k].tolist() == [0.0, 1.0] * 12
    for k in (2, 4):
        assert no[k].tolist() == [1.0, 0.0, 0.0] * 8 and unknown[k].tolist() == [0.0, 0.0, 1.0] * 8
    assert any("'smoker' writes yes and no in several ways" in note for note in pool.notes)
    apart = user_table.load(str(tmp_path / "f"), target="outcome", categories=("smoker",))
    assert len(apart.columns) == 12


@pytest.mark.parametrize(
    ("cells", "categories"),
    [
        ({"a": "0 1 2", "b": "no yes x", "c": "ja nein"}, "0 1 2 no x yes"),  # other numbers: codes
        ({"a": "ja nein x"}, "ja nein x"),  # one spelling keeps its name
        ({"a": "F T N Y x"}, "F N T Y x"),  # letters alone mean other things
        ({"a": "NO SE DK", "b": "SE DK NO", "c": "0 1"}, "0 1 DK NO SE"),  # no yes
    ],
)
def test_what_may_be_no_spelling_of_yes_and_no_stays_a_category(
    tmp_path: Path, cells: dict[str, str], categories: str
) -> None:
    pool = user_table.load(str(smokers(tmp_path / "f", **cells)), target="outcome", drop=("age",))
    assert [c.name for c in pool.columns] == [f"smoker={c}" for c in categories.split()]


def test_arrays_and_frames_of_several_languages_have_two_classes() -> None:
    x = np.arange(40, dtype=np.float32)[:, None] / 7
    ys = {"a": np.array(["ja", "nein"] * 20), "b": np.arange(40) % 2, "c": np.array([True, False] * 20)}
    given = {c: (x, y) for c, y in ys.items()}
    frames = {c: pd.DataFrame({"x": x[:, 0], "outcome": y}) for c, y in ys.items()}
    for data, words in ((given, []), (frames, ["data.target=outcome"])):
        kept = in_memory.keep(data)
        named = [f"data.{key}={value}" for key, value in kept.items()]
        federated = federated_data(read(None, [*named, *words]))
        assert federated.classes == ("no", "yes") and set(federated.clients_data) == {"a", "b", "c"}
        assert [int(federated.clients_data[c].train.y.sum()) for c in "abc"] == [12, 12, 12]


def test_events_are_seen_in_any_language() -> None:
    seen, bad = targets.seen_events(np.array(["Ja", "nein", "oui", 1, 0.0, True, "perhaps"], object))
    assert seen.tolist() == [True, False, True, True, False, True, False]
    assert bad.tolist() == [False] * 6 + [True]


# ---- classes that one client alone has ----


def clients_with(path: Path, **classes: str) -> Path:
    """One table whose client names its classes so, each in twelve rows."""
    rows = [
        f"{client},{i + len(client) / 7:.3f},{name}"
        for client, names in classes.items()
        for name in names.split()
        for i in range(12)
    ]
    path.write_text("\n".join(["site,x,outcome", *rows]) + "\n")
    return path


def test_a_client_that_names_classes_otherwise_is_refused_as_between_organisations(tmp_path: Path) -> None:
    table = clients_with(tmp_path / "t.csv", a="dead alive", b="dead alive", west="tot lebt")
    with pytest.raises(DataError, match="no class of west is a class of any other client") as e:
        loaded(table, "data.client=site")
    assert "client west has lebt, tot; the other clients have alive, dead.\nhint: name classes alike" in str(
        e.value
    )
    assert loaded(table, "data.client=site", "data.split=iid", "data.clients=3").classes
    tables = {s: pd.read_csv(table).query("site == @s") for s in ("a", "b", "west")}
    (tmp_path / "files").mkdir()
    for site, frame in tables.items():
        frame.drop(columns="site").to_csv(tmp_path / "files" / f"{site}.csv", index=False)
    with pytest.raises(DataError, match="no class of west is a class of any other client"):
        loaded(tmp_path / "files")


@pytest.mark.parametrize("west", ["dead lives", "dead alive rare"])
def test_a_class_that_one_client_alone_has_is_refused_with_what_to_do(west: str, tmp_path: Path) -> None:
    table = clients_with(tmp_path / "t.csv", a="dead alive", b="dead alive", west=west)
    own = west.split()[-1]
    with pytest.raises(DataError, match=f"the class '{own}' is one client's alone: west, in 12 rows") as e:
        loaded(table, "data.client=site")
    assert all(
        word in str(e.value) for word in ("name classes alike", "data.without=west", "data.split=dirichlet")
    )
    assert set(loaded(table, "data.client=site", "data.without=west").classes) == {"alive", "dead"}
    drawn = loaded(table, "data.client=site", "data.split=dirichlet", "data.clients=3")
    assert own in drawn.classes


def test_codes_of_another_kind_are_refused_and_few_numbers_may_be_numbers(tmp_path: Path) -> None:
    table = clients_with(tmp_path / "t.csv", a="0 1", b="1 2")
    with pytest.raises(DataError, match="the class '0' is one client's alone: a") as e:
        loaded(table, "data.client=site")
    assert "the class '2' is one client's alone: b" in str(e.value) and "data.kind=numbers" in str(e.value)
    assert loaded(table, "data.client=site", "data.kind=numbers").kind == "numbers"


def test_of_two_clients_one_may_lack_a_class_and_a_client_that_is_left_out_takes_none_away(
    tmp_path: Path,
) -> None:
    two = clients_with(tmp_path / "two.csv", a="mild severe", b="mild")
    assert loaded(two, "data.client=site").classes == ("mild", "severe")
    three = clients_with(tmp_path / "three.csv", a="mild severe", b="mild severe", c="mild", d="mild")
    assert loaded(three, "data.client=site", "data.without=a").classes == ("mild", "severe")


# ---- clients of one row ----


def test_a_client_column_with_one_row_a_client_is_refused_by_name(tmp_path: Path) -> None:
    rows = [f"{i},{i % 7 + 0.5},{i % 2}" for i in range(190)]
    (tmp_path / "t.csv").write_text("\n".join(["age,x,outcome", *rows]) + "\n")
    with pytest.raises(DataError, match="190 clients for 190 rows: every client has one row") as e:
        loaded(tmp_path / "t.csv", "data.client=age", "data.kind=numbers")
    assert "is 'age' the client?\nhint: " in str(e.value) and "data.client" in str(e.value)
    drawn = loaded(tmp_path / "t.csv", "data.client=age", "data.split=iid", "data.clients=5")
    assert sum(len(d.test) for d in drawn.clients_data.values()) > 0


def test_a_folder_of_files_with_one_row_and_drawn_clients_of_one_row_are_refused(tmp_path: Path) -> None:
    for i in range(6):
        (tmp_path / f"p{i}.csv").write_text(f"x,outcome\n{i},{i % 2}\n")
    with pytest.raises(
        DataError, match="6 clients for 6 rows: every client has one row, and none is left"
    ) as e:
        loaded(tmp_path)
    assert "data.client" in str(e.value)
    with pytest.raises(DataError, match="6 clients for 6 rows.*\nhint: .*data.clients"):
        loaded(tmp_path, "data.split=iid", "data.clients=6")


def test_one_client_with_rows_to_test_on_is_enough_and_so_is_a_server(tmp_path: Path) -> None:
    rows = [f"c{max(i, 3)},{i % 7 + 0.5},{i % 2}" for i in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["who,x,outcome", *rows]) + "\n")
    assert any("without test rows" in note for note in loaded(tmp_path / "t.csv", "data.client=who").notes)
    (tmp_path / "u.csv").write_text(
        "\n".join(["who,x,outcome", *(f"{i},{i},{i % 2}" for i in range(20))]) + "\n"
    )
    words = ["data.client=who", "data.kind=numbers"]
    assert loaded(tmp_path / "u.csv", *words, "data.server_test=0.3").server_test is not None
    assert loaded(tmp_path / "u.csv", *words, "data.val=0", "data.test=0").clients_data  # as was asked for


# ---- properties ----

ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "cp1252")
WAYS = st.fixed_dictionaries(
    {
        "encoding": st.sampled_from(ENCODINGS),
        "form": st.sampled_from([(",", "."), (";", "."), (";", ","), ("\t", "."), ("|", ".")]),
        "order": st.permutations(["amount", "count", "kind", "flag", "outcome"]),
        "files": st.permutations(["a", "b"]),
    }
)
ROW = st.tuples(
    st.floats(-1e6, 1e6, width=32), st.integers(-999, 999), st.sampled_from(["ä", "ö b", "x,y", "1;2 z"]),
    st.booleans(), st.sampled_from(["u", "v"]),
)  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROW, min_size=6, max_size=30, unique_by=lambda r: r[0]), how=WAYS)
def test_reading_does_not_depend_on_how_rows_are_written(
    tmp_path: Path, rows: list[Any], how: dict[str, Any]
) -> None:
    names = ["amount", "count", "kind", "flag", "outcome"]
    frame = pd.DataFrame([*rows, (0.5, 1, "ä", True, "u"), (1.5, 1, "ä", False, "v")], columns=names)
    half = len(frame) // 2
    separator, decimal = how["form"]
    options: dict[str, Any] = {"target": "outcome", "keep": ("kind", "amount"), "client": "site"}
    found = []
    for number, (order, sep, sign, encoding, files) in enumerate(
        [
            (names, ",", ".", "utf-8", ["a", "b"]),
            (how["order"], separator, decimal, how["encoding"], how["files"]),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir(exist_ok=True)
        for file, part in zip(files, (frame[:half], frame[half:]), strict=True):
            part = part.assign(site=np.where(part.index < half, "first", "second"))
            part[[*order, "site"]].to_csv(
                folder / f"{file}.csv", index=False, sep=sep, decimal=sign, encoding=encoding
            )
        pool = user_table.load(str(folder), **options)
        at = [sorted(c.name for c in pool.columns).index(c.name) for c in pool.columns]
        table = np.column_stack([pool.x[:, np.argsort(at)], pool.y, pool.owner])
        found.append((sorted(c.name for c in pool.columns), table[np.lexsort(table.T)].tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["truth in several ways", "truth and 0 and 1"])
def test_a_target_of_truth_has_two_classes_however_files_write_it(name: str, tmp_path: Path) -> None:
    federated = loaded(messy.write_folder(tmp_path / "f", messy.MESSES[name]))
    assert federated.classes == ("no", "yes")
    same = loaded(messy.write_folder(tmp_path / "g", messy.MESSES["clean"]))
    for client, held in federated.clients_data.items():  # alive comes before died, as no before yes
        assert held.train.y.tolist() == same.clients_data[client].train.y.tolist()


def test_codes_of_digits_keep_their_zeros_in_every_file(tmp_path: Path) -> None:
    folder = messy.write_folder(tmp_path / "f", messy.MESSES["codes of digits and of letters"])
    columns = [c.name for c in loaded(folder, "data.categories=code").columns if c.group == "code"]
    assert columns == ["code=01", "code=1", "code=10", "code=A", "code=B"]


def test_a_parquet_files_numbers_are_categories_if_they_are_named(tmp_path: Path) -> None:
    messy.patients(0).assign(ward=np.resize([3, 7], messy.ROWS)).to_parquet(tmp_path / "t.parquet")
    federated = loaded(tmp_path / "t.parquet", "data.categories=ward", "data.split=iid", "data.clients=2")
    assert [c.name for c in federated.columns if c.group == "ward"] == ["ward=3", "ward=7"]
