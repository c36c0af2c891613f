"""A person's own files: what is read, and what is refused with which words."""

import re

import numpy as np
import pytest

from motet.data.federated import DataError
from motet.data.load import load
from motet.data.user_table import load as read

GOOD = "age,smoker,city,site,ill\n" + "".join(
    f"{20 + i},{i % 3 == 0},{'Bonn' if i % 2 else 'Köln'},{'abc'[i % 3]},{'yes' if i % 4 else 'no'}\n"
    for i in range(24)
)


def write(tmp_path, text, name="data.csv"):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def refusal(path, **options) -> str:
    with pytest.raises(DataError) as caught:
        read(path, **({"target": "y"} | options))
    return str(caught.value)


def test_numbers_stay_and_flags_become_bits_and_text_becomes_one_hot(tmp_path):
    pool = read(write(tmp_path, GOOD), target="ill", client="site")
    assert [c.name for c in pool.columns] == ["age", "smoker", "city=Bonn", "city=Köln"]
    assert [c.kind for c in pool.columns] == ["number", "flag", "flag", "flag"]
    assert pool.x[:2].tolist() == [[20, 1, 0, 1], [21, 0, 1, 0]]
    assert pool.classes == ("no", "yes") and pool.y[:2].tolist() == [0, 1]
    assert pool.names == ("a", "b", "c") and pool.owner[:4].tolist() == [0, 1, 2, 0]
    assert any("one for each category found in training rows" in n for n in pool.notes)


def test_a_csv_becomes_a_federation_with_its_clients(tmp_path):
    federation = load(write(tmp_path, GOOD), {"target": "ill", "client": "site"})
    assert list(federation.clients_data) == ["a", "b", "c"] and not federation.unseen
    assert {h.n + len(h.val.x) + len(h.test.x) for h in federation.clients_data.values()} == {8}


def test_parquet_is_read_like_csv(tmp_path):
    import pandas as pd

    path = write(tmp_path, GOOD)
    pd.read_csv(path).to_parquet(tmp_path / "data.parquet")
    options = {"target": "ill", "client": "site"}
    a, b = load(path, options), load(str(tmp_path / "data.parquet"), options)
    assert a.fingerprint() == b.fingerprint()


