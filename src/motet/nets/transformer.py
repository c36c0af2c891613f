"""Transformers: one for rows of codes, such as words of a text, and one for images.

Layers normalise before they attend (Xiong et al. 2020), which trains without a warm-up. Attention is written as
products of matrices, so that clients can be stacked.
Knows codes and images. Does not know words, nor where images come from.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from motet.nets.layers import Shape, no_codes, no_image, refuse, too_few
from motet.nets.lstm import Embedding


def transformer(
    shape: Shape,
    outputs: int,
    *,
    width: int = 64,  # features of a position
    heads: int = 4,  # heads of attention; they divide the width
    layers: int = 2,  # number of layers
    dropout: float = 0.1,  # share of features and of attention that is dropped while training
    symbols: int = 0,  # number of different codes; 0 = as many as the data say, or as outputs
    padding: int = -1,  # code that stands for no word: it is not attended to; -1 = none
) -> nn.Module:
    """A small transformer (Vaswani et al. 2017), the encoder alone: an example is a row of codes 0, 1, 2, ..."""
    wrong = too_few(width=width, layers=layers) + _wrong_attention(width, heads, dropout)
    refuse("transformer", wrong + no_codes(shape, symbols))
    codes = Embedding(symbols or outputs, width)
    nn.init.normal_(codes.weight, std=0.02)
    return Encoder(codes, shape[0], width, heads, layers, dropout, outputs, padding)


def vit(
    shape: Shape,
    outputs: int,
    *,
    patch: int = 4,  # pixels of a side of a patch; it divides height and width of images
    width: int = 64,  # features of a patch
    heads: int = 4,  # heads of attention; they divide the width
    layers: int = 4,  # number of layers
    dropout: float = 0.0,  # share of features and of attention that is dropped while training
) -> nn.Module:
    """A vision transformer (Dosovitskiy et al. 2021) without a class token: the mean of all patches is classified."""
    wrong = too_few(patch=patch, width=width, layers=layers) + _wrong_attention(width, heads, dropout)
    wrong += no_image(shape)
    if not wrong and (shape[1] % patch or shape[2] % patch):
        wrong += [
            f"has patch {patch}, which does not divide images of shape {shape}.\n"
            "hint: patch=4 for sides of 28 or 32 pixels, patch=1 for any"
        ]
    refuse("vit", wrong)
    many = (shape[1] // patch) * (shape[2] // patch)
    patches = Patches(shape[0], patch, width)
    return Encoder(patches, many, width, heads, layers, dropout, outputs)


def _wrong_attention(width: int, heads: int, dropout: float) -> list[str]:
    wrong = (
        []
        if 0 <= dropout < 1
        else [f"has dropout {dropout}; expected 0 or more, below 1.\nhint: dropout=0.1"]
    )
    if heads < 1 or width % heads:
        wrong += [f"has heads {heads}; expected a divisor of the width, {width}.\nhint: heads=1"]
    return wrong


class Patches(nn.Module):
    """Images (examples, channels, height, width) as rows of patches, each a linear function of its pixels."""

    def __init__(self, channels: int, patch: int, width: int) -> None:
        super().__init__()
        self.patch, self.project = patch, nn.Linear(channels * patch * patch, width)

    def forward(self, x: Tensor) -> Tensor:
        n, channels, high, wide = x.shape
        p = self.patch
        x = x.reshape(n, channels, high // p, p, wide // p, p).permute(0, 2, 4, 1, 3, 5)
        return self.project(x.reshape(n, (high // p) * (wide // p), channels * p * p))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Every position takes from all others, in several heads."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(dropout)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        n, length, width = x.shape
        three = self.query_key_value(x).reshape(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = three.unbind(0)  # (examples, heads, positions, features of a head)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        weights = torch.softmax(scores if bias is None else scores + bias, -1)
        mixed = self.drop(weights) @ v
        return self.out(mixed.transpose(1, 2).reshape(n, length, width))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention, then a small network at each position; both are added to what came in."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width), Attention(width, heads, dropout)
        self.between, self.wide = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.gelu, self.narrow, self.drop = nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        x = x + self.drop(self.attention(self.before(x), bias))
        return x + self.drop(self.narrow(self.gelu(self.wide(self.between(x)))))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Positions, layers, and the mean of all positions for the head."""

    def __init__(
        self, first: nn.Module, length: int, width: int, heads: int, layers: int, dropout: float, outputs: int,
        padding: int = -1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.padding, self.first = padding, first
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        there = self.there(x)  # (examples, positions), 1 where there is a word
        bias = None if there is None else (1 - there)[:, None, None, :] * -1e9
        z = self.drop(self.first(x) + self.places)
        for layer in self.layers:
            z = layer(z, bias)
        z = self.norm(z)
        if there is None:
            return self.head(z.mean(1))  # type: ignore[no-any-return]
        mean = (z * there[..., None]).sum(1) / there.sum(1, keepdim=True).clamp(min=1)
        return self.head(mean)  # type: ignore[no-any-return]

    def there(self, x: Tensor) -> Tensor | None:
        """Which codes are words; None where all are."""
        return None if self.padding < 0 else (x != self.padding).to(self.places.dtype)
