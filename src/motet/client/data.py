"""One client's examples, and randomness that is arithmetic.

Orders and draws are hashes of (seed, salt, position), never of a global generator, so every engine
sees the same ones. Everything here is written for one client and is safe under torch.func.vmap.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_SPOT = 24  # bits of a sort key that hold the position: at most 2**24 examples a client
_LAST = 1 << 62  # the key of padding: behind every real example


def seed_of(*words: object) -> int:
    """A 62-bit seed that depends on all the words, the same on every machine.

    >>> seed_of(0, 1, "a") == seed_of(0, 1, "a") != seed_of(0, 1, "b")
    True
    """
    text = "\x1f".join(map(str, words)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 2


def mix(key: Tensor) -> Tensor:
    """splitmix64's finaliser; int64 wraps around, and masks make its shifts logical ones."""
    key = (key ^ ((key >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    key = (key ^ ((key >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return key ^ ((key >> 31) & 0x1FFFFFFFF)


def hashes(seed: Tensor, salt: Tensor | int, position: Tensor) -> Tensor:
    """62-bit whole numbers, one for each (seed, salt, position); the arguments broadcast."""
    key = mix(seed + (torch.as_tensor(salt) + 1) * _GOLDEN) + (position + 1) * _GOLDEN
    if not in_numpy(key):
        return mix(key) & (_LAST - 1)
    mix_in_place(key.numpy().view(np.uint64))
    return key.bitwise_and_(_LAST - 1)


def in_numpy(key: Tensor) -> bool:
    """Whether NumPy can have the numbers: on the CPU and outside vmap. It is several times faster than torch, and the
    whole numbers are the same."""
    return key.is_cpu and not torch._C._functorch.is_functorch_wrapped_tensor(key)


def mix_in_place(key: np.ndarray) -> None:
    """As `mix`, in NumPy."""
    key ^= key >> np.uint64(30)
    key *= np.uint64(0xBF58476D1CE4E5B9)
    key ^= key >> np.uint64(27)
    key *= np.uint64(0x94D049BB133111EB)
    key ^= key >> np.uint64(31)


def orders(seed: Tensor, epoch: Tensor | int, n: Tensor, rows: int) -> Tensor:
    """Permutations of the n real examples, followed by the padding; the arguments broadcast."""
    position = torch.arange(rows)
    key = (hashes(seed, epoch, position) >> _SPOT) << _SPOT
    key = torch.where(position < n, key, _LAST) | position
    return ascending(key) & ((1 << _SPOT) - 1)


def ascending(key: Tensor) -> Tensor:
    """Sorted along the last axis."""
    if not in_numpy(key):
        return key.sort(dim=-1).values
    return torch.from_numpy(np.sort(key.numpy(), axis=-1))


@dataclass(frozen=True)
class PrivateSteps:
    """How training is made private (private_steps.py), beside the noise multiplier, which is each client's own."""

    max_grad_norm: float  # longest gradient of one example
    system: bool = False  # draws come from the operating system, and nobody can draw them again


@dataclass
class Batch:
    """Some examples; `live` is the weight of a real one, 1.0 where rows have no weights, and 0.0 for padding."""

    x: Tensor
    y: Tensor
    live: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Batch:
        return cls(x, y, torch.ones(len(x)))

    def mean(self, per_example: Tensor) -> Tensor:
        """Weights times losses, by the number of rows and not by this batch's own sum of weights: a batch of one row
        would then not be weighted at all. A client's training rows have weights of mean 1."""
        rows = (self.live > 0).to(self.live.dtype).sum()
        return (per_example * self.live).sum() / rows.clamp(min=1)

    def evened(self) -> Batch:
        """The same rows with weights of mean 1."""
        real = (self.live > 0).to(self.live.dtype).sum()
        return replace(self, live=self.live * (real / self.live.sum()) if real else self.live)

    def __len__(self) -> int:
        return self.live.shape[0]  # len() of a tensor takes three times as long

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return tuple(self.x.shape[1:])

    def take(self) -> Batch:
        return self


@dataclass(frozen=True)
class LazyRows:
    """Rows of arrays that many clients share; they are copied only when they are taken."""

    shared_x: Tensor  # (all rows, ...), usually bytes of a memory-mapped file
    shared_y: Tensor
    at: Tensor  # which of the rows

    def __len__(self) -> int:
        return len(self.at)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.shared_x.shape[1:])

    @property
    def x(self) -> Tensor:
        return take(self.shared_x, self.at)

    @property
    def y(self) -> Tensor:
        return self.shared_y[self.at]

    def take(self) -> Batch:
        return Batch.of(self.x, self.y)


def take(x: Tensor, at: Tensor) -> Tensor:
    """Some rows; images (n, c, h, w) keep their channels last in memory if they were."""
    return x.permute(0, 2, 3, 1)[at].permute(0, 3, 1, 2) if x.ndim == 4 else x[at]


@dataclass(frozen=True)
class Column:
    """What a feature is called and what it holds."""

    name: str
    kind: str = "number"  # or "flag": 0 or 1
    group: str = ""  # what it was one-hot encoded from; "" if it stands for itself
    here: bool = True  # whether the client holds it; an absent one is zero in every row


@dataclass
class Data:
    """One client's training and validation examples. Test examples are never in here."""

    x: Tensor  # (rows, ...), padded at the end
    y: Tensor  # (rows,)
    n: Tensor  # how many rows are real
    seed: Tensor  # fresh for every client and round
    val: Batch
    columns: tuple[Column, ...] = ()
    augment: bool = False  # whether descend shifts and mirrors images
    round: Tensor = field(default_factory=lambda: torch.tensor(0))  # its number; schedules of rates go by it
    weight: Tensor | None = None  # (rows,) of mean 1 over the real rows; None: all count alike
    noise: Tensor | None = None  # noise multiplier of private training; None: training is not private
    private: PrivateSteps | None = None  # how it is private, where there is noise

    @property
    def all(self) -> Batch:
        return Batch(self.x, self.y, self.live)

    @property
    def live(self) -> Tensor:
        """(rows,) the weight of each real row, and 0 for padding."""
        real = torch.arange(len(self.x)) < self.n
        return real.float() if self.weight is None else torch.where(real, self.weight, 0.0)

    def some(self, at: Tensor, n: Tensor) -> Data:
        """The rows at these places, of which the first n are real."""
        weight = None if self.weight is None else self.weight[at]
        return replace(self, x=self.x[at], y=self.y[at], n=n, weight=weight)

    def dice(self, many: int, salt: int = 0) -> Tensor:
        """Whole numbers that depend only on seed, salt and position."""
        return hashes(self.seed, salt, torch.arange(many))

    def chance(self, many: int, salt: int = 0) -> Tensor:
        """Uniform numbers in [0, 1): 24 bits, which a float32 holds without rounding up to 1."""
        return (self.dice(many, salt) >> 38) / 2**24

    def order(self, epoch: int = 0) -> Tensor:
        """A permutation of the real examples, then the padding."""
        return orders(self.seed, epoch, self.n, len(self.x))


@dataclass
class ClientTest:
    """What only the evaluation is given: a client's data together with the examples it is tested on."""

    data: Data
    examples: Batch


@dataclass
class ClientData:
    """One client's examples in three parts that share no rows."""

    train: Batch | LazyRows
    val: Batch | LazyRows
    test: Batch | LazyRows
    columns: tuple[Column, ...] = field(default=())
    augment: bool = False  # training images are shifted and mirrored
    weighted: bool = False  # rows have weights of the user's, in `live` of the batches
    noise: float | None = None  # noise multiplier of private training; None: training is not private
    private: PrivateSteps | None = None  # how it is private, where there is noise

    @cached_property
    def n(self) -> int:
        return len(self.train)

    @cached_property
    def total(self) -> float:
        """What the client counts in a mean over clients: its training rows, each by its weight."""
        return float(self.train.take().live.double().sum()) if self.weighted else float(self.n)


def _data(values: Iterable[Any], rest: tuple[Any, ...]) -> Data:
    (x, y, n, seed, val, number, *more), (columns, augment, weighted, private) = values, rest
    weight, noise = (more.pop(0) if there else None for there in (weighted, private is not None))
    return Data(x, y, n, seed, val, columns, augment, number, weight, noise, private)


pytree.register_pytree_node(
    Batch,
    lambda b: ([b.x, b.y, b.live], None),
    lambda values, _: Batch(*values),
    serialized_type_name="motet.Batch",
)
pytree.register_pytree_node(
    Data,
    lambda d: (
        [d.x, d.y, d.n, d.seed, d.val, d.round, *(t for t in (d.weight, d.noise) if t is not None)],
        (d.columns, d.augment, d.weight is not None, d.private),
    ),
    _data,
    serialized_type_name="motet.Data",
)
pytree.register_pytree_node(
    ClientTest,
    lambda e: ([e.data, e.examples], None),
    lambda values, _: ClientTest(*values),
    serialized_type_name="motet.ClientTest",
)
