"""Every method on another device: results have the CPU's bits, and a tensor in the wrong place fails a test.

The device is a pretended one (pretended_device.py). Recorded steps of vmap are checked beside it, on torch's fake
tensors, which have a device and a shape and no numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from motet import nets
from motet.client import Batch, ClientData, Task, descent
from motet.client.data import PrivateSteps
from motet.client.devices import CPU, working_on
from motet.client.visit import VerbFailed
from motet.core import Method, Turn, verb
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.engines.wrappers.hostile import Hostile
from motet.errors import MotetError
from motet.guard.gather import GatheredMean, robust_mean
from motet.methods.fedavg import FedAvg
from motet.parts.rate_schedules import RateSchedule
from motet.runs.recipe import method_class, method_names
from motet.vec import Vec, leaves
from pretended_device import DEVICE, Elsewhere

CLASSES = 3
ROUNDS = 2
NETS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {  # shape of an example, options
    "logistic": ((5,), {}),
    "mlp": ((5,), {"hidden": (4,)}),
    "cnn": ((1, 8, 8), {"channels": (2, 3), "hidden": 4, "kernel": 3}),
    "resnet18": ((3, 8, 8), {"width": 0.125}),
    "resnet18 batch": ((3, 8, 8), {"width": 0.125, "norm": "batch"}),
    "lstm": ((4,), {"hidden": 4, "embedding": 2, "symbols": 6}),
}
ENGINES: dict[str, Callable[..., Any]] = {"loop": Loop, "vmap": Vmap, "threads": partial(Threads, workers=2)}
FEW: dict[str, dict[str, Any]] = {  # settings that save time and change no path
    "stacking": {"trees": 2},
    "fedala": {"mix_first": 2},
    "fedrecon": {"recon_epochs": 2},
    "finetune": {"tune": 2},
    "grouptune": {"tune": 2, "warm_up": 1},
    "pfa": {"warm_up": 1},
    "fedperc": {"warm_up": 1},
    "page": {"epochs_max": 2},
    "dapfl": {"epochs_max": 2},
    "swarm": {"particles": 3, "stretch": 2},
}


@pytest.fixture(autouse=True)
def steps_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """On both devices, so that bits can be compared."""
    monkeypatch.setattr(descent.Traced, "__call__", lambda traced, *values: traced.f(*values))


# ---- a small federation for each network ----


@cache
def federation(net: str) -> dict[str, ClientData]:
    shape, _ = NETS[net]
    draw = torch.Generator().manual_seed(3)

    def rows(many: int) -> Batch:
        y = torch.randint(0, CLASSES, (many,), generator=draw)
        if net == "lstm":
            return Batch.of(torch.randint(0, 6, (many, *shape), generator=draw), y)
        return Batch.of(torch.randn(many, *shape, generator=draw) + y.reshape(-1, *[1] * len(shape)), y)

    return {f"c{i}": ClientData(rows(n), rows(3), rows(3)) for i, n in enumerate((7, 9, 12))}


def task_with(net: str) -> Task:
    shape, options = NETS[net]
    made = nets.build(net.partition(" ")[0], options, shape, CLASSES, "classes", 0)
    return Task(made, "classes", CLASSES, build=lambda _: nets.build("mlp", {}, shape, CLASSES, "classes", 0))


def turn(engine: Any, net: str, number: int) -> Turn:
    proxy = federation(net)["c0"].val.take()
    return Turn(number, engine.clients[number % 2 :], engine.clients, 11 + number, proxy)


def played(engine: Any, method: Method, net: str, around: Any = None) -> list[Tensor]:
    """All that a run leaves: the state, what clients keep, scores, models."""
    asked = around or engine
    state = start(asked, method, turn(engine, net, -1))
    for number in range(ROUNDS):
        state = play(asked, method, state, turn(engine, net, number))
    last = turn(engine, net, ROUNDS - 1)
    _, scores = engine.evaluate(method, state, last, "test", ("personal", "global", "constant", "alone"))
    models = dict(engine.personal_models(method, state, last))
    kept = [k for k in map(engine.keeps.get, engine.clients) if k is not None]
    found = [
        torch.as_tensor(v) for v in leaves((state, kept, scores, models)) if not isinstance(v, str | bytes)
    ]
    return [v.double().nan_to_num(-1) for v in found]


def new_method(name: str, net: str) -> Method:
    return method_class(name)(task_with(net), **FEW.get(name, {}))


def compared(name: str, net: str, engine: str) -> tuple[list[Tensor], list[Tensor]]:
    """What a run leaves on the host's CPU and on the device."""
    make, clients = ENGINES[engine], federation(net)
    try:
        expected = played(make(clients), new_method(name, net), net)
    except MotetError as e:
        pytest.skip(f"not on the CPU either: {str(e).splitlines()[0]}")
    return expected, played(make(clients, device=DEVICE), new_method(name, net), net)


