"""What a round of the published settings costs on one core: `python -m experiments.page.cost`.

Times a few training steps of each published network in processor seconds, and multiplies: 100 clients, 20 epochs of
their training examples, FedAvg. Knows networks and sizes. Does not know methods: Ditto trains twice as much, pFedMe
five times as much.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from motet.nets.lstm import lstm
from motet.nets.resnet import resnet18

CLIENTS, EPOCHS, ROUNDS, STEPS, DAY = 100, 20, 1000, 4, 86_400


@dataclass(frozen=True)
class Published:
    """A network of Table 1, its batch, and a client's training examples."""

    name: str
    net: nn.Module
    batch: torch.Tensor
    examples: int

    def rate(self) -> float:
        """Training examples a processor second."""
        y = torch.zeros(len(self.batch), dtype=torch.long)
        began = 0.0
        for step in range(STEPS + 1):  # the first one is not counted
            began = began if step != 1 else time.process_time()
            F.cross_entropy(self.net(self.batch), y).backward()
        return STEPS * len(self.batch) / (time.process_time() - began)


def images(batch: int, side: int) -> torch.Tensor:
    return torch.randn(batch, 3, side, side).to(memory_format=torch.channels_last)


def published() -> list[Published]:
    last = torch.channels_last
    return [
        Published(
            "CIFAR-100",
            resnet18((3, 32, 32), 100, stem="imagenet").to(memory_format=last),
            images(32, 32),
            350,
        ),
        Published(
            "Tiny-ImageNet",
            resnet18((3, 64, 64), 200, stem="imagenet").to(memory_format=last),
            images(128, 64),
            700,
        ),
        Published("Shakespeare", lstm((80,), 80), torch.randint(0, 80, (32, 80)), 4900),
    ]


def main() -> None:
    torch.set_num_threads(1)
    for one in published():
        rate = one.rate()
        seconds = CLIENTS * EPOCHS * one.examples / rate
        print(
            f"{one.name}: {rate:,.0f} examples/s, {seconds:,.0f} s a round, {ROUNDS * seconds / DAY:,.0f} days"
        )


if __name__ == "__main__":
    main()
