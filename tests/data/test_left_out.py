"""data.without: a client that is left out leaves nothing behind, and the others keep what is theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.data.federated import DataError, FederatedData, Pool
from motet.data.left_out import NoSuchClient, csv_without, smaller_files
from motet.data.load import load
from motet.data.partition import DataSettings, partition
from motet.data.table_files import read


def hospitals(seed: int = 0, rows: int = 60) -> pd.DataFrame:
    """Four hospitals; only `south` has the category `x`, the class `c`, a word among numbers and an empty cell."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "hospital": np.repeat(["east", "north", "south", "west"], rows // 4),
            "age": draw.normal(50, 9, rows).round(2),
            "ward": draw.choice(["a", "b"], rows),
            "smokes": draw.choice(["True", "False"], rows),
            "grade": draw.integers(0, 5, rows).astype(str),
            "outcome": draw.choice(["a", "b"], rows),
        }
    )
    south = frame.index[frame["hospital"] == "south"]
    frame.loc[south, "ward"], frame.loc[south[0], "outcome"] = "x", "c"
    frame.loc[south[1], "smokes"] = "sometimes"
    frame.loc[south, "age"] += 100
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)


def same(one: FederatedData, other: FederatedData) -> bool:
    """To the bit: values, names, parts, classes, columns, scaling."""
    shared = (list(one.clients_data), list(one.unseen), one.columns, one.classes, one.scale, one.offset)
    others = (
        list(other.clients_data),
        list(other.unseen),
        other.columns,
        other.classes,
        other.scale,
        other.offset,
    )
    rulers = all(
        np.array_equal(one.rulers[c].middle, other.rulers[c].middle)
        and np.array_equal(one.rulers[c].spread, other.rulers[c].spread)
        for c in {**one.rulers, **other.rulers}
    )
    return shared == others and rulers and one.fingerprint() == other.fingerprint()


OPTIONS: dict[str, Any] = {"target": "outcome", "client": "hospital"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"scale": "client"},
        {"unseen": 0.5},
        {"server_test": 0.2, "proxy": 0.5},
        {"features": 0.5},
        {"seed": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_without_a_client_is_the_table_that_never_had_its_rows(
    ending: str, more: dict[str, Any], tmp_path: Path
) -> None:
    whole = hospitals()
    rest = whole[whole["hospital"] != "south"].reset_index(drop=True)
    for name, frame in (("whole", whole), ("rest", rest)):
        path = tmp_path / f"{name}.{ending}"
        frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    found = load(str(tmp_path / f"whole.{ending}"), OPTIONS | more | {"without": ["south"]})
    assert same(found, load(str(tmp_path / f"rest.{ending}"), OPTIONS | more))
    with pytest.raises(DataError, match="the class 'c' is one client's alone: south"):
        load(str(tmp_path / f"whole.{ending}"), OPTIONS | more)


def test_a_folder_without_a_client_is_the_folder_without_its_file(tmp_path: Path) -> None:
    for name, part in hospitals().groupby("hospital"):
        for folder in ("whole", "rest") if name != "south" else ("whole",):
            (tmp_path / folder).mkdir(exist_ok=True)
            part.drop(columns="hospital").to_csv(tmp_path / folder / f"{name}.csv", index=False)
    found = load(str(tmp_path / "whole"), {"target": "outcome", "without": ["south"]})
    assert same(found, load(str(tmp_path / "rest"), {"target": "outcome"}))


def test_files_of_a_folder_in_which_a_column_names_clients_lose_its_rows(tmp_path: Path) -> None:
    whole = hospitals()
    for folder, frame in (("whole", whole), ("rest", whole[whole["hospital"] != "south"])):
        (tmp_path / folder).mkdir()
        for year, rows in enumerate(np.array_split(whole.index.to_numpy(), 2)):
            part = frame.loc[frame.index.intersection(rows)]
            part.to_csv(tmp_path / folder / f"year{year}.csv", index=False)
    found = load(str(tmp_path / "whole"), OPTIONS | {"without": ["south"]})
    assert same(found, load(str(tmp_path / "rest"), OPTIONS))


def clients_of(seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(seed)
    return {
        c: (draw.normal(i, 1 + i, (12, 3)), draw.integers(0, 2 + (c == "c"), 12))
        for i, c in enumerate("abcd")
    }


def all_clients() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return clients_of(1)


def all_but_c() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {c: pair for c, pair in clients_of(1).items() if c != "c"}


def test_a_function_that_gives_arrays_by_client_is_asked_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from motet.settings import known_here

    monkeypatch.setitem(known_here, "session:all-1", all_clients)
    monkeypatch.setitem(known_here, "session:rest-1", all_but_c)
    found = load("session:all-1", {"without": ["c"]})
    assert same(found, load("session:rest-1")) and "c" not in found.clients_data


@given(
    clients=st.lists(st.integers(1, 9), min_size=2, max_size=6),
    away=st.data(),
    seed=st.integers(0, 99),
    server=st.sampled_from([0.0, 0.3]),
)
def test_a_pool_without_clients_is_the_pool_of_the_others(
    clients: list[int], away: st.DataObject, seed: int, server: float
) -> None:
    names = [f"h{i}" for i in range(len(clients))]
    gone = away.draw(st.lists(st.sampled_from(names), min_size=1, max_size=len(names) - 1, unique=True))
    draw = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(clients)), [n + 2 for n in clients])
    x, y = draw.normal(size=(len(owner), 2)), draw.integers(0, 2, len(owner))
    y[:2] = 0, 1
    stays = ~np.isin(owner, [names.index(g) for g in gone])
    if len(np.unique(y[stays])) < 2:
        y[np.flatnonzero(stays)[:2]] = 0, 1
    labels = np.array(names)[owner]
    how = DataSettings(seed=seed, server_test=server)
    whole = Pool(x, y, "classes", ("no", "yes"), owner=labels)
    rest = Pool(x[stays], y[stays], "classes", ("no", "yes"), owner=labels[stays])
    found = partition("p", whole, DataSettings(seed=seed, server_test=server, without=tuple(gone)), {})
    assert same(found, partition("p", rest, how, {}))


