"""What nets share: chains of named layers, initial weights of convolutions, and checks of options.

Knows layers and options. Does not know any one net.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

from torch import nn

from motet.errors import MotetError
from motet.text import nearest

Shape = tuple[int, ...]
STEMS = ("cifar", "imagenet")


class NetError(MotetError, ValueError):
    """A network that cannot be built as given."""


def chain(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def kaiming(net: nn.Module, mode: Literal["fan_in", "fan_out"]) -> None:
    """He et al. 2015 for every convolution: activations (fan_in) or gradients (fan_out) keep their variance."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode=mode, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def refuse(net: str, wrong: Sequence[str]) -> None:
    """Raise all that is wrong with the shape and options of a net, at once."""
    if wrong:
        raise NetError("\n".join(f"net {net!r} {w}" for w in wrong))


def unknown(option: str, value: str, known: Sequence[str]) -> list[str]:
    """A complaint if an option has none of its allowed values."""
    if value in known:
        return []
    words = " or ".join(map(repr, known))
    return [f"has {option} {value!r}; expected {words}.\nhint: {nearest(value, known)}"]


def too_few(**counts: int) -> list[str]:
    """A complaint for each option that is less than 1."""
    return [f"has {k} {v}; expected 1 or more.\nhint: {k}=1 is the least" for k, v in counts.items() if v < 1]


def no_image(shape: Shape) -> list[str]:
    if len(shape) == 3:
        return []
    return [
        f"needs images of shape (channels, height, width); one example has shape {shape}.\n"
        "hint: linear, logistic and mlp take any shape"
    ]


def no_codes(shape: Shape, symbols: int) -> list[str]:
    """Complaints of a net for rows of codes, of which there are `symbols`."""
    wrong = []
    if symbols < 0:
        wrong += [f"has symbols {symbols}; expected 0 or more.\nhint: 0 means as many as outputs"]
    if len(shape) != 1:
        wrong += [
            f"needs rows of codes, of shape (length,); one example has shape {shape}.\n"
            "hint: use vit, cnn or resnet18 for images"
        ]
    return wrong


def wrong_width(width: float) -> list[str]:
    if 0 < width <= 16:
        return []
    return [f"has width {width}; expected more than 0, 16 at most.\nhint: 1.0, 0.75, 0.5 or 0.25"]


def scaled(channels: Sequence[int], width: float) -> list[int]:
    """Numbers of channels times a factor, rounded to multiples of 8; unchanged if the factor is out of range."""
    return [max(8, round(many * width / 8) * 8) if 0 < width <= 16 else many for many in channels]
