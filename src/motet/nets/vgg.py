"""VGG-11 (Simonyan and Zisserman 2015) with a mean over the image in place of its dense layers.

Knows layers for images. Does not know data or training.
"""

from __future__ import annotations

from torch import Tensor, nn

from motet.nets import normalisation
from motet.nets.layers import Shape, chain, kaiming, no_image, refuse, scaled, wrong_width
from motet.nets.normalisation import Norm

_WIDTHS = (64, 128, 256, 256, 512, 512, 512, 512)
_POOLED = (1, 2, 4, 6, 8)  # convolutions, counted from one, that are followed by a max-pooling


def vgg11(
    shape: Shape,
    outputs: int,
    *,
    width: float = 1.0,  # factor of all channels, which are rounded to multiples of 8
    norm: str = "none",  # none | group (GroupNorm) | batch (BatchNorm)
    groups: int = 2,  # of each GroupNorm; divides 8, or 64 where width is 1
    statistics: str = "averaged",  # BatchNorm's: averaged | local | shared (measured once, then fixed)
) -> nn.Module:
    """Simonyan and Zisserman 2015, configuration A, with global average pooling and one linear layer as in FedPerC."""
    wrong, widths = no_image(shape) + wrong_width(width), scaled(_WIDTHS, width)
    known = ("none", *normalisation.NORMS)
    refuse("vgg11", wrong + normalisation.wrong_norm(norm, groups, statistics, widths, known))
    net = VGG11(shape[0], outputs, widths, normalisation.norm_of(norm, groups))
    kaiming(net, "fan_in")  # with fan_out, activations shrink from layer to layer and it learns late
    normalisation.declare(net, norm, statistics)
    return net


class VGG11(nn.Module):
    """Eight convolutions; `body` holds them as conv1, norm1, relu1, pool1, conv2 and so on."""

    def __init__(self, channels: int, outputs: int, widths: list[int], norm: Norm) -> None:
        super().__init__()
        layers: dict[str, nn.Module] = {}
        for i, (before, after) in enumerate(zip((channels, *widths), widths, strict=False), 1):
            layers |= {f"conv{i}": nn.Conv2d(before, after, 3, padding=1), f"norm{i}": norm(after)}
            layers |= {f"relu{i}": nn.ReLU(inplace=True)}
            if i in _POOLED:  # rounding up leaves at least one pixel of any image
                layers |= {f"pool{i}": nn.MaxPool2d(2, ceil_mode=True)}
        self.body = chain(**layers)
        self.head = nn.Linear(widths[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x)
        return self.head(features.mean((2, 3)))  # type: ignore[no-any-return]
