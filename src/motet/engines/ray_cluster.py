"""A Ray cluster: connecting to one or starting one, who is in it, and actors on it. Alone imports ray.

A cluster belongs to one owner: its processes run whatever code they are sent.
Knows Ray. Does not know engines, clients or runs.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from motet.errors import MotetError, RunError, need

_log = logging.getLogger(__name__)
LOCAL = ("", "local")  # addresses of a cluster that motet starts
_WAIT = 10.0  # seconds in which a cluster's machine must answer
_TRIES = 15  # seconds in which a cluster notices that a machine is lost
Ref = Any  # of an object that is there, or will be
Handle = Any  # of an actor


class Lost(MotetError):
    """A process or a machine of the cluster is gone, and with it what it was doing."""


def ray_itself() -> Any:
    """The package; it takes a second to import."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it tells nobody that it is used
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    need("the engine ray, and so does --jobs ray,", "ray", "ray", "cloudpickle", error=RunError)
    import ray

    return ray


def connect(address: str, cpus: int) -> Cluster:
    """The cluster at an address ("auto": the one that RAY_ADDRESS names, or that runs on this machine); without an
    address a cluster on this machine with so many CPUs, which ends with this process. A process that is connected stays
    with its cluster."""
    ray = ray_itself()
    if not ray.is_initialized():
        keep_off_stdout(ray)
        try:
            start_here(ray, cpus) if address in LOCAL else join(ray, address)
        except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as e:
            raise RunError(_unreachable(address, str(e).strip())) from e
    return Cluster(ray)


def keep_off_stdout(ray: Any) -> None:
    """Ray prints what its machines complain of on stdout, where data are (`--json`), whatever `log_to_driver` says. It
    goes to the log instead; what was lost and what became of it the run's events say."""

    def note(data: dict[str, Any], *_: Any, **__: Any) -> None:
        _log.info("Ray says: %s", "\n".join(map(str, data["lines"])))

    inside = ray._private.worker
    if hasattr(inside, "print_to_stdstream"):  # not a promise of Ray's
        inside.print_to_stdstream = note


def start_here(ray: Any, cpus: int) -> None:
    """Its processes find the modules that this one finds, and nobody else can talk to them."""
    before = dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
    if not any(name.startswith("RAY_AUTH_") for name in os.environ):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # of this cluster alone, and in no file
    try:
        ray.init(address="local", num_cpus=cpus, job_config=job_config(ray), **_QUIET)
    finally:
        os.environ.pop("PYTHONPATH")
        os.environ |= {k: v for k, v in before.items() if k == "PYTHONPATH"}


def join(ray: Any, address: str) -> None:
    """Ray itself tries for minutes to reach an address where nobody is, so that is looked at first."""
    named = os.environ.get("RAY_ADDRESS", "") if address == "auto" else ""
    host, _, port = (named or address).rpartition(":")
    if address != "auto" and not (host and port.isdecimal()):
        raise ValueError("it must be auto, local or HOST:PORT")
    if port.isdecimal() and "://" not in host:
        try:
            check_answers(host, int(port))
        except OSError as e:
            raise ConnectionError(f"RAY_ADDRESS is {named!r}: {e}" if named else str(e)) from e
    ray.init(address=address, job_config=job_config(ray), log_to_driver=False, logging_level=logging.ERROR)


def job_config(ray: Any) -> Any:
    """Ray puts the current folder before everything else on the path of its processes: a file numpy.py there, which may
    be a stranger's, would be imported instead of numpy. It does so only where this process has the folder on its own
    path, say for code that a person trusted."""
    has_it = os.getcwd() in (p or os.getcwd() for p in sys.path)
    return ray.job_config.JobConfig(_client_job=not has_it)  # no promise of Ray's; nothing else depends on it


def check_answers(host: str, port: int) -> None:
    """Refuse an address where nobody listens, or something else than Ray, which speaks HTTP/2: both sides begin with a
    frame of settings, whose fourth byte is 4. With TLS one would have to know Ray's certificates to hear that."""
    with socket.create_connection((host, port), timeout=_WAIT) as connection:
        if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
            return
        connection.sendall(_HTTP2)
        with suppress(OSError):
            if connection.recv(4, socket.MSG_WAITALL)[3:] == b"\x04":
                return
    raise ConnectionError("something else than Ray answers")


