"""Small layers that a method puts beside the network: initial weights that are arithmetic, and what they compute.

Knows tensors. Does not know what a method uses the layers for.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from motet.parts.agents import normal, uniform
from motet.vec import Vec


def new_linear(seed: int, inputs: int, outputs: int, salt: int = 0) -> Vec:
    """A linear layer as torch starts one: between minus and plus 1 / sqrt(inputs)."""
    drawn = (uniform(seed, salt, (inputs + 1) * outputs) * 2 - 1) / math.sqrt(inputs)
    many = inputs * outputs
    return Vec(weight=drawn[:many].reshape(outputs, inputs), bias=drawn[many:])


def new_embedding(seed: int, rows: int, width: int, salt: int = 0) -> Tensor:
    """Vectors of independent standard normal numbers, (rows, width)."""
    return normal(seed, salt, rows * width).reshape(rows, width)


def new_normed_linear(seed: int, inputs: int, outputs: int, salt: int = 0, scale: float = 1.0) -> Vec:
    """A linear layer and a LayerNorm of its outputs, with weights of its own."""
    norm = Vec(scale=torch.full((outputs,), scale), shift=torch.zeros(outputs))
    return Vec(new_linear(seed, inputs, outputs, salt) | norm)


def linear_norm_relu(layer: Vec, x: Tensor) -> Tensor:
    return _norm(layer, _linear(layer, x)).relu()


def linear_relu_norm(layer: Vec, x: Tensor) -> Tensor:
    return _norm(layer, _linear(layer, x).relu())


def _linear(layer: Vec, x: Tensor) -> Tensor:
    return linear(x, layer["weight"], layer["bias"])


def _norm(layer: Vec, z: Tensor) -> Tensor:
    return layer_norm(z, z.shape[-1:], layer["scale"], layer["shift"])
