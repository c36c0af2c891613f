"""Which layer is the head: the one that runs last; and methods that need a linear one say so before they train."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import motet
from motet.client import Task
from motet.core import MethodUnfit
from motet.data.own_code import name_of
from motet.methods.fedala import FedALA
from motet.methods.fedproto import FedProto
from motet.nets import build


class HeadFirst(nn.Module):
    """The head is defined before the body."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(4, outputs), nn.Linear(shape[0], 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


class ConvolutionLast(nn.Module):
    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(shape[0], 4), nn.Conv1d(4, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu()[..., None])[..., 0]


class Bounded(HeadFirst):
    """Something follows the head."""

    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x).tanh()


class TwoHeads(HeadFirst):
    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(shape, outputs)
        self.other = nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.body(x).relu()) + super().forward(x)


class HeadOfPositions(nn.Module):
    """The head sees several rows of features for each example."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(1, 4), nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x[..., None]).relu()).mean(1)


class BareWeights(nn.Module):
    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(shape[0], outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


class Pair(HeadFirst):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x), x


def test_the_head_is_the_layer_that_runs_last_also_where_it_was_defined_first() -> None:
    task = Task(build(name_of(HeadFirst), {}, (3,), 2, "classes", 0), "classes", 2)
    assert task.head == ("head.weight", "head.bias") and task.body == ("body.weight", "body.bias")
    scores, z = task.predict_from(task.w0, x := torch.eye(3))
    torch.testing.assert_close(z, task.net.body(x).relu())
    torch.testing.assert_close(task.top(task.w0.pick(task.head), z), scores)


def test_fedala_mixes_the_layer_that_runs_last_also_where_it_was_defined_first() -> None:
    task = Task(build(name_of(HeadFirst), {}, (3,), 2, "classes", 0), "classes", 2)
    assert FedALA(task).top() == ["head.weight", "head.bias"]
    assert FedALA(task, tensors=3).top() == ["body.bias", "head.weight", "head.bias"]


@pytest.mark.parametrize(
    "method", ["fedproto", "fedrod", "moon", "knnper", "fedcp", "gpfl", "feddbe", "fedpac", "perfcl"]
)
def test_a_method_that_needs_a_linear_head_refuses_others_before_training(
    method: str, tmp_path: Path
) -> None:
    with pytest.raises(motet.MotetError, match=r"(?s)last layer.*head\.weight.*hint: end the network with"):
        motet.run(
            data={"name": "wine", "clients": 2}, net=ConvolutionLast, method=method, rounds=1, out=tmp_path
        )


@pytest.mark.parametrize("net", [Bounded, TwoHeads, HeadOfPositions])
@pytest.mark.parametrize("method", ["fedrod", "fedcp", "gpfl", "feddbe", "grouptune"])
def test_a_method_that_uses_the_head_alone_refuses_a_network_that_does_more_behind_it(
    net: type[nn.Module], method: str, tmp_path: Path
) -> None:
    # It would train and score other predictions than the network's.
    with pytest.raises(MethodUnfit, match=r"(?s)last layer.*hint: "):
        motet.run(data={"name": "wine", "clients": 2}, net=net, method=method, rounds=1, out=tmp_path)


@pytest.mark.parametrize("net", [HeadOfPositions, BareWeights])
@pytest.mark.parametrize("method", ["fedrod", "feddbe", "moon", "knnper", "perfcl", "fedproto", "fedpac"])
def test_a_head_that_does_not_see_one_row_of_features_is_refused_where_they_are_compared(
    net: type[nn.Module], method: str, tmp_path: Path
) -> None:
    with pytest.raises(MethodUnfit, match=r"(?s)hint: "):
        motet.run(data={"name": "wine", "clients": 2}, net=net, method=method, rounds=1, out=tmp_path)


@pytest.mark.parametrize("method", ["fedavg", "fedper", "moon", "fedproto", "fenda"])
def test_other_methods_take_a_network_that_does_more_behind_its_head(method: str, tmp_path: Path) -> None:
    motet.run(data={"name": "wine", "clients": 2}, net=Bounded, method=method, rounds=1, out=tmp_path)


def test_a_network_that_returns_several_tensors_is_refused_with_a_hint() -> None:
    with pytest.raises(motet.MotetError, match=r"(?s)returns a tuple; expected one tensor.*hint: "):
        build(name_of(Pair), {}, (3,), 2, "classes", 0)


def test_prototypes_need_classes_and_a_body() -> None:
    with pytest.raises(MethodUnfit, match="(?s)all head.*hint: "):
        FedProto(Task(nn.Linear(3, 2), "classes", 2)).check()
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    assert "targets are numbers" in FedProto(Task(net, "numbers", 1)).unfit_loss()


def test_a_class_that_nobody_has_is_never_predicted_by_prototypes() -> None:
    method = FedProto(Task(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)), "classes", 3))
    C = {"C": torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), "known": torch.tensor([1.0, 1.0, 0.0])}
    scores = method.nearest(method.task.w0, C, torch.randn(20, 2, generator=torch.Generator().manual_seed(0)))
    assert torch.isfinite(scores).all() and set(scores.argmax(1).tolist()) <= {0, 1}
