"""The body of a network of Hugging Face's transformers: net=hf:FOLDER.

Knows folders of transformers, and alone imports the library. Does not know data sets.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn

from motet.errors import need
from motet.nets.layers import NetError, Shape
from motet.nets.pretrained_folder import folder_of

PREFIX = "hf:"


def transformers_body(folder: str, shape: Shape) -> nn.Module:
    """The network of a folder without its last layer; rows of numbers are codes of a text."""
    return Pooled(read_body(folder), text=len(shape) == 1)


def read_body(folder: str) -> nn.Module:
    """The network of a folder without its last layer."""
    path = folder_of(folder, PREFIX)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    need("net=hf:...", "hf", "transformers", error=NetError)
    from transformers import AutoModel

    try:
        return AutoModel.from_pretrained(  # type: ignore[no-any-return]
            str(path),
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,  # left out, transformers asks at a terminal whether code of the folder may run
            attn_implementation="eager",
            dtype=torch.float32,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as e:
        raise NetError(
            f"the network in {folder} cannot be read: {e}\nhint: transformers must know its kind"
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
