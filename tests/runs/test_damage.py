"""Damaged files: a flipped byte or a cut never becomes another number, nor a traceback."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from motet.cli.main import main
from motet.errors import Damaged
from motet.runs.compare_runs import differences
from motet.runs.export import export
from motet.runs.recipe import read
from motet.runs.run import NoProgress, Run, Stopped, run, verify
from motet.runs.store import Store
from motet.runs.trainer import Trainer
from rewritten import rewritten, without_checksums

WORDS = [
    "method=ditto",
    "data=wine",
    "data.clients=4",
    "train.rounds=5",
    "engine.name=loop",
    "save.checkpoint=0",
]
Capture = pytest.CaptureFixture[str]


class StopAfter(NoProgress):
    def __init__(self, rounds: int) -> None:
        self.left = rounds + 1

    def should_stop(self) -> bool:
        self.left -= 1
        return self.left == 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(read(words=WORDS), tmp_path_factory.mktemp("runs") / "finished").folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.raises(Stopped):
        run(read(words=WORDS), folder, StopAfter(3))
    return folder


class CopyAfter(NoProgress):
    """Copies the run's folder while the run has it open: what a kill would leave, with SQLite's log."""

    def __init__(self, folder: Path, to: Path) -> None:
        self.folder, self.to = folder, to

    def on_round(self, trainer: Trainer, seconds: float) -> None:
        if trainer.number == 2:
            shutil.copytree(self.folder, self.to)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run(read(words=WORDS), folder / "r", CopyAfter(folder / "r", folder / "killed"))
    assert (folder / "killed" / "run.sqlite-wal").stat().st_size > 0
    return folder / "killed"


def flip(file: Path, draw: random.Random) -> None:
    """Change one byte, anywhere: half of the time one bit of it."""
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= draw.choice([1 << draw.randrange(8), draw.randrange(1, 256)])
    file.write_bytes(content)


def cut(file: Path, draw: random.Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: draw.randrange(len(content))])


def said(capsys: Capture, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command; a traceback would be an exception here."""
    code = main(words)
    out, err = capsys.readouterr()
    assert code in (0, 1, 2), err
    assert "Traceback" not in err and "free some space" not in err
    return code, out, err


def shown(folder: Path, capsys: Capture, form: str = "csv") -> list[tuple[int, str, str]]:
    """What the commands that read a run say of it; its report as a page takes a second."""
    page = folder.parent / f"report.{form}"
    page.unlink(missing_ok=True)
    commands = [["show", str(folder)], ["show", str(folder), "--clients"]]
    found = [said(capsys, *words) for words in commands]
    code, _, err = said(capsys, "report", str(folder), "--to", str(page))
    text = page.read_text() if code == 0 else ""
    return [*found, (code, text.replace(str(folder), ""), err)]


def right_or_named(
    folder: Path, before: list[tuple[int, str, str]], capsys: Capture, form: str = "csv"
) -> int:
    """Each command says what it said of the whole run, or that the file is damaged; how often the latter."""
    many = 0
    for (code, out, err), (_, same, _) in zip(shown(folder, capsys, form), before, strict=True):
        if code == 0:
            assert out == same
        else:
            assert code == 2 and str(folder) in err and ("damaged" in err or "cannot read" in err), err
            many += 1
    return many


def flips_in_a_finished_run(finished: Path, folder: Path, seeds: range, capsys: Capture, form: str) -> int:
    shutil.copytree(finished, folder)
    before, found = shown(folder, capsys, form), 0
    for seed in seeds:
        shutil.copyfile(finished / "run.sqlite", folder / "run.sqlite")
        flip(folder / "run.sqlite", random.Random(seed))
        found += right_or_named(folder, before, capsys, form) > 0
    return found


def flips_in_a_stopped_run(
    stopped: Path, finished: Path, folder: Path, seeds: range, capsys: Capture, name: str = "run.sqlite"
) -> int:
    """The run goes on to the bits of the undisturbed one, or says that it cannot."""
    found = 0
    for seed in seeds:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(stopped, folder)
        flip(folder / name, random.Random(seed))
        code, _, err = said(capsys, "run", *WORDS, "--quiet", "--out", str(folder))
        if code == 0:
            with_all = Store(folder)
            assert differences(Store(finished), with_all) == []
            with_all.check()
        else:
            assert code == 2 and "run.sqlite is damaged" in err, err
            found += 1
    return found


