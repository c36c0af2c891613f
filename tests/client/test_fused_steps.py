"""All steps of a client in one compiled call: the same as the loop, and not used where it cannot be."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import vmap

from motet.client import Batch, Data, Task, compiled_steps, descend, seed_of
from motet.client.array_code import CannotGenerate
from motet.client.client_by_client import why_not_fused
from motet.client.data import orders
from motet.client.fused_steps import FusedSteps
from motet.client.step_library import built, compiler
from motet.engines.choose import check_compiler
from motet.errors import UsageError
from motet.vec import Vec, stack

pytestmark = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler"
)
ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus)
OPTIMISERS: tuple[dict[str, Any], ...] = (
    {},
    {"momentum": 0.9, "decay": 0.01},
    {"clip": 0.2},
    {"optimiser": "adam", "decay": 0.01},
    {"optimiser": "adamw", "decay": 0.1, "clip": 1.0},
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads of the calls to compiled steps."""
    seen: list[int] = []
    usual = FusedSteps.__call__

    def counted(self: FusedSteps, clients: int, threads: int, *rest: Any) -> list[Tensor]:
        seen.append(threads)
        return usual(self, clients, threads, *rest)

    monkeypatch.setattr(FusedSteps, "__call__", counted)
    return seen


def some_rows(task: Task, n: int, rows: int, features: int, kind: torch.dtype = torch.float32) -> Data:
    g = torch.Generator().manual_seed(n)
    x = torch.randn(rows, features, generator=g).to(kind)
    y = torch.randint(0, task.outputs, (rows,), generator=g) if task.kind == "classes" else x[:, 0] * 0.5
    return Data(x, y, torch.tensor(n), torch.tensor(seed_of(n)), Batch.of(x[:0], y[:0]))


def trained(task: Task, clients: list[Data], threads: int = 1, compiled: bool = True, **how: Any) -> Vec:
    def one(d: Data) -> Vec:
        return descend(task.loss, task.w0, d, **how)

    with compiled_steps(compiled, threads):
        return vmap(one, randomness="error")(stack(clients))


def row(stacked: Vec, k: int) -> Vec:
    return stacked.map(lambda a, _: a[k])


def apart(a: Vec, b: Vec) -> float:
    return max(float((a[k] - b[k]).abs().max()) for k in a)


def net_of(sizes: list[int], activation: type[nn.Module]) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def test_one_step_by_hand(calls: list[int]) -> None:
    task = Task(nn.Linear(1, 1), "numbers", 1)
    task.w0 = Vec(weight=torch.tensor([[2.0]]), bias=torch.tensor([1.0]))
    none = Batch.of(torch.zeros(0, 1), torch.zeros(0))
    client = Data(torch.tensor([[3.0]]), torch.tensor([5.0]), torch.tensor(1), torch.tensor(0), none)
    # prediction 7, error 2: slopes 2*2*3 = 12 and 2*2 = 4
    after = trained(task, [client, client], lr=0.1, epochs=1, batch=4)
    assert after["weight"].flatten().tolist() == pytest.approx([0.8, 0.8])
    assert after["bias"].flatten().tolist() == pytest.approx([0.6, 0.6])
    assert calls == [1]


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(st.integers(1, 21), min_size=2, max_size=4),
    activation=st.sampled_from(ACTIVATIONS),
    kind=st.sampled_from(("classes", "numbers")),
    optimiser=st.sampled_from(OPTIMISERS),
    batch=st.integers(1, 40),
    length=st.sampled_from(({"epochs": 3}, {"steps": 7}, {"epochs": 2, "drop_last": True})),
    double=st.booleans(),
)
def test_any_small_dense_network_is_trained_as_by_the_loop(
    sizes: list[int],
    activation: type[nn.Module],
    kind: Any,
    optimiser: dict[str, Any],
    batch: int,
    length: dict[str, Any],
    double: bool,
) -> None:
    torch.manual_seed(1)
    sizes = [*sizes[:-1], max(2, sizes[-1]) if kind == "classes" else 1]
    number = torch.float64 if double else torch.float32
    task = Task(net_of(sizes, activation).to(number), kind, sizes[-1])
    clients = [some_rows(task, n, 23, sizes[0], number) for n in (1, 23, 14)]
    how = {"lr": 0.02, "batch": batch, **optimiser, **length}
    found = trained(task, clients, **how)
    for k, client in enumerate(clients):
        alone = descend(task.loss, task.w0, client, **how)
        assert apart(row(found, k), alone) < (1e-9 if double else 2e-5)


