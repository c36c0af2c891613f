"""`descend`: the only training loop in motet.

It is written for one client. Called plainly, it trains that client with in-place updates (`alone`).
Called under vmap, it is given all clients as plain stacked tensors and trains them together, step by
step (`together`); the steps are compiled if the engine says so (`compiled_steps`).

A loss is a named function `(u, batch)` or `(u, batch, given)`: it sees the weights u, a batch of
examples, and `given`, any tree of tensors that stays fixed. It must not be a closure over tensors, because
steps are recorded once and used again. A step is a named function `(u, g, given, lr) -> u`, with g the
direction after decay, clipping and momentum.

Knows weights, examples and gradients. Does not know methods or engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils import _pytree as pytree

from motet.client.augment import shift_and_flip
from motet.client.batchnorm import statistics, training_mode, weights_of, with_statistics_of
from motet.client.data import Batch, Data, hashes, orders, take
from motet.vec import Vec

Loss = Callable[..., Tensor]
Step = Callable[[Vec, Vec, Any, Tensor], Vec]
_UNROLL = 3  # steps in one compiled call; more made nothing faster
_INDICES = 1 << 22  # row numbers of examples that are held in memory at once


def sgd(u: Vec, g: Vec, given: Any, lr: Tensor) -> Vec:
    """The usual step."""
    return u - lr * g


@dataclass(frozen=True)
class DescentRule:
    """Everything about a descent that is no tensor. Recorded steps are cached by it, so it is hashable."""

    loss: Loss
    step: Step
    momentum: float
    decay: float
    clip: float | None
    batch: int
    drop_last: bool
    augment: bool = False

    def value(self, u: Vec, batch: Batch, given: Any) -> Tensor:
        return self.loss(u, batch) if isinstance(given, tuple) and not given else self.loss(u, batch, given)

    def shape(self, g: Vec, u: Vec, m: Vec | None) -> tuple[Vec, Vec | None]:
        """The direction to step in: the gradient with decay, clipping and momentum."""
        if self.decay:
            g = g + self.decay * weights_of(u)
        if self.clip:  # 0 and None: any length
            g = g * torch.clamp(self.clip / (g.sq().sqrt() + 1e-12), max=1.0)
        if m is None:
            return g, None
        m = self.momentum * m + g
        return m, m


def descend(
    loss: Loss,
    w: Vec,
    data: Data,
    *,
    lr: float | Tensor,
    epochs: int | Tensor = 1,
    batch: int = 16,
    given: Any = (),
    momentum: float = 0.0,
    decay: float = 0.0,
    clip: float | None = None,
    drop_last: bool = False,
    step: Step = sgd,
) -> Vec:
    """Minimise `loss` by stochastic gradient descent from `w` over `data`.

    `lr` and `epochs` may be tensors, so that every client can have its own. The result is a
    constant: no gradient flows back through a descent.
    """
    rule = DescentRule(loss, step, momentum, decay, clip, batch, drop_last, data.augment)
    tree = (
        w,
        given,
        torch.as_tensor(lr, dtype=torch.float32),
        torch.as_tensor(epochs),
        (data.x, data.y, data.n, data.seed),
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
        out = together(rule, info.batch_size, spec, rows, [d is not None for d in dims])
        return tuple(out), (0,) * len(out)


# ---- one client, in place ----


def alone(rule: DescentRule, w: Vec, given: Any, lr: Tensor, epochs: Tensor, rows: tuple[Tensor, ...]) -> Vec:
    """All steps of one client, without its padding."""
    x, y, n, seed = rows
    many = int(n)
    x, y = channels_last(x[:many]), y[:many]
    u = w.map(lambda a, _: own(a))
    m = u.zeros() if rule.momentum else None
    for e in range(int(epochs)):
        for at in orders(seed, e, n, many).split(rule.batch):
            if rule.drop_last and len(at) < rule.batch <= many:
                continue
            some = take(x, at)
            if rule.augment:
                some = shift_and_flip(some, dice(seed, e, at))
            u, m = sgd_step(rule, u, m, given, lr, Batch.of(some, y[at]))
    return u.map(lambda a, _: a.detach())


def sgd_step(
    rule: DescentRule, u: Vec, m: Vec | None, given: Any, lr: Tensor, batch: Batch
) -> tuple[Vec, Vec | None]:
    """One step of one client; plain SGD changes `u` in place, which saves a copy of the weights."""
    still = statistics(u)
    names = [k for k in u if k not in still]
    params = [u[k] for k in names]
    with torch.enable_grad(), training_mode():
        for p in params:
            p.requires_grad_(True)
        slopes = torch.autograd.grad(rule.value(u, batch, given), params, allow_unused=True)
    for p in params:
        p.requires_grad_(False)
    found = dict(zip(names, slopes, strict=True))
    # Zero for BatchNorm statistics, and for weights that the loss does not use.
    g = Vec({k: torch.zeros_like(a) if (s := found.get(k)) is None else s for k, a in u.items()})
    g, m = rule.shape(g, u, m)
    if rule.step is not sgd:
        return with_statistics_of(rule.step(u, g, given, lr), u).map(lambda a, _: own(a)), m
    torch._foreach_add_(list(u.values()), list(g.values()), alpha=-float(lr))
    return u, m


def dice(seed: Tensor, epoch: Tensor | int, at: Tensor) -> Tensor:
    """Random numbers for the augmentation of each example in an epoch."""
    return hashes(seed, -2 - epoch, at)  # negative salts: orders and methods' draws have others


def own(a: Tensor) -> Tensor:
    """A copy that may be changed in place; convolutions are fastest with channels last."""
    return a.clone(memory_format=torch.channels_last if a.ndim == 4 else torch.contiguous_format)


def channels_last(x: Tensor) -> Tensor:
    """Images are stored as (n, h, w, c), so that taking rows gives channels-last batches."""
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) if x.ndim == 4 else x


# ---- many clients, stacked ----


_compiling = [False]  # a stack: the value of the innermost block is last


@contextmanager
def compiled_steps(compiled: bool) -> Iterator[None]:
    """Whether descents under vmap inside this block are compiled; set by the engine."""
    _compiling.append(compiled)
    try:
        yield
    finally:
        _compiling.pop()


class ScheduledSteps(NamedTuple):
    """A few steps of all clients."""

    at: Tensor  # (steps, clients, batch): row numbers in the examples of all clients, one after another
    live: Tensor  # (steps, clients, batch): 1 for an example, 0 for padding
    go: Tensor  # (steps, clients): whether the client takes this step
    dice: Tensor  # (steps, clients, batch) random numbers for the augmentation, or (steps, clients, 0) without it


def together(
    rule: DescentRule, clients: int, spec: Any, values: list[Tensor], batched: list[bool]
) -> list[Tensor]:
    """All steps of all clients, and the final weights, (clients, …) each.

    `values` are the leaves of descend's tree, with a first axis of clients where `batched`.
    """
    # Each leaf becomes (tensor, batched?), so that the tree can be taken apart before anything is expanded.
    marked = [(v, b) for v, b in zip(values, batched, strict=True)]
    w, given, lr, epochs, rows = pytree.tree_unflatten(marked, spec)

    def wide(leaf: tuple[Tensor, bool]) -> Tensor:
        return leaf[0] if leaf[1] else leaf[0].expand(clients, *leaf[0].shape)

    x, y, n, seed = map(wide, rows)  # (clients, rows, …), (clients, rows), (clients,), (clients,)
    given_leaves = pytree.tree_leaves(given, is_leaf=_is_pair)
    shape = Shape(
        tuple(w),
        pytree.tree_structure(given, is_leaf=_is_pair),
        tuple(0 if leaf[1] else None for leaf in given_leaves),
        bool(rule.momentum),
    )
    u = [wide(a).contiguous() for a in w.values()]
    state = u + [torch.zeros_like(a) for a in u] if shape.momentum else u
    # Leaves of `given` that all clients share are not expanded: vmap reads them without an axis (Shape.dims).
    fixed = [leaf[0] for leaf in given_leaves] + [wide(lr).contiguous()]
    compiled = _compiling[-1]
    size = _UNROLL if compiled else 1
    steps_of = unrolled(rule, shape, size, compiled)
    all_x, all_y = x.flatten(0, 1), y.flatten(0, 1)  # (clients * rows, …): one gather serves all clients
    for at, live, go, key in schedule(rule, n, seed, wide(epochs), x.shape[1], size):
        rows = rows_at(all_x, at)  # (steps, clients, batch, …)
        if rule.augment:
            rows = shift_and_flip(rows.flatten(0, 2), key.flatten()).reshape(rows.shape)
        state = steps_of(*state, *fixed, rows, rows_at(all_y, at), live, go)
    return list(state[: len(u)])


class Shape(NamedTuple):
    """How the flat arguments of a step are to be read."""

    names: tuple[str, ...]  # of the weights
    given: Any  # the structure of the tree that the loss is given
    dims: tuple[int | None, ...]  # for each of its leaves: 0 if clients differ in it, None if they share it
    momentum: bool  # whether the weights are followed by their momentum


def rows_at(all_rows: Tensor, at: Tensor) -> Tensor:
    """Rows by their numbers, in the shape of `at`."""
    return all_rows.index_select(0, at.flatten()).reshape(*at.shape, *all_rows.shape[1:])


def _is_pair(t: Any) -> bool:
    return isinstance(t, tuple) and len(t) == 2 and isinstance(t[1], bool)


@lru_cache(maxsize=64)
def unrolled(rule: DescentRule, shape: Shape, size: int, compiled: bool) -> Callable[..., Any]:
    """A function that takes all clients `size` steps further.

    Its arguments are flat, as recorded functions want them: weights, momentum if any, leaves of `given`, lr, and
    then x, y, live and go of all steps. It returns weights, and momentum if any.
    """
    many, more = len(shape.names), len(shape.names) * (1 + shape.momentum)

    def one(*values: Tensor) -> list[Tensor]:
        u = Vec(zip(shape.names, values[:many], strict=True))
        m = Vec(zip(shape.names, values[many:more], strict=True)) if shape.momentum else None
        given_leaves = pytree.tree_unflatten(list(values[more:-5]), shape.given)
        lr, x, y, live, go = values[-5:]
        for s in range(size):
            g = grad(rule.value)(u, Batch(x[s], y[s], live[s]), given_leaves)
            g, fresh = rule.shape(g, u, m)
            # A client that does not take this step has computed it all the same, and keeps what it had.
            u = with_statistics_of(rule.step(u, g, given_leaves, lr), u).where(go[s], u)
            m = fresh.where(go[s], m) if fresh is not None and m is not None else None
        return [*u.values(), *(m.values() if m is not None else ())]

    # Clients are the first axis of all values but x, y, live and go, whose first axis is the step.
    dims = (*(0,) * more, *shape.dims, 0, 1, 1, 1, 1)
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
        if torch._C._functorch.is_functorch_wrapped_tensor(values[0]):
            return self.f(*values)  # there is another vmap around this one
        shapes = tuple((v.shape, v.dtype) for v in values)
        if shapes not in self.made:
            self.made[shapes] = self.build(values)
        return self.made[shapes](*values)

    def build(self, values: tuple[Tensor, ...]) -> Callable[..., Any]:
        from torch.fx.experimental.proxy_tensor import make_fx  # a second to import

        record = make_fx(self.f, tracing_mode="fake")(*values)
        if not self.compiled:
            record.graph.eliminate_dead_code()
            record.recompile()
            return record.forward
        from torch._inductor import compile

        compiled: Callable[..., Any] = compile(record, list(values))
        return compiled


def schedule(
    rule: DescentRule, n: Tensor, seed: Tensor, epochs: Tensor, rows: int, size: int
) -> Iterator[ScheduledSteps]:
    """All steps of all clients, `size` at a time. Clients with fewer examples or epochs skip steps (`go`).

    `n`, `seed` and `epochs` are (clients,); `rows` is how many rows each client has with its padding.
    """
    clients, most = len(n), int(epochs.max())
    top = int(n.max())
    steps = -(-top // rule.batch)  # of the largest client in an epoch
    first_row = (torch.arange(clients) * rows)[:, None]  # of each client in the rows of all
    group = max(1, _INDICES // max(1, clients * top))  # epochs that are laid out at once
    for first in range(0, most, group):
        epoch = torch.arange(first, min(first + group, most))
        # (clients, epochs, top), then padded to whole batches
        order = orders(seed[:, None, None], epoch[None, :, None], n[:, None, None], top)
        order = torch.nn.functional.pad(order, (0, steps * rule.batch - top))
        key = dice(seed[:, None, None], epoch[None, :, None], order) if rule.augment else order[..., :0]
        # (clients, steps of all epochs, batch), as are key and live
        at = order.reshape(clients, -1, rule.batch) + first_row[:, :, None]
        key = key.reshape(*at.shape[:2], -1)
        place = torch.arange(steps * rule.batch).reshape(steps, rule.batch)  # in an epoch: real where below n
        live = (place[None] < n[:, None, None]).float().repeat(1, len(epoch), 1)
        # (clients, steps of an epoch): batches without padding, and those of clients that fill no batch
        full = (place[None, :, -1] < n[:, None]) | (n[:, None] < rule.batch)
        go = (full if rule.drop_last else torch.ones_like(full)) & (place[None, :, 0] < n[:, None])
        go = (go[:, None, :] & (epoch[None, :, None] < epochs[:, None, None])).flatten(1)
        # Steps become the first axis, so that a few of them are one slice.
        yield from _cut(ScheduledSteps(*(t.transpose(0, 1).contiguous() for t in (at, live, go, key))), size)


def _cut(all_steps: ScheduledSteps, size: int) -> Iterator[ScheduledSteps]:
    """The steps, `size` at a time, without those that no client takes."""
    go = all_steps.go
    if spare := -len(go) % size:  # recorded functions want `size` steps: the last ones are taken by nobody
        all_steps = ScheduledSteps(*(torch.cat([t, t[:1].expand(spare, *t.shape[1:])]) for t in all_steps))
        go = all_steps.go
        go[-spare:] = False
    busy = go.reshape(-1, size * go.shape[1]).any(1).tolist()
    for s, some in zip(range(0, len(go), size), busy, strict=True):
        if some:
            yield ScheduledSteps(*(t[s : s + size] for t in all_steps))
