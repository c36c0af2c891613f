"""The concordance index: by hand, against lifelines' own slow count, with ties, padding and clients without pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines.utils import concordance as theirs

from motet.client.metrics import metrics
from motet.report.client_outcomes import _concordance
from motet.survival import comparable_pairs, concordance, survival_curve

TARGETS = st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.integers(0, 3)), min_size=1, max_size=12)


def test_by_hand() -> None:
    """Pairs: (1, 2), (1, 3), (2, 3): times 1 and 2 had their event, 3 is censored."""
    target = np.array([1.0, 2.0, -3.0])
    assert comparable_pairs(target) == 3
    assert concordance(target, np.array([3.0, 2.0, 1.0])) == 1.0
    assert concordance(target, np.array([1.0, 2.0, 3.0])) == 0.0
    assert concordance(target, np.array([5.0, 5.0, 1.0])) == pytest.approx(2.5 / 3)


def test_rows_censored_before_an_event_tell_nothing_and_those_censored_with_it_do() -> None:
    assert comparable_pairs(np.array([5.0, -2.0])) == 0 and math.isnan(
        concordance(np.array([5.0, -2.0]), np.ones(2))
    )
    assert comparable_pairs(np.array([5.0, -5.0])) == 1
    assert comparable_pairs(np.array([5.0, 5.0])) == 0, "two events at the same time have no order"


@given(TARGETS)
@settings(max_examples=60, deadline=None)
def test_pairs_and_index_are_those_of_lifelines_slow_count(rows: list[tuple[int, bool, int]]) -> None:
    time, seen, risk = (np.array(v, float) for v in zip(*rows, strict=True))
    target = np.where(seen > 0, time, -time)
    right, tied, pairs = theirs._naive_concordance_summary_statistics(time, -risk, seen)
    assert comparable_pairs(target) == pairs
    if pairs:
        expected = (right + tied / 2) / pairs
        assert concordance(target, risk) == pytest.approx(expected)
        assert _concordance(target, risk, np.ones((1, len(time))))[0] == pytest.approx(expected)


@given(TARGETS, st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_padding_does_not_count(rows: list[tuple[int, bool, int]], padding: int) -> None:
    time, seen, risk = (np.array(v, float) for v in zip(*rows, strict=True))
    target = np.where(seen > 0, time, -time)

    def found(more: int) -> dict[str, float]:
        z, y = np.r_[risk, np.full(more, 99.0)][None], np.r_[target, np.full(more, 0.5)][None]
        live = np.r_[np.ones(len(risk)), np.zeros(more)][None]
        return {k: float(v[0]) for k, v in metrics("survival", z, y, live).items()}

    assert found(0) == pytest.approx(found(padding), nan_ok=True)
    assert found(padding)["events"] == (target > 0).sum()


def test_risks_that_are_no_numbers_have_no_index() -> None:
    assert math.isnan(concordance(np.array([1.0, 2.0]), np.array([np.nan, 1.0])))


def test_a_curve_steps_down_at_events_and_counts_who_is_still_watched() -> None:
    """Of four rows, one has its event at 1, one is censored at 2, and one of the two others has its event at 3."""
    curve = survival_curve(np.array([1.0, -2.0, 3.0, -4.0]))
    at = dict(zip(curve.times.tolist(), curve.survival.tolist(), strict=True))
    assert at[0.0] == 1.0 and [at[t] for t in (1.0, 2.0, 3.0)] == pytest.approx([0.75, 0.75, 0.375])
    assert curve.at_risk(np.array([0.0, 1.0, 1.5, 4.0])).tolist() == [4, 4, 3, 1]
    assert (curve.rows, curve.events) == (4, 2)
