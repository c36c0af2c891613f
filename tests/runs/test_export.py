"""Personal models as files: they predict what the run's own predictor predicts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import motet
from motet.engines.single_threaded import single_threaded
from motet.runs.build import resolve
from motet.runs.export import export
from motet.runs.recipe import Recipe, read
from motet.runs.run import RunError, run
from motet.runs.store import Store
from motet.runs.trainer import Trainer


@pytest.fixture(scope="module", params=["wine", "diabetes"])
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> motet.Run:
    words = [f"data={request.param}", "data.clients=5", "method=finetune", "net=mlp", "train.rounds=4"]
    return run(read(words=words), tmp_path_factory.mktemp(request.param) / "r")


def predictions(done: motet.Run, client: str) -> tuple[np.ndarray, np.ndarray]:
    """Raw test rows of a client, and what its personal model says about them in the target's unit."""
    store = Store(done.folder, writing=True)  # never committed
    trainer = Trainer(resolve(Recipe(done.facts["settings"])), store)
    trainer.load()
    best = trainer.reported()
    with single_threaded():
        models = dict(trainer.evaluator.personal_models(trainer.method, best.state, trainer.turn(best.round)))
        client_data, f = trainer.federated.clients_data[client], trainer.federated
        (w,) = models[client]
        said = (
            torch.func.functional_call(trainer.task.net, dict(w), (client_data.test.x,)) * f.scale + f.offset
        )
    ruler = f.rulers[client]
    store.close()
    return client_data.test.x.numpy() * ruler.spread + ruler.middle, said.numpy()


def test_onnx_takes_raw_rows_and_says_the_same(done: motet.Run, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    client = done.clients.query("seen == 1")["client"].iloc[0]
    raw, expected = predictions(done, client)
    path = export(done.folder, client, "onnx", tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(path))
    (said,) = session.run(None, {"x": raw.astype(np.float32)})
    assert np.abs(said - expected).max() < 1e-3 * max(1.0, np.abs(expected).max())
    facts = json.loads(session.get_modelmeta().custom_metadata_map["motet"])
    assert facts["client"] == client and facts["columns"]


def test_safetensors_hold_the_networks_own_names(done: motet.Run, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    client = done.clients.query("seen == 1")["client"].iloc[0]
    weights = load_file(export(done.folder, client, "safetensors", tmp_path / "m.safetensors"))
    assert {"fc1.weight", "head.weight", "head.bias"} <= set(weights)


def test_the_global_model_can_be_had_too(done: motet.Run, tmp_path: Path) -> None:
    assert export(done.folder, "global", "safetensors", tmp_path / "g.safetensors").exists()


def test_an_unknown_client_gets_the_nearest_name(done: motet.Run) -> None:
    with pytest.raises(RunError, match="(?s)unknown client client-0x.*hint: did you mean 'client-0"):
        export(done.folder, "client-0x", "onnx")


def test_a_model_card_says_what_the_model_is(done: motet.Run) -> None:
    client = done.clients.query("seen == 1")["client"].iloc[0]
    card = (done.folder / "models" / f"{client}.md").read_text()
    assert f"personal model of client {client}" in card and "finetune" in card and "test examples" in card
