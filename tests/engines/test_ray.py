"""A Ray cluster that loses processes and machines, and clusters that cannot be used."""

from __future__ import annotations

import itertools
import random
import re
import socket
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

import motet
from conftest import twelve_clients
from contract import test_contract as contract
from motet.cli.main import main
from motet.client import Batch
from motet.client.visit import VerbFailed
from motet.core import Method, verb
from motet.engines import ray, ray_cluster, ray_crew
from motet.engines.client_state import ClientStates
from motet.engines.loop import Loop
from motet.engines.ray import Ray, RayStacked
from motet.engines.ray_actor import RayActor
from motet.engines.ray_crew import Crew
from motet.engines.ray_work import Inner
from motet.engines.vmap import Vmap
from motet.errors import RunError, UsageError
from motet.methods.fedavg import FedAvg
from motet.runs import cluster
from motet.runs import recipe as recipes
from motet.runs.build import resolve
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
    crew.machines.kill_node_of(crew.members[-1])


def disturbed(moment: int, kill: Any) -> Any:
    """Makes the processes of a run, and loses one."""
    return lambda cluster, actors, cpus, inner: Disturbed(two_nodes(), {moment: kill}, inner)


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
    assert not crew.moments and crew.losses
    assert contract.gap(expected, found) == 0
    assert contract.gap(outcome(method, Loop(clients)), found) == 0


_draw = random.Random(22)
KILLS = [
    (f"{place:02}-{kind.__name__}-{name}", kind, name, inner, _draw.random())
    for place, kind in enumerate(_draw.sample([kill_actor] * 7 + [kill_node] * 7, 14))
    for name, inner in [(STATEFUL[place % 3], Inner("vmap", CHUNK) if place % 2 else Inner("loop"))]
]
"""14 of the 20 kills; the other 6 are those of a study's workers (tests/runs/test_cluster_pool.py)."""


@pytest.mark.long
@pytest.mark.parametrize(("kill", "name", "inner", "when"), [k[1:] for k in KILLS], ids=[k[0] for k in KILLS])
def test_a_process_or_machine_lost_at_a_random_moment_changes_no_bit(
    kill: Any, name: str, inner: Inner, when: float, task: Any
) -> None:
    machines, method, clients = two_nodes(), contract.new_method(name, task), dict(twelve_clients())
    machines.fill()
    crew = Disturbed(machines, {}, inner)
    expected = outcome(method, on(crew, clients))
    collects = next(crew.moment)  # of an undisturbed conversation
    crew.moments = {collects + 1 + int(0.8 * when * collects): kill}  # so early that the loss is noticed
    found = outcome(method, on(crew, clients))
    crew.close()
    assert not crew.moments and crew.losses and crew.losses[0].again
    assert contract.gap(expected, found) == 0


def test_a_lost_process_is_an_event_that_names_whom_it_cost_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two_nodes().fill()
    monkeypatch.setattr(ray_crew, "Crew", disturbed(2, kill_actor))
    done = run(words("engine.actors=2", "engine.inner=loop", "train.rounds=3"), tmp_path / "x")
    lost = done.events.loc[done.events["kind"] == "lost", "text"]
    assert len(lost) == 1
    said, why = lost.iloc[0].split("\n")
    assert re.fullmatch(
        r"round \d, \w+: the cluster lost a process; asked again: client-\d(, client-\d)*", said
    )
    assert why.startswith("Ray says: The actor died")
    assert main(["show", str(done.folder)]) == 0
    note = " ".join(capsys.readouterr().out.split())
    assert f"1 process was lost, and others did the work again, which changes no result; {said}." in note


class LacksCode:
    """Cannot be read where its module is not there."""

    def __reduce__(self) -> Any:
        return import_module, ("nowhere_at_all",)


def test_a_process_that_is_started_later_is_looked_at_like_the_machines_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its machine may have joined the cluster meanwhile. Another torch would change results without a word."""
    two_nodes().fill()
    with cluster.opened(resolve(words("engine.actors=2"))) as crew:

        def refused() -> str:
            crew.cluster.get(crew.coming[-1].ready)
            with pytest.raises(RunError) as e:
                crew.welcome()
            return str(e.value)

        crew.lose(crew.members[-1], "killed")
        monkeypatch.setattr(cluster, "facts_here", lambda: {"torch": "0.0.1"})
        assert re.search(
            "process was started, differs from this one: torch is .*, and here it is 0.0.1", refused()
        )
        monkeypatch.undo()
        crew.learn(cast(Method, LacksCode()))
        crew.start_missing()
        assert "lacks code: ModuleNotFoundError: No module named 'nowhere_at_all'" in refused()


def test_what_a_cluster_complains_of_is_not_among_the_data_on_stdout(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Ray prints its machines' errors, many lines of them, between the lines of `motet run --json`."""
    two_nodes()
    from ray._private import worker

    with caplog.at_level("INFO", logger="motet"):
        said = {"lines": ["Raylet is terminated."], "pid": "raylet", "is_err": False}
        worker.print_to_stdstream(said, ignore_prefix=False)  # as Ray's own thread calls it
    heard = capsys.readouterr()
    assert heard.out == heard.err == "" and "Raylet is terminated." in caplog.text


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
    method, clients = contract.new_method("ditto", task), dict(twelve_clients())
    crew = Crew(two_nodes().cluster, 2, 0.5, Inner("loop"))  # its own: others' rows may move in a shared one
    for late in crew.coming:
        crew.cluster.get(late.ready)
    crew.welcome()  # whoever came later would take rows over from the others
    held: list[Any] = []
    monkeypatch.setattr(crew, "move", lambda name, to, move=crew.move: (held.append(name), move(name, to)))
    engine = Ray(clients, crew)
    sent: list[Any] = []
    monkeypatch.setattr(
        engine, "known_as", lambda c, m, known=engine.known_as: sent.append(known(c, m)) or sent[-1]
    )
    contract.go(method, engine)
    crew.close()
    assert len(held) == len(set(held)) == 12
    kept_before = [t for t in sent if t is not None]
    assert kept_before and all(type(t).__name__ == "Label" for t in kept_before)


