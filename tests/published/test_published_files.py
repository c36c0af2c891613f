"""Published models as files that a stranger put there: no ordinary files, and damaged ones."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from motet.published.folder import load_all, save
from strangers import honest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(honest("ann"), tmp_path)
    return tmp_path


@pytest.mark.parametrize("end", ["onnx", "json"])
@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
def test_what_is_no_ordinary_file_is_refused_at_once(folder: Path, end: str, what: str) -> None:
    save(honest("mallory"), folder)
    file = folder / f"mallory.{end}"
    file.unlink()
    if what == "pipe":
        os.mkfifo(file)
    elif what == "device":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
    models, refused = load_all(folder)
    assert [m.client for m in models] == ["ann"] and list(refused) == ["mallory"]
    assert "no ordinary file" in refused["mallory"] or "Is a directory" in refused["mallory"]


@pytest.mark.parametrize("end", ["onnx", "json"])
def test_a_flipped_byte_is_refused(folder: Path, end: str) -> None:
    file = folder / f"ann.{end}"
    whole, (model,) = file.read_bytes(), load_all(folder)[0]
    for seed in range(60):
        draw, content = random.Random(seed), bytearray(whole)
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(content)
        models, refused = load_all(folder)
        assert models == [model] or list(refused) == ["ann"]


def test_a_manifest_of_an_earlier_version_has_no_checksum_and_is_read(folder: Path) -> None:
    file = folder / "ann.json"
    start, end = file.read_text().split('"client"', 1)
    assert start.startswith('{"checksum": "')
    file.write_text('{"client"' + end)
    assert [m.client for m in load_all(folder)[0]] == ["ann"]
