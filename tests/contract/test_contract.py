"""What every method must keep on every engine. A method is tested because its file is there."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from motet.client import Batch, ClientData, seed_of
from motet.core import Method, Turn
from motet.engines.client_state import ClientStates
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.engines.wrappers.faulty import Faulty
from motet.engines.wrappers.hostile import Hostile
from motet.guard.gather import GatheredMean, robust_mean
from motet.runs.recipe import method_class, method_names
from motet.vec import leaves
from motet.wire import pack, unpack
from rounds import evaluate_server_testples

ROUNDS = 4
ENGINES: dict[str, Any] = {
    "loop": Loop,
    "vmap": Vmap,
    "vmap in chunks": partial(Vmap, chunk=5),
    "one thread": partial(Threads, workers=1),
    "threads": partial(Threads, workers=3),
}


@pytest.fixture(params=method_names())
def method(request: pytest.FixtureRequest, task: Any) -> Method:
    return method_class(request.param)(task)


def turn(engine: Any, number: int, *, backwards: bool = False, seed: int = 1) -> Turn:
    """Half of the clients, others in every round, and a few examples of the server's own."""
    cohort = list(engine.clients)[number % 3 :: 2]
    order = cohort[::-1] if backwards else cohort
    return Turn(number, order, engine.clients, seed_of(seed, number), evaluate_server_testples())


def go(method: Method, engine: Any, first: int = 0, last: int = ROUNDS, state: Any = None, **how: Any) -> Any:
    if first == 0:
        state = start(engine, method, turn(engine, -1, **how))
    for number in range(first, last):
        state = play(engine, method, state, turn(engine, number, **how))
    return state


def outcome(method: Method, engine: Any, state: Any) -> list[Tensor]:
    """Everything that matters: the state, what clients keep, and how everyone scores."""
    keeps = [leaves(engine.keeps.get(c)) for c in engine.clients if engine.keeps.get(c) is not None]
    clients, sums = engine.evaluate(method, state, turn(engine, ROUNDS - 1), "test")
    order = torch.tensor([clients.index(c) for c in engine.clients])
    scores = [v[order] for v in leaves(sums)]
    return [torch.as_tensor(v).double() for v in [*leaves(state), *(v for k in keeps for v in k), *scores]]


def gap(a: list[Any], b: list[Any]) -> float:
    """The largest difference of two lists of tensors or numbers; models of other sizes are far apart."""
    assert len(a) == len(b)
    pairs = [(torch.as_tensor(p), torch.as_tensor(q)) for p, q in zip(a, b, strict=True)]
    if any(p.shape != q.shape for p, q in pairs):
        return math.inf
    return max([float((p - q).abs().max()) for p, q in pairs if p.numel()], default=0.0)


@pytest.mark.parametrize("engine", [e for e in ENGINES if e != "loop"])
def test_every_engine_agrees_with_the_loop(
    method: Method, engine: str, clients_data: dict[str, ClientData]
) -> None:
    reference, other = Loop(clients_data), ENGINES[engine](clients_data)
    expected = outcome(method, reference, go(method, reference))
    assert gap(expected, outcome(method, other, go(method, other))) < 2e-5


@pytest.mark.long
def test_compiled_steps_agree_with_the_loop_and_with_themselves(
    method: Method, clients_data: dict[str, ClientData]
) -> None:
    """Compiling takes seconds for each method and each size of a cohort."""
    reference = Loop(clients_data)
    expected = outcome(method, reference, go(method, reference))
    found = []
    for _ in range(2):
        engine = Vmap(clients_data, compiled=True)
        found.append(outcome(method, engine, go(method, engine)))
    assert gap(expected, found[0]) < 2e-5
    assert gap(found[0], found[1]) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(
    method: Method, engine: str, clients_data: dict[str, ClientData]
) -> None:
    results = []
    for seed in (1, 1, 2):
        e = ENGINES[engine](clients_data)
        results.append(outcome(method, e, go(method, e, seed=seed)))
    assert gap(results[0], results[1]) == 0
    assert gap(results[0], results[2]) > 0


def test_any_number_of_threads_gives_the_same_bits(
    method: Method, clients_data: dict[str, ClientData]
) -> None:
    one, three = ENGINES["one thread"](clients_data), ENGINES["threads"](clients_data)
    assert gap(outcome(method, one, go(method, one)), outcome(method, three, go(method, three))) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_the_order_of_clients_does_not_matter(
    method: Method, engine: str, clients_data: dict[str, ClientData]
) -> None:
    there, back = ENGINES[engine](clients_data), ENGINES[engine](dict(reversed(list(clients_data.items()))))
    a = outcome(method, there, go(method, there))
    assert gap(a, outcome(method, back, go(method, back, backwards=True))) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pause_changes_nothing_and_all_that_matters_survives_the_wire(
    method: Method, engine: str, clients_data: dict[str, ClientData]
) -> None:
    whole = ENGINES[engine](clients_data)
    expected = outcome(method, whole, go(method, whole))
    before = ENGINES[engine](clients_data)
    state = unpack(pack(go(method, before, last=2)))
    after = ENGINES[engine](clients_data)
    after.keeps.begin(1)
    for c in before.clients:
        if (keep := before.keeps.get(c)) is not None:
            after.keeps.put(c, unpack(pack(keep)))
    assert gap(expected, outcome(method, after, go(method, after, first=2, state=state))) == 0


