"""Parts that the data give are kept in every split and for every seed; validation rows come from the training rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.client import Column
from motet.data.federated import Pool
from motet.data.load import DataSettings
from motet.data.partition import partition

TRAIN, VAL, TEST = range(3)


def marked(part: np.ndarray, **more) -> Pool:
    """Rows that hold their own number, of two clients, with two classes."""
    n = len(part)
    x = np.arange(n, dtype=np.float32)[:, None]
    owner = np.where(np.arange(n) < n // 2, "a", "b")
    return Pool(
        x,
        np.arange(n) % 2,
        "classes",
        ("no", "yes"),
        **({"owner": owner, "part": part, "scaling": "none"} | more),
    )


def rows(federation, part: str) -> set[int]:
    clients = [*federation.clients_data.values(), *federation.unseen.values()]
    return {int(r) for c in clients for r in getattr(c, part).x[:, 0]}


@given(
    st.integers(0, 10**6),
    st.integers(0, 40),
    st.sampled_from(["natural", "iid", "dirichlet"]),
    st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_a_marked_test_row_is_one_for_every_seed_and_split_and_no_other_row_is(seed, percent, split, draw):
    part = np.random.default_rng(draw).choice([TRAIN, TEST], 80, p=[0.7, 0.3])
    part[[0, 79]] = TRAIN
    common = DataSettings(seed, split, val=percent / 100, unseen=0)
    federation = partition("t", marked(part), common, {} if split == "natural" else {"clients": 3})
    kept = rows(federation, "train") | rows(federation, "val")
    assert rows(federation, "test") <= set(np.flatnonzero(part == TEST).tolist())
    assert kept <= set(np.flatnonzero(part == TRAIN).tolist())
    if split == "natural":
        assert len(kept) + len(rows(federation, "test")) == 80


def test_validation_rows_are_a_stratified_share_of_each_clients_training_rows():
    part = np.repeat([TRAIN, TEST, TRAIN, TEST], [60, 20, 40, 40])
    federation = partition("t", marked(part), DataSettings(val=0.2), {})
    for client, val in (("a", 12), ("b", 8)):
        found = federation.clients_data[client]
        assert (len(found.val), int(found.val.y.sum())) == (val, val // 2)
        assert len(found.train) == 4 * val


def test_without_validation_all_marked_rows_are_trained_on_in_the_order_of_the_data():
    part = np.repeat([TEST, TRAIN, TEST, TRAIN], [10, 20, 10, 20])
    federation = partition("t", marked(part), DataSettings(val=0), {})
    assert federation.clients_data["a"].train.x[:, 0].tolist() == list(range(10, 30))
    assert rows(federation, "val") == set()


def test_marked_validation_rows_are_the_only_ones():
    part = np.tile([TRAIN, VAL, TEST, TRAIN], 10)
    federation = partition("t", marked(part), DataSettings(val=0.4), {})
    assert rows(federation, "val") == set(np.flatnonzero(part == VAL).tolist())


def test_rows_that_are_all_for_training_give_no_validation_rows():
    part = np.repeat([TRAIN, TEST, TRAIN, TEST], 10)
    federation = partition("t", marked(part, all_train=True), DataSettings(), {})
    assert rows(federation, "val") == set() and len(rows(federation, "train")) == 20


def test_rows_without_a_mark_are_divided_beside_the_marked_ones():
    part = np.repeat([-1, TRAIN, TEST], [20, 10, 10])  # client a has no marks
    federation = partition("t", marked(part), DataSettings(val=0.2, test=0.25), {})
    a, b = (federation.clients_data[c] for c in "ab")
    assert [len(p) for p in (a.train, a.val, a.test)] == [11, 4, 5]
    assert [len(p) for p in (b.train, b.val, b.test)] == [8, 2, 10]


def test_clients_that_hold_the_same_rows_validate_with_the_same_rows():
    x = np.arange(40, dtype=np.float32)[:, None].repeat(4, 1)
    pool = marked(np.tile([TRAIN, TRAIN, TRAIN, TEST], 10), owner=None)
    pool.x = x
    pool.columns = tuple(Column(f"x{i}") for i in range(4))
    how = {"clients": 2, "features": 0.5}
    federation = partition("t", pool, DataSettings(split="vertical", unseen=0, val=0.2), how)
    sizes = [(len(c.train), len(c.val), len(c.test)) for c in federation.clients_data.values()]
    assert sizes == [(24, 6, 10)] * 2


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ([TRAIN, TEST], "20 train, 20 test; validation rows are drawn from the training rows (val)"),
        ([TRAIN, VAL], "20 train, 20 val"),
        ([-1, -1], ""),
    ],
)
def test_a_note_says_that_the_data_give_the_parts(part, words):
    notes = partition("t", marked(np.tile(part, 20)), DataSettings(), {}).notes
    said = [n for n in notes if "the data say which rows are for what" in n]
    assert [n.endswith(words) for n in said] == ([True] if words else [])
