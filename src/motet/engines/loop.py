"""The loop engine: one client after another, in this process. Plain, and the definition of what is right.

Knows where clients' examples and keeps are. Does not know what any verb does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from motet.client import Batch, ClientData, ClientTest, Data, Task, predicted, seed_of
from motet.client.descent import first_losses
from motet.client.devices import CPU
from motet.client.population import Population, names_of, total_of
from motet.client.visit import MethodFailed, VerbFailed, examples, join, name_of, perform, place, tested
from motet.core import (
    SIDES,
    Ask,
    Client,
    Fuse,
    Fused,
    Method,
    MethodUnfit,
    NoReply,
    Part,
    Refusal,
    Tree,
    Turn,
    Verb,
    is_solo,
    is_verb,
)
from motet.engines.client_state import ClientStates
from motet.engines.evaluate import (
    See,
    evaluation_request,
    groups,
    measured,
    model_function,
    personal_model,
    predictions,
    predictions_trained,
)
from motet.engines.mean import ReplyMean, RunningMean
from motet.engines.meter import Meter
from motet.engines.placement import Placement
from motet.guard.pairs.chain import Chain, Leaving, kept_under
from motet.guard.pairs.client_noise import ClientNoise
from motet.text import round_name
from motet.trusted_code import own_definition
from motet.vec import leaves, stack
from motet.wire import size

_NAMED = 10  # clients that an event names


class AllRefused(VerbFailed, NoReply):
    """Clients answered an ask, and no reply can be used."""

    def __init__(self, text: str, whose: str = "all clients that were asked") -> None:
        super().__init__(text)
        self.whose = whose  # at whom training diverged; "" where no learning rate is to blame


class Loop:
    """Every engine of motet is a Loop; others override how replies are made."""

    name = "loop"
    meter: Meter | None = (
        None  # of an engine that sends letters; the bytes of others are counted by their trees
    )

    def __init__(
        self,
        clients_data: Mapping[Client, ClientData],
        keeps: ClientStates | None = None,
        *,
        fuses: bool = False,
        device: torch.device = CPU,
    ) -> None:
        many = isinstance(clients_data, Population)
        self.clients_data = clients_data if many else dict(clients_data)
        self.clients: Sequence[Client] = names_of(clients_data) if many else sorted(clients_data)
        self.scored: Sequence[Client] = self.clients  # whose models are scored and saved
        self.keeps = keeps or ClientStates()
        self.fuses = fuses  # whether asks that can be done at once are
        held = () if many else self.clients_data.values()
        self.placement = None if device == CPU else Placement(device, held)
        self.fold: Callable[[], ReplyMean] = RunningMean  # makes the mean; a guard sets another one
        self.chain: Chain | None = None  # guards that averaged replies go through when they leave a client
        self.private: ClientNoise | None = (
            None  # client-level privacy: one of the guards, and the server's part
        )
        self.left: dict[Client, int] = {}  # bytes of what left clients through guards, of the last ask
        self.refused: list[Refusal] = []
        self.left_out: list[
            str
        ] = []  # who was left out of training or scoring, in words; whoever writes it empties it
        self.refused_before = 0  # how many there were when the ask that is under way began
        self.examples: dict[Client, Data] = {}  # of the turn whose seed is `examples_of`
        self.examples_of = -1
        self.asked_in = -2  # the round that is under way, once it had an averaged ask
        self.method: Method
        self.turn: Turn
        self.upto: int  # the round whose client states count: the turn's, or the one before it

    # ---- what a run asks ----

    def begin(self, method: Method, turn: Turn) -> None:
        self.visit(method, turn)
        self.keeps.begin(turn.number)
        self.asked_in = -2

    def ask(self, ask: Ask) -> Tree:
        if not is_verb(ask.verb):
            lines = [f"{name_of(ask.verb)} is not a verb", own_definition(ask.verb)]
            hint = "hint: write @verb above it (`from motet import verb`), as above all that runs at clients"
            raise MethodFailed("\n".join([*filter(None, lines), hint]))
        self.refused_before = len(self.refused)
        self.left.clear()
        if self.private:
            self.check_private(ask)
        plain = self.fold is RunningMean and not self.guards(ask)
        if ask.fuse and self.fuses and plain and (done := self.fused(ask, ask.fuse)):
            return done
        return self.mean(ask) if ask.learn == "mean" else self.everything(ask)

    def mean(self, ask: Ask) -> Tree:
        fold = self.fold()
        for client, reply in self.replies(ask):
            weight = self.weight(ask, client)
            fold.add(self.guarded(ask, client, reply, weight), weight, client)
        return self.folded(ask, fold)

    def guards(self, ask: Ask) -> bool:
        """Whether replies to an ask go through guards: all that are averaged but losses and sketches."""
        measures = name_of(ask.verb) in self.method.measuring
        return self.chain is not None and ask.learn == "mean" and not measures

    def guarded(self, ask: Ask, client: Client, reply: Tree, weight: float) -> Tree:
        """A reply as it arrives at the server after it left through the client's guards."""
        if self.chain is None or not self.guards(ask):
            return reply
        key, verb, sent = kept_under(client), name_of(ask.verb), ask.sent_to(client)
        before = self.keeps.get(key, self.upto) or {}
        about = Leaving(sent, weight, seed_of(seed_of(self.turn.seed, client), "guard", verb))
        message, kept = self.chain.leave(reply, about, before.get(verb, {}))
        if kept or before:
            self.keeps.put(key, before | {verb: kept})
        if self.chain.codes:
            self.left[client] = size(message)
        return self.chain.arrive(message, sent)

    def fused(self, ask: Ask, fuse: Fuse) -> Fused | None:
        """This ask and those that follow from it, at once; None if they must be asked one by one."""
        to = sorted(ask.to)
        keeps = {c: self.keep(c) for c in to}
        done = fuse(keeps, {c: self.weight(ask, c) for c in to})
        if not done:
            return None
        for c in to:
            self.keeps.put(c, keeps[c])
        reply, _ = self.perform(ask.verb, to[0], ask.sent_to(to[0]), keeps[to[0]], self.data(to[0]))
        return Fused(done, ask.sent_to(to[0]), reply)

    def everything(self, ask: Ask) -> dict[Client, Tree]:
        found = dict(self.replies(ask))
        if not found:
            self.check_not_all_refused(ask)
        return found

    def evaluate(
        self,
        method: Method,
        state: Tree,
        turn: Turn,
        part: Part,
        sides: Sequence[str] = SIDES,
        see: See | None = None,
    ) -> tuple[list[Client], Tree]:
        """Metrics of the clients that are scored on `part` of their examples, stacked, as they were after `turn`."""
        self.visit(method, turn)
        return self.measured(self.predictions(state, part, sides), see)

    def evaluate_trained(self, method: Method, asks: list[Ask], turn: Turn) -> tuple[list[Client], Tree]:
        """Metrics on both parts of the models that clients trained in `turn`, from how they were before it."""
        self.visit(method, turn, turn.number - 1)
        return self.measured(some for ask in asks for some in self.predictions_after(ask))

    def personal_models(self, method: Method, state: Tree, turn: Turn) -> Iterator[tuple[Client, Tree]]:
        """The personal models of the clients that are scored, as they were after `turn`."""
        self.visit(method, turn)
        views = {c: method.download(state, c) for c in self.scored}
        yield from self.each(partial(personal_model, method), views, self.client_test)

    def model_function(self, method: Method, state: Tree, turn: Turn, client: Client) -> str:
        """The name of the function that a personal model's trees are arguments of."""
        self.visit(method, turn)
        sent = {client: method.download(state, client)}
        return str(dict(self.each(partial(model_function, method), sent, self.client_test))[client])

    def server_scores(self, task: Task, model: Tree, examples: Batch) -> Tensor:
        """What a model predicts for examples of the server's own."""
        if self.placement is None:
            return predicted(partial(task.predict, model), examples)
        with self.placement.visit():
            w, rows = self.placement.sent(model), self.placement.there(examples)
            scores: Tensor = self.placement.back(predicted(partial(task.predict, w), rows))
        return scores

    def visit(self, method: Method, turn: Turn, upto: int | None = None) -> None:
        """Which method and turn count now, and the round whose client states do: by default the turn's."""
        self.method, self.turn, self.upto = method, turn, turn.number if upto is None else upto

    # ---- how this engine does it ----

    def replies(self, ask: Ask) -> Iterator[tuple[Client, Tree]]:
        """Replies that can be used, in the order of names."""
        yield from self.each(ask.verb, ask.messages(), self.data, keep_as=ask)

    def each(
        self,
        verb: Verb,
        sent: Mapping[Client, Tree],
        data: Callable[[Client], Any],
        keep_as: Ask | None = None,
    ) -> Iterator[tuple[Client, Tree]]:
        """Do one verb at those who are sent something, one after another; what they keep is stored if `keep_as`
        is given."""
        for c, message in sent.items():
            reply, keep = self.perform(verb, c, message, self.keep(c), data(c))
            if keep_as is None or self.accepted(keep_as, c, reply, keep):
                yield c, reply

    def predictions(
        self, state: Tree, part: Part, sides: Sequence[str]
    ) -> Iterator[tuple[list[Client], Tree]]:
        """Stacked predictions of the clients that are scored, some clients at a time."""
        method, test = self.method, partial(self.client_test, part=part)
        sent = {c: evaluation_request(method, state, method.download(state, c), sides) for c in self.scored}
        if not all(request["same"] for request in sent.values()):  # stacked predictions are all of one form
            sent = {c: request | {"same": False} for c, request in sent.items()}
        yield from groups(self.each(partial(predictions, method), sent, test))

    def predictions_after(self, ask: Ask) -> Iterator[tuple[list[Client], Tree]]:
        """The same of the models that clients train when they are asked so."""
        verb, test = (
            partial(predictions_trained, self.method, ask.verb),
            partial(self.client_test, part="test"),
        )
        yield from groups(self.each(verb, ask.messages(), test))

    def measured(
        self, found: Iterable[tuple[list[Client], Tree]], see: See | None = None
    ) -> tuple[list[Client], Tree]:
        """Metrics of all clients, from predictions of some at a time."""
        scores: list[tuple[list[Client], Tree]] = []
        for clients, some in found:
            if see:
                see(clients, some)
            scores.append((clients, measured(self.method.task, clients, some)))
        return joined(scores)

    # ---- where things are ----

    def data(self, client: Client) -> Data:
        """A client's examples and its seed of this turn; remembered if nothing must be copied for it."""
        if self.examples_of != self.turn.seed:
            self.examples, self.examples_of = {}, self.turn.seed
        if (known := self.examples.get(client)) is not None:
            return known
        client_data = self.clients_data[client]
        made = examples(client_data, self.turn.seed, client, self.turn.number)
        if isinstance(client_data.train, Batch) and not isinstance(self.clients_data, Population):
            self.examples[client] = made
        return made

    def client_test(self, client: Client, part: Part = "val") -> ClientTest:
        return ClientTest(self.data(client), tested(self.clients_data[client], part))

    def keep(self, client: Client) -> Tree:
        kept = self.keeps.get(client, self.upto)
        return self.joined(client) if kept is None else kept

    def joined(self, client: Client) -> Tree:
        """What a client keeps before it is first asked anything."""
        if type(self.method).join is Method.join:
            return ()
        return join(self.method, self.data(client), self.turn.number, client)

    def check_private(self, ask: Ask) -> None:
        """Refuse asks whose answers client-level noise does not cover: each round has one mean of updates."""
        verb, again = name_of(ask.verb), self.asked_in == self.turn.number
        why = "collects single replies" if ask.learn == "all" else "measures rows"
        if ask.learn == "mean" and verb not in self.method.measuring:
            why = "asks a second time in a round" if again else ""
            why = "asks before the first round" if self.turn.number < 0 else why
        if why:
            raise MethodUnfit(
                f"privacy.level is client, and {type(self.method).__name__.lower()} {why} ({verb}), which the noise "
                "does not cover\nhint: fedavg, fedprox, fedper, finetune, ditto, mrmtl, scaffold"
            )
        self.asked_in = self.turn.number

    def weight(self, ask: Ask, client: Client) -> float:
        if self.private:
            return 1.0  # a client with many rows must not count more than its noise hides
        return total_of(self.clients_data, client) if ask.weights is None else float(ask.weights[client])

    # ---- what can go wrong ----

    def perform(self, verb: Verb, client: Client, sent: Tree, keep: Tree, data: Any) -> tuple[Tree, Tree]:
        if self.placement is None or self.is_ordinary_python(verb):
            return perform(verb, sent, keep, data, self.turn.number, client)
        with self.placement.visit():
            _ = self.method.task.w0  # moved to the device once, before any transform begins
            kept, there = self.placement.there(keep), self.placement.there(data)
            letter = self.placement.sent(sent)
            reply, new = perform(verb, letter, kept, there, self.turn.number, client)
            return self.placement.back(reply), keep if new is kept else self.placement.back(new)

    def is_ordinary_python(self, verb: Verb) -> bool:
        """Whether it, or what it calls of the method, is solo: such code may use NumPy, so it stays on the host."""
        if not isinstance(verb, partial):
            return is_solo(verb)
        return any(map(is_solo, (self.method.personal, self.method.alone, *verb.args)))

    def accepted(self, ask: Ask, client: Client, reply: Tree, keep: Tree) -> bool:
        """Whether a reply can be used; if so, what the client keeps is stored, else it keeps what it had."""
        if not all_finite(reply):
            self.refused.append((client, name_of(ask.verb), self.turn.number))
            return False
        self.keeps.put(client, keep)
        return True

    def folded(self, ask: Ask, fold: ReplyMean) -> Tree:
        if fold.weight <= 0:
            self.check_not_all_refused(ask)
            raise NoReply(f"{self.where(ask.verb)}: nobody answered; hint: is the cohort empty?")
        try:
            mean = fold.mean()
            if self.private:
                sent, seed = ask.send if ask.each is None else (), seed_of(self.turn.seed, name_of(ask.verb))
                mean = self.private.released(mean, sent, fold.weight, seed)
            self.left.update(getattr(fold, "left", {}))
            return mean
        except NoReply as e:
            self.left_out.append(untrained(self.turn.number, ask, str(e)))
            raise NoReply(f"{self.where(ask.verb)}: {e}") from e

    def check_not_all_refused(self, ask: Ask) -> None:
        """One client may be broken; where no reply at all can be used, training has diverged."""
        if refused := self.refused[self.refused_before :]:
            who = f"none of {len(refused)} replies is finite, {refused[0][0]}'s among them"
            number = self.turn.number
            client = refused[0][0]
            if number <= 0 and client in self.clients_data:  # its training once more, to see how it begins
                with first_losses() as found:
                    self.perform(ask.verb, client, ask.sent_to(client), self.keep(client), self.data(client))
                if not all(map(math.isfinite, found)):
                    raise AllRefused(f"{self.where(ask.verb)}: {who}: {no_loss_at_start(client)}", "")
            raise AllRefused(
                f"diverged in {round_name(number)}: {self.where(ask.verb)}: {who}{rate_hint(self.method)}"
            )

    def where(self, verb: Verb) -> str:
        return place(verb, self.turn.number)


