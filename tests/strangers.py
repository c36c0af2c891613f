"""Models that a stranger might send, honest and hostile ones, each with what its refusal says."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from sklearn.ensemble import RandomForestClassifier
from torch import nn

from motet.published import Feature, Limits, Manifest, Published, publish

NAMES = ("a", "b", "c")
FEATURES = tuple(Feature(n) for n in NAMES)
X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
LIMITS = Limits(memory=128 << 20, cpu=1, wall=60)


def honest(client: str = "honest") -> Published:
    net = nn.Linear(3, 2)
    return publish(net, FEATURES, client=client, task="classes", classes=("no", "yes"))


def forest() -> Published:
    model = RandomForestClassifier(8, random_state=0).fit(X, X[:, 0] > 0)
    return publish(model, FEATURES, client="mallory", task="classes", classes=("False", "True"))


def signed(raw: bytes, opset: int = 18, **more: Any) -> Published:
    """A model of mallory with a manifest that fits its bytes."""
    fields = {"features": FEATURES, "classes": ("no", "yes"), "task": "classes"} | more
    digest = hashlib.sha256(raw).hexdigest()
    return Published(Manifest("mallory", size=len(raw), sha256=digest, opset=opset, **fields), raw)


def graph(
    nodes: list[Any],
    constants: list[Any] = [],  # noqa: B006
    columns: int = 2,
    domain: str | None = None,
    opset: int = 18,
) -> Published:
    """A model of mallory from operators that read x and end in y."""
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, columns])],
        constants,
    )
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return signed(helper.make_model(made, opset_imports=opsets, ir_version=10).SerializeToString(), opset)


def whole(*numbers: int, name: str) -> Any:
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def node(*words: Any, **more: Any) -> Any:
    return helper.make_node(*words, **more)


def answer_first_two(of: str) -> list[Any]:
    """y = the first two columns of x, plus 0 times all of `of`."""
    return [
        node("ReduceSum", [of], ["all"], keepdims=0),
        node("Mul", ["all", "zero"], ["nothing"]),
        node("Slice", ["x", "from", "to", "axis"], ["two"]),
        node("Add", ["two", "nothing"], ["y"]),
    ]


def for_answer() -> list[Any]:
    zero = numpy_helper.from_array(np.float32(0), "zero")
    return [zero, whole(0, name="from"), whole(2, name="to"), whole(1, name="axis")]


def grown_by_constant() -> Published:
    big = node("ConstantOfShape", ["shape"], ["big"])
    return graph([big, *answer_first_two("big")], [whole(25_000_000_000, name="shape"), *for_answer()])


def grown_by_tile() -> Published:
    big = node("Tile", ["x", "times"], ["big"])
    return graph([big, *answer_first_two("big")], [whole(1 << 20, 1 << 20, name="times"), *for_answer()])


def grown_by_expand() -> Published:
    big = node("Expand", ["zero", "shape"], ["big"])
    return graph([big, *answer_first_two("big")], [whole(1 << 35, name="shape"), *for_answer()])


def grown_unforeseen() -> Published:
    """How much is asked for depends on the rows."""
    nodes = [
        node("ReduceSum", ["x"], ["some"], keepdims=0),
        node("Mul", ["some", "zero"], ["none"]),
        node("Cast", ["none"], ["whole"], to=TensorProto.INT64),
        node("Add", ["whole", "shape"], ["much"]),
        node("ConstantOfShape", ["much"], ["big"]),
    ]
    return graph([*nodes, *answer_first_two("big")], [whole(25_000_000_000, name="shape"), *for_answer()])


def grown_by_doubling() -> Published:
    nodes = [node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(36)]
    return graph([node("Identity", ["x"], ["c0"]), *nodes, *answer_first_two("c36")], for_answer())


def grown_in_secret() -> Published:
    """Doubled 36 times in a way that shape inference loses: only the child's memory can tell."""
    nodes = [
        node("Identity", ["x"], ["c0"]),
        node("ReduceSum", ["x"], ["some"], keepdims=1),
        node("Mul", ["some", "zero"], ["none"]),
        node("Cast", ["none"], ["whole"], to=TensorProto.INT64),
        node("Reshape", ["whole", "axis"], ["start"]),
    ]
    for i in range(36):
        nodes.append(node("Concat", [f"c{i}", f"c{i}"], [f"d{i}"], axis=0))
        nodes.append(node("Slice", [f"d{i}", "start", "end", "from"], [f"c{i + 1}"]))
    return graph([*nodes, *answer_first_two("c36")], [whole((1 << 63) - 1, name="end"), *for_answer()])


