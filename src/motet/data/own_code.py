"""Functions and classes of the user's own, and the names by which a recipe refers to them.

What a module holds is named `module:name`, which any process can import. What was defined in a notebook or a
script is named `session:NAME-DIGEST` and is known to this process alone. The digest is made of the code, of
what the code refers to and of the values it closes over: changed code has another name, and so its runs have
another identity.
Knows Python objects. Does not know what they are for.
"""

from __future__ import annotations

import dis
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
    if is_importable(thing) and "." not in thing.__qualname__:
        return f"{thing.__module__}:{thing.__qualname__}"
    return register(thing, getattr(thing, "__name__", type(thing).__name__), thing)


def register(content: Any, label: str, thing: Any) -> str:
    """Make `thing` known in this process under a name that depends on `content`."""
    digest = sha256("\n".join(described(content, {})).encode()).hexdigest()[:8]
    name = f"{SESSION}{label.strip('<>')}-{digest}"
    known_here[name] = thing
    return name


def is_importable(thing: Any) -> bool:
    """Whether another process finds it under its module and name."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", ".")
    if module in (None, "__main__"):
        return False
    found = sys.modules.get(str(module))
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is thing


def described(thing: Any, seen: dict[int, Any]) -> Iterator[str]:
    """Words that change when the thing would do something else; `seen` keeps what was described alive."""
    if isinstance(thing, _PLAIN):
        yield repr(thing)
        return
    if id(thing) in seen:
        yield f"seen {list(seen).index(id(thing))}"
        return
    seen[id(thing)] = thing
    yield type(thing).__name__
    if isinstance(thing, ModuleType | BuiltinFunctionType):
        yield thing.__name__
    elif inspect.isclass(thing) or inspect.isfunction(thing):
        yield from (
            [f"{thing.__module__}:{thing.__qualname__}"] if is_importable(thing) else _code(thing, seen)
        )
    elif isinstance(thing, torch.Tensor | np.ndarray):
        held = thing.detach().cpu().numpy() if isinstance(thing, torch.Tensor) else thing
        array = np.ascontiguousarray(held)
        yield f"{array.dtype} {array.shape} {sha256(array.tobytes()).hexdigest()}"
    else:
        parts = _parts(thing)
        yield str(len(parts))
        for part in parts:
            yield from described(part, seen)


def _code(thing: Any, seen: dict[int, Any]) -> Iterator[str]:
    """A function or class by its code, and by what it refers to."""
    if isinstance(thing, FunctionType):
        cells = list(inspect.getclosurevars(thing).nonlocals.values())
        used = {n: thing.__globals__[n] for n in _global_names(thing.__code__) if n in thing.__globals__}
        parts: list[Any] = [
            thing.__code__,
            thing.__defaults__,
            thing.__kwdefaults__,
            cells,
            used,
            vars(thing),
        ]
    else:
        generated = _MADE | ({"__init__"} if "__dataclass_fields__" in vars(thing) else set())
        own = {k: v for k, v in vars(thing).items() if k not in generated}
        annotations = {k: str(v) for k, v in own.pop("__annotations__", {}).items()}
        parts = [thing.__name__, thing.__bases__, annotations, own]
    yield from described(parts, seen)


def _global_names(code: CodeType) -> list[str]:
    """Every global name that a function, and the functions inside it, use."""
    found = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [n for c in code.co_consts if isinstance(c, CodeType) for n in _global_names(c)]
    return sorted({*found, *inner})


def _parts(thing: Any) -> list[Any]:
    """What a thing is made of; one that cannot be looked into is never the same twice."""
    if isinstance(thing, CodeType):
        return [thing.co_code, thing.co_names, thing.co_varnames, list(thing.co_consts)]
    if isinstance(thing, Mapping):
        return [p for pair in thing.items() for p in pair]
    if isinstance(thing, set | frozenset):
        return sorted(map(str, thing))
    if isinstance(thing, list | tuple):
        return list(thing)
    if isinstance(thing, staticmethod | classmethod | MethodType):
        return [thing.__func__, getattr(thing, "__self__", None)]
    if isinstance(thing, property):
        return [thing.fget, thing.fset]
    try:  # as it would be pickled; nothing is unpickled
        made = thing.__reduce_ex__(4)
    except (TypeError, ValueError, AttributeError, NotImplementedError, RuntimeError):
        return [uuid.uuid4().hex]
    return [made] if isinstance(made, str) else [list(p) if isinstance(p, Iterator) else p for p in made]
