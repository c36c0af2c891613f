"""All steps of a client in one call, one client after another: its weights stay in the cache for all its steps.

The step of one client is recorded once (make_fx), turned into C++ (step_code.py), compiled (step_library.py) and
called for all clients, with threads over clients. Batches are drawn inside (step_kernels.h), the same as batches.py
draws. Networks that do not fit into a core's cache, and what no code can be generated for, are left to descent.py.
Knows recorded steps and stacked clients. Does not know methods or engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from motet.client.array_code import Buffer, CannotGenerate, c_type
from motet.client.step_code import StepCode, declarations, fixed_numbers
from motet.client.step_library import Library

_CACHE = 1 << 20  # bytes of a client's weights, state and batch: a core's second cache holds about as much
_FAILURES = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
_TABLES = 2  # a step's inputs and outputs, and what is computed in between


Marked = tuple[Tensor, bool]  # with whether each client has its own, along a first axis


class BatchSizes(NamedTuple):
    """What the batches of a descent are, apart from their rows."""

    batch: int
    drop_last: bool
    weighted: bool  # whether rows have weights


def fits(values: Sequence[Tensor]) -> bool:
    """Whether one client's tensors stay in a core's cache."""
    return _TABLES * sum(v.numel() * v.element_size() for v in values) <= _CACHE


class FusedSteps:
    """The compiled steps of one rule, for tensors of given shapes.

    `step` is the step of one client on flat values: what moves (weights, then the optimiser's state), what stays, and
    x, y and live of a batch. `examples` are such values of one client. `step` returns what moves, as it is afterwards.
    """

    def __init__(
        self,
        step: Callable[..., list[Tensor]],
        examples: Sequence[Tensor],
        weights: int,
        moving: int,
        sizes: BatchSizes,
    ) -> None:
        self.weights = examples[:weights]
        self.library = Library(text_of(generated(step, examples, moving), weights, sizes))

    def __call__(
        self, clients: int, threads: int, inputs: Sequence[Marked], rows: Sequence[Marked]
    ) -> list[Tensor]:
        """The weights of all clients after their training. `inputs` are what moves and what stays; `rows` are x, y, n,
        seed, epochs, steps, and weights of rows if there are any."""
        moved = [w.new_empty(clients, *w.shape) for w in self.weights]
        tensors = [*((t, True) for t in moved), *inputs, *rows]
        held = [t.contiguous() for t, _ in tensors]
        apart = [t.stride(0) if own else 0 for t, (_, own) in zip(held, tensors, strict=True)]
        self.library(clients, threads, held, apart)
        return moved


def generated(step: Callable[..., list[Tensor]], examples: Sequence[Tensor], moving: int) -> StepCode:
    """The code of a step; CannotGenerate where there is none, whatever the reason: another path takes the step."""
    if not fits(examples):
        raise CannotGenerate("a client's weights do not fit into a core's cache")
    try:
        return StepCode(recorded(step, examples), moving)
    except _FAILURES as e:
        raise CannotGenerate(f"the step cannot be recorded: {e}") from e


def recorded(step: Callable[..., list[Tensor]], examples: Sequence[Tensor]) -> torch.fx.GraphModule:
    from torch._decomp import core_aten_decompositions, get_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    aten = torch.ops.aten
    more = get_decompositions(
        [
            aten._log_softmax, aten._softmax, aten._log_softmax_backward_data, aten._softmax_backward_data, aten.addmm,
            aten.logsumexp, aten.native_layer_norm, aten.native_layer_norm_backward, aten.native_group_norm,
            aten.native_group_norm_backward, aten.gelu, aten.gelu_backward, aten.var_mean, aten.var,
            aten.threshold_backward, aten.softplus, aten.softplus_backward, aten.elu, aten.elu_backward,
            aten.leaky_relu, aten.leaky_relu_backward, aten.hardtanh, aten.hardtanh_backward, aten.silu,
            aten.silu_backward, aten.sigmoid_backward, aten.tanh_backward,
        ]
    )  # fmt: skip
    table = {**core_aten_decompositions(), **more}
    pure = torch.func.functionalize(step, remove="mutations")  # a gradient may be written in place
    record = make_fx(pure, table, tracing_mode="fake", _allow_non_fake_inputs=True)(*examples)
    record.graph.eliminate_dead_code()
    return record


# ---- the text of a library ----


def text_of(code: StepCode, weights: int, sizes: BatchSizes) -> str:
    """Addresses are those of `FusedSteps.__call__`: weights afterwards, inputs, rows."""
    x, y, live = code.inputs[-3:]
    given = code.inputs[:-3]
    first = weights + len(given)
    places = {name: first + k for k, name in enumerate(("x", "y", "n", "seed", "epochs", "steps", "weight"))}
    return "\n".join(
        [
            '#include "step_kernels.h"',
            "namespace {",
            "struct Arena {", *declarations(code), "bool outside = false;", "motet::RowOrder order;", "};",
            "void take_step(Arena &A) {", *code.code.lines, "}",
            f"using X = {c_type(x.dtype)}; using Y = {c_type(y.dtype)};",
            *taking_rows(x, y, live, sizes),
            "struct Clients {",
            "void **at; const int64_t *apart;",
            "template <class T> T *of(int k, int64_t c) const { return (T *)at[k] + c * apart[k]; }",
            "std::unique_ptr<Arena> arena() const {",
            "auto made = std::make_unique<Arena>(); Arena &A = *made;", *fixed_numbers(code), "return made; }",
            "void operator()(Arena &A, int64_t c) const {",
            *(line for k, b in enumerate(given) for line in copied(b, weights + k, "in")),
            *all_steps(places, sizes),
            *(line for k, b in enumerate(code.moving[:weights]) for line in copied(b, k, "out")),
            "}", "};", "}  // namespace",
            'extern "C" int motet_clients(int64_t clients, int64_t threads, void **at, const int64_t *apart) {',
            "return motet::each_client(clients, threads, Clients{at, apart});", "}", "",
        ]
    )  # fmt: skip


def copied(b: Buffer, place: int, way: str) -> Iterator[str]:
    """A client's tensor into its array, or back."""
    kind, index = c_type(b.dtype), [f"i{d}" for d in range(len(b.shape))]
    steps = [prod(b.shape[d + 1 :]) for d in range(len(b.shape))]
    there = " + ".join([f"{i} * {s}" for i, s in zip(index, steps, strict=True)] or ["0"])
    yield f"{{ {kind} *t = of<{kind}>({place}, c);"
    yield from (f"for (int {i} = 0; {i} < {n}; {i}++)" for i, n in zip(index, b.shape, strict=True))
    here = b.leaf.at(index)
    yield f"{here} = t[{there}]; }}" if way == "in" else f"t[{there}] = {here}; }}"


def taking_rows(x: Buffer, y: Buffer, live: Buffer, sizes: BatchSizes) -> Iterator[str]:
    """Lines of a function that puts the batch which starts at `first` in the order into its arrays."""
    each = prod(x.shape[1:])
    weight = "w[row]" if sizes.weighted else "1.0f"
    yield "void take_rows(Arena &A, const X *all_x, const Y *all_y, const float *w, int64_t first, int64_t n) {"
    yield f"for (int b = 0; b < {x.shape[0]}; b++) {{"
    yield "const bool real = first + b < n;"
    yield "const int64_t row = real ? A.order[first + b] : 0;"
    yield f"const X *from = all_x + row * {each}; X *to = A.{x.name} + b * {x.strides[0]};"
    yield f"for (int i = 0; i < {each}; i++) to[i] = from[i];"
    yield f"A.{y.name}[b] = all_y[row]; A.{live.name}[b] = real ? {weight} : 0.0f; }} }}"


def all_steps(places: dict[str, int], sizes: BatchSizes) -> Iterator[str]:
    """Lines that take all of a client's steps: `steps` batches, or those of `epochs`."""
    for name in ("n", "seed", "epochs", "steps"):
        yield f"const int64_t {name} = *of<int64_t>({places[name]}, c);"
    every = f"(n + {sizes.batch - 1}) / {sizes.batch}"
    full = f"(n < {sizes.batch} ? {every} : n / {sizes.batch})" if sizes.drop_last else every
    yield f"const int64_t in_epoch = {full};"
    yield "const int64_t many = in_epoch == 0 ? 0 : steps > 0 ? steps : epochs * in_epoch;"
    yield "for (int64_t s = 0; s < many; s++) {"
    yield "if (s % in_epoch == 0) A.order.shuffle(seed, s / in_epoch, n);"
    weight = f"of<float>({places['weight']}, c)" if sizes.weighted else "nullptr"
    rows = (f"of<X>({places['x']}, c)", f"of<Y>({places['y']}, c)", weight)
    yield f"take_rows(A, {', '.join(rows)}, s % in_epoch * {sizes.batch}, n);"
    yield "take_step(A); }"
