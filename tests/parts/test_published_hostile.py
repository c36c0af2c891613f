"""What a stranger may send: each is refused with the client's name, and the others go on."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from sklearn.ensemble import RandomForestClassifier  # noqa: E402

from motet.parts.published import Feature, Limits, Manifest, Published, Refused, Runner, predict, publish  # noqa: E402
from motet.parts.published.folder import load, save  # noqa: E402

NAMES = ("a", "b", "c")
FEATURES = tuple(Feature(n) for n in NAMES)
X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
LIMITS = Limits(memory=128 << 20, cpu=1, wall=60)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(LIMITS) as r:
        yield r


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


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_model_is_refused_by_name_and_the_others_go_on(name: str, runner: Runner) -> None:
    make, reason = HOSTILE[name]
    one, other = honest("one"), honest("other")
    said, refused = predict([one, make(), other], X, NAMES, runner=runner)
    assert set(said) == {"one", "other"}
    assert list(refused) == ["mallory"]
    assert refused["mallory"].startswith("client mallory: ")
    assert pytest.approx(1) == said["other"].sum(1)
    assert re.search(reason, refused["mallory"]), refused["mallory"]


def test_all_of_them_at_once_leave_the_honest_ones(runner: Runner) -> None:
    models = [
        m for i, (make, _) in enumerate(HOSTILE.values()) for m in (_as(make(), f"m{i}"), honest(f"h{i}"))
    ]
    said, refused = predict(models, X, NAMES, runner=runner)
    assert set(said) == {f"h{i}" for i in range(len(HOSTILE))}
    assert set(refused) == {f"m{i}" for i in range(len(HOSTILE))}
    assert all(reason.startswith(f"client {who}: ") for who, reason in refused.items())


def _as(model: Published, client: str) -> Published:
    return replace(model, manifest=replace(model.manifest, client=client))


def test_the_children_of_small_models_are_small() -> None:
    sizes = {name: len(make().model) for name, (make, _) in HOSTILE.items() if "GB" in name}
    assert max(v for k, v in sizes.items() if k.split()[2:] != ["secret", "doubling"]) < 4096


def test_a_file_of_2_gb_is_not_read(tmp_path: Any) -> None:
    save(honest(), tmp_path)
    with open(tmp_path / "honest.onnx", "r+b") as f:
        f.truncate(2 << 30)  # a sparse file: no 2 GB are written
    with pytest.raises(Refused, match="client honest: its model's file has 2147483648 bytes"):
        load(tmp_path, "honest")


def test_a_model_goes_through_a_folder(tmp_path: Any) -> None:
    one = honest("a/b")
    save(one, tmp_path)
    assert load(tmp_path, "a/b") == one


def test_a_refused_model_is_not_tried_again() -> None:
    with Runner(LIMITS) as runner:
        first = predict([stalling()], X, NAMES, runner=runner)[1]
        assert runner._child is None  # it was ended
        assert predict([stalling()], X, NAMES, runner=runner)[1] == first
        assert runner._child is None


def test_a_child_that_stands_still_is_ended_in_time() -> None:
    with Runner(replace(LIMITS, wall=3)) as runner:
        predict([honest("one")], X, NAMES, runner=runner)
        assert runner._child
        os.kill(runner._child.process.pid, signal.SIGSTOP)
        refused = predict([honest("two")], X, NAMES, runner=runner)[1]
        assert refused == {"two": "client two: its model did not answer within 3 s"}
        assert set(predict([honest("three")], X, NAMES, runner=runner)[0]) == {"three"}


def test_a_child_that_talks_nonsense_is_replaced() -> None:
    with Runner(LIMITS) as runner:
        one = honest("one")
        sane = predict([one], X, NAMES, runner=runner)[0]["one"]
        assert runner._child
        before = runner._child.process.pid
        with open(f"/proc/{before}/fd/3", "wb") as answers:
            answers.write(b"\xff" * 100)
        np.testing.assert_array_equal(predict([one], X, NAMES, runner=runner)[0]["one"], sane)
        assert runner._child and runner._child.process.pid != before


def test_threads_share_a_child(runner: Runner) -> None:
    models = [honest(f"h{i}") for i in range(4)]
    alone = [predict([m], X, NAMES, runner=runner)[0][m.client] for m in models]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda m: predict([m], X, NAMES, runner=runner)[0][m.client], models * 5))
    for i, said in enumerate(together):
        np.testing.assert_array_equal(said, alone[i % 4])


def test_a_child_that_dies_between_models_is_replaced(runner: Runner) -> None:
    predict([honest("one")], X, NAMES, runner=runner)
    assert runner._child
    runner._child.process.kill()
    runner._child.process.wait()
    assert set(predict([honest("two")], X, NAMES, runner=runner)[0]) == {"two"}


def test_a_child_can_open_no_file(runner: Runner) -> None:
    predict([honest("one")], X, NAMES, runner=runner)
    assert runner._child
    with open(f"/proc/{runner._child.process.pid}/limits") as f:
        limits = {line[:26].strip(): line[26:].split() for line in f}
    assert limits["Max open files"][:2] == ["4", "4"]
    assert limits["Max file size"][:2] == ["0", "0"]
    assert limits["Max address space"][0].isdigit()


def test_two_models_of_one_client_are_not_both_taken() -> None:
    said, refused = predict([honest("a"), honest("a")], X, NAMES)
    assert set(said) == {"a"}
    assert refused == {"a": "client a: it published two models"}


# Fuzzing.


def seeds() -> list[Published]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    few = RandomForestClassifier(2, max_depth=3, random_state=0).fit(x, x[:, 0] > 0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    more = {"client": "mallory", "task": "classes"}
    return [
        publish(few, FEATURES, classes=("False", "True"), **more),
        publish(net, FEATURES, classes=("no", "yes"), **more),
        *(make() for name, (make, _) in HOSTILE.items() if name in ("hidden columns", "no probabilities")),
    ]


def mutated(raw: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, dropped, repeated, or numbers put in the place of others."""
    out = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(out))
        kind = rng.randrange(6)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.choice((0, 1, 127, 128, 255))
        elif kind == 2:
            del out[at : at + rng.randrange(1, 20)]
        elif kind == 3:
            out[at:at] = out[at : at + rng.randrange(1, 60)]
        elif kind == 4:
            out[at : at + 4] = rng.choice((b"\xff\xff\xff\x7f", b"\x00\x00\xc0\x7f", b"\x80\x80\x80\x08"))
        else:
            out = out[: max(1, at)]
        out = out or bytearray(b"\x00")
    return bytes(out)


