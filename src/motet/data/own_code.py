"""Functions and classes of the user's own, and the names by which a recipe refers to them.

What a module holds is named `module:name`, which any process can import. What was defined in a notebook or a
script is named `session:NAME-DIGEST` and is known to this process alone. The digest is made of the code, of
what the code refers to and of the values it closes over: changed code has another name, and so its runs have
another identity.
Knows Python objects. Does not know what they are for.
"""

from __future__ import annotations

import inspect
import sys
import uuid
from collections.abc import Iterator, Mapping
from hashlib import sha256
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from motet.settings import SESSION, known_here

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
_MADE = {  # entries of a class that Python or `dataclass` writes
    "__module__", "__dict__", "__weakref__", "__doc__", "__qualname__", "__firstlineno__", "__hash__", "__eq__",
    "__static_attributes__", "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__repr__",
    "__setattr__", "__delattr__", "__replace__", "__annotate__", "__annotations_cache__", "__parameters__",
}  # fmt: skip


def name_of(thing: Any) -> str:
    """The name of a function or class in a recipe."""
    if is_importable(thing):
        return f"{thing.__module__}:{thing.__qualname__}"
    return register(thing, getattr(thing, "__name__", type(thing).__name__), thing)


def register(content: Any, label: str, thing: Any) -> str:
    """Make `thing` known in this process under a name that depends on `content`."""
    digest = sha256("\n".join(described(content, set())).encode()).hexdigest()[:8]
    name = f"{SESSION}{label.strip('<>')}-{digest}"
    known_here[name] = thing
    return name


def is_importable(thing: Any) -> bool:
    """Whether another process finds it under its module and name."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", ".")
    if module in (None, "__main__", "builtins") or "." in name:
        return False
    return getattr(sys.modules.get(str(module)), name, None) is thing


def described(thing: Any, seen: set[int]) -> Iterator[str]:
    """Words that change when the thing would do something else."""
    if isinstance(thing, _PLAIN):
        yield repr(thing)
        return
    if id(thing) in seen:
        return
    seen.add(id(thing))
    yield type(thing).__name__
    if isinstance(thing, ModuleType | BuiltinFunctionType):
        yield thing.__name__
    elif inspect.isclass(thing) or inspect.isfunction(thing):
        yield from (
            [f"{thing.__module__}:{thing.__qualname__}"] if is_importable(thing) else _code(thing, seen)
        )
    elif isinstance(thing, torch.Tensor | np.ndarray):
        array = np.ascontiguousarray(
            thing.detach().cpu().numpy() if isinstance(thing, torch.Tensor) else thing
        )
        yield f"{array.dtype} {array.shape} {sha256(array.tobytes()).hexdigest()}"
    else:
        yield from _contents(thing, seen)


def _code(thing: Any, seen: set[int]) -> Iterator[str]:
    """A function or class by its code."""
    if isinstance(thing, FunctionType):
        cells = list(inspect.getclosurevars(thing).nonlocals.values())
        used = {n: thing.__globals__[n] for n in _names(thing.__code__) if n in thing.__globals__}
        parts: list[Any] = [
            thing.__code__,
            thing.__defaults__,
            thing.__kwdefaults__,
            cells,
            used,
            vars(thing),
        ]
    else:
        own = {k: v for k, v in vars(thing).items() if k not in _MADE and not _is_generated(thing, k)}
        annotations = {k: str(v) for k, v in own.pop("__annotations__", {}).items()}
        parts = [thing.__name__, thing.__bases__, annotations, own]
    yield from described(parts, seen)


def _is_generated(cls: type, name: str) -> bool:
    return name == "__init__" and "__dataclass_fields__" in vars(cls)


def _names(code: CodeType) -> Iterator[str]:
    """Every global name that a function and the functions inside it use."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _contents(thing: Any, seen: set[int]) -> Iterator[str]:
    """Anything that is made of other things; what cannot be looked into is never the same twice."""
    parts: Any
    if isinstance(thing, CodeType):
        parts = [thing.co_code, thing.co_names, thing.co_varnames, list(thing.co_consts)]
    elif isinstance(thing, Mapping):
        parts = [p for pair in thing.items() for p in pair]
    elif isinstance(thing, set | frozenset):
        parts = sorted(map(str, thing))
    elif isinstance(thing, list | tuple):
        parts = list(thing)
    elif isinstance(thing, staticmethod | classmethod | MethodType):
        parts = [thing.__func__]
    elif isinstance(thing, property):
        parts = [thing.fget]
    elif hasattr(thing, "__dict__"):
        parts = [type(thing), vars(thing)]
    else:
        parts = [str(thing) if type(thing).__module__ in ("typing", "torch") else uuid.uuid4().hex]
    yield str(len(parts))
    for part in parts:
        yield from described(part, seen)
