"""Dap-FL: rounds computed by hand, and the limit in which it is FedAvg."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from motet.client import ClientData, Task, seed_of
from motet.engines.loop import Loop, VerbFailed
from motet.engines.vmap import Vmap
from motet.methods.dapfl import DapFL
from motet.methods.fedavg import FedAvg
from motet.parts import agents
from motet.vec import leaves
from rounds import TWO, after, one_number, turn

# An epoch of client a, one example (1, 3), leads from w to 3 + (w - 3)(1 - 2 lr); one of client b, three
# examples (2, 0), from w to w (1 - 8 lr).


def first_choice(method: DapFL, client: str) -> tuple[float, int]:
    """Learning rate and epochs in round 0: the first action is drawn, whatever the state."""
    seed = torch.tensor(seed_of(seed_of(0, 0), client))
    a, _ = agents.act(agents.initial(method.spec, seed), torch.zeros(2), seed, method.spec)
    lr = 10 ** (float(a[0]) - 2)  # lr_min 0.001, lr_max 0.1
    return lr, max(1, int(3 * (float(a[1]) + 1)))  # epochs_max 6


@pytest.mark.parametrize("engine", [Loop, Vmap])
@pytest.mark.parametrize(("weighting", "of_b"), [("examples", 3), ("equal", 1)])
def test_a_round_by_hand(engine: Any, weighting: Any, of_b: int) -> None:
    method = DapFL(one_number(), lr_min=0.001, lr_max=0.1, epochs_max=6, batch=4, weighting=weighting)
    (lr_a, epochs_a), (lr_b, epochs_b) = (first_choice(method, c) for c in "ab")
    assert lr_a != lr_b
    a, b = 3 - 2 * (1 - 2 * lr_a) ** epochs_a, (1 - 8 * lr_b) ** epochs_b
    w = after(method, engine(TWO), 1)
    assert w["weight"].item() == pytest.approx((a + of_b * b) / (1 + of_b), rel=1e-5)


@pytest.mark.parametrize("engine", [Loop, Vmap])
def test_the_second_round_remembers_what_the_first_one_led_to(engine: Any) -> None:
    method, e = DapFL(one_number(), batch=4), engine(TWO)
    w1 = after(method, Loop(TWO), 1)["weight"].item()
    after(method, e, 2)
    losses = [(w - 3) ** 2 for w in (1.0, w1)]  # of client a; 1 / (1 + loss) stands for its accuracy
    shares = [1 / (1 + x) for x in losses]
    reward = losses[0] - losses[1] + 2 * (shares[1] - shares[0])
    memory = e.keeps.get("a")["agent"]["memory"]
    lived = [losses[0], shares[0], reward, losses[1], shares[1]]
    assert memory[0][[0, 1, 4, 5, 6]].tolist() == pytest.approx(lived, rel=1e-5)
    assert memory[0, 2:4].abs().max() <= 1 and memory[1:].abs().max() == 0
    assert e.keeps.get("a")["agent"]["stored"] == 1


@pytest.mark.parametrize("engine", [Loop, Vmap])
def test_with_one_learning_rate_and_one_epoch_it_is_fedavg(
    engine: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    free = after(DapFL(task, lr_min=0.1, lr_max=0.1, epochs_max=1), engine(clients_data), 4)
    fixed = after(FedAvg(task, lr=0.1, epochs=1), engine(clients_data), 4)
    assert float((free - fixed).sq()) == 0


def test_the_state_is_loss_and_accuracy_on_training_examples(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    data = Loop(clients_data)
    data.begin(DapFL(task), turn(data, 0))
    train = clients_data["c03"].train.take()
    right = task.predict(task.w0, train.x).argmax(-1) == train.y
    found = DapFL(task).state(partial(task.predict, task.w0), data.data("c03"))
    assert found.tolist() == pytest.approx([task.loss(task.w0, train).item(), right.float().mean().item()])


def test_actions_span_the_ranges(task: Task) -> None:
    method = DapFL(task, lr_min=0.0001, lr_max=0.01, epochs_max=40)  # as in the paper
    low, middle, high = (method.choice(torch.full((2,), a)) for a in (-1.0, 0.0, 1.0))
    assert [c[0].item() for c in (low, middle, high)] == pytest.approx([0.0001, 0.001, 0.01])
    assert [c[1].item() for c in (low, middle, high)] == [1, 20, 40]


def test_agents_learn_from_the_third_round_on_with_the_papers_networks(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    engine = Loop(clients_data)
    sizes = {"actor": (10, 5), "critic": (5,), "state_layers": 0, "hidden": "tanh"}
    method = DapFL(task)
    method = replace(method, agent=replace(method.agent, **sizes, actor_lr=1e-5, critic_lr=1e-4))
    after(method, engine, 5)
    agent = engine.keeps.get("c00")["agent"]
    assert agent["learned"] == 3 and agent["acted"] == 5
    assert all(torch.isfinite(t).all() for t in leaves(agent))


def test_a_range_of_learning_rates_that_is_too_high_is_named() -> None:
    with pytest.raises(
        VerbFailed, match=r"none of 2 replies is finite.* \(lr_max=1e\+20\)\nhint: .* smaller method.lr_max"
    ):
        after(DapFL(one_number(), lr_min=1e20, lr_max=1e20), Loop(TWO), 3)
