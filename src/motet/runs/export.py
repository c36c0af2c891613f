"""A client's final model as a file of its own: safetensors, or ONNX for use without motet or torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from motet.checksums import with_checksum
from motet.runs.model_files import copy_model, facts_text, model_path, stored
from motet.runs.predict import in_unit, network_facts, network_of, read_weights
from motet.runs.run import Run, RunError
from motet.text import unknown
from motet.trusted_code import Consent, require_trust


def export(folder: Path, client: str, form: str, to: Path | None = None, trust: Consent = False) -> Path:
    """Write a client's model to a file. ONNX needs the network, which may be code that the folder names."""
    source = model_file(folder, client)
    to = to or Path(f"{source.stem}.{form}")
    if form == "safetensors":
        copy_model(source, to)
    else:
        to_onnx(source, to, trust)
    return to


def model_file(folder: Path, client: str) -> Path:
    """The path that names a client's model (model_files.py says where its weights are)."""
    run = Run(folder)
    models = folder / "models"
    path = model_path(folder, client)
    if client == "global" and not stored(path):
        path = model_path(folder, "")
    if not stored(path):
        if run.facts["status"] != "done":
            raise RunError(
                f"{folder} is not done yet; models are written at the end.\nhint: motet run continues it"
            )
        if not models.exists():
            raise RunError(f"{folder} has no models.\nhint: run it with save.models=all")
        if client == "global":
            raise RunError(f"{folder} has no global model: {run.facts['method']} trains personal ones only")
        names = run.clients.query("seen == 1")["client"].tolist()
        if run.facts.get("federation") and client in names:
            raise RunError(
                f"the personal model of {client} is at the site {client}: personal models never come here.\n"
                f"hint: at the site: motet predict --model KIT/kept/models/{folder.resolve().name}.safetensors new.csv"
            )
        raise RunError(unknown("client", client, [*names, "global"]))
    return path


def to_onnx(source: Path, to: Path, trust: Consent = False) -> None:
    """The network with the model's weights, and with the scaling of inputs and target built in."""
    try:
        import onnx
    except ImportError as e:
        raise RunError("ONNX needs more packages.\nhint: pip install 'motet[onnx]'") from e
    net, facts = portable(source, trust)
    example = torch.zeros(2, *facts["shape"])
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        net,
        (example,),
        dynamo=True,
        input_names=["x"],
        output_names=["y"],
        dynamic_shapes=({0: batch},),
        verbose=False,
    )
    model = program.model_proto  # type: ignore[union-attr]
    onnx.helper.set_model_props(model, {"motet": facts_text(facts)})
    onnx.checker.check_model(model)
    to.write_bytes(with_checksum(model.SerializeToString()))


def portable(source: Path, trust: Consent = False) -> tuple[nn.Module, dict[str, Any]]:
    """A plain torch module that takes raw rows and gives class scores or numbers in the target's unit."""
    facts, (weights,) = read_weights(source)
    require_trust(network_facts(facts), source, trust)
    net = network_of(facts)
    state = {k: v for k, v in net.state_dict().items() if not k.endswith("num_batches_tracked")}
    if set(weights) != set(state):
        raise RunError(f"{source.stem}'s model is not a single network, and only one can be written as ONNX")
    net.load_state_dict(weights, strict=False)  # all but the count of batches, which nothing reads
    return Scaled(net, facts["inputs"], facts["target"]).eval(), facts


class Scaled(nn.Module):
    """A network between raw rows and the target's own unit."""

    def __init__(self, net: nn.Module, inputs: dict[str, list[float]], target: dict[str, Any]) -> None:
        super().__init__()
        self.net, self.target = net, target
        self.mean = torch.tensor(inputs.get("mean", [0.0]))
        self.std = torch.tensor(inputs.get("std", [1.0]))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.net((x - self.mean) / self.std)
        return in_unit(scores, self.target)
