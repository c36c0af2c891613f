"""What a method asks of clients, read from its text, and whether a recipe's guards have an effect on it.

Knows methods' functions as text. Does not know engines, nor sites.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from motet.core import Method, MethodUnfit, is_verb
from motet.runs.sections import GuardSettings

_HOW = ("average", "collect")


def check_guards(method: Method, guard: GuardSettings) -> None:
    """Refuse guards that would have no effect on what a method's clients send, or another one than is promised."""
    name = type(method).__name__.lower()
    averaged = {v for v, how in asks_in(type(method)) if how == "average"}
    changed = [
        f"guard.{k}" for k in ("clip", "bits", "top") if getattr(guard, k) != getattr(GuardSettings, k)
    ]
    idle = changed if not averaged - set(method.measuring) else []
    idle += ["guard.masked"] if guard.masked and not averaged else []
    if idle:
        raise MethodUnfit(
            f"{' and '.join(idle)} would have no effect on {name}: guards change models and updates that are "
            f"averaged, masks all that is averaged, and {name} averages none\nhint: leave it out, or another method"
        )
    cut = [k for k in changed if k != "guard.bits"]
    if cut and not method.replies_updates:
        raise MethodUnfit(
            f"{' and '.join(cut)} cannot be with {name}: what its clients send is not an update alone, but sums with "
            "what they are to be divided by, or steps, and these would be cut too\nhint: guard.bits=8, or leave it out"
        )
    if guard.masked and (why := method.shows_differences()):
        raise MethodUnfit(why)


def verbs_of(method: type[Method]) -> list[str]:
    own = [k for k in dir(method) if not k.startswith("_") and not hasattr(Method, k)]
    return [k for k in own if is_verb(getattr(method, k))]


def asks_in(method: type[Method]) -> list[tuple[str, str]]:
    """(verb, average or collect) of every ask that stands in the method's functions.

    An ask whose verb is chosen while it runs counts for all verbs that no other ask names.
    """
    named: list[tuple[str, str]] = []
    open_: set[str] = set()
    for call in _calls(method):
        how, first = call.func.id, call.args[0] if call.args else None  # type: ignore[attr-defined]
        if isinstance(first, ast.Attribute):
            named.append((first.attr, how))
        else:
            open_.add(how)
    verbs = verbs_of(method)
    rest = [v for v in verbs if v not in {v for v, _ in named}]
    return [p for p in dict.fromkeys(named) if p[0] in verbs] + [(v, h) for v in rest for h in sorted(open_)]


def _calls(method: type[Method]) -> Iterator[ast.Call]:
    functions = [f for _, f in inspect.getmembers(method, inspect.isfunction)]
    hidden = [
        vars(c)[f.__name__]
        for f in functions
        if "super()" in _text(f)
        for c in method.__mro__
        if f.__name__ in vars(c)
    ]
    for f in [*functions, *hidden]:
        if f.__module__ == "motet.core":
            continue
        for node in ast.walk(ast.parse(_text(f) or "0")):
            asks = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if asks and node.func.id in _HOW:  # type: ignore[attr-defined]
                yield node  # type: ignore[misc]


def _text(f: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(f))
    except (OSError, TypeError):  # made while running, as a dataclass's functions are
        return ""
