"""Networks by name. A net is a function (shape, outputs, *, options) in this file; its name is the recipe's.

Knows shapes of examples and layers. Does not know data, losses or clients. The last layer is always
the last of the parameters, and nothing here has batch statistics or draws while it runs.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from inspect import isfunction, signature
from typing import Any

import torch
from torch import Tensor, nn

from motet.local import seed_of
from motet.local.task import Kind
from motet.tasks.choices import complaints, fetch, nearest, options_of

Shape = tuple[int, ...]


class NetError(ValueError):
    """A network that cannot be built as asked."""


def names() -> list[str]:
    """The built-in nets."""
    here = [f for f in globals().values() if isfunction(f) and f.__module__ == __name__]
    return sorted(f.__name__ for f in here if list(signature(f).parameters)[:2] == ["shape", "outputs"])


def source(name: str) -> Callable[..., Any]:
    """The function that builds a net; its parameters with a default are its options."""
    if ":" in name:
        return fetch(name, NetError)
    if name not in names():
        raise NetError(f"there is no net {name!r}.\nhint: {nearest(name, names())}; or module:function")
    return globals()[name]  # type: ignore[no-any-return]


def build(
    name: str, options: dict[str, Any] | None, shape: Shape, outputs: int, kind: Kind, seed: int
) -> nn.Module:
    """A net with weights that depend on the seed alone; torch's own generator is left as it was."""
    f, given, shape = source(name), dict(options or {}), tuple(shape)
    if wrong := complaints(given, options_of(f), f"net {name!r}"):
        raise NetError("\n".join(wrong))
    if name == "logistic" and kind == "numbers":
        raise NetError("net 'logistic' tells classes apart; the target is a number.\nhint: use linear or mlp")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "net", name))
        net = f(shape, outputs, **given)
        _try_out(net, name, shape, outputs)
    return net  # type: ignore[no-any-return]


def default_net(kind: Kind, shape: Shape) -> str:
    """A net that suits the examples."""
    if len(shape) == 3:
        return "mlp" if max(shape[1:]) <= 16 else "cnn"
    return "logistic" if kind == "classes" else "linear"


def linear(shape: Shape, outputs: int) -> nn.Module:
    """One linear layer."""
    return _chain(flat=nn.Flatten(), head=nn.Linear(math.prod(shape), outputs))


def logistic(shape: Shape, outputs: int) -> nn.Module:
    """One linear layer that starts from zero."""
    head = nn.Linear(math.prod(shape), outputs)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return _chain(flat=nn.Flatten(), head=head)


def mlp(
    shape: Shape,
    outputs: int,
    *,
    hidden: tuple[int, ...] = (64,),  # widths of the hidden layers
) -> nn.Module:
    """Linear layers with ReLU in between."""
    layers: dict[str, nn.Module] = {"flat": nn.Flatten()}
    wide = math.prod(shape)
    for i, width in enumerate(hidden, 1):
        layers |= {f"fc{i}": nn.Linear(wide, width), f"relu{i}": nn.ReLU()}
        wide = width
    return _chain(**layers, head=nn.Linear(wide, outputs))


def cnn(
    shape: Shape,
    outputs: int,
    *,
    channels: tuple[int, ...] = (32, 64),  # of the convolutions; each halves the image
    hidden: int = 512,  # width of the layer before the last
    kernel: int = 5,  # width of a convolution, an odd number
) -> nn.Module:
    """McMahan et al. 2017: convolution, ReLU and max-pooling by two, twice; then two linear layers."""
    colours, high, wide = _image("cnn", shape)
    if kernel % 2 == 0 or kernel < 1:
        raise NetError(f"net 'cnn': kernel is {kernel}; expected an odd number")
    if min(high, wide) < 2 ** len(channels):
        raise NetError(
            f"net 'cnn' halves images {len(channels)} times, and these are {high} x {wide}.\n"
            "hint: give fewer channels, or use mlp"
        )
    layers: dict[str, nn.Module] = {}
    for i, many in enumerate(channels, 1):
        layers |= {
            f"conv{i}": nn.Conv2d(colours, many, kernel, padding=kernel // 2),
            f"relu{i}": nn.ReLU(inplace=True),
        }
        layers |= {f"pool{i}": nn.MaxPool2d(2)}
        colours, high, wide = many, high // 2, wide // 2
    full = nn.Linear(colours * high * wide, hidden)
    return _chain(
        **layers, flat=nn.Flatten(), fc=full, relu=nn.ReLU(inplace=True), head=nn.Linear(hidden, outputs)
    )


def resnet18(
    shape: Shape,
    outputs: int,
    *,
    groups: int = 2,  # of each GroupNorm; divides 64
    stem: str = "cifar",  # cifar (3x3, stride 1) | imagenet (7x7, stride 2, max-pooling: a quarter the width)
) -> nn.Module:
    """He et al. 2016, with GroupNorm in place of BatchNorm."""
    colours, _, _ = _image("resnet18", shape)
    if stem not in ("cifar", "imagenet"):
        raise NetError(f"net 'resnet18': stem is {stem!r}; expected 'cifar' or 'imagenet'")
    if groups < 1 or 64 % groups:
        raise NetError(f"net 'resnet18': groups is {groups}; expected a divisor of 64")
    net = ResNet18(colours, outputs, groups, stem == "imagenet")
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


class ResNet18(nn.Module):
    """Four stages of two blocks with 64, 128, 256 and 512 channels."""

    def __init__(self, colours: int, outputs: int, groups: int, large: bool) -> None:
        super().__init__()
        kernel, stride = (7, 2) if large else (3, 1)
        conv = nn.Conv2d(colours, 64, kernel, stride, kernel // 2, bias=False)
        pool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        self.stem = _chain(conv=conv, norm=nn.GroupNorm(groups, 64), relu=nn.ReLU(inplace=True), pool=pool)
        widths = (64, 64, 128, 256, 512)
        stages = [
            nn.Sequential(Block(a, b, 1 if i == 0 else 2, groups), Block(b, b, 1, groups))
            for i, (a, b) in enumerate(zip(widths, widths[1:], strict=False))
        ]
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(512, outputs)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.stages(self.stem(x))
        return self.head(features.mean((2, 3)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Two 3x3 convolutions beside a short cut."""

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups, after)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.short = _chain(
                conv=nn.Conv2d(before, after, 1, stride, bias=False), norm=nn.GroupNorm(groups, after)
            )

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm2(self.conv2(torch.relu_(self.norm1(self.conv1(x)))))
        return torch.relu_(z + self.short(x))


def _chain(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def _image(net: str, shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise NetError(
            f"net {net!r} needs images of shape (channels, height, width); one example has shape {shape}.\n"
            "hint: linear, logistic and mlp take any shape"
        )
    return shape[0], shape[1], shape[2]


def _try_out(net: Any, name: str, shape: Shape, outputs: int) -> None:
    """Two blank examples must give two rows of scores."""
    if not isinstance(net, nn.Module):
        raise NetError(f"net {name!r} is a {type(net).__name__}; expected a torch.nn.Module")
    try:
        with torch.no_grad():
            got = tuple(net(torch.zeros(2, *shape)).shape)
    except (RuntimeError, ValueError) as e:
        raise NetError(f"net {name!r} does not take examples of shape {shape}: {e}") from e
    if got != (2, outputs):
        raise NetError(f"net {name!r} turns 2 examples into shape {got}; expected {(2, outputs)}")
