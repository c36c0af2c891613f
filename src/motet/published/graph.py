"""Small operations on ONNX graphs: keep one output, drop what nothing needs, put columns in their places.

Knows ModelProto. Does not know which library made it.
"""

from __future__ import annotations

from typing import Any

OPSET, OPSET_ML = 18, 3  # what new graphs are written in


def one_output(model: Any, which: int, columns: int) -> Any:
    """The model with output `which` alone, called y; what only other outputs need is dropped."""
    from onnx import TensorProto, helper

    graph = model.graph
    if len(graph.output) <= which:
        raise ValueError(f"the converted model has {len(graph.output)} outputs\nhint: it needs predict_proba")
    rename(graph, graph.output[which].name, "y")
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, columns]))
    prune(graph)
    if not any(o.domain in ("", "ai.onnx") for o in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", 15))
    return model


def rename(graph: Any, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new if n == old else n for n in names]


def prune(graph: Any) -> None:
    """Drop operators and constants that no output needs."""
    needed, kept = {o.name for o in graph.output}, []
    for node in reversed(graph.node):
        if needed & set(node.output):
            needed |= set(node.input)
            kept.append(node)
    constants = [c for c in graph.initializer if c.name in needed]
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(constants)


def spread(model: Any, places: list[int], columns: int) -> Any:
    """Columns of y in the given places of a wider y, zeros elsewhere; nothing where they are in place."""
    if places == list(range(columns)):
        return model
    import numpy as np
    from onnx import helper, numpy_helper

    to = np.zeros((len(places), columns), np.float32)
    to[range(len(places)), places] = 1
    rename(model.graph, "y", "some")
    model.graph.initializer.append(numpy_helper.from_array(to, "places"))
    model.graph.node.append(helper.make_node("MatMul", ["some", "places"], ["y"], name="spread"))
    return model


def assemble(
    nodes: list[Any],
    constants: list[tuple[str, Any]],
    features: int,
    columns: int,
    last: str = "y",
) -> Any:
    """A model from its operators, which read x and end in `last`, and its constants of 32 bits."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    more = [] if last == "y" else [helper.make_node("Identity", [last], ["y"])]
    graph = helper.make_graph(
        [*nodes, *more],
        "published",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, columns])],
        [numpy_helper.from_array(np.asarray(v, np.float32), name) for name, v in constants],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", OPSET_ML)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def two_classes(p: str, to: str) -> list[Any]:
    """Probabilities of both classes from those of the second; the constant `one` is 1."""
    from onnx import helper

    return [
        helper.make_node("Sub", ["one", p], ["other"]),
        helper.make_node("Concat", ["other", p], [to], axis=1),
    ]


def rescaled(raw: bytes, scaling: list[tuple[float, float]], target: tuple[float, float]) -> bytes:
    """A model that reads standardised columns, from one that reads them in their own units; `scaling` has the middle
    and spread of each column, `target` those of what is predicted. What is as it was gets no operator."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.ModelProto.FromString(raw)
    graph, constants = model.graph, {c.name for c in model.graph.initializer}
    (inside,) = [i.name for i in graph.input if i.name not in constants]
    middle, spread = np.array(scaling, np.float32).T
    if (middle != 0).any() or (spread != 1).any():
        names = ["motet_spread", "motet_middle"]
        graph.initializer.extend(
            numpy_helper.from_array(v, n) for n, v in zip(names, (spread, middle), strict=True)
        )
        before = [
            helper.make_node("Mul", ["motet_x", names[0]], ["motet_wide"]),
            helper.make_node("Add", ["motet_wide", names[1]], [inside]),
        ]
        nodes = [*before, *graph.node]
        del graph.node[:], graph.input[:]
        graph.node.extend(nodes)
        shape = [None, len(scaling)]
        graph.input.append(helper.make_tensor_value_info("motet_x", TensorProto.FLOAT, shape))
    if target != (0.0, 1.0):
        outside = graph.output[0].name
        rename(graph, outside, "motet_own")
        ends = [
            numpy_helper.from_array(np.array([v], np.float32), f"motet_{n}")
            for n, v in zip("os", target, strict=True)
        ]
        graph.initializer.extend(ends)
        graph.node.append(helper.make_node("Sub", ["motet_own", "motet_o"], ["motet_off"]))
        graph.node.append(helper.make_node("Div", ["motet_off", "motet_s"], [outside]))
    return bytes(model.SerializeToString(deterministic=True))


def gathered(raw: bytes, places: list[int], turned: list[bool], columns: int) -> bytes:
    """A model that reads `columns` columns, each of its own columns from one of these places; 1 - x where `turned`."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.ModelProto.FromString(raw)
    graph, constants = model.graph, {c.name for c in model.graph.initializer}
    (inside,) = [i.name for i in graph.input if i.name not in constants]
    round_ = np.array(turned, np.float32)
    for name, value in (("places", np.array(places)), ("sign", 1 - 2 * round_), ("offset", round_)):
        graph.initializer.append(numpy_helper.from_array(value, f"motet_link_{name}"))
    before = [
        helper.make_node("Gather", ["motet_link_x", "motet_link_places"], ["motet_link_taken"], axis=1),
        helper.make_node("Mul", ["motet_link_taken", "motet_link_sign"], ["motet_link_signed"]),
        helper.make_node("Add", ["motet_link_signed", "motet_link_offset"], [inside]),
    ]
    nodes = [*before, *graph.node]
    del graph.node[:], graph.input[:]
    graph.node.extend(nodes)
    graph.input.append(helper.make_tensor_value_info("motet_link_x", TensorProto.FLOAT, [None, columns]))
    return bytes(model.SerializeToString(deterministic=True))
