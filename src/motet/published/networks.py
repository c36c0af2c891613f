"""Torch networks as ONNX, with the output of published models.

Plain sequences of layers are written here, in milliseconds; any other network goes through torch's exporter,
which takes seconds. Knows torch and ONNX. Does not know what a network was trained for.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from motet.published.graph import assemble, two_classes

_ROUGH = 1e-4  # how far from 0 to 1, and from a sum of 1, probabilities of a network may be
_SIMPLE = {nn.ReLU: "Relu", nn.Tanh: "Tanh", nn.Sigmoid: "Sigmoid", nn.Identity: "Identity"}


class Answer(nn.Module):
    """Probabilities (rows, classes) of a network that gives them, or scores of classes; or numbers as (rows, 1). One
    output is of the second of two classes."""

    def __init__(self, net: nn.Module, task: str, features: int) -> None:
        super().__init__()
        self.net, self.task = net, task
        self.done = task != "numbers" and gives_probabilities(net, features)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.net(x)
        found = found.unsqueeze(1) if found.ndim == 1 else found
        if self.task == "numbers":
            return found
        if found.shape[1] == 1:
            found = torch.cat([1 - found if self.done else torch.zeros_like(found), found], 1)
        return found if self.done else found.softmax(1)


def gives_probabilities(net: nn.Module, features: int) -> bool:
    """Whether a network ends in a sigmoid or softmax of its own: for rows near and far its outputs are within 0 and 1,
    and several of them sum to 1. Scores leave that range, if not near then far."""
    was, draw = net.training, torch.Generator().manual_seed(0)
    rows = torch.randn(64, features, generator=draw)
    with torch.no_grad():
        found = net.eval()(torch.cat([rows * far for far in (0.0, 1.0, 30.0, 1000.0)]))
    net.train(was)
    found = found.reshape(len(found), -1)
    if not ((found >= -_ROUGH) & (found <= 1 + _ROUGH)).all():
        return False
    if found.shape[1] > 1 and not ((found.sum(1) - 1).abs() < _ROUGH).all():
        if isinstance(list(_layers(net))[-1], nn.Sigmoid):
            raise ValueError(
                f"it ends in a sigmoid for each of {found.shape[1]} outputs, which are no probabilities of classes "
                "that exclude each other\nhint: end it in scores or in nn.Softmax(1); of two classes in one output"
            )
        return False
    return True


def to_onnx(net: nn.Module, features: int, task: str) -> Any:
    """The network, which maps (rows, features) to scores or probabilities of classes or to numbers, as a ModelProto."""
    layers, answer = list(_layers(net)), Answer(net, task, features)
    if all(type(m) in (nn.Linear, nn.Flatten, *_SIMPLE) for m in layers) and layers:
        nodes, constants, at, columns = operators(layers, "x", features)
        if answer.done:
            more, constants, columns = _given(at, columns), [*constants, ("one", [1.0])], max(columns, 2)
        else:
            more, columns = _answer(at, columns, task)
        return assemble(nodes + more, constants, features, columns)
    return _exported(answer, features)


def _layers(net: nn.Module) -> Iterator[nn.Module]:
    if type(net) is nn.Sequential:
        for part in net:
            yield from _layers(part)
    else:
        yield net


def operators(layers: Iterable[nn.Module], at: str, columns: int) -> tuple[list[Any], list[Any], str, int]:
    """Layers that read `at`, as operators and constants; the name and the columns of their output."""
    from onnx import helper

    nodes: list[Any] = []
    constants: list[tuple[str, Any]] = []
    for i, m in enumerate(m for m in layers if type(m) is not nn.Flatten):  # rows are flat already
        to = f"h{i}"
        if isinstance(m, nn.Linear):
            bias = torch.zeros(m.out_features) if m.bias is None else m.bias
            constants += [(f"w{i}", m.weight.detach().numpy()), (f"b{i}", bias.detach().numpy())]
            nodes.append(helper.make_node("Gemm", [at, f"w{i}", f"b{i}"], [to], transB=1))
            columns = m.out_features
        else:
            nodes.append(helper.make_node(_SIMPLE[type(m)], [at], [to]))
        at = to
    return nodes, constants, at, columns


def _given(at: str, columns: int) -> list[Any]:
    """Probabilities that the layers gave, as y; of one column those of both classes."""
    from onnx import helper

    return two_classes(at, "y") if columns == 1 else [helper.make_node("Identity", [at], ["y"])]


def _answer(scores: str, columns: int, task: str) -> tuple[list[Any], int]:
    """`Answer` as operators, and the number of columns of y."""
    from onnx import helper

    if task == "numbers":
        return [helper.make_node("Identity", [scores], ["y"])], columns
    if columns > 1:
        return [helper.make_node("Softmax", [scores], ["y"], axis=1)], columns
    nothing = helper.make_node("Sub", [scores, scores], ["nothing"])
    both = helper.make_node("Concat", ["nothing", scores], ["both"], axis=1)
    return [nothing, both, helper.make_node("Softmax", ["both"], ["y"], axis=1)], 2


def _exported(answer: Answer, features: int) -> Any:
    with _quiet():
        program = torch.onnx.export(
            answer.eval(),
            (torch.zeros(2, features),),
            dynamo=True,
            input_names=["x"],
            output_names=["y"],
            dynamic_shapes=({0: torch.export.Dim("rows")},),
            verbose=False,
        )
    return program.model_proto  # type: ignore[union-attr]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings about torchvision."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    log.setLevel(level)
