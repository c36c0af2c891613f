"""What a reply must look like: the verb runs once at the server, for a client with two blank rows.

A client that lives elsewhere may answer anything. A reply that is to be averaged must have the very shapes
of the blank client's reply; one that is collected must have its types and numbers of dimensions, and its shapes
too where most replies have them. Where a blank client has no reply, the form of most replies counts. A solo verb
may give each client a tree of another form; it may name a `check` of its replies.
Knows forms and sizes of numbers. Does not know what any verb does, nor who answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from motet.client import Batch, ClientData, Column, Task
from motet.client.metrics import MetricFailed
from motet.client.visit import VerbFailed, Visit, name_of
from motet.core import Ask, Client, Method, NoReply, Tree, Turn, Verb, is_solo
from motet.engines.evaluate import predictions, scores_at_home
from motet.vec import leaves
from motet.wire import check_form, form

_FAILURES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_OUTSIZED = 1e6  # times what others reply or what was sent: no training makes weights so large


class ExpectedReplies:
    """Forms of replies, found out once for each verb and form of what is sent."""

    def __init__(self, task: Task, shape: tuple[int, ...], columns: tuple[Column, ...] = ()) -> None:
        y = torch.zeros(2, dtype=torch.int64 if task.kind == "classes" else torch.float32)
        blank = Batch.of(torch.zeros(2, *shape, dtype=torch.uint8 if task.pixels else torch.float32), y)
        self.blank = ClientData(blank, blank, blank, columns)
        self.known: dict[tuple[str, ...], Tree] = {}

    def like(self, method: Method, turn: Turn, ask: Ask) -> Tree | None:
        """A reply to an ask, of the expected form; None where a blank client gives none."""
        if not ask.to or (is_solo(ask.verb) and ask.learn == "all"):
            return None
        return self._known(method, turn, ask.verb, ask.sent_to(min(ask.to)))

    def scores(self, method: Method, turn: Turn, sent: Tree) -> Tree | None:
        """What an evaluation gives, of the expected form."""
        job = partial(scores_at_home, method, "nobody", partial(predictions, method))
        return self._known(method, turn, job, sent, score=True)

    def _known(
        self, method: Method, turn: Turn, verb: Verb, sent: Tree, *, score: bool = False
    ) -> Tree | None:
        sides = sent["sides"] if score else ()  # a form says nothing of values
        key = (name_of(verb), form(sent), *sides)
        if key not in self.known:
            visit = Visit(method, "nobody", self.blank, turn.seed, turn.number)
            self.known[key] = self._try(visit, verb, sent, score)
        return self.known[key]

    def _try(self, visit: Visit, verb: Verb, sent: Tree, score: bool) -> Tree | None:
        try:
            reply = visit.perform(verb, sent, visit.joined(), visit.test("val") if score else visit.data)[0]
            form(reply)
        except (VerbFailed, MetricFailed, *_FAILURES):
            return None
        return reply


# ---- replies of several sites ----


def odd_forms(
    replies: Mapping[Client, Tree],
    like: Tree = None,
    own: Callable[[Tree], Any] | None = None,
    *,
    loose: bool = False,
    any_form: bool = False,
) -> dict[Client, str]:
    """Whose replies have another form than that of `like`, or than most of them have, and why."""
    if any_form:
        return {c: why for c, tree in replies.items() if (why := _fault(own or form, tree))}
    if like is None:
        return _unlike_most(replies)
    strict = {c: why for c, tree in replies.items() if (why := _fault(partial(check_form, like=like), tree))}
    if not loose or 2 * len(strict) < len(replies):
        return strict
    lenient = partial(check_form, like=like, loose=True)
    return {c: why for c in strict if (why := _fault(lenient, replies[c]))}


def _unlike_most(replies: Mapping[Client, Tree]) -> dict[Client, str]:
    """Whose reply has another form than most of them; NoReply where no form is that of most."""
    wrong = {c: why for c, tree in replies.items() if (why := _fault(form, tree))}
    forms = {c: form(tree) for c, tree in replies.items() if c not in wrong}
    usual, many = Counter(forms.values()).most_common(1)[0] if forms else ("", 0)
    if many < len(forms) and 2 * many <= len(replies):
        raise NoReply("replies are of different forms, and none is the form of most of them")
    return wrong | {
        c: "its reply is of another form than most replies" for c, f in forms.items() if f != usual
    }


def _fault(check: Callable[[Tree], Any], tree: Tree) -> str:
    """Why a check does not let a tree pass; "" if it does."""
    try:
        check(tree)
    except _FAILURES as e:
        return f"its reply is not what was asked for: {e}"
    return ""


def outsized(ask: Ask, replies: Mapping[Client, Tree]) -> dict[Client, str]:
    """Whose finite numbers are out of all proportion to the others' and to what was sent, and why."""
    largest = {c: _largest(tree) for c, tree in replies.items()}
    if not largest or max(largest.values()) <= _OUTSIZED:
        return {}
    usual = sorted(largest.values())[(len(largest) - 1) // 2]
    limits = {c: _OUTSIZED * max(1.0, usual, _largest(ask.sent_to(c))) for c in largest}
    text = "its reply has numbers as large as {:.3g}; most replies have none above {:.3g}"
    return {c: text.format(v, usual) for c, v in largest.items() if v > limits[c]}


def _largest(tree: Tree) -> float:
    """The largest absolute value in a tree."""
    return max(
        (float(torch.as_tensor(v).double().abs().max()) for v in leaves(tree) if _is_number(v)), default=0.0
    )


def _is_number(v: Any) -> bool:
    return v.numel() > 0 if isinstance(v, Tensor) else isinstance(v, int | float)
