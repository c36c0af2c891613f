"""Files that are no files of data: devices, pipes, links to them, bombs and depths are refused in words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from motet.data import federation_folders, table_files
from motet.data.federated import DataError
from motet.data.load import load, reader_of

TABLE = "x,y,outcome\n1,2,a\n3,5,b\n2,7,a\n4,4,b\n"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def nowhere(path: Path) -> None:
    path.symlink_to(path.parent / "is not there")


def sparse(path: Path) -> None:
    """A file of four terabytes that takes no place."""
    path.touch()
    os.truncate(path, 1 << 42)


ODD = pytest.mark.parametrize("make", [pipe, zeros, nowhere, sparse])


def refusal(path: Path, options: dict[str, object] | None = None) -> str:
    with pytest.raises(DataError) as e:
        load(str(path), options or {})
    said = str(e.value)
    assert "is no regular file" in said or "more than" in said or "leads nowhere" in said
    return said


@ODD
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["b.csv", "b.parquet"])
def test_a_table_that_is_no_file_is_refused(make, name: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    make(tmp_path / name)
    assert name in refusal(tmp_path, {"target": "outcome"})
    assert name in refusal(tmp_path / name, {"target": "outcome"})
    with pytest.raises(DataError, match=name):  # new rows for a model
        table_files.read(tmp_path / name)


@ODD
@pytest.mark.timeout(60)
def test_a_json_file_that_is_no_file_is_refused(make, tmp_path: Path) -> None:
    make(tmp_path / "b.json")
    users = {"u": {"x": [[1.0, 2.0]] * 8, "y": [0, 1] * 4}}
    (tmp_path / "a.json").write_text(json.dumps({"users": ["u"], "user_data": users}))
    assert "b.json" in refusal(tmp_path)


@ODD
@pytest.mark.timeout(60)
def test_an_npz_file_that_is_no_file_is_refused(make, tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    make(tmp_path / "train" / "0.npz")
    assert "0.npz" in refusal(tmp_path)


@ODD
@pytest.mark.timeout(60)
def test_an_image_that_is_no_file_is_refused(make, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / name / "1.png")
    make(tmp_path / "dog" / "2.png")
    assert "2.png" in refusal(tmp_path)


@pytest.mark.timeout(60)
def test_a_folder_of_odd_files_alone_hangs_nobody(tmp_path: Path) -> None:
    pipe(tmp_path / "a.json")
    zeros(tmp_path / "b.json")
    assert reader_of(str(tmp_path)) == "user_table"
    with pytest.raises(DataError):
        load(str(tmp_path), {"target": "outcome"})


@pytest.mark.parametrize("text", ["[" * 200_000, '{"user_data": ' * 200_000])
def test_json_that_is_nested_too_deeply_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"user_data": ' + text)
    with pytest.raises(DataError, match=r"a.json.*nested"):
        load(str(tmp_path))


@pytest.mark.parametrize("label", [2 * 10**9, 10**400, float("inf"), 1e300])
def test_a_label_that_is_no_class_is_refused(label: float, tmp_path: Path) -> None:
    users = {"u": {"x": [[1.0, 2.0]] * 8, "y": [0, 1] * 3 + [0, label]}}
    (tmp_path / "a.json").write_text(json.dumps({"users": ["u"], "user_data": users}))
    with pytest.raises(DataError, match=r"100,000|no numbers|no whole numbers"):
        load(str(tmp_path))


def test_an_npz_file_that_unpacks_to_much_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federation_folders, "MOST_UNPACKED", 1 << 16)
    (tmp_path / "train").mkdir()
    data = np.array({"x": np.zeros((1 << 10, 30)), "y": np.arange(1 << 10) % 2}, dtype=object)
    np.savez_compressed(tmp_path / "train" / "0.npz", data=data)
    with pytest.raises(DataError, match=r"0.npz unpacks to more than 65,536 bytes"):
        load(str(tmp_path))


def test_a_parquet_file_of_more_cells_than_memory_is_refused(tmp_path: Path) -> None:
    one = pa.table(
        {"x": pa.array(np.zeros(1 << 20, np.int8)).dictionary_encode(), "outcome": ["a"] * (1 << 20)}
    )
    with pq.ParquetWriter(tmp_path / "a.parquet", one.schema) as writer:
        for _ in range(4):
            writer.write_table(one)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "memory", lambda: 1 << 20)
        with pytest.raises(DataError, match=r"a.parquet has 4,194,304 rows of 2 columns, more than"):
            table_files.read(tmp_path / "a.parquet")


def test_images_of_too_many_pixels_are_refused(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("1", (13_000, 13_000)).save(tmp_path / name / "1.png")
    with pytest.raises(DataError, match=r"1.png is 13000 x 13000 pixels; at most [\d,]+ .*\nhint"):
        load(str(tmp_path))


def test_many_images_that_do_not_fit_into_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from motet.data import image_folders

    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("L", (64, 64)).save(tmp_path / name / "1.png")
    monkeypatch.setattr(image_folders, "memory", lambda: 40_000)
    with pytest.raises(DataError, match=r"2 images of 64 x 64 pixels take 24,576 bytes.*\nhint: data.size="):
        load(str(tmp_path))
    assert len(load(str(tmp_path), {"size": 8, "split": "iid", "clients": 1, "unseen": 0}).clients_data) == 1


@pytest.mark.parametrize(
    "text", ["a,b\nx,1\n{long},0\nz,?\n", "a,{long},b\n1,2,0\n2,3,1\n"], ids=["cell", "heading"]
)
def test_a_table_with_an_endless_cell_is_refused(text: str, tmp_path: Path) -> None:
    (file := tmp_path / "t.csv").write_text(text.format(long="y" * 200_000))
    with pytest.raises(DataError, match="t.csv cannot be read as CSV"):
        load(str(file), {"target": "b", "clients": 2})