def test_threads_and_neighbours_change_no_bit(calls: list[int]) -> None:
    torch.manual_seed(2)
    task = Task(net_of([9, 12, 5], nn.ReLU), "classes", 5)
    clients = [some_rows(task, n, 31, 9) for n in range(1, 32, 3)]
    how: dict[str, Any] = {"lr": 0.1, "epochs": 3, "batch": 8, "momentum": 0.5}
    one, *more = [trained(task, clients, threads=many, **how) for many in (1, 2, 5)]
    assert all(torch.equal(one[k], other[k]) for other in more for k in one)
    few = trained(task, clients[4:7], **how)
    assert all(torch.equal(one[k][4:7], few[k]) for k in one)
    assert calls == [1, 2, 5, 1]


def rows_in_order(u: Vec, batch: Batch) -> Tensor:
    return (batch.mean(batch.y) * u["w"]).sum()


@pytest.mark.parametrize("n", [1, 2, 300, 70_000])
def test_batches_have_the_rows_that_every_engine_takes(n: int) -> None:
    """With slopes that are the mean target of a batch, the steps add up the targets of the first rows in the order."""
    y = torch.arange(n, dtype=torch.float64)
    client = Data(y[:, None], y, torch.tensor(n), torch.tensor(7), Batch.of(y[:0, None], y[:0]))

    def one(d: Data) -> Vec:
        return descend(rows_in_order, Vec(w=torch.zeros(1, dtype=torch.float64)), d, lr=1.0, steps=3, batch=1)

    with compiled_steps(True):
        found = vmap(one)(stack([client, client]))["w"][0]
    every = torch.cat([orders(torch.tensor(7), epoch, torch.tensor(n), n) for epoch in range(3)])
    assert found.item() == -float(every[:3].sum())


def exponentials(u: Vec, g: Vec, given: Any, lr: Tensor) -> Vec:
    return Vec(up=torch.exp(u["up"]), log=torch.log(u["log"]))


def nothing(u: Vec, batch: Batch) -> Tensor:
    return 0.0 * (u["up"].sum() + u["log"].sum()) * batch.mean(batch.y)


def test_exponentials_and_logarithms_are_torchs() -> None:
    inf, nan = float("inf"), float("nan")
    edges = torch.tensor([-inf, -104.0, -87.5, -87.3, -1e-8, 0.0, 1e-8, 88.5, 88.72, 88.73, 200.0, inf, nan])
    up = torch.cat([edges, torch.linspace(-80, 88, 501)])
    log = torch.cat([torch.tensor([-1.0, 0.0, inf, nan]), torch.logspace(-37, 38, 510)])
    y = torch.zeros(1)
    client = Data(y[:, None], y, torch.tensor(1), torch.tensor(0), Batch.of(y[:0, None], y[:0]))

    def one(d: Data) -> Vec:
        return descend(nothing, Vec(up=up, log=log), d, lr=1.0, steps=1, batch=1, step=exponentials)

    with compiled_steps(True):
        found = row(vmap(one)(stack([client, client])), 0)
    smallest = torch.where(torch.exp(up) < 1.1754944e-38, 0.0, torch.exp(up))  # denormals are 0
    assert torch.allclose(found["up"], smallest, rtol=4e-7, atol=1.2e-38, equal_nan=True)
    assert torch.allclose(found["log"], torch.log(log), rtol=2e-7, atol=1e-7, equal_nan=True)


def sorted_loss(u: Vec, batch: Batch) -> Tensor:
    return ((batch.x @ u["weight"].T).sort(0).values[:, 0] * batch.live).sum()


def test_what_cannot_be_generated_is_named() -> None:
    x, y = torch.zeros(4, 3), torch.zeros(4)
    assert "aten.sort" in why_not_fused(sorted_loss, Vec(weight=torch.ones(1, 3)), x, y, 2)
    task = Task(nn.Linear(3, 2), "classes", 2)
    assert why_not_fused(task.loss, task.w0, x, y.long(), 2) == ""
    large = Task(nn.Linear(1000, 1000), "classes", 1000)
    assert "cache" in why_not_fused(large.loss, large.w0, torch.zeros(4, 1000), y.long(), 2)


def test_without_a_compiler_steps_are_those_that_are_not_compiled(
    monkeypatch: pytest.MonkeyPatch, calls: list[int]
) -> None:
    torch.manual_seed(4)
    task = Task(nn.Linear(3, 2), "classes", 2)
    clients = [some_rows(task, n, 9, 3) for n in (4, 9)]
    how: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch": 3, "momentum": 0.25}
    expected = trained(task, clients, compiled=False, **how)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    found = trained(task, clients, **how)
    assert all(torch.equal(expected[k], found[k]) for k in found) and calls == []


