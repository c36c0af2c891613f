"""Dropout without a generator: what a network draws while it trains is a hash of (seed, step, draw, place).

The seed of a client's examples is fresh for every run, round and client, so a draw depends on (seed, round, client,
step) and on where it stands in the network: the number of the draw in this step, and the place of the value in its
tensor, axis by axis. A batch that is padded therefore has the draws of one that is not, and every engine the same.
Calls of torch that draw (dropout in all its forms, attention with dropout, rand and bernoulli) are answered here
while a network trains; others that draw are refused. When a network predicts, nothing is drawn.
Knows hashes and torch's functions. Does not know networks, batches or clients.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from motet.client.data import hashes
from motet.errors import UsageError

_SALT = 1 << 40  # orders, augmentation and methods' draws have other salts
_ROW = 1 << 41
_BITS = 24  # of a draw; a float32 holds them without rounding up to 1
_thread = threading.local()


class Draws:
    """The draws of one step of one client: `seed` and `step` are whole numbers, alone or under vmap."""

    def __init__(self, seed: Tensor, step: Tensor | int) -> None:
        self.seed, self.step, self.many = seed, torch.as_tensor(step), 0
        self.key: Tensor | None = None  # made at the first draw, because most networks draw nothing

    def of_row(self, row: Tensor) -> Draws:
        """Those of one row of a batch, for a network that sees one row at a time."""
        return Draws(hashes(self.seed, _ROW, row), self.step)

    def whole(self, shape: Sequence[int]) -> Tensor:
        """Whole numbers below 2**24 in this shape, each equally likely."""
        if self.key is None:
            self.key = hashes(self.seed, _SALT, self.step)
        self.many += 1
        key = hashes(self.key, self.many, torch.zeros((), dtype=torch.int64))
        for length in shape:
            key = hashes(key[..., None], 0, torch.arange(length))
        return key >> (62 - _BITS)

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Numbers in [0, 1)."""
        found: Tensor = self.whole(shape) / 2**_BITS
        return found

    def kept(self, shape: Sequence[int], p: float) -> Tensor:
        """True with chance 1 - p."""
        found: Tensor = self.whole(shape) >= round(p * 2**_BITS)
        return found


class NoDraws(Draws):
    """For steps that cannot hold a draw: generated code (fused_steps.py)."""

    def __init__(self) -> None:
        super().__init__(torch.zeros((), dtype=torch.int64), 0)

    def whole(self, shape: Sequence[int]) -> Tensor:
        raise NotImplementedError("the network draws random numbers while it trains")


@contextmanager
def drawing(draws: Draws) -> Iterator[None]:
    """Inside, networks of this thread that train take their draws from here."""
    before, _thread.draws = draws_here(), draws
    try:
        yield
    finally:
        _thread.draws = before


def draws_here() -> Draws | None:
    """Where this thread's draws come from; None while nothing trains."""
    return getattr(_thread, "draws", None)


def drawn_alike(f: Callable[[Any], Any], *given: Any) -> list[Any]:
    """f of each of these, all with the same draws: their difference then shows what was given, and not chance."""
    draws, found = draws_here(), []
    before = draws.many if draws else 0
    for one in given:
        if draws:
            draws.many = before
        found.append(f(one))
    return found


def generators(x: Tensor) -> tuple[Any, ...]:
    """The states of the generators that a network could draw from unseen: NumPy's, Python's and torch's.

    Under vmap, torch refuses to draw by itself, and the state of its generator cannot be read in a recorded step.
    """
    numpys: Any = np.random.get_state()
    stacked = torch._C._functorch.is_functorch_wrapped_tensor(x)
    torchs = b"" if stacked else torch.default_generator.get_state().numpy().tobytes()
    return numpys[1].tobytes(), numpys[2], random.getstate(), torchs


def without_generators(net: Callable[[Tensor], Tensor], x: Tensor, doing: str) -> Tensor:
    """net(x), refused if it draws from a generator: what it draws could not be repeated."""
    for _ in range(2):  # a second time, in case another thread of the process drew just then
        before = generators(x)
        z = net(x)
        if generators(x) == before:
            return z
    raise UsageError(
        f"the network draws random numbers from a global generator while it {doing}, which motet cannot repeat.\n"
        "hint: use torch.nn.Dropout, torch.rand or torch.bernoulli, and draw only if self.training: "
        "functional.dropout(x, p, self.training)"
    )


# ---- torch's functions ----


class DrawnByArithmetic(TorchFunctionMode):
    """Inside, torch's functions that draw are answered by `draws`; `used` says whether any was called."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self.draws, self.used = draws, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            return self.attention(*args, **kwargs)
        if func in _REFUSED and not _draws_nothing(func, args, kwargs):
            raise UsageError(
                f"the network draws random numbers with {func.__name__} while it trains, which motet cannot repeat.\n"
                "hint: use torch.nn.Dropout, torch.rand or torch.bernoulli, which are drawn from the run's seed"
            )
        answer = _ANSWERS.get(func)
        if answer is None:
            return func(*args, **kwargs)
        self.used = True
        return answer(self.draws, *args, **kwargs)

    def attention(self, *args: Any, **kwargs: Any) -> Any:
        """torch's own function, which calls two others that draw: here it is given ours."""
        self.used = True
        ours = {
            "dropout": lambda x, p=0.5, training=True: _dropout(self.draws, x, p, training),
            "scaled_dot_product_attention": lambda *a, **k: _attention(self.draws, *a, **k),
            "has_torch_function": lambda given: False,
        }
        copied = F.multi_head_attention_forward
        body = FunctionType(copied.__code__, {**vars(F), **ours}, copied.__name__, copied.__defaults__)
        body.__kwdefaults__ = copied.__kwdefaults__
        return body(*args, **kwargs)


