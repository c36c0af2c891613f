"""Many runs in worker processes: failures and deaths stay with their run; stops and kills lose nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from motet.cli.main import main
from motet.errors import Damaged
from motet.runs import recipe as recipes
from motet.runs.jobs import Job
from motet.runs.parallel import Watch, perform
from motet.runs.run import Run

ODD = '''
"""Methods that go wrong."""
import os, signal
from motet import methods

class Kills(methods.FedAvg):
    """Its process is killed, as by the system when memory runs out."""
    def round(self, w, turn):
        os.kill(os.getpid(), signal.SIGKILL)

class Raises(methods.FedAvg):
    """A bug in its round."""
    def round(self, w, turn):
        print("about to fail")
        raise KeyError("nothing here")
'''


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "odd_methods_of_a_test.py").write_text(ODD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(method: str, name: str = "", **more: Any) -> Job:
    words = [f"method={method}", "data=wine", "data.clients=3", "train.rounds=2", "engine.name=loop"]
    return Job(name or method.rpartition(":")[2], recipes.read(words=words), **more)


class Heard(Watch):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.rounds: list[tuple[str, int]] = []

    def on_event(self, job: Job, event: dict[str, Any]) -> None:
        if event["event"] == "round":
            self.rounds.append((job.name, event["round"]))

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_a_worker_that_dies_or_a_bug_fails_its_run_and_the_others_go_on(odd: Path) -> None:
    jobs = [
        job("odd_methods_of_a_test:Kills"), job("fedavg"), job("odd_methods_of_a_test:Raises"), job("local"),
        job("ditto", after=("Raises",)), job("fedprox", after=("fedavg",)),
    ]  # fmt: skip
    heard = Heard()
    kills, fedavg, raises, local, ditto, fedprox = perform(jobs, odd / "runs", 2, heard)
    assert "killed (signal 9)" in kills.failure and kills.held
    assert "KeyError: 'nothing here'\nodd_methods_of_a_test.py:" in raises.failure
    assert "about to fail" in heard.lines
    assert ditto.failure == "it comes after Raises, which failed"
    for fine in (fedavg, local, fedprox):
        assert not fine.failure and fine.folder and Run(fine.folder).facts["status"] == "done"
    assert [r for name, r in heard.rounds if name == "local"] == [0, 1]


def test_a_run_in_a_worker_is_the_run_of_this_process(tmp_path: Path) -> None:
    here = perform([job("ditto")], tmp_path / "here")
    there = perform([job("ditto"), job("local")], tmp_path / "there", 2)
    again = perform([job("ditto"), job("local")], tmp_path / "there")
    a, b = (Run(found[0].folder or "").scores for found in (here, there))
    assert a.equals(b) and [o.read for o in (*there, *again)] == [False, False, True, True]


def start(out: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "motet.cli.main", "compare", "data=wine", "data.clients=3"]
    return subprocess.Popen(
        [*command, "--jobs", "2", "--out", str(out), *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


def until(process: subprocess.Popen[str], mark: str) -> None:
    assert process.stderr
    for line in process.stderr:
        if line.startswith(mark):
            return
    raise AssertionError(f"it never said {mark!r}")


STUDY = ("--methods", "fedavg,ditto", "--seeds", "0-1", "train.rounds=30", "engine.name=loop")


def is_done(folder: Path) -> bool:
    """Not of a run that was killed before its file had tables."""
    try:
        return Run(folder).facts.get("status") == "done"
    except Damaged:
        return False


def test_a_study_that_is_killed_and_started_again_repeats_no_finished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = start(tmp_path, *STUDY)
    until(killed, "[2/6]")
    killed.kill()
    killed.wait()
    done = [f.name for f in tmp_path.glob("wine-*") if is_done(f)]
    assert (
        main(["compare", "data=wine", "data.clients=3", "--jobs", "2", "--out", str(tmp_path), *STUDY]) == 0
    )
    said = capsys.readouterr().err.splitlines()
    read = [line for line in said if "not run again" in line]
    assert len(done) >= 2 and all(any(f"{name}, not run again" in line for line in read) for name in done)
    assert len(read) < 6 and sum(line.startswith("[") for line in said) == 6


def test_ctrl_c_lets_all_runs_end_their_round_and_saves_them(tmp_path: Path) -> None:
    running = start(tmp_path, "--methods", "fedavg", "train.rounds=1000000", "engine.name=loop")
    until(running, "engine")
    running.send_signal(signal.SIGINT)
    _, said = running.communicate()
    assert running.returncode == 130 and "the same command continues" in said
    events = [text for f in tmp_path.glob("wine-*") for text in Run(f).events["kind"]]
    assert "stopped" in events and "failed" not in events


def test_a_failed_run_is_shown_once_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data=wine", "data.clients=3", "train.rounds=1", "--methods", "fedrecon", "--seeds", "0-2"]
    assert main(["compare", *words, "--jobs", "1", "--quiet", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.err.count("this network is all head") == 1 and "local" in said.out
