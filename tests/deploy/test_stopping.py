"""Waiting ends when it says: for a server that is down, for sites, and for runs that nobody drives."""

from __future__ import annotations

import time

import pytest
from filelock import FileLock

from motet.cli.main import main
from motet.deploy.demo import free_port
from motet.deploy.flare.admin import Unreachable
from motet.deploy.flare.all_kits import create
from motet.deploy.flare.kits import Kit, open_kit
from motet.deploy.server import status
from motet.deploy.server.job_chain import run_federated
from motet.deploy.server.run_files import CHAIN_LOCK, JobReport, make_order, note, read_note, read_report
from motet.runs.run import Stopped


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """Of a federation whose server is down."""
    folder = tmp_path_factory.mktemp("kits") / "care"
    create("care", "localhost", ["a", "b"], folder, free_port())
    return open_kit(folder / "server")


def test_patience_ends_while_the_server_is_down(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    assert main(["federation", "run", str(kit.folder), "--patience", "2", "train.rounds=2"]) == 2
    took = time.monotonic() - began
    assert "does not answer" in capsys.readouterr().err
    assert 2 <= took < 60, took  # a try to log in, with FLARE's own delays, is let end


def test_a_run_that_waits_for_the_server_is_stopped_by_its_note(kit: Kit) -> None:
    order = make_order("care", None, ["train.rounds=3"], 2, 0, 60.0)
    folder = kit.runs / order.run
    with pytest.raises(Stopped):
        run_federated(kit, order, lambda text: note(folder, "stop"), patience=600)
    assert read_report(folder).state == "stopped"


def test_stop_does_not_wait_for_runs_whose_processes_are_gone(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_PATIENCE", 0)
    for name, state in (("crashed", "agreeing"), ("driven", "running"), ("over", "done")):
        (kit.runs / name).mkdir(parents=True)
        JobReport(state).write(kit.runs / name)
    with FileLock(kit.runs / "driven" / CHAIN_LOCK):
        said = status.stop(kit).splitlines()
    assert "driven: running" in said and not any(line.startswith("over") for line in said)
    assert any(line.startswith("crashed: no process is at it any more") for line in said)
    assert read_note(kit.runs / "driven") == "stop" and read_note(kit.runs / "crashed") == ""


def test_stop_all_says_at_once_that_the_server_is_down(kit: Kit) -> None:
    (kit.runs / "gone").mkdir(parents=True)
    JobReport("starting").write(kit.runs / "gone")
    began = time.monotonic()
    with pytest.raises(Unreachable):
        status.stop(kit, everything=True)
    assert time.monotonic() - began < 60
