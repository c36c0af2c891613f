"""What every method must keep on every engine. A method is tested because its file is there.

Runs that nothing disturbs are played once for each method and engine and remembered. A method whose verbs are
all solo takes the loop's path on the vmap engine, so it is tested on the loop and on threads alone.
Ways to train (optimisers, steps, schedules) are tested with FedAvg as methods are, because they are there; servers
with FedOpt; players and lengths of the server's step with PAGE. Every other method must agree on all engines with all
of the ways to train at once. Losses and weights of rows are tested with FedAvg too (loss_ways.py), and every other
method with weights of rows.
`pytest tests/contract --method NAME` tests one method; NAME may be `module:Class`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial, wraps
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor

from conftest import CLASSES, FEATURES, twelve_clients
from loss_ways import WAYS_TO_COUNT, clients_of, task_of, with_weights
from motet.client import Batch, ClientData, descent, seed_of
from motet.client.client_by_client import client_by_client
from motet.client.optimisers import OptimiserName
from motet.client.visit import VerbFailed
from motet.core import Ask, Method, MethodUnfit, Tree, Turn, Verb, is_solo, is_verb, verb
from motet.engines.client_state import ClientStates
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.engines.wrappers.faulty import Faulty
from motet.engines.wrappers.hostile import Hostile
from motet.guard.gather import GatheredMean, robust_mean
from motet.parts.players import PlayerName
from motet.parts.rate_schedules import RateSchedule
from motet.parts.server_optimisers import ServerOptimiserName
from motet.runs.recipe import method_class, method_names
from motet.vec import leaves
from motet.wire import pack, unpack
from rounds import server_examples


def kinds_of_schedules() -> tuple[str, ...]:
    return get_args(get_type_hints(RateSchedule)["kind"])


ROUNDS = 3  # every client is asked, and half of them a second time
PAUSE = 2  # rounds before the pause
ENGINES: dict[str, Callable[..., Any]] = {
    "loop": Loop,
    "vmap": Vmap,
    "vmap in chunks": partial(Vmap, chunk=5),
    "threads": partial(Threads, workers=3),
}
WAYS: dict[str, dict[str, Any]] = (
    {f"fedavg {name}": {"optimiser": name, "lr": 0.01} for name in get_args(OptimiserName) if name != "sgd"}
    | {f"fedavg {kind}": {"schedule": RateSchedule(kind, 1, 3, every=1)} for kind in kinds_of_schedules()}
    | {"fedavg steps": {"steps": 4}}
    | {f"fedopt {name}": {"server_optimiser": name} for name in get_args(ServerOptimiserName)}
    | {"fedper+fedopt": {}, "fedper+ifca": {"k": 2}, "fedper+cfl": {"first": 1}}
    | {"fedper+fedperc": {"k": 2}, "scaffold+dapfl": {}}
    | {f"fedavg {way}": {} for way in WAYS_TO_COUNT}
    | {f"page {name}": {"player": name} for name in get_args(PlayerName) if name not in ("ddpg", "constant")}
    | {f"page {rule}": {"step_max": 4.0, "step_rule": rule} for rule in ("search", "fedexp")}
    | {"feddyn+page": {}, "scaffold+page": {}}
)  # labels of tests: a method, and settings that make it another test
AT_ONCE = {"optimiser": "adamw", "decay": 0.01, "steps": 4, "schedule": RateSchedule("cosine", 1, ROUNDS)}
QUICK: dict[str, dict[str, Any]] = {"stacking": {"trees": 3}}  # settings that save time and change no path
# methods with an operation that no C++ is generated for (means, variances, norms, second derivatives): all clients take
# each step together
TOGETHER = {"feddbe", "fedcp", "fedpac", "fedproto", "gpfl", "moon", "perfcl", "perfedavg"}
SOME_TOGETHER = {"fedproto", "feddbe"}  # taken to the end in every run of the tests
Clients = Mapping[str, ClientData]


# ---- which tests there are ----


def all_solo(method: type[Method]) -> bool:
    verbs = [f for f in (getattr(method, name) for name in dir(method)) if is_verb(f)]
    return all(map(is_solo, [*verbs, method.personal]))


def engines_of(name: str) -> list[str]:
    return [e for e in ENGINES if not (e.startswith("vmap") and all_solo(class_of(name)))]


def class_of(label: str) -> type[Method]:
    return method_class(label.partition(" ")[0])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test for each method; `engine` is any engine, `other` any but the loop.

    All tests of a method go to one worker, because it remembers its runs.
    """
    if "method" not in metafunc.fixturenames:
        return
    names = metafunc.config.getoption("method") or [*method_names(), *WAYS]
    groups = {n: pytest.mark.xdist_group(n) for n in names}
    word = next((w for w in ("engine", "other") if w in metafunc.fixturenames), None)
    if word:
        engines = {n: [e for e in engines_of(n) if word == "engine" or e != "loop"] for n in names}
        pairs = [pytest.param(n, e, marks=groups[n]) for n in names for e in engines[n]]
        metafunc.parametrize(("method", word), pairs, indirect=["method"])
    else:
        metafunc.parametrize("method", [pytest.param(n, marks=groups[n]) for n in names], indirect=True)


