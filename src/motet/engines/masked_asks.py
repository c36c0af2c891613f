"""A masked sum by letters: the steps of secure aggregation between the server and sites that live elsewhere.

An ask that is averaged takes four letters to each site: keys, shares, the verb itself, whose reply comes masked, and
shares that unmask the sum; a fifth one, consent, where a site was lost on the way. Keys are new for every ask and every
attempt. Whatever fails, the round does not count and is tried again with new keys.
Knows letters and the server's part of a sum. Does not know how letters are carried, nor any reply.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import asdict
from torch import Tensor
from torch.utils import _pytree as pytree

from motet.client.visit import name_of
from motet.core import Ask, Client, NoReply, Tree
from motet.guard.outline import from_outline, outline

if TYPE_CHECKING:
    from motet.engines.flare import Flare
    from motet.guard.masks.sum_server import SumServer


@dataclass(frozen=True)
class MaskSettings:
    """How sums of a run are masked, as its recipe says."""

    bits: int = 64
    range: float = 1024.0
    min_in_sum: int = 3


def masked_mean(engine: Flare, ask: Ask, masks: MaskSettings) -> Tree:
    """The mean of sites' replies, none of which comes here; TooFew where the sum cannot be had."""
    from motet.engines.flare import TooFew
    from motet.guard.masks.refused import MaskRefused

    weights = set((ask.weights or {}).values())
    if len(weights) > 1:
        raise NoReply(
            f"{engine.where(ask.verb)}: a masked sum weighs replies by rows or evenly, not as asked"
        )
    if len(ask.to) < masks.min_in_sum:
        raise NoReply(
            f"{engine.where(ask.verb)}: {len(ask.to)} sites were to be averaged, and guard.min_in_sum is "
            f"{masks.min_in_sum}: their sum would show too much"
        )
    try:
        return MaskedAsk(engine, ask, masks).mean()
    except MaskRefused as e:
        raise TooFew(f"{engine.where(ask.verb)}: {e}; the round is tried again with new keys") from e


class MaskedAsk:
    """One ask, from its keys to its mean."""

    def __init__(self, engine: Flare, ask: Ask, masks: MaskSettings) -> None:
        from motet.guard.masks.sum_server import SumServer

        self.engine, self.ask, self.masks = engine, ask, masks
        self.label = (engine.turn.number, engine.number)
        engine.number += 1
        self.server: SumServer = SumServer(os.urandom(32))

    def mean(self) -> Tree:
        server = self.server
        for client, tree in self.step("keys", self.asked()).items():
            server.take_keys(client, tree)
        self.open()
        notes = {c: asdict(n) for c, n in server.notes.items()}
        terms = asdict(server.terms) | {"clients": list(server.terms.clients)}
        for client, tree in self.step("shares", list(notes), terms=terms, notes=list(notes.values())).items():
            server.take_shares(client, tree)
        server.check_shared()
        form = self.masked_replies()
        server.check_alive()
        self.unmask()
        total = server.total()
        for client in sorted(server.alive):
            self.engine.keeps.put(client, self.label)
        return tree_of(form, torch.from_numpy(server.terms.numbers.mean(total)))

    def asked(self) -> list[Client]:
        """Whom to ask: if the sum was to be unmasked before, those that were in it, because sites let no other be."""
        before = self.engine.summed.get(self.label)
        return sorted(self.ask.to) if before is None else sorted(set(before) & set(self.ask.to))

    def open(self) -> None:
        """Fix the terms for those whose keys came."""
        from motet.guard.masks.fixed_point import FixedPoint

        server, masks, even = self.server, self.masks, self.ask.weights is not None
        numbers = FixedPoint(max(len(server.notes), 1), masks.bits, masks.range)
        rows = [self.engine.rows.get(c, {}).get("train", 1) for c in server.notes]
        unit = 1.0 if even else float(max(rows, default=1))
        server.open(numbers, unit, least=masks.min_in_sum, even=even)

    def masked_replies(self) -> Tree:
        """Take the masked numbers of sites; the form that most replies have."""
        engine, ask, server = self.engine, self.ask, self.server
        own = {
            c: {"masked": {"session": server.session, "sealed": server.sealed_for(c)}} for c in server.shares
        }
        found = engine.call_sites(
            "verb", {c: ask.sent_to(c) for c in sorted(server.shares)}, own,
            verb=name_of(ask.verb), learn=ask.learn, number=self.label[1],
        )  # fmt: skip
        engine.check_enough(engine.where(ask.verb), len(found), len(ask.to))
        for client in [c for c, r in found.items() if r.spoilt]:
            engine.refused.append((client, name_of(ask.verb), engine.turn.number))
        trees = {c: r.tree for c, r in found.items() if not r.spoilt}
        form = self.usual_form(trees)
        width = sum(v.numel() for v in pytree.tree_leaves(from_outline(form)))
        for client, tree in trees.items():
            if not isinstance(tree, dict) or tree.get("form") != form:
                engine.exclude(client, "its masked reply is of another form than was asked for")
            else:
                server.take_masked(client, tree.get("words"), width)
        for client in server.refused.keys() & trees.keys():
            engine.exclude(client, server.refused[client])
        return form

    def usual_form(self, trees: Mapping[Client, Tree]) -> Tree:
        """The form of a blank client's reply; where there is none, that of most replies."""
        engine = self.engine
        like = engine.expect.like(engine.method, engine.turn, self.ask) if engine.expect else None
        if like is not None:
            return outline(like, is_number)
        forms = [t["form"] for t in trees.values() if isinstance(t, dict) and "form" in t]
        if not forms:
            raise NoReply(f"{engine.where(self.ask.verb)}: no masked reply can be used")
        usual = Counter(map(repr, forms)).most_common(1)[0][0]
        form: Tree = next(f for f in forms if repr(f) == usual)
        return form

    def unmask(self) -> None:
        server = self.server
        alive, gone = sorted(server.alive), sorted(server.gone)
        self.engine.summed[self.label] = alive
        if server.needs_consent:
            for client, tree in self.step("consent", alive, alive=alive).items():
                server.take_consent(client, tree)
        lists = {"alive": alive, "gone": gone, "consents": server.consents}
        for client, tree in self.step("unmask", alive, **lists).items():
            server.take_unmasked(client, tree)

    def step(self, step: str, to: list[Client], **said: Any) -> dict[Client, Tree]:
        """What sites answer to a step of the sum."""
        send = {"step": step, "session": self.server.session, **said}
        found = self.engine.call_sites(
            "mask", dict.fromkeys(to, send), verb=name_of(self.ask.verb), number=self.label[1]
        )
        return {c: r.tree for c, r in found.items()}


def is_number(leaf: Any) -> bool:
    return isinstance(leaf, Tensor | int | float)


def tree_of(form: Tree, row: Tensor) -> Tree:
    """The tree of a form with the numbers of a row."""
    values, spec = pytree.tree_flatten(from_outline(form))
    parts = row.split([v.numel() for v in values])
    shaped = [p.reshape(v.shape).to(v.dtype) for p, v in zip(parts, values, strict=True)]
    return pytree.tree_unflatten(shaped, spec)
