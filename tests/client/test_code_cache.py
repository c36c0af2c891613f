"""Compiled code is taken only from files that this user alone can write, and that are as they were written."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from motet.client.array_code import CannotGenerate
from motet.client.code_cache import code_cache, is_safe, is_whole, seal
from motet.client.step_library import Library, built

needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler"
)
TEXT = (
    'extern "C" int motet_clients(long clients, long threads, void **, const long *) { return clients == 7; }'
)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "motet" / "steps"


def called() -> None:
    library = Library(TEXT)
    library(1, 1, [], [])
    with pytest.raises(IndexError):
        library(7, 1, [], [])


def test_a_new_cache_is_readable_by_its_owner_alone(cache: Path) -> None:
    before = os.umask(0)
    try:
        assert code_cache("steps") == cache
    finally:
        os.umask(before)
    assert cache.stat().st_mode & 0o777 == 0o700


def test_a_cache_below_a_folder_that_others_can_write_to_is_not_used(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.parent.chmod(0o777)
    assert code_cache("steps") is None
    cache.parent.chmod(0o1777)  # others cannot replace what is not theirs
    assert code_cache("steps") == cache


def test_a_cache_of_somebody_else_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir(parents=True)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    assert code_cache("steps") is None if me else not is_safe_for_another(cache)


def is_safe_for_another(folder: Path) -> bool:
    """Root's own files are safe for everybody, so what is asked for is a file of another user."""
    os.chown(folder, 12345, -1)
    return is_safe(folder)


@needs_compiler
def test_where_no_cache_can_be_written_a_process_compiles_for_itself(
    cache: Path,
) -> None:
    cache.parents[1].write_text("no folder")
    called()
    assert cache.parents[1].is_file()


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:3000])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def changed(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def of_another_text(file: Path) -> None:
    """A library with a seal of its own, under a name that is not its own."""
    seal(file, "another.so")


def open_to_all(file: Path) -> None:
    file.chmod(0o777)


@needs_compiler
@pytest.mark.parametrize("harm", [cut_off, emptied, changed, of_another_text, open_to_all])
def test_a_library_that_was_harmed_is_compiled_again(cache: Path, harm: Callable[[Path], None]) -> None:
    folder = code_cache("steps")
    assert folder
    file = built(TEXT, folder)
    good = file.stat().st_ino
    assert is_whole(file) and built(TEXT, folder).stat().st_ino == good
    harm(file)
    assert not is_whole(file)
    called()
    assert is_whole(file)


@needs_compiler
def test_a_library_that_cannot_be_loaded_leaves_steps_to_another_way(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_code(_: str) -> None:
        raise OSError("failed to map segment from shared object")  # a folder where no code may be run

    monkeypatch.setattr(ctypes, "CDLL", no_code)
    with pytest.raises(CannotGenerate, match="cannot be loaded"):
        Library(TEXT)
