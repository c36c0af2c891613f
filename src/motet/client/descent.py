"""`descend`: the only training loop in motet.

It is written for one client. Called plainly, it trains that client with in-place updates (`alone`).
Called under vmap, it is given all clients as plain stacked tensors and trains them together, step by
step (`together`); the steps are compiled if the engine says so (`compiled_steps`).

A loss is a named function `(u, batch)` or `(u, batch, given)`: it sees the weights u, a batch of
examples, and `given`, any tree of tensors that stays fixed. It must not be a closure over tensors, because
steps are recorded once and used again. A step is a named function `(u, g, given, lr) -> u`, with g the
direction that the optimiser makes of the gradient (optimisers.py). The optimiser's state is carried from step to
step as an input of the recorded step, beside the weights, and starts at zero in every descent.

Knows weights, examples and gradients. Does not know methods or engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from motet.client.augment import shift_and_flip
from motet.client.batches import batch_rows, batches, dice, schedule
from motet.client.batchnorm import statistics, training_mode, with_statistics_of
from motet.client.client_by_client import client_by_client
from motet.client.data import Batch, Data, take
from motet.client.descent_rule import DescentRule, Loss, Shape, Step, pure_step, sgd
from motet.client.devices import still_working
from motet.client.dropout import Draws, drawing
from motet.client.optimisers import Optimiser, OptimiserName, State
from motet.client.private_steps import private_batches, private_schedule, rate_of
from motet.client.step_library import compiler
from motet.vec import Vec

_UNROLL = 3  # steps in one compiled call; more made nothing faster
_FEW_ROWS = (
    32  # of a stacked batch: padding to so many costs little, and spares small clients programs of their own
)


def descend(
    loss: Loss,
    w: Vec,
    data: Data,
    *,
    lr: float | Tensor,
    epochs: int | Tensor = 1,
    steps: int | Tensor = 0,
    batch: int = 16,
    given: Any = (),
    optimiser: OptimiserName = "sgd",
    momentum: float = 0.0,
    decay: float = 0.0,
    clip: float | None = None,
    drop_last: bool = False,
    step: Step = sgd,
) -> Vec:
    """Minimise `loss` by stochastic gradient descent from `w` over `data`.

    `lr`, `epochs` and `steps` may be tensors, so that every client can have its own. With `steps`, a client takes
    so many batches, whatever `epochs` is. The result is a constant: no gradient flows back through a descent.
    """
    how = Optimiser(optimiser, momentum, decay, clip)
    rule = DescentRule(loss, step, how, batch, drop_last, data.augment, data.private)
    tree = (
        Vec(w),  # own code may bring a plain dict
        given,
        torch.as_tensor(lr, dtype=torch.float32),
        (torch.as_tensor(epochs), torch.as_tensor(steps)),
        (data.x, data.y, data.n, data.seed, *(() if data.weight is None else (data.weight,))),
        () if data.noise is None else (data.noise,),
    )
    values, spec = pytree.tree_flatten(tree)
    out = _Descent.apply(rule, spec, *map(torch.as_tensor, values))
    return Vec(zip(w, out, strict=True))


class _Descent(torch.autograd.Function):
    """A custom function is the one place where torch lets us replace what vmap does."""

    @staticmethod
    def forward(rule: DescentRule, spec: Any, *values: Tensor) -> tuple[Tensor, ...]:
        return tuple(alone(rule, *pytree.tree_unflatten(list(values), spec)).values())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: Any, rule: DescentRule, spec: Any, *values: Tensor) -> Any:
        # The axis of clients of each value, None if all clients share it; rule and spec are no tensors.
        dims = in_dims[2:]
        rows = [v if d is None else v.movedim(d, 0) for v, d in zip(values, dims, strict=True)]
        with still_working():  # torch leaves modes when it calls this rule
            out = together(rule, info.batch_size, spec, rows, [d is not None for d in dims])
        return tuple(out), (0,) * len(out)


# ---- one client, in place ----

_first_losses: list[list[float]] = []  # a stack, as below


@contextmanager
def first_losses() -> Iterator[list[float]]:
    """The losses that descents of one client inside this block begin with, over all of its rows."""
    found: list[float] = []
    _first_losses.append(found)
    try:
        yield found
    finally:
        _first_losses.pop()


def alone(
    rule: DescentRule,
    w: Vec,
    given: Any,
    lr: Tensor,
    length: tuple[Tensor, Tensor],
    rows: tuple[Tensor, ...],
    sigma: tuple[Tensor, ...] = (),
) -> Vec:
    """All steps of one client, without its padding; `length` is epochs and steps, `sigma` holds the noise multiplier
    of private ones."""
    if sigma:
        return alone_in_private(rule, w, given, lr, length, rows, *sigma)
    x, y, n, seed, *weight = rows
    many = int(n)
    x, y = channels_last(x[:many]), y[:many]
    u, given = w.map(lambda a, _: own(a)), with_own_statistics(given)
    if _first_losses:
        _first_losses[-1].append(float(rule.value(u, Batch.of(x, y), given)))
    state = rule.optimiser.initial(u)
    rate = float(lr)  # read once: on a GPU reading waits for all that is under way
    for number, (epoch, at) in enumerate(batches(rule, seed, n, *length)):
        some = take(x, at)
        if rule.augment:
            some = shift_and_flip(some, dice(seed, epoch, at))
        batch = Batch(some, y[at], weight[0][at]) if weight else Batch.of(some, y[at])
        u, state = one_step(rule, u, state, given, (lr, rate), batch, Draws(seed, number))
    return u.map(lambda a, _: a.detach())


def alone_in_private(
    rule: DescentRule,
    u: Vec,
    given: Any,
    lr: Tensor,
    length: tuple[Tensor, Tensor],
    rows: tuple[Tensor, ...],
    sigma: Tensor,
) -> Vec:
    """The same with private steps; nothing is changed in place."""
    x, y, n, seed = rows
    state, expected = rule.optimiser.initial(u), rate_of(rule, n) * n
    for step, at, noise in private_batches(rule, seed, n, length, sigma, u):
        some = take(x, at)
        if rule.augment:
            some = shift_and_flip(some, dice(seed, step, at))
        batch, there = Batch.of(some, y[at]), expected.to(some.device)
        drawn = noise.float().to(some.device), there.float(), at.to(some.device)
        u, state = pure_step(rule, u, state, given, lr, batch, Draws(seed, step), *drawn)
    return u.map(lambda a, _: a.detach())


def one_step(
    rule: DescentRule,
    u: Vec,
    state: State,
    given: Any,
    lr: tuple[Tensor, float],
    batch: Batch,
    draws: Draws,
) -> tuple[Vec, State]:
    """One step of one client; the usual step changes `u` in place, which saves a copy of the weights. `lr` is the rate
    as a tensor and as a number."""
    still = statistics(u)
    names = [k for k in u if k not in still]
    params = [u[k] for k in names]
    with torch.enable_grad(), training_mode(), drawing(draws):
        for p in params:
            p.requires_grad_(True)
        slopes = torch.autograd.grad(rule.value(u, batch, given), params, allow_unused=True)
    for p in params:
        p.requires_grad_(False)
    found = dict(zip(names, slopes, strict=True))
    # Zero for BatchNorm statistics, and for weights that the loss does not use.
    g = Vec({k: torch.zeros_like(a) if (s := found.get(k)) is None else s for k, a in u.items()})
    g, state = rule.optimiser.direction(g, u, state)
    if rule.step is not sgd:
        return with_statistics_of(rule.step(u, g, given, lr[0]), u).map(lambda a, _: own(a)), state
    torch._foreach_add_(list(u.values()), list(g.values()), alpha=-lr[1])
    return u, state


def with_own_statistics(given: Any) -> Any:
    """The tree with copies of batch statistics: a loss that predicts with weights it is given changes them in place."""
    if isinstance(given, Vec):
        still = statistics(given)
        return Vec(dict(given) | {k: given[k].clone() for k in still}) if still else given
    return type(given)(map(with_own_statistics, given)) if type(given) in (tuple, list) else given


def own(a: Tensor) -> Tensor:
    """A copy that may be changed in place; convolutions are fastest with channels last."""
    return a.clone(memory_format=torch.channels_last if a.ndim == 4 else torch.contiguous_format)


def channels_last(x: Tensor) -> Tensor:
    """Images are stored as (n, h, w, c), so that taking rows gives channels-last batches."""
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) if x.ndim == 4 else x


# ---- many clients, stacked ----


class Compiling(NamedTuple):
    """How descents under vmap are computed."""

    on: bool = False
    threads: int = 1  # over clients, where each client's steps are one call
    fused: bool = True  # whether they may be


_compiling = [Compiling()]  # a stack: the value of the innermost block is last


@contextmanager
def compiled_steps(compiled: bool, threads: int = 1, fused: bool = True) -> Iterator[None]:
    """Whether descents under vmap inside this block are compiled; set by the engine. Without `fused`, all clients take
    a step together, as those must whose steps cannot be generated."""
    _compiling.append(Compiling(compiled, threads, fused))
    try:
        yield
    finally:
        _compiling.pop()


def together(
    rule: DescentRule, clients: int, spec: Any, values: list[Tensor], batched: list[bool]
) -> list[Tensor]:
    """All steps of all clients, and the final weights, (clients, …) each.

    `values` are the leaves of descend's tree, with a first axis of clients where `batched`.
    """
    # Each leaf becomes (tensor, batched?), so that the tree can be taken apart before anything is expanded.
    marked = [(v, b) for v, b in zip(values, batched, strict=True)]
    w, given, lr, length, rows, sigma = pytree.tree_unflatten(marked, spec)
    given_leaves = pytree.tree_leaves(given, is_leaf=_is_pair)
    one = Vec({k: leaf[0][0] if leaf[1] else leaf[0] for k, leaf in w.items()})
    shape = Shape(
        tuple(w),
        tuple(tuple(part) for part in rule.optimiser.initial(one)),
        pytree.tree_structure(given, is_leaf=_is_pair),
        tuple(0 if leaf[1] else None for leaf in given_leaves),
    )
    tree, how = (w, given_leaves, lr, length, rows), _compiling[-1]
    if sigma:
        return private_steps(rule, shape, clients, how.on and compiler() is not None, (*tree, *sigma))
    if how.on and how.fused and not rule.augment and not is_wrapped(values):
        found = client_by_client(rule, shape, clients, how.threads, tree)
        if found is not None:
            return found
    return step_after_step(rule, shape, clients, how.on and compiler() is not None, tree)


def step_after_step(
    rule: DescentRule, shape: Shape, clients: int, compiled: bool, tree: tuple[Any, ...]
) -> list[Tensor]:
    """Every step of all clients at once; `tree` is descend's, with marked leaves and those of `given` in a list."""

    def wide(leaf: tuple[Tensor, bool]) -> Tensor:
        return leaf[0] if leaf[1] else leaf[0].expand(clients, *leaf[0].shape)

    w, given_leaves, lr, length, marked = tree
    # (clients, rows, …), (clients, rows), (clients,), (clients,), and (clients, rows) where rows have weights
    x, y, n, seed, *weight = map(wide, marked)
    u = Vec({k: wide(a).contiguous() for k, a in w.items()})
    moving = [a for part in (u, *rule.optimiser.initial(u, (clients,))) for a in part.values()]
    # Leaves of `given` that all clients share are not expanded: vmap reads them without an axis (Shape.dims).
    fixed = [leaf[0] for leaf in given_leaves] + [wide(lr).contiguous(), seed]
    size = _UNROLL if compiled else 1
    steps_of = unrolled(rule, shape, size, compiled)
    all_x, all_y = x.flatten(0, 1), y.flatten(0, 1)  # (clients * rows, …): one gather serves all clients
    epochs, steps = map(wide, length)
    laid_out = replace(rule, batch=batch_rows(rule.batch, max(x.shape[1], _FEW_ROWS)))
    for at, live, go, key, number in schedule(laid_out, n, seed, epochs, steps, x.shape[1], size):
        rows = rows_at(all_x, at)  # (steps, clients, batch, …)
        if rule.augment:
            rows = shift_and_flip(rows.flatten(0, 2), key.flatten()).reshape(rows.shape)
        live = live * rows_at(weight[0].flatten(0, 1), at) if weight else live
        moving = steps_of(*moving, *fixed, rows, rows_at(all_y, at), live, go, number)
    return list(moving[: len(u)])


