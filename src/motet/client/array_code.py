"""C++ text for arrays of known shapes: formulas of elements, sums over axes, products of matrices.

An array lies in a struct that one thread owns and that stays in its cache. The fastest axis of an array is padded to
whole vectors (`GRAIN`), so that loops have no rest; what stands in the padding is never used. Formulas are not
computed until an array is needed, so that a chain of operations is one loop.
Knows shapes, strides and loops. Does not know torch's operations, nor what is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from motet.client.loop_code import Axis, axes_of, merged, nested

GRAIN = 16  # elements that the fastest axis of an array is padded to a multiple of
_FOLDED = 4096  # elements of the longest row that is folded in halves: it lies on the stack
_WIDE = 8  # shortest axis that is padded: shorter ones would be mostly padding
TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
}


class CannotGenerate(Exception):
    """Something that no code is generated for; says what."""


def c_type(dtype: torch.dtype) -> str:
    if dtype not in TYPES:
        raise CannotGenerate(f"numbers of type {str(dtype).removeprefix('torch.')}")
    return TYPES[dtype]


@dataclass(frozen=True)
class Leaf:
    """Elements of a named array; `view` is a tensor without memory that has their shape, strides and offset."""

    name: str
    dtype: torch.dtype
    view: Tensor

    def at(self, index: Sequence[str]) -> str:
        """The element at an index, one text for each axis."""
        terms = [f"{i} * {s}" for i, s in zip(index, self.view.stride(), strict=True) if s and i != "0"]
        return self.placed(terms)

    def placed(self, terms: Sequence[str]) -> str:
        start = self.view.storage_offset()
        return f"A.{self.name}[{' + '.join([*terms, *([str(start)] if start or not terms else [])])}]"

    @property
    def address(self) -> str:
        return f"A.{self.name} + {self.view.storage_offset()}"


@dataclass(frozen=True)
class Value:
    """A formula of elements: `write` is given how each leaf is read, and all leaves have the value's shape."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    leaves: tuple[Leaf, ...]
    write: Callable[[Sequence[str]], str]

    @property
    def is_leaf(self) -> bool:
        return self.write is _itself

    @property
    def is_cheap(self) -> bool:
        """Whether computing it again costs nothing: an array's own elements, or a constant."""
        return self.is_leaf or not self.leaves

    def seen(self, view: Callable[[Tensor], Tensor]) -> Value:
        """The value with its axes changed, as `view` changes those of a tensor."""
        leaves = tuple(Leaf(a.name, a.dtype, view(a.view)) for a in self.leaves)
        shape = leaves[0].view.shape if leaves else view(torch.empty(self.shape, device="meta")).shape
        return Value(tuple(shape), self.dtype, leaves, self.write)

    def wide(self, shape: Sequence[int]) -> Value:
        return self if self.shape == tuple(shape) else self.seen(lambda t: t.expand(*shape))

    def cast(self, dtype: torch.dtype) -> Value:
        if dtype == self.dtype:
            return self
        form = "(({}) != 0)" if dtype == torch.bool else f"({c_type(dtype)})({{}})"
        return Value(self.shape, dtype, self.leaves, lambda reads: form.format(self.write(reads)))


def _itself(reads: Sequence[str]) -> str:
    return reads[0]


def leaf_value(leaf: Leaf) -> Value:
    return Value(tuple(leaf.view.shape), leaf.dtype, (leaf,), _itself)


def constant(number: float | int | bool, dtype: torch.dtype, shape: Sequence[int] = ()) -> Value:
    text = literal(number, dtype)
    return Value(tuple(shape), dtype, (), lambda _: text)


def literal(number: float | int | bool, dtype: torch.dtype) -> str:
    kind = c_type(dtype)
    if isinstance(number, float) and number != number:
        return f"std::numeric_limits<{kind}>::quiet_NaN()"
    if isinstance(number, float) and number in (float("inf"), -float("inf")):
        return f"({'-' if number < 0 else ''}std::numeric_limits<{kind}>::infinity())"
    return f"({kind})({'true' if number is True else 'false' if number is False else repr(number)})"


