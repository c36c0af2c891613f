"""torch's operations as C++: formulas of elements, views, folds; and questions about nodes of a record.

Knows torch's operations and records. Does not know loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import Node

aten = torch.ops.aten

# Formulas of operands of the result's type, {0}, {1}, …
FORMULAS: dict[Any, str] = {
    aten.add.Tensor: "({0} + {1})",
    aten.add.Scalar: "({0} + {1})",
    aten.sub.Tensor: "({0} - {1})",
    aten.sub.Scalar: "({0} - {1})",
    aten.rsub.Scalar: "({1} - {0})",
    aten.mul.Tensor: "({0} * {1})",
    aten.mul.Scalar: "({0} * {1})",
    aten.div.Tensor: "({0} / {1})",
    aten.div.Scalar: "({0} / {1})",
    aten.neg.default: "(-{0})",
    aten.abs.default: "std::abs({0})",
    aten.exp.default: "motet::exponential({0})",
    aten.log.default: "motet::logarithm({0})",
    aten.expm1.default: "std::expm1({0})",
    aten.log1p.default: "std::log1p({0})",
    aten.erf.default: "std::erf({0})",
    aten.sqrt.default: "std::sqrt({0})",
    aten.rsqrt.default: "(1 / std::sqrt({0}))",
    aten.reciprocal.default: "(1 / {0})",
    aten.sign.default: "motet::sign({0})",
    aten.sgn.default: "motet::sign({0})",
    aten.relu.default: "motet::relu({0})",
    aten.sigmoid.default: "motet::sigmoid({0})",
    aten.tanh.default: "motet::hyperbolic_tangent({0})",
    aten.sin.default: "std::sin({0})",
    aten.cos.default: "std::cos({0})",
    aten.maximum.default: "motet::larger({0}, {1})",
    aten.minimum.default: "motet::smaller({0}, {1})",
    aten.pow.Tensor_Tensor: "std::pow({0}, {1})",
    aten.logical_not.default: "(!{0})",
    aten.bitwise_not.default: "(!{0})",
    aten.logical_and.default: "({0} && {1})",
    aten.bitwise_and.Tensor: "({0} && {1})",
    aten.logical_or.default: "({0} || {1})",
    aten.bitwise_or.Tensor: "({0} || {1})",
    aten.clone.default: "{0}",
    aten.lift_fresh_copy.default: "{0}",
    aten._to_copy.default: "{0}",
}
OF_TRUTHS = {
    aten.logical_not.default, aten.bitwise_not.default, aten.logical_and.default,
    aten.bitwise_and.Tensor, aten.logical_or.default, aten.bitwise_or.Tensor,
}  # fmt: skip
COMPARISONS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
VIEWS = {
    aten.permute.default, aten.t.default, aten.transpose.int, aten.expand.default, aten.unsqueeze.default,
    aten.squeeze.dims, aten.squeeze.dim, aten.squeeze.default, aten.select.int, aten.slice.Tensor,
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.alias.default, aten.detach.default,
}  # fmt: skip
FOLDS = {
    aten.sum.dim_IntList: "sum",
    aten.sum.default: "sum",
    aten.amax.default: "max",
    aten.amin.default: "min",
}


def comparison(target: Any) -> str:
    name, _, overload = str(target).removeprefix("aten.").partition(".")
    return COMPARISONS.get(name, "") if overload in ("Tensor", "Scalar") else ""


def shape_of(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def numel(shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel())


def common_type(given: Sequence[Any]) -> torch.dtype:
    """The type in which two operands are compared."""
    a, b = (g.meta["val"] if isinstance(g, Node) else g for g in given)
    return torch.result_type(a, b)


def arguments(tree: Any) -> Iterator[Node]:
    if isinstance(tree, Node):
        yield tree
    elif isinstance(tree, Sequence) and not isinstance(tree, str):
        for part in tree:
            yield from arguments(part)


def uses(node: Node) -> int:
    """How often a node's elements are read; a view reads nothing itself."""
    times = 0
    for user in node.users:
        many = sum(n is node for n in arguments(user.args))
        times += uses(user) if user.target in VIEWS else many
    return times


def lies_transposed(node: Node) -> bool:
    """Whether a matrix is the second factor of a product in its transposed form, as weights of layers are."""
    if len(shape_of(node)) != 2:
        return False
    turned = [u for u in node.users if u.target in (aten.permute.default, aten.t.default)]
    return any(user.target == aten.mm.default and user.args[1] is t for t in turned for user in t.users)


def args_of(node: Node) -> Any:
    return node.args


def kwargs_of(node: Node) -> Any:
    return node.kwargs


def target_of(node: Node) -> Any:
    return node.target
