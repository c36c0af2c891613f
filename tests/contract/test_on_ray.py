"""What every method must keep on a Ray cluster of two nodes: the results of the loop, whatever the number of actors.

One cluster serves all of these tests, so they go to one worker. The other tests of a method hold on ray too, because
its actors are the engines that are tested there.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from conftest import twelve_clients
from contract import test_contract as contract
from motet.core import Method
from motet.engines.loop import Loop
from motet.engines.ray import Ray, RayStacked
from motet.engines.vmap import Vmap
from motet.engines.wrappers.faulty import Faulty
from motet.engines.wrappers.hostile import Hostile
from motet.guard.gather import GatheredMean, robust_mean
from motet.guard.pairs.chain import Chain
from motet.guard.pairs.clip import Clip
from motet.guard.pairs.compress import Compress
from motet.runs.recipe import method_names
from motet.wire import pack, unpack
from two_nodes import two_nodes

pytestmark = pytest.mark.xdist_group("ray")
CHUNK = 6  # two shards of twelve clients


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "label" in metafunc.fixturenames:
        names = metafunc.config.getoption("method") or [*method_names(), "fedper+fedopt", "scaffold+page"]
        metafunc.parametrize("label", names)


def engine(method: Method, clients: Any, actors: int) -> Any:
    """As a run would have it: stacked where clients can be."""
    if contract.all_solo(type(method)):
        return Ray(clients, two_nodes().crew(actors, "loop"))
    return RayStacked(clients, two_nodes().crew(actors, "vmap", CHUNK), chunk=CHUNK)


def outcome(method: Method, inner: Any) -> list[Tensor]:
    return contract.outcome(method, inner, contract.go(method, inner))


def test_every_method_gives_the_results_of_the_loop_on_two_nodes_and_the_same_bits_on_one_actor(
    label: str, task: Any
) -> None:
    """Ordinary Python has the very bits of the loop, whose clients are visited one by one too."""
    method, clients = contract.new_method(label, task), dict(twelve_clients())
    two, loop, solo = engine(method, clients, 2), Loop(clients), contract.all_solo(contract.class_of(label))
    state, expected = contract.go(method, two), contract.go(method, loop)
    found = contract.outcome(method, two, state)
    assert contract.gap(contract.outcome(method, loop, expected), found) <= (0 if solo else 2e-5)
    if not solo:
        assert contract.gap(outcome(method, engine(method, clients, 1)), found) == 0
    models, same = (
        dict(e.personal_models(method, s, contract.turn(e, contract.ROUNDS - 1)))
        for e, s in ((two, state), (loop, expected))
    )
    assert contract.gap(list(contract.in_order(models)), list(contract.in_order(same))) < 2e-5


def test_a_silent_client_one_that_sends_nan_and_a_pause_are_borne_as_on_the_loop(
    label: str, task: Any
) -> None:
    method = contract.new_method(label, task)
    clients = {**twelve_clients(), "c00": contract.with_one_example(twelve_clients()["c00"])}

    def disturbed(inner: Any) -> list[Tensor]:
        wrapped = Faulty(
            Hostile(inner, ["c02"], "nan"), lambda client, number: client == "c04" and number >= 0
        )
        state = contract.go(method, wrapped, last=contract.PAUSE, seed=2)
        kept = {c: unpack(pack(keep)) for c, keep in contract.states(inner).items()}
        contract.resume(
            inner, kept
        )  # other objects, as after a kill: nothing that actors remember may be used
        state = contract.go(method, wrapped, first=contract.PAUSE, state=unpack(pack(state)), seed=2)
        return contract.outcome(method, inner, state)

    there = Ray(clients, two_nodes().crew(2, "loop"))
    assert contract.gap(disturbed(Loop(clients)), disturbed(there)) < 2e-5


@pytest.mark.parametrize("name", ["ditto", "fedper"])
def test_clients_that_are_visited_one_by_one_give_the_very_bits_of_the_loop(name: str, task: Any) -> None:
    method, clients = contract.new_method(name, task), dict(twelve_clients())
    there = Ray(clients, two_nodes().crew(2, "loop"))
    assert contract.gap(outcome(method, Loop(clients)), outcome(method, there)) == 0


def test_clients_that_are_stacked_give_the_very_bits_of_the_vmap_engine(task: Any) -> None:
    method, clients = contract.new_method("ditto", task), dict(twelve_clients())
    there, jobs = engine(method, clients, 2), []
    make = there.job
    there.job = lambda *given, **how: jobs.append(make(*given, **how)) or jobs[-1]
    assert contract.gap(outcome(method, Vmap(clients, chunk=CHUNK)), outcome(method, there)) == 0
    assert all(job.at_once for job in jobs)


@pytest.mark.parametrize("mean", ["median", "trimmed", "krum"])
def test_robust_means_see_every_reply(mean: str, task: Any) -> None:
    method, clients = contract.new_method("fedavg", task), dict(twelve_clients())

    def robust(inner: Any) -> list[Tensor]:
        inner.fold = lambda: GatheredMean(robust_mean(mean, hostile=0.15, mix=True))
        return contract.outcome(method, inner, contract.go(method, Hostile(inner, ["c03"], "flip")))

    assert contract.gap(robust(Loop(clients)), robust(engine(method, clients, 2))) < 2e-5


def test_replies_go_through_guards_as_on_the_loop(task: Any) -> None:
    """Rounding at random may go the other way where replies differ in their last bits, so a step of 8 bits counts."""
    method, clients = contract.new_method("ditto", task), dict(twelve_clients())

    def guarded(inner: Any, chain: Chain) -> list[Tensor]:
        inner.chain = chain
        return outcome(method, inner)

    for chain, most in ((Chain((Clip(0.1),)), 2e-5), (Chain((Compress(8),)), 2e-2)):
        there = guarded(engine(method, clients, 2), chain)
        assert contract.gap(guarded(Loop(clients), chain)[:2], there[:2]) < most
        assert contract.gap(outcome(method, Loop(clients))[:2], there[:2]) > 0
