"""Driving a conversation: pass the generator's asks to an engine, and the answers back to it.

Knows generators and engines. Does not know what any ask means.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from motet.client.visit import Given, MethodFailed, explained, when
from motet.core import Ask, Engine, Method, NoReply, Talk, Tree, Turn
from motet.engines.loop import AllRefused
from motet.errors import MotetError
from motet.trusted_code import is_own, own_definition, own_line


def converse(engine: Engine, talk: Tree | Talk, see: Callable[[Any], None] = lambda said: None) -> Tree:
    """Drive a conversation to its end and return the state that it returns; `see` is shown what is asked.

    An ask that nobody answers is raised where it was yielded: the method may handle it.
    """
    if not inspect.isgenerator(talk):
        return talk
    send: Callable[[Any], Any] = talk.send
    go_on = partial(send, None)
    try:
        while True:
            said = go_on()
            see(said)
            try:
                answer = answers(engine, said) if isinstance(said, list) else engine.ask(said)
                go_on = partial(send, answer)
            except NoReply as e:
                go_on = partial(talk.throw, e)
    except StopIteration as end:
        return end.value


def answers(engine: Engine, asks: list[Ask]) -> list[Tree | None]:
    """One answer each; None where nobody answered, unless nobody's reply to any of them can be used."""
    found: list[Tree | None] = []
    broken: NoReply | None = None
    for ask in asks:
        try:
            found.append(engine.ask(ask))
        except NoReply as e:
            found.append(None)
            broken = e if isinstance(e, AllRefused) else broken
    if broken and all(a is None for a in found):
        raise broken
    return found


def start(engine: Engine, method: Method, turn: Turn) -> Tree:
    engine.begin(method, turn)
    with own_failures(turn.number), unchanged(method, turn.number, method.start) as see:
        return something(converse(engine, method.start(turn), see), method.start, turn.number)


def play(engine: Engine, method: Method, state: Tree, turn: Turn) -> Tree:
    """One round: the state before it to the state after it."""
    engine.begin(method, turn)
    with own_failures(turn.number), unchanged(method, turn.number, method.round, state=state) as see:
        return something(converse(engine, method.round(state, turn), see), method.round, turn.number)


def something(state: Tree, code: Callable[..., Any], number: int) -> Tree:
    """The state that code of a method returned, if it did."""
    if state is None or isinstance(state, Ask):
        what = "nothing" if state is None else "an ask, which nobody was asked"
        hint = "it returns the server's next state, say `return (yield average(...))`"
        raise refusal(f"{code.__name__} returned {what}", number, [code], hint)
    return state


def refusal(what: str, number: int, code: Sequence[Callable[..., Any]], hint: str) -> MethodFailed:
    """What is wrong with code of a method, with the lines of a person's own where it begins."""
    lines = filter(None, map(own_definition, code))
    return MethodFailed("\n".join([f"{when(number)}: {what}", *lines, f"hint: {hint}"]))


@contextmanager
def unchanged(
    method: Method, number: int, *code: Callable[..., Any], **trees: Tree
) -> Iterator[Callable[[Any], None]]:
    """For what the server does: code of a person's own leaves as it is what it is given, and what it asks with.
    Earlier states may be the best ones, and clients may keep what they were sent. Gives what `converse` shows asks."""
    own = is_own(type(method))
    given = [Given(method, {}, **trees)] if own else []

    def see(said: Any) -> None:
        asks = said if isinstance(said, list) else [said]
        if wrong := [a for a in asks if not isinstance(a, Ask)]:
            what = f"{code[0].__name__} yielded {type(wrong[0]).__name__}; it must yield an ask"
            raise refusal(
                what,
                number,
                code,
                "`mean = yield average(self.train, turn.cohort, send=w)`, or a list of asks",
            )
        if own:
            given.append(Given(method, {}, sent=[a.messages() if a.each else a.send for a in asks]))

    yield see
    for some in given:
        try:
            some.check()
        except TypeError as e:
            what, _, hint = str(e).partition("\nhint: ")
            raise refusal(f"{' or '.join(c.__name__ for c in code)}: {what}", number, code, hint) from e


@contextmanager
def own_failures(number: int) -> Iterator[None]:
    """For what the server does in a round: errors of a person's own code name its line. Others are bugs of motet."""
    try:
        yield
    except MotetError:
        raise
    except Exception as e:
        if not own_line(e):
            raise
        raise MethodFailed(f"{when(number)}: {explained(e)}") from e


def training(method: Method, state: Tree, turn: Turn) -> list[Ask]:
    """The asks with which a round begins, if they are for the verb `train`."""
    talk = method.round(state, turn)
    if not inspect.isgenerator(talk):
        return []
    said: Any = next(talk, [])
    talk.close()
    asks: list[Ask] = said if isinstance(said, list) else [said]
    return [a for a in asks if getattr(a.verb, "__name__", "") == "train" and a.to]