def check_same(expected: list[Tensor], found: list[Tensor], most: float = 0.0) -> None:
    assert not any(isinstance(v, Elsewhere) for v in found), "something was left on the device"
    assert [v.shape for v in expected] == [v.shape for v in found]
    assert max(float((a - b).abs().max()) for a, b in zip(expected, found, strict=True) if a.numel()) <= most


# For the CPU torch has an LSTM and a GroupNorm of their own, which sum in another order.
ROUNDING = {"lstm": 1e-5, "resnet18": 1e-5}


# ---- every method ----


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("name", method_names())
def test_every_method_has_the_cpus_bits_on_another_device(name: str, engine: str) -> None:
    check_same(*compared(name, "mlp", engine))


@pytest.mark.long
@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("net", [n for n in NETS if n != "mlp"])
@pytest.mark.parametrize("name", method_names())
def test_every_method_has_the_cpus_bits_on_every_network(name: str, net: str, engine: str) -> None:
    check_same(*compared(name, net, engine), ROUNDING.get(net, 0.0))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("net", ["logistic", "cnn", "lstm"])
def test_a_network_of_each_kind_has_the_cpus_bits_on_another_device(net: str, engine: str) -> None:
    check_same(*compared("ditto", net, engine), ROUNDING.get(net, 0.0))


def test_threads_have_the_cpus_bits_on_another_device() -> None:
    check_same(*compared("scaffold", "mlp", "threads"))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_optimisers_schedules_and_weights_of_classes_follow_the_device(engine: str) -> None:
    how = {
        "optimiser": "adamw",
        "decay": 0.01,
        "lr": 0.01,
        "schedule": RateSchedule("cosine", 1, 4),
        "steps": 3,
    }
    found = []
    for place in (CPU, DEVICE):
        task = task_with("mlp")
        task.criterion = type(task.criterion)("focal", weights=(1.0, 2.0, 3.0))
        found.append(played(ENGINES[engine](federation("mlp"), device=place), FedAvg(task, **how), "mlp"))
    check_same(*found)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_guards_and_attacks_follow_the_device(engine: str) -> None:
    found = []
    for place in (CPU, DEVICE):
        inner = ENGINES[engine](federation("mlp"), device=place)
        inner.fold = partial(GatheredMean, robust_mean("median"))
        found.append(played(inner, FedAvg(task_with("mlp")), "mlp", Hostile(inner, ["c1"], "flip")))
    check_same(*found)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("name", ["ditto", "fedavg"])
def test_private_steps_follow_the_device(name: str, engine: str) -> None:
    how = {"noise": 0.5, "private": PrivateSteps(0.5)}
    data = {c: replace(d, **how) for c, d in federation("mlp").items()}  # type: ignore[arg-type]
    makes = (partial(ENGINES[engine], data, device=place) for place in (CPU, DEVICE))
    check_same(*(played(make(), new_method(name, "mlp"), "mlp") for make in makes), most=1e-6)


def test_a_tensor_that_is_a_plain_attribute_of_a_layer_follows_the_device() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.shift = nn.Linear(5, CLASSES), torch.linspace(0, 1, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x + self.shift)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    task = Task(Shifted(), "classes", CLASSES)
    found = [played(Loop(federation("mlp"), device=d), FedAvg(task), "mlp") for d in (CPU, DEVICE)]
    check_same(*found)


# ---- what must fail ----


class Astray(FedAvg):
    """Brings the weights to the host in the middle of a verb."""

    @verb
    def train(self, w: Any, keep: Any, data: Any) -> Any:
        return self.descend(self.task.loss, w.map(lambda a, _: a.cpu()), data), keep