def way_to_count(label: str) -> str:
    """The loss or the weights that a label names; "" where it names none."""
    way = label.partition(" ")[2]
    return way if way in WAYS_TO_COUNT else ""


@pytest.fixture
def clients_data(request: pytest.FixtureRequest) -> Clients:
    """Those of conftest.py, with the targets and weights that a label needs."""
    way = way_to_count(request.node.callspec.params["method"])
    return remembered((way,), lambda: clients_of(way, twelve_clients())) if way else dict(twelve_clients())


def new_method(label: str, task: Any) -> Method:
    if way := way_to_count(label):
        task = task_of(way, FEATURES, CLASSES)
    return class_of(label)(task, **QUICK.get(label, {}), **WAYS.get(label, {}))


@pytest.fixture
def method(request: pytest.FixtureRequest, task: Any) -> Method:
    """One object for all tests of a method, because recorded training steps belong to it."""
    return remembered((request.param,), partial(new_method, request.param, task))


@pytest.fixture
def fastest(method: Method) -> str:
    """The engine for tests that hold on all if they hold on one."""
    return "loop" if all_solo(type(method)) else "vmap"


# ---- runs ----


def turn(engine: Any, number: int, *, backwards: bool = False, seed: int = 1) -> Turn:
    """Half of the clients, others in every round, and a few examples of the server's own."""
    cohort = list(engine.clients)[number % 3 :: 2]
    order = cohort[::-1] if backwards else cohort
    return Turn(number, order, engine.clients, seed_of(seed, number), server_examples())


def go(method: Method, engine: Any, first: int = 0, last: int = ROUNDS, state: Any = None, **how: Any) -> Any:
    if first == 0:
        state = start(engine, method, turn(engine, -1, **how))
    for number in range(first, last):
        state = play(engine, method, state, turn(engine, number, **how))
    return state


def states(engine: Any) -> dict[str, Tree]:
    """What each client keeps, of those that keep anything."""
    kept = {c: engine.keeps.get(c) for c in engine.clients}
    return {c: keep for c, keep in kept.items() if keep is not None}


def resume(engine: Any, kept: Mapping[str, Tree]) -> None:
    """Put into an engine what clients kept when the run was paused."""
    engine.keeps.begin(PAUSE - 1)
    for client, keep in kept.items():
        engine.keeps.put(client, keep)


def outcome(method: Method, engine: Any, state: Any) -> list[Tensor]:
    """Everything that matters: the state, what clients keep, and how everyone scores."""
    clients, found = engine.evaluate(method, state, turn(engine, ROUNDS - 1), "test")
    order = torch.tensor([clients.index(c) for c in engine.clients])
    scores = [v[order].nan_to_num(-1) for v in leaves(found)]  # a client with one class has no AUC
    kept = [v for keep in states(engine).values() for v in leaves(keep)]
    return [numbers(v) for v in [*leaves(state), *kept, *scores]]


def numbers(v: Any) -> Tensor:
    """A value as numbers, a word by its letters."""
    return torch.as_tensor(list(v.encode()) if isinstance(v, str) else v).double()


def personal_models(method: Method, engine: Any, state: Any) -> dict[str, Tree]:
    return dict(engine.personal_models(method, state, turn(engine, ROUNDS - 1)))


def gap(a: list[Any], b: list[Any]) -> float:
    """The largest difference of two lists of tensors or numbers; models of other sizes are far apart."""
    assert len(a) == len(b)
    pairs = [(numbers(p), numbers(q)) for p, q in zip(a, b, strict=True)]
    if any(p.shape != q.shape for p, q in pairs):
        return math.inf
    return max([float((p - q).abs().max()) for p, q in pairs if p.numel()], default=0.0)


