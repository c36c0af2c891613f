"""Networks given as Python objects: a class or function that builds one, or a module as it is.

Knows signatures and modules. Does not know names, data or clients.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from torch import nn

from motet.nets.layers import NetError, Shape

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def builder(found: Callable[..., Any]) -> Callable[..., Any]:
    """What builds a network from (shape, outputs): `found` called with both, or with nothing if it takes nothing.

    Its parameters with a default stay options.
    """
    wanted = [p.name for p in _parameters(found) if p.default is p.empty and p.kind in _POSITIONAL]
    if len(wanted) not in (0, 2):
        raise NetError(
            f"net {found.__name__!r} needs {', '.join(wanted)}; expected two arguments, (shape, outputs), or none.\n"
            f"hint: net=lambda shape, outputs: {found.__name__}(...)"
        )

    def build(shape: Shape, outputs: int, **options: Any) -> Any:
        try:
            return found(*(shape, outputs)[: len(wanted)], **options)
        except TypeError as e:
            raise NetError(
                f"net {found.__name__!r} cannot be built from (shape, outputs) = ({shape}, {outputs}): {e}.\n"
                "hint: shape is the shape of one example, a tuple; a module that is built already will do, too"
            ) from e

    update_wrapper(build, found.__init__ if inspect.isclass(found) else found)
    build.__signature__ = inspect.Signature(_parameters(found))  # type: ignore[attr-defined]
    return build


def copies_of(net: nn.Module) -> Callable[..., Any]:
    """What gives copies of a network, with the weights that it has now."""
    net = copy.deepcopy(net)

    def module(shape: Shape, outputs: int) -> nn.Module:
        return copy.deepcopy(net)

    return module


def _parameters(found: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(found).parameters.values())
