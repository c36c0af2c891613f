"""A Ray cluster that loses processes and machines, and clusters that cannot be used."""

from __future__ import annotations

import itertools
import random
import socket
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import motet
from conftest import twelve_clients
from contract import test_contract as contract
from motet.client import Batch
from motet.client.visit import VerbFailed
from motet.core import Method
from motet.engines import ray_cluster
from motet.engines.client_state import ClientStates
from motet.engines.loop import Loop
from motet.engines.ray import Ray, RayStacked
from motet.engines.ray_crew import Crew
from motet.engines.ray_work import Inner
from motet.errors import RunError, UsageError
from motet.runs import recipe as recipes
from motet.runs.compare_runs import differences
from motet.runs.run import run
from motet.runs.store import Store
from two_nodes import TwoNodes, two_nodes

pytestmark = pytest.mark.xdist_group("ray")
STATEFUL = ("ditto", "scaffold", "fedper")
CHUNK = 3
MOTET = [sys.executable, "-P", "-c", "from motet.cli.main import main; raise SystemExit(main())"]


class Disturbed(Crew):
    """Loses something just before it collects results for the so-manieth time."""

    def __init__(self, machines: TwoNodes, moments: dict[int, Any], inner: Inner) -> None:
        self.machines, self.moments, self.moment = machines, moments, itertools.count()
        super().__init__(machines.cluster, 2, 0.5, inner)

    def collect(self, asked: Any, shards: Any) -> None:
        if kill := self.moments.pop(next(self.moment), None):
            kill(self)
        super().collect(asked, shards)


def kill_actor(crew: Disturbed) -> None:
    crew.machines.kill_actor(crew.members[-1])


def kill_node(crew: Disturbed) -> None:
    """The one where the last actor is."""
    crew.machines.kill_node(-1)


def outcome(method: Method, inner: Any) -> list[Tensor]:
    return contract.outcome(method, inner, contract.go(method, inner))


def on(crew: Crew, clients: Any) -> Any:
    return RayStacked(clients, crew, chunk=CHUNK) if crew.inner.name == "vmap" else Ray(clients, crew)


@pytest.mark.parametrize(("name", "kill"), [("ditto", kill_actor), ("scaffold", kill_node)])
def test_a_lost_process_or_machine_changes_no_bit(name: str, kill: Any, task: Any) -> None:
    """In the middle of a round: some shards have answered and what their clients keep has changed, others have not."""
    machines, method, clients = two_nodes(), contract.new_method(name, task), dict(twelve_clients())
    machines.fill()
    crew = Disturbed(machines, {}, Inner("loop"))
    engine = on(crew, clients)
    expected = outcome(method, engine)
    crew.moments = {next(crew.moment) + 4: kill}
    again = on(crew, clients)
    found = outcome(method, again)
    crew.close()
    assert not crew.moments and crew.lost >= 1
    assert contract.gap(expected, found) == 0
    assert contract.gap(outcome(method, Loop(clients)), found) == 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_twenty_losses_at_random_moments_change_no_bit(seed: int, task: Any) -> None:
    """Four in each run: of processes, of machines, of both at once."""
    draw, machines, clients = random.Random(seed), two_nodes(), dict(twelve_clients())
    name, inner = STATEFUL[seed % 3], Inner("vmap", CHUNK) if seed % 2 else Inner("loop")
    method = contract.new_method(name, task)
    expected = outcome(method, on(machines.crew(1, *inner), clients))
    lost = 0
    for _ in range(4):
        machines.fill()
        moment = draw.randrange(12)
        crew = Disturbed(machines, {}, inner)
        engine = on(crew, clients)
        crew.moments = {moment: draw.choice([kill_actor, kill_node])}
        assert contract.gap(expected, outcome(method, engine)) == 0
        lost += crew.lost
        crew.close()
    assert lost >= 2  # a machine without an actor may be among those that were lost


def test_what_clients_keep_on_disk_is_what_they_keep_in_memory(task: Any) -> None:
    method, clients, crew = (
        contract.new_method("ditto", task),
        dict(twelve_clients()),
        two_nodes().crew(2, "loop"),
    )
    disk = Ray(clients, crew, ClientStates(on_disk=True))
    assert contract.gap(outcome(method, disk), outcome(method, Ray(clients, crew))) == 0