_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and no settings
_QUIET: dict[str, Any] = {
    "include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR,
}  # fmt: skip


def _unreachable(address: str, why: str) -> str:
    first = why.split("\n")[0]
    if "ersion mismatch" in why:
        said = " ".join(why.split())
        return (
            f"the cluster at {address!r} has another version of Ray or Python than this machine: {said}\n"
            "hint: the same Python, motet[ray] and torch on every machine of the cluster"
        )
    if address in LOCAL:
        return f"Ray could not be started on this machine: {first}\nhint: engine.name=auto needs no Ray"
    return (
        f"engine.address is {address!r}, and no Ray cluster answers there: {first}\n"
        "hint: ray start --head on the first machine, ray start --address=HOST:6379 on the others; then "
        "engine.address=auto on one of them, or engine.address=HOST:6379"
    )


class Cluster:
    """A connection to a cluster."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray

    # ---- who is there ----

    def nodes(self) -> list[dict[str, Any]]:
        return [n for n in self.ray.nodes() if n["Alive"]]

    def cpus(self) -> int:
        return int(sum(n["Resources"].get("CPU", 0) for n in self.nodes()))

    def smallest_store(self) -> tuple[int, str]:
        """Bytes of the smallest object store, and on which machine it is."""
        found = [(int(n["Resources"].get("object_store_memory", 0)), name_of(n)) for n in self.nodes()]
        return min(found)

    def on_every_node(self, work: Callable[..., Any], *given: Any) -> dict[str, Any]:
        """What a function returns on each machine. It must be one that is defined inside of another, which is sent as
        it is: machines need not have motet. A machine that is lost meanwhile is not asked again: the cluster lists a
        dead one for some seconds."""
        for _ in range(_TRIES):
            with suppress(Lost):
                return self.asked_once(work, *given)
            time.sleep(1)
        return self.asked_once(work, *given)

    def asked_once(self, work: Callable[..., Any], *given: Any) -> dict[str, Any]:
        """The same, of the machines that are listed now."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        task = self.ray.remote(num_cpus=0, max_retries=3)(work)
        refs = {
            name_of(n): task.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(n["NodeID"], soft=False)
            ).remote(*given)
            for n in self.nodes()
        }
        return {name: self.get(ref) for name, ref in refs.items()}

    # ---- objects and actors ----

    def put(self, thing: Any) -> Ref:
        return self.ray.put(thing)

    def get(self, ref: Ref, seconds: float | None = None) -> Any:
        e = self.ray.exceptions
        try:
            return self.ray.get(ref, timeout=seconds)
        except (
            e.RayActorError,
            e.ActorUnavailableError,
            e.ObjectLostError,
            e.OwnerDiedError,
            e.WorkerCrashedError,
            e.NodeDiedError,
            e.TaskUnschedulableError,
            e.ActorUnschedulableError,
        ) as gone:
            raise Lost(str(gone).strip().split("\n")[0]) from gone
        except e.GetTimeoutError:
            raise TimeoutError from None

    def wait(self, refs: Sequence[Ref], seconds: float | None = None) -> list[Ref]:
        """Those that are there, at least one; fewer if the time is over."""
        done, _ = self.ray.wait(list(refs), timeout=seconds)
        return list(done)

    def start(self, kind: type[Any], *given: Any, cpus: float = 1.0, threads: int = 1) -> Handle:
        """An actor, on the machine that has most room; lost ones do not come back by themselves."""
        actor = self.ray.remote(kind)
        how = {
            "num_cpus": cpus,
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
            "max_concurrency": threads,
        }
        return actor.options(**how).remote(*given)

    def kill(self, actor: Handle) -> None:
        with suppress(Exception):  # it may be gone
            self.ray.kill(actor)

    def ready(self, refs: Sequence[Ref], seconds: float) -> list[Ref]:
        """Those of the refs that are there after so many seconds, at most."""
        until, left, found = time.monotonic() + seconds, list(refs), list[Ref]()
        while left and (rest := until - time.monotonic()) > 0:
            done = self.wait(left, rest)
            found, left = found + done, [r for r in left if r not in done]
        return found


def name_of(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}:{node['NodeManagerPort']})"
