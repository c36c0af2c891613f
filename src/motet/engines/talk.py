"""Driving a conversation: hand the generator's asks to an engine, and the answers back to it."""

from __future__ import annotations

import inspect
from typing import Any

from motet.core import Ask, Engine, Method, Talk, Tree, Turn


def converse(engine: Engine, talk: Tree | Talk) -> Tree:
    """Drive a conversation to its end and return the state that it returns."""
    if not inspect.isgenerator(talk):
        return talk
    answer: Any = None
    said: Any
    try:
        while True:
            said = talk.send(answer)
            answer = [engine.ask(a) for a in said] if isinstance(said, list) else engine.ask(said)
    except StopIteration as end:
        return end.value


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
