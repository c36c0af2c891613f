"""Whole runs of a study on a Ray cluster: a worker process for each CPU, wherever it is.

A worker that is lost, alone or with its machine, does not fail its run: another one goes on from the run's last
checkpoint. Runs are written into one folder that all machines see; so are data that a path names.
Knows jobs and a cluster. Does not know what is compared.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from motet.engines.ray_cluster import Cluster, Lost
from motet.errors import RunError
from motet.runs.cluster import check_process, check_versions
from motet.runs.cluster_worker import ClusterProcess, joined
from motet.runs.jobs import Job, Outcome
from motet.runs.parallel import Hired, Watch, WorkerPool

_AGAIN = 3  # times that a run may lose its worker
_READY = 90.0  # seconds in which the first worker must be there


class ClusterPool(WorkerPool):
    """Hands out jobs to worker processes on a cluster."""

    def __init__(self, jobs: Sequence[Job], base: str | Path, where: str, watch: Watch, fresh: bool) -> None:
        base = Path(base).absolute()
        self.cluster = joined(where)
        super().__init__(jobs, base, self.cluster.cpus(), watch, fresh)
        many = min(self.at_once, len(jobs))
        self.coming = [ClusterProcess(self.cluster) for _ in range(many)]  # they load libraries meanwhile
        self.paths = paths_of(jobs)
        try:
            check_versions(self.cluster)
            check_folders(self.cluster, base, self.paths)
        except BaseException:
            self.close_coming()
            raise
        self.losses: Counter[str] = Counter()
        self.begun: set[str] = set()  # names of jobs whose worker was lost after it had begun
        self.since = time.monotonic()

    def free_worker(self) -> Hired | None:
        """As with processes of this machine; a new one gets a job when its machine has started it."""
        for worker in self.workers:
            if worker.job is None:
                return worker
        self.at_once = self.cluster.cpus()
        if len(self.workers) + len(self.coming) < min(self.at_once, len(self.todo) + len(self.workers)):
            self.coming.append(ClusterProcess(self.cluster))
        return self.arrived()

    def arrived(self) -> Hired | None:
        """A worker that has become ready."""
        there = self.cluster.wait([p.ready for p in self.coming], 0) if self.coming else []
        for process in [p for p in self.coming if p.ready in there]:
            self.coming.remove(process)
            if self.admitted(process):
                self.workers.append(Hired(self.events, process))
                return self.workers[-1]
        if self.workers:
            self.since = time.monotonic()
        elif time.monotonic() - self.since > _READY:
            raise RunError(
                f"the cluster started no worker in {_READY:g} seconds; are its CPUs in use, or its machines gone?\n"
                "hint: ray status shows what is free; the same command goes on with the runs that are not done"
            )
        return None

    def admitted(self, process: ClusterProcess) -> bool:
        """Whether it is there still. Its machine may have joined the cluster after the others were looked at."""
        try:
            check_process(self.cluster, False, process)
            with marked(Path(self.base)) as mark:
                missing = process.result_of(looking(), [mark, *self.paths])
            refuse_missing("a machine of the cluster, on which a worker was started,", missing, mark)
        except Lost:
            return False
        except BaseException:
            process.close()
            raise
        return True

    def anew(self, job: Job) -> bool:
        """Once only: whoever takes over a run goes on with it."""
        return self.fresh and job.name not in self.begun

    def lose(self, worker: Hired, job: Job) -> None:
        worker.process.close()
        if worker.folder:  # it says so as it begins
            self.begun.add(job.name)
        self.losses[job.name] += 1
        if self.losses[job.name] > _AGAIN:
            said = f"; the last one said: {worker.said[-1]}" if worker.said else ""
            self.end(Outcome(job, worker.folder, f"{_AGAIN + 1} workers of the cluster died of it{said}"))
            return
        self.watch.say(f"{job.name}: its worker was lost; another one goes on from the last checkpoint")
        self.todo.appendleft(job)

    def work(self) -> dict[str, Outcome]:
        try:
            return super().work()
        finally:
            self.close_coming()

    def close_coming(self) -> None:
        for process in self.coming:
            process.close()


# ---- folders that all machines must see ----


def paths_of(jobs: Sequence[Job]) -> list[str]:
    """The current folder, motet's data, and data that recipes name by a path."""
    named = {str(Path(job.recipe["data"]["name"]).absolute()) for job in jobs}
    folders = [os.environ[k] for k in ("MOTET_DATA", "MOTET_CACHE") if k in os.environ]
    return [os.getcwd(), *folders, *sorted(p for p in named if os.path.exists(p))]


def looking() -> Callable[[list[str]], list[str]]:
    """A function that says which paths are not there; it is sent as it is."""

    def missing(paths: list[str]) -> list[str]:
        import os

        return [p for p in paths if not os.path.exists(p)]

    missing.__module__ = "__main__"
    return missing


def check_folders(cluster: Cluster, base: Path, paths: Sequence[str]) -> None:
    """Refuse, before any run begins, machines that do not see the folder of the runs, or the data."""
    with marked(base) as mark:
        for node, missing in cluster.on_every_node(looking(), [mark, *paths]).items():
            refuse_missing(f"the machine {node} of the cluster", missing, mark)


@contextmanager
def marked(base: Path) -> Iterator[str]:
    """A new file in the folder of the runs, while somebody looks whether it is there."""
    there = base.exists()
    base.mkdir(parents=True, exist_ok=True)
    mark = base / f".seen-{secrets.token_hex(8)}"
    mark.touch()
    try:
        yield str(mark)
    finally:
        mark.unlink()
        if not there and not any(base.iterdir()):
            base.rmdir()


def refuse_missing(where: str, missing: Sequence[str], mark: str) -> None:
    if missing:
        what = f"the folder of the runs, {Path(mark).parent}" if mark in missing else missing[0]
        raise RunError(
            f"{where} does not see {what}.\n"
            "hint: whole runs need one folder that all machines share, for runs (--out) and for data; "
            "engine.name=ray needs none: this machine sends the rows"
        )
