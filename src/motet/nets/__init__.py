"""Networks by name: every public function of this package whose first parameters are `shape` and `outputs`.

The last layer of a net is linear and called `head`, its parameters come last, and a net draws no random
numbers while it runs; tests/nets/test_every_net.py holds every net to that.
Knows how nets are found, initialised and checked. Does not know their layers, data, losses or clients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

from motet.client import seed_of
from motet.client.losses import Kind
from motet.client.thread_net import find_last_run, mixes_rows, why_not_stacked
from motet.nets import pretrained
from motet.nets.given import builder
from motet.nets.layers import NetError, Shape
from motet.nets.normalisation import measure
from motet.settings import checked, fields_of, functions_in, import_named
from motet.text import nearest

__all__ = ["NetError", "Shape", "build", "default_net", "names", "source"]


def names() -> list[str]:
    """The built-in nets."""
    return sorted(_found())


def source(name: str) -> Callable[..., Any]:
    """The function that builds a net; its parameters with a default are its options."""
    if pretrained.is_pretrained(name):
        return pretrained.source(name)
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
    if name == "logistic" and kind != "classes":
        target = "a number" if kind == "numbers" else "a time of survival"
        raise NetError(
            f"net 'logistic' predicts classes; the target is {target}.\nhint: use regression or mlp"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "net", name))
        net = f(shape, outputs, **given)
        _check_output(net, name, shape, outputs)
        if getattr(net, "statistics", None) == "shared":
            measure(net, shape)
        if not why_not_stacked(net) and mixes_rows(net, shape):
            net.one_by_one = "what the network says of a row depends on the other rows of its batch"
    return net  # type: ignore[no-any-return]


def default_net(kind: Kind, shape: Shape, text: str = "", few: bool = False) -> str:
    """A net that suits the examples; `text` says that they are codes of `symbols` or `words` of a text, `few` that the
    method wants few weights."""
    if text:
        return "transformer" if text == "words" else "lstm"
    if len(shape) == 3 and not few:
        return "mlp" if max(shape[1:]) <= 16 else "cnn"
    return "logistic" if kind == "classes" else "regression"


@cache
def _found() -> dict[str, Callable[..., Any]]:
    return functions_in(__name__, __path__, ["shape", "outputs"])


def tensor_of(given: Any, name: str) -> torch.Tensor:
    """What a network returned, if that is one tensor."""
    if isinstance(given, torch.Tensor):
        return given
    raise NetError(
        f"net {name!r} returns a {type(given).__name__}; expected one tensor of shape (examples, outputs).\n"
        "hint: let `forward` return the scores alone, or the sum of those of several heads"
    )


def _check_output(net: Any, name: str, shape: Shape, outputs: int) -> None:
    """Two blank examples must give two rows of scores. BatchNorm's statistics stay as they are."""
    if not isinstance(net, nn.Module):
        raise NetError(
            f"net {name!r} is a {type(net).__name__}; expected a torch.nn.Module.\n"
            "hint: its function must return the network"
        )
    training = net.training
    try:
        with torch.no_grad(), find_last_run(net, outputs) as scores:
            scores.append(tensor_of(net.eval()(torch.zeros(2, *shape)), name))
    except NetError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as e:
        raise NetError(
            f"net {name!r} does not take examples of shape {shape}: {e}\n"
            "hint: an example is a row (features,) or an image (channels, height, width)"
        ) from e
    net.train(training)
    got = tuple(scores[0].shape)
    if got != (2, outputs):
        raise NetError(
            f"net {name!r} turns 2 examples into shape {got}; expected {(2, outputs)}.\n"
            "hint: its last layer must have `outputs` units"
        )