OPERATORS = ["Add", "Gemm", "Softmax", "Slice", "Tile", "Expand", "Concat", "TopK", "Conv", "LSTM", "Where"]


def tangled(raw: bytes, rng: random.Random) -> bytes:
    """Valid protobuf whose fields say other things: names, numbers and kinds of operators exchanged."""
    model = onnx.ModelProto.FromString(raw)
    for _ in range(rng.choice((1, 2, 3))):
        n = rng.choice(model.graph.node)
        kind = rng.randrange(5)
        if kind == 0 and n.input:
            n.input[rng.randrange(len(n.input))] = rng.choice(
                ["x", "y", "", "h0", *(c.name for c in model.graph.initializer)]
            )
        elif kind == 1:
            n.op_type = rng.choice(OPERATORS)
        elif kind == 2 and n.attribute:
            a = rng.choice(n.attribute)
            for numbers in (a.ints, a.floats):
                if numbers:
                    numbers[rng.randrange(len(numbers))] = rng.choice((-1, 0, 1, 7, 2**31 - 1))
            a.i = rng.choice((-1, 0, 2, 2**40)) if a.HasField("i") else a.i
        elif kind == 3 and model.graph.initializer:
            c = rng.choice(model.graph.initializer)
            if c.dims:
                c.dims[rng.randrange(len(c.dims))] = rng.choice((-1, 0, 1, 3, 2**33))
        else:
            model.graph.node.append(n)
    return model.SerializeToString()


def fuzz(seconds: float, seed: int) -> tuple[int, int, int]:
    """Models tried, refused, and children that had to be started; every answer is probabilities or a refusal."""
    rng, tried, refusals = random.Random(seed), 0, 0
    started, sane = [], honest()
    until = time.monotonic() + seconds
    valid = seeds()
    with Runner(LIMITS) as runner:
        while time.monotonic() < until:
            raw = rng.choice(valid).model
            raw = tangled(raw, rng) if rng.random() < 0.4 else mutated(raw, rng)
            said, refused = predict([signed(raw)], X, NAMES, runner=runner)
            assert len(said) + len(refused) == 1
            assert all(r.startswith("client mallory: ") for r in refused.values())
            assert all(p.shape == (20, 2) and np.isfinite(p).all() for p in said.values())
            tried, refusals = tried + 1, refusals + len(refused)
            if runner._child and runner._child.process.pid not in started:
                started.append(runner._child.process.pid)
        assert set(predict([sane], X, NAMES, runner=runner)[0]) == {"honest"}
    return tried, refusals, len(started)


def test_mutated_models_are_answered_or_refused() -> None:
    seconds = float(os.environ.get("MOTET_FUZZ_SECONDS", "30"))
    tried, refusals, _ = fuzz(seconds, seed=0)
    assert tried > 20 * min(seconds, 10)
    assert refusals > tried / 2


@pytest.mark.long
def test_mutated_models_are_answered_or_refused_for_five_minutes() -> None:
    tried, refusals, started = fuzz(300, seed=int(time.time()))
    print(f"{tried} models, {refusals} refused, {started} children")
    assert refusals > tried / 2


def test_mutated_manifests_are_read_or_refused() -> None:
    rng, text = random.Random(0), honest().manifest.to_json().encode()
    for _ in range(2000):
        try:
            Manifest.from_json(mutated(text, rng), "honest")
        except Refused as e:
            assert str(e).startswith("client honest: ")
    assert json.loads(text)["client"] == "honest"
