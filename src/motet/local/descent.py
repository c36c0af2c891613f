"""`descend`: the only training loop in motet.

It is written for one client. Called plainly it trains that client with in-place updates; called
under vmap it drops below the vmap level, where the clients are plain stacked tensors, and runs
their steps batched and, if the engine says so (`pace`), compiled.

A loss is a named function `(u, batch)` or `(u, batch, given)` that sees only what it is given, never
a closure over tensors. A step is a named function `(u, g, given, lr) -> u`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils import _pytree as pytree

from motet.local.data import Batch, Data, orders
from motet.vec import Vec

Loss = Callable[..., Tensor]
Step = Callable[[Vec, Vec, Any, Tensor], Vec]
_UNROLL = 3  # steps in one compiled call; more gained nothing
_INDICES = 1 << 22  # how many positions of examples are laid out at once


def sgd(u: Vec, g: Vec, given: Any, lr: Tensor) -> Vec:
    return u - lr * g


@dataclass(frozen=True)
class Rule:
    """Everything about a descent that is no tensor: what a compiled step is remembered by."""

    loss: Loss
    step: Step
    momentum: float
    decay: float
    clip: float | None
    batch: int
    drop_last: bool

    def blame(self, u: Vec, batch: Batch, given: Any) -> Tensor:
        return self.loss(u, batch) if isinstance(given, tuple) and not given else self.loss(u, batch, given)

    def shape(self, g: Vec, u: Vec, m: Vec | None) -> tuple[Vec, Vec | None]:
        """The direction to step in: the gradient with decay, clipping and momentum."""
        if self.decay:
            g = g + self.decay * u
        if self.clip is not None:
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
    rule = Rule(loss, step, momentum, decay, clip, batch, drop_last)
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
    @staticmethod
    def forward(rule: Rule, spec: Any, *values: Tensor) -> tuple[Tensor, ...]:
        return tuple(alone(rule, *pytree.tree_unflatten(list(values), spec)).values())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: Any, rule: Rule, spec: Any, *values: Tensor) -> Any:
        dims = in_dims[2:]
        rows = [v if d is None else v.movedim(d, 0) for v, d in zip(values, dims, strict=True)]
        out = together(rule, info.batch_size, spec, rows, [d is not None for d in dims])
        return tuple(out), (0,) * len(out)


# ---- one client, in place ----


def alone(rule: Rule, w: Vec, given: Any, lr: Tensor, epochs: Tensor, rows: tuple[Tensor, ...]) -> Vec:
    x, y, n, seed = rows
    many = int(n)
    x, y = lay_out(x[:many]), y[:many]
    u = w.map(lambda a, _: own(a))
    m = u.zeros() if rule.momentum else None
    for e in range(int(epochs)):
        for at in orders(seed, e, n, many).split(rule.batch):
            if rule.drop_last and len(at) < rule.batch <= many:
                continue
            u, m = tread(rule, u, m, given, lr, Batch.of(take(x, at), y[at]))
    return u.map(lambda a, _: a.detach())


def tread(rule: Rule, u: Vec, m: Vec | None, given: Any, lr: Tensor, batch: Batch) -> tuple[Vec, Vec | None]:
    """One step of one client; plain SGD changes `u` in place, which saves a copy of the weights."""
    params = list(u.values())
    with torch.enable_grad():
        for p in params:
            p.requires_grad_(True)
        slopes = torch.autograd.grad(rule.blame(u, batch, given), params, allow_unused=True)
    for p in params:
        p.requires_grad_(False)
    g = Vec({k: torch.zeros_like(u[k]) if s is None else s for k, s in zip(u, slopes, strict=True)})
    g, m = rule.shape(g, u, m)
    if rule.step is not sgd:
        return rule.step(u, g, given, lr).map(lambda a, _: own(a)), m
    torch._foreach_add_(params, list(g.values()), alpha=-float(lr))
    return u, m


def own(a: Tensor) -> Tensor:
    """A copy that may change in place; convolutions are fastest with channels last."""
    return a.clone(memory_format=torch.channels_last if a.ndim == 4 else torch.contiguous_format)


def lay_out(x: Tensor) -> Tensor:
    """Images (n, c, h, w) are stored as (n, h, w, c), so that taking rows gives channels-last batches."""
    return x.permute(0, 2, 3, 1).contiguous() if x.ndim == 4 else x


def take(x: Tensor, at: Tensor) -> Tensor:
    return x[at].permute(0, 3, 1, 2) if x.ndim == 4 else x[at]


# ---- many clients, stacked ----


class Pace(NamedTuple):
    compiled: bool = False


_pace = [Pace()]


@contextmanager
def pace(compiled: bool) -> Iterator[None]:
    """How batched descents inside this block run; set by the engine."""
    _pace.append(Pace(compiled))
    try:
        yield
    finally:
        _pace.pop()


class Window(NamedTuple):
    """A few steps of all clients: rows of examples (steps, clients, batch), and who takes which step."""

    at: Tensor
    live: Tensor
    go: Tensor


def together(rule: Rule, clients: int, spec: Any, values: list[Tensor], batched: list[bool]) -> list[Tensor]:
    """`values` in the order of descend's tree, with a first axis of clients where `batched`."""
    marked = [(v, b) for v, b in zip(values, batched, strict=True)]
    w, given, lr, epochs, rows = pytree.tree_unflatten(marked, spec)

    def wide(leaf: tuple[Tensor, bool]) -> Tensor:
        return leaf[0] if leaf[1] else leaf[0].expand(clients, *leaf[0].shape)

    names, u = tuple(w), [wide(a).contiguous() for a in w.values()]
    x, y, n, seed = map(wide, rows)
    each = [leaf[0] for leaf in _pairs(given)]
    dims = tuple(0 if leaf[1] else None for leaf in _pairs(given))
    given_spec = pytree.tree_structure(given, is_leaf=_is_pair)
    m = [torch.zeros_like(a) for a in u] if rule.momentum else []
    compiled = _pace[-1].compiled and not torch._C._functorch.is_batchedtensor(u[0])
    size = _UNROLL if compiled else 1
    march = marching(rule, names, given_spec, dims, size, compiled)
    flat, targets, lr_wide = x.flatten(0, 1), y.flatten(0, 1), wide(lr).contiguous()
    for at, live, go in windows(rule, n, seed, wide(epochs), x.shape[1], size):
        u, m = march(u, m, each, lr_wide, rows_at(flat, at), rows_at(targets, at), live, go)
    return u


