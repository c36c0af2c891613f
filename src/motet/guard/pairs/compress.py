"""Compression of updates: the largest numbers alone (top-k), each in 8 bits, and what is lost is sent later.

Stich et al. 2018, "Sparsified SGD with Memory", Algorithm 1, and Alistarh et al. 2017, "QSGD", section 3.1: an
update is rounded up or down at random, by draws that follow from seed and position, so that its mean stays what it
is. What a message lost stays at the client and is added to its next update (error feedback). A lost message is lost
with what it held: the client cannot know it.
Differs from QSGD: the scale of a tensor is its largest number, not its length, as 127 steps to each side.
Knows updates. Does not know clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from motet.client.data import hashes
from motet.core import Tree
from motet.guard.outline import from_outline, outline
from motet.guard.pairs.chain import ArrivedWrong, Leaving, float_leaves, form_of, origin, reply_of, update_of

_STEPS = 127  # to each side of zero
Bits = Literal[32, 8]


@dataclass(frozen=True)
class Compress:
    """`top` is the share of an update's numbers that leaves, the largest ones; `bits` is what each takes."""

    bits: Bits = 8
    top: float = 1.0
    feedback: bool = True  # whether what was lost is added to the next update
    name = "compress"
    codes = True

    def leave(self, reply: Tree, about: Leaving, kept: Tree) -> tuple[Tree, Tree]:
        floats, _, values, _ = float_leaves(reply)
        if not floats:
            return {"form": outline(reply)}, ()
        update = update_of(floats, origin(reply, about.sent))
        sizes = [len(u) for u in update]
        whole = torch.cat(update)
        if self.feedback and isinstance(kept, Tensor) and kept.shape == whole.shape:
            whole = whole + kept.double()
        message, said = self.coded(whole, sizes, about.seed)
        if form_of(reply) != form_of(about.sent) or len(floats) != len(values):
            message["form"] = outline(reply)
        return message, (whole - said).float() if self.feedback else ()

    def arrive(self, came: Tree, sent: Tree) -> Tree:
        """The reply that a message stands for. Without a form of its own, it has that of what was sent."""
        try:
            like = from_outline(came["form"]) if "form" in came else sent
            floats, places, values, spec = float_leaves(like)
            parts = self.read(came, [f.numel() for f in floats]) if floats else []
            for i, v in zip(places, reply_of(parts, floats, origin(like, sent)), strict=True):
                values[i] = v
            return pytree.tree_unflatten(values, spec)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
            raise ArrivedWrong(f"no compressed update of the form that was asked for: {e}") from e

    # ---- one vector ----

    def coded(self, whole: Tensor, sizes: list[int], seed: int) -> tuple[dict[str, Any], Tensor]:
        """A message, and the vector that its reader will have."""
        chosen = largest(whole, self.top) if self.top < 1 else None
        picked = whole if chosen is None else whole[chosen]
        message: dict[str, Any] = {} if chosen is None else {"at": chosen.to(torch.int32)}
        if self.bits == 8:
            scales = self.scales(whole, sizes, chosen)
            steps = scales_at(scales, sizes, chosen)
            message |= {"codes": rounded(picked, steps, seed), "scales": scales}
        else:
            message |= {"codes": picked.float()}
        return message, torch.cat(self.read(message, sizes))

    def read(self, message: dict[str, Any], sizes: list[int]) -> list[Tensor]:
        """The vector that a message stands for, cut into parts."""
        codes, many = message["codes"], sum(sizes)
        chosen = message["at"].long() if self.top < 1 else None
        count = many if chosen is None else kept_of(many, self.top)
        if codes.shape != (count,) or codes.dtype != (torch.int8 if self.bits == 8 else torch.float32):
            raise ValueError(
                f"{tuple(codes.shape)} codes of type {codes.dtype} came, and {count} were expected"
            )
        values = codes.double()
        if chosen is not None and (chosen.shape != (count,) or bool((chosen[1:] <= chosen[:-1]).any())):
            raise ValueError("places of numbers must be in order, each once")
        if self.bits == 8:
            if message["scales"].shape != (len(sizes),):
                raise ValueError(f"{len(sizes)} scales were expected")
            values = values * scales_at(message["scales"], sizes, chosen)
        if chosen is not None:
            if int(chosen[0]) < 0 or int(chosen[-1]) >= many:
                raise ValueError(f"there are {many} numbers, and one at {int(chosen[-1])} came")
            values = torch.zeros(many, dtype=torch.float64).index_copy_(0, chosen, values)
        return list(values.split(sizes))

    def scales(self, whole: Tensor, sizes: list[int], chosen: Tensor | None) -> Tensor:
        """One step of each tensor: its largest number is 127 steps."""
        parts = whole.abs().split(sizes)
        tops = torch.stack([p.max() if len(p) else p.new_zeros(()) for p in parts])
        steps = (tops / _STEPS).float()
        # a float32 that was rounded down would make 128 steps of the largest number
        return torch.where(
            steps.double() * _STEPS < tops, torch.nextafter(steps, steps.new_tensor(torch.inf)), steps
        )


def scales_at(scales: Tensor, sizes: list[int], chosen: Tensor | None) -> Tensor:
    """The step of every number that leaves."""
    every = torch.repeat_interleave(scales.double(), torch.tensor(sizes))
    return every if chosen is None else every[chosen]


def rounded(values: Tensor, steps: Tensor, seed: int) -> Tensor:
    """Whole steps, up or down at random: the mean of all draws is the value."""
    exact = torch.where(steps > 0, values / steps, 0.0)
    draws = (hashes(torch.tensor(seed), 0, torch.arange(len(values))) >> 38).double() / 2**24
    return (exact + draws).floor().clamp(-_STEPS, _STEPS).to(torch.int8)


def kept_of(many: int, share: float) -> int:
    """How many numbers leave: a share rounded up, so at least one.

    >>> kept_of(1000, 0.01), kept_of(5, 0.01)
    (10, 1)
    """
    return max(1, math.ceil(share * many - 1e-9))


def largest(whole: Tensor, share: float) -> Tensor:
    """Where the numbers of largest size are, in order; of equal ones the first."""
    order = whole.abs().argsort(descending=True, stable=True)
    return order[: kept_of(len(whole), share)].sort().values