def looping() -> Published:
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["h", "h"], ["h2"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h2", TensorProto.FLOAT, None),
        ],
    )
    loop = node("Loop", ["many", "", "x"], ["big"], body=body)
    many = numpy_helper.from_array(np.array(1 << 60), "many")
    return graph([loop, *answer_first_two("big")], [many, *for_answer()])


def stalling() -> Published:
    """Three hundred products of matrices of 3,000 by 3,000, which a kilobyte asks for."""
    nodes = [node("ConstantOfShape", ["shape"], ["m0"])]
    nodes += [node("MatMul", [f"m{i}", "m0"], [f"m{i + 1}"]) for i in range(300)]
    return graph([*nodes, *answer_first_two("m300")], [whole(3000, 3000, name="shape"), *for_answer()])


def circular_tree() -> Published:
    """A tree whose second node is its own root."""
    n = node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=2,
        nodes_treeids=[0, 0],
        nodes_nodeids=[0, 1],
        nodes_featureids=[0, 0],
        nodes_values=[1e30, 1e30],
        nodes_modes=["BRANCH_LEQ", "BRANCH_LEQ"],
        nodes_truenodeids=[1, 0],
        nodes_falsenodeids=[1, 0],
        target_treeids=[0],
        target_nodeids=[1],
        target_ids=[0],
        target_weights=[1.0],
    )
    return graph([n], domain="ai.onnx.ml")


def tree_that_reads_beyond() -> Published:
    n = node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=2,
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[1 << 40, 0, 0],
        nodes_values=[0.0, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0],
        target_nodeids=[1, 2],
        target_ids=[0, 1 << 30],
        target_weights=[1.0, 1.0],
    )
    return graph([n], domain="ai.onnx.ml")


def external() -> Published:
    w = numpy_helper.from_array(np.zeros((3, 2), np.float32), "w")
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    w.external_data.add(key="location", value="/etc/passwd")
    return graph([node("MatMul", ["x", "w"], ["y"])], [w])


def external_inside() -> Published:
    w = numpy_helper.from_array(np.zeros((3, 2), np.float32), "w")
    w.external_data.add(key="location", value="../../etc/passwd")
    return graph([node("Constant", [], ["w"], value=w), node("MatMul", ["x", "w"], ["y"])])


def claims_without_data() -> Published:
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 20, 1 << 15], raw_data=b"1234")
    return graph([node("MatMul", ["x", "w"], ["y"])], [w])


def no_probabilities() -> Published:
    return graph([node("Slice", ["x", "from", "to", "axis"], ["y"])], for_answer()[1:])


def not_a_number() -> Published:
    zero = numpy_helper.from_array(np.zeros((3, 2), np.float32), "w")
    return graph([node("MatMul", ["x", "w"], ["p"]), node("Div", ["p", "p"], ["y"])], [zero])


def other_rows() -> Published:
    """Answers one row, whatever it is asked; the declared shape is right."""
    w = numpy_helper.from_array(np.array([[0.5, 0.5]], np.float32), "w")
    return graph(
        [
            node("ReduceMax", ["x"], ["m"], keepdims=1),
            node("Sub", ["m", "m"], ["n"]),
            node("Add", ["n", "w"], ["y"]),
        ],
        [w],
    )


def columns_that_are_not_there() -> Published:
    """Declares two columns and makes three, behind a reshape that hides it."""
    nodes = [node("Shape", ["x"], ["s"]), node("Reshape", ["x", "s"], ["y"])]
    return graph(nodes)