def private_steps(
    rule: DescentRule, shape: Shape, clients: int, compiled: bool, tree: tuple[Any, ...]
) -> list[Tensor]:
    """As `step_after_step`, with private steps; `tree` also has the noise multipliers."""

    def wide(leaf: tuple[Tensor, bool]) -> Tensor:
        return leaf[0] if leaf[1] else leaf[0].expand(clients, *leaf[0].shape)

    w, given_leaves, lr, length, marked, sigma = tree
    x, y, n, seed = map(wide, marked)
    u = Vec({k: wide(a).contiguous() for k, a in w.items()})
    moving = [a for part in (u, *rule.optimiser.initial(u, (clients,))) for a in part.values()]
    fixed = [leaf[0] for leaf in given_leaves] + [wide(lr).contiguous(), seed]
    steps_of = unrolled(rule, shape, 1, compiled)
    all_x, all_y = x.flatten(0, 1), y.flatten(0, 1)
    epochs, steps = map(wide, length)
    expected = (rate_of(rule, n) * n).float()[None]  # (1, clients)
    for part in private_schedule(rule, seed, n, (epochs, steps), wide(sigma), u, x.shape[1]):
        rows = rows_at(all_x, part.at)
        if rule.augment:
            rows = shift_and_flip(rows.flatten(0, 2), part.dice.flatten()).reshape(rows.shape)
        batch = (rows, rows_at(all_y, part.at), part.live.float(), part.go, part.number)
        moving = steps_of(*moving, *fixed, *batch, part.noise, expected, part.own)
    return list(moving[: len(u)])