def _scaled(draws: Draws, x: Tensor, shape: Sequence[int], p: float) -> Tensor:
    """x with a share p of zeros, drawn in `shape`, and the rest larger by as much."""
    if p >= 1:
        return x * 0
    return x * (draws.kept(shape, p).to(x.dtype) / (1 - p))


def _dropout(
    draws: Draws, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    return _scaled(draws, input, input.shape, p) if training and p > 0 else input


def _feature_dropout(axes: int) -> Callable[..., Tensor]:
    """Whole channels are dropped; examples without an axis of their own have `axes` axes."""

    def dropout(
        draws: Draws, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p <= 0:
            return input
        channels = 1 if input.ndim == axes else 2
        return _scaled(draws, input, (*input.shape[:channels], *[1] * (input.ndim - channels)), p)

    return dropout


def _alpha_dropout(channels: bool) -> Callable[..., Tensor]:
    """Klambauer et al. 2017: values are set to a' and all are moved, so that mean and variance stay."""

    def dropout(
        draws: Draws, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
    ) -> Tensor:
        if not training or p <= 0:
            return input
        if p >= 1:
            return input * 0
        low = -1.7580993408473766  # -lambda alpha of SELU
        a = (1 / ((1 - p) * (1 + p * low**2))) ** 0.5
        shape = (*input.shape[:2], *[1] * (input.ndim - 2)) if channels else input.shape
        kept = draws.kept(shape, p).to(input.dtype)
        found: Tensor = a * (input * kept + low * (1 - kept)) - a * p * low
        return found

    return dropout


def _attention(
    draws: Draws, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(Q K' / sqrt(width)) V, with weights dropped; (..., queries, width) and so on."""
    if dropout_p <= 0:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    z = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        ahead = torch.ones(z.shape[-2:], dtype=torch.bool).triu(1)
        z = torch.where(ahead, -torch.inf, z)
    if attn_mask is not None:
        z = torch.where(attn_mask, z, -torch.inf) if attn_mask.dtype == torch.bool else z + attn_mask
    weights = torch.softmax(z, -1)
    return _scaled(draws, weights, weights.shape, dropout_p) @ value


def _rand(draws: Draws, *size: Any, **how: Any) -> Tensor:
    size = how.get("size", size[0] if size and not isinstance(size[0], int) else size)
    return draws.uniform(size).to(how.get("dtype") or torch.get_default_dtype())


def _rand_like(draws: Draws, input: Tensor, **how: Any) -> Tensor:
    return draws.uniform(input.shape).to(how.get("dtype") or input.dtype)


def _bernoulli(draws: Draws, input: Tensor, p: float | None = None, **how: Any) -> Tensor:
    """1 with the chance that `input` or `p` says."""
    return (draws.uniform(input.shape) < (input if p is None else p)).to(input.dtype)


def _bernoulli_in_place(draws: Draws, input: Tensor, p: float | Tensor = 0.5, **how: Any) -> Tensor:
    return input.copy_(draws.uniform(input.shape) < p)


def _dropout_in_place(draws: Draws, input: Tensor, p: float, training: bool) -> Tensor:
    return input.copy_(_dropout(draws, input, p, training))


def _draws_nothing(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call of a recurrent layer has no dropout; rrelu draws only while it trains."""
    if func is F.rrelu:
        return not (args[3] if len(args) > 3 else kwargs.get("training", False))
    return func in _RECURRENT and not any(isinstance(a, float) and a > 0 for a in args)


_RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
_REFUSED = {
    *_RECURRENT, F.rrelu, F.gumbel_softmax, torch.randn, torch.randn_like, torch.randint, torch.randint_like,
    torch.randperm, torch.normal, torch.multinomial, torch.poisson, Tensor.normal_, Tensor.uniform_,
    Tensor.exponential_, Tensor.random_, Tensor.multinomial,
}  # fmt: skip
_ANSWERS: dict[Any, Callable[..., Tensor]] = {
    F.dropout: _dropout,
    torch.dropout: _dropout,
    torch.dropout_: _dropout_in_place,
    F.dropout1d: _feature_dropout(2),
    F.dropout2d: _feature_dropout(-1),  # as torch: three axes are (examples, channels, length)
    F.dropout3d: _feature_dropout(4),
    torch.feature_dropout: _feature_dropout(-1),
    F.alpha_dropout: _alpha_dropout(False),
    torch.alpha_dropout: _alpha_dropout(False),
    F.feature_alpha_dropout: _alpha_dropout(True),
    torch.feature_alpha_dropout: _alpha_dropout(True),
    F.scaled_dot_product_attention: _attention,
    torch.rand: _rand,
    torch.rand_like: _rand_like,
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
    Tensor.bernoulli_: _bernoulli_in_place,
}
