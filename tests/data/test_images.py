"""Images of every layout become the same kind of pool; the real ones hold what is known of them."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from motet.data import image_folders as folders
from motet.data import load
from motet.data.federated import DataError
from motet.data.files import image_formats as images
from motet.data.sets import (
    cifar10,
    cifar100,
    coursera_digits,
    fashion_mnist,
    mnist,
    tiny_imagenet,
)

REAL = os.environ.get("MOTET_DATA")
needs_real = pytest.mark.skipif(not REAL, reason="MOTET_DATA does not name a folder of real data")


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """One cache for all tests of real data, so that each is decoded once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def save(path: Path, pixels: np.ndarray, **how) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **how)


# ---- official layouts, small ----


def cifar_like(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_cifar_records_are_labels_then_red_green_and_blue(tmp_path):
    first, second = noise(0, 3, 32, 32), noise(1, 3, 32, 32)
    record = bytes([4, 77]) + first.tobytes() + bytes([5, 88]) + second.tobytes()
    path = tmp_path / "a.tar.gz"
    cifar_like(path, {"../../evil": b"x", "in/train.bin": record, "in/names.txt": b"a\nb\n\n"})
    x, y, [names] = images.records(path, {"in/train.bin": 2}, ["in/names.txt"], 2)
    assert (x[0] == first.transpose(1, 2, 0)).all() and (x[1] == second.transpose(1, 2, 0)).all()
    assert y.tolist() == [[4, 77], [5, 88]] and names == ["a", "b"]
    assert os.listdir(tmp_path) == ["a.tar.gz"]


@pytest.mark.parametrize("module", [cifar10, cifar100])
def test_cifars_official_archive_is_read_as_it_is_laid_out(module, tmp_path, monkeypatch):
    labels = 2 if module is cifar100 else 1
    few = dict.fromkeys(module.MEMBERS, 2)
    words = [*module.WORDS] if module is cifar100 else ["cifar-10-batches-bin/batches.meta.txt"]
    body = {m: (bytes([i, i + 1][:labels]) + noise(i, 3072).tobytes()) * 2 for i, m in enumerate(few)}
    path = tmp_path / module.SOURCES[0].file
    cifar_like(path, body | {w: b"one\ntwo\n" for w in words})
    with pytest.raises(DataError, match=f"its md5 is .*; expected {module.SOURCES[0].md5}"):
        module.decode(tmp_path)
    monkeypatch.setattr(module, "MEMBERS", few)
    monkeypatch.setattr(module, "SOURCES", (type(module.SOURCES[0])(path.name, "http://x"),))
    found = module.decode(tmp_path)
    assert found["x"].shape == (2 * len(few), 32, 32, 3)
    assert (found["x"][0] == noise(0, 3, 32, 32).transpose(1, 2, 0)).all()
    if module is cifar100:
        assert found["coarse"].tolist() == [0, 0, 1, 1] and found["fine"].tolist() == [1, 1, 2, 2]
    else:
        assert found["y"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_fashion_is_compared_with_the_packed_files_md5(tmp_path):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"something else"))
    with pytest.raises(DataError, match="expected 8d4fb7e6c68d591d4c3dfef9ec88bf0d"):
        fashion_mnist.decode(tmp_path)


def jpeg(seed: int, mode: str = "RGB", side: int = 64) -> bytes:
    out = io.BytesIO()
    Image.fromarray(noise(seed, side, side, 3)).convert(mode).save(out, "JPEG")
    return out.getvalue()


