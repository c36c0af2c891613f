"""Settings that a method does not go by in the mode that it is in: they are refused, all at once.

Knows settings by name. Does not know any method.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from motet.core import MethodUnfit


def refuse_unused(method: Any, unused: Mapping[str, str]) -> None:
    """Raise MethodUnfit that names every setting that is not at its default, with the reason why it has no effect.
    `agent.gamma` is the setting gamma of the setting agent."""
    given = {name: why for name, why in unused.items() if value(method, name) != value(type(method), name)}
    if given:
        lines = [
            f"method.{name} is {value(method, name)!r} and has no effect: {why}"
            for name, why in given.items()
        ]
        hints = " ".join(f"method.{name}={value(type(method), name)}" for name in given)
        raise MethodUnfit("\n".join(lines) + f"\nhint: leave out what has no effect, or set {hints}")


def value(thing: Any, name: str) -> Any:
    for part in name.split("."):
        thing = getattr(thing, part)
    return list(thing) if isinstance(thing, tuple) else thing  # a recipe has lists