def test_a_compiler_without_its_headers_counts_as_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would be chosen by engine.compile=auto, and end the run."""
    bad = tmp_path / "g++"
    bad.write_text("#!/bin/sh\necho 'error: install the command line tools' >&2\nexit 1\n")
    bad.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    monkeypatch.delenv("CXX", raising=False)
    assert shutil.which("g++") == str(bad) and compiler() is None
    with pytest.raises(UsageError, match="none that works was found"):
        check_compiler(True)


def test_a_compiler_that_fails_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = tmp_path / "c++"
    bad.write_text(
        "#!/bin/sh\ncase $2 in -fsyntax-only) exit 0;; esac\necho 'error: no space left' >&2\nexit 1\n"
    )
    bad.chmod(0o755)
    monkeypatch.setenv("CXX", str(bad))
    folder = tmp_path / "cache"
    folder.mkdir()
    with pytest.raises(CannotGenerate, match="failed: error: no space left"):
        built("int nothing;", folder)
    assert not [file for file in folder.rglob("*") if file.is_file()]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_can_be_generated(activation: type[nn.Module]) -> None:
    task = Task(net_of([4, 9, 3], activation), "classes", 3)
    assert why_not_fused(task.loss, task.w0, torch.zeros(5, 4), torch.zeros(5).long(), 4) == ""


def test_a_target_that_is_no_class_is_an_error() -> None:
    task = Task(nn.Linear(3, 2), "classes", 2)
    client = some_rows(task, 5, 9, 3)
    client.y[:] = 2
    with pytest.raises(IndexError, match="not there"):
        trained(task, [client, client], lr=0.1, epochs=1, batch=3)


def test_a_client_whose_weights_overflow_has_no_finite_weights() -> None:
    task = Task(nn.Linear(3, 1), "numbers", 1)
    clients = [some_rows(task, 5, 9, 3), some_rows(task, 9, 9, 3)]
    found = trained(task, clients, lr=torch.tensor(1e30), epochs=5, batch=3)
    assert not found["weight"].isfinite().all()


class Narrow(nn.Module):
    """Adds truths, or bytes that wrap around."""

    def __init__(self, of: str) -> None:
        super().__init__()
        self.of, self.first, self.last = of, nn.Linear(9, 11), nn.Linear(11, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        small = (x.abs() * 200).to(torch.uint8)
        factors = {"truths": (x > 0) + (x > -0.5), "bytes": small + 200, "negative bytes": -small}
        out: Tensor = self.last(x * factors[self.of].float() / 255)
        return out


@pytest.mark.parametrize("of", ["truths", "bytes", "negative bytes"])
def test_sums_of_truths_and_of_bytes_are_torchs(of: str, calls: list[int]) -> None:
    """C++ computes both as int: true + true would be 2, and bytes would not wrap around."""
    torch.manual_seed(3)
    task = Task(Narrow(of), "classes", 3)
    clients = [some_rows(task, n, 23, 9) for n in (5, 23)]
    how: dict[str, Any] = {"lr": 0.5, "epochs": 2, "batch": 8}
    found = trained(task, clients, **how)
    assert calls == [1]
    for k, client in enumerate(clients):
        assert apart(row(found, k), descend(task.loss, task.w0, client, **how)) < 2e-5


class SumsNothing(nn.Module):
    """Takes a slice behind the last feature, as a network for tables of several widths may."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(x) * (1 + x[:, 4:].sum(1, keepdim=True))
        return out


@pytest.mark.parametrize("n", [1, 23])
def test_a_sum_of_nothing_is_zero(n: int, calls: list[int]) -> None:
    torch.manual_seed(5)
    task = Task(SumsNothing(), "classes", 3)
    clients = [some_rows(task, many, n, 4) for many in (1, n)]
    how: dict[str, Any] = {"lr": 0.5, "epochs": 2, "batch": 8}
    found = trained(task, clients, **how)
    assert calls == [1]
    for k, client in enumerate(clients):
        assert apart(row(found, k), descend(task.loss, task.w0, client, **how)) < 2e-5


def test_a_place_below_zero_is_no_place_for_gather() -> None:
    """torch's gather refuses negative numbers; an index from the end would train on another column in silence."""

    class Gathers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            places = x[:, :1].long().expand(-1, 3) - 1
            out: Tensor = self.last(x).gather(1, places)
            return out

    task = Task(Gathers(), "classes", 3)
    client = some_rows(task, 5, 9, 3)
    client.x[:] = 0.0
    with pytest.raises(IndexError, match="not there"):
        trained(task, [client, client], lr=0.1, epochs=1, batch=3)
