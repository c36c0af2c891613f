"""Importances and the contribution graph, in small numbers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from motet.stacking import contribution as c

TRUST = {"a": {"a": 0.5, "b": 0.5}, "b": {"a": 0.2, "b": 0.8}, "c": {"a": 0.0, "b": 0.9, "c": 0.1}}


class Sum:
    """Predicts the sum of the first two columns; its score is 1 - mean squared error."""

    def score(self, z: Any, y: Any) -> float:
        return float(1 - ((z[:, 0] + z[:, 1] - y) ** 2).mean())


def rows(many: int = 400) -> tuple[Any, Any]:
    z = np.random.default_rng(0).normal(size=(many, 3))
    return z, z[:, 0] + z[:, 1]


def test_mdi_sums_the_columns_of_each_model() -> None:
    class Model:
        feature_importances_ = np.array([0.1, 0.2, 0.3, 0.4])

    assert c.importances(Model(), np.zeros((1, 4)), np.zeros(1), [0, 0, 1, 1]).tolist() == pytest.approx(
        [0.3, 0.7]
    )


def test_a_linear_model_counts_by_weight_times_spread() -> None:
    class Model:
        coef_ = np.array([[2.0, -1.0]])

    z = np.array([[0.0, 0.0], [1.0, 6.0]])  # spreads 0.5 and 3
    assert c.importances(Model(), z, np.zeros(2), [0, 1]).tolist() == pytest.approx([0.25, 0.75])


def test_of_a_pipeline_the_last_step_counts_and_what_it_sees() -> None:
    z = np.random.default_rng(0).normal(size=(300, 2))
    y = (z[:, 0] + z[:, 1] > 0).astype(int)
    wide = z * [1.0, 1000.0]
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(wide, y)
    assert c.importances(model, wide, y, [0, 1]).tolist() == pytest.approx([0.5, 0.5], abs=0.05)


def test_the_error_for_a_model_without_weights_names_what_works() -> None:
    with pytest.raises(ValueError, match="hint: importance='permutation'"):
        c.importances(object(), np.zeros((1, 1)), np.zeros(1), [0])


@pytest.mark.parametrize("how", ["permutation", "shapley"])
def test_what_is_not_used_has_no_importance(how: Any) -> None:
    z, y = rows()
    found = c.importances(Sum(), z, y, [0, 1, 2], how)
    assert found[2] == 0 and found[0] == pytest.approx(0.5, abs=0.06)


def test_shapley_values_of_an_additive_game_are_the_gains() -> None:
    z, y = rows()
    z = z - z.mean(0)
    gains = (z**2).mean(0) * [1.0, 2.0, 3.0]

    class Additive:
        def score(self, x: Any, y: Any) -> float:
            return float((x**2).mean(0) @ [1.0, 2.0, 3.0])

    found = c.importances(Additive(), z, y, [0, 1, 2], "shapley")
    assert found.tolist() == pytest.approx((gains / gains.sum()).tolist())


def test_strength_is_what_others_give() -> None:
    # among others, a and c rely on b alone, and b on a alone; a is judged by b and c, b by a and c
    assert c.in_strength(TRUST) == pytest.approx({"a": 0.5 / 1.5, "b": 1 / 1.5, "c": 0.0})


def test_nobody_gains_by_saying_that_it_relies_on_itself_alone() -> None:
    fair = {i: {i: 0.4, **{j: 0.3 for j in "abc" if j != i}} for i in "abc"}
    for own in (0.0, 0.9, 1.0):
        row = {"c": own, "a": (1 - own) / 2, "b": (1 - own) / 2}
        assert c.in_strength(fair | {"c": row}) == pytest.approx(c.in_strength(fair))


shares = st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1), min_size=1)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from("abcd"), shares, min_size=1))
def test_strengths_sum_to_one_or_nobody_gives_anything(trust: dict[str, dict[str, float]]) -> None:
    total = sum(c.in_strength(trust).values())
    assert total == pytest.approx(1) or total == 0


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(max_size=3), st.floats(-1e6, 1e6), min_size=1))
def test_normalised_shares_sum_to_one_whatever_was_sent(sent: dict[str, float]) -> None:
    found = c.normalised(sent)
    assert sum(found.values()) == pytest.approx(1) and min(found.values()) >= 0


def test_pagerank_and_strength_agree_on_the_client_that_everyone_trusts() -> None:
    found = c.centralities(TRUST)
    assert all(
        max(found[k], key=found[k].__getitem__) == "b" for k in ("in_strength", "pagerank", "authority")
    )
    assert sum(found["pagerank"].values()) == pytest.approx(1)


def test_who_gives_little_for_some_rounds_is_known() -> None:
    given, generous = c.in_strength(TRUST), {"a": 0.4, "b": 0.3, "c": 0.3}
    assert c.giving_little([given] * 2, TRUST) == []
    assert c.giving_little([given] * 3, TRUST) == ["c"]
    assert c.giving_little([given] * 3, ["a", "b"]) == []
    assert c.giving_little([given, given, generous], TRUST) == []


def test_who_contributes_less_than_the_threshold_is_not_served_and_newcomers_are() -> None:
    assert c.served(TRUST, ["a", "b", "c", "new"], 0.5) == ["a", "b", "new"]
    assert c.served(TRUST, ["a", "b", "c", "new"], 1.5) == ["b", "new"]
    assert c.served(TRUST, ["a", "b", "c"], 0.0) == ["a", "b", "c"]


def test_more_contribution_earns_a_version_with_less_noise() -> None:
    assert [c.tier(TRUST, who, 3) for who in ("a", "b", "c", "new")] == [1, 2, 0, 0]
    assert c.tier({}, "new", 3) == 0


def test_the_graph_can_be_exported_and_read_again() -> None:
    networkx = pytest.importorskip("networkx")
    again = networkx.parse_graphml(c.to_graphml(TRUST))
    assert again.edges["c", "b"]["weight"] == 0.9 and again.nodes["b"]["own"] == 0.8
    assert not again.has_edge("a", "a")
    found = json.loads(c.to_json(TRUST, [TRUST] * 3))
    assert found["gives_little"] == ["c"] and len(found["history"]) == 3


def test_where_nobody_relies_on_anybody_a_threshold_shuts_out_nobody() -> None:
    assert c.served({"a": {"a": 1.0, "b": 0.0}, "b": {"b": 1.0}}, ["a", "b"], 0.5) == ["a", "b"]


def test_no_centrality_is_below_zero_or_a_negative_zero() -> None:
    for of in c.centralities({"a": {"a": 1.0}, "b": {"a": 0.5, "b": 0.5}, "c": {"c": 1.0}}).values():
        assert all(str(v) == "0.0" or v > 1e-9 for v in of.values())