def rows_at(all_rows: Tensor, at: Tensor) -> Tensor:
    """Rows by their numbers, in the shape of `at`."""
    return all_rows.index_select(0, at.flatten()).reshape(*at.shape, *all_rows.shape[1:])


def _is_pair(t: Any) -> bool:
    return isinstance(t, tuple) and len(t) == 2 and isinstance(t[1], bool)


@lru_cache(maxsize=64)
def unrolled(rule: DescentRule, shape: Shape, size: int, compiled: bool) -> Callable[..., Any]:
    """A function that takes all clients `size` steps further.

    Its arguments are flat, as recorded functions want them: weights, the optimiser's state, leaves of `given`, lr,
    seed, and then x, y, live, go and number of all steps; of private ones also the noise, the expected rows and the
    rows' numbers. It returns weights and state.
    """
    many, extra = shape.moving, 3 if rule.private else 0

    def one(*values: Tensor) -> list[Tensor]:
        u, state = shape.read(values[:many])
        given_leaves = pytree.tree_unflatten(list(values[many : -7 - extra]), shape.given)
        lr, seed, x, y, live, go, number, *noise = values[-7 - extra :]
        for s in range(size):
            batch, drawn = Batch(x[s], y[s], live[s]), [t[s] for t in noise]
            after, fresh = pure_step(rule, u, state, given_leaves, lr, batch, Draws(seed, number[s]), *drawn)
            # A client that does not take this step has computed it all the same, and keeps what it had.
            u = after.where(go[s], u)
            state = tuple(new.where(go[s], old) for new, old in zip(fresh, state, strict=True))
        return [a for part in (u, *state) for a in part.values()]

    # Clients are the first axis of all values but those of the steps, whose first axis is the step.
    dims = (*(0,) * many, *shape.dims, 0, 0, 1, 1, 1, 1, 1, *(1,) * extra)
    return Traced(vmap(one, in_dims=dims, randomness="error"), compiled)


