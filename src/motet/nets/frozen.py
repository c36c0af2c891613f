"""A frozen encoder: a network that turns examples into features, is never trained, and sees each example once.

Knows modules and rows. Does not know where weights come from, nor what is learned from the features.
"""

from __future__ import annotations

import threading
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn


class FrozenEncoder(nn.Module):
    """A network whose weights stay as they are, as a part of a network that is trained; its features are remembered.

    It predicts as in use: without dropout, and BatchNorm by its own statistics, which are not sent. What it made of a
    row is kept in memory and used again in every round, so that rounds cost what the layers behind it cost. Its
    weights are no part of what clients send. Features take at most `memory` bytes; rows beyond are computed each time.

    >>> from torch import nn
    >>> from motet import FrozenEncoder
    >>> net = nn.Sequential(FrozenEncoder(nn.Linear(3, 8)), nn.Linear(8, 2))
    >>> [name for name, p in net.named_parameters() if p.requires_grad]
    ['1.weight', '1.bias']
    """

    one_by_one = "a frozen encoder remembers rows, which wants one client at a time"
    stays_as_in_use = True  # thread_net.py leaves its BatchNorm alone

    def __init__(self, body: nn.Module, memory: int = 1 << 30) -> None:
        super().__init__()
        self.body = body.requires_grad_(False).eval()
        self.known = RowMemory(memory)
        self.weights = WeightsDigest()

    def train(self, mode: bool = True) -> FrozenEncoder:
        self.training = mode
        return self  # the body stays as in use

    def forward(self, x: Tensor) -> Tensor:
        if torch._C._functorch.is_functorch_wrapped_tensor(x) or x.requires_grad or not len(x):
            return self.body(x)  # type: ignore[no-any-return]
        salt = self.weights.of(self.body)
        keys = [blake2b(row.tobytes(), digest_size=16, key=salt).digest() for row in x.detach().cpu().numpy()]
        return torch.stack([self.features(key, x[i]) for i, key in enumerate(keys)]).to(x.device)

    def features(self, key: bytes, row: Tensor) -> Tensor:
        """Computed row by row: in a batch, bits would depend on which other rows were missing."""
        found = self.known.rows.get(key)
        if found is None:
            with torch.no_grad():
                found = self.body(row[None])[0].detach().cpu().clone()
            self.known.add(key, found)
        return found


class WeightsDigest:
    """The hash of a network's weights and buffers, taken again when they were changed or the network was copied."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []
        self.digest = b""

    def __deepcopy__(self, memo: Any) -> WeightsDigest:
        return WeightsDigest()

    def of(self, net: nn.Module) -> bytes:
        tensors = [*net.parameters(), *net.buffers()]
        now = [(id(a), a._version) for a in tensors]
        if now != self.seen or not self.digest:
            found = blake2b(digest_size=32)
            for a in tensors:
                found.update(a.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            self.seen, self.digest = now, found.digest()
        return self.digest


class RowMemory:
    """Features by the hash of weights and row. Copies of a network, one for each thread, share one memory.

    When it is full, what is there stays: rounds ask for the same rows in turn, and one that forgot the oldest would
    have forgotten each row by the time it is asked for again.
    """

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0  # bytes
        self.rows: dict[bytes, Tensor] = {}
        self.lock = threading.Lock()

    def __deepcopy__(self, memo: Any) -> RowMemory:
        return self

    def __reduce__(self) -> Any:
        return RowMemory, (self.most,)  # another process remembers its own

    def add(self, key: bytes, row: Tensor) -> None:
        with self.lock:
            if key not in self.rows and self.held + row.nbytes <= self.most:
                self.rows[key] = row
                self.held += row.nbytes
