"""Stacked clients, one after another: all steps of a client in one compiled call (fused_steps.py).

Steps that cannot go this way say why, and descent.py lets all clients take each step together.
Knows rules of descents and stacked clients. Does not know methods or engines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from motet.client.array_code import CannotGenerate
from motet.client.batches import batch_rows
from motet.client.data import Batch
from motet.client.descent_rule import DescentRule, Loss, Shape, pure_step, sgd
from motet.client.devices import CPU
from motet.client.dropout import NoDraws
from motet.client.fused_steps import BatchSizes, FusedSteps, generated
from motet.client.optimisers import Optimiser
from motet.vec import Vec


def client_by_client(
    rule: DescentRule, shape: Shape, clients: int, threads: int, tree: tuple[Any, ...]
) -> list[Tensor] | None:
    """As `together`, with all steps of a client in one compiled call; None where that cannot be. `tree` is descend's,
    each leaf with whether clients have their own."""
    w, given_leaves, lr, length, rows = tree
    x, y, *others = rows
    if any(leaf[0].device != CPU for leaf in (x, *w.values())):
        return None
    one = {k: leaf[0][0] if leaf[1] else leaf[0] for k, leaf in w.items()}
    state = [(a, False) for part in rule.optimiser.initial(Vec(one)) for a in part.values()]
    inputs = [*w.values(), *state, *given_leaves, lr]
    weight = [(t.float(), own) for t, own in others[2:]]
    size = batch_rows(rule.batch, x[0].shape[1 if x[1] else 0])
    forms = tuple((t.shape[1:] if own else t.shape, t.dtype) for t, own in inputs)
    batch = tuple((torch.Size((size, *t.shape[1 + own :])), t.dtype) for t, own in (x, y))
    made = fused(rule, shape, (*forms, *batch, (torch.Size((size,)), torch.float32)), bool(weight))
    if not isinstance(made, FusedSteps):
        return None
    lengths = [(t.long(), own) for t, own in (*others[:2], *length)]
    return made(clients, threads, inputs, [x, y, *lengths, *weight])


@lru_cache(maxsize=64)
def fused(
    rule: DescentRule, shape: Shape, forms: tuple[tuple[torch.Size, torch.dtype], ...], weighted: bool
) -> FusedSteps | CannotGenerate:
    """The steps of a client as one call, for tensors of these shapes and types; or why there is none."""
    examples, sizes = examples_of(forms), BatchSizes(rule.batch, rule.drop_last, weighted)
    try:
        return FusedSteps(flat_step(rule, shape), examples, len(shape.names), shape.moving, sizes)
    except CannotGenerate as e:
        return e


def flat_step(rule: DescentRule, shape: Shape) -> Callable[..., list[Tensor]]:
    """One step of one client on flat values: weights, state, leaves of `given`, lr, x, y and live."""
    many = shape.moving

    def one(*values: Tensor) -> list[Tensor]:
        u, state = shape.read(values[:many])
        given = pytree.tree_unflatten(list(values[many:-4]), shape.given)
        u, state = pure_step(rule, u, state, given, values[-4], Batch(*values[-3:]), NoDraws())
        return [a for part in (u, *state) for a in part.values()]

    return one


def examples_of(forms: Sequence[tuple[torch.Size, torch.dtype]]) -> list[Tensor]:
    return [torch.zeros(form, dtype=dtype) for form, dtype in forms]


def why_not_fused(loss: Loss, w: Vec, x: Tensor, y: Tensor, batch: int) -> str:
    """Why steps of this loss with the usual rule cannot go client by client; "" if they can. `x` and `y` are rows."""
    rule = DescentRule(loss, sgd, Optimiser(), batch, False)
    shape = Shape(tuple(w), (), pytree.tree_structure(()), ())
    size = batch_rows(batch, max(len(x), 1))
    forms = [*((a.shape, a.dtype) for a in w.values()), (torch.Size(()), torch.float32)]
    rows = [(torch.Size((size, *t.shape[1:])), t.dtype) for t in (x, y)]
    examples = examples_of([*forms, *rows, (torch.Size((size,)), torch.float32)])
    try:
        generated(flat_step(rule, shape), examples, shape.moving)
    except CannotGenerate as e:
        return str(e)
    return ""
