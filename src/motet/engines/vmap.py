"""The vmap engine: many clients at once, as one batched tensor program, in chunks.

Clients of about the same size share a chunk, are padded to the largest of it and stacked; padding
changes nothing. Knows stacking and padding. Does not know what any verb does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from motet.client import Batch, ClientData, ClientTest, Data, LazyRows, compiled_steps, seed_of
from motet.client.code_cache import code_cache, own_folder
from motet.client.devices import CPU, moved
from motet.client.population import Population, rows_of
from motet.client.visit import VerbFailed, explained, is_failure, performed
from motet.core import Ask, Client, Method, Part, Tree, Turn, Verb, is_solo
from motet.engines.client_state import ClientStates
from motet.engines.cores import cores
from motet.engines.evaluate import evaluation_request, personal_model, predictions, predictions_trained
from motet.engines.give_back import reuse_small_pieces
from motet.engines.loop import Loop, all_finite
from motet.engines.mean import RunningMean
from motet.engines.placement import Placement
from motet.errors import UsageError
from motet.vec import leaves, stack, unstack

_CACHE = 256 << 20  # bytes of stacked examples that are remembered between rounds


class Vmap(Loop):
    """All clients of a chunk at once."""

    name = "vmap"

    def __init__(
        self,
        clients_data: Mapping[Client, ClientData],
        keeps: ClientStates | None = None,
        *,
        chunk: int = 128,
        compiled: bool = False,
        workers: int | None = None,
        device: torch.device = CPU,
    ) -> None:
        super().__init__(clients_data, keeps, device=device)
        self.chunk, self.compiled, self.workers = chunk, compiled, workers or cores()
        reuse_small_pieces()
        if compiled:
            keep_what_is_compiled()
        self.many = isinstance(clients_data, Population)  # then only those who are asked are put in order
        self.by_size = [] if self.many else self.in_order(self.clients)
        self.stacks: dict[Any, tuple[Any, ...]] = {}
        self.seeds_are_of, self.seeds = -1, dict[tuple[Client, ...], Tensor]()
        self.free = self.placement.free if self.placement else _CACHE

    def begin(self, method: Method, turn: Turn) -> None:
        if not method.task.stackable:
            raise UsageError(
                f"the engine vmap stacks clients and pads them: {method.task.why_not_stacked}.\n"
                "hint: engine.name=threads or auto; or, with BatchNorm, net.norm=group, or net.statistics=shared"
            )
        super().begin(method, turn)

    def mean(self, ask: Ask) -> Tree:
        if is_solo(ask.verb) or self.guards(ask):
            return super().mean(ask)
        fold = self.fold()
        # Only a plain sum is made on the device: a guard compares replies on the host.
        sums_there = bool(self.placement and self.placement.sums and isinstance(fold, RunningMean))
        device = self.placement.device if self.placement and sums_there else CPU
        for clients, replies in self.chunks(ask, sums_there):
            weights = [self.weight(ask, c) for c in clients]
            fold.add_stacked(replies, torch.tensor(weights, dtype=torch.float64, device=device), clients)
        return moved(self.folded(ask, fold), CPU) if sums_there else self.folded(ask, fold)

    def replies(self, ask: Ask) -> Iterator[tuple[Client, Tree]]:
        if is_solo(ask.verb):
            yield from super().replies(ask)
            return
        for clients, replies in self.chunks(ask):
            yield from zip(clients, unstack(replies, len(clients)), strict=True)

    def predictions(
        self, state: Tree, part: Part, sides: Sequence[str]
    ) -> Iterator[tuple[list[Client], Tree]]:
        if is_solo(self.method.personal) or is_solo(self.method.alone):
            yield from super().predictions(state, part, sides)
            return
        views = {c: self.method.download(state, c) for c in self.scored}
        shared, view = _shared(views), views[self.scored[0]]
        request = evaluation_request(self.method, state, view if shared else None, sides)
        request["global"] = self.placement.there(request["global"]) if self.placement else request["global"]
        verb = partial(_evaluate, self.method, request)
        for clients, found, _ in self.stacked(verb, views, shared, part):
            yield clients, found

    def personal_models(self, method: Any, state: Tree, turn: Any) -> Iterator[tuple[Client, Tree]]:
        if is_solo(method.personal):
            yield from super().personal_models(method, state, turn)
            return
        self.visit(method, turn)
        views = {c: method.download(state, c) for c in self.scored}
        for clients, models, _ in self.stacked(partial(personal_model, method), views, _shared(views), "val"):
            yield from zip(clients, unstack(models, len(clients)), strict=True)

    def predictions_after(self, ask: Ask) -> Iterator[tuple[list[Client], Tree]]:
        verb = partial(predictions_trained, self.method, ask.verb)
        if self.is_ordinary_python(verb):
            yield from super().predictions_after(ask)
            return
        for clients, found, _ in self.stacked(verb, ask.messages(), ask.each is None, "test"):
            yield clients, found

    # ---- chunks ----

    def chunks(self, ask: Ask, stay: bool = False) -> Iterator[tuple[list[Client], Tree]]:
        """The stacked replies that can be used, chunk by chunk; what their clients keep is stored. Replies `stay` on
        the device, or are moved to the host."""
        for clients, replies, keeps in self.stacked(ask.verb, ask.messages(), ask.each is None, None, stay):
            if not all_finite(replies):
                yield from self.picked(ask, clients, replies, keeps)
                continue
            if leaves(keeps):
                self.keeps.put_all(clients, unstack(keeps, len(clients)))
            yield clients, replies

    def picked(
        self, ask: Ask, clients: list[Client], replies: Tree, keeps: Tree
    ) -> Iterator[tuple[list[Client], Tree]]:
        """The chunk without the replies that are not finite; nothing if no other is left."""
        many = len(clients)
        rows = list(zip(clients, unstack(replies, many), unstack(keeps, many), strict=True))
        found = [(c, reply) for c, reply, keep in rows if self.accepted(ask, c, reply, keep)]
        if found:
            yield [c for c, _ in found], stack([reply for _, reply in found])

    def stacked(
        self,
        verb: Verb,
        sent: Mapping[Client, Tree],
        shared: bool,
        part: Part | None = None,
        stay: bool = False,
    ) -> Iterator[tuple[list[Client], Tree, Tree]]:
        """(clients, replies, keeps) of one chunk after another, clients of similar size together."""
        order = self.in_order(sent) if self.many else [c for c in self.by_size if c in sent]
        for first in range(0, len(order), self.chunk):
            clients = order[first : first + self.chunk]
            letter = sent[clients[0]] if shared else stack([sent[c] for c in clients])
            padding = _padding(len(clients)) if len(order) < len(self.clients) else 0
            given = (letter, self.kept(clients), self.rows(clients, part))
            if self.placement is None:
                yield clients, *self.at_once(verb, clients, given, shared, padding)
            else:
                yield (
                    clients,
                    *self.at_once_there(self.placement, verb, clients, given, shared, padding, stay),
                )

    def in_order(self, clients: Iterable[Client]) -> list[Client]:
        """By size, those of equal size by name."""
        return sorted(clients, key=lambda c: (rows_of(self.clients_data, c), c))

    def kept(self, clients: list[Client]) -> Tree:
        """What some clients keep, stacked."""
        if self.keeps.nothing and type(self.method).join is Method.join:
            return ()
        known = self.keeps.get_all(clients, self.upto)
        kept = [self.joined(c) if k is None else k for c, k in zip(clients, known, strict=True)]
        return stack(kept) if leaves(kept[0]) else kept[0]

    def at_once_there(
        self,
        placement: Placement,
        verb: Verb,
        clients: list[Client],
        given: tuple[Tree, Tree, Tree],
        shared: bool,
        padding: int,
        stay: bool,
    ) -> tuple[Tree, Tree]:
        """As `at_once`, on the device; what is kept comes back to the host, and so do replies that do not `stay`."""
        letter, keeps, rows = given
        with placement.visit():
            _ = self.method.task.w0  # as in the loop
            there = placement.sent(letter), placement.there(keeps), placement.there(rows)
            reply, keep = self.at_once(verb, clients, there, shared, padding)
            return reply if stay else placement.back(reply), placement.back(keep)

    def at_once(
        self,
        verb: Verb,
        clients: list[Client],
        given: tuple[Tree, Tree, Tree],
        shared: bool,
        padding: int,
    ) -> tuple[Tree, Tree]:
        """Replies and what is kept, stacked; `given` are the letter, what was kept and the rows, on one device."""
        letter, args = given[0], given[1:] if shared else given
        if padding:
            args = pytree.tree_map(lambda t: torch.cat([t, t[:1].expand(padding, *t.shape[1:])]), args)
        one = partial(performed, verb, letter) if shared else partial(performed, verb)
        try:
            with compiled_steps(self.compiled, self.workers):
                out = vmap(one, randomness="error")(*args)
        except Exception as e:
            if not is_failure(e):
                raise
            who = f"{len(clients)} clients at once, {clients[0]} among them"
            raise VerbFailed(f"{self.where(verb)}, {who}: {explained(e, verb)}") from e
        reply, keep = pytree.tree_map(lambda t: t[: len(clients)], out) if padding else out
        return reply, keep

    # ---- stacking ----

    def rows(self, clients: list[Client], part: Part | None) -> Data | ClientTest:
        """The chunk's examples, padded and stacked, with the seeds of this turn."""
        x, y, n, val, tested, weight = self.remembered(clients, part)
        first = self.clients_data[clients[0]]
        number = torch.full((len(clients),), self.turn.number)
        seeds = self.seeds_of(clients)
        noise = None
        if first.private is not None:
            noise = torch.tensor([self.clients_data[c].noise for c in clients], dtype=torch.float64)
        data = Data(
            x, y, n, seeds, val, first.columns, first.augment, number, weight, noise, first.private
        )  # fmt: skip
        return data if tested is None else ClientTest(data, tested)

    def seeds_of(self, clients: list[Client]) -> Tensor:
        """The clients' seeds of this turn; training and evaluation ask for the same ones."""
        if self.seeds_are_of != self.turn.seed:
            self.seeds_are_of, self.seeds = self.turn.seed, {}
        key = tuple(clients)
        if key not in self.seeds:
            self.seeds[key] = torch.tensor([seed_of(self.turn.seed, c) for c in clients])
        return self.seeds[key]

    def remembered(self, clients: list[Client], part: Part | None) -> tuple[Any, ...]:
        key = (part, *clients)
        if key in self.stacks:
            return self.stacks[key]
        clients_data = [self.clients_data[c] for c in clients]
        weighted = any(h.weighted for h in clients_data)
        train = pad_all([h.train for h in clients_data], weighted)
        spare = Batch(train.x[0], train.y[0], train.live[0])
        shown = [h.val if part == "val" else h.test for h in clients_data]
        tested = pad_all(shown, spare=spare) if part else None
        same = part == "val" and tested and not weighted
        val = tested if same and tested else pad_all([h.val for h in clients_data], weighted, spare)
        n = torch.tensor([h.n for h in clients_data])
        made: tuple[Any, ...] = (train.x, train.y, n, val, tested, train.live if weighted else None)
        made = self.placement.there(made) if self.placement else made
        need = sum(t.numel() * t.element_size() for t in leaves(made) if isinstance(t, Tensor))
        if need <= self.free and not (self.many and part is None):  # a cohort of many does not come again
            self.stacks[key], self.free = made, self.free - need
        return made


