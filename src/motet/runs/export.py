"""A client's final model as a file of its own: safetensors, or ONNX for use without motet or torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from motet.checksums import with_checksum
from motet.client import Task
from motet.errors import UsageError, need
from motet.runs.model_files import copy_model, facts_text, model_path, stored
from motet.runs.predict import (
    in_unit,
    laid_out,
    method_of,
    network_facts,
    network_of,
    predictor,
    read_weights,
    session_of,
)
from motet.runs.run import Run, RunError
from motet.text import unknown
from motet.trusted_code import Consent, require_trust

_TRIED = 256  # random rows on which one graph must answer as its parts do
_ROUGH = 1e-5  # largest difference of probabilities; of numbers, relative above 1


def export(folder: Path, client: str, form: str, to: Path | None = None, trust: Consent = False) -> Path:
    """Write a client's model to a file. ONNX needs the network, which may be code that the folder names."""
    source = model_file(folder, client)
    plain = client.isprintable() and not {*client} & {*'/\\:*?"<>|'} and not client.startswith(".")
    to = to or Path(f"{client if plain else source.stem}.{form}")
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
        there = [*names, "global"] if stored(model_path(folder, "")) else names
        raise RunError(unknown("client", client, there))
    return path


def to_onnx(source: Path, to: Path, trust: Consent = False) -> None:
    """The network with the model's weights, and with the scaling of inputs and target built in."""
    need("a model as ONNX", "onnx", "onnx", error=RunError)
    import onnx

    if raw := joined(source, trust):
        write_onnx(onnx.ModelProto.FromString(raw), read_weights(source)[0], to)
        return
    need("a network as ONNX", "onnx", "onnxscript", error=RunError)
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
    write_onnx(program.model_proto, facts, to)  # type: ignore[union-attr]


def write_onnx(model: Any, facts: dict[str, Any], to: Path) -> None:
    import onnx

    onnx.helper.set_model_props(model, {"motet": facts_text(facts)})
    onnx.checker.check_model(model)
    to.write_bytes(with_checksum(model.SerializeToString()))


def joined(source: Path, trust: Consent = False) -> bytes:
    """A model of several parts, say a stack, as one graph that answers as the parts do; b"" for other models."""
    facts, trees = read_weights(source)
    if "layout" not in facts:
        return b""
    require_trust([network_facts(facts), facts.get("method")], source, trust)
    task = Task(network_of(facts), facts["kind"], len(facts["classes"]) or 1)
    own = laid_out(source, facts["layout"], trees[0])
    try:
        raw: bytes = method_of(facts, task).one_graph(own, facts["inputs"], facts["target"])
    except UsageError as e:
        raise RunError(
            f"{source.stem}'s model cannot be written as one ONNX file: {e}\n"
            f"hint: motet predict --model {source.stem}.safetensors new.csv uses it as it is"
        ) from e
    if raw:
        check_answers(source, facts, raw, predictor(source, facts, trees))
    return raw


def check_answers(
    source: Path, facts: dict[str, Any], raw: bytes, scores: Callable[[Tensor], Tensor]
) -> None:
    """Refuse a graph that answers otherwise than the model that it was made of, on random rows."""
    session = session_of(source, raw)
    rng, columns = np.random.default_rng(0), len(facts["columns"]) or math.prod(facts["shape"])
    mean, std = (np.ravel(facts["inputs"].get(k, v)) for k, v in (("mean", 0.0), ("std", 1.0)))
    rows = mean + std * rng.normal(size=(_TRIED, columns))
    at_home = scores(torch.from_numpy(((rows - mean) / std).astype(np.float32))).numpy()
    there = session.run(None, {"x": rows})[0].reshape(at_home.shape)
    off = float(np.abs(np.exp(there) - np.exp(at_home)).max() if facts["kind"] == "classes" else
                np.max(np.abs(there - at_home) / np.maximum(1, np.abs(at_home))))  # fmt: skip
    if not off <= _ROUGH:
        raise RunError(f"{source.stem}'s model as one ONNX file would answer differently: off by {off:.2g}")


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
