"""A digest of code as Python runs it: it changes when the code would do something else.

Functions and classes of the user's own (outside of the standard library, site-packages and motet) count with
their instructions, constants, defaults, what they close over, and every global and attribute of their own modules
that they name. Code of others counts by its name. Line numbers, file names, comments and docstrings do not count,
and neither does the file on disk, which may be newer than what this process imported.
Knows Python objects. Does not know what they are for.
"""

from __future__ import annotations

import dis
import importlib
import inspect
import io
import re
import sys
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING
from functools import WRAPPER_ASSIGNMENTS
from hashlib import sha256
from importlib.util import find_spec
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from motet.trusted_code import is_own_file

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
_MADE = {  # entries of a class that Python writes
    "__module__", "__dict__", "__weakref__", "__doc__", "__qualname__", "__firstlineno__", "__static_attributes__",
    "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__parameters__", "_abc_impl",
    "__dataclass_fields__", "__dataclass_params__", "__match_args__",
}  # fmt: skip
_BY_DATACLASS = {"__init__", "__eq__", "__hash__", "__repr__", "__setattr__", "__delattr__", "__replace__"}
_EMPTY = (type(threading.Lock()), type(threading.RLock()), io.IOBase, weakref.ref)  # hold nothing that counts


def digest(*things: Any) -> str:
    """The same for things that do the same; a function or class is looked into, whoever wrote it."""
    found = _Description()
    for thing in things:
        if inspect.isclass(thing) or isinstance(thing, FunctionType):
            found.refer(thing)
        else:
            found.add(thing)
    return found.finish()


# ---- whose code ----


def is_own(thing: Any) -> bool:
    """Whether a function or class is the user's own. A decorator of others may stand around the user's function."""
    names = {getattr(thing, "__module__", None)}
    if isinstance(thing, FunctionType):
        names.add(thing.__globals__.get("__name__"))
    return any(is_own_module(name) for name in names)


def is_own_module(name: str | None) -> bool:
    """Whether a module is neither motet's, nor Python's, nor installed; code without a module is the user's."""
    if name is None or name == "__main__":
        return True
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None:  # built in, a namespace, or made in this process
        return name.partition(".")[0] not in sys.stdlib_module_names
    return is_own_file(str(file))


