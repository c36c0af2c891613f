"""Nets without normalisation: one linear layer, several, and a small convolutional one.

Knows shapes of examples and layers. Does not know data, losses or clients.
"""

from __future__ import annotations

import math

from torch import nn

from motet.nets.layers import Shape, chain, no_image, refuse, too_few


def linear(shape: Shape, outputs: int) -> nn.Module:
    """One linear layer."""
    return chain(flat=nn.Flatten(), head=nn.Linear(math.prod(shape), outputs))


def logistic(shape: Shape, outputs: int) -> nn.Module:
    """One linear layer whose weights start at zero."""
    head = nn.Linear(math.prod(shape), outputs)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return chain(flat=nn.Flatten(), head=head)


def regression(shape: Shape, outputs: int) -> nn.Module:
    """One linear layer whose weights start at zero, for numbers: what few rows do not decide stays zero, as in
    ridge regression."""
    return logistic(shape, outputs)


def mlp(
    shape: Shape,
    outputs: int,
    *,
    hidden: tuple[int, ...] = (64,),  # units of each hidden layer
) -> nn.Module:
    """Linear layers with ReLU in between."""
    refuse("mlp", too_few(hidden=min(hidden, default=1)))
    layers: dict[str, nn.Module] = {"flat": nn.Flatten()}
    before = math.prod(shape)
    for i, units in enumerate(hidden, 1):
        layers |= {f"fc{i}": nn.Linear(before, units), f"relu{i}": nn.ReLU()}
        before = units
    return chain(**layers, head=nn.Linear(before, outputs))


def cnn(
    shape: Shape,
    outputs: int,
    *,
    channels: tuple[int, ...] = (32, 64),  # of each convolution; a max-pooling after each halves the image
    hidden: int = 512,  # units of the hidden linear layer
    kernel: int = 5,  # size of a convolution's kernel, an odd number
) -> nn.Module:
    """McMahan et al. 2017: convolution, ReLU and max-pooling by two, twice; then two linear layers."""
    refuse("cnn", _wrong_cnn(shape, channels, hidden, kernel))
    depth, height, width = shape
    layers: dict[str, nn.Module] = {}
    for i, many in enumerate(channels, 1):
        layers |= {
            f"conv{i}": nn.Conv2d(depth, many, kernel, padding=kernel // 2),
            f"relu{i}": nn.ReLU(inplace=True),
            f"pool{i}": nn.MaxPool2d(2),
        }
        depth, height, width = many, height // 2, width // 2
    full = nn.Linear(depth * height * width, hidden)
    return chain(
        **layers, flat=nn.Flatten(), fc=full, relu=nn.ReLU(inplace=True), head=nn.Linear(hidden, outputs)
    )


def _wrong_cnn(shape: Shape, channels: tuple[int, ...], hidden: int, kernel: int) -> list[str]:
    wrong = no_image(shape) + too_few(channels=min(channels, default=1), hidden=hidden)
    if kernel % 2 == 0 or kernel < 1:
        wrong += [f"has kernel {kernel}; expected an odd number.\nhint: kernel=5, or kernel=3"]
    if len(shape) == 3 and min(shape[1:]) < 2 ** len(channels):
        wrong += [
            f"halves images {len(channels)} times, and these are {shape[1]} x {shape[2]}.\n"
            "hint: give fewer channels, or use mlp"
        ]
    return wrong
