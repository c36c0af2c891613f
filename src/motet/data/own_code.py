"""Functions and classes of the user's own, and the names by which a recipe refers to them.

What a module holds is named `module:name`, which any process can import. What was defined in a notebook or a
script is named `session:NAME-DIGEST` and is known to this process alone. Changed code has another digest
(code_digest.py), so another name, and so its runs have another identity.
Knows Python objects. Does not know what they are for.
"""

from __future__ import annotations

import sys
from typing import Any

from motet.data.code_digest import digest
from motet.settings import SESSION, known_here
from motet.trusted_code import trust_names


def name_of(thing: Any) -> str:
    """The name of a function or class in a recipe. Whoever passed the object says that it may run."""
    if is_importable(thing) and "." not in thing.__qualname__:
        trust_names([name := f"{thing.__module__}:{thing.__qualname__}"])
        return name
    return register(thing, getattr(thing, "__name__", type(thing).__name__), thing)


def register(content: Any, label: str, thing: Any) -> str:
    """Make `thing` known in this process under a name that depends on `content`."""
    name = f"{SESSION}{label.strip('<>')}-{digest(content)[:8]}"
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
