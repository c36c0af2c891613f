"""A Ray cluster that loses processes and machines, and clusters that cannot be used."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from torch import Tensor

from conftest import twelve_clients
from contract import test_contract as contract
from motet.core import Method
from motet.engines.client_state import ClientStates
from motet.engines.loop import Loop
from motet.engines.ray import Ray, RayStacked
from motet.engines.ray_crew import Crew
from motet.engines.ray_work import Inner
from two_nodes import TwoNodes, two_nodes

pytestmark = pytest.mark.xdist_group("ray")
STATEFUL = ("ditto", "scaffold", "fedper")
CHUNK = 3


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
    told: list[Any] = []
    monkeypatch.setattr(engine, "told", lambda c, m, tell=engine.told: told.append(tell(c, m)) or told[-1])
    contract.go(method, engine)
    assert len(held) == len(set(held)) == 12
    kept_before = [t for t in told if t is not None]
    assert kept_before and all(type(t).__name__ == "Label" for t in kept_before)