def test_rows_go_to_an_actor_once_and_what_is_kept_is_not_sent_again(
    task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, clients, crew = (
        contract.new_method("ditto", task),
        dict(twelve_clients()),
        two_nodes().crew(2, "loop"),
    )
    held: list[Any] = []
    monkeypatch.setattr(crew, "move", lambda name, to, move=crew.move: (held.append(name), move(name, to)))
    engine = Ray(clients, crew)
    sent: list[Any] = []
    monkeypatch.setattr(
        engine, "known_as", lambda c, m, known=engine.known_as: sent.append(known(c, m)) or sent[-1]
    )
    contract.go(method, engine)
    assert len(held) == len(set(held)) == 12
    kept_before = [t for t in sent if t is not None]
    assert kept_before and all(type(t).__name__ == "Label" for t in kept_before)


DIES = """
import os, signal, sys, motet

def die(done):
    if done.round == 2:
        os.kill(os.getpid(), signal.SIGKILL)

motet.run(
    method="ditto", data={"name": "wine", "clients": 3}, train={"rounds": 6}, save={"checkpoint": 0},
    engine={"name": "ray", "actors": 2}, out=sys.argv[1], on_round=die,
)
"""


@pytest.mark.long
def test_a_run_whose_every_process_was_killed_goes_on_elsewhere_with_the_same_bits(tmp_path: Path) -> None:
    """It dies with the cluster that it started, and goes on on another cluster."""
    died = subprocess.run([sys.executable, "-c", DIES, str(tmp_path / "killed")], capture_output=True)
    assert died.returncode == -9
    two_nodes().fill()
    given = words("method=ditto", "train.rounds=6", "save.checkpoint=0")
    resumed, whole = (run(given, tmp_path / name) for name in ("killed", "whole"))
    assert "resumed" in set(resumed.events["kind"])
    with closing(Store(resumed.folder)) as before, closing(Store(whole.folder)) as after:
        assert differences(before, after) == []


# ---- clusters that cannot be used ----


def words(*more: str) -> Any:
    given = ["method=fedavg", "data=wine", "data.clients=3", "train.rounds=2", "engine.name=ray"]
    return recipes.read(words=[*given, "engine.actors=1", *more])


def test_a_run_on_a_cluster_is_the_run_on_one_actor(tmp_path: Path) -> None:
    """The whole way: clients that were never seen, test scores, models, verifying."""
    two_nodes().fill()
    several, one = (run(words(f"engine.actors={n}"), tmp_path / str(n)) for n in (2, 1))
    with closing(Store(several.folder)) as before, closing(Store(one.folder)) as after:
        assert differences(before, after) == []
    assert several.facts["settings"]["engine"]["inner"] == "vmap"
    assert several.facts["identity"] == one.facts["identity"]
    assert run(words("engine.actors=3"), tmp_path / "2").was_read


def test_a_centralised_run_scores_everybody_on_the_cluster(tmp_path: Path) -> None:
    two_nodes().fill()
    given = words("method=centralised", "engine.actors=2", "train.rounds=1")
    assert run(given, tmp_path).summary["clients"] == 3


def test_an_address_where_nobody_is_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """In another process: this one is connected."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [
        "run",
        "data=wine",
        "engine.name=ray",
        f"engine.address=127.0.0.1:{port}",
        "--out",
        str(tmp_path / "x"),
    ]
    done = subprocess.run([*MOTET, *command], capture_output=True, text=True)
    assert done.returncode != 0 and "no Ray cluster answers there" in done.stderr and "hint: " in done.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("address", ["nowhere", "host:", ":6379"])
def test_an_address_must_have_a_host_and_a_port(address: str) -> None:
    with pytest.raises(ValueError, match="it must be auto, local or HOST:PORT"):
        ray_cluster.join(None, address)


def test_a_machine_without_ray_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RunError, match=r"pip install 'motet\[ray\]'"):
        run(words(), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_an_object_store_that_is_too_small_is_refused(tmp_path: Path) -> None:
    two_nodes().fill()
    rows = np.zeros((300, 100_000), np.float32)
    data = {c: (rows, np.arange(300) % 2) for c in ("a", "b")}
    with pytest.raises(RunError, match="the object store of the machine .* has 100 MiB.*\nhint: ray start"):
        motet.run(
            data=data, method="fedavg", net="logistic", engine={"name": "ray"}, out=tmp_path / "x", lr=0.1
        )
    assert not (tmp_path / "x").exists()


def test_code_that_a_machine_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_nodes().fill()
    (tmp_path / "only_here.py").write_text(
        "from motet import methods\nclass Mine(methods.FedAvg):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        RunError, match="lacks code: ModuleNotFoundError: No module named 'only_here'\nhint: "
    ):
        run(words("method=only_here:Mine"), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_settings_of_ray_are_refused_on_other_engines() -> None:
    with pytest.raises(
        recipes.RecipeError, match="engine.actors is 2, and engine.name is auto: only ray has it"
    ):
        recipes.read(words=["data=wine", "engine.actors=2"])
    with pytest.raises(UsageError, match="the engine ray computes on CPUs"):
        run(words("engine.device=cuda"))


def test_an_error_at_a_client_names_it(task: Any) -> None:
    method, clients = contract.new_method("fedavg", task), dict(twelve_clients())
    broken = replace(clients["c03"], train=Batch.of(torch.zeros(4, 99), torch.zeros(4).long()))
    engine = Ray({**clients, "c03": broken}, two_nodes().crew(2, "loop"))
    with pytest.raises(VerbFailed, match="client c03, verb train, round 2"):
        contract.go(method, engine)
    healthy = Ray(clients, two_nodes().crew(2, "loop"))
    assert contract.gap(outcome(method, healthy), outcome(method, Loop(clients))) == 0
