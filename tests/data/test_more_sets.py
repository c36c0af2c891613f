"""Data sets whose files are not here, with small files of the official form; feature shift; other systems' folders."""

from __future__ import annotations

import gzip
import io
import json
import struct
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from motet.data.federated import DataError
from motet.data.files import cache
from motet.data.files.download import Remote, checksum
from motet.data.load import load
from motet.data.sets import ag_news, bloodmnist, emnist, har, pneumoniamnist, svhn


def idx(a: np.ndarray) -> bytes:
    return gzip.compress(
        b"\x00\x00\x08" + bytes([a.ndim]) + struct.pack(f">{a.ndim}I", *a.shape) + a.tobytes()
    )


def svhn_files(folder: Path) -> None:
    from scipy.io import savemat

    rng = np.random.default_rng(0)
    for name, many in (("train", 40), ("test", 12)):
        x = rng.integers(0, 256, (32, 32, 3, many), np.uint8)
        savemat(
            folder / f"{name}_32x32.mat", {"X": x, "y": (np.arange(many) % 10 + 1)[:, None].astype(np.uint8)}
        )


def emnist_files(folder: Path) -> None:
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
        for kind in emnist.KINDS:
            first, many = (1, 26) if kind == "letters" else (0, len(emnist.CLASSES[kind]))
            for part in ("train", "test"):
                y = (np.arange(2 * many) % many + first).astype(np.uint8)
                x = rng.integers(0, 256, (len(y), 28, 28), np.uint8)
                x[:, 0] = 7  # the first row of a file is the first column of an image
                for what, a in (("images-idx3", x), ("labels-idx1", y)):
                    archive.writestr(f"gzip/emnist-{kind}-{part}-{what}-ubyte.gz", idx(a))


def ag_news_files(folder: Path) -> None:
    words = ("war vote", "goal match", "bank oil", "chip space")
    for name, many in (("train", 60), ("test", 8)):
        rows = [
            f'"{i % 4 + 1}","Title {words[i % 4]}","Text, with ""signs"" {words[i % 4]}"' for i in range(many)
        ]
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")


def har_files(folder: Path) -> None:
    inner, rng = io.BytesIO(), np.random.default_rng(0)
    with zipfile.ZipFile(inner, "w") as archive:
        for part, people in (("train", (1, 3)), ("test", (2,))):
            who = np.repeat(people, 24)
            rows = "\n".join(" ".join(f"{v: .7e}" for v in r) for r in rng.normal(size=(len(who), 5)))
            for key, text in (("X", rows), ("y", "\n".join(str(i % 6 + 1) for i in range(len(who)))),
                              ("subject", "\n".join(map(str, who)))):  # fmt: skip
                archive.writestr(f"UCI HAR Dataset/{part}/{key}_{part}.txt", text)
    with zipfile.ZipFile(folder / har.SOURCES[0].file, "w") as outer:
        outer.writestr("UCI HAR Dataset.zip", inner.getvalue())


def medmnist_files(name: str, channels: tuple[int, ...], classes: int) -> Any:
    def write(folder: Path) -> None:
        rng, found = np.random.default_rng(0), {}
        for part, many in (("train", 40), ("val", 8), ("test", 8)):
            found[f"{part}_images"] = rng.integers(0, 256, (many, 28, 28, *channels), np.uint8)
            found[f"{part}_labels"] = (np.arange(many) % classes)[:, None].astype(np.uint8)
        np.savez(folder / f"{name}.npz", **found)

    return write


