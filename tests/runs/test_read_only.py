"""Folders that cannot be written: finished runs are read all the same, and others say so in words."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock

from motet.cli.main import main
from motet.runs import jobs, store_file
from motet.runs.recipe import read
from motet.runs.run import Run, run, verify
from motet.runs.store import Store

WORDS = ["method=finetune", "data=wine", "data.clients=3", "train.rounds=3", "engine.name=loop"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return run(read(words=WORDS), tmp_path / "r").folder


def block(folder: Path) -> None:
    """SQLite cannot write its log beside the database, as on a read-only disk; this holds for root too."""
    for end in ("-wal", "-shm"):
        (folder / f"run.sqlite{end}").unlink(missing_ok=True)
        (folder / f"run.sqlite{end}").mkdir()


def test_a_finished_run_is_shown_reported_verified_and_used_where_nothing_can_be_written(
    finished: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["show", str(finished)]) == 0
    before = capsys.readouterr().out
    block(finished)
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        store_file.opened(finished / "run.sqlite", "mode=ro")
    assert main(["show", str(finished)]) == 0 and capsys.readouterr().out == before
    assert main(["report", str(finished), "--to", str(tmp_path / "r.html")]) == 0
    assert main(["verify", str(finished)]) == 0
    assert len(Run(finished).model("client-1").predict(Run(finished).test[[]].assign(**rows(finished)))) > 0


def rows(folder: Path) -> dict[str, float]:
    return {name: 1.0 for name in Run(folder).model("client-1").columns}


def test_a_log_that_a_killed_run_left_is_read_too(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "killed"
    with closing(sqlite3.connect(finished / "run.sqlite")) as db:
        db.execute("PRAGMA wal_autocheckpoint = 0")
        store = Store(finished, writing=True)
        store.event("note", "only in the log")
        store.commit()
        shutil.copytree(finished, killed)
        store.close()
    assert (killed / "run.sqlite-wal").stat().st_size > 0
    (killed / "run.sqlite-shm").unlink(missing_ok=True)
    real = store_file.opened

    def on_a_read_only_disk(path: Path, how: str) -> sqlite3.Connection:
        if how == "mode=ro":
            with closing(sqlite3.connect(f"file:{tmp_path / 'no' / 'such'}?mode=ro", uri=True)) as db:
                db.execute("SELECT 1 FROM sqlite_master")
        return real(path, how)

    monkeypatch.setattr(store_file, "opened", on_a_read_only_disk)
    assert Run(killed).events["text"].tolist()[-1] == "only in the log"
    assert verify(killed) == []


def test_a_folder_that_cannot_be_made_or_written_is_named(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("not a folder")
    for place in (tmp_path / "file" / "r", tmp_path / "file"):
        assert main(["run", *WORDS, "--quiet", "--out", str(place)]) == 2
        said = capsys.readouterr().err
        assert f"cannot write to {place}" in said and "hint: choose a folder" in said
        assert "space" not in said and "Traceback" not in said
    assert main(["show", str(tmp_path / "file")]) == 2


def test_a_comparison_whose_folder_cannot_be_written_says_so(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("not a folder")
    words = ["compare", *WORDS[1:], "--methods", "finetune", "--jobs", "1", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "file")]) == 2
    assert "cannot write to" in capsys.readouterr().err


def test_a_comparison_waits_for_a_run_that_another_process_is_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, waits = tmp_path / "r", list[float]()
    folder.mkdir()
    lock = FileLock(folder / "lock")
    lock.acquire()

    def let_go(seconds: float) -> None:
        waits.append(seconds)
        lock.release()

    monkeypatch.setattr(jobs, "time", SimpleNamespace(sleep=let_go))
    ended = jobs.perform_one(jobs.Job("one", read(words=WORDS), folder), tmp_path, lambda event: None)
    assert len(waits) == 1 and not ended.failure and Run(folder).facts["status"] == "done"


@pytest.mark.long
def test_two_comparisons_at_once_show_the_same_finished_table(tmp_path: Path) -> None:
    words = ["compare", *WORDS[1:], "train.rounds=40", "--methods", "finetune,ditto", "--jobs", "1", "--json"]
    command = [sys.executable, "-m", "motet.cli.main", *words, "--quiet", "--out", str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1] and "not finished" not in said[0]
