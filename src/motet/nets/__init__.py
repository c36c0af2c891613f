"""Networks by name: every public function of this package whose first parameters are `shape` and `outputs`.

Knows how nets are found, started and tried out. Does not know their layers, data, losses or clients. The
last layer is called `head` and is always the last of the parameters, and nothing here draws while it runs.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from inspect import isfunction, signature
from typing import Any

import torch
from torch import nn

from motet.client import seed_of
from motet.client.task import Kind
from motet.nets import normalisation as norms
from motet.nets.given import builder
from motet.nets.layers import NetError, Shape
from motet.settings import checked, fields_of, import_named
from motet.text import nearest

__all__ = ["NetError", "Shape", "build", "default_net", "names", "source"]


def names() -> list[str]:
    """The built-in nets."""
    return sorted(_found())


def source(name: str) -> Callable[..., Any]:
    """The function that builds a net; its parameters with a default are its options."""
    if ":" in name:
        return builder(import_named(name, NetError))
    if name not in _found():
        raise NetError(f"there is no net {name!r}.\nhint: {nearest(name, names())}; or module:function")
    return _found()[name]


def build(
    name: str, options: dict[str, Any] | None, shape: Shape, outputs: int, kind: Kind, seed: int
) -> nn.Module:
    """A net with weights that depend on the seed alone; torch's own generator is left as it was."""
    f, shape = source(name), tuple(shape)
    values, wrong = checked(options or {}, fields_of(f), "net", name)
    if wrong:
        raise NetError("\n".join(wrong))
    given = {k: values[k] for k in options or {}}
    if name == "logistic" and kind == "numbers":
        raise NetError("net 'logistic' tells classes apart; the target is a number.\nhint: use linear or mlp")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "net", name))
        net = f(shape, outputs, **given)
        _try_out(net, name, shape, outputs)
        if getattr(net, "statistics", None) == "shared":
            norms.measure(net, shape)
    return net  # type: ignore[no-any-return]


def default_net(kind: Kind, shape: Shape, symbols: bool = False) -> str:
    """A net that suits the examples; whether they are symbols of a text, their shape does not tell."""
    if symbols:
        return "lstm"
    if len(shape) == 3:
        return "mlp" if max(shape[1:]) <= 16 else "cnn"
    return "logistic" if kind == "classes" else "linear"


@cache
def _found() -> dict[str, Callable[..., Any]]:
    files = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    ours = [
        f for file in files for f in vars(file).values() if isfunction(f) and f.__module__ == file.__name__
    ]
    nets = [f for f in ours if list(signature(f).parameters)[:2] == ["shape", "outputs"]]
    return {f.__name__: f for f in nets if not f.__name__.startswith("_")}


def _try_out(net: Any, name: str, shape: Shape, outputs: int) -> None:
    """Two blank examples must give two rows of scores; statistics of batches stay as they are."""
    if not isinstance(net, nn.Module):
        raise NetError(f"net {name!r} is a {type(net).__name__}; expected a torch.nn.Module")
    training = net.training
    try:
        with torch.no_grad():
            got = tuple(net.eval()(torch.zeros(2, *shape)).shape)
    except (RuntimeError, ValueError) as e:
        raise NetError(f"net {name!r} does not take examples of shape {shape}: {e}") from e
    net.train(training)
    if got != (2, outputs):
        raise NetError(f"net {name!r} turns 2 examples into shape {got}; expected {(2, outputs)}")