SETS: dict[str, tuple[Any, Any, tuple[int, ...], int]] = {  # module, files, shape of an example, classes
    "svhn": (svhn, svhn_files, (3, 32, 32), 10),
    "emnist": (emnist, emnist_files, (1, 28, 28), 47),
    "ag_news": (ag_news, ag_news_files, (64,), 4),
    "har": (har, har_files, (5,), 6),
    "bloodmnist": (bloodmnist, medmnist_files("bloodmnist", (3,), 8), (3, 28, 28), 8),
    "pneumoniamnist": (pneumoniamnist, medmnist_files("pneumoniamnist", (), 2), (1, 28, 28), 2),
}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Small files of a set, without the checksums of the official ones."""

    def make(name: str) -> None:
        module, write, _, _ = SETS[name]
        (tmp_path / "data" / name).mkdir(parents=True)
        write(tmp_path / "data" / name)
        bare = tuple(type(s)(s.file, s.url) for s in module.SOURCES)
        monkeypatch.setattr(module, "SOURCES", bare)

    monkeypatch.setenv("MOTET_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))
    yield make


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_read_from_files_of_the_official_form(name: str, small: Any) -> None:
    small(name)
    found = load(name, {} if name == "har" else {"clients": 2, "split": "iid"})
    assert (found.shape, found.outputs) == SETS[name][2:]
    if name == "har":
        assert list(found.clients_data) == ["person-01", "person-02", "person-03"]
    else:
        assert found.server_test is not None


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_downloaded_checked_and_read(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    """From a server of this machine, with the checksums of the small files."""
    module, write, *form = SETS[name]
    (tmp_path / "there").mkdir()
    write(tmp_path / "there")
    monkeypatch.delenv("MOTET_DATA", raising=False)
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "there")) as http:
        place = f"http://127.0.0.1:{http.server_address[1]}/"
        sources = tuple(
            Remote(s.file, place + quote(s.file), md5=checksum(tmp_path / "there" / s.file, "md5"))
            for s in module.SOURCES
        )
        monkeypatch.setattr(module, "SOURCES", sources)
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        cache.fetch(name)
        http.shutdown()
        thread.join()
    found = load(name, {} if name == "har" else {"clients": 2, "split": "iid"})
    assert [found.shape, found.outputs] == form and cache.status(name).here


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("name", [n for n in SETS if n != "har"])
def test_other_files_than_the_official_ones_are_refused(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    SETS[name][1](tmp_path)
    with pytest.raises(DataError, match="md5"):
        SETS[name][0].decode(tmp_path)


def test_images_of_emnist_stand_upright_and_letters_count_from_a(small: Any) -> None:
    small("emnist")
    found = cache.arrays("emnist")
    assert (found["x_letters"][:, :, 0] == 7).all() and found["y_letters"].min() == 0
    assert load("emnist", {"kind": "letters", "clients": 2}).classes[:2] == ("A", "B")


# ---- feature shift ----


def test_clients_differ_in_features_and_hold_the_same_rows_otherwise() -> None:
    plain = load("digits", {"split": "iid", "clients": 4})
    none = load("digits", {"split": "feature_shift", "clients": 4, "rotation": 0, "noise": 0, "style": 0})
    moved = load("digits", {"split": "feature_shift", "clients": 4})
    for c, own in plain.clients_data.items():
        assert np.array_equal(own.train.take().y, moved.clients_data[c].train.take().y)
        assert np.allclose(own.train.take().x, none.clients_data[c].train.take().x)
        assert not np.allclose(own.train.take().x, moved.clients_data[c].train.take().x)
    assert moved.fingerprint() == load("digits", {"split": "feature_shift", "clients": 4}).fingerprint()
    assert moved.fingerprint() != none.fingerprint()


def test_bytes_of_images_are_turned_and_the_server_keeps_its_own(small: Any) -> None:
    small("svhn")
    plain = load("svhn", {"split": "iid", "clients": 2})
    moved = load("svhn", {"split": "feature_shift", "clients": 2, "noise": 0, "style": 0})
    assert np.array_equal(plain.server_test.x, moved.server_test.x)  # type: ignore[union-attr]
    own = [f.clients_data["client-0"].train.take().x.float() for f in (plain, moved)]
    assert not np.allclose(*own) and plain.fingerprint() != moved.fingerprint()


def test_turning_by_a_right_angle_moves_pixels_by_hand() -> None:
    from motet.data.feature_shifts import turned

    x = np.arange(9.0).reshape(1, 1, 3, 3)
    assert np.allclose(turned(x, 90.0)[0, 0], np.rot90(x[0, 0])) or np.allclose(
        turned(x, 90.0)[0, 0], np.rot90(x[0, 0], -1)
    )


def test_texts_cannot_be_shifted(small: Any) -> None:
    small("ag_news")
    with pytest.raises(DataError, match="(?s)changes images and numbers.*hint: "):
        load("ag_news", {"split": "feature_shift", "clients": 2})


# ---- other systems' folders ----


def test_leafs_users_and_parts_are_kept(tmp_path: Path) -> None:
    for part, many in (("train", 9), ("test", 3)):
        (tmp_path / part).mkdir()
        users = {
            f"writer_{u}": {
                "x": [[float(u + i)] * 784 for i in range(many)],
                "y": [i % 3 for i in range(many)],
            }
            for u in range(2)
        }
        content = {"users": list(users), "num_samples": [many] * 2, "user_data": users}
        (tmp_path / part / "all_data_0.json").write_text(json.dumps(content))
    found = load(str(tmp_path))
    assert list(found.clients_data) == ["writer_0", "writer_1"] and found.shape == (1, 28, 28)
    own = found.clients_data["writer_1"]
    assert len(own.test) == 3 and len(own.train) + len(own.val) == 9 and float(own.test.take().x.min()) == 1.0


def test_leafs_texts_are_refused_with_a_hint(tmp_path: Path) -> None:
    users = {"a": {"x": ["to be or not"], "y": [1]}}
    (tmp_path / "data.json").write_text(json.dumps({"users": ["a"], "user_data": users}))
    with pytest.raises(DataError, match="(?s)no rows of numbers.*hint: "):
        load(str(tmp_path))


def test_pfllibs_files_are_read_without_unpickling(tmp_path: Path) -> None:
    rng, kept = np.random.default_rng(0), {}
    for part, many in (("train", 12), ("test", 4)):
        (tmp_path / part).mkdir()
        for client in range(2):
            x, y = rng.normal(size=(many, 1, 4, 4)).astype(np.float32), np.arange(many) % 3
            kept[part, client] = x
            np.savez_compressed(tmp_path / part / f"{client}.npz", data={"x": x, "y": y})
    found = load(str(tmp_path))
    assert list(found.clients_data) == ["client-0", "client-1"] and found.shape == (1, 4, 4)
    assert np.allclose(found.clients_data["client-1"].test.take().x, kept["test", 1])


def test_a_pickle_of_something_else_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "train").mkdir()
    np.savez(tmp_path / "train" / "0.npz", data={"x": Bad(), "y": np.arange(3)})
    with pytest.raises(DataError, match="without running code"):
        load(str(tmp_path))
    assert not (tmp_path / "ran").exists()
