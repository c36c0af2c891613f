"""Curves that rise, and curves that do not."""

from __future__ import annotations

import numpy as np
import pytest

from motet.report.convergence import rounds_needed, still_improving

WORTH = 0.01
CURVES = {  # t goes from 0 to 1
    "flat": lambda t: 0.8 + 0 * t,
    "risen and flat": lambda t: 0.8 - 0.6 * np.exp(-25 * t),
    "peaked and falling": lambda t: 0.8 - (t - 0.4) ** 2,
    "rising": lambda t: 0.2 + 0.5 * t,
    "rising more slowly": lambda t: 0.9 - 0.6 * np.exp(-2 * t),
}


def flagged(name, scores, times=100):
    """How many of a hundred curves with noise are called still improving."""
    draw, t = np.random.default_rng(3), np.linspace(0, 1, scores)
    curves = (CURVES[name](t) + draw.normal(0, 0.005, scores) for _ in range(times))
    return sum(still_improving(curve, WORTH) for curve in curves)


@pytest.mark.parametrize("scores", [10, 50, 300])
@pytest.mark.parametrize("name", ["flat", "risen and flat", "peaked and falling"])
def test_curves_that_do_not_rise_at_their_end_are_not_flagged(name, scores):
    assert flagged(name, scores) <= 5


@pytest.mark.parametrize("scores", [10, 50, 300])
@pytest.mark.parametrize("name", ["rising", "rising more slowly"])
def test_curves_that_rise_at_their_end_are_flagged(name, scores):
    assert flagged(name, scores) >= 95


def wandering(draw, scores, alike, noise=0.02):
    """Flat noise in which a score is like the one before it."""
    steps = draw.normal(0, noise, scores)
    steps[1:] *= np.sqrt(1 - alike**2)
    found = [steps[0]]
    for step in steps[1:]:
        found.append(alike * found[-1] + step)
    return 0.8 + np.array(found)


@pytest.mark.parametrize("alike", [0.5, 0.8])
@pytest.mark.parametrize("scores", [10, 50, 300])
def test_flat_noise_in_which_rounds_are_alike_is_not_flagged(scores, alike):
    draw, times = np.random.default_rng(4), 200
    assert sum(still_improving(wandering(draw, scores, alike), WORTH) for _ in range(times)) / times <= 0.1


@pytest.mark.parametrize("scores", [10, 50, 300])
def test_a_rise_is_seen_through_noise_in_which_rounds_are_alike(scores):
    draw, rise = np.random.default_rng(4), 0.5 * np.linspace(0, 1, scores)
    found = [still_improving(rise + wandering(draw, scores, 0.8, 0.01), WORTH) for _ in range(100)]
    assert sum(found) >= 90


def test_few_scores_and_scores_that_are_no_numbers_say_nothing():
    assert not still_improving([0.1, 0.2, 0.3, 0.4], WORTH)
    assert not still_improving([0.1, 0.2, 0.3, 0.4, float("nan"), 0.6], WORTH)
    assert not still_improving([], WORTH)


def test_rounds_that_would_do_are_those_after_which_the_rule_is_content():
    curve = [0.9 - 0.8 / (1 + r / 8) for r in range(1, 1001)]
    needed = rounds_needed(range(1, 51), curve[:50], WORTH)
    assert needed is not None and 250 <= needed <= 400
    assert still_improving(curve[:50], WORTH) and not still_improving(curve[:needed], WORTH)


def test_a_line_has_no_end():
    assert rounds_needed(range(1, 31), [0.1 + 0.01 * r for r in range(30)], WORTH) is None
