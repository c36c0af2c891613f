"""Objects on their way between processes of one owner's cluster: pickled, with tensors beside them as plain arrays.

Code travels too: whoever can send such bytes to a process can run anything in it. They never cross from one party to
another, where letters are used instead (wire/).
Knows pickling and tensors. Does not know what is sent, nor how.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]
_BYTES = torch.uint8
_PLACES = 64  # bytes: where numbers lie in a line of memory


class Packed(NamedTuple):
    """An object as bytes, and its tensors as rows of bytes, which an object store can share without copies."""

    head: bytes
    arrays: list[Array]

    @property
    def size(self) -> int:
        return len(self.head) + sum(a.nbytes for a in self.arrays)


def packed(thing: Any, known: Mapping[str, Any] | None = None) -> Packed:
    """`known` are objects that the other side has: they are sent by name."""
    stream, arrays = io.BytesIO(), list[Array]()
    _pickler()(stream, arrays, {id(v): name for name, v in (known or {}).items()}).dump(thing)
    return Packed(stream.getvalue(), arrays)


def unpacked(message: Packed, known: Mapping[str, Any] | None = None) -> Any:
    """The object, with memory of its own."""
    return _Unpickler(message, known or {}).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, message: Packed, known: Mapping[str, Any]) -> None:
        super().__init__(io.BytesIO(message.head))
        self.arrays, self.known = message.arrays, known
        self.made: dict[int, Tensor] = {}  # a tensor that occurs twice is made once

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, str):
            return self.known[pid]
        if pid[0] not in self.made:
            self.made[pid[0]] = self.tensor(*pid)
        return self.made[pid[0]]

    def tensor(
        self, place: int, dtype: torch.dtype, shape: tuple[int, ...], order: tuple[int, ...], start: int
    ) -> Tensor:
        plain = torch.from_numpy(copied(self.arrays[place], start))
        value = plain.view(dtype) if plain.numel() else torch.empty(0, dtype=dtype)
        return value.reshape(shape).permute(order)


def copied(array: Array, start: int) -> Array:
    """The same bytes, `start` bytes behind a multiple of 64: products of matrices may round otherwise where numbers lie
    otherwise, and a client's rows lie in the middle of those of others."""
    buffer = np.empty(len(array) + _PLACES, np.uint8)
    first = (start - buffer.ctypes.data) % _PLACES
    there = buffer[first : first + len(array)]
    there[:] = array
    return there


@cache
def _pickler() -> Any:
    """cloudpickle's, which takes functions and classes of scripts too; imported when it is first needed."""
    import cloudpickle

    class Pickler(cloudpickle.CloudPickler):
        def __init__(self, stream: io.BytesIO, arrays: list[Array], known: dict[int, str]) -> None:
            super().__init__(stream, protocol=5)
            self.arrays, self.known = arrays, known
            self.places: dict[
                int, tuple[Any, Tensor]
            ] = {}  # tensors live until the end, so that their ids do

        def persistent_id(self, thing: Any) -> Any:
            if type(thing) is Tensor and thing.layout == torch.strided and thing.is_cpu:
                if id(thing) not in self.places:
                    self.places[id(thing)] = self.put(thing), thing
                return self.places[id(thing)][0]
            return self.known.get(id(thing))

        def put(self, tensor: Tensor) -> tuple[Any, ...]:
            """Store the numbers as they lie in memory: images may have their channels last."""
            order = sorted(range(tensor.ndim), key=lambda d: -int(tensor.stride()[d]))
            if not tensor.permute(order).is_contiguous():
                order = list(range(tensor.ndim))
            plain = tensor.detach().permute(order).contiguous()
            flat = plain.as_strided((plain.numel(),), (1,))  # a single number may lie with a stride of 0
            self.arrays.append(flat.view(_BYTES).numpy())
            back = tuple(int(d) for d in np.argsort(order)) if order else ()
            start = plain.data_ptr() % _PLACES
            return len(self.arrays) - 1, tensor.dtype, tuple(plain.shape), back, start

    return Pickler