def test_an_actor_has_as_many_threads_as_it_was_given(task: Any) -> None:
    """Compiled steps would take all cores of the machine in each of its actors."""
    actor, rows = RayActor(Inner("vmap", 4, compiled=True, workers=3)), ray.rows_of(twelve_clients(), ["c00"])
    actor.hold(("engine", 0), rows)
    assert cast(Vmap, actor.engines["engine", 0]).workers == 3


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
    command = [
        "run",
        "data=wine",
        "engine.name=ray",
        f"engine.address=127.0.0.1:{free_port()}",
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


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_the_machine_that_ray_address_names_must_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself tries for minutes, without a word."""
    monkeypatch.setenv("RAY_ADDRESS", named := f"127.0.0.1:{free_port()}")
    with pytest.raises(ConnectionError, match=f"RAY_ADDRESS is '{named}': .*refused"):
        ray_cluster.join(None, "auto")


@pytest.mark.parametrize("answer", [b"HTTP/1.0 400 Bad request\r\n\r\n", b""])
def test_something_else_that_listens_at_an_address_is_no_cluster(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ConnectionError, match="something else than Ray answers"):
            ray_cluster.join(None, f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


def test_a_machine_without_ray_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RunError, match=r"pip install 'motet\[ray\]'"):
        run(words(), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_compiled_steps_need_the_same_compiler_on_every_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_nodes().fill()
    monkeypatch.setattr(cluster, "compiler_here", lambda: {"C++ compiler": "another 1.0"})
    with pytest.raises(RunError, match=r"C\+\+ compiler is .*, and here it is another 1.0"):
        run(words("engine.compile=yes"), tmp_path / "x")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UsageError, match="needs a C.. compiler, and none that works was found"):
        run(words("engine.compile=yes"), tmp_path / "x")
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


@pytest.mark.parametrize("inner", ["loop", "vmap"])
def test_an_error_of_a_persons_own_code_keeps_its_line(task: Any, inner: Any) -> None:
    class Typo(FedAvg):  # of a function, so that its code travels to processes that lack this module
        changes: bool = False

        @verb
        def train(self, w: Any, keep: Any, data: Any) -> Any:
            return (w["0.bias"].mul_(2) if self.changes else self.task.los), keep

    kind = RayStacked if inner == "vmap" else Ray
    engine = kind(dict(twelve_clients()), two_nodes().crew(2, inner))
    with pytest.raises(VerbFailed, match=r"'los'\ntest_ray.py:\d+, in train: `self.task.los`\nhint: --trace"):
        contract.go(Typo(task), engine)
    with pytest.raises(VerbFailed, match=r"changes what it was given: sent\['0.bias'\]\ntest_ray.py:"):
        contract.go(Typo(task, changes=True), engine)


def test_a_machine_that_is_lost_while_it_is_asked_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([ray_cluster.Lost("gone"), {"one": 1}])

    def once(*_: Any) -> dict[str, Any]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cluster = object.__new__(ray_cluster.Cluster)
    monkeypatch.setattr(ray_cluster.Cluster, "asked_once", once)
    monkeypatch.setattr(ray_cluster.time, "sleep", lambda _: None)
    assert cluster.on_every_node(lambda: 1) == {"one": 1}


@pytest.mark.parametrize("level", [pytest.param("example", marks=pytest.mark.long), "client"])
def test_private_runs_are_those_of_the_loop_engine(level: str, tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    two_nodes().fill()
    private = [f"privacy.level={level}", "privacy.noise_multiplier=1", "data.unseen=0", "method.lr=0.1"]
    private += ["guard.clip=1"] if level == "client" else []
    there = run(words("engine.actors=2", *private), tmp_path / "there")
    here = run(words(*private, "engine.name=loop", "engine.actors=0"), tmp_path / "here")
    losses = [r.scores.sort_values(["round", "part", "side", "client"])["loss"] for r in (there, here)]
    assert losses[0].tolist() == pytest.approx(losses[1].tolist(), abs=1e-5)
    assert there.facts["privacy"] == here.facts["privacy"]