def tiny(path: Path, skip: str = "", **odd: bytes) -> Path:
    """Two classes, three training and two validation images of each, in the official layout."""
    top = "tiny-imagenet-200/"
    members = {
        f"{top}wnids.txt": b"n02\nn01\n",
        f"{top}words.txt": b"n01\tcat, true cat\nn02\tdog\nn03\tfox\n",
    }
    for c in ("n01", "n02"):
        members |= {
            f"{top}train/{c}/images/{c}_{i}.JPEG": jpeg(i, "L" if i == 2 else "RGB") for i in (10, 2, 0)
        }
    lines = [f"val_{i}.JPEG\t{'n01' if i % 2 else 'n02'}\t0\t0\t9\t9" for i in range(4)]
    members[f"{top}val/val_annotations.txt"] = "\n".join(lines).encode()
    members |= {f"{top}val/images/val_{i}.JPEG": jpeg(20 + i) for i in range(4)}
    members |= {f"{top}test/images/test_0.JPEG": b"not read", "../evil.JPEG": b"x"} | odd
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if name != top + skip:
                archive.writestr(name, content)
    return path


def test_tiny_imagenets_official_archive_is_read_by_class_and_number(tmp_path):
    found = tiny_imagenet.whole(tiny(tmp_path / "t.zip"), each=(3, 2))
    assert list(found["classes"]) == ["dog", "cat, true cat"]  # in the order of wnids.txt
    assert found["y"].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert found["part"].tolist() == [-1] * 6 + [4] * 4
    seeds = [0, 2, 10, 0, 2, 10, 20, 22, 21, 23]
    for x, seed in zip(found["x"], seeds, strict=True):
        image = Image.open(io.BytesIO(jpeg(seed, "L" if seed == 2 else "RGB")))
        assert (x == np.asarray(image.convert("RGB"))).all()
    assert os.listdir(tmp_path) == ["t.zip"]


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ({"skip": "words.txt"}, "has no tiny-imagenet-200/words.txt"),
        ({"skip": "train/n01/images/n01_2.JPEG"}, "has 2 train images of cat, true cat n01; expected 3"),
        (
            {"tiny-imagenet-200/val/images/val_1.JPEG": jpeg(0, side=32)},
            "val_1.JPEG is 32 x 32 pixels; expected 64",
        ),
        ({"tiny-imagenet-200/val/images/val_1.JPEG": b"nothing"}, "val_1.JPEG is damaged or no picture"),
        ({"tiny-imagenet-200/val/images/val_1.JPEG": jpeg(0)[:900]}, "val_1.JPEG is damaged"),
    ],
)
def test_what_is_wrong_with_tiny_imagenet_is_named(tmp_path, harm, said):
    with pytest.raises(DataError, match=said):
        tiny_imagenet.whole(tiny(tmp_path / "t.zip", **harm), each=(3, 2))


def test_a_truncated_zip_is_refused(tmp_path):
    path = tiny(tmp_path / "tiny-imagenet-200.zip")
    with pytest.raises(DataError, match="expected 90528d7ca1a48142e341f4ef8d21d0de"):
        tiny_imagenet.decode(tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="truncated or no zip archive"):
        tiny_imagenet.whole(path)


def test_shrinking_keeps_a_constant_and_mirrors():
    w = coursera_digits.shrinking(28, 20)
    assert np.allclose(w.sum(1), 1) and np.allclose(w, w[::-1, ::-1])


# ---- a person's own folders ----


def test_a_folder_for_each_class_is_read(own_cache, tmp_path):
    for i, kind in enumerate(("dog", "cat", "dog", "cat")):
        save(tmp_path / "pets" / kind / f"{i}.png", noise(i, 5, 7, 3))
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("not an image")
    pool = folders.load(str(tmp_path / "pets"))
    assert pool.x.shape == (4, 3, 5, 7) and pool.x.dtype == np.uint8 and isinstance(pool.x, np.memmap)
    assert pool.classes == ("cat", "dog") and pool.y.tolist() == [0, 0, 1, 1] and pool.owner is None
    assert pool.part is None and (pool.x[0].transpose(1, 2, 0) == noise(1, 5, 7, 3)).all()
    assert load.source(str(tmp_path / "pets")) is folders.load