def test_a_folder_has_one_client_per_file(tmp_path):
    for site in ("north", "south"):
        write(tmp_path, "a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(10)), f"sites/{site}.csv")
    federation = load(str(tmp_path / "sites"), {"target": "y"})
    assert list(federation.clients_data) == ["north", "south"] and federation.classes == ("0", "1")


def test_semicolons_and_a_byte_order_mark_are_understood(tmp_path):
    pool = read(write(tmp_path, "\ufeffa;y\n1;u\n2;v\n"), target="y")
    assert pool.x.tolist() == [[1], [2]] and pool.classes == ("u", "v")


def test_integer_targets_with_many_values_are_numbers_and_the_note_says_how_to_change_it(tmp_path):
    path = write(tmp_path, "a,y\n" + "".join(f"{i % 5},{i}\n" for i in range(40)))
    pool = read(path, target="y")
    assert pool.kind == "numbers" and any("if wrong: data.kind=classes" in n for n in pool.notes)
    assert read(path, target="y", kind="classes").kind == "classes"


def test_missing_values_are_refused_with_column_file_count_and_lines(tmp_path):
    said = refusal(write(tmp_path, "a,b,y\n1,,u\n\n,2,v\n3,,u\n"))
    assert "column 'a' has 1 missing values: data.csv (1: line 4)" in said
    assert "column 'b' has 2 missing values: data.csv (2: line 2, 5)" in said
    assert "hint: data.missing=mean fills them" in said and said.startswith("2 things are wrong")


def test_missing_values_can_be_filled_with_the_training_mean(tmp_path):
    lines = [f"{i if i % 5 else ''},{'pq'[i % 2] if i % 7 else ''},{i % 2}" for i in range(60)]
    path = write(tmp_path, "a,b,y\n" + "\n".join(lines) + "\n")
    options = {"target": "y", "missing": "mean", "clients": 4, "scale": "none", "unseen": 0.25}
    federation = load(path, options)
    clients_data = [*federation.clients_data.values()]
    x = np.concatenate([h.train.x.numpy() for h in clients_data])
    given = x[(x[:, 0] % 5 != 0) & (x[:, 0] == x[:, 0].round())]
    filled = x[x[:, 0] != x[:, 0].round()]
    assert not np.isnan(x).any() and len(filled)
    assert np.allclose(filled[:, 0], given[:, 0].mean(), atol=1e-3)
    every = [h for h in (*clients_data, *federation.unseen.values())]
    assert not any(np.isnan(b.x.numpy()).any() for h in every for b in (h.train, h.val, h.test))


def test_text_in_a_column_of_numbers_is_shown_with_its_lines(tmp_path):
    said = refusal(write(tmp_path, "a,y\n1,u\n12.5?,v\n3,u\nmany,v\n4,u\n"))
    assert "column 'a' is mostly numbers, and 2 of its values are not: data.csv (2: line 3, 5)" in said
    assert (
        "data.missing_values=WORD,WORD; if all are codes, and no numbers: data.categories=a; or leave the"
        in said
    )
    assert "many" not in said  # cells stay out of messages


def test_infinite_values_are_refused(tmp_path):
    said = refusal(write(tmp_path, "a,y\n1,u\ninf,v\n"))
    assert "column 'a' holds infinite values: data.csv (1: line 3)" in said


def test_an_absent_target_or_client_column_names_the_nearest_and_all(tmp_path):
    said = refusal(write(tmp_path, GOOD), target="il", client="sites")
    assert "no target column 'il'.\nhint: did you mean 'ill'? there are: age, smoker, city, site, ill" in said
    assert "no client column 'sites'.\nhint: did you mean 'site'?" in said


def test_a_target_must_be_named(tmp_path):
    assert "no target is named.\nhint: data.target=COLUMN; there are: a, y" in refusal(
        write(tmp_path, "a,y\n1,2\n"), target=""
    )


def test_a_missing_target_and_a_missing_client_are_refused(tmp_path):
    said = refusal(write(tmp_path, "a,c,y\n1,p,u\n2,,v\n3,p,\n"), client="c")
    assert "the target 'y' has 1 missing values: data.csv (1: line 4)" in said
    assert "the client column 'c' has 1 missing values: data.csv (1: line 3)" in said
    assert "hint: leave these rows out: data.drop_rows=true" in said


def test_rows_without_a_target_or_a_client_can_be_left_out(tmp_path):
    path = write(tmp_path, "a,c,y\n1,p,u\n2,,v\n3,p,\n4,q,v\nx,q,v\n")
    pool = read(path, target="y", client="c", drop_rows=True, missing_values=("x",), missing="mean")
    assert pool.y.tolist() == [0, 1, 1] and pool.names == ("p", "q")
    assert "1 rows without a target are left out: data.csv (1: line 4)" in pool.notes
    assert "1 rows without a client are left out: data.csv (1: line 3)" in pool.notes
    assert "line 6" in refusal(path, client="c", drop_rows=True)  # rows keep their places


def test_files_with_different_columns_become_one_table_and_say_who_holds_what(tmp_path):
    rows = [(i, 2 * i, "uv"[i % 2]) for i in range(12)]
    write(tmp_path, "a,b,y\n" + "".join(f"{a},{b},{y}\n" for a, b, y in rows), "sites/north.csv")
    write(tmp_path, "a,y,z\n" + "".join(f"{a},{y},{b}\n" for a, b, y in rows), "sites/south.csv")
    federated = load(str(tmp_path / "sites"), {"target": "y"})
    here = {c: [k.name for k in d.columns if k.here] for c, d in federated.clients_data.items()}
    assert here == {"north": ["a", "b"], "south": ["a", "z"]}
    south = federated.clients_data["south"].train.x
    assert south[:, 1].abs().max() == 0 and abs(south[:, 2].mean()) < 1e-6  # scaled by those who hold it
    assert "south does not hold the column 'b'" in federated.notes


def test_files_without_rows_are_left_out_with_a_note_unless_no_other_is_there(tmp_path):
    write(tmp_path, "", "sites/north.csv")
    write(tmp_path, "a,y\n", "sites/south.csv")
    said = refusal(str(tmp_path / "sites"))
    assert "north.csv is empty" in said and "south.csv has column names and no examples" in said
    write(tmp_path, "a,y\n1,u\n2,v\n", "sites/west.csv")
    pool = read(str(tmp_path / "sites"), target="y")
    left = ["north.csv is empty: left out", "south.csv has column names and no examples: left out"]
    assert pool.names == ("west",) and [n for n in pool.notes if "left out" in n] == left


def test_an_empty_folder_and_an_absent_file_are_refused(tmp_path):
    assert "holds no .csv or .parquet file" in refusal(str(tmp_path))
    write(tmp_path, "a\n1\n")
    assert "did you mean 'data.csv'?" in refusal(str(tmp_path / "dta.csv"))


def test_a_single_class_is_refused_and_a_client_with_one_class_is_noted(tmp_path):
    assert "the target 'y' is the same in every row" in refusal(write(tmp_path, "a,y\n1,u\n2,u\n"))
    text = "a,c,y\n" + "".join(f"{i},{'pq'[i % 2]},{'u' if i % 2 else 'uv'[i % 4 // 2]}\n" for i in range(20))
    federation = load(write(tmp_path, text, "two.csv"), {"target": "y", "client": "c"})
    assert any(re.search("1 of 2 clients with rows of one class only: q", n) for n in federation.notes)


def test_a_constant_number_is_nothing_to_learn(tmp_path):
    assert "in every row" in refusal(write(tmp_path, "a,y\n1,2.5\n2,2.5\n"))


def test_text_with_many_values_is_refused_and_ids_are_left_out(tmp_path):
    rows = "".join(f"name{i % 150},{i},{i % 2}\n" for i in range(300))
    said = refusal(write(tmp_path, "a,b,y\n" + rows))
    assert "150 different values" in said and "data.drop=a" in said and "data.keep=a" in said
    rows = "".join(f"name{i},{1000 + i},{i % 3},{i % 2}\n" for i in range(150))
    pool = read(write(tmp_path, "a,patient_id,b,y\n" + rows), target="y")
    assert [c.name for c in pool.columns] == ["b"] and sum("looks like an id" in n for n in pool.notes) == 2
    kept = read(str(tmp_path / "data.csv"), target="y", keep=("patient_id",))
    assert [c.name for c in kept.columns] == ["patient_id", "b"]


def test_rows_that_do_not_fit_the_header_are_refused(tmp_path):
    assert "do not fit its 2 columns" in refusal(write(tmp_path, "a,y\n1,u\n1,2,3,v\n"))
    assert "do not fit its 2 columns" in refusal(write(tmp_path, "a,y\n1,2,u\n1,2,v\n"))


def test_columns_with_one_name_are_refused_and_western_text_is_read_with_a_note(tmp_path):
    assert "several columns called 'a'" in refusal(write(tmp_path, "a,a,y\n1,2,u\n"))
    (tmp_path / "latin.csv").write_bytes("a,y\n1,K\xf6ln\n2,Bonn\n".encode("latin-1"))
    pool = read(str(tmp_path / "latin.csv"), target="y")
    assert pool.classes == ("Bonn", "Köln") and any("not UTF-8" in n for n in pool.notes)


def test_a_column_that_is_text_in_one_file_and_numbers_in_another_is_judged_as_a_whole(tmp_path):
    write(tmp_path, "a,y\n1,u\n2,v\n3,u\n", "sites/north.csv")
    write(tmp_path, "a,y\nmany,u\n5,v\n", "sites/south.csv")
    assert "1 of its values are not: south.csv (1: line 2)" in refusal(str(tmp_path / "sites"))


def test_a_target_of_numbers_that_can_be_read_in_two_ways_is_asked_for(tmp_path):
    path = write(tmp_path, "a,y\n" + "".join(f'{i},"{i + 1},500"\n' for i in range(30)))
    assert "thousands, or decimals?\nhint: data.decimal=point" in refusal(path)
    assert read(path, target="y", decimal="point").y[0] == 1500
    assert read(path, target="y", decimal="comma").y[0] == 1.5


def test_numbers_in_a_text_column_of_a_parquet_file_are_numbers(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"a": ["1", "2.5", "3"], "c": ["007", "007", "8"], "y": ["u", "v", "u"]})
    frame.to_parquet(tmp_path / "d.parquet")
    pool = read(str(tmp_path / "d.parquet"), target="y", client="c")
    assert pool.x.tolist() == [[1], [2.5], [3]] and pool.names == ("007", "8")


def test_dates_of_a_parquet_file_become_days(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"when": pd.to_datetime(["2000-01-01 00:00", "2000-01-02 12:00"]), "y": [0, 1]})
    frame.to_parquet(tmp_path / "d.parquet")
    assert read(str(tmp_path / "d.parquet"), target="y").x.tolist() == [[0], [1.5]]
