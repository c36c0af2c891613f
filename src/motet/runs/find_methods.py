"""Methods by name: a file of motet/methods, a class of one's own, or one method around another.

Knows names and where classes lie. Does not know what any method does.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from motet.core import Method, MethodUnfit
from motet.runs.recipe_text import RecipeError
from motet.settings import fields_of, import_named
from motet.text import unknown
from motet.trusted_code import own_definition

_KNOWN_AS = {  # names of papers for methods that have another name here
    "fedavgm": "method=fedopt method.server_optimiser=momentum",
    "fedadam": "method=fedopt method.server_optimiser=adam",
    "fedadagrad": "method=fedopt method.server_optimiser=adagrad",
    "fedyogi": "method=fedopt method.server_optimiser=yogi",
    "hypcluster": "method=ifca",
    "perfedavg_fo": "method=perfedavg method.delta=0",
    "fomaml": "method=perfedavg method.delta=0",
}


def method_names() -> list[str]:
    """Every method there is: the names of the files in motet/methods."""
    package = import_module("motet.methods")
    return sorted(m.name for m in iter_modules(package.__path__))


def method_class(name: str) -> type[Method]:
    """A method by the name of its file, or `module:Class` for one's own; `fedper+fedopt` is one around another."""
    inner, plus, outer = name.rpartition("+")
    if plus:
        return around(inner, outer)
    if ":" in name:
        found: Any = import_named(name, RecipeError)
        if not (inspect.isclass(found) and issubclass(found, Method)):
            raise RecipeError(
                f"{name} is no method\nhint: it must be a class that inherits from motet.core.Method"
            )
        if line := own_definition(found.__init__):  # that of a dataclass is made, and has no line
            raise RecipeError(
                f"the method {found.__name__} has a constructor of its own\n{line}\n"
                "hint: a setting is a field of the class with a type, say `mu: float = 0.1`, and self.task is there; "
                "what is made of them is a property"
            )
        check_settings(found)
        return found
    if name in _KNOWN_AS:
        raise RecipeError(f"unknown method {name}\nhint: it is a setting of another one: {_KNOWN_AS[name]}")
    if name not in method_names():
        raise RecipeError(unknown("method", name, method_names()))
    return only_method(import_module(f"motet.methods.{name}"), name)


def check_settings(method: type[Method]) -> None:
    """Refuse a class of a person's own with a setting whose type is unknown, or that has no default."""
    hint = "hint: a setting is a field of the class with a type and a default, say `mu: float = 0.1`"
    try:
        known = fields_of(method)
    except (NameError, TypeError) as e:
        said = f"the method {method.__name__} has a setting of an unknown type: {e}"
        raise RecipeError("\n".join(filter(None, [said, own_definition(method), hint]))) from e
    if without := [f.name for f in fields(method) if f.init and f.name != "task" and f.name not in known]:
        said = f"the method {method.__name__} has a setting without a default: {', '.join(without)}"
        raise RecipeError("\n".join(filter(None, [said, own_definition(method), hint])))


@cache
def around(inner: str, outer: str) -> type[Method]:
    """A method put around another one: what its server does, or who chooses, with the training of the inner one."""
    base, put = method_class(inner), getattr(method_class(outer), "around", None)
    if put is None or inner == "centralised":
        raise RecipeError(
            f"{outer} cannot be put around {inner}\nhint: fedopt can be put around fedavg, fedprox, fedper, ditto and "
            "other methods whose server takes the mean, say method=fedper+fedopt; page around methods that train as "
            "fedavg does, say method=feddyn+page, and dapfl too; ifca, cfl and fedperc around methods with one shared "
            "model, say fedper+ifca"
        )
    try:
        found: type[Method] = put(base)
    except MethodUnfit as e:
        raise RecipeError(f"{inner}+{outer}: {e}") from e
    return found


def only_method(module: ModuleType, name: str) -> type[Method]:
    """The method of a file: its only one, or the one that bears the file's name."""
    classes = [c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, Method)]

    def plain(text: str) -> str:
        return text.replace("_", "").lower()

    own = list(dict.fromkeys(c for c in classes if c.__module__ == module.__name__))
    named = [c for c in own if plain(c.__name__) == plain(name)]
    if len(own) != 1 and len(named) != 1:
        held = f"{len(own)} methods: {', '.join(c.__name__ for c in own)}" if own else "no method"
        raise RecipeError(
            f"{name}.py holds {held}; it must hold one, or one that bears the file's name\n"
            f"hint: name the class after the file; case and underscores do not count: "
            f"fed_avg.py may hold FedAvg"
        )
    return own[0] if len(own) == 1 else named[0]