def test_a_folder_for_each_client_with_train_and_test_is_read(own_cache, tmp_path):
    rows = [("train", "ann", "a"), ("train", "bob", "b"), ("train", "bob", "a"), ("test", "ann", "b")]
    for i, (which, client, kind) in enumerate(rows):
        save(tmp_path / "f" / which / client / kind / f"{i}.jpg", noise(i, 9, 8, 3), quality=95)
    pool = folders.load(str(tmp_path / "f"), size=4, grey=True)
    assert pool.x.shape == (4, 1, 4, 4) and pool.names == ("ann", "bob")
    assert pool.part.tolist() == [4, -1, -1, -1] and pool.owner.tolist() == [0, 0, 1, 1]
    assert pool.y.tolist() == [1, 0, 0, 1] and len(pool.pixels.mean) == 1


def test_images_are_decoded_once_until_one_changes(own_cache, tmp_path):
    for i in range(3):
        save(tmp_path / "f" / "ab"[i % 2] / f"{i}.png", noise(i, 4, 4, 3))
    first = folders.load(str(tmp_path / "f"))
    assert folders.load(str(tmp_path / "f")).digest == first.digest
    save(tmp_path / "f" / "a" / "0.png", noise(9, 4, 4, 3))
    os.utime(tmp_path / "f" / "a" / "0.png", ns=(1, 1))
    assert folders.load(str(tmp_path / "f")).digest != first.digest
    assert folders.load(str(tmp_path / "f"), grey=True).x.shape == (3, 1, 4, 4)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (("a/1.png", "b/c/2.png"), "cannot be read from their folders: a/1.png, b/c/2.png"),
        (("1.png", "2.png"), "hint: expected folder/CLASS"),
        (("a/1.png", "a/2.png"), "all images of .* are of one class: a"),
        (("train/a/1.png", "a/b/2.png"), "cannot be read|beside them"),
        (("test/a/1.png", "test/b/2.png"), "has test/ and no train/"),
    ],
)
def test_folders_that_say_no_class_are_refused(own_cache, tmp_path, files, said):
    for file in files:
        save(tmp_path / "f" / file, noise(0, 4, 4, 3))
    with pytest.raises(DataError, match=said):
        load.source(str(tmp_path / "f"))(str(tmp_path / "f"))


def test_images_of_different_sizes_and_damaged_ones_are_named(own_cache, tmp_path):
    save(tmp_path / "a" / "1.png", noise(0, 4, 4, 3))
    save(tmp_path / "b" / "2.png", noise(0, 4, 6, 3))
    (tmp_path / "b" / "3.png").write_bytes(b"nothing")
    with pytest.raises(DataError) as e:
        folders.load(str(tmp_path))
    assert "b/2.png is 6 x 4 pixels, and a/1.png is 4 x 4.\nhint: say size = 4" in str(e.value)
    assert "3.png is damaged or no picture" in str(e.value)


def test_a_folder_with_tables_stays_a_table(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    save(tmp_path / "pictures" / "1.png", noise(0, 4, 4, 3))
    assert load.source(str(tmp_path)).__module__ == "motet.data.user_table"


# ---- the real ones ----


def channels(pool) -> tuple[np.ndarray, np.ndarray]:
    x = pool.x[: (pool.part == -1).sum()]
    mean = [x[:, c].mean(dtype=np.float64) / 255 for c in range(x.shape[1])]
    square = [(x[:, c].astype(np.uint32) ** 2).mean(dtype=np.float64) / 255**2 for c in range(x.shape[1])]
    return np.array(mean), np.sqrt(np.array(square) - np.array(mean) ** 2)


@needs_real
def test_mnist_is_mnist(shared_cache):
    pool = mnist.load()
    assert pool.x.shape == (70000, 1, 28, 28) and pool.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert np.bincount(pool.part + 1).tolist() == [60000, 0, 0, 0, 0, 10000]
    mean, std = channels(pool)
    assert np.allclose(mean, pool.pixels.mean, atol=1e-4) and np.allclose(std, pool.pixels.std, atol=1e-4)


@needs_real
def test_cifar10_is_cifar10(shared_cache):
    pool = cifar10.load()
    assert pool.y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3] and pool.y[50000:50005].tolist() == [
        3,
        8,
        8,
        0,
        6,
    ]
    assert (np.bincount(pool.y) == 6000).all() and pool.classes[6] == "frog" and not pool.augment
    mean, std = channels(pool)
    assert np.allclose(mean, pool.pixels.mean, atol=1e-8) and np.allclose(std, pool.pixels.std, atol=1e-8)


