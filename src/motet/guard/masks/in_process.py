"""Masked sums of clients that live in one process: the whole protocol, between members and a server.

    fold = MaskedMean(bits=64, range=1024.0)
    fold.add(reply, weight); …; fold.mean()

Studies measure with it what masks cost and by how much they round. It runs the code that organisations run; keys
come from the operating system, and the result does not depend on them.
Knows trees and all clients. Does not know engines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor
from torch.utils import _pytree as pytree

from motet.core import NoReply, Tree
from motet.guard.masks.fixed_point import FixedPoint, Words
from motet.guard.masks.member import MIN_IN_SUM, Member
from motet.guard.masks.messages import KeyNote
from motet.guard.masks.neighbours import Graph, usual_graph
from motet.guard.masks.refused import MaskRefused
from motet.guard.masks.sum_server import SumServer

Lost = Callable[[str, str], bool]
"""Whether a client is lost before its answer to a step: keys, shares, masked, consent or unmask."""


@dataclass
class LocalKeys:
    """Signing keys of clients in this process."""

    keys: dict[str, Ed25519PrivateKey] = field(default_factory=dict)

    def sign(self, client: str) -> Callable[[bytes], bytes]:
        return self.keys.setdefault(client, Ed25519PrivateKey.generate()).sign

    def verify(self, note: KeyNote, text: bytes, signature: bytes) -> bool:
        try:
            self.keys[note.client].public_key().verify(signature, text)
        except (InvalidSignature, KeyError):
            return False
        return True


@dataclass
class LocalSum:
    """One sum between members of this process. `lost` loses clients; `view` gets all that the server receives."""

    bits: int = 64
    range: float = 1024.0
    min_in_sum: int = MIN_IN_SUM
    graph: Callable[[int], Graph] = usual_graph
    lost: Lost = lambda step, client: False
    view: list[tuple[str, str, Any]] = field(default_factory=list)
    recorded: bool = False
    sent: dict[str, int] = field(default_factory=dict)  # bytes of what each client said
    keys: LocalKeys = field(default_factory=LocalKeys)
    workers: int = 1

    def run(self, inputs: Mapping[str, tuple[Words, float]]) -> tuple[SumServer, Words]:
        """The server at the end, and the sum; MaskRefused where there is none."""
        server = SumServer(os.urandom(32))
        sign, verify = self.keys.sign, self.keys.verify
        members = {
            c: Member(c, server.session, sign(c), verify, min_in_sum=self.min_in_sum, sparse=True)
            for c in sorted(inputs)
        }
        for c, note in self.said("keys", {c: m.keys for c, m in members.items()}):
            server.take_keys(c, note)
        unit = max(inputs[c][1] for c in server.notes) if server.notes else 1.0
        numbers = FixedPoint(max(len(server.notes), 1), self.bits, self.range)
        terms = server.open(numbers, unit, self.graph(len(server.notes)), self.min_in_sum)
        notes = list(server.notes.values())
        for c, note in self.said(
            "shares", {c: partial(members[c].share, terms, notes) for c in terms.clients}
        ):
            server.take_shares(c, note)
        server.check_shared()
        self.masked(server, members, inputs)
        server.check_alive()
        self.unmasked(server, members)
        return server, server.total()

    def masked(
        self, server: SumServer, members: Mapping[str, Member], inputs: Mapping[str, tuple[Words, float]]
    ) -> None:
        steps = {c: partial(members[c].mask, *inputs[c], server.sealed_for(c)) for c in sorted(server.shares)}
        width = len(next(iter(inputs.values()))[0])
        for c, words in self.said("masked", steps):
            server.take_masked(c, words, width)

    def unmasked(self, server: SumServer, members: Mapping[str, Member]) -> None:
        alive, gone = sorted(server.alive), sorted(server.gone)
        if server.needs_consent:
            for c, note in self.said("consent", {c: partial(members[c].consent, alive) for c in alive}):
                server.take_consent(c, note)
        consents = dict(server.consents)
        steps = {c: partial(members[c].unmask, alive, gone, consents) for c in alive}
        for c, note in self.said("unmask", steps):
            server.take_unmasked(c, note)

    def said(self, step: str, steps: Mapping[str, Callable[[], Any]]) -> list[tuple[str, Any]]:
        """What clients that are not lost answer; who refuses ends the sum."""
        present = {c: ask for c, ask in steps.items() if not self.lost(step, c)}
        if step == "masked" and self.workers > 1:  # the one step that takes long
            with ThreadPoolExecutor(self.workers) as pool:
                found = list(zip(present, pool.map(lambda ask: ask(), present.values()), strict=True))
        else:
            found = [(c, ask()) for c, ask in present.items()]
        for c, note in found:
            self.sent[c] = self.sent.get(c, 0) + length(note)
        if self.recorded:
            self.view += [(step, c, note) for c, note in found]
        return found


def length(note: Any) -> int:
    """Bytes of a message."""
    return len(note) if isinstance(note, bytes) else len(msgspec.msgpack.encode(note))


class MaskedMean:
    """A mean of replies by a masked sum; all have the first one's tree."""

    def __init__(self, bits: int = 64, range: float = 1024.0, min_in_sum: int = MIN_IN_SUM) -> None:
        self.sum = LocalSum(bits, range, min_in_sum, workers=os.cpu_count() or 1)
        self.inputs: dict[str, tuple[Words, float]] = {}
        self.left: dict[str, int] = {}  # bytes that each client sent, of all steps
        self.weight = 0.0
        self.spec: Any = None
        self.shapes: list[tuple[torch.Size, torch.dtype]] = []

    def add(self, reply: Tree, weight: float, client: str = "") -> None:
        values, spec = pytree.tree_flatten(reply)
        tensors = [torch.as_tensor(v) for v in values]
        shapes = [(v.shape, v.dtype if v.is_floating_point() else torch.float32) for v in tensors]
        if self.inputs and (spec, shapes) != (self.spec, self.shapes):
            raise TypeError(
                f"replies to be averaged differ in shape: {spec}, {shapes} after {self.spec}, {self.shapes}"
            )
        self.spec, self.shapes = spec, shapes
        if weight <= 0:
            return
        flat = [v.detach().double().reshape(-1).numpy() for v in tensors]
        row = np.concatenate(flat) if flat else np.zeros(0)
        self.inputs[client or f"reply {len(self.inputs) + 1:06d}"] = row, weight
        self.weight += weight

    def add_stacked(self, replies: Tree, weights: Tensor, clients: Sequence[str] = ()) -> None:
        """Replies stacked along a first axis, one weight for each."""
        values, spec = pytree.tree_flatten(replies)
        for i, weight in enumerate(weights.tolist()):
            name = clients[i] if clients else ""
            self.add(pytree.tree_unflatten([v[i] for v in values], spec), weight, name)

    def mean(self) -> Tree:
        self.check_range()
        try:
            server, total = self.sum.run(self.inputs)
        except MaskRefused as e:
            raise NoReply(str(e)) from e
        self.left = dict(self.sum.sent)
        row = torch.from_numpy(server.terms.numbers.mean(total))
        parts = row.split([size.numel() for size, _ in self.shapes])
        shaped = [p.reshape(size).to(kind) for p, (size, kind) in zip(parts, self.shapes, strict=True)]
        return pytree.tree_unflatten(shaped, self.spec)

    def check_range(self) -> None:
        """Say whose numbers are too large before anything is masked: a study's setting is then too small."""
        for client, (row, _) in self.inputs.items():
            if len(row) and not np.abs(row).max() <= self.sum.range:
                raise MaskRefused(
                    f"client {client}: its reply has a number as large as {np.abs(row).max():.3g}, and masked sums "
                    f"hold numbers up to guard.mask_range={self.sum.range:g}\nhint: a larger guard.mask_range"
                )