def test_flipped_bytes_in_a_finished_run_never_show_another_number(
    finished: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert flips_in_a_finished_run(finished, tmp_path / "r", range(20), capsys, "csv") > 0


def test_flipped_bytes_in_a_stopped_run_never_end_in_another_result(
    stopped: Path, finished: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert flips_in_a_stopped_run(stopped, finished, tmp_path / "r", range(12), capsys) > 0


@pytest.mark.parametrize("name", ["run.sqlite", "run.sqlite-wal", "run.sqlite-shm"])
def test_flipped_bytes_in_a_killed_run_never_end_in_another_result(
    killed: Path, finished: Path, tmp_path: Path, capsys: Capture, name: str
) -> None:
    flips_in_a_stopped_run(killed, finished, tmp_path / "r", range(3), capsys, name)


@pytest.mark.long
def test_two_hundred_flipped_bytes_of_each_kind(
    stopped: Path, finished: Path, tmp_path: Path, capsys: Capture
) -> None:
    shows = flips_in_a_finished_run(finished, tmp_path / "f", range(200), capsys, "html")
    stops = flips_in_a_stopped_run(stopped, finished, tmp_path / "s", range(200), capsys)
    with capsys.disabled():
        print(f"of 200 flips each, found: {shows} in the finished run, {stops} in the stopped one")


def test_a_file_that_was_cut_is_named(finished: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "r"
    shutil.copytree(finished, folder)
    before = shown(folder, capsys)
    for seed in range(8):
        shutil.copyfile(finished / "run.sqlite", folder / "run.sqlite")
        cut(folder / "run.sqlite", random.Random(seed))
        assert right_or_named(folder, before, capsys) == 3


@pytest.mark.parametrize("change", [flip, cut])
@pytest.mark.parametrize("name", ["predictions.parquet", "global.safetensors", "models/client-1.safetensors"])
def test_verify_names_the_damaged_file(
    finished: Path, tmp_path: Path, capsys: Capture, name: str, change: Callable[[Path, random.Random], None]
) -> None:
    folder = tmp_path / "r"
    shutil.copytree(finished, folder)
    change(folder / name, random.Random(3))
    code, out, _ = said(capsys, "verify", str(folder))
    assert code == 1 and f"{name}: is damaged" in out


def test_verify_refuses_a_damaged_database_before_it_runs_anything(
    finished: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = tmp_path / "r"
    shutil.copytree(finished, folder)
    with sqlite3.connect(folder / "run.sqlite") as db:
        db.execute("UPDATE states SET tree = zeroblob(length(tree))")
    code, _, err = said(capsys, "verify", str(folder))
    assert code == 2 and "run.sqlite is damaged: the server's state of round" in err and "hint:" in err


def test_predictions_that_were_damaged_are_not_used_in_a_report(
    finished: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder, alone = tmp_path / "r", tmp_path / "local"
    shutil.copytree(finished, folder)
    run(read(words=[*WORDS, "method=local"]), alone)
    words = ["report", str(folder), str(alone), "--to", str(tmp_path / "both.html")]
    assert said(capsys, *words)[0] == 0
    for seed in range(3):
        shutil.copyfile(finished / "predictions.parquet", folder / "predictions.parquet")
        flip(folder / "predictions.parquet", random.Random(seed))
        code, _, err = said(capsys, *words)
        assert code == 2 and "predictions.parquet is damaged" in err


@pytest.mark.parametrize("form", ["safetensors", "onnx"])
def test_a_flipped_byte_in_a_model_never_predicts(
    finished: Path, tmp_path: Path, capsys: Capture, form: str
) -> None:
    model, rows = export(finished, "client-1", form, tmp_path / f"m.{form}"), tmp_path / "rows.csv"
    whole = model.read_bytes()
    columns = Run(finished).model("client-1").columns
    rows.write_text(",".join(columns) + "\n" + ",".join("1.5" for _ in columns) + "\n")
    words = ["predict", str(rows), "--model", str(model)]
    _, right, _ = said(capsys, *words)
    for seed in range(25):
        model.write_bytes(whole)
        flip(model, random.Random(seed))
        code, out, err = said(capsys, *words)
        assert out == right if code == 0 else str(model) in err


def test_an_index_of_models_that_was_damaged_is_named(tmp_path: Path, capsys: Capture) -> None:
    folder = run(read(words=[*WORDS, "method=fedavg"]), tmp_path / "r").folder
    index = folder / "models" / "index.json"
    whole = index.read_bytes()
    name = next(n for n in ("client-0", "client-1") if not (folder / f"models/{n}.safetensors").exists())
    for seed in range(10):
        index.write_bytes(whole)
        flip(index, random.Random(seed))
        code, _, err = said(capsys, "export", str(folder), name, "--to", str(tmp_path / "m"))
        assert code == 2 and "index.json" in err


def test_rows_that_vanish_or_change_places_are_noticed(finished: Path, tmp_path: Path) -> None:
    """SQLite finds nothing wrong with such a file."""
    changes = {
        "scores of round 3": "DELETE FROM scores WHERE round = 2",
        "clients' traffic of round 2": "DELETE FROM traffic WHERE round = 1 AND client = 'client-0'",
        "facts of the run": "UPDATE meta SET value = (SELECT value FROM meta WHERE key = 'data') WHERE key = 'net'",
        "what clients keep": "DELETE FROM keeps WHERE client = 'client-2'",
        "events": "DELETE FROM events WHERE rowid = 1",
        "scores of round 4": "DELETE FROM checks WHERE part = 'scores' AND number = 3",
        "table of checksums is gone": "DROP TABLE checks",
    }
    for name, change in changes.items():
        folder = tmp_path / name[:6]
        shutil.copytree(finished, folder, dirs_exist_ok=True)
        with sqlite3.connect(folder / "run.sqlite") as db:
            db.execute(change)
        with pytest.raises(Damaged, match=name):
            verify(folder)
        with pytest.raises(Damaged, match=name):
            Store(folder, writing=True)


def test_a_header_that_forbids_writing_is_not_called_a_full_disk(
    stopped: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = tmp_path / "r"
    shutil.copytree(stopped, folder)
    content = bytearray((folder / "run.sqlite").read_bytes())
    content[18] = 3  # the version of SQLite that may write
    (folder / "run.sqlite").write_bytes(content)
    code, _, err = said(capsys, "run", *WORDS, "--quiet", "--out", str(folder))
    assert code == 2 and "run.sqlite is damaged" in err


def test_many_events_are_checked_in_groups(tmp_path: Path) -> None:
    store = Store(tmp_path, writing=True)
    for number in range(600):
        store.event("note", f"round {number}")
        if number % 100 == 0:
            store.commit()
    store.commit()
    store.close()
    assert len(Store(tmp_path).frame("events")) == 600
    with sqlite3.connect(tmp_path / "run.sqlite") as db:
        db.execute("UPDATE events SET text = 'round 5' WHERE text = 'round 4'")
    with pytest.raises(Damaged, match="events"):
        Store(tmp_path).frame("events")


def test_a_table_that_is_gone_is_noticed(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "r")
    with sqlite3.connect(tmp_path / "r" / "run.sqlite") as db:
        db.execute("DROP TABLE keeps")
    with pytest.raises(Damaged, match="the table keeps is gone"):
        Store(tmp_path / "r").check()


def test_what_a_client_kept_is_checked_when_a_run_on_disk_goes_on(tmp_path: Path, capsys: Capture) -> None:
    words, folder = [*WORDS, "engine.keep=disk"], tmp_path / "r"
    with pytest.raises(Stopped):
        run(read(words=words), folder, StopAfter(3))
    with sqlite3.connect(folder / "run.sqlite") as db:
        db.execute("UPDATE keeps SET tree = zeroblob(length(tree)) WHERE client = 'client-2'")
    code, _, err = said(capsys, "run", *words, "--quiet", "--out", str(folder))
    assert code == 2 and "what client client-2 kept after round" in err


def test_a_damaged_run_runs_anew_with_fresh(finished: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "r"
    shutil.copytree(finished, folder)
    (folder / "run.sqlite").write_bytes(b"no database at all")
    words = ["run", *WORDS, "--quiet", "--out", str(folder)]
    assert said(capsys, *words)[0] == 2
    assert said(capsys, *words, "--fresh")[0] == 0
    assert differences(Store(finished), Store(folder)) == []


def test_one_damaged_run_of_a_comparison_fails_and_the_others_are_shown(
    tmp_path: Path, capsys: Capture
) -> None:
    words = ["compare", *WORDS[1:], "--methods", "ditto", "--jobs", "1", "--quiet", "--out", str(tmp_path)]
    assert said(capsys, *words)[0] == 0
    (folder,) = tmp_path.glob("*ditto*")
    with sqlite3.connect(folder / "run.sqlite") as db:
        db.execute("DELETE FROM scores WHERE round = 2")
    code, out, err = said(capsys, *words)
    assert code == 1 and "local" in out and "scores of round 3" in out + err


# ---- runs of earlier versions ----


def test_a_run_without_checksums_is_read_and_verified(
    finished: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = tmp_path / "r"
    shutil.copytree(finished, folder)
    before = shown(folder, capsys)
    without_checksums(folder)
    assert [out for _, out, _ in shown(folder, capsys)] == [out for _, out, _ in before]
    assert verify(folder) == []


def test_a_run_without_checksums_goes_on_gets_them_and_says_so(
    stopped: Path, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "r"
    shutil.copytree(stopped, folder)
    without_checksums(folder)
    done = run(read(words=WORDS), folder)
    assert differences(Store(finished), Store(folder)) == []
    assert (done.events["kind"] == "unchecked").any()
    with sqlite3.connect(folder / "run.sqlite") as db:
        db.execute("UPDATE keeps SET tree = zeroblob(4) WHERE client = 'client-0'")
    with pytest.raises(Damaged, match="client-0"):
        verify(folder)


def test_changed_scores_with_fitting_checksums_are_found_by_running_again(
    finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "r"
    shutil.copytree(finished, folder)
    with rewritten(folder) as db:
        db.execute("UPDATE scores SET loss = loss + 1e-9 WHERE round = 2")
    assert verify(folder) == ["scores: 16 rows differ"]