def formula(form: str, dtype: torch.dtype, parts: Sequence[Value]) -> Value:
    """A formula of values of one shape; `form` has a place {0}, {1}, … for each. C++ computes truths and bytes as
    int, so that their results are made narrow again: true + true is true, and bytes wrap around."""
    if dtype in (torch.bool, torch.uint8):
        form = f"({c_type(dtype)})({form})"
    shape = tuple(torch.broadcast_shapes(*(p.shape for p in parts)))
    wide = [p.wide(shape) for p in parts]
    ends = [0]
    for p in wide:
        ends.append(ends[-1] + len(p.leaves))

    def write(reads: Sequence[str]) -> str:
        return form.format(*(p.write(reads[a:b]) for p, a, b in zip(wide, ends[:-1], ends[1:], strict=True)))

    return Value(shape, dtype, tuple(a for p in wide for a in p.leaves), write)


class Buffer:
    """An array of its own. `order` names its axes from the slowest to the fastest."""

    def __init__(
        self,
        name: str,
        dtype: torch.dtype,
        shape: Sequence[int],
        order: Sequence[int] | None = None,
        padded: bool = True,
    ) -> None:
        self.name, self.dtype, self.shape = name, dtype, tuple(shape)
        axes = tuple(order) if order is not None else tuple(range(len(self.shape)))
        self.order = tuple(
            sorted(axes, key=lambda d: self.shape[d] != 1)
        )  # an axis of 1 is never the fastest
        self.extents = list(self.shape)
        if padded and 1 <= len(self.shape) <= 2 and self.shape[self.order[-1]] >= _WIDE:
            self.extents[self.order[-1]] = -(-self.shape[self.order[-1]] // GRAIN) * GRAIN
        strides, step = [0] * len(self.shape), 1
        for axis in reversed(self.order):
            strides[axis], step = step, step * self.extents[axis]
        self.strides, self.size = tuple(strides), step

    @property
    def declared(self) -> str:
        """With room behind it, into which whole vectors may be read."""
        return f"alignas(64) {c_type(self.dtype)} {self.name}[{self.size + GRAIN}];"

    @cached_property
    def leaf(self) -> Leaf:
        base = torch.empty(self.size, device="meta")
        return Leaf(self.name, self.dtype, base.as_strided(self.shape, self.strides))

    @property
    def value(self) -> Value:
        return leaf_value(self.leaf)


def reads(leaves: Sequence[Leaf], axes: Sequence[Axis], first: int = 0) -> list[str]:
    """How each leaf is read inside loops i0, i1, …; `first` is the place of the leaves in the axes' steps."""
    return [
        leaf.placed([f"i{d} * {a.steps[first + k]}" for d, a in enumerate(axes) if a.steps[first + k]])
        for k, leaf in enumerate(leaves)
    ]


def order_like(value: Value) -> tuple[int, ...]:
    """The order of axes in which the value's arrays lie, by the first that has all of them."""
    for leaf in value.leaves:
        steps = leaf.view.stride()
        if all(s or n == 1 for s, n in zip(steps, value.shape, strict=True)):
            return tuple(sorted(range(len(steps)), key=lambda d: (-steps[d], d)))
    return tuple(range(len(value.shape)))


class ArrayCode:
    """Collects the lines of one function, and the arrays that it needs."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.lines: list[str] = []

    def buffer(
        self,
        dtype: torch.dtype,
        shape: Sequence[int],
        order: Sequence[int] | None = None,
        padded: bool = True,
    ) -> Buffer:
        self.buffers.append(Buffer(f"b{len(self.buffers)}", dtype, shape, order, padded))
        return self.buffers[-1]

    def leaf(self, value: Value) -> Leaf:
        """The value as elements of an array."""
        return value.leaves[0] if value.is_leaf else self.stored(value).leaf

    def stored(self, value: Value, order: Sequence[int] | None = None) -> Buffer:
        out = self.buffer(value.dtype, value.shape, order_like(value) if order is None else order)
        self.assign(out, value)
        return out

    def assign(self, out: Buffer, value: Value) -> None:
        leaves = value.leaves
        arrays = [out.leaf.view, *(a.view for a in leaves)]
        last = out.order[-1] if out.order else 0
        whole = all(a.view.stride(last) in (0, 1) for a in leaves) if out.order else True
        axes = merged(axes_of(out.shape, out.extents if whole else out.shape, out.order, arrays))
        place = reads([out.leaf], axes)[0]
        self.lines += nested(axes, [f"{place} = {value.write(reads(leaves, axes, 1))};"])

    # ---- sums ----

    def reduced(self, value: Value, over: Sequence[int], keep: bool, kind: str, dtype: torch.dtype) -> Value:
        """Sums, largest or smallest elements over some axes."""
        if kind != "sum" and not prod(value.shape):
            raise CannotGenerate("the largest of no elements")
        if not value.leaves:
            value = self.stored(value).value
        value = value.cast(dtype)
        kept = [d for d in range(len(value.shape)) if d not in over]
        out = self.buffer(dtype, [value.shape[d] for d in kept])
        long = [d for d in range(len(value.shape)) if value.shape[d] > 1]
        fast = max(long, key=lambda d: (sum(a.view.stride()[d] == 1 for a in value.leaves), d), default=0)
        if fast in over or not kept:
            self._one_by_one(out, value, list(over), kept, kind)
        else:
            self._row_by_row(out, value, list(over), kept, kind)
        shape = [1 if d in over else n for d, n in enumerate(value.shape)]
        return out.value.seen(lambda t: spread(t, shape)) if keep else out.value

    def _one_by_one(self, out: Buffer, value: Value, over: list[int], kept: list[int], kind: str) -> None:
        """For each element of `out` a loop over what is summed, with the fastest axis inside."""
        arrays = [a.view for a in value.leaves]
        over.sort(key=lambda d: -max(a.stride()[d] for a in arrays))
        extents = list(value.shape)
        if over and all(a.stride(over[-1]) in (0, 1) for a in arrays) and extents[over[-1]] >= _WIDE:
            extents[over[-1]] = -(-extents[over[-1]] // GRAIN) * GRAIN
        outer = axes_of(value.shape, extents, kept, arrays)
        inner = axes_of(value.shape, extents, over, arrays)
        every, kind_of = [*outer, *inner], c_type(out.dtype)
        read = value.write(reads(value.leaves, every))
        take = (
            f"const {kind_of} each = {read};"  # before the condition, which would keep it from being a vector
        )
        real = "each"
        if inner and inner[-1].real < inner[-1].extent:  # the padding does not count
            real = f"(i{len(every) - 1} < {inner[-1].real} ? each : {neutral(kind, out.dtype)})"
        if (
            len(inner) == 1
            and inner[0].extent % GRAIN == 0
            and 0 < inner[0].extent <= _FOLDED
            and out.dtype.itemsize > 1
        ):
            sums = in_halves(inner, [take, f"all[i{len(outer)}] = {real};"], len(outer), kind, kind_of)
        else:
            inside = ["{", take, folded("sum", kind, real, kind_of), "}"]
            loop = nested(inner, inside, len(outer), f"omp simd reduction({SIGNS[kind]}:sum)")
            sums = [f"{kind_of} sum = {neutral(kind, out.dtype)};", *loop]
        places = iter(range(len(outer)))
        index = [f"i{next(places)}" if value.shape[d] != 1 else "0" for d in kept]
        self.lines += nested(outer, ["{", *sums, f"{out.leaf.at(index)} = sum;", "}"], pragma="")

    def _row_by_row(self, out: Buffer, value: Value, over: list[int], kept: list[int], kind: str) -> None:
        """Rows of the value are added to all of `out`, one after another."""
        self.assign(out, constant(*_start(kind, out.dtype), out.shape))
        place = out.leaf.view
        for d in sorted(over):
            place = place.unsqueeze(d)
        arrays = [place.expand(value.shape), *(a.view for a in value.leaves)]
        extents = list(value.shape)
        last = kept[out.order[-1]]
        if all(a.view.stride(last) in (0, 1) for a in value.leaves):
            extents[last] = out.extents[out.order[-1]]
        axes = merged(axes_of(value.shape, extents, [*over, *(kept[d] for d in out.order)], arrays))
        at = reads([out.leaf], axes)[0]
        pragma = "omp simd" if axes and axes[-1].steps[0] else ""
        line = folded(at, kind, value.write(reads(value.leaves, axes, 1)), c_type(out.dtype))
        self.lines += nested(axes, [line], pragma=pragma)

    # ---- products ----

    def product(self, a: Value, b: Value, along: str = "") -> Value:
        """The product of two matrices, (m, k) and (k, n); `along` is the axis that should be the fastest of the result,
        m or n, where either is as good."""
        (m, k), n = a.shape, b.shape[1]
        left, right = self.leaf(a), self.leaf(b)
        if k == 1:
            return formula("({0} * {1})", a.dtype, [leaf_value(left), leaf_value(right)])
        if min(m, n) == 1:
            every = (m, k, n)
            wide = leaf_value(left).seen(lambda t: t[:, :, None].expand(every))
            terms = formula("({0} * {1})", a.dtype, [wide, leaf_value(right).wide(every)])
            return self.reduced(terms, [1], False, "sum", a.dtype)
        ways = {"m": left.view.stride(0) == 1, "n": right.view.stride(1) == 1}
        if not any(ways.values()):
            if m * k <= k * n:
                left, ways["m"] = self.stored(leaf_value(left), (1, 0)).leaf, True
            else:
                right, ways["n"] = self.stored(leaf_value(right), (0, 1)).leaf, True
        usable = [way for way, there in ways.items() if there]
        way = along if along in usable else max(usable, key=lambda w: filled(m if w == "m" else n))
        return self._along_n(left, right) if way == "n" else self._along_m(left, right)

    def _along_n(self, a: Leaf, b: Leaf) -> Value:
        (m, k), n = a.view.shape, b.view.shape[1]
        out = self.buffer(a.dtype, (m, n))
        steps = (*a.view.stride(), b.view.stride(0), out.strides[0])
        self._multiply(a, b, out, (m, out.extents[1], k, *steps))
        return out.value

    def _along_m(self, a: Leaf, b: Leaf) -> Value:
        (m, k), n = a.view.shape, b.view.shape[1]
        out = self.buffer(a.dtype, (m, n), (1, 0))
        steps = (b.view.stride(1), b.view.stride(0), a.view.stride(1), out.strides[1])
        self._multiply(b, a, out, (n, out.extents[0], k, *steps))
        return out.value

    def _multiply(self, a: Leaf, b: Leaf, out: Buffer, sizes: tuple[int, ...]) -> None:
        of = ", ".join([c_type(out.dtype), *map(str, sizes)])
        self.lines.append(f"motet::product<{of}>({a.address}, {b.address}, A.{out.name});")


SIGNS = {"sum": "+", "max": "max", "min": "min"}
_WAYS = {"sum": "Sum", "max": "Largest", "min": "Smallest"}  # of step_kernels.h


def in_halves(axis: list[Axis], lines: list[str], first: int, kind: str, kind_of: str) -> list[str]:
    """Lines that fill `all`, one element for each of an axis, and fold it into `sum`."""
    many = axis[0].extent
    return [
        f"alignas(64) {kind_of} all[{many}];",
        *nested(axis, ["{", *lines, "}"], first, "omp simd"),
        f"const {kind_of} sum = motet::folded<motet::{_WAYS[kind]}, {many}>(all);",
    ]


def folded(at: str, kind: str, read: str, kind_of: str) -> str:
    if kind == "sum":
        return f"{at} += {read};"
    return (
        f"{{ const {kind_of} one = {read}; {at} = one {'>' if kind == 'max' else '<'} {at} ? one : {at}; }}"
    )


def _start(kind: str, dtype: torch.dtype) -> tuple[float | int, torch.dtype]:
    if kind == "sum":
        return 0, dtype
    if not dtype.is_floating_point:
        raise CannotGenerate(f"the {kind} of whole numbers")
    return (-float("inf") if kind == "max" else float("inf")), dtype


def neutral(kind: str, dtype: torch.dtype) -> str:
    """What changes nothing when it is folded in."""
    return literal(*_start(kind, dtype))


def filled(many: int) -> float:
    """The share of vectors of a row that is no padding."""
    return many / (-(-many // GRAIN) * GRAIN)


def spread(t: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor with axes of length 1 put in where the shape has them."""
    for d, n in enumerate(shape):
        if n == 1 and (t.ndim < len(shape)):
            t = t.unsqueeze(d)
    return t
