"""The networks of the workloads, in torch, with the weights that every side starts from.

Knows torch.nn. Knows nothing of federated learning. `build` seeds torch, so two processes with the same
version of torch start from the same weights; the linear net starts from zero.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def build(net: str, channels_last: bool = False) -> nn.Module:
    """A fresh network named as in `Work.net`."""
    torch.manual_seed(0)
    model = {"linear": linear, "cnn": cnn, "resnet18": ResNet18}[net]()
    return model.to(memory_format=torch.channels_last) if channels_last else model


def linear() -> nn.Module:
    model = nn.Linear(30, 30)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def cnn() -> nn.Module:
    """The 28x28 CNN of McMahan et al. 2017: 1,663,370 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(inplace=True), nn.Linear(512, 10),
    )  # fmt: skip


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(2, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(2, after)
        self.shortcut = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(2, after)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu_(self.norm1(self.conv1(x)))
        return torch.relu_(self.norm2(self.conv2(out)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for 32x32 images: 3x3 stem without pooling, GroupNorm with 2 groups."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.GroupNorm(2, 64), nn.ReLU(inplace=True)
        )
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.stages = nn.Sequential(*(nn.Sequential(Block(a, b, s), Block(b, b, 1)) for a, b, s in widths))
        self.head = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))
