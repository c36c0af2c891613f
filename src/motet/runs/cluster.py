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
from pathlib import Path
from typing import Any, cast

from motet.client import Batch, ClientData
from motet.core import Client
from motet.engines.cores import cores
from motet.engines.ray_cluster import Cluster, connect
from motet.errors import RunError
from motet.runs.build import Resolved
from motet.runs.identity import source_digest, versions
from motet.runs.store import FILE, Store
from motet.trusted_code import check_trusted, cluster_name

_ROW = 16  # bytes of a row besides its features
_COPIES = 4  # of the weights that an object store has to hold at a time
Facts = dict[str, str]


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
    cluster = connect(e.address, max(cores(), e.actors))
    check_versions(cluster)
    check_object_stores(cluster, resolved)
    cpus = max(1, cluster.cpus())
    actors = e.actors or cpus
    inner = Inner(cast(Any, choice.inner), choice.chunk, choice.compiled, e.workers or max(1, cpus // actors))
    crew = Crew(cluster, actors, min(1.0, cpus / actors), inner)
    try:
        crew.check_method(resolved.method)
        yield crew
    finally:
        crew.close()


# ---- versions ----


def facts_here() -> Facts:
    """What must be the same on all machines, so that results are."""
    found = versions()
    names = {k: found[k] for k in ("python", "torch", "numpy")}
    return {"motet": f"{found['motet']} (source {source_digest()[:12]})"} | names


def asking() -> Callable[[], Facts]:
    """A function that tells these facts of the machine where it runs, or why it cannot. It is sent as it is, so a
    machine without motet can say so."""

    def facts_there() -> Facts:
        import importlib
        import platform

        try:
            found = importlib.import_module("motet.runs.cluster").facts_here()
            return dict(found)
        except ImportError as e:
            return {"python": platform.python_version(), "motet": f"not there ({e})"}

    facts_there.__module__ = "__main__"
    return facts_there


def check_versions(cluster: Cluster) -> None:
    here = facts_here()
    for node, there in cluster.on_every_node(asking()).items():
        wrong = [
            f"{k} is {there.get(k, 'not there')}, and here it is {v}"
            for k, v in here.items()
            if there.get(k) != v
        ]
        if wrong:
            raise RunError(
                f"the machine {node} of the cluster differs from this one: {'; '.join(wrong)}.\n"
                "hint: the same Python, motet[ray] and torch on every machine; results of other versions may differ"
            )


# ---- object stores ----


def check_object_stores(cluster: Cluster, resolved: Resolved) -> None:
    """Refuse a cluster whose object stores cannot hold what is sent at a time."""
    size, node = cluster.smallest_store()
    weights = sum(v.numel() * v.element_size() for v in resolved.task.w0.values())
    rows = largest_shard(resolved.training.clients_data, max(1, resolved.choice.chunk))
    if (need := rows + _COPIES * weights) <= size:
        return
    raise RunError(
        f"the object store of the machine {node} has {size >> 20} MiB, and clients' rows and weights need "
        f"{(need >> 20) + 1} MiB at a time.\n"
        f"hint: ray start --object-store-memory={2 * need} on every machine, or a smaller engine.chunk"
    )


def largest_shard(clients_data: Mapping[Client, ClientData], chunk: int) -> int:
    """Bytes of the rows of so many clients, the largest ones."""
    return sum(sorted(map(bytes_of, clients_data.values()))[-chunk:])


def bytes_of(client: ClientData) -> int:
    """Of a client's rows."""
    train = client.train
    cell = (train.x if isinstance(train, Batch) else train.shared_x).element_size()
    return (len(train) + len(client.val) + len(client.test)) * (math.prod(train.shape) * cell + _ROW)
