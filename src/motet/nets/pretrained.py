"""Networks of Hugging Face's transformers with weights from a local folder: net=hf:FOLDER.

The body is the folder's; the last layer is new and linear. `train` says what is trained, and so what clients send:
the last layer (the body is then applied once to each example), LoRA adapters (Hu et al. 2022) and the last layer,
or everything. Nothing is downloaded, and only safetensors files are read.
Knows folders of transformers, and alone imports transformers and peft. Does not know data sets.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import update_wrapper
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from motet.nets.frozen import FrozenEncoder
from motet.nets.layers import NetError, Shape, refuse, too_few
from motet.settings import TYPED

PREFIX = "hf:"
Train = Literal["head", "lora", "all"]


def hf_network(
    folder: str,
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
    refuse(PREFIX + folder, too_few(rank=rank))
    if adapt and train != "lora":
        raise NetError(
            f"net.adapt names {', '.join(adapt)}, and net.train is {train}: only lora has adapters.\n"
            "hint: net.train=lora, or leave net.adapt out"
        )
    body = Pooled(read_body(folder), text=len(shape) == 1)
    width = features_of(body, shape, folder)
    head = nn.Linear(width, outputs)  # drawn before adapters, so that all ways to train start alike
    if train == "lora":
        body.model = adapted(body.model, rank, alpha, list(adapt))
    return Pretrained(FrozenEncoder(body) if train == "head" else body, head)


def source(name: str) -> Callable[..., Any]:
    """What builds the network that `hf:FOLDER` names; its options are those of `hf_network`."""
    folder = name.removeprefix(PREFIX)

    def build(shape: Shape, outputs: int, **options: Any) -> nn.Module:
        return hf_network(folder, shape, outputs, **options)

    update_wrapper(build, hf_network)
    every = inspect.signature(hf_network).parameters
    build.__signature__ = inspect.Signature([p for k, p in every.items() if k != "folder"])  # type: ignore[attr-defined]
    return build


def digest(name: str) -> str:
    """sha256 of what a folder says of its network, weights included."""
    folder, found = folder_of(name.removeprefix(PREFIX)), sha256()
    for file in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        found.update(file.name.encode() + sha256(file.read_bytes()).digest())
    return found.hexdigest()


def folder_of(folder: str) -> Path:
    path = Path(folder).expanduser()
    if not (path / "config.json").is_file() or not list(path.glob("*.safetensors")):
        what = (
            "the folder does not exist"
            if not path.is_dir()
            else "it has no config.json or no .safetensors file"
        )
        raise NetError(
            f"there is no pretrained network in {folder}: {what}.\n"
            "hint: fetch it once, on a machine that may: hf download OWNER/NAME --local-dir FOLDER; then net=hf:FOLDER"
        )
    return path


def read_body(folder: str) -> nn.Module:
    """The network of a folder without its last layer."""
    path = folder_of(folder)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from transformers import AutoModel
    except ModuleNotFoundError as e:
        raise NetError(f"net=hf:... needs the package {e.name}.\nhint: pip install 'motet[hf]'") from e
    try:
        return AutoModel.from_pretrained(  # type: ignore[no-any-return]
            str(path),
            local_files_only=True,
            use_safetensors=True,
            attn_implementation="eager",
            dtype=torch.float32,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as e:
        raise NetError(
            f"the network in {folder} cannot be read: {e}\nhint: transformers must know its kind"
        ) from e


def adapted(model: nn.Module, rank: int, alpha: int, layers: list[str]) -> nn.Module:
    """The model with LoRA adapters, which alone can be trained."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError as e:
        raise NetError(f"net.train=lora needs the package {e.name}.\nhint: pip install 'motet[hf]'") from e
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
        raise NetError(f"net.adapt is needed: {e}\nhint: net.adapt={','.join(linear[:2])}") from e


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


class Pooled(nn.Module):
    """One row of features for each example: the mean over words, an image's first token, or the mean over pixels."""

    def __init__(self, model: nn.Module, text: bool) -> None:
        super().__init__()
        self.model, self.text = model, text
        self.padding = int(getattr(model.config, "pad_token_id", None) or 0)

    def forward(self, x: Tensor) -> Tensor:
        if not len(x):  # a client without test rows; transformers' networks cannot take none
            return self.forward(x.new_zeros(1, *x.shape[1:]))[:0]
        if not self.text:
            z = self.model(pixel_values=x).last_hidden_state
            return z.mean((2, 3)) if z.ndim == 4 else z[:, 0]  # type: ignore[no-any-return]
        codes = x.long()
        there = (codes != self.padding).long()
        there = torch.cat(
            [torch.ones_like(there[:, :1]), there[:, 1:]], 1
        )  # a text without words is its first place
        z = self.model(input_ids=codes, attention_mask=there).last_hidden_state
        weight = there.to(z.dtype)[..., None]
        return (z * weight).sum(1) / weight.sum(1)  # type: ignore[no-any-return]


class Pretrained(nn.Module):
    """A pretrained body and a new last layer."""

    one_by_one = "a pretrained network is work enough for one client at a time"

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]
