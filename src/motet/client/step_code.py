"""From the recorded step of one client to C++: every operation of the record becomes a formula or a loop.

Methods' losses, steps and optimisers are operations like any other. What has no entry here is not generated
(`CannotGenerate`), and the step then takes another path (descent.py).
Knows torch's operations. Does not know methods, nor how the text is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from motet.client.array_code import (
    ArrayCode,
    Buffer,
    CannotGenerate,
    Value,
    c_type,
    constant,
    formula,
)
from motet.client.loop_code import loop
from motet.client.step_operations import (
    FOLDS,
    FORMULAS,
    OF_TRUTHS,
    VIEWS,
    args_of,
    arguments,
    common_type,
    comparison,
    kwargs_of,
    lies_transposed,
    numel,
    shape_of,
    target_of,
    uses,
)

aten = torch.ops.aten
_LARGEST = 4096  # elements of a tensor in the record that is written into the text


class StepCode:
    """The lines of one step. The record's inputs are arrays: `moving` ones, which the step replaces, then those that
    stay, then x, y and live of a batch."""

    def __init__(self, record: GraphModule, moving: int) -> None:
        self.record, self.code = record, ArrayCode()
        self.nodes = list(record.graph.nodes)
        self.values: dict[Node, Value] = {}
        self.layouts: dict[Node, str] = {}
        self.constants: list[tuple[Buffer, Tensor]] = []
        self.inputs = self.declare_inputs()
        self.moving = self.inputs[:moving]
        self.uses = {node: uses(node) for node in self.nodes}
        for node in self.nodes:
            if node.op in ("call_function", "get_attr"):
                self.values[node] = self.made(node)
        self.replace_moving()

    # ---- inputs and outputs ----

    def declare_inputs(self) -> list[Buffer]:
        """Weights that are multiplied transposed lie transposed, and so does whatever has their shape."""
        holes = [node for node in self.nodes if node.op == "placeholder"]
        turned = {shape_of(node) for node in holes[:-3] if lies_transposed(node)}
        found = []
        for node in holes:
            shape, rows = shape_of(node), node in holes[-3:]
            order = (1, 0) if shape in turned and not rows else None
            found.append(self.code.buffer(node.meta["val"].dtype, shape, order, not rows or len(shape) < 3))
            self.values[node] = found[-1].value
            self.layouts[node] = "m" if order else "n"
        return found

    def replace_moving(self) -> None:
        """Write the outputs over what moves; those that are made from others' old elements are computed first."""
        outputs = [self.values[node] for node in args_of(self.nodes[-1])[0]]
        names = {b.name for b in self.moving}
        for k, (out, value) in enumerate(zip(self.moving, outputs, strict=True)):
            old = [a for a in value.leaves if a.name in names]
            if any(a.name != out.name or a.view.stride() != out.strides for a in old):
                outputs[k] = self.code.stored(value, out.order).value
        for out, value in zip(self.moving, outputs, strict=True):
            if value.leaves != (out.leaf,) or not value.is_leaf:
                self.code.assign(out, value)

    # ---- operations ----

    def made(self, node: Node) -> Value:
        if node.op == "get_attr":
            return self.tensor(getattr(self.record, str(node.target)))
        value = self.computed(node)
        if value.dtype != node.meta["val"].dtype or value.shape != shape_of(node):
            raise CannotGenerate(f"{node.target} with a result of another shape or type")
        if self.uses[node] > 1 and not value.is_cheap and node.target not in VIEWS:
            value = self.code.stored(value).value
        return value

    def computed(self, node: Node) -> Value:
        target = node.target
        if target in VIEWS:
            return self.viewed(node)
        if target in FOLDS:
            return self.folded(node)
        if target in FORMULAS or comparison(target):
            return self.pointwise(node)
        own = OTHERS.get(target)
        if own is None:
            raise CannotGenerate(f"the operation {target}")
        return own(self, node)

    def value(self, given: Any, dtype: torch.dtype) -> Value:
        """An argument as a value of a type."""
        if isinstance(given, Node):
            return self.values[given].cast(dtype)
        return constant(given if dtype != torch.bool else bool(given), dtype)

    def parts(self, given: Sequence[Any], dtype: torch.dtype, shape: Sequence[int]) -> list[Value]:
        """Arguments of one formula; a formula that is broadcast would be computed again and again."""
        found = [self.value(a, dtype) for a in given]
        return [v if v.is_cheap or v.shape == tuple(shape) else self.code.stored(v).value for v in found]

    def viewed(self, node: Node) -> Value:
        value, rest, target = self.values[args_of(node)[0]], args_of(node)[1:], target_of(node)
        if not value.is_cheap and node.meta["val"].numel() > numel(value.shape):
            value = self.code.stored(value).value
        try:
            return value.seen(lambda t: target(t, *rest, **node.kwargs))
        except (RuntimeError, ValueError):  # its elements are not laid out for this view
            out = self.code.buffer(value.dtype, value.shape, padded=False)
            self.code.assign(out, value)
            return out.value.seen(lambda t: target(t, *rest, **node.kwargs))

    def folded(self, node: Node) -> Value:
        value, kind = self.values[args_of(node)[0]], FOLDS[target_of(node)]
        dims = (
            list(args_of(node)[1]) if len(args_of(node)) > 1 and args_of(node)[1] else range(len(value.shape))
        )
        keep = bool(args_of(node)[2]) if len(args_of(node)) > 2 else bool(node.kwargs.get("keepdim"))
        over = [d % len(value.shape) for d in dims] if value.shape else []
        return self.code.reduced(value, over, keep, kind, node.meta["val"].dtype)

    def pointwise(self, node: Node) -> Value:
        target, dtype, shape = node.target, node.meta["val"].dtype, shape_of(node)
        given = [a for a in args_of(node) if isinstance(a, Node | int | float)]
        if set(node.kwargs) - {
            "dtype",
            "memory_format",
            "layout",
            "device",
            "pin_memory",
            "non_blocking",
            "alpha",
        }:
            raise CannotGenerate(f"{target} with {', '.join(node.kwargs)}")
        if sign := comparison(target):
            common = common_type(given)
            return formula(f"({{0}} {sign} {{1}})", torch.bool, self.parts(given, common, shape))
        if target in OF_TRUTHS and any(self.values[a].dtype != torch.bool for a in arguments(given)):
            raise CannotGenerate(f"{target} of numbers")
        parts = self.parts(given, dtype, shape)
        if (factor := kwargs_of(node).get("alpha", 1)) != 1:
            parts[1] = formula("({0} * {1})", dtype, [parts[1], constant(factor, dtype)])
        return formula(FORMULAS[target], dtype, parts)

    # ---- operations with a way of their own ----

    def power(self, node: Node) -> Value:
        base, exponent = args_of(node)
        dtype, shape = node.meta["val"].dtype, shape_of(node)
        forms = {1: "{0}", 2: "motet::square({0})", 0.5: "std::sqrt({0})", -1: "(1 / {0})"}
        if exponent in forms:
            return formula(forms[exponent], dtype, self.parts([base], dtype, shape))
        return formula("std::pow({0}, {1})", dtype, self.parts(args_of(node), dtype, shape))

    def clamp(self, node: Node) -> Value:
        given, low, high = (*args_of(node), None, None)[:3]
        dtype, shape = node.meta["val"].dtype, shape_of(node)
        value = self.parts([given], dtype, shape)[0]
        for form, bound in (("motet::at_least({0}, {1})", low), ("motet::at_most({0}, {1})", high)):
            if bound is not None:
                value = formula(form, dtype, [value, *self.parts([bound], dtype, shape)])
        return value

    def where(self, node: Node) -> Value:
        dtype, shape = node.meta["val"].dtype, shape_of(node)
        condition = self.parts(args_of(node)[:1], torch.bool, shape)
        return formula("({0} ? {1} : {2})", dtype, [*condition, *self.parts(args_of(node)[1:], dtype, shape)])

    def copied(self, node: Node) -> Value:
        """The second argument, in the shape of the first."""
        shape = shape_of(node)
        return self.parts(args_of(node)[1:2], node.meta["val"].dtype, shape)[0].wide(shape)

    def is_nan(self, node: Node) -> Value:
        value = self.values[args_of(node)[0]]
        return formula("std::isnan({0})", torch.bool, [value])

    def filled(self, node: Node) -> Value:
        number = args_of(node)[-1]
        return constant(number, node.meta["val"].dtype, shape_of(node))

    def blank(self, node: Node) -> Value:
        """Memory that is written before it is read."""
        return constant(0, node.meta["val"].dtype, shape_of(node))

    def counted(self, node: Node) -> Value:
        """arange and the like, written down as numbers."""
        return self.tensor(target_of(node)(*args_of(node), **{**node.kwargs, "device": "cpu"}))

    def tensor(self, t: Tensor) -> Value:
        if t.numel() > _LARGEST:
            raise CannotGenerate(f"a fixed tensor of {t.numel()} numbers")
        if t.ndim == 0:
            return constant(t.item(), t.dtype)
        made = self.code.buffer(t.dtype, t.shape, padded=False)
        self.constants.append((made, t.contiguous()))
        return made.value

    def multiplied(self, node: Node) -> Value:
        a, b = (self.values[n] for n in args_of(node))
        return self.code.product(a, b, self.wanted(node) or "")

    def gathered(self, node: Node) -> Value:
        source, axis, at = args_of(node)
        return self.looked_up(self.values[source], axis, self.values[at], shape_of(node), lambda i: i)

    def indexed(self, node: Node) -> Value:
        """Rows by their numbers: one tensor of numbers for the first axis."""
        source, places = args_of(node)
        if len(places) != 1:
            raise CannotGenerate(f"{node.target} by several axes")
        value, at = self.values[source], self.values[places[0]]
        if at.dtype == torch.bool:
            raise CannotGenerate(f"{node.target} by truths")
        leaf, numbers, out = (
            self.code.leaf(value),
            self.code.leaf(at),
            self.code.buffer(value.dtype, shape_of(node)),
        )
        index = [f"i{d}" for d in range(len(out.shape))]
        rest = index[len(at.shape) :]
        row = f"motet::row(A.outside, {numbers.at(index[: len(at.shape)])}, {value.shape[0]})"
        self.element_wise(out.shape, f"{out.leaf.at(index)} = {leaf.at([row, *rest])};")
        return out.value

    def looked_up(
        self,
        value: Value,
        axis: int,
        at: Value,
        shape: Sequence[int],
        index_of: Callable[[list[str]], list[str]],
    ) -> Value:
        leaf, places, out = self.code.leaf(value), self.code.leaf(at), self.code.buffer(value.dtype, shape)
        index = [f"i{d}" for d in range(len(shape))]
        there = index_of(list(index))
        there[axis] = f"motet::place(A.outside, {places.at(index)}, {value.shape[axis]})"
        self.element_wise(shape, f"{out.leaf.at(index)} = {leaf.at(there)};")
        return out.value

    def scattered(self, node: Node) -> Value:
        """scatter and scatter_add: a copy of the first argument, with elements of another put or added in."""
        base, axis, at, source = args_of(node)
        if node.kwargs:
            raise CannotGenerate(f"{node.target} with {', '.join(node.kwargs)}")
        dtype, shape = node.meta["val"].dtype, self.values[at].shape
        out = self.code.buffer(dtype, shape_of(node))
        self.code.assign(out, self.values[base])
        places, index = self.code.leaf(self.values[at]), [f"i{d}" for d in range(len(shape))]
        value = self.value(source, dtype)
        text = self.code.leaf(value).at(index) if value.leaves else value.write([])
        there = [*index]
        there[axis] = f"motet::place(A.outside, {places.at(index)}, {out.shape[axis]})"
        sign = "+=" if node.target == aten.scatter_add.default else "="
        self.element_wise(shape, f"{out.leaf.at(there)} {sign} {text};")
        return out.value

    def joined(self, node: Node) -> Value:
        parts, axis = (
            [self.values[n] for n in args_of(node)[0]],
            args_of(node)[1] if len(args_of(node)) > 1 else 0,
        )
        out, done = self.code.buffer(node.meta["val"].dtype, shape_of(node)), 0
        for part in parts:
            leaf, index = self.code.leaf(part.cast(out.dtype)), [f"i{d}" for d in range(len(part.shape))]
            there = [*index]
            there[axis] = f"({there[axis]} + {done})"
            self.element_wise(part.shape, f"{out.leaf.at(there)} = {leaf.at(index)};")
            done += part.shape[axis]
        return out.value

    def element_wise(self, shape: Sequence[int], line: str) -> None:
        self.code.lines += [*(loop(d, n) for d, n in enumerate(shape)), line, "}" * len(shape)]

    # ---- layouts ----

    def wanted(self, node: Node, depth: int = 6) -> str:
        """Which axis of a matrix, m or n, should be the fastest: that of the weights it is added to in the end."""
        for user in node.users if depth else ():
            if user.target in (aten.permute.default, aten.t.default):
                found = {"m": "n", "n": "m"}.get(self.wanted(user, depth - 1), "")
            elif user.target in FORMULAS and shape_of(user) == shape_of(node):
                peers = (peer for peer in user.all_input_nodes if peer is not node)
                found = next(filter(None, (self.layout(p, shape_of(node), 4) for p in peers)), "")
                found = found or self.wanted(user, depth - 1)
            else:
                continue
            if found:
                return found
        return ""

    def layout(self, node: Node, shape: tuple[int, ...], depth: int) -> str:
        if node.op == "placeholder" and shape_of(node) == shape:
            return self.layouts[node]
        inputs = node.all_input_nodes if depth and node.target in FORMULAS else ()
        return next(filter(None, (self.layout(n, shape, depth - 1) for n in inputs)), "")


