"""Checks of an untrusted model before it runs.

Its bytes have the manifest's checksum; it is ONNX of a known opset; it uses allowed operators (operators.py),
no files, no text; its input and output have the shapes that the manifest declares; and no tensor whose size
shape inference can predict is larger than the limit. Other sizes are left to the limits of the process in which
it runs (child.py, where these checks run, too, because a parser may have faults).

Knows ONNX and manifests. Does not run anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from motet.published.limits import USUAL, Limits
from motet.published.manifest import Manifest, ModelRefused, Published, same_bytes
from motet.published.operators import DOMAINS, GROWING, KNOWN


class _Odd(ValueError):
    """A model is wrong; `refuse` adds its client's name."""


def refuse(model: Published, limits: Limits = USUAL) -> None:
    """Raise ModelRefused for a model that must not run."""
    sized(model.manifest, limits)
    same_bytes(model.manifest, model.model)
    try:
        graph(model.manifest, model.model, limits)
    except _Odd as e:
        raise ModelRefused(model.client, str(e)) from e


def sized(manifest: Manifest, limits: Limits = USUAL) -> None:
    """Refuse by the manifest alone, before the model is fetched."""
    for what, many, most in (
        ("bytes", manifest.size, limits.size),
        ("features", len(manifest.features), limits.features),
        ("classes", len(manifest.classes), limits.classes),
    ):
        if many > most:
            raise ModelRefused(
                manifest.client, f"its model has {many} {what}, and at most {most} are allowed"
            )


def graph(manifest: Manifest, raw: bytes, limits: Limits) -> None:
    """Check the bytes as ONNX."""
    model = _parsed(raw)
    _opsets(model, manifest, limits)
    if model.functions or model.training_info or model.graph.sparse_initializer:
        raise _Odd("its model has functions, training steps or sparse constants, which are not allowed")
    if len(model.graph.node) > limits.nodes:
        raise _Odd(f"its model has {len(model.graph.node)} operators, and at most {limits.nodes} are allowed")
    for node in model.graph.node:
        _node(node)
    for tensor in _tensors(model.graph):
        _constant(tensor, limits)
    _declared(model.graph, manifest)
    _valid(model)
    _predicted_sizes(model, limits)


def _parsed(raw: bytes) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.ModelProto.FromString(raw)
    except (DecodeError, RecursionError) as e:
        raise _Odd(f"its model is not ONNX, or is cut off: {e}") from e


def _opsets(model: Any, manifest: Manifest, limits: Limits) -> None:
    import onnx

    if not 3 <= model.ir_version <= onnx.IR_VERSION:
        raise _Odd(f"its model has the ONNX version {model.ir_version}, and 3 to {onnx.IR_VERSION} are known")
    seen: dict[str, int] = {}
    for o in model.opset_import:
        if o.domain not in DOMAINS:
            raise _Odd(f"its model uses operators of {o.domain!r}; ai.onnx and ai.onnx.ml are allowed")
        low, high = limits.opset_ml if o.domain == "ai.onnx.ml" else limits.opset
        if not low <= o.version <= high:
            raise _Odd(f"its model has opset {o.version} of {DOMAINS[o.domain]}; {low} to {high} are allowed")
        seen[DOMAINS[o.domain]] = o.version
    if seen.get("ai.onnx") != manifest.opset:
        raise _Odd(f"its model has opset {seen.get('ai.onnx')}, and its manifest says {manifest.opset}")


def _node(node: Any) -> None:
    domain = DOMAINS.get(node.domain)
    if domain is None or node.op_type not in KNOWN[domain]:
        name = ".".join(n for n in (node.domain, node.op_type) if n)
        raise _Odd(f"its model uses the operator {name[:100]!r}, which is not allowed")
    for a in node.attribute:
        if a.HasField("g") or a.graphs or a.HasField("sparse_tensor") or a.sparse_tensors or a.ref_attr_name:
            raise _Odd(
                f"its operator {node.op_type} has a graph or a sparse tensor inside, which is not allowed"
            )


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in graph.node:
        for a in node.attribute:
            yield from ([a.t] if a.HasField("t") else [])
            yield from a.tensors


def _constant(tensor: Any, limits: Limits) -> None:
    from onnx import TensorProto

    name = tensor.name[:100]
    if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
        raise _Odd(f"its constant {name!r} lies in another file, which is not allowed")
    if tensor.data_type in (TensorProto.STRING, TensorProto.UNDEFINED):
        raise _Odd(f"its constant {name!r} is not a tensor of numbers")
    if any(d < 0 for d in tensor.dims) or math.prod(tensor.dims) > limits.cells:
        raise _Odd(
            f"its constant {name!r} of shape {list(tensor.dims)[:8]} is larger than {limits.cells} numbers"
        )


def _declared(graph: Any, manifest: Manifest) -> None:
    constants = {c.name for c in graph.initializer}
    inputs = [i for i in graph.input if i.name not in constants]
    for what, found, columns in (
        ("input", inputs, len(manifest.features)),
        ("output", list(graph.output), manifest.outputs),
    ):
        if len(found) != 1:
            raise _Odd(f"its model has {len(found)} {what}s, and one is allowed")
        if (has := _shape(found[0])) != [None, columns]:
            raise _Odd(f"its model's {what} is {has}, and its manifest declares [None, {columns}] of float")


def _shape(value: Any) -> list[int | None] | str:
    """[None, columns] of a float tensor whose first dimension is open; another thing's name."""
    from onnx import TensorProto

    kind = value.type.WhichOneof("value")
    if kind != "tensor_type" or value.type.tensor_type.elem_type != TensorProto.FLOAT:
        return f"no tensor of float ({kind})"
    return [d.dim_value if d.HasField("dim_value") else None for d in value.type.tensor_type.shape.dim]


def _valid(model: Any) -> None:
    import onnx

    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as e:
        raise _Odd(f"its model is not valid ONNX: {_first(e)}") from e


def _predicted_sizes(model: Any, limits: Limits) -> None:
    """Check the sizes of tensors that shape inference predicts for a full batch."""
    import onnx

    fed = next(i for i in model.graph.input if i.name not in {c.name for c in model.graph.initializer})
    fed.type.tensor_type.shape.dim[0].dim_value = limits.batch
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as e:
        raise _Odd(f"its model's shapes do not fit: {_first(e)}") from e
    shapes = {v.name: _dims(v) for v in (*graph.value_info, *graph.output)}
    known = {
        o for n in graph.node if n.op_type == "Shape" for o in n.output
    }  # no larger than tensors that exist
    for node in graph.node:
        for name in filter(None, node.output):
            dims = shapes.get(name)
            if dims is not None and math.prod(dims) > limits.cells:
                raise _Odd(
                    f"its operator {node.op_type} makes a tensor of shape {dims[:8]}, "
                    f"larger than {limits.cells} numbers"
                )
            copies = node.op_type == "ConstantOfShape" and node.input[0] in known
            if dims is None and node.op_type in GROWING and not copies:
                raise _Odd(f"how much its operator {node.op_type} makes is not known before it runs")


def _dims(value: Any) -> list[int] | None:
    if value.type.WhichOneof("value") != "tensor_type" or not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    return [d.dim_value for d in dims] if all(d.HasField("dim_value") for d in dims) else None


def _first(e: Exception) -> str:
    return str(e).strip().split("\n")[0][:200]
