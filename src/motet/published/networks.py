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

from motet.published.graph import assemble

_SIMPLE = {nn.ReLU: "Relu", nn.Tanh: "Tanh", nn.Sigmoid: "Sigmoid", nn.Identity: "Identity"}


class Answer(nn.Module):
    """Scores as probabilities (rows, classes), or numbers as (rows, 1); one score is of the second of two classes."""

    def __init__(self, net: nn.Module, task: str) -> None:
        super().__init__()
        self.net, self.task = net, task

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.net(x)
        scores = scores.unsqueeze(1) if scores.ndim == 1 else scores
        if self.task == "numbers":
            return scores
        if scores.shape[1] == 1:
            scores = torch.cat([torch.zeros_like(scores), scores], 1)
        return scores.softmax(1)


def to_onnx(net: nn.Module, features: int, task: str) -> Any:
    """The network, which maps (rows, features) to scores of classes or to numbers, as a ModelProto."""
    layers = list(_layers(net))
    if all(type(m) in (nn.Linear, nn.Flatten, *_SIMPLE) for m in layers) and layers:
        nodes, constants, at, columns = operators(layers, "x", features)
        more, columns = _answer(at, columns, task)
        return assemble(nodes + more, constants, features, columns)
    return _exported(net, features, task)


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


def _exported(net: nn.Module, features: int, task: str) -> Any:
    with _quiet():
        program = torch.onnx.export(
            Answer(net, task).eval(),
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