def rows_at(all_rows: Tensor, at: Tensor) -> Tensor:
    return all_rows.index_select(0, at.flatten()).reshape(*at.shape, *all_rows.shape[1:])


def _is_pair(t: Any) -> bool:
    return isinstance(t, tuple) and len(t) == 2 and isinstance(t[1], bool)


def _pairs(tree: Any) -> list[tuple[Tensor, bool]]:
    return pytree.tree_leaves(tree, is_leaf=_is_pair)


@cache
def marching(
    rule: Rule, names: tuple[str, ...], given_spec: Any, dims: tuple[Any, ...], size: int, compiled: bool
) -> Callable[..., Any]:
    """A function that takes all clients `size` steps further."""

    def one(u: Any, m: Any, given: Any, lr: Tensor, x: Tensor, y: Tensor, live: Tensor, go: Tensor) -> Any:
        v, slow = Vec(zip(names, u, strict=True)), Vec(zip(names, m, strict=True)) if m else None
        told = pytree.tree_unflatten(given, given_spec)
        for s in range(size):
            g = grad(rule.blame)(v, Batch(x[s], y[s], live[s]), told)
            g, fresh = rule.shape(g, v, slow)
            v = rule.step(v, g, told, lr).where(go[s], v)
            slow = fresh.where(go[s], slow) if fresh is not None and slow is not None else None
        return list(v.values()), list(slow.values()) if slow is not None else []

    # Steps come first in x, y, live and go, clients second.
    many = vmap(one, in_dims=(0, 0, list(dims), 0, 1, 1, 1, 1), randomness="error")
    return Compiled(many) if compiled else many


class Compiled:
    """A function traced and compiled once for each set of shapes it meets.

    make_fx records what the function does to tensors, so that any Python that runs under vmap
    compiles, and inductor compiles the record. Going through torch.compile instead stumbles over a
    tensor times a Vec, and checks its guards at every call.
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f
        self.made: dict[Any, tuple[Callable[..., Any], Any]] = {}

    def __call__(self, *args: Any) -> Any:
        values, spec = pytree.tree_flatten(args)
        shapes = tuple(v.shape for v in values)
        if shapes not in self.made:
            self.made[shapes] = self.build(values, spec)
        run, out = self.made[shapes]
        return pytree.tree_unflatten(run(*values), out)

    def build(self, values: list[Tensor], spec: Any) -> tuple[Callable[..., Any], Any]:
        from torch._inductor import compile  # seconds to import, and rarely needed
        from torch.fx.experimental.proxy_tensor import make_fx

        shape: list[Any] = []

        def flat(*values: Tensor) -> list[Tensor]:
            out, to = pytree.tree_flatten(self.f(*pytree.tree_unflatten(list(values), spec)))
            shape.append(to)
            return out

        graph = make_fx(flat, tracing_mode="fake")(*values)
        return compile(graph, list(values)), shape[0]


def windows(rule: Rule, n: Tensor, seed: Tensor, epochs: Tensor, rows: int, size: int) -> Iterator[Window]:
    """All steps of all clients, `size` at a time. Clients with fewer examples or epochs stand still."""
    clients, most = len(n), int(epochs.max())
    top = int(n.max())
    steps = -(-top // rule.batch)
    home = (torch.arange(clients) * rows)[:, None]
    group = max(1, _INDICES // max(1, clients * top))
    for first in range(0, most, group):
        epoch = torch.arange(first, min(first + group, most))
        order = orders(seed[:, None, None], epoch[None, :, None], n[:, None, None], top)
        pad = steps * rule.batch - top
        at = torch.nn.functional.pad(order, (0, pad)).reshape(clients, -1, rule.batch)
        place = torch.arange(steps * rule.batch).reshape(steps, rule.batch)
        live = (place[None] < n[:, None, None]).float().repeat(1, len(epoch), 1)
        full = (place[None, :, -1] < n[:, None]) | (n[:, None] < rule.batch)
        go = (full if rule.drop_last else torch.ones_like(full)) & (place[None, :, 0] < n[:, None])
        go = (go[:, None, :] & (epoch[None, :, None] < epochs[:, None, None])).flatten(1)
        yield from _cut((at + home[:, :, None]).transpose(0, 1), live.transpose(0, 1), go.T, size)


def _cut(at: Tensor, live: Tensor, go: Tensor, size: int) -> Iterator[Window]:
    if spare := -len(at) % size:  # a window that is not full ends with steps that nobody takes
        at = torch.cat([at, at[:1].expand(spare, -1, -1)])
        live = torch.cat([live, live[:1].expand(spare, -1, -1)])
        go = torch.cat([go, torch.zeros_like(go[:1]).expand(spare, -1)])
    for s in range(0, len(at), size):
        if go[s : s + size].any():
            yield Window(at[s : s + size], live[s : s + size].contiguous(), go[s : s + size].contiguous())
