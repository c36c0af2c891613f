"""Folders of FLamby's form: centres are clients, and its test rows stay test rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from motet.data.federated import PARTS, DataError
from motet.data.flamby_folders import load as read
from motet.data.load import load, reader_of


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def brca(tmp_path: Path) -> Path:
    """As flamby/datasets/fed_tcga_brca: ten patients, one of whom has no centre, and a table that is none of theirs."""
    folder = tmp_path / "fed_tcga_brca"
    (folder / "dataset_creation_scripts").mkdir(parents=True)
    patients = [f"p{i},{50 + i},{i % 2},{i % 3 == 0:d},{100 + i}" for i in range(10)]
    (folder / "brca.csv").write_text("\n".join(["pid,age,her2,E,T", *patients]))
    (folder / "centers.csv").write_text("tss,region\nA1,0\n")
    folds = [f"p{i},{'train' if i % 3 else 'test'},{'train' if i % 3 else 'test'}_{i % 2}" for i in range(9)]
    text = "\n".join(["pid,fold,fold2", *reversed(folds)])
    (folder / "dataset_creation_scripts" / "train_test_split.csv").write_text(text)
    return folder


@pytest.fixture
def isic(tmp_path: Path) -> Path:
    """As fed_isic2019: images that were made smaller, and a table without an ending."""
    folder = tmp_path / "fed_isic2019"
    (folder / "ISIC_2019_Training_Input_preprocessed").mkdir(parents=True)
    (folder / "dataset_creation_scripts").mkdir()
    lines = ["image,target,center,fold,fold2"]
    for i in range(8):
        colour = (30 * i, 0, 255)
        Image.new("RGB", (6, 6), colour).save(
            folder / "ISIC_2019_Training_Input_preprocessed" / f"ISIC_{i}.jpg"
        )
        lines.append(f"ISIC_{i},{i % 3},{i % 2},train,{'test' if i > 5 else 'train'}_{i % 2}")
    (folder / "dataset_creation_scripts" / "train_test_split").write_text("\n".join(lines))
    return folder


def test_patients_have_their_centres_parts_times_and_events(brca: Path) -> None:
    pool = read(str(brca))
    assert pool.problems() == [] and pool.kind == "survival" and pool.names == ("0", "1")
    assert pool.x.tolist() == [[50 + i, i % 2] for i in range(9)]  # p9 has no centre
    assert [(c.name, c.kind) for c in pool.columns] == [("age", "number"), ("her2", "flag")]
    assert pool.y.tolist() == [(100 + i) * (1 if i % 3 == 0 else -1) for i in range(9)]
    assert pool.owner is not None and pool.owner.tolist() == [i % 2 for i in range(9)]
    assert pool.part is not None and [PARTS[p] for p in pool.part] == [
        "train" if i % 3 else "test" for i in range(9)
    ]


def test_images_have_their_centres_parts_and_classes(isic: Path) -> None:
    pool = read(str(isic))
    assert pool.problems() == [] and pool.x.shape == (8, 3, 6, 6) and pool.classes == ("0", "1", "2")
    assert pool.y.tolist() == [0, 1, 2, 0, 1, 2, 0, 1] and np.asarray(pool.owner).tolist() == [0, 1] * 4
    assert [PARTS[p] for p in np.asarray(pool.part)] == ["train"] * 6 + ["test"] * 2
    assert abs(int(pool.x[4, 0, 0, 0]) - 120) < 6  # jpg is not exact
    assert read(str(isic), size=3, grey=True).x.shape == (8, 1, 3, 3)


@pytest.mark.parametrize("name", ["brca", "isic"])
def test_a_folder_is_known_by_its_form(name: str, request: pytest.FixtureRequest) -> None:
    folder = str(request.getfixturevalue(name))
    assert reader_of(folder) == "flamby_folders"
    found = load(folder, {"val": 0.0})
    assert sorted(found.clients_data) == ["0", "1"]
    assert sum(len(held.test) for held in found.clients_data.values()) == (3 if name == "brca" else 2)


def test_what_is_lacking_is_named(brca: Path, isic: Path) -> None:
    next(isic.rglob("ISIC_3.jpg")).unlink()
    with pytest.raises(DataError, match=r"no image ISIC_3.jpg, which its table names; 1 of 8 lack\nhint: "):
        read(str(isic))
    (brca / "brca.csv").write_text("pid,age\np0,3\n")
    with pytest.raises(DataError, match="no table with the columns E, T, pid"):
        read(str(brca))
    split = brca / "dataset_creation_scripts" / "train_test_split.csv"
    split.write_text("pid,fold,fold2\np0,train,first_0\n")
    with pytest.raises(DataError, match="fold2 of .* says 'first'; expected train_CENTRE or test_CENTRE"):
        read(str(brca))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("p3,53,1,1,103", "p3,,1,1,103", "(?s)column age .* without a number.*hint: "),
        ("p3,53,1,1,103", "p3,53,1,1,", "column T .* without a number"),
        (
            "p3,53,1,1,103",
            "p3,53,1,1,-103",
            "T of .* must be 0 or more",
        ),  # its sign would say that nobody died
        ("p3,53,1,1,103", "p3,53,1,2,103", "E 0 .* or 1"),
        ("p3,53,1,1,103", "p2,53,1,1,103", "a pid stands in two rows"),
        ("p", "q", "no pid of the table of parts"),
    ],
)
def test_patients_whose_cells_mean_nothing_are_refused(brca: Path, old: str, new: str, message: str) -> None:
    text = (brca / "brca.csv").read_text()
    assert old in text
    (brca / "brca.csv").write_text(text.replace(old, new).replace("qid", "pid"))
    with pytest.raises(DataError, match=message):
        read(str(brca))


def test_a_row_without_a_centre_and_images_without_classes_are_refused(brca: Path, isic: Path) -> None:
    table = brca / "dataset_creation_scripts" / "train_test_split.csv"
    table.write_text(table.read_text().replace("train_1", "train"))
    with pytest.raises(DataError, match="names no centre"):
        read(str(brca))
    table = isic / "dataset_creation_scripts" / "train_test_split"
    table.write_text(table.read_text().replace("ISIC_1,1,", "ISIC_1,,"))
    with pytest.raises(DataError, match="a class 0, 1, 2"):
        read(str(isic))