OTHERS: dict[Any, Callable[[StepCode, Node], Value]] = {
    aten.pow.Tensor_Scalar: StepCode.power,
    aten.clamp.default: StepCode.clamp,
    aten.clamp.Tensor: StepCode.clamp,
    aten.where.self: StepCode.where,
    aten.copy.default: StepCode.copied,
    aten.isnan.default: StepCode.is_nan,
    aten.full.default: StepCode.filled,
    aten.full_like.default: StepCode.filled,
    aten.scalar_tensor.default: StepCode.filled,
    aten.empty_permuted.default: StepCode.blank,
    aten.empty_like.default: StepCode.blank,
    aten.empty.memory_format: StepCode.blank,
    aten.arange.default: StepCode.counted,
    aten.arange.start: StepCode.counted,
    aten.arange.start_step: StepCode.counted,
    aten.mm.default: StepCode.multiplied,
    aten.gather.default: StepCode.gathered,
    aten.index.Tensor: StepCode.indexed,
    aten.scatter_add.default: StepCode.scattered,
    aten.scatter.src: StepCode.scattered,
    aten.scatter.value: StepCode.scattered,
    aten.cat.default: StepCode.joined,
}


def declarations(step: StepCode) -> Iterator[str]:
    """The arrays of a step, and numbers that never change."""
    yield from (b.declared for b in step.code.buffers)


def fixed_numbers(step: StepCode) -> Iterator[str]:
    """Lines that fill the arrays of numbers that never change."""
    for buffer, t in step.constants:
        numbers = ", ".join(constant(v, t.dtype).write([]) for v in t.flatten().tolist())
        yield f"{{ static const {c_type(t.dtype)} numbers[] = {{{numbers}}};"
        yield f"std::copy(numbers, numbers + {t.numel()}, A.{buffer.name}); }}"
