"""Times of survival from tables and arrays: read as people write them, refused with the fix where they cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from motet.data.federated import DataError, Pool
from motet.data.load import as_pool, load
from motet.data.targets import survival_target
from motet.data.user_table import load as read_table
from survivors import survivors, table

HOW: dict[str, Any] = {"target": "days", "event": "died", "client": "hospital"}


def pool(folder: Path, **columns: Any) -> Pool:
    return read_table(str(table(folder, survivors().assign(**columns))), **HOW)


def refusal(folder: Path, how: dict[str, Any] | None = None, **columns: Any) -> str:
    with pytest.raises(DataError) as caught:
        read_table(str(table(folder, survivors().assign(**columns))), **(how or HOW))
    return str(caught.value)


def test_the_sign_says_whether_the_event_was_seen(tmp_path: Path) -> None:
    frame, found = survivors(), pool(tmp_path)
    assert found.kind == "survival" and not found.classes
    assert np.array_equal(found.y, np.where(frame["died"] == 1, frame["days"], -frame["days"]))
    assert [c.name for c in found.columns] == ["age", "dose"], "neither time nor event is a feature"


@pytest.mark.parametrize(
    ("no", "yes"),
    [(0, 1), (0.0, 1.0), (False, True), ("no", "Yes"), ("FALSE", "true"), ("n", "Y"), ("f", "t")],
)
def test_events_are_zero_and_one_true_and_false_yes_and_no(tmp_path: Path, no: Any, yes: Any) -> None:
    died = [yes if d else no for d in survivors()["died"]]
    assert np.array_equal(pool(tmp_path, died=died).y, pool(tmp_path).y)


def test_a_time_of_zero_is_before_all_others_and_is_said(tmp_path: Path) -> None:
    days = survivors()["days"].tolist()
    days[:2] = [0.0, 0.0]
    found = pool(tmp_path, days=days)
    assert np.abs(found.y[:2]).tolist() == [min(days[2:]) / 2] * 2
    assert any("2 times of 'days' are 0" in note for note in found.notes)
    assert survival_target(np.array([0.0, 0.0]), np.array([True, False])).tolist() == [1.0, -1.0]


def test_faults_are_all_said_with_the_fix_and_without_a_value(tmp_path: Path) -> None:
    days, died = survivors()["days"].tolist(), survivors()["died"].astype(object).tolist()
    days[0], days[3], died[5] = -731.5, None, "perhaps"
    said = refusal(tmp_path, days=days, died=died)
    assert "3 things are wrong" in said
    assert "the time 'days' is negative in 1 rows" in said and "the time 'days' has 1 missing values" in said
    assert "the event 'died' is neither yes nor no in 1 rows" in said
    assert said.count("hint:") == 3 and "731" not in said and "perhaps" not in said


def test_an_empty_event_is_a_missing_target(tmp_path: Path) -> None:
    died = survivors()["died"].astype(object).tolist()
    died[5] = None
    said = refusal(tmp_path, died=died)
    assert "the event 'died' has 1 missing values" in said and "data.drop_rows=true" in said
    file = table(tmp_path, survivors().assign(died=died))
    found = read_table(str(file), **HOW, drop_rows=True)
    assert len(found.y) == len(died) - 1
    assert any("1 rows without an event are left out" in n for n in found.notes)


def test_what_must_be_named_together(tmp_path: Path) -> None:
    said = refusal(tmp_path, {"target": "days", "kind": "survival", "client": "hospital"})
    assert "no column says whether the event was seen" in said and "hint: data.event=COLUMN" in said
    said = refusal(tmp_path, HOW | {"kind": "numbers"})
    assert "an event column 'died' is named, and kind is 'numbers'" in said and "data.kind=survival" in said
    assert "there is no event column 'dead'" in refusal(tmp_path, HOW | {"event": "dead"})
    assert "expected one of auto, classes, numbers, survival" in refusal(tmp_path, HOW | {"kind": "times"})


def test_a_table_without_any_event_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="all are censored"):
        load(str(table(tmp_path, survivors().assign(died=0))), HOW)


def test_every_part_of_a_client_has_its_share_of_events(tmp_path: Path) -> None:
    data = load(str(table(tmp_path)), HOW | {"unseen": 0})
    assert data.kind == "survival" and (data.scale, data.offset, data.outputs) == (1.0, 0.0, 1)
    for held in data.clients_data.values():
        shares = [float((part.y > 0).float().mean()) for part in (held.train, held.val, held.test)]
        assert max(shares) - min(shares) < 0.2


def test_arrays_are_given_as_times_and_events() -> None:
    x = np.zeros((3, 2), np.float32)
    given = {
        "a": (x, (np.array([0.0, 4.0, 2.0]), np.array([1, 0, 1]))),
        "b": (x, (np.array([1.0, 5, 6]), np.ones(3))),
    }
    found = as_pool(given, "mine")
    assert found.kind == "survival" and found.y.tolist() == [0.5, -4.0, 2.0, 1.0, 5.0, 6.0]
    wrong = {"a": (x, (np.array([-1.0, np.nan, 2.0]), np.array([1, 0, 3])))}
    with pytest.raises(DataError, match=r"(?s)not negative.*1 events are neither 0 nor 1"):
        as_pool(wrong, "mine")
    with pytest.raises(DataError, match="targets of shape"):
        as_pool({"a": (x, (np.ones(2), np.ones(2)))}, "mine")


def test_times_of_survival_must_not_be_zero_in_a_pool() -> None:
    found = Pool(np.zeros((2, 1), np.float32), np.array([0.0, 1.0]), "survival")
    assert "survival_target" in found.problems()[0]
    assert pd.Series(Pool(np.zeros((2, 1), np.float32), np.array([-2.0, 1.0]), "survival").problems()).empty
