"""GroupTune: the head of a group, tuned at home as far as the client's validation examples say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from grouped_clients import engines, kinds, three_layers
from motet.client import Batch, ClientData, Data, Task
from motet.engines.loop import Loop
from motet.methods.fedper import FedPer
from motet.methods.grouptune import GroupTune
from motet.methods.pfa import PFA
from motet.parts.features import seen_by_head
from motet.vec import Vec
from rounds import after, apart, one_number


def data_of(one: ClientData, seed: int = 0) -> Data:
    train, val = one.train.take(), one.val.take()
    return Data(train.x, train.y, torch.tensor(len(train)), torch.tensor(seed), val)


@pytest.mark.parametrize(
    ("target", "chosen"),
    [(3.0, 1.4), (1.0, 1.0), (0.0, 0.5)],
    ids=["both epochs", "one epoch", "the group's head"],
)
def test_the_epoch_with_the_least_validation_loss_is_kept_by_hand(target: float, chosen: float) -> None:
    # Trained on (1, 3) from 0.5 with rate 0.2 * 0.5 = 0.1: slopes 2 (w - 3) are -5 and -4, so 0.5, 1.0, 1.4.
    # On a validation example (1, target), (w - target)^2 is least at the one that is nearest to the target.
    task = one_number()
    method = GroupTune(task, lr=0.5, tune=2, tune_rate=0.2)
    x, val = torch.tensor([[1.0]]), Batch.of(torch.tensor([[1.0]]), torch.tensor([target]))
    data = Data(x, torch.tensor([3.0]), torch.tensor(1), torch.tensor(0), val)
    head = method.tuned_head(Vec(weight=torch.tensor([[0.5]])), data)
    assert head["weight"].item() == pytest.approx(chosen)


@engines
def test_without_tuning_it_is_pfa(engine: Any) -> None:
    clients_data, _ = kinds()
    here, there = engine(clients_data), engine(clients_data)
    mine, pfa = GroupTune(three_layers(), k=3, tune=0), PFA(three_layers(), k=3)
    s, t = after(mine, here, 3), after(pfa, there, 3)
    assert max(apart(a, b) for a, b in zip(s["models"], t["models"], strict=True)) == 0
    for c in clients_data:
        own, group = (m.personal(m.download(s, c), (), data_of(clients_data[c])).args[0] for m in (mine, pfa))
        assert apart(own, group) == 0


def test_without_validation_examples_the_groups_head_stays() -> None:
    clients_data, _ = kinds()
    data = data_of(clients_data["c00"])
    data = replace(data, val=Batch(data.val.x, data.val.y, torch.zeros(len(data.val))))
    task = three_layers()
    assert apart(GroupTune(task).tuned_head(task.w0, data), task.w0.pick(task.head)) == 0


@settings(max_examples=20, deadline=None)
@given(tune=st.integers(0, 6), rate=st.floats(0.01, 20), client=st.integers(0, 11))
def test_a_clients_validation_loss_is_never_above_its_groups_and_the_body_stays(
    tune: int, rate: float, client: int
) -> None:
    task, (clients_data, _) = three_layers(), kinds()
    data = data_of(clients_data[f"c{client:02}"])
    (own,) = GroupTune(task, tune=tune, tune_rate=rate).personal(task.w0, (), data).args
    assert task.loss(own, data.val) <= task.loss(task.w0, data.val) + 1e-6
    assert apart(own.pick(task.body), task.w0.pick(task.body)) == 0


def test_tuning_on_features_is_training_the_head_of_the_whole_network() -> None:
    task, (clients_data, _) = three_layers(), kinds()
    data = data_of(clients_data["c03"])
    data = replace(data, val=data.all)  # validated where it is trained, so that an epoch is kept
    body, head = task.w0.pick(task.body), task.w0.pick(task.head)
    fedper = FedPer(task, lr=0.1, batch=4, momentum=0.5)
    slow = fedper.descend(task.loss_of_part, head, data, given=body)
    fast = GroupTune(task, lr=0.5, tune_rate=0.2, tune=1, batch=4, momentum=0.5).tuned_head(task.w0, data)
    assert apart(fast, slow) < 1e-6 < apart(fast, head)


def test_own_classes_come_back_that_the_group_has_averaged_away() -> None:
    """Two clients of one group share two classes; each has one of its own, which the other never sees."""
    torch.manual_seed(0)
    task = Task(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4)), "classes", 4)

    def some(own: int, each: int) -> Batch:
        y = torch.tensor([0, 1] * (4 * each) + [own] * each)
        return Batch.of(torch.eye(4)[y] * 1.5 + 0.6 * torch.randn(len(y), 4), y)

    clients_data = {f"c{i}": ClientData(some(2 + i, 12), some(2 + i, 12), some(2 + i, 40)) for i in range(2)}
    method = GroupTune(task, grouping="none", warm_up=0, lr=0.1, epochs=2)
    engine = Loop(clients_data)
    s = after(method, engine, 3)

    def right_on_own(m: Any, c: str) -> float:
        test, own = clients_data[c].test.take(), 2 + int(c[1])
        scores = m.personal(m.download(s, c), (), data_of(clients_data[c]))(test.x)
        return float((scores.argmax(1) == test.y)[test.y == own].float().mean())

    for c in clients_data:
        assert right_on_own(method, c) > right_on_own(replace(method, tune=0), c)


def test_features_are_what_the_last_layer_gets_and_images_are_not_augmented_then() -> None:
    task, (clients_data, _) = three_layers(), kinds()
    data = replace(data_of(clients_data["c02"]), augment=True)
    z = seen_by_head(task, task.w0, data)
    assert not z.augment and z.x.shape == (len(data.x), 40)
    assert torch.allclose(task.top(task.w0.pick(task.head), z.x), task.predict(task.w0, data.x))
    assert torch.allclose(task.top(task.w0.pick(task.head), z.val.x), task.predict(task.w0, data.val.x))
