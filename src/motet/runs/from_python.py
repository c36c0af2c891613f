"""From the keywords of motet.run and motet.compare to a recipe's sections.

Data, networks and methods may be Python objects; they get names here. A setting may be given by its name alone
(`rounds=20`, `lr=0.1`) if one section has it. Messages name types of objects, never their values: an object
may hold data.
Knows Python objects and what can be set. Does not run anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from motet.core import Method
from motet.data import in_memory, own_code
from motet.nets.given import copies_of
from motet.runs import recipe as recipes
from motet.runs import study as studies
from motet.runs.recipe import SECTIONS, Known, RecipeError, Settings
from motet.runs.study import Study
from motet.settings import Field
from motet.trusted_code import Consent, names_in, trust_names

# what motet.run takes beside settings; `out` is `base` in motet.compare
KEYWORDS = (*SECTIONS, "seed", "out", "base", "on_round", "progress", "fresh", "trust")
_SCALARS = (str, int, float, bool, type(None))


def sections(
    recipe: str | Path | None,
    settings: Mapping[str, Any],
    methods: Sequence[str] = (),
    trust: Consent = False,
) -> Settings:
    """The sections of a recipe, for one method or for several that are compared. Code that the file alone names
    needs `trust`."""
    whole = (*SECTIONS, "seed", *(recipes.method_names() if methods else ()))
    given = {k: section_of(k, v, settings) for k, v in settings.items() if k in whole}
    trust_names(names_in([v for k, v in settings.items() if k not in whole]))
    found = recipes.gathered(recipe, more=given, trust=trust)
    known = recipes.known_settings(found, methods)
    wrong = [w for section in given for w in unfit(section, found[section], known)]
    for key, value in settings.items():
        if key not in whole:
            wrong += place(found, key, value, known)
    if wrong:
        raise RecipeError("\n".join(wrong))
    return found


def study(
    recipe: str | Path | None,
    methods: Any,
    settings: Mapping[str, Any],
    grid: Mapping[str, Any],
    seeds: Any,
    splits: Any,
    trust: Consent = False,
) -> Study:
    """A study from the keywords of motet.compare, and from a file that they change."""
    studies.check_plural(settings)
    given = [entry(m) for m in ([methods] if isinstance(methods, str | dict | type) else methods)]
    asked, file = studies.Asked(given, plain_grid(grid), seeds, splits), recipes.parsed(recipe)
    trust_names(names_in([given, asked.grid]))
    entries = given or [studies.entry_of(m) for m in file.get("methods", studies.STANDARD)]
    names = list(dict.fromkeys([*(e["name"] for e in entries), studies.ALONE]))
    found = {k: v for k, v in sections(recipe, settings, names, trust).items() if k not in studies.KEYS}
    return studies.plan(file, changed(found, file), replace(asked, methods=entries))


def entry(method: Any) -> Settings:
    """A method with settings of its own."""
    given = {k: _plain(v) for k, v in method.items()} if isinstance(method, dict) else {"name": method}
    return given | {"name": method_name(given.get("name"))}


def plain_grid(grid: Mapping[str, Any]) -> studies.Grid:
    """Values of a grid; networks and numbers of numpy as a recipe has them."""
    found = {k: [_plain(v) for v in values] for k, values in studies.flat_grid(grid).items()}
    return {k: [net_name(v) for v in values] if k == "net" else values for k, values in found.items()}


def changed(found: Mapping[str, Any], file: Mapping[str, Any]) -> Settings:
    """What differs from the file: what somebody gave beside it."""
    new: Settings = {}
    for key, value in found.items():
        if isinstance(value, dict) and isinstance(file.get(key), dict):
            if inner := changed(value, file[key]):
                new[key] = inner
        elif key not in file or file[key] != value:
            new[key] = value
    return new


def section_of(section: str, value: Any, settings: Mapping[str, Any]) -> Any:
    """A section as a recipe has it; objects are named."""
    value = {k: _plain(v, k) for k, v in value.items()} if isinstance(value, dict) else _plain(value)
    named: dict[str, Callable[[Any], Settings]] = {
        "data": lambda v: data_section(v, settings.get("client")),
        "net": lambda v: {"name": net_name(v)},
        "method": lambda v: {"name": method_name(v)},
    }
    if section not in named:
        return str(value) if isinstance(value, Path) else value
    if not _is_settings(value) or (
        section == "data" and any(v is None for v in value.values())
    ):  # no setting is None
        return named[section](value)
    return value | named[section](value["name"]) if "name" in value else value


def _plain(value: Any, key: str = "") -> Any:
    """Numbers of numpy as Python's, the object of a nested setting as its table, an own metric or loss as its name."""
    if key in ("metric", "loss") and inspect.isfunction(value):
        return own_code.name_of(value)
    if isinstance(value, np.generic):
        return value.item()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _is_settings(value: Any) -> bool:
    """Whether a dict holds settings; a dict of data holds arrays, frames or the like."""

    def flat(v: Any) -> bool:
        return all(isinstance(i, _SCALARS) for i in (v if isinstance(v, list | tuple) else [v]))

    def plain(v: Any) -> bool:  # a dict in it is a nested setting, say agent={"gamma": 0.5}
        return all(map(flat, v.values())) if isinstance(v, dict) else flat(v)

    return isinstance(value, dict) and all(plain(v) for k, v in value.items() if k != "name")