class AstrayLoss(FedAvg):
    """Makes a tensor on the host in a loss."""

    @verb
    def train(self, w: Any, keep: Any, data: Any) -> Any:
        return self.descend(self.shifted, w, data), keep

    def shifted(self, u: Any, batch: Batch) -> Tensor:
        z = self.task.predict(u, batch.x) + torch.ones(CLASSES, device="cpu")
        return batch.mean(self.task.per_example_loss(z, batch.y))


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("wrong", [Astray, AstrayLoss])
def test_a_tensor_in_the_wrong_place_fails(wrong: type[FedAvg], engine: str) -> None:
    played(ENGINES[engine](federation("mlp")), wrong(task_with("mlp")), "mlp")  # right on the CPU
    with pytest.raises(VerbFailed, match="is on the host, others are on pretended"):
        played(ENGINES[engine](federation("mlp"), device=DEVICE), wrong(task_with("mlp")), "mlp")


def test_nothing_enters_a_mode_on_the_cpu() -> None:
    from torch.overrides import _get_current_function_mode_stack as modes

    seen = []

    class Looks(FedAvg):
        @verb
        def train(self, w: Any, keep: Any, data: Any) -> Any:
            seen.append(len(modes()))
            return w, keep

    for engine in ENGINES.values():
        made = engine(federation("mlp"))
        play(made, Looks(task_with("mlp")), task_with("mlp").w0, turn(made, "mlp", 0))
    assert set(seen) == {0}


# ---- recorded steps ----


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, tuple[Tensor, ...]]]]:
    """The functions that vmap records, with what they were given."""
    found: list[tuple[Any, tuple[Tensor, ...]]] = []

    def call(traced: Any, *values: Tensor) -> Any:
        found.append((traced, values))
        return traced.f(*values)

    monkeypatch.setattr(descent.Traced, "__call__", call)
    yield found


def devices_in(task: Task, traced: Any, values: tuple[Tensor, ...]) -> set[str]:
    """Where a recorded step has its tensors, if it is recorded on the device; mixed devices raise. Numbers without axes
    may be on the host."""
    with FakeTensorMode(allow_non_fake_inputs=False), working_on(DEVICE):
        w0 = {k: torch.empty(v.shape, device=DEVICE) for k, v in task._w0[CPU].items()}
        task._w0[DEVICE] = Vec(w0)  # as the engine has put it there
        there = [torch.empty(v.shape, dtype=v.dtype, device=DEVICE) for v in values]
        graph = make_fx(traced.f, tracing_mode="real")(*there).graph
    made = [node.meta.get("val") for node in graph.nodes]
    return {v.device.type for v in made if isinstance(v, Tensor) and v.ndim}


@pytest.mark.parametrize("name", method_names())
def test_recorded_steps_have_all_tensors_on_the_device(
    name: str, recorded: list[tuple[Any, tuple[Tensor, ...]]]
) -> None:
    try:
        method = new_method(name, "mlp")
        played(Vmap(federation("mlp")), method, "mlp")
    except MotetError as e:
        pytest.skip(str(e))
    kinds = {traced: values for traced, values in recorded}
    assert all(devices_in(method.task, traced, values) == {DEVICE.type} for traced, values in kinds.items())


def test_a_recorded_step_with_a_tensor_in_the_wrong_place_fails(
    recorded: list[tuple[Any, tuple[Tensor, ...]]],
) -> None:
    task = task_with("mlp")
    played(Vmap(federation("mlp")), AstrayLoss(task), "mlp")
    with pytest.raises(RuntimeError, match="two devices"):
        devices_in(task, *recorded[0])


# ---- what these tests found ----


def test_a_visit_does_not_change_the_batch_statistics_that_it_was_sent() -> None:
    """Training with averaged statistics changes them in place: those of the client's copy alone."""
    net = "resnet18 batch"
    method, engine = new_method("fedrecon", net), Loop(federation(net))
    state = start(engine, method, turn(engine, net, -1))
    for number in range(2):
        before = [v.clone() for v in leaves(state)]
        after = play(engine, method, state, turn(engine, net, number))
        engine.evaluate(method, state, turn(engine, net, number), "test")
        assert all(torch.equal(a, b) for a, b in zip(before, leaves(state), strict=True))
        state = after
