"""What a recipe may choose: the options of a function, and functions that are found by name.

Knows signatures, and how to say that a word is wrong. Does not know data or networks.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from inspect import signature
from typing import Any

SESSION = "session:"  # names of code that was defined in a notebook or script (own_code.py)
known_here: dict[str, Any] = {}  # such code, by name


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint: the known name that looks most like `word`, and all of them.

    >>> nearest("wnie", ["digits", "wine"])
    "did you mean 'wine'? there are: digits, wine"
    """
    known = list(known)
    close = get_close_matches(word, known, 1, cutoff=0.5)
    there = "there are: " + ", ".join(known) if known else "there are none"
    return f"did you mean {close[0]!r}? {there}" if close else there


def options_of(f: Callable[..., Any]) -> dict[str, Any]:
    """The options of a function with their defaults; the seed is not one of them."""
    found = signature(f).parameters.values()
    return {p.name: p.default for p in found if p.default is not p.empty and p.name != "seed"}


def complaints(given: dict[str, Any], known: dict[str, Any], whose: str) -> list[str]:
    """Everything that is wrong with the names and the types of the options given."""
    wrong = []
    for name, value in given.items():
        if name not in known:
            wrong.append(f"{whose} has no option {name!r}.\nhint: {nearest(name, known)}")
        elif not fits(value, known[name]):
            wrong.append(
                f"option {name} of {whose} is {value!r} ({type(value).__name__}); "
                f"expected something like {known[name]!r} ({type(known[name]).__name__})"
            )
    return wrong


def fits(value: Any, default: Any) -> bool:
    """Whether a value is of the kind that the default is of; whole numbers are floats too."""
    if default is None:
        return True
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, int | float):
        kinds = int if isinstance(default, int) else int | float
        return isinstance(value, kinds) and not isinstance(value, bool)
    if isinstance(default, list | tuple):
        items = isinstance(value, list | tuple)
        return items and all(fits(v, default[0]) for v in value if len(default))
    return isinstance(value, type(default))


def fetch(spec: str, error: type[ValueError]) -> Callable[..., Any]:
    """The function that `module:function` names; modules of the current folder are found too."""
    if spec.startswith(SESSION):
        return _of_this_session(spec, error)
    module_name, _, name = spec.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name is None or not f"{module_name}.".startswith(f"{e.name}."):
            raise  # the module is there, and something that it imports is not
        raise error(
            f"{spec!r} names the module {module_name!r}, which is not there.\n"
            f"hint: put {module_name.replace('.', '/')}.py into {os.getcwd()}, or install it"
        ) from None
    found = getattr(module, name, None)
    if not callable(found):
        mine = [k for k, v in vars(module).items() if callable(v) and not k.startswith("_")]
        raise error(f"the module {module_name!r} has no function {name!r}.\nhint: {nearest(name, mine)}")
    return found  # type: ignore[no-any-return]


def _of_this_session(spec: str, error: type[ValueError]) -> Callable[..., Any]:
    if spec not in known_here:
        name = spec.removeprefix(SESSION).rpartition("-")[0]
        raise error(
            f"{name} was defined in a notebook or script, and this process does not have it ({spec}).\n"
            "hint: run the code that defines it and give the object to motet.run or motet.compare first; "
            f"or put it into a module, and name it module:{name}"
        )
    return known_here[spec]  # type: ignore[no-any-return]
