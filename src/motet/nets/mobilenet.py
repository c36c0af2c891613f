"""MobileNetV1 (Howard et al. 2017). Knows layers for images. Does not know data or training."""

from __future__ import annotations

from torch import Tensor, nn

from motet.nets import normalisation
from motet.nets.layers import STEMS, Shape, chain, no_image, refuse, scaled, unknown, wrong_width
from motet.nets.normalisation import Norm

# Table 1 of the paper: channels and stride of each pair of convolutions, depthwise and pointwise.
_PAIRS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))


def mobilenet_v1(
    shape: Shape,
    outputs: int,
    *,
    width: float = 1.0,  # factor of all channels, which are rounded to multiples of 8
    norm: str = "group",  # group (GroupNorm) | batch (BatchNorm)
    groups: int = 2,  # of each GroupNorm; divides 8, or 32 where width is 1
    statistics: str = "averaged",  # BatchNorm's: averaged | local | shared (measured once, then fixed)
    stem: str = "cifar",  # the first convolution: cifar (stride 1) | imagenet (stride 2)
) -> nn.Module:
    """Howard et al. 2017: thirteen pairs of a depthwise and a pointwise convolution.

    Initial weights are torch's own: with the larger ones of He et al. it learns more slowly at FedPerC's rate.
    """
    wrong = no_image(shape) + unknown("stem", stem, STEMS) + wrong_width(width)
    widths = scaled((32, *(many for many, _ in _PAIRS)), width)
    refuse("mobilenet_v1", wrong + normalisation.wrong_norm(norm, groups, statistics, widths))
    stride = 2 if stem == "imagenet" else 1
    net = MobileNetV1(shape[0], outputs, widths, normalisation.norm_of(norm, groups), stride)
    normalisation.declare(net, norm, statistics)
    return net


class MobileNetV1(nn.Module):
    """One convolution, thirteen pairs, and the mean over the image. Four of the pairs halve the image."""

    def __init__(self, channels: int, outputs: int, widths: list[int], norm: Norm, stride: int) -> None:
        super().__init__()
        conv = nn.Conv2d(channels, widths[0], 3, stride, 1, bias=False)
        self.stem = chain(conv=conv, norm=norm(widths[0]), relu=nn.ReLU(inplace=True))
        steps = zip(widths, widths[1:], _PAIRS, strict=False)
        self.pairs = nn.Sequential(*(_pair(a, b, stride, norm) for a, b, (_, stride) in steps))
        self.head = nn.Linear(widths[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.pairs(self.stem(x))
        return self.head(features.mean((2, 3)))  # type: ignore[no-any-return]


def _pair(before: int, after: int, stride: int, norm: Norm) -> nn.Sequential:
    return chain(
        depth=nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False),
        norm1=norm(before),
        relu1=nn.ReLU(inplace=True),
        point=nn.Conv2d(before, after, 1, bias=False),
        norm2=norm(after),
        relu2=nn.ReLU(inplace=True),
    )
