"""Figures of a federation: formulas by hand, bounds, equal rows, and what is computed for each kind of data."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from motet.client import Batch, ClientData, Column
from motet.data.duplicate_rows import hashed
from motet.data.federated import FederatedData, Scaler
from motet.data.load import load
from motet.data.skew import (
    Moments,
    binned,
    decile_edges,
    distance,
    entropy,
    gini,
)
from motet.data.survey import survey, worth_knowing

counts = st.lists(st.integers(0, 50), min_size=2, max_size=8).filter(any).map(np.array)
pairs = st.integers(2, 8).flatmap(
    lambda k: st.tuples(*[st.lists(st.integers(0, 50), min_size=k, max_size=k).filter(any)] * 2)
)


def batch(x, y) -> Batch:
    x = torch.as_tensor(np.asarray(x))
    return Batch.of(x.float() if x.dtype == torch.float64 else x, torch.as_tensor(y))


def client_data(train, val=None, test=None, columns=()) -> ClientData:
    """Parts given as (x, y)."""
    x, y = train
    none = (np.asarray(x)[:0], np.asarray(y)[:0])
    return ClientData(batch(*train), batch(*(val or none)), batch(*(test or none)), columns)


def federation(
    clients_data, unseen=None, kind="classes", classes=("a", "b"), columns=(), **more
) -> FederatedData:
    first = next(iter(clients_data.values()))
    shape, outputs = tuple(first.train.x.shape[1:]), len(classes) if kind == "classes" else 1
    return FederatedData("toy", clients_data, unseen or {}, kind, outputs, classes, columns, shape, **more)


def rows(*values) -> np.ndarray:
    return np.array(values, np.float32).reshape(len(values), -1)


# ---- formulas ----


def test_entropy_of_two_halves_is_one_bit():
    assert entropy(np.array([6, 6])) == 1
    assert entropy(np.array([1, 1, 1, 1])) == 2
    assert entropy(np.array([2, 1, 1])) == 1.5
    assert entropy(np.array([0, 9])) == 0 == entropy(np.array([0, 0]))


def test_distance_is_one_for_disjoint_and_zero_for_proportional_counts():
    assert distance(np.array([4, 0]), np.array([0, 1])) == 1
    assert distance(np.array([1, 3]), np.array([2, 6])) == 0
    # p = (1, 0), q = (1/2, 1/2): H(3/4, 1/4) - 1/2 = 0.811278 - 0.5
    assert distance(np.array([2, 0]), np.array([5, 5])) == pytest.approx(np.sqrt(0.3112781245))


def test_gini_is_zero_for_equals_and_three_quarters_if_one_of_four_has_all():
    assert gini(np.array([5, 5, 5])) == 0 == gini(np.array([0, 0]))
    assert gini(np.array([0, 12, 0, 0])) == 0.75
    assert gini(np.array([1, 3])) == 0.25


def test_deciles_hold_a_tenth_each_and_ties_make_fewer_of_them():
    values = np.arange(1000.0)
    assert binned(values, decile_edges(values)).tolist() == [100] * 10
    tied = np.repeat([0.0, 1.0], [95, 5])
    assert len(decile_edges(tied)) == 0 and binned(tied, decile_edges(tied)).tolist() == [100]
    assert (binned(tied, decile_edges(np.repeat([0.0, 1.0], [50, 50]))) > 0).all()


@given(pairs)
def test_distance_is_scipys_and_symmetric(both):
    a, b = map(np.array, both)
    assert 0 <= distance(a, b) <= 1
    assert distance(a, b) == pytest.approx(distance(b, a), abs=1e-7)
    assert distance(a, b) == pytest.approx(float(np.nan_to_num(jensenshannon(a, b, 2))), abs=1e-7)


@given(counts, st.randoms())
def test_entropy_and_gini_keep_their_bounds_in_any_order(many, random):
    mixed = np.array(random.sample(many.tolist(), len(many)))
    assert 0 <= entropy(many) <= np.log2(len(many)) + 1e-12
    assert 0 <= gini(many) < 1
    assert entropy(mixed) == pytest.approx(entropy(many)) and gini(mixed) == pytest.approx(gini(many))


@given(st.lists(st.integers(-99, 99), min_size=2, max_size=30), st.integers(1, 29))
def test_moments_add_up_as_if_rows_were_together(values, cut):
    x = np.array(values, float)[:, None]
    cut = min(cut, len(x) - 1)
    both = Moments.of(x[:cut]) + Moments.of(x[cut:])
    assert both.mean == pytest.approx(x.mean(0)) and both.std == pytest.approx(x.std(0), abs=1e-9)


# ---- equal rows ----


@given(st.integers(1, 40), st.sampled_from(["u1", "f4", "i8"]))
def test_hashes_are_equal_for_equal_rows_only(width, kind):
    x = np.random.default_rng(width).integers(0, 2**width if width < 7 else 200, (50, width)).astype(kind)
    assert len(set(hashed(x).tolist())) == len(np.unique(x, axis=0))
    assert (hashed(x[::-1]) == hashed(x)[::-1]).all()


def test_minus_zero_is_zero():
    assert hashed(rows(-0.0)) == hashed(rows(0.0))


def test_a_row_that_two_clients_hold_is_found_with_and_without_its_target():
    found = survey(
        federation(
            {
                "a": client_data((rows(1, 2, 3), [0, 1, 1])),
                "b": client_data((rows(3, 4, 2), [0, 0, 1])),
                "c": client_data((rows(9, 9), [0, 0])),  # its own double is nobody else's
            }
        )
    ).duplicates
    assert (found.shared.rows, found.shared.clients) == (4, 2)  # 2 and 3, each with a and b
    assert found.shared.most == [("a", 2), ("b", 2)]
    assert (found.shared_with_target.rows, found.shared_with_target.clients) == (2, 2)  # 2 with target 1
    assert found.leaked.rows == 0


def test_a_test_row_that_is_trained_on_is_a_leak():
    one = client_data((rows(1, 2), [0, 1]), test=(rows(2, 2, 5), [1, 0, 1]))
    other = client_data((rows(5), [1]), test=(rows(1), [0]))  # somebody else's training rows count elsewhere
    found = survey(federation({"one": one, "other": other})).duplicates
    assert (found.leaked.rows, found.leaked.most) == (2, [("one", 2)])
    assert found.elsewhere and found.elsewhere.most == [("one", 1), ("other", 1)]
    assert found.leaked_with_target.rows == 1


def test_clients_with_different_columns_are_not_compared():
    here = (Column("u"), Column("v", here=False)), (Column("u", here=False), Column("v"))
    x, y = np.zeros((2, 2), np.float32), [0, 1]
    clients_data = {n: client_data((x, y), columns=c) for n, c in zip("ab", here, strict=True)}
    found = survey(federation(clients_data, columns=(Column("u"), Column("v"))))
    assert found.duplicates.shared.rows == 0 and found.duplicates.column_sets == 2
    assert [h.columns for h in found.clients] == [1, 1] and found.columns == 2


def test_nothing_is_said_of_shared_rows_if_clients_are_scaled_by_themselves():
    found = survey(load("breast_cancer", {"clients": 4, "scale": "client", "unseen": 0.0})).duplicates
    assert found.shared is None and found.shared_with_target is None and found.leaked.rows == 0


# ---- what is worth knowing before a run ----


def some_clients(leak, y, kind="classes", classes=("a", "b", "c"), scale=None) -> FederatedData:
    """Two clients, the second of which was standardised otherwise if `scale` says so."""
    names = ("noise", *(["leak"] if leak.ndim == 1 else [f"leak=v{j}" for j in range(leak.shape[1])]))
    columns = tuple(Column(n, "number", "leak" if "=" in n else "") for n in names)
    x = np.column_stack([np.random.default_rng(0).normal(size=len(y)), leak]).astype(np.float32)
    half = len(y) // 2
    rulers = {c: Scaler(np.zeros(x.shape[1]), np.ones(x.shape[1])) for c in "pq"}
    if scale is not None:
        rulers["q"] = Scaler(np.full(x.shape[1], 3.0), np.full(x.shape[1], scale))
        x[half:] = rulers["q"].apply(x[half:])
    held = {
        c: client_data((x[r], y[r]), columns=columns)
        for c, r in (("p", slice(half)), ("q", slice(half, None)))
    }
    return federation(held, columns=columns, kind=kind, classes=classes, rulers=rulers)


LABELS = np.resize([0, 2, 1, 1], 40)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("leak", [LABELS, 7 - LABELS**2, np.eye(3)[LABELS]], ids=["itself", "codes", "words"])
def test_a_column_that_names_the_target_one_to_one_is_said(leak, scale):
    (said,) = [
        line for line in worth_knowing(some_clients(leak * 1.0, LABELS, scale=scale)) if "column" in line
    ]
    assert (
        said.startswith("column 'leak' equals the target, or names it one to one")
        and "data.drop=leak" in said
    )


def test_a_column_that_nearly_names_the_target_or_names_few_rows_is_not_said():
    nearly = np.where(np.arange(40) == 7, 9, LABELS) * 1.0
    merged = np.minimum(LABELS, 1) * 1.0  # two classes have one value
    for leak in (nearly, merged, np.zeros(40)):
        assert not [line for line in worth_knowing(some_clients(leak, LABELS)) if "column" in line]
    few = some_clients(LABELS[:6] * 1.0, LABELS[:6])  # any numbers name six rows
    assert not [line for line in worth_knowing(few) if "column" in line]


@pytest.mark.parametrize("scale", [None, 0.3])
def test_a_column_that_is_the_target_in_another_unit_is_said(scale):
    y = np.random.default_rng(1).normal(size=40).astype(np.float32)
    numbers = dict(kind="numbers", classes=(), scale=scale)
    (said,) = worth_knowing(some_clients(70 - 12 * y, y, **numbers))
    assert said.startswith("column 'leak' equals the target in some unit (correlation 1)")
    assert (
        worth_knowing(some_clients(y + 0.01 * np.random.default_rng(2).normal(size=40), y, **numbers)) == []
    )


def test_rows_in_training_and_test_are_said_in_one_line():
    one = client_data((rows(1, 2), [0, 1]), test=(rows(2, 2, 5), [1, 0, 1]))
    other = client_data((rows(5), [1]), test=(rows(1), [0]))
    lines = worth_knowing(federation({"one": one, "other": other}))
    assert lines == [
        "2 classes: a, b",
        "2 of 4 test rows equal rows that their client trains on, 1 of them with the same target "
        "(motet data show names the clients)",
    ]
    alone = federation({"one": client_data((rows(2), [0]), test=(rows(2, 3), [0, 1]))})
    assert (
        "1 of 2 test rows equals a row that their client trains on, 1 of them with the same target"
        in worth_knowing(alone)[1]
    )


def test_more_than_twelve_classes_are_not_listed():
    names = [f"k{i}" for i in range(13)]
    held = {"a": client_data((rows(*range(13)), np.arange(13)))}
    assert worth_knowing(federation(held, classes=tuple(names))) == []
    twelve = {"a": client_data((rows(*range(12)), np.arange(12)))}
    assert worth_knowing(federation(twelve, classes=tuple(names[:12]))) == [
        f"12 classes: {', '.join(names[:12])}"
    ]


# ---- kinds of data ----


def test_sizes_labels_and_skew_of_a_toy_federation():
    clients_data = {"a": client_data((rows(1, 2), [0, 0]), (rows(3), [0]), (rows(4), [0]))}
    unseen = {"u": client_data((rows(5, 6, 7, 8), [1, 1, 1, 1]))}
    proxy = batch(rows(1, 2, 3), [0, 1, 0])
    found = survey(federation(clients_data, unseen, proxy=proxy, notes=["a note"]))
    a, u = found.clients
    assert (a.train, a.val, a.test, a.rows, a.unseen) == (2, 1, 1, 4, False)
    assert u.unseen and a.counts == [4, 0] and u.counts == [0, 4] and found.counts == [4, 4]
    assert a.entropy == 0 and a.distance == pytest.approx(np.sqrt(0.3112781245))
    assert found.gini == 0 and found.rows.mean == 4 and found.rows.least == "a"
    assert (found.proxy, found.server_test, found.missing, found.notes) == (3, None, 0, ["a note"])


def test_numbers_are_told_in_their_own_unit():
    one = client_data((rows(1, 2, 3, 4), np.array([-1, 0, 0, 1], np.float32)))
    found = survey(federation({"a": one}, kind="numbers", classes=(), scale=10.0, offset=100.0))
    target = found.clients[0].target
    assert (target["mean"], target["min"], target["median"], target["max"]) == (100, 90, 100, 110)
    assert target["std"] == pytest.approx(np.sqrt(50)) and found.counts == found.clients[0].counts
    assert found.labels[0].startswith("below") and sum(found.counts) == 4


def test_columns_that_set_a_client_apart_are_told_in_their_own_unit():
    columns = (Column("same"), Column("age"), Column("constant"))
    x = np.array([[0, -1, 7], [1, -1, 7], [0, 1, 7], [1, 1, 7]], np.float32)
    ruler = Scaler(np.array([0, 50, 0.0]), np.array([1, 10, 1.0]))  # ages 40 and 60
    clients_data = {"young": client_data((x[:2], [0, 1])), "old": client_data((x[2:], [0, 1]))}
    found = survey(federation(clients_data, columns=columns, rulers=dict.fromkeys(clients_data, ruler)))
    first = found.clients[0].apart[0]
    assert (first.column, first.mean, first.std, first.away) == ("age", 40, 0, -1)
    assert "constant" not in [d.column for d in found.clients[0].apart]


def test_images_are_told_by_their_channels_and_symbols_by_counts_only():
    pixels = np.zeros((4, 2, 3, 3), np.uint8)
    pixels[:, 1] = 255
    found = survey(federation({"a": client_data((pixels, [0, 1, 0, 1]))}))
    assert found.features == "images" and found.clients[0].channels == [0, 1]
    letters = np.arange(20, dtype=np.uint8).reshape(4, 5)
    found = survey(federation({"a": client_data((letters, [0, 1, 0, 1]))}))
    assert found.features == "symbols" and not found.clients[0].channels and not found.clients[0].apart


def test_missing_cells_are_told_where_the_federation_knows_them():
    toy = federation({"a": client_data((rows(1, 2), [0, 1])), "b": client_data((rows(3), [0]))})
    toy.missing = {"b": 3}
    found = survey(toy)
    assert [h.missing for h in found.clients] == [0, 3] and found.missing == 3


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(5)))
def test_the_order_of_clients_changes_no_figure(order):
    rng = np.random.default_rng(1)
    clients_data = {
        f"c{i}": client_data((rng.integers(0, 5, (4 + i, 2)).astype(np.float32), rng.integers(0, 2, 4 + i)))
        for i in range(5)
    }
    one = survey(federation(clients_data))
    other = survey(federation({f"c{i}": clients_data[f"c{i}"] for i in order}))
    assert other.duplicates == one.duplicates and other.counts == one.counts
    assert other.gini == one.gini and other.rows.max == one.rows.max
    assert {h.client: h.distance for h in other.clients} == {h.client: h.distance for h in one.clients}
