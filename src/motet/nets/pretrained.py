"""Pretrained networks with weights from a local folder: net=hf:FOLDER (transformers) and net=timm:FOLDER (timm).

The body is the folder's; the last layer is new and linear. `train` says what is trained, and so what clients send:
the last layer (the body is then applied once to each example), LoRA adapters (Hu et al. 2022) and the last layer,
or everything. Nothing is downloaded, and only safetensors files are read.
Knows bodies, adapters and heads, and alone imports peft. Does not know whose networks they are, or data sets.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from motet.errors import need
from motet.nets import pretrained_folder, timm_body, transformers_body
from motet.nets.frozen import FrozenEncoder
from motet.nets.layers import NetError, Shape, refuse, too_few
from motet.settings import TYPED

BODIES = {
    transformers_body.PREFIX: transformers_body.transformers_body,
    timm_body.PREFIX: timm_body.timm_body,
}
Train = Literal["head", "lora", "all"]


def is_pretrained(name: str) -> bool:
    return name.startswith(tuple(BODIES))


def split(name: str) -> tuple[str, str]:
    """Prefix and folder of a network's name."""
    kind, colon, folder = name.partition(":")
    return kind + colon, folder


def pretrained_network(
    name: str,
    shape: Shape,
    outputs: int,
    *,
    train: Train = "head",  # head: the last layer | lora: adapters and the last layer | all: every weight
    rank: int = 8,  # lora: rank of the adapters
    alpha: int = 16,  # lora: their outputs count alpha / rank
    adapt: Annotated[
        tuple[str, ...], TYPED
    ] = (),  # lora: names of layers to adapt; () = as peft knows the model
) -> nn.Module:
    """A pretrained network with a new last layer."""
    prefix, folder = split(name)
    refuse(name, too_few(rank=rank))
    if adapt and train != "lora":
        raise NetError(
            f"net.adapt names {', '.join(adapt)}, and net.train is {train}: only lora has adapters.\n"
            "hint: net.train=lora, or leave net.adapt out"
        )
    body: Any = BODIES[prefix](folder, shape)
    width = features_of(body, shape, folder)
    head = nn.Linear(width, outputs)  # drawn before adapters, so that all ways to train start alike
    if train == "lora":
        body.model = adapted(body.model, rank, alpha, list(adapt))
    return Pretrained(FrozenEncoder(body) if train == "head" else body, head)


def source(name: str) -> Callable[..., Any]:
    """What builds the network that `hf:FOLDER` names; its options are those of `pretrained_network`."""
    build = update_wrapper(partial(pretrained_network, name), pretrained_network)
    every = inspect.signature(pretrained_network).parameters
    build.__signature__ = inspect.Signature([p for k, p in every.items() if k != "name"])  # type: ignore[attr-defined]
    return build


def digest(name: str) -> str:
    """sha256 of a network's folder, weights included."""
    prefix, folder = split(name)
    return pretrained_folder.digest(pretrained_folder.folder_of(folder, prefix))


def adapted(model: nn.Module, rank: int, alpha: int, layers: list[str]) -> nn.Module:
    """The model with LoRA adapters, which alone can be trained."""
    need("net.train=lora", "hf", "peft", error=NetError)
    from peft import LoraConfig, inject_adapter_in_model

    linear = sorted({k.rpartition(".")[2] for k, m in model.named_modules() if isinstance(m, nn.Linear)})
    if absent := [name for name in layers if name not in linear]:
        raise NetError(
            f"net.adapt names {', '.join(absent)}, and the network has no linear layer of that name.\n"
            f"hint: it has {', '.join(linear)}"
        )
    try:
        config = LoraConfig(
            r=rank, lora_alpha=alpha, target_modules=layers or None, lora_dropout=0.0, bias="none"
        )
        return inject_adapter_in_model(config, model)
    except ValueError as e:
        raise NetError(
            f"net.adapt is needed: {e}\n"
            f"hint: net.adapt={','.join(linear[:2])}; linear layers of the network: {', '.join(linear)}"
        ) from e


def features_of(body: nn.Module, shape: Shape, folder: str) -> int:
    """How many features the body makes of an example."""
    try:
        with torch.no_grad():
            return int(body.eval()(torch.zeros(1, *shape)).shape[-1])
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as e:
        raise NetError(
            f"the network in {folder} does not take examples of shape {shape}: {e}\n"
            "hint: texts are rows of codes, with data.tokenizer set to the same folder and data.text_length no longer "
            "than the network's texts; images have the network's size"
        ) from e


class Pretrained(nn.Module):
    """A pretrained body and a new last layer."""

    one_by_one = "a pretrained network is work enough for one client at a time"

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]