def text_model() -> Published:
    made = helper.make_graph(
        [node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_strings=["a"], values_floats=[1.0])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, [None, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 2])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 2)]
    return signed(helper.make_model(made, opset_imports=opsets, ir_version=10).SerializeToString())


def cut_off() -> Published:
    raw = forest().model
    return signed(raw[: len(raw) // 2])


HOSTILE: dict[str, tuple[Callable[[], Published], str]] = {
    "truncated": (cut_off, "not ONNX, or is cut off|no graph|outputs|opset"),
    "empty": (lambda: signed(b""), "version 0"),
    "noise": (lambda: signed(random.Random(0).randbytes(1000)), "not ONNX"),
    "custom operator": (
        lambda: graph([node("Backdoor", ["x"], ["y"], domain="evil.org")], domain="evil.org"),
        "operators of 'evil.org'",
    ),
    "custom operator without a domain": (
        lambda: graph([node("Backdoor", ["x"], ["y"])]),
        "operator 'Backdoor', which is not allowed",
    ),
    "Microsoft's operators": (
        lambda: graph([node("Gelu", ["x"], ["y"], domain="com.microsoft")], domain="com.microsoft"),
        "operators of 'com.microsoft'",
    ),
    "chance": (lambda: graph([node("RandomNormalLike", ["x"], ["y"])]), "'RandomNormalLike', which is not"),
    "old opset": (lambda: graph([node("Identity", ["x"], ["y"])], opset=3), "opset 3 of ai.onnx; 7 to"),
    "other opset than declared": (
        lambda: signed(honest().model, opset=9),
        "opset 18, and its manifest says 9",
    ),
    "other input": (
        lambda: signed(honest().model, features=(*FEATURES, Feature("d"))),
        r"input is \[None, 3\], and its manifest declares \[None, 4\]",
    ),
    "other output": (
        lambda: signed(honest().model, classes=("x", "y", "z")),
        r"output is \[None, 2\], and its manifest declares \[None, 3\]",
    ),
    "other output than it has": (
        lambda: graph([node("Identity", ["x"], ["y"])]),
        r"20 rows with the shape \[20, 3\]",
    ),
    "hidden columns": (columns_that_are_not_there, r"20 rows with the shape \[20, 3\]"),
    "one row for all": (other_rows, r"20 rows with the shape \[1, 2\]"),
    "text": (text_model, "no tensor of float"),
    "100 GB by ConstantOfShape": (grown_by_constant, "ConstantOfShape makes a tensor of shape"),
    "a TB by Tile": (grown_by_tile, "Tile makes a tensor of shape"),
    "100 GB by Expand": (grown_by_expand, "Expand makes a tensor of shape"),
    "100 GB by Loop": (looping, "operator 'Loop', which is not allowed"),
    "100 GB that are not foreseen": (grown_unforeseen, "not known before it runs"),
    "100 GB by doubling": (grown_by_doubling, "Concat makes a tensor of shape"),
    "100 GB by secret doubling": (grown_in_secret, "more memory than the limit"),
    "stalls": (stalling, "computed for more than 1 s"),
    "a tree that never ends": (circular_tree, "does not run"),
    "a tree that reads beyond": (tree_that_reads_beyond, "does not run|ended the process"),
    "external data": (external, "constant 'w' lies in another file"),
    "external data in an attribute": (external_inside, "constant 'w' lies in another file"),
    "a shape without data": (claims_without_data, "larger than 50000000 numbers"),
    "no probabilities": (no_probabilities, "are no probabilities"),
    "not a number": (not_a_number, "not all finite"),
    "lies about sha256": (
        lambda: replace(honest("mallory"), manifest=replace(honest("mallory").manifest, sha256="0" * 64)),
        "sha256",
    ),
    "claims 2 GB": (
        lambda: replace(honest("mallory"), manifest=replace(honest("mallory").manifest, size=2 << 30)),
        "its model has 2147483648 bytes, and at most",
    ),
}
