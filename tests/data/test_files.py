"""Files of data sets: fetched whole or not at all, decoded once, and never half of anything taken for data."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from motet.cli.main import main
from motet.data.federated import DataError
from motet.data.files import array_cache as kept
from motet.data.files import cache
from motet.data.files import image_formats as images
from motet.data.files.download import Remote, download
from motet.data.sets import mnist

BODY = bytes(range(256)) * 4000


class LazyRows(BaseHTTPRequestHandler):
    """Serves BODY as the path says: /whole, /deaf (to Range), /breaks (after half of what was asked for)."""

    def do_GET(self) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        self.server.asked.append(int(asked[1]) if asked else None)
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "ftp://127.0.0.1/file")
            self.end_headers()
            return
        if self.path not in ("/whole", "/deaf", "/breaks"):
            return self.send_error(404)
        start = int(asked[1]) if asked and self.path != "/deaf" else 0
        if start >= len(BODY):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(BODY) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
        self.end_headers()
        rest = BODY[start:]
        self.wfile.write(rest[: len(rest) // 2] if self.path == "/breaks" else rest)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), LazyRows) as http:
        http.asked = []
        http.url = f"http://127.0.0.1:{http.server_address[1]}"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield http
        http.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MOTET_DATA", raising=False)


def remote(server, path: str = "/whole", **more) -> Remote:
    sums = {"size": len(BODY), "sha256": hashlib.sha256(BODY).hexdigest()}
    return Remote("body.bin", server.url + path, **(sums | more))


def there(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_file_is_downloaded_and_not_again(server, tmp_path):
    said = []
    path = download(remote(server), tmp_path / "toy", lambda done, total: said.append((done, total)))
    assert path.read_bytes() == BODY and there(path.parent) == ["body.bin"]
    assert said[-1] == (len(BODY), len(BODY))
    assert download(remote(server), tmp_path / "toy") == path and len(server.asked) == 1


def test_a_broken_download_is_gone_on_with(server, tmp_path):
    half = len(BODY) // 2
    with pytest.raises(DataError, match=f"after {half} of {len(BODY)} bytes; {half} bytes are kept"):
        download(remote(server, "/breaks"), tmp_path)
    assert there(tmp_path) == ["body.bin.part"]
    assert download(remote(server), tmp_path).read_bytes() == BODY
    assert server.asked == [None, half] and there(tmp_path) == ["body.bin"]


def test_a_server_that_is_deaf_to_range_makes_us_start_over(server, tmp_path):
    (tmp_path / "body.bin.part").write_bytes(b"x" * 1000)
    assert download(remote(server, "/deaf"), tmp_path).read_bytes() == BODY
    assert server.asked == [1000]


@pytest.mark.parametrize("old", [b"x" * 1000, b"x" * len(BODY), b"x" * (len(BODY) + 1)])
def test_a_part_of_another_version_makes_us_start_over(server, tmp_path, old):
    (tmp_path / "body.bin.part").write_bytes(old)
    assert download(remote(server), tmp_path).read_bytes() == BODY


def test_a_part_that_is_too_long_for_a_file_of_unknown_size_makes_us_start_over(server, tmp_path):
    (tmp_path / "body.bin.part").write_bytes(BODY + b"more")
    assert download(remote(server, size=0), tmp_path).read_bytes() == BODY


def test_a_wrong_checksum_leaves_nothing_and_says_got_and_expected(server, tmp_path):
    with pytest.raises(DataError) as e:
        download(remote(server, sha256="0" * 64), tmp_path)
    for word in ("body.bin", server.url, hashlib.sha256(BODY).hexdigest(), "0" * 64):
        assert word in str(e.value)
    assert there(tmp_path) == []


def test_a_wrong_size_leaves_nothing(server, tmp_path):
    with pytest.raises(DataError, match=f"has {len(BODY)} bytes; expected 7"):
        download(remote(server, size=7), tmp_path)
    assert there(tmp_path) == []


def test_a_refused_connection_names_address_file_checksum_and_the_way_out(tmp_path):
    with pytest.raises(DataError) as e:
        download(Remote("body.bin", "http://127.0.0.1:9/body.bin", md5="abc"), tmp_path / "toy")
    for word in (
        "http://127.0.0.1:9/body.bin",
        "body.bin (md5 abc)",
        "fetch toy --from FOLDER",
        "MOTET_DATA",
    ):
        assert word in str(e.value)


def test_a_missing_page_is_said(server, tmp_path):
    with pytest.raises(DataError, match="the server answers 404"):
        download(remote(server, "/nothing"), tmp_path)


def test_only_http_is_spoken_also_where_a_server_sends_us_elsewhere(server, tmp_path):
    (tmp_path / "secret").write_text("s")
    with pytest.raises(DataError, match="expected an address with http"):
        download(Remote("secret", (tmp_path / "secret").as_uri()), tmp_path / "toy")
    with pytest.raises(DataError, match="cannot be fetched"):
        download(remote(server, "/elsewhere"), tmp_path)


# ---- damaged files ----


def idx_bytes(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.tobytes()


def test_a_truncated_gz_is_named(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((9, 28, 28), np.uint8)))[:-9])
    with pytest.raises(DataError, match="train-images-idx3-ubyte.gz is truncated or no gzip file"):
        images.idx(path)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"GIF8....", "is no idx file of bytes: it begins with 47 49 46 38"),
        (b"", "is no idx file"),
        (idx_bytes(np.zeros((2, 3), np.uint8))[:9], "is damaged"),
        (
            idx_bytes(np.zeros((2, 3), np.uint8))[:-1],
            "is damaged: 17 bytes, and its first ones speak of 2 x 3",
        ),
        (idx_bytes(np.zeros((2, 3), np.uint8)), r"holds an array of shape \(2, 3\); expected \(5, 3\)"),
    ],
)
def test_a_corrupt_idx_file_is_refused(tmp_path, raw, said):
    (tmp_path / "a-idx").write_bytes(raw)
    with pytest.raises(DataError, match=said):
        images.idx(tmp_path / "a-idx", (5, 3))


def tar(path: Path, **members: bytes) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_a_corrupt_tar_is_refused(tmp_path):
    raw = np.random.default_rng(0).bytes(3 * 13)
    whole = tar(tmp_path / "a.tar.gz", train=raw, words=b"cat\ndog\n")
    x, y, [words] = images.records(whole, {"train": 3}, ["words"], 1, side=2)
    assert x.shape == (3, 2, 2, 3) and words == ["cat", "dog"]
    with pytest.raises(DataError, match="has no test"):
        images.records(whole, {"train": 3, "test": 1}, [], 1, side=2)
    with pytest.raises(DataError, match="expected 4 records of 13 bytes"):
        images.records(whole, {"train": 4}, [], 1, side=2)
    with pytest.raises(DataError, match="a.tar.gz is not the file it should be: its md5"):
        images.records(whole, {"train": 3}, [], 1, md5="0" * 32, side=2)
    for damaged in (whole.read_bytes()[:-30], b"no archive"):
        whole.write_bytes(damaged)
        with pytest.raises(DataError, match="truncated or no tar.gz archive"):
            images.records(whole, {"train": 3}, ["words"], 1, side=2)


def test_a_wrong_sheet_is_refused(tmp_path):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (100, 100, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "train_00.webp", lossless=True)
    x = images.sheets(tmp_path, "train", 60, side=2)
    assert (x[0] == pixels[:2, :2]).all() and (x[51] == pixels[2:4, 2:4]).all()
    with pytest.raises(DataError, match=r"train_\*.webp is not the file it should be: its sha256"):
        images.sheets(tmp_path, "train", 60, "0" * 64, side=2)
    with pytest.raises(DataError, match="train_00.webp is 100 x 100 pixels; expected 150 x 150"):
        images.sheets(tmp_path, "train", 60, side=3)
    with pytest.raises(DataError, match="has no test_00.webp"):
        images.sheets(tmp_path, "test", 60, side=2)
    (tmp_path / "train_00.webp").write_bytes((tmp_path / "train_00.webp").read_bytes()[:500])
    with pytest.raises(DataError, match="train_00.webp is damaged"):
        images.sheets(tmp_path, "train", 60, side=2)


# ---- the cache ----


def toy(value: int = 1):
    return lambda: {"x": np.full((3, 2), value, np.uint8), "words": np.array(["a", "bb"])}


def test_arrays_are_decoded_once_and_read_only():
    found = kept.keep("toy", "k", toy())
    again = kept.keep("toy", "k", toy(2))
    assert (again["x"] == 1).all() and list(again["words"]) == ["a", "bb"]
    assert found.digest == again.digest != kept.keep("toy", "other", toy(2)).digest
    assert isinstance(again["x"], np.memmap) and not again["x"].flags.writeable


@pytest.mark.parametrize("harm", ["cut", "meta", "gone"])
def test_damaged_arrays_are_decoded_again(harm):
    folder = kept.keep("toy", "k", toy()).folder
    if harm == "cut":
        os.truncate(folder / "x.npy", 100)
    elif harm == "meta":
        (folder / "meta.json").write_text('{"arr')
    else:
        (folder / "words.npy").unlink()
    assert (kept.keep("toy", "k", toy(5))["x"] == 5).all()
    assert there(folder.parent) == [".toy.lock", "toy-k"]


def test_a_failed_decode_leaves_nothing():
    def fails() -> dict[str, np.ndarray]:
        raise DataError("no")

    with pytest.raises(DataError):
        kept.keep("toy", "k", fails)
    assert there(kept.home() / "decoded") == [".toy.lock"]


def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot be written: .*\\nhint: MOTET_CACHE"):
        kept.keep("toy", "k", toy())


KILLED = """
import os, signal, sys, numpy as np
from motet.data.files import array_cache as kept
save = kept._save
def saves(file, array):
    fact = save(file, array)
    os.kill(os.getpid(), signal.SIGKILL)
