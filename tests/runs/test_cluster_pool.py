"""Whole runs on a Ray cluster: a lost worker loses no run, and machines that see other folders are refused."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter, deque
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from motet.cli.main import main
from motet.errors import RunError
from motet.runs import cluster, cluster_pool, cluster_worker
from motet.runs import recipe as recipes
from motet.runs.cluster_pool import ClusterPool
from motet.runs.compare_runs import differences
from motet.runs.jobs import Job
from motet.runs.parallel import Watch, perform
from motet.runs.run import run
from motet.runs.store import Store
from two_nodes import two_nodes

pytestmark = pytest.mark.xdist_group("ray")
MOTET = [sys.executable, "-P", "-c", "from motet.cli.main import main; raise SystemExit(main())"]


def job(seed: int, rounds: int = 30) -> Job:
    words = ["method=ditto", "data=wine", "data.clients=3", "train.patience=0", "save.checkpoint=0"]
    return Job(f"seed {seed}", recipes.read(words=[*words, f"train.rounds={rounds}", f"seed={seed}"]))


def its_actor(process: Any) -> int:
    return two_nodes().process_of(process)


def itself(process: Any) -> int:
    """The process that computes; the actor that started it stays."""
    return int(psutil.Process(its_actor(process)).children()[0].pid)


class KillsOnce(Watch):
    """Kills the worker of the first run that ends a round from some round on."""

    def __init__(self, after: int = 0, whom: Any = its_actor) -> None:
        self.pool: ClusterPool | None = None
        self.after, self.whom = after, whom
        self.lines: list[str] = []

    def on_event(self, job: Job, event: dict[str, Any]) -> None:
        if self.pool and event["event"] == "round" and event["round"] >= self.after:
            process = next(w for w in self.pool.workers if w.job is job).process
            self.pool = None
            os.kill(self.whom(process), signal.SIGKILL)

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


def test_a_worker_that_is_started_later_is_looked_at_like_the_machines_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine may have joined the cluster after the study began."""
    two_nodes().fill()
    pool = ClusterPool([job(0)], tmp_path, "ray", Watch(), fresh=False)
    monkeypatch.setattr(cluster, "facts_here", lambda: {"torch": "0.0.1"})
    with pytest.raises(RunError, match="process was started, differs from this one: torch is"):
        pool.work()
    assert list(tmp_path.iterdir()) == []


def test_what_is_to_be_fresh_is_deleted_once() -> None:
    """A worker that is lost before it began has deleted nothing; one that is lost later has."""
    pool, one = object.__new__(ClusterPool), job(0)
    pool.fresh, pool.begun, pool.losses, pool.todo, pool.watch = True, set(), Counter(), deque(), Watch()
    found = [pool.anew(one)]
    for folder in (None, Path("runs/x")):
        worker: Any = SimpleNamespace(process=SimpleNamespace(close=lambda: None), folder=folder, said=[])
        pool.lose(worker, one)
        found.append(pool.anew(one))
    assert found == [True, True, False] and list(pool.todo) == [one, one]


@pytest.mark.long
def test_a_run_that_is_to_be_fresh_is_not_begun_again_when_its_worker_is_lost(tmp_path: Path) -> None:
    two_nodes().fill()
    jobs, watch = [job(0, rounds=300)], KillsOnce()
    run(jobs[0].recipe, tmp_path / "before")
    jobs = [replace(jobs[0], folder=tmp_path / "before")]
    watch.pool = ClusterPool(jobs, tmp_path, "ray", watch, fresh=True)
    (ended,) = watch.pool.work().values()
    assert not ended.failure and not ended.read and ended.folder
    assert any("goes on from the last checkpoint" in line for line in watch.lines)
    with closing(Store(ended.folder)) as store:
        assert "resumed" in set(store.frame("events")["kind"])


_draw = random.Random(23)
KILLS = [(place, _draw.randrange(100), _draw.choice([its_actor, itself])) for place in range(6)]
"""6 of the 20 kills on a cluster; the other 14 are those of clients' processes (tests/engines/test_ray.py)."""


@pytest.mark.long
@pytest.mark.parametrize(("seed", "after", "whom"), KILLS)
def test_a_worker_lost_at_a_random_moment_changes_no_bit(
    seed: int, after: int, whom: Any, tmp_path: Path
) -> None:
    two_nodes().fill()
    jobs, watch = [job(seed, rounds=300)], KillsOnce(after, whom)
    watch.pool = ClusterPool(jobs, tmp_path / "there", "ray", watch, fresh=False)
    ended = watch.pool.work()[jobs[0].name]
    assert not ended.failure and ended.folder
    assert any("goes on from the last checkpoint" in line for line in watch.lines)
    here = run(jobs[0].recipe, base=tmp_path / "here")
    with closing(Store(ended.folder)) as before, closing(Store(here.folder)) as after_it:
        assert differences(before, after_it) == []
        assert "resumed" in set(before.frame("events")["kind"])


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


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (["data=nowhere"], "nowhere"),
        (["data=wine", "method.lrr=1"], "lrr"),
        (["data=wine", "--grid", "x"], "x"),
    ],
)
def test_a_wrong_study_fails_before_a_cluster_is_asked_for_anything(
    given: list[str],
    wrong: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(cluster_worker, "connect", lambda address, cpus: asked.append(address))
    assert main(["compare", *given, "--jobs", "ray", "--out", str(tmp_path / "out")]) != 0
    assert wrong in capsys.readouterr().err
    assert asked == [] and not (tmp_path / "out").exists()


KILLED = [
    "compare",
    "data=wine",
    "data.clients=3",
    "--methods",
    "fedavg,ditto",
    "train.rounds=20",
    "--seeds",
    "0-3",
]


@pytest.mark.long
def test_a_study_on_a_cluster_that_was_killed_goes_on_and_repeats_no_finished_run(tmp_path: Path) -> None:
    """The command is killed, and with it its workers, when three of twelve runs are done."""
    two_nodes().fill()
    command = [*MOTET, *KILLED, "--jobs", f"ray:{two_nodes().machines.address}", "--out", str(tmp_path)]

    def done() -> dict[str, float]:
        """When the tables of runs that are done were written."""
        found = [f for f in tmp_path.glob("*/rounds.parquet") if cluster.is_done(f.parent)]
        return {f.parent.name: f.stat().st_mtime for f in found}

    killed = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(before := done()) < 3:
        assert killed.poll() is None
    killed.kill()
    killed.wait()
    assert len(before) < 12
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    after = done()
    assert len(after) == 12 and after | before == after


def test_lines_about_rounds_are_passed_on_together_and_others_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_worker, "COMMAND", (sys.executable, "-c", "input()"))
    monkeypatch.setattr(cluster_worker, "_LOOK", 1000.0)  # nothing here may wait for its end
    actor = cluster_worker.JobActor(cluster_worker.surroundings())
    told = [json.dumps({"event": kind, "round": 1}) + "\n" for kind in ("start", "round", "round", "end")]
    for line in told[:1]:
        actor.said["answers"].put(line)
    assert actor.lines("answers") == told[:1]
    for line in told[1:]:
        actor.said["answers"].put(line)
    assert actor.lines("answers") == told[1:]
    actor.send("done\n")  # the process ends, and so do its lines
    assert actor.lines("answers") is None and actor.lines("errors") is None
