"""A whole stack as one ONNX file answers as the run's own model; its card says whose models it is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("onnxruntime")

import motet
from motet.errors import UsageError
from motet.published.joined_graphs import JoinedGraph
from motet.runs.export import export
from motet.runs.predict import open_model
from motet.runs.recipe import read
from motet.runs.run import run

CASES = {
    "wine": ["data.clients=4", 'method.public_of=["client-1: linear", "client-2: boosting trees=5"]'],
    "diabetes": ["data.clients=3", "data.features=0.6", "method.variant=pooled"],  # clients lack columns
    "breast_cancer": ["data.clients=3", "method.meta=linear", "method.variant=auto"],
}


@pytest.fixture(scope="module", params=list(CASES))
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> motet.Run:
    words = [f"data={request.param}", "method=stacking", "method.trees=5", "train.rounds=1"]
    return run(read(words=words + CASES[request.param]), tmp_path_factory.mktemp("stack") / "r")


def rows_like(model: Any, rows: int = 300) -> pd.DataFrame:
    """New rows in the table's own units: around the means, whole numbers among them, which meet thresholds."""
    rng, inputs = np.random.default_rng(1), model.facts["inputs"]
    x = np.array(inputs["mean"]) + np.array(inputs["std"]) * rng.normal(size=(rows, len(model.columns)))
    x[::2] = x[::2].round(1)
    return pd.DataFrame(x, columns=model.columns)


def test_one_onnx_file_answers_as_the_stack(done: motet.Run, tmp_path: Path) -> None:
    for client in done.clients.query("seen == 1")["client"]:
        stack = done.model(client)
        file = open_model(export(done.folder, client, "onnx", tmp_path / f"{client}.onnx"))
        rows = rows_like(stack)
        expected, said = stack.predict(rows), file.predict(rows)
        numbers = expected.select_dtypes("number")
        scale = np.maximum(1, numbers.abs())
        assert ((numbers - said[numbers.columns]).abs() / scale).to_numpy().max() < 1e-5
        assert file.facts["client"] == client


def test_the_card_of_a_stack_names_its_models(done: motet.Run) -> None:
    client = done.clients.query("seen == 1")["client"].iloc[0]
    text = (done.folder / "models" / f"{client}.md").read_text()
    assert "Network:" not in text and "A stack of" in text
    assert "its own private model: a RandomForest" in text and "made with sklearn" in text
    others = [m for m in done.model(client).facts["stack"]["models"] if m["owner"]]
    for m in others:
        assert f"of {m['owner']}: {m['what']}" in text.replace("\\", "")
        assert f"importance {m['importance']:.0%}" in text


def test_the_card_says_the_budget_and_that_simulated_noise_protects_nobody(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    words = ["data=breast_cancer", "data.clients=3", "method=stacking", "method.trees=3", "train.rounds=1"]
    done = run(read(words=[*words, 'method.public_of=["client-0: dp-linear epsilon=1"]']), tmp_path / "r")
    text = (done.folder / "models" / "client-1.md").read_text().replace("\\", "")
    assert "of client-0: a private logistic regression on 30 columns, epsilon 1" in text
    assert "protects nobody" in text


def test_parts_of_different_opsets_stand_in_one_graph_and_what_cannot_is_said() -> None:
    import onnx
    from onnx import TensorProto, helper

    def part(kind: str, domain: str, opsets: dict[str, int], **more: Any) -> Any:
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, 2]) for n in "ab"]
        graph = helper.make_graph(
            [helper.make_node(kind, ["a"], ["b"], domain=domain, **more)], "g", [ends[0]], [ends[1]]
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()], ir_version=8
        )

    graph = JoinedGraph(2)
    once = graph.model(part("Relu", "", {"": 9}), "x")
    onnx.checker.check_model(
        proto := graph.finished(graph.model(part("Neg", "", {"": 15}), once), outputs=2), full_check=True
    )
    assert [o.version for o in proto.opset_import if o.domain == ""] == [18]
    early = part("LabelEncoder", "ai.onnx.ml", {"": 15, "ai.onnx.ml": 1}, classes_strings=["a"])
    with pytest.raises(UsageError, match="first version of LabelEncoder"):
        JoinedGraph(2).model(early, "x")


def test_a_stack_whose_part_must_not_run_is_refused_in_words(done: motet.Run, tmp_path: Path) -> None:
    from motet.stacking.one_graph import one_graph

    stack = open_model(done.folder / "models" / "client-0.safetensors")
    own: Any = {"private": {}, "meta": (), "here": ()}
    with pytest.raises((UsageError, ValueError), match="not a manifest and a model"):
        one_graph(own, {}, stack.facts["inputs"], stack.facts["target"], ())
    assert json.dumps(stack.facts["stack"])