kept._save = saves
kept.keep("toy", "k", lambda: {"x": np.zeros(9), "y": np.ones(9)})
"""


def test_a_killed_decode_leaves_nothing_that_is_taken_for_data():
    assert subprocess.run([sys.executable, "-c", KILLED]).returncode == -9
    base = kept.home() / "decoded"
    left = [n for n in there(base) if n.endswith(".tmp")]
    assert len(left) == 1 and kept.opened(base / "toy-k") is None
    assert (kept.keep("toy", "k", toy(4))["x"] == 4).all()
    assert there(base) == [".toy.lock", "toy-k"]


AT_ONCE = """
import os, sys, numpy as np
from motet.data.files import array_cache as kept
def decode():
    with open(sys.argv[1], "a") as f:
        f.write("decoded\\n")
    return {"x": np.arange(1_000_000)}
print("ready", flush=True)
sys.stdin.readline()
print(kept.keep("toy", "k", decode).digest)
"""


def test_two_processes_at_once_decode_once(tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", AT_ONCE, str(log)]
    both = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(2)]
    for p in both:
        assert p.stdout.readline() == "ready\n"
    for p in both:
        p.stdin.write("go\n")
        p.stdin.flush()
    digests = {p.communicate()[0] for p in both}
    assert len(digests) == 1 and digests != {""} and log.read_text() == "decoded\n"


# ---- from a name to arrays ----


@pytest.fixture
def small(tmp_path, monkeypatch):
    """MNIST's decoder for a folder of four small files."""
    folder = tmp_path / "files" / "mnist"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for which, n in (("train", 6), ("t10k", 2)):
        x, y = rng.integers(0, 256, (n, 28, 28), np.uint8), np.arange(n, dtype=np.uint8)
        (folder / f"{which}-images-idx3-ubyte").write_bytes(idx_bytes(x))
        (folder / f"{which}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(y)))
    monkeypatch.setattr(mnist, "decode", lambda f: images.four_idx(f, {}, many=(6, 2)))
    return folder


def test_motet_data_may_be_the_folder_or_the_one_above(small, monkeypatch):
    digests = set()
    for base in (small, small.parent):
        monkeypatch.setenv("MOTET_DATA", str(base))
        found = cache.arrays("mnist")
        digests.add(found.digest)
        assert found["x"].shape == (8, 28, 28, 1) and found["part"].tolist() == [-1] * 6 + [4] * 2
    assert len(digests) == 1 and cache.status("mnist").how == "MOTET_DATA"


def test_a_changed_file_is_decoded_again(small, monkeypatch):
    monkeypatch.setenv("MOTET_DATA", str(small))
    before = cache.arrays("mnist").digest
    file = small / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    os.utime(file, ns=(1, 1))
    assert cache.arrays("mnist").digest != before


def test_data_that_are_nowhere_say_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setenv("MOTET_DATA", str(tmp_path))
    with pytest.raises(DataError) as e:
        cache.arrays("mnist")
    said = str(e.value)
    assert said.startswith(
        "data 'mnist' is not here.\nhint: motet data fetch mnist (12 MB from ossci-datasets."
    )
    assert "motet data fetch mnist --from FOLDER" in said and f"MOTET_DATA is {tmp_path}" in said
    assert not cache.status("mnist").here


@pytest.mark.parametrize(("name", "size"), [("heart", "(40 kB from arch"), ("covertype", "(from archive")])
def test_small_files_are_told_in_kilobytes_and_unknown_sizes_not_at_all(name, size, monkeypatch, tmp_path):
    monkeypatch.setenv("MOTET_DATA", str(tmp_path))
    with pytest.raises(DataError) as e:
        cache.arrays(name)
    assert f"motet data fetch {name} {size}" in str(e.value)


def test_what_is_fetched_from_a_folder_stays_when_the_folder_goes(small, capsys):
    assert main(["data", "fetch", "mnist", "--from", str(small.parent)]) == 0
    said = capsys.readouterr()
    assert str(kept.home() / "decoded" / "mnist-") in said.out and "motet compare data=mnist" in said.err
    small.rename(small.with_name("away"))
    assert len(cache.arrays("mnist")["x"]) == 8 and cache.status("mnist").how == "fetched"
    os.truncate(cache.arrays("mnist").folder / "x.npy", 200)
    with pytest.raises(DataError, match="is not here"):
        cache.arrays("mnist")
    small.with_name("away").rename(small)
    assert len(cache.arrays("mnist")["x"]) == 8


def test_what_is_downloaded_is_found_later(small, server, monkeypatch, capsys):
    body = gzip.compress(idx_bytes(np.arange(2, dtype=np.uint8)), mtime=0)
    monkeypatch.setattr(sys.modules[__name__], "BODY", body)
    (small / "t10k-labels-idx1-ubyte.gz").unlink()
    md5 = hashlib.md5(body).hexdigest()
    one = Remote("t10k-labels-idx1-ubyte.gz", f"{server.url}/whole", len(body), md5=md5)
    monkeypatch.setattr(mnist, "SOURCES", (one,))
    downloads = kept.home() / "downloads" / "mnist"
    downloads.mkdir(parents=True)
    for file in small.iterdir():
        file.rename(downloads / file.name)
    assert main(["data", "fetch", "mnist"]) == 0
    assert len(cache.arrays("mnist")["y"]) == 8 and server.asked == [None]
    assert (downloads / one.file).is_file()  # kept: see fetch
    assert main(["data", "list"]) == 0
    assert re.search(r"mnist +here \(fetched", capsys.readouterr().out)


def test_names_that_cannot_be_fetched_are_refused(capsys):
    assert main(["data", "fetch", "mnits", "digits"]) == 2
    said = capsys.readouterr().err
    assert "did you mean 'mnist'" in said and "no data set 'digits' to fetch" in said
