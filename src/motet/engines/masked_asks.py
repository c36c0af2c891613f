"""A masked sum by letters: the steps of secure aggregation between the server and sites that live elsewhere.

An ask that is averaged takes four letters to each site: keys, shares, the verb itself, whose reply comes masked, and
shares that unmask the sum; a fifth one, consent, where a site was lost on the way. Keys are new for every ask and every
attempt. Whatever fails, the round does not count and is tried again with new keys.
Knows letters and the server's part of a sum. Does not know how letters are carried, nor any reply.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import asdict
from torch import Tensor
from torch.utils import _pytree as pytree

from motet.client.visit import name_of
from motet.core import Ask, Client, NoReply, Tree
from motet.engines.letters import Label, content_hash
from motet.engines.loop import untrained
from motet.guard.masks.refused import MaskRefused
from motet.guard.outline import from_outline, outline

if TYPE_CHECKING:
    from motet.engines.flare import Flare
    from motet.guard.masks.fixed_point import Words
    from motet.guard.masks.sum_server import SumServer


@dataclass(frozen=True)
class MaskSettings:
    """How sums of a run are masked, as its recipe says."""

    bits: int = 64
    range: float = 1024.0
    min_in_sum: int = 3
    noise: float = 0.0  # deviation of the noise that each site adds; all replies then weigh the same


def masked_mean(engine: Flare, ask: Ask, masks: MaskSettings) -> Tree:
    """The mean of sites' replies, none of which comes here; TooFew where the sum cannot be had."""
    from motet.engines.flare import TooFew

    weights = set((ask.weights or {}).values())
    if len(weights) > 1:
        raise NoReply(
            f"{engine.where(ask.verb)}: a masked sum weighs replies by rows or evenly, not as asked"
        )
    if ask.each is not None:
        raise NoReply(f"{engine.where(ask.verb)}: a masked sum needs the same message for all sites")
    if len(ask.to) < masks.min_in_sum:
        few = (
            f"{len(ask.to)} sites were to be averaged, and guard.min_in_sum is {masks.min_in_sum}: their sum would "
            "show too much"
        )
        engine.left_out.append(untrained(engine.turn.number, ask, few))
        raise NoReply(f"{engine.where(ask.verb)}: {few}")
    try:
        return MaskedAsk(engine, ask, masks).mean()
    except MaskRefused as e:
        raise TooFew(f"{engine.where(ask.verb)}: {e}; the round is tried again with new keys") from e


class MaskedSum:
    """One sum by letters, from keys to the unmasked total; who asks says how letters go and what is summed."""

    def __init__(self, sent: bytes, least: int) -> None:
        from motet.guard.masks.sum_server import SumServer

        self.server: SumServer = SumServer(os.urandom(32))
        self.server.sent = sent  # a hash of what is asked
        self.least = least

    def total(self, to: list[Client]) -> Words:
        """The sum without masks; MaskRefused where it cannot be had."""
        server = self.server
        for client, tree in self.step("keys", to).items():
            server.take_keys(client, tree)
        self.open()
        notes = {c: asdict(n) for c, n in server.notes.items()}
        terms = asdict(server.terms) | {"clients": list(server.terms.clients)}
        for client, tree in self.step("shares", list(notes), terms=terms, notes=list(notes.values())).items():
            server.take_shares(client, tree)
        server.check_shared()
        self.masked_replies()
        server.check_alive()
        self.unmask()
        return server.total()

    def open(self) -> None:
        """Fix the terms for those whose keys came: all weigh the same."""
        from motet.guard.masks.exact import digit_terms

        self.server.open(digit_terms(len(self.server.notes)), 1.0, least=self.least, even=True)

    def masked_replies(self) -> None:
        """Take the masked numbers of clients."""
        raise NotImplementedError

    def step(self, step: str, to: list[Client], **said: Any) -> dict[Client, Tree]:
        """What clients answer to a step."""
        raise NotImplementedError

    def letters(self) -> dict[Client, dict[str, Any]]:
        """What the letters that ask for masked numbers have besides, by client."""
        server = self.server
        return {
            c: {"masked": {"session": server.session, "sealed": server.sealed_for(c)}} for c in server.shares
        }

    def agree(self, engine: Flare, label: Label, unit: float) -> None:
        """Let the list of those in the sum be the one of its ask, on the disk. If another list was, sites may have
        revealed shares for it, and will for no other one: then all must say beforehand that they go by this one, or
        some would be bound to one list and some to another."""
        alive = sorted(self.server.alive)
        if engine.summed.get(label, (alive, unit))[0] != alive:
            bound = sorted(set(alive) - set(self.step("consent", alive, alive=alive)))
            if bound:
                raise MaskRefused(
                    f"{', '.join(bound)} may be bound to a sum with sites that are not there now"
                )
        engine.summed[label] = alive, unit

    def unmask(self) -> None:
        server = self.server
        alive, gone = sorted(server.alive), sorted(server.gone)
        if server.needs_consent:
            for client, tree in self.step("consent", alive, alive=alive).items():
                server.take_consent(client, tree)
        lists = {"alive": alive, "gone": gone, "consents": server.consents}
        for client, tree in self.step("unmask", alive, **lists).items():
            server.take_unmasked(client, tree)


