"""Hostile messages: whatever the decoder is given, it returns a tree or raises WireError, and nothing else.

Half a minute of mutated messages in every day's tests, five minutes in the long ones. A failure names the
seed and the message; MOTET_FUZZ_SEED=… plays the same ones again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from motet.deploy.agreement.layout import Layout
from motet.engines.letters import Letter, Reply
from motet.vec import Vec
from motet.wire import WireError, check_form, form, pack, unpack
from motet.wire.format import MAGIC

START = len(MAGIC) + 8
W = Vec(a=torch.arange(6.0).reshape(2, 3), b=torch.zeros(0, 4), c=torch.tensor(True))
TREES: list[Any] = [
    (), None, 3, "text", b"bytes", W, {"w": W, "n": [1, 2.5, (True, None)], "x": b""},
    [torch.zeros(3, dtype=torch.int8), torch.ones(2, 2, dtype=torch.bfloat16)],
    {"deep": [[[[[(W, {"k": b"v"})]]]]]},
]  # fmt: skip
LAYOUT = Layout((("age", "number", ""), ("sex=f", "flag", "sex")), "classes", ("no", "yes"))
MESSAGES = [
    *map(pack, TREES),
    Letter("verb", "r", 3, 1, 7, "train", recipe={"method": {"name": "fedavg"}}, send=W, base=(2, 0)).pack(),
    Reply(W, 12).pack(),
    pack(LAYOUT.tree()),
]
ODD: list[Any] = [
    0, -1, 1, 2**31, 2**63, 2**64, 3_000_000_000, 1e308, float("nan"), "", "float32", "vec", None, True, [], {},
    [0], [-1], [2**62, 2**62], [0, 2**62, 2**62], [1] * 40, {"at": 0}, {"is": []}, {"vec": {"a": {"is": 1}}},
    {"map": []}, {"tuple": {}}, {"bytes": -5}, {"bytes": 1.5}, {"dtype": "float32", "shape": "ab"},
    {"at": 0, "is": 1}, {"dtype": "object", "shape": [1]},
]  # fmt: skip
READERS: list[Callable[[bytes], Any]] = [
    unpack,
    lambda m: unpack(m, limit=2000),
    lambda m: check_form(unpack(m), TREES[6]),
    lambda m: Letter.read(m, 10_000),
    lambda m: Reply.read(m, 10_000, like=W, loose=True),
    lambda m: Layout.of(unpack(m)),
]


def mutated(message: bytes, dice: random.Random) -> bytes:
    """One or a few changes: of bytes, of the lengths, or of the header's JSON."""
    for _ in range(dice.choice((1, 1, 2, 4))):
        message = dice.choice((flipped, cut, grown, relengthed, reworded, spliced))(message, dice)
    return message


def flipped(m: bytes, dice: random.Random) -> bytes:
    if not m:
        return m
    at = dice.randrange(len(m))
    return m[:at] + bytes([dice.randrange(256)]) + m[at + 1 :]


def cut(m: bytes, dice: random.Random) -> bytes:
    a, b = sorted(dice.randrange(len(m) + 1) for _ in range(2))
    return m[:a] + m[b:] if dice.random() < 0.5 else m[:a]


def grown(m: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(m) + 1)
    return m[:at] + dice.randbytes(dice.choice((1, 4, 200))) + m[at:]


def relengthed(m: bytes, dice: random.Random) -> bytes:
    return m[:8] + struct.pack("<Q", dice.choice((0, 1, len(m), 2**32, 2**64 - 1))) + m[16:]


def spliced(m: bytes, dice: random.Random) -> bytes:
    other = dice.choice(MESSAGES)
    return m[: dice.randrange(len(m) + 1)] + other[dice.randrange(len(other)) :]


def reworded(m: bytes, dice: random.Random) -> bytes:
    """Another value somewhere in the header, with its length set right."""
    try:
        (length,) = struct.unpack("<Q", m[8:START])
        header = json.loads(m[START : START + length])
    except (struct.error, ValueError, RecursionError):
        return m
    places: list[tuple[Any, Any]] = []
    if isinstance(header, dict | list):
        walk(header, places)
    if places:
        box, key = dice.choice(places)
        box[key] = dice.choice(ODD)
    text = json.dumps(header).encode()
    return MAGIC + struct.pack("<Q", len(text)) + text + m[START + length :]


def walk(value: Any, places: list[tuple[Any, Any]]) -> None:
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        places.append((value, key))
        if isinstance(value[key], dict | list):
            walk(value[key], places)