@dataclass
class Recorder:
    """A loop that writes down its asks, what each client came with and what left it."""

    engine: Any
    asks: list[Ask] = field(default_factory=list)
    replies: list[tuple[int, Tree, Tree]] = field(default_factory=list)  # (the client's seed, keep, reply)

    @property
    def clients(self) -> list[str]:
        return list(self.engine.clients)

    def begin(self, method: Method, turn: Turn) -> None:
        self.engine.begin(method, turn)

    def ask(self, ask: Ask) -> Tree:
        self.asks.append(ask)
        return self.engine.ask(replace(ask, verb=self.recorded(ask.verb)))

    def recorded(self, asked: Verb) -> Verb:
        @wraps(asked)
        def recorded(sent: Tree, keep: Tree, data: Any) -> tuple[Tree, Tree]:
            reply, kept = asked(sent, keep, data)
            self.replies.append((int(data.seed), keep, reply))
            return reply, kept

        return verb(solo=is_solo(asked))(recorded)


@dataclass
class Played:
    """One run and what it left behind."""

    engine: Any
    state: Tree
    outcome: list[Tensor]
    paused: tuple[bytes, dict[str, bytes]]  # the state and what clients kept after PAUSE rounds
    recorder: Recorder | None


REMEMBERED: dict[tuple[Any, ...], Any] = {}


