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


def test_the_head_is_the_layer_that_runs_last_also_where_it_was_defined_first() -> None:
    task = Task(build(name_of(HeadFirst), {}, (3,), 2, "classes", 0), "classes", 2)
    assert task.head == ("head.weight", "head.bias") and task.body == ("body.weight", "body.bias")
    scores, z = task.predict_from(task.w0, x := torch.eye(3))
    torch.testing.assert_close(z, task.net.body(x).relu())
    torch.testing.assert_close(task.top(task.w0.pick(task.head), z), scores)


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
