"""The body of a network of timm: net=timm:FOLDER.

The folder is as timm writes and publishes them: config.json names the architecture, model.safetensors has the weights.
Knows folders of timm, and alone imports the library. Does not know data sets.
"""

from __future__ import annotations

import json
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn

from motet.errors import need
from motet.nets.layers import NetError, Shape
from motet.nets.pretrained_folder import folder_of

PREFIX = "timm:"


def timm_body(folder: str, shape: Shape) -> nn.Module:
    """The network of a folder without its classifier: it gives one row of features for each image."""
    path = folder_of(folder, PREFIX)
    try:
        config = json.loads((path / "config.json").read_text())
        name, options = str(config["architecture"]), dict(config.get("model_args") or {})
        classifier = dict(config.get("pretrained_cfg") or config).get("classifier") or ()
    except (KeyError, TypeError, ValueError) as e:
        raise NetError(
            f"config.json in {folder} is not one of timm: it does not name the architecture of the weights ({e}).\n"
            "hint: folders of transformers are net=hf:FOLDER"
        ) from e
    model = made(name, folder, options)
    state = {k: v for file in sorted(path.glob("*.safetensors")) for k, v in load_file(file).items()}
    load(model, state, (classifier,) if isinstance(classifier, str) else tuple(classifier), folder)
    return Images(model)


def made(name: str, folder: str, options: dict[str, Any]) -> nn.Module:
    """The architecture, with weights at random and no classifier."""
    need("net=timm:...", "timm", "timm", error=NetError)
    try:
        import timm
    except (ImportError, OSError, RuntimeError) as e:
        raise NetError(
            f"timm cannot be imported: {e}\n"
            "hint: timm needs a torchvision that was built for the torch that is installed"
        ) from e
    try:
        return timm.create_model(name, **options | {"pretrained": False, "num_classes": 0})  # type: ignore[no-any-return]
    except (RuntimeError, TypeError, ValueError) as e:
        raise NetError(
            f"the network {name!r} of {folder} cannot be made: {e}\n"
            "hint: timm must know the architecture; a newer timm knows more"
        ) from e


def load(model: nn.Module, state: dict[str, Tensor], classifier: tuple[str, ...], folder: str) -> None:
    """Put weights into a model; all of its own must be there, and what is left over must be the classifier's."""
    body = {k: v for k, v in state.items() if not k.startswith(tuple(f"{c}." for c in classifier))}
    try:
        model.load_state_dict(body)
    except RuntimeError as e:
        raise NetError(
            f"the weights in {folder} are not those of the network that its config.json names: {e}\n"
            "hint: config.json and .safetensors must come from one place"
        ) from e


class Images(nn.Module):
    """Features of images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        if not len(x):  # a client without test rows; some networks cannot take none
            return self.forward(x.new_zeros(1, *x.shape[1:]))[:0]
        return self.model(x)  # type: ignore[no-any-return]