# ---- objects ----


def data_section(data: Any, client: Any = None) -> Settings:
    """The section of data given by name, as a function, or as an object that is written into the cache."""
    if isinstance(data, str | Path):
        return {"name": str(data)}
    if inspect.isfunction(data):
        return {"name": own_code.name_of(data)}
    return in_memory.keep(data, client if isinstance(client, str) else "")


def net_name(net: Any) -> str:
    """The name of a network: a module, or a class or function that builds one."""
    if isinstance(net, str):
        return net
    if isinstance(net, nn.Module):
        return own_code.register(net, type(net).__name__, copies_of(net))
    if inspect.isfunction(net) or (inspect.isclass(net) and issubclass(net, nn.Module)):
        return own_code.name_of(net)
    raise RecipeError(
        f"net is {_type(net)}; expected a name, a torch.nn.Module, a class of such, or a function (shape, outputs)"
    )


def method_name(method: Any) -> str:
    """The name of a method: that of its file if it is motet's, else where its class is found."""
    if isinstance(method, str):
        return method
    if not (inspect.isclass(method) and issubclass(method, Method)):
        raise RecipeError(
            f"a method is {_type(method)}; expected a name or a class that inherits from motet.Method"
        )
    package, _, file = method.__module__.rpartition(".")
    return file if package == "motet.methods" else own_code.name_of(method)


# ---- settings by their name alone ----


def place(found: Settings, key: str, value: Any, known: Known) -> list[str]:
    """Put a keyword into the one section that has a setting of this name; what is wrong with it."""
    places = recipes.sections_of(key, known)
    if len(places) > 1:
        named = {s: found[s]["name"] for s in places if isinstance(found.get(s), dict) and "name" in found[s]}
        say = " or ".join(f"{s}={{'name': {named.get(s, '…')!r}, {key!r}: …}}" for s in places)
        return [f"{key} is a setting of {' and of '.join(places)}\nhint: say {say}"]
    if not places:
        near = {"out": "base", "base": "out"}.get(key)  # of compare, of run
        if near:
            return [f"unknown keyword {key}\nhint: did you mean {near!r}?"]
        return [recipes.unknown_short("keyword", key, known, KEYWORDS)]
    part = found.setdefault(places[0], {})
    part[key] = _plain(str(value) if isinstance(value, Path) else value, key)
    return unfit(places[0], {key: part[key]}, known)


def unfit(section: str, part: Any, known: Known) -> list[str]:
    """Objects where settings belong, in words that do not show them; the rest is checked with the recipe."""
    if isinstance(part, str) or (section == "seed" and isinstance(part, _SCALARS)):
        return []
    if not isinstance(part, dict):
        return [
            f"{section} is {_type(part)}; it must be {'a whole number' if section == 'seed' else 'a dict'}"
        ]
    fields = known.get(section, {})
    return [
        w for key, value in part.items() if key in fields and (w := _unfit_value(key, value, fields[key]))
    ]


def _unfit_value(key: str, value: Any, field: Field) -> str:
    if isinstance(value, _SCALARS) or (field.inner and isinstance(value, dict)):
        return ""
    _, problem = field.check(value if isinstance(value, list | tuple) else object())
    must = "it must be text or a function" if key in ("metric", "loss") else problem.partition("; ")[2]
    of_torch = key == "loss" and isinstance(value, nn.Module)  # torch's give one number for a batch
    hint = "\nhint: net.loss names motet's own; a function of yours takes (outputs, targets) and gives each row's loss"
    return f"{key} is {_type(value)}; {must}{hint * of_torch}" if problem else ""


def _type(thing: Any) -> str:
    size = f" of {len(thing)}" if isinstance(thing, list | tuple) else ""
    return in_memory.a_type(thing) + size
