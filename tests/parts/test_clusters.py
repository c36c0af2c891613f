"""Clusters of vectors: k-means, links, random groups, and Mahalanobis distances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from motet.parts import clusters


@given(arrays(np.float64, (3, 3), elements=st.floats(-2, 2)), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_mahalanobis_distances_do_not_depend_on_how_numbers_are_mixed(mix: Any, seed: int) -> None:
    mix = mix + 3 * np.eye(3)
    assume(np.linalg.cond(mix) < 20)
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(50, 3))
    rows = rng.normal(size=(4, 3))

    def apart(x: Any, rows: Any) -> Any:
        scaled = rows @ clusters.whitening(x.T @ x / len(x), x.mean(0))
        return clusters.distances(scaled, scaled)

    assert np.allclose(apart(x, rows), apart(x @ mix, rows @ mix), rtol=1e-6)


def test_directions_in_which_all_examples_vary_count_for_little() -> None:
    rows = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 1.0], [5.0, 1.0]])
    assert clusters.kmeans(rows, 2, 0).tolist() == [0, 1, 0, 1]
    scaled = rows @ clusters.whitening(np.diag([100.0, 1.0]), np.zeros(2))
    assert clusters.kmeans(scaled, 2, 0).tolist() == [0, 0, 1, 1]
    noisy = clusters.whitening(
        np.diag([100.0, -1.0]), np.zeros(2), noise=3.0
    )  # a variance below zero is noise
    assert sorted(np.linalg.norm(noisy, axis=0).round(6)) == pytest.approx([103**-0.5, 4**-0.5], abs=1e-6)


def test_two_principal_components_show_a_plane_as_it_is() -> None:
    rows = np.array([[0.0, 0, 0], [3, 0, 0], [0, 1, 0], [3, 1, 0]])
    places, share = clusters.principal_components(rows)
    assert share == pytest.approx(1) and np.allclose(
        clusters.distances(places, places), clusters.distances(rows, rows)
    )
    assert clusters.principal_components(np.ones((1, 1)))[0].shape == (1, 2)


def blobs(groups: int = 3, each: int = 5) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(groups), each)
    return rng.normal(0, 0.01, (len(truth), 8)) + 0.2 * truth[:, None], truth


def test_kmeans_and_links_find_what_is_there() -> None:
    rows, truth = blobs()
    assert clusters.kmeans(rows, 3, seed=1).tolist() == truth.tolist()
    assert clusters.linked(rows, 0.2).tolist() == truth.tolist()
    assert clusters.best_k(rows, seed=1) == 3
    assert (
        clusters.silhouette(rows, truth) > 0.9 > clusters.silhouette(rows, clusters.random_groups(15, 3, 0))
    )


def test_links_chain() -> None:
    rows = np.array([[0.0], [9.0], [1.0], [2.0], [3.0]])
    assert clusters.linked(rows, 1.0).tolist() == [0, 1, 0, 0, 0]
    assert clusters.linked(rows, 0.5).tolist() == [0, 1, 2, 3, 4]


def test_few_rows_make_few_groups() -> None:
    assert clusters.kmeans(np.zeros((3, 2)), 4, seed=0).tolist() == [0, 0, 0]
    assert clusters.best_k(np.zeros((2, 2)), seed=0) == 1
    assert (
        clusters.best_k(np.zeros((5, 2)), seed=0) == 2
    )  # the rows are equal: k-means makes one group of them
    assert clusters.linked(np.zeros((1, 2)), 0.1).tolist() == [0]


def test_random_groups_are_of_one_size() -> None:
    labels = clusters.random_groups(20, 4, seed=3)
    assert np.bincount(labels).tolist() == [5, 5, 5, 5]
    assert labels.tolist() != clusters.random_groups(20, 4, seed=4).tolist()


def test_the_nearest_centre() -> None:
    rows, truth = blobs()
    middle = clusters.centres(rows, truth)
    assert middle.shape == (3, 8)
    assert [clusters.nearest(r, middle) for r in rows] == truth.tolist()


def test_agreement_is_the_adjusted_rand_index() -> None:
    a = np.array([0, 0, 1, 1])
    assert clusters.agreement(a, 1 - a) == 1.0
    assert clusters.agreement(a, np.array([0, 1, 0, 1])) == pytest.approx(-0.5)


def test_two_groups_are_the_best_of_all_by_their_most_similar_pair() -> None:
    """Sattler et al. 2020, Algorithm 1: tried against all ways to divide six rows."""

    def across(similarity: Any, first: Any) -> float:
        return float(similarity[np.ix_(first, ~first)].max())

    for seed in range(20):
        rows = np.random.default_rng(seed).normal(size=(6, 3))
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        ways = [np.array([way >> i & 1 for i in range(6)], bool) for way in range(1, 32)]
        best = min(across(unit @ unit.T, way) for way in ways)
        assert across(unit @ unit.T, clusters.bipartition(unit @ unit.T) == 0) == pytest.approx(best)