# ---- what code refers to ----


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _used(code: CodeType, known: Mapping[str, Any]) -> dict[str, Any]:
    """The globals that code uses by name; in place of a module of the user's own, the attributes that it uses."""
    steps = [i for c in _codes(code) for i in dis.get_instructions(c)]
    loaded = {i.argval for i in steps if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    words = {n for c in _codes(code) for n in c.co_names}
    found: dict[str, Any] = {n: known[n] for n in loaded if n in known}
    imports = {i.argval for i in steps if i.opname == "IMPORT_NAME"}
    found |= {m.__name__: m for m in _imported(imports, str(known.get("__package__") or ""))}
    for name, value in list(found.items()):
        if isinstance(value, ModuleType) and is_own_module(value.__name__):
            del found[name]
            found |= _attributes(name, value, words, set())
    return dict(sorted(found.items()))


def _attributes(name: str, module: ModuleType, words: set[str], seen: set[str]) -> dict[str, Any]:
    """Attributes of a module with one of these names, and of modules of the user's own in it."""
    seen.add(module.__name__)
    found: dict[str, Any] = {}
    for word in sorted(words & vars(module).keys()):
        value = vars(module)[word]
        if not (isinstance(value, ModuleType) and is_own_module(value.__name__)):
            found[f"{name}.{word}"] = value
        elif value.__name__ not in seen:
            found |= _attributes(f"{name}.{word}", value, words, seen)
    return found


def _imported(names: Iterable[str], package: str) -> Iterator[ModuleType]:
    """Modules of the user's own that a function imports when it runs."""
    for name in sorted(names):
        for full in sorted({name, f"{package}.{name}".strip(".")} - {""}):
            if full not in sys.modules and not _is_there(full):
                continue
            if is_own_module(full):
                yield importlib.import_module(full)


def _is_there(name: str) -> bool:
    """Whether a module of the user's own can be imported that was not yet."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None and bool(spec.origin) and is_own_file(str(spec.origin))


# ---- the description ----


class _Description:
    """Words that change when what they describe would do something else, as one hash."""

    def __init__(self) -> None:
        self.hash = sha256()
        self.numbers: dict[int, int] = {}  # of what was met, by id
        self.alive: list[Any] = []  # what was met, so that no id is given twice
        self.waiting: deque[Any] = deque()  # functions and classes that are still to be looked into

    def finish(self) -> str:
        while self.waiting:
            thing = self.waiting.popleft()
            for part in _function(thing) if isinstance(thing, FunctionType) else _class(thing):
                self.add(part)
        return self.hash.hexdigest()

    def say(self, *words: str) -> None:
        for word in words:
            data = word.encode(errors="surrogatepass")
            self.hash.update(b"%d:" % len(data) + data)

    def met(self, thing: Any) -> bool:
        """Write the thing's number; whether it was met before. So what refers to itself ends."""
        before = id(thing) in self.numbers
        if not before:
            self.numbers[id(thing)] = len(self.alive)
            self.alive.append(thing)
        self.say(f"#{self.numbers[id(thing)]}")
        return before

    def refer(self, thing: Any) -> None:
        if not self.met(thing):
            self.waiting.append(thing)

    def add(self, thing: Any) -> None:
        if isinstance(thing, _PLAIN):
            self.say(repr(thing))
            return
        self.say(type(thing).__name__)
        own = type(thing)
        if is_own(own) and not own.__module__.startswith(
            "_cython"
        ):  # a decorator that is a class, a dict or tuple of a class of its own
            self.refer(own)
        if isinstance(thing, ModuleType | BuiltinFunctionType):
            self.named(thing)
        elif inspect.isclass(thing) or isinstance(thing, FunctionType):
            self.code(thing)
        elif isinstance(thing, torch.Tensor) or (isinstance(thing, np.ndarray) and thing.dtype.kind != "O"):
            self.array(thing)
        elif isinstance(thing, tuple | CodeType) or not self.met(thing):
            parts = list(_parts(thing))
            self.say(str(len(parts)))
            for part in parts:
                self.add(part)

    def named(self, thing: Any) -> None:
        """A module or a function in C, by its name; a module of the user's own also by what it holds."""
        self.say(thing.__name__)
        if isinstance(thing, ModuleType) and is_own_module(thing.__name__) and not self.met(thing):
            for name, value in sorted(vars(thing).items()):
                if not name.startswith("__"):
                    self.say(name)
                    self.add(value)
        elif isinstance(thing, BuiltinFunctionType) and not isinstance(
            thing.__self__, ModuleType | type(None)
        ):
            self.add(thing.__self__)  # TABLE.get

    def code(self, thing: Any) -> None:
        if is_own(thing):
            self.refer(thing)
            return
        self.say(f"{thing.__module__}:{thing.__qualname__}")
        for inner in _cells(thing) if isinstance(thing, FunctionType) else ():
            if (inspect.isclass(inner) or isinstance(inner, FunctionType)) and is_own(inner):
                self.refer(inner)  # a decorator of others around the user's function

    def array(self, thing: Any) -> None:
        if isinstance(thing, torch.Tensor):
            flat = thing.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        else:
            flat = np.ascontiguousarray(thing)
        self.say(f"{thing.dtype} {tuple(thing.shape)} {sha256(flat.tobytes()).hexdigest()}")


def _function(thing: FunctionType) -> list[Any]:
    used = _used(thing.__code__, thing.__globals__)
    defaults = (thing.__defaults__, thing.__kwdefaults__)
    return [thing.__code__, defaults, _cells(thing), used, dict(sorted(vars(thing).items()))]


def _cells(thing: FunctionType) -> list[Any]:
    """What a function closes over."""
    found = []
    for cell in thing.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # still empty
            found.append(None)
    return found


def _class(thing: type) -> list[Any]:
    fields = vars(thing).get("__dataclass_fields__", {})
    made = {f.name: f.default_factory for f in fields.values() if f.default_factory is not MISSING}
    own = {k: v for k, v in vars(thing).items() if k not in _MADE and not (fields and _is_made(k, v))}
    hints = getattr(thing, "__annotations__", {}) if "__annotations__" in vars(thing) else {}
    typed = {k: _text(v) for k, v in hints.items()}
    return [thing.__name__, thing.__bases__, type(thing), typed, made, dict(sorted(own.items()))]


def _text(thing: Any) -> str:
    """As it is printed, but for addresses in memory."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


def _is_made(name: str, value: Any) -> bool:
    """Whether `dataclass` wrote this function of a class."""
    code = getattr(inspect.unwrap(value), "__code__", None) if callable(value) else None
    return name in _BY_DATACLASS and (code is None or code.co_filename == "<string>")


def _parts(thing: Any) -> Iterable[Any]:
    """What a thing is made of; one that cannot be looked into is never the same twice."""
    if isinstance(thing, CodeType):
        return _instructions(thing)
    if isinstance(thing, Mapping):
        return [p for pair in thing.items() for p in pair]
    if isinstance(thing, set | frozenset):
        return sorted(thing, key=_text)
    if isinstance(thing, list | tuple):
        return thing
    if isinstance(thing, np.ndarray):
        return [thing.shape, *thing.reshape(-1).tolist()]
    if isinstance(thing, staticmethod | classmethod | MethodType):
        return [thing.__func__, getattr(thing, "__self__", None)]
    if isinstance(thing, property):
        return [thing.fget, thing.fset, thing.fdel]
    if isinstance(thing, _EMPTY):
        return []
    if hasattr(thing, "__wrapped__"):  # say functools.cache
        inside = {k: v for k, v in vars(thing).items() if k not in (*WRAPPER_ASSIGNMENTS, "__wrapped__")}
        return [thing.__wrapped__, dict(sorted(inside.items()))]
    return _pickled(thing)


def _instructions(code: CodeType) -> list[Any]:
    """A code object without its docstring, names and places."""
    consts = list(code.co_consts)
    if consts and isinstance(consts[0], str) and not code.co_name.startswith("<"):
        consts[0] = None  # the docstring of a function, or the full name of a class
    shape = (code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return [code.co_code, getattr(code, "co_exceptiontable", b""), shape, names, consts]


def _pickled(thing: Any) -> list[Any]:
    """An object as it would be pickled; nothing is unpickled."""
    try:
        made = thing.__reduce_ex__(4)
    except Exception:  # noqa: BLE001 - a user's class may raise anything here
        return [uuid.uuid4().hex]
    return [made] if isinstance(made, str) else [list(p) if isinstance(p, Iterator) else p for p in made]
