"""Driving a conversation: pass the generator's asks to an engine, and the answers back to it.

Knows generators and engines. Does not know what any ask means.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from motet.core import Ask, Engine, Method, NoReply, Talk, Tree, Turn
from motet.engines.loop import AllRefused


def converse(engine: Engine, talk: Tree | Talk) -> Tree:
    """Drive a conversation to its end and return the state that it returns.

    An ask that nobody answers is raised where it was yielded: the method may handle it.
    """
    if not inspect.isgenerator(talk):
        return talk
    send: Callable[[Any], Any] = talk.send
    go_on = partial(send, None)
    try:
        while True:
            said = go_on()
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
    return converse(engine, method.start(turn))


def play(engine: Engine, method: Method, state: Tree, turn: Turn) -> Tree:
    """One round: the state before it to the state after it."""
    engine.begin(method, turn)
    return converse(engine, method.round(state, turn))


def training(method: Method, state: Tree, turn: Turn) -> list[Ask]:
    """The asks with which a round begins, if they are for the verb `train`."""
    talk = method.round(state, turn)
    if not inspect.isgenerator(talk):
        return []
    said: Any = next(talk, [])
    talk.close()
    asks: list[Ask] = said if isinstance(said, list) else [said]
    return [a for a in asks if getattr(a.verb, "__name__", "") == "train" and a.to]
