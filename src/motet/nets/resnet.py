"""Residual networks (He et al. 2016). Knows layers for images. Does not know data or training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from motet.nets import normalisation
from motet.nets.layers import STEMS, Shape, chain, kaiming, no_image, refuse, scaled, unknown, wrong_width
from motet.nets.normalisation import Norm

_WIDTHS = (64, 128, 256, 512)


def resnet18(
    shape: Shape,
    outputs: int,
    *,
    norm: str = "group",  # group (GroupNorm) | batch (BatchNorm)
    groups: int = 2,  # of each GroupNorm; divides 64 where width is 1
    statistics: str = "averaged",  # BatchNorm's: averaged | local | shared (measured once, then fixed)
    stem: str = "cifar",  # first layers: cifar (3x3, stride 1) | imagenet (7x7, stride 2, max-pooling)
    width: float = 1.0,  # factor of all channels, which are rounded to multiples of 8
) -> nn.Module:
    """He et al. 2016, 18 layers. PAGE uses stem=imagenet, also for images of 32 x 32."""
    return _resnet("resnet18", (2, 2, 2, 2), shape, outputs, norm, groups, statistics, stem, width)


def resnet34(
    shape: Shape,
    outputs: int,
    *,
    norm: str = "group",  # group (GroupNorm) | batch (BatchNorm)
    groups: int = 2,  # of each GroupNorm; divides 64 where width is 1
    statistics: str = "averaged",  # BatchNorm's: averaged | local | shared (measured once, then fixed)
    stem: str = "cifar",  # first layers: cifar (3x3, stride 1) | imagenet (7x7, stride 2, max-pooling)
    width: float = 1.0,  # factor of all channels, which are rounded to multiples of 8
) -> nn.Module:
    """He et al. 2016, 34 layers."""
    return _resnet("resnet34", (3, 4, 6, 3), shape, outputs, norm, groups, statistics, stem, width)


def _resnet(
    name: str,
    depths: tuple[int, ...],
    shape: Shape,
    outputs: int,
    norm: str,
    groups: int,
    statistics: str,
    stem: str,
    width: float,
) -> nn.Module:
    wrong, widths = (
        no_image(shape) + unknown("stem", stem, STEMS) + wrong_width(width),
        scaled(_WIDTHS, width),
    )
    refuse(name, wrong + normalisation.wrong_norm(norm, groups, statistics, widths))
    net = ResNet(shape[0], outputs, depths, widths, normalisation.norm_of(norm, groups), stem == "imagenet")
    kaiming(net, "fan_out")
    normalisation.declare(net, norm, statistics)
    return net


class ResNet(nn.Module):
    """Four stages of blocks with 64, 128, 256 and 512 channels, or a factor of these; each but the first halves
    the image."""

    def __init__(
        self, channels: int, outputs: int, depths: tuple[int, ...], widths: list[int], norm: Norm, large: bool
    ) -> None:
        super().__init__()
        kernel, stride = (7, 2) if large else (3, 1)
        conv = nn.Conv2d(channels, widths[0], kernel, stride, kernel // 2, bias=False)
        pool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        self.stem = chain(conv=conv, norm=norm(widths[0]), relu=nn.ReLU(inplace=True), pool=pool)
        before = (widths[0], *widths)
        self.stages = nn.Sequential(
            *(_stage(a, b, depth, norm) for a, b, depth in zip(before, widths, depths, strict=False))
        )
        self.head = nn.Linear(widths[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.stages(self.stem(x))
        return self.head(features.mean((2, 3)))  # type: ignore[no-any-return]


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = norm(after)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.short = chain(conv=nn.Conv2d(before, after, 1, stride, bias=False), norm=norm(after))

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm2(self.conv2(torch.relu_(self.norm1(self.conv1(x)))))
        return torch.relu_(z + self.short(x))


def _stage(before: int, after: int, depth: int, norm: Norm) -> nn.Sequential:
    first = ResidualBlock(before, after, 1 if before == after else 2, norm)
    return nn.Sequential(first, *(ResidualBlock(after, after, 1, norm) for _ in range(depth - 1)))