def keep_what_is_compiled() -> None:
    """Inductor's cache is by default in a temporary folder whose name anybody can guess; this one lasts from run to
    run, or ends with the process where no folder is this user's alone.

    Its pool of compiling processes takes no less time for a handful of kernels, and its start would
    take a core from the first rounds.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(code_cache("inductor") or own_folder())
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def _evaluate(method: Any, request: Tree, view: Tree, keep: Tree, who: ClientTest) -> tuple[Tree, Tree]:
    return predictions(method, request | {"download": view}, keep, who)


def _shared(views: Mapping[Client, Tree]) -> bool:
    """Whether everyone is sent the very same thing."""
    first = next(iter(views.values()))
    return all(v is first for v in views.values())


def pad_all(parts: list[Batch | LazyRows], evened: bool = False, spare: Batch | None = None) -> Batch:
    """Batches stacked, each padded to the longest; `evened`: with weights of mean 1 in each.

    Padding counts nothing, and is a copy of a batch's own first row: networks and losses need not be finite for zeros
    (logarithms, shares), and nothing times infinity is not nothing. A batch without rows takes another's row, or the
    first of `spare`."""
    top = max(1, *map(len, parts))
    batches = [p.take().evened() if evened else p.take() for p in parts]
    first = batches[0]
    x = first.x.new_zeros((len(batches), top, *first.x.shape[1:]))
    y = first.y.new_zeros((len(batches), top))
    live = torch.zeros(len(batches), top)
    other = next((b for b in (*batches, spare) if b is not None and len(b.x)), first)
    for i, b in enumerate(batches):
        n = len(b.x)
        x[i, :n], y[i, :n], live[i, :n] = b.x, b.y, b.live
        row = b if n else other
        if n < top and len(row.x):
            x[i, n:], y[i, n:] = row.x[0], row.y[0]
    return Batch(x, y, live)


def _padding(many: int) -> int:
    """How many copies to add to part of the clients, so that few sizes occur and few programs are compiled."""
    grain = 1 << max(0, many.bit_length() - 3)
    return -many % grain
