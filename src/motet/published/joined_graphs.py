"""Several ONNX models in one graph: each reads some columns of what the graph has so far.

    graph = JoinedGraph(columns=2, opset=newest(models))
    out = graph.model(model, graph.columns("x", ["age", "hours"], features))
    proto = graph.finished(out, outputs=2)

Knows ModelProto and names inside graphs. Does not know what the models predict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from motet.errors import UsageError
from motet.published.graph import OPSET, OPSET_ML
from motet.published.manifest import Feature
from motet.published.runner import places_and_fills

_NEW_IN_ML_2 = "LabelEncoder"  # means something else in version 1 of ai.onnx.ml


class JoinedGraph:
    """A graph that grows from its input `x` (rows, columns), which is of 64 bits if `double`."""

    def __init__(self, columns: int, opset: int = OPSET, *, double: bool = False) -> None:
        self.width, self.opset, self.double = columns, opset, double
        self.opset_ml, self.ir, self._names = OPSET_ML, 10, 0
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    # ---- operators ----

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """One more operator; the name of its output."""
        from onnx import helper

        to = self._name()
        self.nodes.append(helper.make_node(kind, list(inputs), [to], **attributes))
        return to

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        from onnx import numpy_helper

        to = self._name()
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), to))
        return to

    def take(self, at: str, places: Sequence[int]) -> str:
        """Columns of a tensor by their places."""
        return self.node("Gather", [at, self.constant(places, np.int64)], axis=1)

    def columns(self, at: str, names: Sequence[str], features: Sequence[Feature]) -> str:
        """The columns that a model reads, of a tensor whose columns are `names`; defaults for those that lack."""
        places, fills = places_and_fills(features, names)
        if not fills:
            return self.take(at, places)
        rows = self.node("Shape", [at], start=0, end=1)
        shape = self.node("Concat", [rows, self.constant([len(fills)], np.int64)], axis=0)
        rest = self.node("Expand", [self.constant([fills]), shape])
        return self.take(self.node("Concat", [at, rest], axis=1), places)

    def _name(self) -> str:
        self._names += 1
        return f"joined_{self._names}"

    # ---- models ----

    def model(self, proto: Any, at: str) -> str:
        """A whole model that reads `at`; the name of its output."""
        proto = _raised(proto, self.opset)
        self.opset_ml = max(self.opset_ml, version_of(proto, "ai.onnx.ml"))
        self.ir = max(self.ir, proto.ir_version)
        known = {c.name for c in proto.graph.initializer}
        (inside,) = [i.name for i in proto.graph.input if i.name not in known]
        prefix = self._name()

        def renamed(name: str) -> str:
            return at if name == inside else f"{prefix}_{name}" if name else ""

        for k, node in enumerate(proto.graph.node):
            node.input[:], node.output[:] = list(map(renamed, node.input)), list(map(renamed, node.output))
            node.name = f"{prefix}_{k}"
            self.nodes.append(node)
        for constant in proto.graph.initializer:
            constant.name = renamed(constant.name)
            self.constants.append(constant)
        return renamed(proto.graph.output[0].name)

    def finished(self, last: str, outputs: int) -> Any:
        """The graph as a ModelProto whose output `last` is called y."""
        from onnx import TensorProto, helper

        kind = TensorProto.DOUBLE if self.double else TensorProto.FLOAT
        graph = helper.make_graph(
            [*self.nodes, helper.make_node("Identity", [last], ["y"])],
            "joined",
            [helper.make_tensor_value_info("x", kind, [None, self.width])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, outputs])],
            self.constants,
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("ai.onnx.ml", self.opset_ml)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=self.ir)


def newest(protos: Iterable[Any]) -> int:
    """The opset that all of them can be raised to."""
    return max([OPSET, *(version_of(p, "") for p in protos)])


def version_of(proto: Any, domain: str) -> int:
    names = ("", "ai.onnx") if domain == "" else (domain,)
    return max((int(o.version) for o in proto.opset_import if o.domain in names), default=0)


def _raised(proto: Any, opset: int) -> Any:
    """A copy of the model in this opset; raises UsageError where ONNX's own converter cannot make it."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    if version_of(copy, "ai.onnx.ml") == 1 and any(n.op_type == _NEW_IN_ML_2 for n in copy.graph.node):
        raise UsageError(f"a part uses the first version of {_NEW_IN_ML_2}, which others cannot stand beside")
    if version_of(copy, "") in (0, opset):
        return copy
    try:
        return onnx.version_converter.convert_version(copy, opset)
    except (RuntimeError, ValueError) as e:
        why = str(e).strip().splitlines()[0][:200]
        raise UsageError(
            f"a part of opset {version_of(proto, '')} cannot be raised to opset {opset}: {why}"
        ) from e
