"""The one training loop, against torch's own optimiser and by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from motet.client import (
    Batch,
    Data,
    Task,
    compiled_steps,
    descend,
    seed_of,
)
from motet.vec import Vec, stack


def linear_task() -> Task:
    torch.manual_seed(3)
    return Task(nn.Linear(4, 3), "classes", 3)


def make(n: int, seed: int = 5) -> Data:
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, 4, generator=g), torch.randint(0, 3, (n,), generator=g)
    return Data(x, y, torch.tensor(n), torch.tensor(seed_of(seed)), Batch.of(x[:0], y[:0]))


def with_torch(
    task: Task,
    data: Data,
    *,
    epochs: int,
    batch: int,
    clip: float | None = None,
    kind: type[torch.optim.Optimizer] = torch.optim.SGD,
    steps: int = 0,
    **how: float,
) -> Vec:
    net = nn.Linear(4, 3)
    net.load_state_dict(dict(task.w0))
    optimiser = kind(net.parameters(), **how)
    every = [at for e in range(epochs) for at in data.order(e).split(batch)]
    with torch.enable_grad():
        for at in every[:steps] if steps else every:
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(data.x[at]), data.y[at]).backward()
            if clip:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimiser.step()
    return Vec({k: p.detach() for k, p in net.named_parameters()})


def apart(a: Vec, b: Vec) -> float:
    return float((a - b).sq().sqrt())


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"momentum": 0.9}, {"momentum": 0.9}),
        ({"decay": 0.1}, {"weight_decay": 0.1}),
        ({"momentum": 0.5, "decay": 0.01}, {"momentum": 0.5, "weight_decay": 0.01}),
    ],
)
def test_descend_is_sgd(ours: dict[str, float], theirs: dict[str, float]) -> None:
    task, data = linear_task(), make(23)
    mine = descend(task.loss, task.w0, data, lr=0.2, epochs=3, batch=5, **ours)
    assert apart(mine, with_torch(task, data, epochs=3, batch=5, lr=0.2, **theirs)) < 1e-6


ADAM, ADAMW = torch.optim.Adam, torch.optim.AdamW


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"optimiser": "adam"}, {"kind": ADAM}),
        ({"optimiser": "adam", "decay": 0.1}, {"kind": ADAM, "weight_decay": 0.1}),
        ({"optimiser": "adamw"}, {"kind": ADAMW, "weight_decay": 0.0}),
        ({"optimiser": "adamw", "decay": 0.1}, {"kind": ADAMW, "weight_decay": 0.1}),
        ({"optimiser": "adam", "clip": 0.05}, {"kind": ADAM, "clip": 0.05}),
        (
            {"optimiser": "adamw", "decay": 0.1, "clip": 0.05},
            {"kind": ADAMW, "weight_decay": 0.1, "clip": 0.05},
        ),
    ],
)
def test_adam_and_adamw_are_torchs(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    task, data = linear_task(), make(23)
    mine = descend(task.loss, task.w0, data, lr=0.05, epochs=20, batch=5, **ours)
    assert apart(mine, with_torch(task, data, epochs=20, batch=5, lr=0.05, **theirs)) < 2e-6


def test_two_steps_of_adam_and_adamw_by_hand() -> None:
    # The gradients of (a - 3)^2 are 2 (a - 3). From 1 it is -4: m = -0.4 and v = 0.016, corrected to -4 and 16, so
    # that the step is 0.1 * 4 / (4 + 1e-8) = 0.1, and a = 1.1. There it is -3.8: m = -0.74 and v = 0.030424, corrected
    # by 0.19 and 0.001999 to -3.894737 and 15.219610: the step is 0.1 * 3.894737 / 3.901232, and a = 1.199834.
    # AdamW with decay 0.5 first takes 0.1 * 0.5 of a away: 1.05. From there the gradient is -3.9, ...
    one, data = Vec(a=torch.ones(1)), make(1)
    found = {
        name: float(descend(squared, one, data, lr=0.1, epochs=2, batch=1, optimiser=name, decay=decay)["a"])
        for name, decay in (("adam", 0.0), ("adamw", 0.5))
    }
    m, v = -0.4 * 0.9 - 0.1 * 3.9, 0.016 * 0.999 + 0.001 * 3.9**2
    second = 1.05 * (1 - 0.05) - 0.1 * (m / 0.19) / ((v / 0.001999) ** 0.5)
    assert found == pytest.approx({"adam": 1.199834, "adamw": second}, abs=1e-6)


def squared(u: Vec, batch: Batch) -> Tensor:
    return (u["a"] - 3).square().sum()


def test_state_of_an_optimiser_starts_at_zero_in_every_descent() -> None:
    task, data = linear_task(), make(10)
    first = descend(task.loss, task.w0, data, lr=0.1, batch=10, optimiser="adam")
    # Adam's first step has length lr in every weight whose gradient is not 0, whatever came before.
    second = descend(task.loss, first, data, lr=0.1, batch=10, optimiser="adam")
    for a, b in ((task.w0, first), (first, second)):
        assert all(torch.allclose(v.abs(), torch.full_like(v, 0.1), atol=1e-5) for v in (b - a).values())


# ---- a number of steps ----


@pytest.mark.parametrize("steps", [1, 4, 5, 6, 13])
def test_steps_go_on_into_further_epochs_and_end_within_one(steps: int) -> None:
    task, data = linear_task(), make(23)  # five batches in an epoch, the last one of three examples
    how: Any = {"lr": 0.1, "batch": 5, "momentum": 0.5}
    mine = descend(task.loss, task.w0, data, steps=steps, epochs=99, **how)
    assert apart(mine, with_torch(task, data, epochs=3, steps=steps, **how)) < 1e-6


def test_steps_without_a_last_batch_that_is_not_full_go_on_into_the_next_epoch_earlier() -> None:
    task, data = linear_task(), make(12)
    epoch = [at for e in range(3) for at in data.order(e).split(5)[:2]]  # ten of twelve rows
    u = task.w0
    for at in epoch[:5]:
        rows = Data(data.x[at], data.y[at], torch.tensor(5), data.seed, data.val)
        u = descend(task.loss, u, rows, lr=0.1, batch=5)
    mine = descend(task.loss, task.w0, data, lr=0.1, batch=5, steps=5, drop_last=True)
    assert apart(mine, u) < 1e-6


def test_a_client_without_rows_takes_no_steps() -> None:
    task, none = linear_task(), make(0)
    for how in ({"steps": 3}, {"epochs": 3}):
        after = descend(task.loss, task.w0, none, lr=0.1, decay=0.5, **how)
        assert apart(after, task.w0) == 0


@pytest.mark.parametrize("steps", [0, 3])
def test_a_chunk_without_any_rows_takes_no_steps(steps: int) -> None:
    task, one = linear_task(), make(4)
    empty = Data(one.x, one.y, torch.tensor(0), one.seed, one.val)  # padding only
    after = vmap(lambda d: descend(task.loss, task.w0, d, lr=0.1, steps=steps))(stack([empty, empty]))
    assert apart(after.map(lambda a, _: a[1]), task.w0) == 0


def test_clip_is_torchs_clip() -> None:
    task, data = linear_task(), make(23)
    mine = descend(task.loss, task.w0, data, lr=0.2, epochs=2, batch=5, clip=0.3)
    assert apart(mine, with_torch(task, data, epochs=2, batch=5, clip=0.3, lr=0.2)) < 1e-5


def test_one_step_by_hand() -> None:
    task = Task(nn.Linear(1, 1), "numbers", 1)
    w = Vec(weight=torch.tensor([[2.0]]), bias=torch.tensor([1.0]))
    data = Data(
        torch.tensor([[3.0]]),
        torch.tensor([5.0]),
        torch.tensor(1),
        torch.tensor(0),
        Batch.of(torch.zeros(0, 1), torch.zeros(0)),
    )
    # prediction 7, error 2: slopes 2*2*3 = 12 and 2*2 = 4
    after = descend(task.loss, w, data, lr=0.1, epochs=1, batch=4)
    assert after["weight"].item() == pytest.approx(0.8)
    assert after["bias"].item() == pytest.approx(0.6)


def padded(d: Data, rows: int) -> Data:
    more = rows - len(d.x)
    zero = torch.zeros(more, 4)
    return Data(
        torch.cat([d.x, zero]), torch.cat([d.y, torch.zeros(more, dtype=torch.long)]), d.n, d.seed, d.val
    )


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "heavy": {"momentum": 0.9, "decay": 0.01},
    "clip": {"clip": 0.2},
    "drop": {"drop_last": True},
    "adam": {"optimiser": "adam", "decay": 0.01, "clip": 0.2},
    "adamw": {"optimiser": "adamw", "decay": 0.1},
    "steps": {"steps": torch.tensor([7, 3, 0, 11])},
    "steps and drop": {"steps": torch.tensor([7, 3, 0, 11]), "drop_last": True, "momentum": 0.9},
    "steps of adam": {"steps": torch.tensor([7, 3, 0, 11]), "optimiser": "adam"},
}


@pytest.mark.parametrize(
    ("how", "compiled", "fused"),
    [
        pytest.param(
            how,
            compiled,
            fused,
            id=f"{name}-{compiled}-{fused}",
            marks=[pytest.mark.long] * (name not in ("heavy", "adamw")) * (compiled and not fused),
        )
        for name, how in WAYS.items()
        # steps that all clients take together are compiled for long; one way stands for all
        for compiled, fused in ((False, False), (True, False), (True, True))
    ],
)
def test_stacked_and_padded_clients_are_single_clients(
    how: dict[str, Any], compiled: bool, fused: bool
) -> None:
    task, clients = linear_task(), [make(n, seed=n) for n in (1, 4, 12, 23)]
    lr, epochs = torch.tensor([0.1, 0.2, 0.3, 0.05]), torch.tensor([1, 3, 2, 2])
    steps, rest = how.get("steps", torch.zeros(4, dtype=torch.long)), {k: how[k] for k in how if k != "steps"}

    def train(d: Data, r: Tensor, e: Tensor, s: Tensor) -> Vec:
        return descend(task.loss, task.w0, d, lr=r, epochs=e, steps=s, batch=5, **rest)

    alone = [train(*each) for each in zip(clients, lr, epochs, steps, strict=True)]
    data = stack([padded(d, 23) for d in clients])
    with compiled_steps(compiled, fused=fused):
        together = vmap(train, randomness="error")(data, lr, epochs, steps)
    for i, one in enumerate(alone):
        assert apart(one, together.map(lambda a, _, i=i: a[i])) < 2e-6


def test_drop_last_leaves_out_what_does_not_fill_a_batch_but_not_a_whole_client() -> None:
    task = linear_task()
    full = make(12)
    first_ten = full.order(0)[:10]
    ten = Data(full.x[first_ten], full.y[first_ten], torch.tensor(10), full.seed, full.val)
    a = descend(task.loss, task.w0, full, lr=0.1, batch=10, drop_last=True)
    b = descend(task.loss, task.w0, ten, lr=0.1, batch=10)
    assert apart(a, b) < 1e-6
    small = make(3)
    assert apart(descend(task.loss, task.w0, small, lr=0.1, batch=10, drop_last=True), task.w0) > 0


def towards(u: Vec, batch: Batch, w: Vec) -> torch.Tensor:
    return 0.5 * (u - w).sq()


def clamped(u: Vec, g: Vec, given: Vec, lr: torch.Tensor) -> Vec:
    return (u - lr * g).map(lambda a, _: a.clamp(-0.05, 0.05))


@pytest.mark.parametrize("stacked", [False, True])
def test_a_loss_sees_what_it_is_given_and_a_step_may_be_any_function(stacked: bool) -> None:
    task, data = linear_task(), make(10)
    goal = task.w0.map(lambda a, _: torch.ones_like(a))

    def train(d: Data) -> Vec:
        return descend(towards, task.w0, d, lr=0.5, epochs=4, batch=10, given=goal, step=clamped)

    got = vmap(train)(stack([data, data])) if stacked else train(data)
    assert all(torch.allclose(v, torch.full_like(v, 0.05)) for v in got.values())


def test_an_order_is_a_permutation_that_differs_by_epoch_seed_and_nothing_else() -> None:
    d = make(50)
    assert sorted(d.order(0).tolist()) == list(range(50))
    assert d.order(0).tolist() != d.order(1).tolist()
    assert d.order(0).tolist() == make(50).order(0).tolist()
    assert padded(d, 64).order(0)[:50].tolist() == d.order(0).tolist()


def test_chance_is_uniform_enough() -> None:
    u = make(5).chance(100_000)
    assert u.min() >= 0 and u.max() < 1
    assert abs(float(u.mean()) - 0.5) < 0.005
    assert abs(float(u.var()) - 1 / 12) < 0.002
    assert abs(float(torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1])) < 0.02


def test_training_leaves_the_global_generator_alone() -> None:
    task, data = linear_task(), make(10)
    before = torch.get_rng_state()
    descend(task.loss, task.w0, data, lr=0.1)
    assert torch.equal(before, torch.get_rng_state())


# ---- two models in one descent ----


def two_losses(both: Vec, batch: Batch) -> Tensor:
    """(a - 3)^2 of the one and (2 b)^2 of the other."""
    w, theta = both.split("w", "theta")
    return (w["a"] - 3).square().sum() + (2 * theta["a"]).square().sum()


def test_joined_vectors_have_both_names_and_come_apart_in_any_order() -> None:
    both = Vec.join(w=Vec(a=torch.tensor(1.0)), theta=Vec(a=torch.tensor(2.0), b=torch.tensor(5.0)))
    assert list(both) == ["w a", "theta a", "theta b"] and both.sq() == 30  # 1 + 4 + 25
    theta, w, none = both.split("theta", "w", "other")
    assert (dict(w), dict(theta), dict(none)) == ({"a": 1.0}, {"a": 2.0, "b": 5.0}, {})


@pytest.mark.parametrize("many", [1, 3])
def test_one_descent_trains_two_joined_models(many: int) -> None:
    # One step of 0.1 from 1: a - 0.1 * 2 (a - 3) = 1.4, and b - 0.1 * 8 b = 0.2.
    one = Vec(a=torch.ones(1))
    data = make(2)

    def train(w: Vec) -> Vec:
        return descend(two_losses, Vec.join(w=w, theta=w), data, lr=0.1, epochs=1, batch=2)

    found = train(one) if many == 1 else vmap(train)(one.map(lambda a, _: a.expand(many, 1)))
    w, theta = found.split("w", "theta")
    assert w["a"].flatten().tolist() == pytest.approx([1.4] * many)
    assert theta["a"].flatten().tolist() == pytest.approx([0.2] * many)