class MaskedAsk(MaskedSum):
    """One ask, from its keys to its mean."""

    def __init__(self, engine: Flare, ask: Ask, masks: MaskSettings) -> None:
        asked = asked_hash(name_of(ask.verb), ask.send, masks.noise)
        super().__init__(engine.asked_now("verb", name_of(ask.verb), asked), masks.min_in_sum)
        self.engine, self.ask, self.masks = engine, ask, masks
        self.label = (engine.turn.number, engine.number)
        engine.number += 1
        self.form: Tree = None

    def mean(self) -> Tree:
        total, server = self.total(self.asked()), self.server
        for client in sorted(server.alive):
            self.engine.keeps.put(client, self.label)
        return tree_of(self.form, torch.from_numpy(server.terms.numbers.mean(total)))

    def asked(self) -> list[Client]:
        """Whom to ask: if the sum was to be unmasked before, those that were in it, because sites let no other be."""
        names, _ = self.engine.summed.get(self.label, (self.ask.to, None))
        return sorted(set(names) & set(self.ask.to))

    def open(self) -> None:
        """Fix the terms for those whose keys came."""
        from motet.guard.masks.fixed_point import FixedPoint

        server, masks = self.server, self.masks
        even = masks.noise > 0 or self.ask.weights is not None
        numbers = FixedPoint(max(len(server.notes), 1), masks.bits, masks.range)
        rows = [self.engine.rows.get(c, {}).get("train", 1) for c in server.notes]
        largest = self.engine.unit or float(max(rows, default=1))
        _, unit = self.engine.summed.get(self.label, ((), 1.0 if even else largest))
        known = 1.0 if even or self.engine.unit else min(rows, default=1) / unit
        if why := numbers.rounded_away(known):
            raise NoReply(f"{self.engine.where(self.ask.verb)}: {why}")  # sites would refuse it
        server.open(numbers, unit, least=self.least, even=even)

    def masked_replies(self) -> None:
        """Take the masked numbers of sites, of the form that most replies have."""
        engine, ask, server = self.engine, self.ask, self.server
        letters = self.letters()
        if noise := self.masks.noise:
            letters = {c: {"masked": own["masked"] | {"noise": noise}} for c, own in letters.items()}
        found = engine.call_sites(
            "verb", {c: ask.sent_to(c) for c in sorted(server.shares)}, letters,
            verb=name_of(ask.verb), learn=ask.learn, number=self.label[1],
        )  # fmt: skip
        engine.check_enough(engine.where(ask.verb), len(found), len(ask.to))
        for client in [c for c, r in found.items() if r.spoilt]:
            engine.refused.append((client, name_of(ask.verb), engine.turn.number))
        trees = {c: r.tree for c, r in found.items() if not r.spoilt}
        self.form = form = self.usual_form(trees)
        width = sum(v.numel() for v in pytree.tree_leaves(from_outline(form)))
        for client, tree in trees.items():
            if not isinstance(tree, dict) or tree.get("form") != form:
                engine.exclude(client, "its masked reply is of another form than was asked for")
            else:
                server.take_masked(client, tree.get("words"), width)
        for client in server.refused.keys() & trees.keys():
            engine.exclude(client, server.refused[client])

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
        self.agree(self.engine, self.label, self.server.terms.unit)
        super().unmask()

    def step(self, step: str, to: list[Client], **said: Any) -> dict[Client, Tree]:
        """What sites answer to a step of the sum."""
        send = {"step": step, "session": self.server.session, **said}
        found = self.engine.call_sites(
            "mask", dict.fromkeys(to, send), verb=name_of(self.ask.verb), number=self.label[1]
        )
        return {c: r.tree for c, r in found.items()}


def asked_hash(verb: str, send: Tree, noise: float) -> bytes:
    """What was asked, and the noise that each site is to add."""
    asked = content_hash(verb, send)
    return sha256(asked + struct.pack("<d", noise)).digest() if noise else asked


def is_number(leaf: Any) -> bool:
    return isinstance(leaf, Tensor | int | float)


def tree_of(form: Tree, row: Tensor) -> Tree:
    """The tree of a form with the numbers of a row."""
    values, spec = pytree.tree_flatten(from_outline(form))
    parts = row.split([v.numel() for v in values])
    shaped = [p.reshape(v.shape).to(v.dtype) for p, v in zip(parts, values, strict=True)]
    return pytree.tree_unflatten(shaped, spec)
