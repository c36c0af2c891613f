"""A second device without hardware: its tensors hold real numbers in the host's memory, and say they are elsewhere.

An operation on tensors of both places fails, as on a GPU; only a number without axes may come from the host, where the
operation works number by number. Results have the CPU's bits, so that they can be compared with them. torch lets Python
code be a device's operations (`PrivateUse1`); what the device cannot do, such as giving its memory to NumPy, fails too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretended"
_aten = torch.ops.aten
_MOVES = (_aten._to_copy.default, _aten.copy_.default)
_FACTORIES = (
    "empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step", "zeros", "ones", "full",
    "linspace", "eye", "eye.m", "scalar_tensor", "randperm", "tril_indices", "triu_indices",
)  # fmt: skip


class MixedDevices(RuntimeError):
    """Tensors of two places in one operation."""


class Elsewhere(Tensor):
    """A tensor of the pretended device; `inner` has its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Elsewhere:
        made: Any = Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, layout=inner.layout, device=torch.device(NAME, 0),
        )  # fmt: skip
        made.inner = inner
        return made  # type: ignore[no-any-return]

    def __repr__(self, **_: Any) -> str:
        return f"Elsewhere({self.inner})"

    def tolist(self) -> Any:
        return self.inner.tolist()  # torch refuses it for subclasses; on a GPU it works

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        check_places(func, [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)])
        stays = func is not _aten.copy_.default or isinstance(args[0], Elsewhere)
        if (device := kwargs.get("device")) is not None:
            stays, kwargs["device"] = torch.device(device).type == NAME, "cpu"
        inside, options = pytree.tree_map_only(Elsewhere, lambda t: t.inner, (args, kwargs))
        out = FUSED.get(func, func)(*inside, **options)
        if not stays:
            return out
        out = pytree.tree_map_only(Tensor, lambda t: t if isinstance(t, Elsewhere) else Elsewhere(t), out)
        return return_and_correct_aliasing(func, args, kwargs, out)


def check_places(func: Any, tensors: list[Tensor]) -> None:
    host = [t for t in tensors if not isinstance(t, Elsewhere)]
    numbers = torch.Tag.pointwise in func.tags and all(t.ndim == 0 for t in host)
    if host and not numbers and func not in _MOVES:
        raise MixedDevices(f"{func}: a tensor {tuple(host[0].shape)} is on the host, others are on {NAME}")


# ---- operations that torch has on GPUs only ----


def lstm_cell(
    of_x: Tensor, of_h: Tensor, c: Tensor, bias_x: Any = None, bias_h: Any = None
) -> tuple[Tensor, ...]:
    gates = of_x + of_h + (0 if bias_x is None else bias_x + bias_h)
    i, f, g, o = gates.chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new = f * c + i * g
    return o * new.tanh(), new, torch.cat([i, f, g, o], -1)


def lstm_cell_backward(
    of_h: Tensor | None, of_c: Tensor | None, c: Tensor, new: Tensor, kept: Tensor, has_bias: bool
) -> tuple[Tensor, ...]:
    i, f, g, o = kept.chunk(4, -1)
    h, t = torch.zeros_like(new) if of_h is None else of_h, new.tanh()
    d = h * o * (1 - t * t) + (0 if of_c is None else of_c)
    slopes = (d * g * i * (1 - i), d * c * f * (1 - f), d * i * (1 - g * g), h * t * o * (1 - o))
    gates = torch.cat(slopes, -1)
    return gates, d * f, gates.sum(0)


FUSED: dict[Any, Callable[..., Any]] = {
    _aten._thnn_fused_lstm_cell.default: lstm_cell,
    _aten._thnn_fused_lstm_cell_backward_impl.default: lstm_cell_backward,
}


class _Backend:
    """What torch asks of a device's module."""

    def __init__(self, free: int, total: int) -> None:
        self.memory = (free, total)  # bytes

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        return

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return self.memory


def _factory(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(*args: Any, device: Any = None, pin_memory: Any = None, **options: Any) -> Tensor:
        return Elsewhere(make(*args, device="cpu", **options))

    return made


def _copy_from(source: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
    """torch.tensor(…, device=…) makes its numbers on the host and comes here, below `__torch_dispatch__`."""
    a, b = (t.inner if isinstance(t, Elsewhere) else t for t in (source, to))
    b.copy_(a)
    return to


backend = _Backend(1 << 30, 2 << 30)
_setup_privateuseone_for_python_backend(NAME, backend)
_library = torch.library.Library("aten", "IMPL")
for _name in _FACTORIES:
    _packet, _, _overload = _name.partition(".")
    _library.impl(_name, _factory(getattr(getattr(_aten, _packet), _overload or "default")), "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")
DEVICE = torch.device(NAME)
