"""Data sets that the library of Hugging Face wrote are read with it."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from PIL import Image

from motet.data import huggingface, load
from motet.data.federated import DataError

if importlib.util.find_spec("datasets") is None:
    datasets = None
else:
    import datasets
needs_library = pytest.mark.skipif(datasets is None, reason="the library `datasets` is not installed")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def picture(seed: int, side: int = 6) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8))


def pictures(n: int, first: int = 0):
    columns = {
        "image": [picture(first + i) for i in range(n)],
        "label": [i % 2 for i in range(n)],
        "writer": [f"w{i % 3}" for i in range(n)],
    }
    names = datasets.ClassLabel(names=["zebra", "ant"])
    kinds = datasets.Features({"image": datasets.Image(), "label": names, "writer": datasets.Value("string")})
    return datasets.Dataset.from_dict(columns, features=kinds)


def rows(n: int, **more):
    columns = {"age": list(range(n)), "city": ["x", "y"] * (n // 2), "label": [0.5 * i for i in range(n)]}
    return datasets.Dataset.from_dict(columns | more)


@needs_library
def test_images_become_pixels_with_clients_and_a_test_set(tmp_path):
    whole = datasets.DatasetDict({"train": pictures(6), "test": pictures(2, 50)})
    whole.save_to_disk(str(tmp_path / "set"))
    name = f"hf:{tmp_path / 'set'}"
    pool = huggingface.load(name, client="writer")
    assert pool.x.shape == (8, 3, 6, 6) and isinstance(pool.x, np.memmap) and pool.classes == ("zebra", "ant")
    assert (pool.x[6].transpose(1, 2, 0) == np.asarray(picture(50))).all()
    assert pool.y.tolist() == [0, 1] * 4 and pool.part.tolist() == [-1] * 6 + [4] * 2
    assert pool.names == ("w0", "w1", "w2") and pool.owner.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert huggingface.load(name, client="writer").digest == pool.digest
    assert huggingface.load(name, size=3, grey=True).x.shape == (8, 1, 3, 3)
    assert load.source(name) is huggingface.load


@needs_library
def test_other_columns_become_a_table(tmp_path):
    rows(40).save_to_disk(str(tmp_path / "set"))
    pool = huggingface.load(f"hf:{tmp_path / 'set'}")
    assert pool.kind == "numbers" and [c.name for c in pool.columns] == ["age", "city=x", "city=y"]
    assert pool.x[:2].tolist() == [[0, 1, 0], [1, 0, 1]] and pool.part is None
    federation = load.load(f"hf:{tmp_path / 'set'}", {"clients": 2, "split": "iid"})
    assert len(federation.clients_data) == 2


@needs_library
def test_a_folder_of_files_is_read_too(tmp_path):
    (tmp_path / "train.csv").write_text(
        "a,label\n" + "".join(f"{i},{'yes' if i % 2 else 'no'}\n" for i in range(9))
    )
    pool = huggingface.load(f"hf:{tmp_path}")
    assert pool.classes == ("no", "yes") and len(pool.x) == 9
    assert any("no split 'test'" in n for n in pool.notes)


@needs_library
def test_a_test_set_with_secret_answers_is_left_out(tmp_path):
    label = datasets.Features({"a": datasets.Value("int64"), "label": datasets.ClassLabel(names=["u", "v"])})
    train = datasets.Dataset.from_dict({"a": [1, 2, 3], "label": [0, 1, 0]}, features=label)
    test = datasets.Dataset.from_dict({"a": [1, 2], "label": [-1, -1]}, features=label)
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(str(tmp_path / "set"))
    pool = huggingface.load(f"hf:{tmp_path / 'set'}")
    assert len(pool.x) == 3 and pool.classes == ("u", "v") and any("secret" in n for n in pool.notes)


@needs_library
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "lable"}, "no column 'lable'.\nhint: did you mean 'label'"),
        ({"client": "who"}, "no column 'who'"),
        ({"train_split": "training"}, "no split 'training'.\nhint: train_split = one of train"),
    ],
)
def test_words_that_do_not_fit_are_refused(tmp_path, options, said):
    datasets.DatasetDict({"train": rows(4)}).save_to_disk(str(tmp_path / "set"))
    with pytest.raises(DataError, match=said):
        huggingface.load(f"hf:{tmp_path / 'set'}", **options)


@needs_library
def test_a_set_that_is_not_there_is_said(tmp_path, monkeypatch):
    import datasets

    def absent(*_):
        raise datasets.exceptions.DatasetNotFoundError("nothing-at-all is not on the hub")

    monkeypatch.setattr(datasets, "load_dataset", absent)  # what it raises without a network, some 20 s later
    with pytest.raises(DataError, match="there is no folder"):
        huggingface.load(f"hf:{tmp_path}/nothing")
    with pytest.raises(DataError, match="cannot be read"):
        huggingface.load("hf:nobody/nothing-at-all")


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'motet\[hf\]'"):
        huggingface.load("hf:owner/name")


@needs_library
@pytest.mark.parametrize("name", ["pandas", "csv", "imagefolder", "set"])
def test_a_name_without_an_owner_reads_no_file_of_the_current_folder(tmp_path, monkeypatch, name):
    """The library's own readers have such names, and would read what lies in the current folder, pickles too."""
    (tmp_path / "rows.csv").write_text("a,label\n1,x\n2,y\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"hint: hf:OWNER/NAME, or hf:./{name}"):
        huggingface.load(f"hf:{name}")
    (tmp_path / name).mkdir()
    (tmp_path / name / "rows.csv").write_text("b,label\n1,x\n2,y\n3,x\n")
    pool = huggingface.load(f"hf:./{name}")  # the folder, and not the reader of its name
    assert [c.name for c in pool.columns] == ["b"] and len(pool.x) == 3
