"""A Ray cluster of two machines that are both this one, started and ended by tests; one for a whole process."""

from __future__ import annotations

import atexit
import os
import signal
from functools import cache
from typing import Any

import psutil

from motet.engines.ray_cluster import Cluster, connect
from motet.engines.ray_crew import Crew, CrewMember
from motet.engines.ray_work import Inner
from motet.runs.cluster_worker import ClusterProcess

_NODE = {"num_cpus": 4, "object_store_memory": 100 << 20, "include_dashboard": False}


class TwoNodes:
    """The driver's own machine has no CPU for clients, so that it outlives the two that have."""

    def __init__(self) -> None:
        os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        from ray.cluster_utils import Cluster as Machines

        self.machines = Machines(initialize_head=True, head_node_args={**_NODE, "num_cpus": 0})
        self.nodes: list[Any] = []
        self.fill()
        self.cluster: Cluster = connect(self.machines.address, 0)
        self.crews: dict[tuple[Any, ...], Crew] = {}
        atexit.register(self.end)

    def fill(self) -> None:
        """As many machines with CPUs as there should be."""
        while len(self.nodes) < 2:
            self.nodes.append(self.machines.add_node(**_NODE))

    def crew(self, actors: int, *inner: Any) -> Crew:
        """Processes that stay for other tests."""
        key = (actors, *inner)
        if key not in self.crews:
            self.crews[key] = Crew(self.cluster, actors, 0.5, Inner(*inner))
        return self.crews[key]

    def kill_node_of(self, member: CrewMember) -> None:
        """The machine where an actor is, as if its plug was pulled."""
        raylet = psutil.Process(self.process_of(member)).ppid()
        gone = next(n for n in self.nodes if raylet in {p.pid for _, p in n.live_processes()})
        self.nodes.remove(gone)
        self.machines.remove_node(gone, allow_graceful=False)

    def kill_actor(self, member: CrewMember) -> None:
        os.kill(self.process_of(member), signal.SIGKILL)

    def process_of(self, member: CrewMember | ClusterProcess) -> int:
        return int(self.cluster.get(member.ready))

    def end(self) -> None:
        self.cluster.ray.shutdown()
        self.machines.shutdown()


two_nodes = cache(TwoNodes)