def fuzz(messages: int) -> None:
    seed = int(os.environ.get("MOTET_FUZZ_SEED", time.time_ns() % 2**32))
    dice = random.Random(seed)
    for _ in range(messages):
        message = mutated(dice.choice(MESSAGES), dice)
        for reader in READERS:
            with contextlib.suppress(WireError):
                try:
                    reader(message)
                except WireError:
                    raise
                except Exception as e:  # noqa: BLE001  whatever it is, it is what this test is for
                    pytest.fail(f"MOTET_FUZZ_SEED={seed}: {type(e).__name__}: {e} from {message!r}")
    print(f"seed {seed}: {messages} messages, each for {len(READERS)} readers")


def test_hostile_messages_end_in_wire_errors_and_trees() -> None:
    fuzz(20_000)


@pytest.mark.long
def test_millions_of_hostile_messages_end_in_wire_errors_and_trees() -> None:
    fuzz(3_000_000)


# ---- claims ----


def claimed(header: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return MAGIC + struct.pack("<Q", len(text)) + text + body


@pytest.mark.parametrize(
    "array",
    [{"dtype": "float32", "shape": [750_000_000]}, {"bytes": 3_000_000_000}, {"dtype": "uint8", "shape": [2**47]},
     {"dtype": "int8", "shape": [2**40, 2**40]}, {"dtype": "int8", "shape": [0, 2**47, 2**47]},
     {"dtype": "int8", "shape": [1] * 33}, {"dtype": "int8", "shape": [True]}],
)  # fmt: skip
def test_claims_of_gigabytes_are_refused_without_memory_for_them(array: dict[str, Any]) -> None:
    message = claimed({"tree": {"at": 0}, "arrays": [array]}, b"1234")
    tracemalloc.start()
    with pytest.raises(WireError):
        unpack(message)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    "header",
    [
        {"tree": {"list": [{"at": 0}, {"at": 0}]}, "arrays": [{"bytes": 1}]},  # one array twice
        {"tree": {"list": [{"at": 1}, {"at": 0}]}, "arrays": [{"bytes": 1}, {"bytes": 0}]},  # out of order
        {"tree": {"at": -1}, "arrays": [{"bytes": 1}]},
        {"tree": {"list": []}, "arrays": [{"bytes": 1}]},  # an array that is nowhere
        {"tree": {"is": {"a": 1}}, "arrays": [{"bytes": 1}]},
        {"tree": {"vec": {"a": {"at": 0}}}, "arrays": [{"bytes": 1}]},  # weights that are bytes
        {"tree": {"at": 0}, "arrays": [{"dtype": "bool", "shape": [1]}]},  # "x" is no truth value
        {"tree": {"at": 0}},
        {"arrays": []},
        [],
    ],
)
def test_a_header_that_pack_never_writes_is_refused(header: Any) -> None:
    with pytest.raises(WireError):
        unpack(claimed(header, b"x"))


def test_deep_and_long_headers_are_refused() -> None:
    deep = b'{"tree":' + b'{"list":[' * 100_000
    with pytest.raises(WireError):
        unpack(MAGIC + struct.pack("<Q", len(deep)) + deep)
    long = claimed({"tree": {"is": "x" * (17 << 20)}, "arrays": []})
    with pytest.raises(WireError, match="at most 16777216 are read"):
        unpack(long, limit=1 << 30)
    assert len(unpack(long)) == 17 << 20, "one's own files may have any header"


def test_what_is_no_bytes_is_no_message() -> None:
    with pytest.raises(WireError, match="not a str"):
        unpack("text")  # type: ignore[arg-type]


# ---- what was expected ----


def test_what_is_of_another_form_than_expected_is_refused() -> None:
    tree = {"w": Vec(a=torch.zeros(2, 3)), "n": 5, "blob": b"abc", "who": "me"}
    check_form(tree | {"n": 6, "blob": b"", "who": "you"}, tree)
    other: list[Any] = [
        tree | {"w": Vec(a=torch.zeros(3, 2))}, tree | {"w": Vec(b=torch.zeros(2, 3))}, tree | {"n": 5.0},
        tree | {"w": Vec(a=torch.zeros(2, 3).double())}, tree | {"w": {"a": torch.zeros(2, 3)}},
        tree | {"blob": "abc"}, tree | {"more": 1}, {"w": tree["w"]}, (), [tree],
    ]  # fmt: skip
    for wrong in other:
        with pytest.raises(WireError):
            check_form(wrong, tree)
        assert form(wrong) != form(tree)


def test_a_loose_form_allows_other_sizes_and_nothing_else() -> None:
    want = {"v": torch.zeros(3), "m": torch.zeros(2, 2)}
    check_form({"v": torch.ones(9), "m": torch.zeros(5, 1)}, want, loose=True)
    for wrong in ({"v": torch.ones(9, 1), "m": want["m"]}, {"v": torch.ones(3).long(), "m": want["m"]}):
        with pytest.raises(WireError):
            check_form(wrong, want, loose=True)