@pytest.mark.parametrize(
    "how",
    [{"split": "dirichlet"}, {"split": "iid"}, {"split": "vertical", "features": 0.5}, {"unseen": 0.4}],
    ids=str,
)
def test_where_a_split_draws_the_clients_all_others_keep_their_rows(how: dict[str, Any]) -> None:
    options = {"clients": 6, "scale": "none", **how}
    before = load("wine", options)
    everybody = {**before.clients_data, **before.unseen}
    for gone in ("client-1", "client-4"):
        after = load("wine", options | {"without": [gone]})
        assert set(after.clients_data) == set(before.clients_data) - {gone}
        assert set(after.unseen) == set(before.unseen) - {gone}
        for client, data in {**after.clients_data, **after.unseen}.items():
            for part in ("train", "val", "test"):
                one, two = (getattr(d, part).take() for d in (data, everybody[client]))
                assert one.x.equal(two.x) and one.y.equal(two.y)


def test_scaling_learns_nothing_from_a_drawn_client_that_is_left_out() -> None:
    before, after = load("wine", {"clients": 6}), load("wine", {"clients": 6, "without": ["client-2"]})
    raw = load("wine", {"clients": 6, "scale": "none", "without": ["client-2"]})
    rows = np.concatenate([d.train.take().x.numpy() for d in raw.clients_data.values()])
    ruler = after.rulers["client-1"]
    assert np.allclose(ruler.middle, rows.mean(0)) and "client-2" not in after.rulers
    assert not np.allclose(ruler.middle, before.rulers["client-1"].middle)


def test_images_lose_a_client_without_being_copied() -> None:
    before = load("digits", {"clients": 5, "unseen": 0.0})
    after = load("digits", {"clients": 5, "unseen": 0.0, "without": ["client-3"]})
    assert list(after.clients_data) == ["client-0", "client-1", "client-2", "client-4"]
    for client, data in after.clients_data.items():
        assert data.train.take().x.equal(before.clients_data[client].train.take().x)


def test_a_client_that_is_not_there_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    hospitals().to_csv(tmp_path / "all.csv", index=False)
    for data, options in (
        (str(tmp_path / "all.csv"), OPTIONS | {"without": ["soth"]}),
        ("wine", {"clients": 5, "without": ["client-9"]}),
    ):
        with pytest.raises(NoSuchClient, match="did you mean"):
            load(data, options)


def test_somebody_must_be_left(tmp_path: Path) -> None:
    hospitals().to_csv(tmp_path / "all.csv", index=False)
    with pytest.raises(DataError, match="every client"):
        load(str(tmp_path / "all.csv"), OPTIONS | {"without": ["east", "north", "south", "west"]})


CELLS = st.text(st.sampled_from(list('ab ,"\n\r;é')), max_size=5)


@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=8), data=st.data())
def test_lines_of_a_csv_file_are_left_out_whatever_its_cells_hold(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], data: st.DataObject
) -> None:
    import csv
    import io

    def text(some: list[tuple[str, str]]) -> bytes:
        out = io.StringIO()
        csv.writer(out, quoting=csv.QUOTE_ALL).writerows([("one", "two"), *some])
        return out.getvalue().encode()

    file = tmp_path_factory.getbasetemp() / "cells.csv"
    file.write_bytes(text(rows))
    gone = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), bool)
    assert csv_without(file, gone) == text([r for r, away in zip(rows, gone, strict=True) if not away])


def test_empty_lines_and_line_breaks_in_cells_stay_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,"two\nlines"\n\n2,b\n')
    assert csv_without(tmp_path / "a.csv", np.array([True, False])) == b"id,text\n\n2,b\n"


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["a", '"a, b, c, d, e"'], ids=["plain", "commas-in-name"])
@pytest.mark.parametrize(("end", "encoding"), [("\n", "utf-8"), ("\r\n", "utf-16"), ("\n", "cp1252")])
def test_a_file_that_can_be_read_can_lose_a_client(
    tmp_path: Path, separator: str, name: str, end: str, encoding: str
) -> None:
    """Rows of separators alone, of missing words, of one empty cell, blank lines, and line breaks in cells."""
    lines = [separator.join([name, "text", "who", "y"])]
    for i in range(20):
        text = f'"two{end}lines é"' if i % 5 == 0 else ' "t"'
        lines.append(separator.join([str(i / 4), text, "ABC"[i % 3], str(i % 2)]))
        lines += {1: [separator * 3], 4: [""], 7: ["   "], 9: ['""'], 12: [separator.join(["NA"] * 4)]}.get(
            i, []
        )
    file = tmp_path / "rows.CSV"
    file.write_bytes(end.join(lines).encode(encoding))
    whole = read(file, texts=["who"]).frame
    with smaller_files(file, "who", ["B"]) as (smaller, gone):
        found = read(smaller, texts=["who"]).frame
    assert gone == ("B",) and len(whole) == 20
    assert found.equals(whole[whole["who"] != "B"].reset_index(drop=True))