class Traced:
    """A function that is recorded once for each set of shapes, and then run from the record.

    make_fx records what the function does to tensors, so the function may be any Python that runs under
    vmap. Running the record skips the overhead of vmap and grad; compiling it also saves memory traffic.
    torch.compile is not used because it fails on a tensor times a Vec.
    """

    def __init__(self, f: Callable[..., list[Tensor]], compiled: bool) -> None:
        self.f, self.compiled = f, compiled
        self.made: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *values: Tensor) -> Any:
        if is_wrapped(values[:1]):
            return self.f(*values)  # there is another vmap around this one
        shapes = (values[0].device, *((v.shape, v.dtype) for v in values))
        if shapes not in self.made:
            self.made[shapes] = self.build(values)
        return self.made[shapes](*values)

    def build(self, values: tuple[Tensor, ...]) -> Callable[..., Any]:
        from torch.fx.experimental.proxy_tensor import make_fx  # a second to import

        # Buffers and frozen weights are constants of the record.
        record = make_fx(self.f, tracing_mode="fake", _allow_non_fake_inputs=True)(*values)
        if not self.compiled:
            record.graph.eliminate_dead_code()
            record.recompile()
            return record.forward
        from torch._inductor import compile

        compiled: Callable[..., Any] = compile(record, list(values))
        return compiled


def is_wrapped(values: Sequence[Tensor]) -> bool:
    """Whether there is another vmap around this one."""
    return any(torch._C._functorch.is_functorch_wrapped_tensor(v) for v in values)
