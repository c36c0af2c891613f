"""Every row is dealt exactly once, the same way for the same seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.tasks.federation import DataError
from motet.tasks.splits import dirichlet, iid, names, natural

rows = st.integers(40, 300)
clients = st.integers(1, 8)
seeds = st.integers(0, 10**6)


def classes(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, n)


@given(rows, clients, seeds)
@settings(max_examples=40, deadline=None)
def test_iid_deals_every_row_once_in_sizes_that_differ_by_one(n, many, seed):
    who = iid(classes(n, seed), many, seed)
    sizes = np.bincount(who, minlength=many)
    assert len(who) == n and sizes.sum() == n and len(sizes) == many
    assert sizes.max() - sizes.min() <= 1


@given(rows, clients, seeds, st.sampled_from([0.5, 1.0, 10.0]))
@settings(max_examples=40, deadline=None)
def test_dirichlet_deals_every_row_once_and_leaves_nobody_below_the_least(n, many, seed, alpha):
    y = classes(n, seed)
    who = dirichlet(y, many, alpha, seed, least=1)
    assert len(who) == n and who.min() >= 0
    assert len(np.bincount(who)) == many and np.bincount(who).min() >= 1


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_the_same_seed_gives_the_same_split(seed):
    y = classes(200, 0)
    assert (dirichlet(y, 5, 1.0, seed) == dirichlet(y, 5, 1.0, seed)).all()
    assert (iid(y, 5, seed) == iid(y, 5, seed)).all()
    assert (iid(y, 5, seed) != iid(y, 5, seed + 1)).any()


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_a_large_alpha_is_nearly_even_in_every_class(seed):
    y = np.repeat(np.arange(3), 1000)
    who = dirichlet(y, 5, 1e6, seed)
    counts = np.array([np.bincount(who[y == c], minlength=5) for c in range(3)])
    assert (abs(counts - 200) <= 5).all()


def test_a_small_alpha_is_less_even_than_a_large_one():
    y = np.repeat(np.arange(10), 200)

    def unevenness(alpha: float) -> float:
        who = dirichlet(y, 5, alpha, 0)
        return float(np.std([np.bincount(who[y == c], minlength=5) for c in range(10)]))

    assert unevenness(0.1) > 2 * unevenness(10.0)


def test_numbers_are_divided_by_quantiles():
    y = np.linspace(0, 1, 1000)
    who = dirichlet(y, 5, 0.1, 3)
    means = [y[who == c].mean() for c in range(5)]
    assert np.bincount(who).sum() == 1000
    assert np.std(means) > 0.05  # an even split has about 0.02


def test_owners_are_sorted_by_name_whether_words_or_indices():
    who, found = natural(np.array(["b", "a", "b"]))
    assert found == ("a", "b") and who.tolist() == [1, 0, 1]
    who, found = natural(np.array([0, 1, 0]), ("b", "a"))
    assert found == ("a", "b") and who.tolist() == [1, 0, 1]


def test_names_sort_like_numbers():
    assert list(names(120)) == sorted(names(120))


def test_more_clients_than_rows_is_refused():
    with pytest.raises(DataError, match="3 rows cannot be dealt to 4 clients.*\nhint: take at most 3"):
        iid(np.zeros(3, int), 4, 0)
    with pytest.raises(DataError, match="with at least 2 each"):
        dirichlet(np.zeros(7, int), 4, 0.5, 0)


def test_a_split_that_no_draw_makes_is_refused_with_a_hint():
    with pytest.raises(DataError, match="100 draws.\nhint: take fewer clients or a larger alpha"):
        dirichlet(np.repeat([0, 1], 50), 40, 0.01, 0)


def test_alpha_must_be_positive():
    with pytest.raises(DataError, match="alpha 0; expected more than 0"):
        dirichlet(np.zeros(10, int), 2, 0, 0)
