"""A run's processes on a Ray cluster: connected to, compared with this machine, and ended with the run.

All that can be wrong with a cluster is said before the run writes anything: nobody is there, a machine has another
motet, torch or Python, or has no place for the clients' rows, or lacks the method's code.
Knows recipes and clusters. Does not know how actors work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from motet.client import Batch, ClientData
from motet.client.population import sizes_of
from motet.client.step_library import compiler, version_of
from motet.core import Client
from motet.engines.choose import check_compiler
from motet.engines.cores import cores
from motet.engines.ray_cluster import Cluster, connect
from motet.errors import RunError
from motet.runs.build import Resolved
from motet.runs.store import FILE, Store
from motet.runs.versions import Facts, facts_here
from motet.trusted_code import check_trusted, cluster_name

if TYPE_CHECKING:
    from motet.engines.ray_crew import Crew

_ROW = 16  # bytes of a row besides its features
_LISTED = 20  # clients that an event names
_COPIES = 4  # of the weights that an object store has to hold at a time


@contextmanager
def on_cluster(resolved: Resolved, folder: Path, fresh: bool) -> Iterator[Resolved]:
    """The run with processes of a Ray cluster, if it wants them and is not done."""
    if resolved.choice.name != "ray" or (not fresh and is_done(folder)):
        yield resolved
        return
    with opened(resolved) as crew:
        yield replace(resolved, choice=replace(resolved.choice, crew=crew))


def is_done(folder: Path) -> bool:
    if not (folder / FILE).exists():
        return False
    with closing(Store(folder)) as store:
        return store.facts().get("status") == "done"


@contextmanager
def opened(resolved: Resolved) -> Iterator[Any]:
    """The processes that serve a run, while it lasts."""
    from motet.engines.ray_crew import Crew
    from motet.engines.ray_work import Inner

    e, choice = resolved.recipe.engine, resolved.choice
    if name := cluster_name(e.address):
        check_trusted(name)
    check_compiler(choice.compiled)
    cluster = connect(e.address, max(cores(), e.actors))
    check_versions(cluster, choice.compiled)
    check_object_stores(cluster, resolved)
    cpus = max(1, cluster.cpus())
    actors = e.actors or cpus
    inner = Inner(cast(Any, choice.inner), choice.chunk, choice.compiled, e.workers or max(1, cpus // actors))
    crew = Crew(cluster, actors, min(1.0, cpus / actors), inner)
    crew.check = partial(check_process, cluster, choice.compiled)
    try:
        crew.check_method(resolved.method)
        yield crew
    finally:
        crew.close()


# ---- losses ----


def write_losses(crew: Crew | None, store: Store) -> None:
    """Every process that the cluster lost is an event of the run: what it was doing, and who was asked again."""
    while crew and crew.losses:
        lost = crew.losses.pop(0)
        more = f" and {len(lost.again) - _LISTED:,} more" if len(lost.again) > _LISTED else ""
        again = f"{', '.join(lost.again[:_LISTED])}{more}"
        text = f"{lost.what}: the cluster lost a process; asked again: {again}"
        store.event("lost", f"{text}\nRay says: {lost.why}")


# ---- versions ----


def compiler_here() -> Facts:
    """What must be the same too where steps are compiled: a machine without a compiler would round otherwise."""
    program = compiler()
    return {"C++ compiler": version_of(program) if program else "not there"}


def asking() -> Callable[[bool], Facts]:
    """A function that tells these facts of the machine where it runs, or why it cannot. It is sent as it is, so a
    machine without motet can say so."""

    def facts_there(compiled: bool) -> Facts:
        import importlib
        import platform

        try:
            found = importlib.import_module("motet.runs.versions").facts_here()
            own = importlib.import_module("motet.runs.cluster").compiler_here() if compiled else {}
            return {**found, **own}
        except ImportError as e:
            return {"python": platform.python_version(), "motet": f"not there ({e})"}

    facts_there.__module__ = "__main__"
    return facts_there


def check_versions(cluster: Cluster, compiled: bool = False) -> None:
    for node, there in cluster.on_every_node(asking(), compiled).items():
        check_same(f"the machine {node} of the cluster", there, compiled)


def check_process(cluster: Cluster, compiled: bool, process: Any) -> None:
    """As `check_versions`, of a process that was started later, perhaps on a machine that joined meanwhile."""
    there = cluster.get(process.handle.result_of.remote(asking(), compiled))
    check_same("a machine of the cluster, on which a process was started,", there, compiled)


def check_same(where: str, there: Facts, compiled: bool) -> None:
    here = facts_here() | (compiler_here() if compiled else {})
    wrong = [
        f"{k} is {there.get(k, 'not there')}, and here it is {v}"
        for k, v in here.items()
        if there.get(k) != v
    ]
    if wrong:
        raise RunError(
            f"{where} differs from this one: {'; '.join(wrong)}.\n"
            "hint: the same Python, motet[ray] and torch on every machine, and the same compiler unless "
            "engine.compile=no; results of other versions may differ"
        )


# ---- object stores ----


def check_object_stores(cluster: Cluster, resolved: Resolved) -> None:
    """Refuse a cluster whose object stores cannot hold what is sent at a time."""
    size, node = cluster.smallest_store()
    weights = sum(v.numel() * v.element_size() for v in resolved.task.w0.values())
    rows = largest_shard(resolved.training.clients_data, max(1, resolved.choice.chunk))
    if (need := rows + _COPIES * weights) <= size:
        return
    fewer = ", or a smaller engine.chunk" if _COPIES * weights <= size else ""  # which has fewer rows
    raise RunError(
        f"the object store of the machine {node} has {size >> 20} MiB, and clients' rows and weights need "
        f"{(need >> 20) + 1} MiB at a time.\n"
        f"hint: ray start --object-store-memory={2 * need} on every machine{fewer}"
    )


def largest_shard(clients_data: Mapping[Client, ClientData], chunk: int) -> int:
    """Bytes of the rows of so many clients, the largest ones."""
    train = next(iter(clients_data.values())).train
    cell = (train.x if isinstance(train, Batch) else train.shared_x).element_size()
    rows = np.sort(sizes_of(clients_data).sum(1))[-chunk:].sum()
    return int(rows) * (math.prod(train.shape) * cell + _ROW)
