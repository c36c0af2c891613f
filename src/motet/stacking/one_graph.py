"""A whole stack as one ONNX file: the private model, the fetched models and the meta-model in one graph.

The graph reads rows in the columns and units of the table, in 64 bits, because trees compare them with thresholds, and
answers what the stack answers. The models of others become part of the file: the checks that they passed are made
again, but whoever runs the file runs them in its own process.
Knows kept stacks and ONNX. Does not know runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from motet.errors import UsageError
from motet.published import ModelRefused, Published
from motet.published.joined_graphs import JoinedGraph, newest
from motet.published.model_check import refuse
from motet.stacking.catalogue import Tree, fetched
from motet.stacking.predictions import FINER, shared_classes

SMALLEST = 1e-6  # the smallest probability of which the logarithm is taken
_MOST = (1 << 31) - 1  # bytes of one ONNX file


def one_graph(
    own: Tree, owners: Tree, inputs: Mapping[str, Any], target: Mapping[str, Any], classes: Sequence[str]
) -> bytes:
    """The stack `own` with its models of `owners` as ONNX: logarithms of probabilities, or numbers in their unit."""
    parts = _parts(own, owners)
    protos = {name: _proto(model) for name, model in parts.items()}
    here = list(own["here"])
    names = parts["private"].manifest.names
    graph = JoinedGraph(len(here) or len(names), newest(protos.values()), double=True)
    rows = _standardised(graph, inputs, here)
    found = [
        _in_classes(
            graph, graph.model(protos[k], graph.columns(rows, names, m.manifest.features)), m, classes
        )
        for k, m in parts.items()
        if k != "meta"
    ]
    step = float(own.get("step", 0.0))
    last = _combined(graph, found, parts, protos, classes, step)
    last = _rounded(graph, last, FINER * step if classes else 0.0)
    done = graph.finished(_answer(graph, last, target, classes), len(classes) or 1)
    if done.ByteSize() > _MOST:
        raise UsageError(f"the stack has {done.ByteSize() / 1e9:.1f} GB, and one ONNX file at most 2.1 GB")
    return bytes(done.SerializeToString(deterministic=True))


def _parts(own: Tree, owners: Tree) -> dict[str, Published]:
    """All models in the order in which the meta-model reads them, and the meta-model; none that must not run."""
    models, refused = fetched(owners)
    if refused:
        raise UsageError(f"the stack is not whole: {'; '.join(refused.values())}")
    found = {"private": Published.from_tree(own["private"])}
    found |= {f"of {owner}": models[owner] for owner in owners}
    if own["meta"]:
        found["meta"] = Published.from_tree(own["meta"])
    for model in found.values():
        try:
            refuse(model)
        except ModelRefused as e:
            raise UsageError(f"a part of the stack must not run: {e}") from e
    return found


def _proto(model: Published) -> Any:
    import onnx

    return onnx.ModelProto.FromString(model.model)


def _standardised(graph: JoinedGraph, inputs: Mapping[str, Any], here: Sequence[bool]) -> str:
    """Rows as the models know them, computed as `motet predict` computes them: in 64 bits, then rounded."""
    from onnx import TensorProto

    at = "x"
    if "mean" in inputs:
        off = graph.node("Sub", [at, graph.constant(np.ravel(inputs["mean"]), np.float64)])
        at = graph.node("Div", [off, graph.constant(np.ravel(inputs["std"]), np.float64)])
    at = graph.node("Cast", [at], to=TensorProto.FLOAT)
    return at if all(here) else graph.take(at, [k for k, held in enumerate(here) if held])


def _in_classes(graph: JoinedGraph, at: str, model: Published, classes: Sequence[str]) -> str:
    """A model's probabilities in the columns of the stack's classes, within 0 and 1."""
    if not classes:
        return at
    clipped = graph.node("Clip", [at, graph.constant(0.0), graph.constant(1.0)])
    known = list(model.manifest.classes)
    if known == list(classes):
        return clipped
    to = np.zeros((len(known), len(classes)))
    for k, place in shared_classes(known, classes):
        to[k, place] = 1
    return graph.node("MatMul", [clipped, graph.constant(to)])


def _combined(
    graph: JoinedGraph,
    found: Sequence[str],
    parts: Mapping[str, Published],
    protos: Mapping[str, Any],
    classes: Sequence[str],
    step: float,
) -> str:
    """The meta-model's answer to all models' answers; their mean without a meta-model."""
    if "meta" not in parts:
        return graph.node("Mean", list(found)) if len(found) > 1 else found[0]
    seen = [graph.take(one, [1]) if len(classes) == 2 else one for one in found]
    z = _rounded(graph, graph.node("Concat", seen, axis=1), step)
    return _in_classes(graph, graph.model(protos["meta"], z), parts["meta"], classes)


def _rounded(graph: JoinedGraph, at: str, step: float) -> str:
    """As `predictions.rounded` has it: both take the even one of two that are equally near."""
    if not step:
        return at
    steps = graph.node("Round", [graph.node("Div", [at, graph.constant(step)])])
    return graph.node("Mul", [steps, graph.constant(step)])


def _answer(graph: JoinedGraph, at: str, target: Mapping[str, Any], classes: Sequence[str]) -> str:
    if classes:
        return graph.node("Log", [graph.node("Max", [at, graph.constant(SMALLEST)])])
    scaled = graph.node("Mul", [at, graph.constant(float(target["scale"]))])
    return graph.node("Add", [scaled, graph.constant(float(target["offset"]))])