def test_keeps_on_disk_are_keeps_in_memory(method: Method, clients_data: dict[str, ClientData]) -> None:
    memory, disk = Vmap(clients_data), Vmap(clients_data, ClientStates(on_disk=True))
    assert gap(outcome(method, memory, go(method, memory)), outcome(method, disk, go(method, disk))) == 0


class AskRecorder(Loop):
    """A loop that writes down what each client came with and what left it."""

    def perform(self, verb: Any, client: str, sent: Any, keep: Any, data: Any) -> Any:
        reply, after = super().perform(verb, client, sent, keep, data)
        self.heard = [*getattr(self, "heard", []), (client, keep, reply)]
        return reply, after


def test_what_a_client_keeps_never_appears_in_a_message(
    method: Method, clients_data: dict[str, ClientData]
) -> None:
    engine = AskRecorder(clients_data)
    go(method, engine)
    joined = set()
    for client, keep, reply in engine.heard:
        secrets = [v for v in leaves(keep) if isinstance(v, Tensor) and v.numel() > 1 and client in joined]
        for said in leaves(reply):
            assert not any(isinstance(said, Tensor) and torch.equal(said, s) for s in secrets)
        joined.add(client)


def test_nothing_learns_from_test_examples(method: Method, clients_data: dict[str, ClientData]) -> None:
    ruined = {
        c: ClientData(h.train, h.val, Batch(h.test.x * torch.nan, h.test.y, h.test.live))
        for c, h in clients_data.items()
    }
    a, b = Loop(clients_data), Loop(ruined)
    assert gap(leaves(go(method, a)), leaves(go(method, b))) == 0
    kept = [[t for c in e.clients for t in leaves(e.keeps.get(c) or ())] for e in (a, b)]
    assert gap(*kept) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_silent_client_is_borne(method: Method, engine: str, clients_data: dict[str, ClientData]) -> None:
    faulty = Faulty(ENGINES[engine](clients_data), lambda client, number: client == "c04" and number >= 0)
    state = go(method, faulty)
    assert all(torch.isfinite(v).all() for v in outcome(method, faulty, state))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_that_sends_nan_is_borne(
    method: Method, engine: str, clients_data: dict[str, ClientData]
) -> None:
    hostile = Hostile(ENGINES[engine](clients_data), ["c02"], "nan")
    state = go(method, hostile)
    assert all(torch.isfinite(v).all() for v in outcome(method, hostile, state))


@pytest.mark.parametrize("mean", ["median", "trimmed", "krum"])
def test_robust_means_are_the_same_on_every_engine(
    method: Method, mean: str, clients_data: dict[str, ClientData]
) -> None:
    found, folds = [], []

    def fold() -> GatheredMean:
        folds.append(GatheredMean(robust_mean(mean, hostile=0.15, mix=True)))
        return folds[-1]

    for name in ENGINES:
        engine = ENGINES[name](clients_data)
        engine.fold = fold
        hostile = Hostile(engine, ["c03"], "flip")
        found.append(outcome(method, engine, go(method, hostile)))
        if not folds:
            pytest.skip("this method averages nothing")
    assert all(gap(found[0], other) < 2e-5 for other in found[1:])
    assert gap(found[0], found[-1]) == gap(found[-1], found[-2]) == 0  # the loop, and any number of threads


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_with_one_example_is_a_client(
    method: Method, engine: str, clients_data: dict[str, ClientData]
) -> None:
    h = clients_data["c00"]
    one = ClientData(Batch.of(h.train.x[:1], h.train.y[:1]), Batch.of(h.val.x[:0], h.val.y[:0]), h.test)
    reference, other = Loop(clients_data | {"c00": one}), ENGINES[engine](clients_data | {"c00": one})
    expected = outcome(method, reference, go(method, reference))
    assert gap(expected, outcome(method, other, go(method, other))) < 2e-5


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_may_join_late(method: Method, engine: str, clients_data: dict[str, ClientData]) -> None:
    few = {c: h for c, h in clients_data.items() if c != "c11"}
    early, late = ENGINES[engine](few), ENGINES[engine](clients_data)
    state = go(method, early, last=2)
    late.keeps.begin(1)
    for c in early.clients:
        if (keep := early.keeps.get(c)) is not None:
            late.keeps.put(c, keep)
    state = go(method, late, first=2, state=state)
    assert all(torch.isfinite(v).all() for v in outcome(method, late, state))


def test_a_personal_model_is_plain_data(method: Method, clients_data: dict[str, ClientData]) -> None:
    engine = Loop(clients_data)
    state = go(method, engine)
    for client, tree in engine.personal_models(method, state, turn(engine, ROUNDS - 1)):
        assert client in clients_data
        assert unpack(pack(tree)) is not None and leaves(tree)


def test_personal_models_are_the_same_on_every_engine(
    method: Method, clients_data: dict[str, ClientData]
) -> None:
    found = []
    for name in ("loop", "vmap", "threads"):
        engine = ENGINES[name](clients_data)
        state = go(method, engine)
        models = dict(engine.personal_models(method, state, turn(engine, ROUNDS - 1)))
        found.append([v for c in sorted(models) for v in leaves(models[c])])
    assert gap(found[0], found[1]) < 2e-5
    assert gap(found[0], found[2]) == 0
