"""Published models as files that a stranger put there: no ordinary files, and damaged ones."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from motet.published.folder import load_all, save
from motet.published.outbox import from_outbox
from strangers import honest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(honest("ann"), tmp_path)
    return tmp_path


@pytest.mark.parametrize("client", ["Klinik Süd", "病院 3", "ward 5%", "A/B: north", "..", "x" * 200])
def test_files_have_the_names_of_clients_as_people_write_them(tmp_path: Path, client: str) -> None:
    saved = save(honest(client), tmp_path)
    assert saved.parent == tmp_path and len(list(tmp_path.iterdir())) == 2
    assert from_outbox(tmp_path).client == client == load_all(tmp_path)[0][0].client
    assert saved.name == f"{client}.onnx" or {*"%/."} & {*client}


def test_files_of_earlier_versions_are_read_and_replaced(tmp_path: Path) -> None:
    saved = save(honest("Süd"), tmp_path)
    for path in (saved, saved.with_suffix(".json")):
        path.rename(tmp_path / f"S%C3%BCd{path.suffix}")
    assert [m.client for m in load_all(tmp_path)[0]] == ["Süd"] and from_outbox(tmp_path).client == "Süd"
    save(honest("Süd"), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["Süd.json", "Süd.onnx"]


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
