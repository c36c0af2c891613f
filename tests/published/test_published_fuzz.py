"""Mutated models and manifests: each is answered or refused, and no child ends."""

from __future__ import annotations

import json
import random
import time

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from torch import nn

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from motet.published import (  # noqa: E402
    Manifest,
    ModelRefused,
    Published,
    Runner,
    predict,
    publish,
)
from strangers import FEATURES, HOSTILE, LIMITS, NAMES, X, honest, signed  # noqa: E402


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


def fuzz(models: int, seed: int) -> tuple[int, int]:
    """Models refused, and children that had to be started; every answer is probabilities or a refusal."""
    rng, refusals = random.Random(seed), 0
    started, sane = [], honest()
    valid = seeds()
    with Runner(LIMITS) as runner:
        for _ in range(models):
            raw = rng.choice(valid).model
            raw = tangled(raw, rng) if rng.random() < 0.4 else mutated(raw, rng)
            found, refused = predict([signed(raw)], X, NAMES, runner=runner)
            assert len(found) + len(refused) == 1
            assert all(r.startswith("client mallory: ") for r in refused.values())
            assert all(p.shape == (20, 2) and np.isfinite(p).all() for p in found.values())
            refusals += len(refused)
            if runner._child and runner._child.process.pid not in started:
                started.append(runner._child.process.pid)
        assert set(predict([sane], X, NAMES, runner=runner)[0]) == {"honest"}
    return refusals, len(started)


def test_mutated_models_are_answered_or_refused() -> None:
    refusals, _ = fuzz(3_000, seed=0)
    assert refusals > 1_500


@pytest.mark.long
def test_many_mutated_models_are_answered_or_refused() -> None:
    refusals, started = fuzz(300_000, seed=int(time.time()))
    print(f"300,000 models, {refusals} refused, {started} children")
    assert refusals > 150_000


def test_mutated_manifests_are_read_or_refused() -> None:
    rng, text = random.Random(0), honest().manifest.to_json().encode()
    for _ in range(2000):
        try:
            Manifest.from_json(mutated(text, rng), "honest")
        except ModelRefused as e:
            assert str(e).startswith("client honest: ")
    assert json.loads(text)["client"] == "honest"
