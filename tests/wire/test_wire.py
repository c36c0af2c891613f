"""Trees over the wire: they come back the same, and damaged messages are refused."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from motet.vec import Vec
from motet.wire import WireError, pack, size, unpack

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


@st.composite
def tensors(draw: Any) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    many = int(torch.tensor(shape).prod()) if shape else 1
    numbers = draw(st.lists(st.integers(0, 200), min_size=many, max_size=many))
    return torch.tensor(numbers, dtype=torch.float64).reshape(shape).to(draw(st.sampled_from(DTYPES)))


numbers = st.integers() | st.floats(allow_nan=False)
plain = st.none() | st.booleans() | numbers | st.text(max_size=5) | st.binary(max_size=5) | tensors()
keys = st.text(max_size=4)
trees = st.recursive(
    plain,
    lambda t: (
        st.lists(t, max_size=3)
        | st.lists(t, max_size=3).map(tuple)
        | st.dictionaries(keys, t, max_size=3)
        | st.dictionaries(keys, tensors(), max_size=3).map(Vec)
    ),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@given(trees)
@settings(max_examples=150, deadline=None)
def test_a_tree_comes_back_as_it_was_sent(tree: Any) -> None:
    message = pack(tree)
    assert same(unpack(message), tree)
    assert size(tree) == len(message)


@given(trees, st.data())
@settings(max_examples=150, deadline=None)
def test_damage_ends_in_a_wire_error_or_in_a_tree_and_in_nothing_else(tree: Any, data: Any) -> None:
    message = bytearray(pack(tree))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(message)))
    for damaged in (bytes(message), bytes(message[:cut])):
        with contextlib.suppress(WireError):
            unpack(damaged)


def test_tensors_that_are_not_contiguous_are_sent_right() -> None:
    t = torch.arange(12.0).reshape(3, 4).T
    assert torch.equal(unpack(pack(t)), t)


def test_what_is_no_data_cannot_be_sent() -> None:
    with pytest.raises(WireError, match="cannot send a function"):
        pack({"f": len.__call__.__func__ if hasattr(len.__call__, "__func__") else (lambda: 0)})
    with pytest.raises(WireError, match="keys must be text"):
        pack({1: 2})


def test_a_message_larger_than_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(WireError, match="larger than the limit"):
        unpack(pack(torch.zeros(100)), limit=64)


def test_nothing_in_motet_unpickles() -> None:
    source = Path(__file__).parents[2] / "src"
    own_cluster = source / "motet" / "engines" / "owned_objects.py"  # between processes of one owner alone
    for path in set(source.rglob("*.py")) - {own_cluster}:
        text = path.read_text()
        assert not re.search(r"\b(import|from) pickle\b", text) and "torch.load(" not in text, path
