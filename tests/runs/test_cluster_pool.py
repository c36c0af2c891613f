"""Whole runs on a Ray cluster: a lost worker loses no run, and machines that see other folders are refused."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from motet.cli.main import main
from motet.errors import RunError
from motet.runs import cluster, cluster_pool
from motet.runs import recipe as recipes
from motet.runs.cluster_pool import ClusterPool
from motet.runs.compare_runs import differences
from motet.runs.jobs import Job
from motet.runs.parallel import Watch, perform
from motet.runs.run import run
from motet.runs.store import Store
from two_nodes import two_nodes

pytestmark = pytest.mark.xdist_group("ray")


def job(seed: int) -> Job:
    words = [
        "method=ditto",
        "data=wine",
        "data.clients=3",
        "train.rounds=30",
        "train.patience=0",
        f"seed={seed}",
    ]
    return Job(f"seed {seed}", recipes.read(words=words))


class KillsOnce(Watch):
    """Kills the worker of the first run that ends a round, and counts who is read."""

    def __init__(self) -> None:
        self.pool: ClusterPool | None = None
        self.lines: list[str] = []

    def on_event(self, job: Job, event: dict[str, Any]) -> None:
        if self.pool and event["event"] == "round":
            process: Any = next(w for w in self.pool.workers if w.job is job).process
            self.pool = None
            os.kill(two_nodes().cluster.get(process.ready), signal.SIGKILL)

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_a_lost_worker_loses_no_run_and_what_is_done_is_not_repeated(tmp_path: Path) -> None:
    two_nodes().fill()
    jobs, watch = [job(0), job(1)], KillsOnce()
    watch.pool = ClusterPool(jobs, tmp_path / "there", "ray", watch, fresh=False)
    ended = watch.pool.work()
    assert [e.failure for e in ended.values()] == ["", ""]
    assert any("goes on from the last checkpoint" in line for line in watch.lines)
    here = run(jobs[1].recipe, base=tmp_path / "here")
    folder = ended["seed 1"].folder
    assert folder
    with closing(Store(folder)) as before, closing(Store(here.folder)) as after:
        assert differences(before, after) == []
    assert all(e.read for e in perform(jobs, tmp_path / "there"))


def test_a_machine_that_does_not_see_the_folder_is_refused_before_a_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_nodes().fill()
    monkeypatch.setattr(cluster_pool, "looking", elsewhere)
    with pytest.raises(
        RunError, match="does not see the folder of the runs.*\nhint: whole runs need one folder"
    ):
        perform([job(0)], tmp_path / "out", "ray")
    assert not (tmp_path / "out").exists()


def elsewhere() -> Any:
    """A machine that has none of the folders."""

    def missing(paths: list[str]) -> list[str]:
        return paths

    missing.__module__ = "__main__"
    return missing


@pytest.mark.parametrize("name", ["motet", "torch", "python"])
def test_another_version_on_a_machine_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    two_nodes().fill()
    here = cluster.facts_here()
    monkeypatch.setattr(cluster, "facts_here", lambda: here | {name: "0.0.1"})
    with pytest.raises(RunError, match=f"differs from this one: {name} is .*, and here it is 0.0.1"):
        cluster.check_versions(two_nodes().cluster)


def test_bad_numbers_of_jobs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "data=wine", "--jobs", "rai"])
    assert "expected a whole number, 1 or more, or ray" in capsys.readouterr().err
