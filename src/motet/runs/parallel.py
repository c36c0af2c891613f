"""Many runs, several at a time, each in a worker process that stays for the next one.

A failed run does not stop the others. A stop lets every run end its round; all are saved. A worker that dies
fails its own run, and another one takes its place.
Knows jobs and processes. Does not know what is compared, nor how progress is shown.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from motet.engines.cores import cores
from motet.errors import Stopped
from motet.runs.build import resolve
from motet.runs.jobs import Event, Job, Outcome, perform_one
from motet.runs.recipe import Recipe
from motet.runs.run import NoProgress, interruptible
from motet.runs.worker_process import WorkerProcess
from motet.trusted_code import trusted_names

FOLLOWS = "it comes after"  # how the failure of a run begins that another's failure prevented
AtOnce = (
    int | str
)  # so many runs at a time, or "ray": as many as a Ray cluster has CPUs; "ray:ADDRESS" names it
_PAUSE = 0.2  # seconds between two looks at whether somebody pressed Ctrl-C


class AnyProcess(Protocol):
    """A worker process, on this machine or another."""

    @property
    def answers(self) -> Iterable[str]: ...
    @property
    def errors(self) -> Iterable[str]: ...
    def send(self, line: str) -> None: ...
    def close(self) -> None: ...
    def code(self) -> int: ...


class Watch:
    """What many runs call while they train; this one shows nothing."""

    def on_begin(self, jobs: Sequence[Job]) -> None:
        """Before the first run."""

    def on_event(self, job: Job, event: Event) -> None:
        """A run started, or ended a round."""

    def on_end(self, outcome: Outcome) -> None:
        """A run ended, was read, or failed."""

    def say(self, text: str) -> None:
        """A line for people."""


def perform(
    jobs: Sequence[Job],
    base: str | Path = "runs",
    at_once: AtOnce = 1,
    watch: Watch | None = None,
    fresh: bool = False,
) -> list[Outcome]:
    """Do all that is not done yet, in folders of `base`; how each ended, in the order given."""
    watch, ended = watch or Watch(), dict[str, Outcome]()
    several = isinstance(at_once, str) or (at_once > 1 and len(jobs) > 1)
    elsewhere = [j for j in jobs if several and not j.only_here]
    watch.on_begin(jobs)
    if elsewhere:
        ended |= pool_for(elsewhere, base, at_once, watch, fresh).work()
    here = [j for j in jobs if j.name not in ended]
    if several and len(here) > 1:
        watch.say(
            "code of a notebook or script is known in this process alone: its runs go one after another"
        )
    for job in here:
        report = partial(watch.on_event, job)
        ended[job.name] = blocked(job, ended) or perform_one(job, base, report, fresh=fresh)
        if ended[job.name].stopped:
            raise Stopped(f"stopped, with {count(ended)} of {len(jobs)} runs done")
        watch.on_end(ended[job.name])
    return [ended[job.name] for job in jobs]


def pool_for(jobs: Sequence[Job], base: str | Path, at_once: AtOnce, watch: Watch, fresh: bool) -> WorkerPool:
    if isinstance(at_once, int):
        return WorkerPool(jobs, base, min(at_once, len(jobs)), watch, fresh)
    from motet.runs.cluster_pool import ClusterPool

    return ClusterPool(jobs, base, at_once, watch, fresh)


def count(ended: dict[str, Outcome]) -> int:
    return sum(not e.failure and not e.stopped for e in ended.values())


def blocked(job: Job, ended: dict[str, Outcome]) -> Outcome | None:
    """A failure, if a run that this one comes after has failed."""
    failed = [name for name in job.after if ended[name].failure]
    return Outcome(job, job.folder, f"{FOLLOWS} {', '.join(failed)}, which failed") if failed else None


def default_jobs(recipe: Recipe) -> int:
    """Runs that use one core each go side by side; runs on threads use all cores by themselves, others a whole GPU."""
    choice = resolve(recipe).choice
    return 1 if choice.name == "threads" or choice.device != "cpu" else cores()


class WorkerPool:
    """Hands out jobs to worker processes."""

    def __init__(
        self, jobs: Sequence[Job], base: str | Path, at_once: int, watch: Watch, fresh: bool
    ) -> None:
        self.todo, self.total = deque(jobs), len(jobs)
        self.base, self.at_once, self.watch, self.fresh = base, at_once, watch, fresh
        self.workers: list[Hired] = []
        self.ended: dict[str, Outcome] = {}
        self.events: SimpleQueue[tuple[Hired, Event]] = SimpleQueue()

    def work(self) -> dict[str, Outcome]:
        try:
            with interruptible(NoProgress()) as stopping:
                while self.todo or any(w.job for w in self.workers):
                    if stopping.asked:
                        self.stop()
                    self.assign()
                    self.take_next()
        finally:
            for worker in self.workers:
                worker.process.close()
                worker.process.code()
        if stopping.asked:
            raise Stopped(f"stopped, with {count(self.ended)} of {self.total} runs done")
        return self.ended

    def assign(self) -> None:
        """Give every free worker a job that can start."""
        for job in [j for j in self.todo if all(name in self.ended for name in j.after)]:
            if failed := blocked(job, self.ended):
                self.todo.remove(job)
                self.end(failed)
                continue
            worker = self.free_worker()
            if worker is None:
                return
            self.todo.remove(job)
            worker.start(job, self.base, self.anew(job))

    def anew(self, job: Job) -> bool:
        """Whether what the job's folder holds is to be deleted."""
        return self.fresh

    def free_worker(self) -> Hired | None:
        """A worker without a job, or a new one if there may be more."""
        for worker in self.workers:
            if worker.job is None:
                return worker
        if len(self.workers) == self.at_once:
            return None
        self.workers.append(Hired(self.events, WorkerProcess(max(1, cores() // self.at_once))))
        return self.workers[-1]

    def take_next(self) -> None:
        try:
            worker, event = self.events.get(timeout=_PAUSE)
        except Empty:
            return
        job, kind = worker.job, event["event"]
        if kind == "said":
            self.watch.say(event["text"])
        elif kind == "died":
            self.workers.remove(worker)
            if job:
                self.lose(worker, job)
        elif kind == "end" and job:
            worker.job = None
            where = Path(event["folder"]) if event["folder"] else None
            how: dict[str, Any] = {k: event[k] for k in ("failure", "read", "stopped", "damaged")}
            self.end(Outcome(job, where, **how))
        elif job:
            worker.folder = Path(event.get("folder", worker.folder or ""))
            self.watch.on_event(job, event)

    def lose(self, worker: Hired, job: Job) -> None:
        """A worker died while it had a job."""
        self.end(Outcome(job, worker.folder, worker.last_words()))

    def end(self, ended: Outcome) -> None:
        self.ended[ended.job.name] = ended
        self.watch.on_end(ended)

    def stop(self) -> None:
        """Let every run end its round, and begin no other."""
        self.todo.clear()
        for worker in self.workers:
            worker.send({"stop": True})


class Hired:
    """A worker, and the job that it has. Ctrl-C in the terminal does not reach it: this process tells it to stop."""

    def __init__(self, events: SimpleQueue[tuple[Hired, Event]], process: AnyProcess) -> None:
        self.job: Job | None = None
        self.folder: Path | None = None
        self.said: deque[str] = deque(maxlen=5)
        self.process = process
        for stream, read in (
            (self.process.answers, self.read_answers),
            (self.process.errors, self.read_errors),
        ):
            threading.Thread(target=read, args=(stream, events), daemon=True).start()

    def read_answers(self, stream: Iterable[str], events: SimpleQueue[tuple[Hired, Event]]) -> None:
        for line in stream:
            events.put((self, json.loads(line)))
        events.put((self, {"event": "died"}))

    def read_errors(self, stream: Iterable[str], events: SimpleQueue[tuple[Hired, Event]]) -> None:
        """Warnings, and what code of the user's own prints."""
        for line in stream:
            if line.strip():
                self.said.append(line.rstrip())
                events.put((self, {"event": "said", "text": line.rstrip()}))

    def start(self, job: Job, base: str | Path, fresh: bool) -> None:
        self.job, self.folder = job, None
        self.send(
            {
                "name": job.name, "settings": job.recipe.settings, "folder": str(job.folder or ""),
                "upto": job.upto, "base": str(base), "fresh": fresh, "trusted": trusted_names(),
            }
        )  # fmt: skip

    def send(self, order: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # it died, which is told as an event
            self.process.send(json.dumps(order) + "\n")

    def last_words(self) -> str:
        """Why the process ended, as far as it can be known."""
        code = self.process.code()
        if code == -9:
            return "its process was killed (signal 9); was there too little memory?\nhint: a smaller --jobs"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"its process {how}" + (f": {self.said[-1]}" if self.said else "")