def untrained(number: int, ask: Ask, why: str) -> str:
    """That clients were asked and make no mean, for the run's events."""
    many, first = len(ask.to), ", ".join(sorted(ask.to)[:_NAMED])
    rest = f" and {many - _NAMED:,} more" if many > _NAMED else ""
    return f"{round_name(number)}: {first}{rest} are left out of {name_of(ask.verb)}: {why}"


def rate_hint(method: Method) -> str:
    """The learning rate that was too large, if the method has one, and what to try instead."""
    rates = [k for k in ("inner_lr", "lr", "lr_max") if getattr(method, k, None)]
    if not rates:
        return ""
    rate = f"{rates[0]}={getattr(method, rates[0])}"
    return f" ({rate})\nhint: try a smaller method.{rates[0]}, or set method.clip"


def no_loss_at_start(client: Client) -> str:
    """That no rate is to blame for a loss that is not finite."""
    return (
        f"the loss is not finite at the initial weights of client {client}\n"
        "hint: look for a division by 0 or a logarithm of 0 in the loss, and for strange rows of this client"
    )


def stacked(found: Iterable[tuple[Client, Tree]]) -> tuple[list[Client], Tree]:
    """Metrics of clients, one by one, as one tree; nothing if there are none."""
    scores = dict(found)
    return list(scores), stack(list(scores.values())) if scores else {}


def joined(found: Sequence[tuple[list[Client], Tree]]) -> tuple[list[Client], Tree]:
    """Metrics of some clients at a time, as one tree; nothing if there are none."""
    if not found:
        return [], {}
    names, scores = zip(*found, strict=True)
    return [c for some in names for c in some], pytree.tree_map(lambda *s: torch.cat(s), *scores)


def all_finite(tree: Tree) -> bool:
    """Whether no number is nan or infinite."""
    return _finite(tree) if isinstance(tree, Tensor) else all(map(_finite, leaves(tree)))


def _finite(v: Any) -> bool:
    if isinstance(v, float):
        return math.isfinite(v)
    if not (isinstance(v, Tensor) and v.is_floating_point()):
        return True
    # A sum shows it in one pass; only large numbers, whose sum overflows, need a second pass.
    return math.isfinite(v.sum()) or bool(torch.isfinite(v).all())
