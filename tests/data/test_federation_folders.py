"""Folders of LEAF and PFLlib as people write them: arrays in any order, and what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from motet.data.federated import DataError
from motet.data.federation_folders import arrays_in, load

X = np.random.default_rng(0).random((6, 2, 3, 4)).astype(np.float32)
Y = np.arange(6) % 3


def pfllib(folder: Path, data: dict[str, Any]) -> str:
    for part in ("train", "test"):
        (folder / part).mkdir()
        np.savez_compressed(folder / part / "0.npz", data=np.array(data, dtype=object))
    return str(folder)


def leaf(folder: Path, users: Any) -> str:
    (folder / "all.json").write_text(json.dumps({"users": list(users), "user_data": users}))
    return str(folder)


@pytest.mark.parametrize(
    "data",
    [
        {"x": X, "y": Y},
        {"x": np.asfortranarray(X), "y": Y},  # the bytes are in another order
        {"x": X.astype(">f4"), "y": Y.astype(">i8")},
        {"y": Y, "x": X},
        {"x": X, "y": Y.astype(np.int16)},
        {"x": X, "y": Y.astype(np.float32)},
    ],
    ids=["usual", "fortran", "big endian", "y first", "short", "one type"],
)
def test_arrays_of_pfllib_are_read_as_they_were_written(tmp_path: Path, data: dict[str, Any]) -> None:
    pool = load(pfllib(tmp_path, data))
    np.testing.assert_array_equal(pool.x, np.concatenate([X, X]))
    np.testing.assert_array_equal(pool.y, np.concatenate([Y, Y]))


def test_a_client_of_pfllib_may_have_no_test_rows(tmp_path: Path) -> None:
    folder = pfllib(tmp_path, {"x": X, "y": Y})
    nothing = np.array({"x": X[:0], "y": Y[:0]}, dtype=object)  # its pickle holds the empty bytes once
    np.savez_compressed(Path(folder) / "test" / "0.npz", data=nothing)
    np.testing.assert_array_equal(load(folder).x, X)


@pytest.mark.parametrize("protocol", [3, 4])  # as numpy writes
@pytest.mark.parametrize("many", [1, 6])
def test_single_rows_of_bytes_are_read(protocol: int, many: int) -> None:
    written = {"x": X[:many].astype(np.uint8), "y": Y[:many].astype(np.uint8)}
    found = arrays_in(pickle.dumps(written, protocol=protocol))
    assert {k: v.tolist() for k, v in found.items()} == {k: v.tolist() for k, v in written.items()}


def test_rows_of_leaf_are_read(tmp_path: Path) -> None:
    pool = load(leaf(tmp_path, {"a": {"x": [[1, 2], [3, 4]], "y": [0, 1]}, "b": {"x": [[5, 6]], "y": [2]}}))
    assert pool.x.tolist() == [[1, 2], [3, 4], [5, 6]] and pool.y.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"x": [[1, 2], [3, 4], [5, 6]], "y": [0, 1]}, "one target for each row"),
        ({"x": [[1, 2], [3, 4]], "y": [[0], [1]]}, "one target for each row"),
        ({"x": [[1, 2, 3]], "y": [0]}, "expected one shape"),
        ({"x": [[1, 2]], "y": ["h"]}, "(?s)user a: y holds no numbers.*hint: "),
        ({"x": [["h", "i"]], "y": [0]}, "(?s)user a: x holds no rows of numbers.*hint: "),
        ({"x": [[1, 2]]}, "as LEAF has for each user"),
        (
            {"x": [[1, 2]], "y": [-1]},
            "(?s)targets .* run from -1, and classes count from 0.*hint: data.classes=false",
        ),
        ([1, 2], "as LEAF has for each user"),
    ],
)
def test_rows_of_leaf_that_do_not_fit_together_are_refused(tmp_path: Path, rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(leaf(tmp_path, {"a": rows, "b": {"x": [[1, 2], [3, 4]], "y": [0, 1]}}))


def test_users_that_are_no_dict_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="as LEAF has for each user"):
        load(leaf(tmp_path, [1, 2]))