@needs_real
def test_cifar100_is_cifar100(shared_cache):
    pool, coarse = cifar100.load(), cifar100.load(labels="coarse", augment=False)
    assert pool.x.shape == (60000, 3, 32, 32) and pool.augment and not coarse.augment
    assert (np.bincount(pool.y) == 600).all() and (np.bincount(coarse.y) == 3000).all()
    assert (len(pool.classes), len(coarse.classes)) == (100, 20) and pool.digest != coarse.digest
    mean, std = channels(pool)
    assert np.allclose(mean, [0.5070751592371323, 0.48654887331495095, 0.4409178433670343], atol=1e-10)
    assert np.allclose(std, [0.267334285879, 0.256438462917, 0.276150471326], atol=1e-10)
    with pytest.raises(DataError, match="labels is 'rough'"):
        cifar100.load(labels="rough")


@needs_real
def test_tiny_imagenet_has_as_many_classes_as_the_files(shared_cache):
    pool = tiny_imagenet.load()
    many = len(pool.classes)
    assert pool.x.shape == (many * 550, 3, 64, 64) and pool.classes[0] == "Egyptian cat"
    assert (np.bincount(pool.y[pool.part == -1]) == 500).all() and (
        np.bincount(pool.y[pool.part == 4]) == 50
    ).all()


@needs_real
def test_coursera_digits_are_one_to_a_client(shared_cache):
    pool = coursera_digits.load()
    assert pool.x.shape == (5000, 400) and pool.names[0] == "digit-0" and (pool.owner == pool.y).all()
    for digit in range(10):
        assert np.bincount(pool.part[pool.y == digit]).tolist() == [360, 40, 100]
    assert (pool.part.reshape(10, 500)[:, 400:] == 2).all() and not pool.problems()


def test_terms_of_digits_are_squares_and_products_of_neighbours():
    x = np.arange(800.0).reshape(2, 400)
    squares, both = (coursera_digits.widened(x, terms) for terms in ("squares", "neighbours"))
    assert squares.shape == (2, 800) and both.shape == (2, 800 + 2 * 19 * 20)
    assert (squares[0, 403], both[0, 800], both[0, 800 + 380]) == (9, 20 * 0, 1 * 0)
    assert (both[1, 801], both[1, 800 + 381]) == (421 * 401, 402 * 401)


@needs_real
def test_coursera_digits_as_published_have_none_to_choose_by(shared_cache):
    part = coursera_digits.load(as_published=True).part
    assert np.bincount(part).tolist() == [4000, 0, 1000]


@needs_real
def test_coursera_digits_can_be_made_from_mnist(tmp_path):
    made = coursera_digits.decode(Path(REAL) / "mnist")
    given = coursera_digits.decode(Path(REAL) / "coursera_digits")
    assert abs(made["x"] - given["x"]).max() < 1e-12 and (made["y"] == given["y"]).all()
    from scipy.io import savemat

    labels = np.where(given["y"] == 0, 10, given["y"])[:, None]
    savemat(tmp_path / "ex3data1.mat", {"X": given["x"], "y": labels.astype(np.uint8)})
    again = coursera_digits.decode(tmp_path)
    assert (again["x"] == given["x"]).all() and (again["y"] == given["y"]).all()
    (tmp_path / "ex3data1.mat").write_bytes(b"nothing")
    with pytest.raises(DataError, match="is no MATLAB file"):
        coursera_digits.decode(tmp_path)