def remembered(key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    if key not in REMEMBERED:
        REMEMBERED[key] = make()
    return REMEMBERED[key]


def undisturbed(method: Method, engine: str, clients: Clients) -> Played:
    """The run that nothing disturbs."""

    def make() -> Played:
        inner = ENGINES[engine](clients)
        recorder = Recorder(inner) if engine == "loop" else None
        state = go(method, recorder or inner, last=PAUSE)
        paused = pack(state), {c: pack(keep) for c, keep in states(inner).items()}
        state = go(method, recorder or inner, first=PAUSE, state=state)
        return Played(inner, state, outcome(method, inner, state), paused, recorder)

    return remembered((id(method), engine), make)


def disturbed(method: Method, engine: str, clients: Clients) -> list[Tensor]:
    """c00 has one example and none to validate with, c02 sends nan, c04 never answers; another seed."""

    def make() -> list[Tensor]:
        inner = ENGINES[engine]({**clients, "c00": with_one_example(clients["c00"])})
        hostile = Hostile(inner, ["c02"], "nan")
        faulty = Faulty(hostile, lambda client, number: client == "c04" and number >= 0)
        return outcome(method, inner, go(method, faulty, seed=2))

    return remembered((id(method), engine, "disturbed"), make)


def with_one_example(c: ClientData) -> ClientData:
    train, val = c.train.take(), c.val.take()
    one, none = (Batch(b.x[:n], b.y[:n], b.live[:n]) for b, n in ((train, 1), (val, 0)))
    return replace(c, train=one, val=none)


# ---- what must hold ----


def test_every_engine_agrees_with_the_loop(method: Method, other: str, clients_data: Clients) -> None:
    expected, found = (undisturbed(method, e, clients_data).outcome for e in ("loop", other))
    assert gap(expected, found) < 2e-5


@pytest.mark.long
def test_every_engine_agrees_with_the_loop_on_all_ways_to_train_at_once(
    method: Method, clients_data: Clients
) -> None:
    trained = trained_otherwise(method)
    if trained is None:
        pytest.skip("this method does not train so")
    expected, *found = (
        outcome(trained, e, go(trained, e)) for e in (make(clients_data) for make in ENGINES.values())
    )
    assert max(gap(expected, f) for f in found) < 2e-5


@pytest.mark.long
def test_every_engine_agrees_with_the_loop_on_rows_with_weights(
    method: Method, clients_data: Clients
) -> None:
    weighed = {c: with_weights(held) for c, held in clients_data.items()}
    names = ["loop", "threads"] if all_solo(type(method)) else list(ENGINES)
    expected, *found = (outcome(method, e, go(method, e)) for e in (ENGINES[name](weighed) for name in names))
    assert max(gap(expected, f) for f in found) < 2e-5
    assert gap(expected, undisturbed(method, "loop", clients_data).outcome) > 0


def trained_otherwise(method: Method) -> Method | None:
    """The method with all ways to train at once that it has; None where it refuses them, or has none."""
    rates = {k: getattr(method, k) / 10 for k in ("lr", "lr_min", "lr_max") if hasattr(method, k)}
    there = {f.name for f in fields(method)}
    trained = replace(method, **{k: v for k, v in (AT_ONCE | rates).items() if k in there})
    try:
        trained.check()
    except MethodUnfit:
        return None
    return trained if "optimiser" in there else None


class TakenTogether(Exception):
    """A method's steps cannot be compiled client by client."""


def test_steps_compiled_client_by_client_agree_with_the_loop_and_with_themselves(
    method: Method, clients_data: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step of a method takes the other path but those of TOGETHER, and the number of threads changes no bit.

    The other path compiles for seconds: two methods take it here, and the long test below takes it with all."""
    ways: list[bool] = []
    name = type(method).__name__.lower()

    def noted(*given: Any) -> Any:
        ways.append((made := client_by_client(*given)) is not None)
        if made is None and name in TOGETHER - SOME_TOGETHER:
            raise TakenTogether
        return made

    monkeypatch.setattr(descent, "client_by_client", noted)
    expected, found = undisturbed(method, "loop", clients_data).outcome, []
    if name in TOGETHER - SOME_TOGETHER:
        with pytest.raises(VerbFailed, match="TakenTogether"):
            go(method, Vmap(clients_data, compiled=True))
        return
    for workers in (1, 3):
        engine = Vmap(clients_data, compiled=True, workers=workers)
        found.append(outcome(method, engine, go(method, engine)))
    assert gap(expected, found[0]) < 2e-5
    assert gap(found[0], found[1]) == 0
    assert all(ways) != (name in TOGETHER)


@pytest.mark.long
def test_compiled_steps_agree_with_the_loop_and_with_themselves(
    method: Method, clients_data: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that all clients take together. Compiling takes seconds for each method and each size of a cohort."""
    monkeypatch.setattr(descent, "client_by_client", lambda *_: None)
    expected, found = undisturbed(method, "loop", clients_data).outcome, []
    for _ in range(2):
        engine = Vmap(clients_data, compiled=True)
        found.append(outcome(method, engine, go(method, engine)))
    assert gap(expected, found[0]) < 2e-5
    assert gap(found[0], found[1]) == 0


def test_the_same_seed_gives_the_same_bits_in_whatever_order_clients_come(
    method: Method, engine: str, clients_data: Clients
) -> None:
    back = ENGINES[engine](dict(reversed(clients_data.items())))
    found = outcome(method, back, go(method, back, backwards=True))
    assert gap(undisturbed(method, engine, clients_data).outcome, found) == 0


def test_another_seed_gives_another_result(method: Method, clients_data: Clients) -> None:
    other = Loop(clients_data)
    expected = undisturbed(method, "loop", clients_data).outcome
    assert gap(expected, outcome(method, other, go(method, other, seed=2))) > 0


def test_any_number_of_threads_gives_the_same_bits(method: Method, clients_data: Clients) -> None:
    one = Threads(clients_data, workers=1)
    expected = undisturbed(method, "threads", clients_data).outcome
    assert gap(expected, outcome(method, one, go(method, one))) == 0


def test_a_pause_changes_nothing_and_all_that_matters_survives_the_wire(
    method: Method, engine: str, clients_data: Clients
) -> None:
    whole, after = undisturbed(method, engine, clients_data), ENGINES[engine](clients_data)
    state, kept = whole.paused
    resume(after, {c: unpack(keep) for c, keep in kept.items()})
    assert (
        gap(whole.outcome, outcome(method, after, go(method, after, first=PAUSE, state=unpack(state)))) == 0
    )


def test_client_states_on_disk_are_those_in_memory(
    method: Method, fastest: str, clients_data: Clients
) -> None:
    disk = ENGINES[fastest](clients_data, ClientStates(on_disk=True))
    found = outcome(method, disk, go(method, disk))
    assert gap(undisturbed(method, fastest, clients_data).outcome, found) == 0


def test_what_a_client_keeps_never_appears_in_a_message(method: Method, clients_data: Clients) -> None:
    played = undisturbed(method, "loop", clients_data)
    assert played.recorder is not None
    joined = set()
    for seed, keep, reply in played.recorder.replies:
        client = whose(seed, played.engine.clients)
        secrets = [v for v in leaves(keep) if isinstance(v, Tensor) and v.numel() > 1 and client in joined]
        for said in leaves(reply):
            assert not any(isinstance(said, Tensor) and torch.equal(said, s) for s in secrets)
        joined.add(client)


def whose(seed: int, clients: list[str]) -> str:
    """A client's seed of a round is made of its name, so it says who it is."""
    rounds = [seed_of(1, number) for number in range(-1, ROUNDS)]
    return next(c for c in clients for r in rounds if seed_of(r, c) == seed)


def test_verbs_change_nothing_that_they_are_given(method: Method, clients_data: Clients) -> None:
    """As is refused of methods of a person's own, which a class of this file is."""
    own = type("Own", (type(method),), {"__module__": __name__})
    strict = own(**{f.name: getattr(method, f.name) for f in fields(method) if f.init})
    for engine in ["loop"] if all_solo(type(method)) else ["loop", "vmap"]:
        inner = ENGINES[engine](clients_data)
        outcome(strict, inner, go(strict, inner, last=1))


def test_nothing_learns_from_test_examples(method: Method, clients_data: Clients) -> None:
    whole = undisturbed(method, "loop", clients_data)
    without = Loop({c: with_unknown_test_examples(d) for c, d in clients_data.items()})
    assert gap(leaves(whole.state), leaves(go(method, without))) == 0
    assert gap(*([t for k in states(e).values() for t in leaves(k)] for e in (whole.engine, without))) == 0


def with_unknown_test_examples(c: ClientData) -> ClientData:
    test = c.test.take()
    return replace(c, test=Batch(test.x * torch.nan, test.y, test.live))


def test_one_example_a_silent_client_and_one_that_sends_nan_are_borne_alike(
    method: Method, engine: str, clients_data: Clients
) -> None:
    found = disturbed(method, engine, clients_data)
    assert all(torch.isfinite(v).all() for v in found)
    if engine != "loop":
        assert gap(disturbed(method, "loop", clients_data), found) < 2e-5


def test_a_client_may_join_late(method: Method, fastest: str, clients_data: Clients) -> None:
    early = ENGINES[fastest]({c: d for c, d in clients_data.items() if c != "c11"})
    late = ENGINES[fastest](clients_data)
    state = go(method, early, last=PAUSE)
    resume(late, states(early))
    state = go(method, late, first=PAUSE, state=state)
    assert all(torch.isfinite(v).all() for v in outcome(method, late, state))


HELD_ON = {"median": "vmap", "trimmed": "vmap in chunks", "krum": "threads"}


@pytest.mark.parametrize("mean", HELD_ON)
def test_robust_means_are_the_same_on_every_engine(method: Method, mean: str, clients_data: Clients) -> None:
    """Each mean on the loop and on one other engine: a mean sees replies, and not where they came from."""
    played = undisturbed(method, "loop", clients_data)
    assert played.recorder is not None
    if all(ask.learn == "all" for ask in played.recorder.asks):
        pytest.skip("this method averages nothing")
    engine = "threads" if all_solo(type(method)) else HELD_ON[mean]
    expected, found = (robust(method, mean, e, clients_data) for e in ("loop", engine))
    assert gap(expected, found) <= (0 if engine == "threads" else 2e-5)


def robust(method: Method, mean: str, engine: str, clients: Clients) -> list[Tensor]:
    inner = ENGINES[engine](clients)
    inner.fold = lambda: GatheredMean(robust_mean(mean, hostile=0.15, mix=True))
    return outcome(method, inner, go(method, Hostile(inner, ["c03"], "flip")))


def models_of(method: Method, engine: str, clients: Clients) -> dict[str, Tree]:
    played = undisturbed(method, engine, clients)
    key = (id(method), engine, "personal models")
    return remembered(key, lambda: personal_models(method, played.engine, played.state))


def test_a_personal_model_is_plain_data(method: Method, clients_data: Clients) -> None:
    for client, tree in models_of(method, "loop", clients_data).items():
        assert client in clients_data
        assert unpack(pack(tree)) is not None and leaves(tree)


def test_personal_models_are_the_same_on_every_engine(
    method: Method, other: str, clients_data: Clients
) -> None:
    expected, found = (list(in_order(models_of(method, e, clients_data))) for e in ("loop", other))
    assert gap(expected, found) <= (0 if other == "threads" else 2e-5)


def in_order(models: dict[str, Tree]) -> Iterator[Any]:
    return (v for c in sorted(models) for v in leaves(models[c]))
