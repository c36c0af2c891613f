"""Intervals that cover what they claim, measured on simulated federations with known gains; tests by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from motet.report.certainty import holm, interval, sign_test, signed_rank, two_shares

TIMES = 2000  # simulations of a case: of 400, one in five would leave 93 to 97 % by chance
EFFECTS = {  # what a client gains in truth, and the mean over all clients there could be
    "none": (lambda draw, n: np.zeros(n), 0.0),
    "varied": (lambda draw, n: draw.normal(0.03, 0.05, n), 0.03),
    "skewed": (lambda draw, n: draw.exponential(0.05, n), 0.05),
}


def one_training(draw, effect, clients):
    """Accuracies on 10 to 40 test rows, federated less alone."""
    rows, alone = draw.integers(10, 41, clients), draw.uniform(0.55, 0.75, clients)
    federated = np.clip(alone + EFFECTS[effect][0](draw, clients), 0, 1)
    gains = draw.binomial(rows, federated) / rows - draw.binomial(rows, alone) / rows
    return gains, range(clients), [0] * clients


def several_seeds(draw, effect, clients, seeds=3, shared=0.01):
    """Test rows stay the same over seeds, so half of a client's noise does; a seed moves all clients."""
    rows = draw.integers(10, 41, (clients, 1))
    noise = draw.normal(size=(clients, 1)) + draw.normal(size=(clients, seeds))
    gains = EFFECTS[effect][0](draw, clients)[:, None] + np.sqrt(0.2 / rows) * noise
    gains = gains + shared * draw.normal(size=seeds)
    return gains.ravel(), np.repeat(np.arange(clients), seeds), np.tile(np.arange(seeds), clients)


def several_splits(draw, effect, clients, splits=3, shared=0.01):
    """Every split has clients of its own."""
    parts = [one_training(draw, effect, clients)[0] + shared * draw.normal() for _ in range(splits)]
    return np.concatenate(parts), range(clients * splits), np.repeat(np.arange(splits), clients)


def measured(simulate, effect, clients):
    """The share of intervals that cover the truth, and the share that claim a gain."""
    draw, truth = np.random.default_rng(17), EFFECTS[effect][1]
    found = [interval(*simulate(draw, effect, clients)) for _ in range(TIMES)]
    covered = np.mean([f.low <= truth <= f.high for f in found])
    return float(covered), float(np.mean([f.above for f in found]))


@pytest.mark.parametrize(("effect", "clients"), product(["none", "skewed"], (6, 18, 50)))
def test_intervals_cover_the_truth_in_93_to_97_percent(effect, clients):
    covered, claimed = measured(one_training, effect, clients)
    assert 0.93 <= covered <= 0.97
    assert effect != "none" or claimed <= 0.05


@pytest.mark.parametrize("simulate", [several_seeds, several_splits])
def test_a_training_that_moves_all_clients_is_part_of_the_interval(simulate):
    covered, claimed = measured(simulate, "none", 18)
    assert 0.93 <= covered <= 0.97 and claimed <= 0.05


@pytest.mark.long
@pytest.mark.parametrize(
    ("simulate", "effect", "clients"),
    product([one_training, several_seeds, several_splits], EFFECTS, (6, 18, 50)),
)
def test_intervals_of_all_cases_cover_the_truth(simulate, effect, clients):
    covered, claimed = measured(simulate, effect, clients)
    assert 0.93 <= covered <= 0.97
    assert effect != "none" or claimed <= 0.05


@pytest.mark.parametrize(("clients", "splits"), [(4, 2), (4, 3), (10, 3)])
def test_few_splits_give_wide_intervals_and_never_absurd_ones(clients, splits):
    rng = np.random.default_rng(1)
    widths = []
    for _ in range(300):  # a split moves all clients, and they differ: variances nearly cancel in some draws
        gains = (
            rng.normal(0, 0.3, (clients, 1)) + rng.normal(0, 1, splits) + rng.normal(0, 1, (clients, splits))
        )
        found = interval(gains.ravel(), np.repeat(range(clients), splits), [*range(splits)] * clients)
        widths.append((found.high - found.low) / gains.std())
    assert max(widths) < 100  # 1e7 to 1e84 where degrees of freedom may fall below those of any part


def test_the_gains_of_a_client_over_seeds_are_averaged_first():
    found = interval([0.0, 2.0, 5.0], ["a", "a", "b"], [0, 1, 0])
    assert (found.mean, found.units) == (3.0, 2)


def test_one_client_has_a_mean_and_no_interval():
    found = interval([0.5], ["a"], [0])
    assert found.mean == 0.5 and np.isnan(found.low) and not found.above and not found.below


def test_gains_that_are_all_zero_claim_nothing():
    found = interval([0.0] * 5, range(5), [0] * 5)
    assert (found.low, found.high, found.above, found.below) == (0.0, 0.0, False, False)


@pytest.mark.parametrize("clients", [2, 8])
def test_gains_that_cancel_over_trainings_are_not_equal_scores(clients):
    signs = [(-1) ** (c + t) for c in range(clients) for t in (0, 1)]
    units, trainings = [c for c in range(clients) for _ in (0, 1)], [0, 1] * clients
    found = interval([0.125 * s for s in signs], units, trainings)
    assert found.mean == 0 and np.isnan(found.low) and np.isnan(found.high)


def test_few_equal_gains_are_no_proof():
    assert np.isnan(interval([0.1] * 3, range(3), [0] * 3).low)
    assert interval([0.1] * 6, range(6), [0] * 6).above
    assert np.isnan(interval([0.8 - 0.7, 0.9 - 0.8], "ab", [0, 0]).low)  # they differ by rounding alone


def test_signed_ranks_are_counted_exactly_with_ties_and_zeros():
    # ranks by Pratt: zero 1, then 2.5, 2.5, 4; the sum of signed ranks is 9 at most: 2 of 8 ways
    assert signed_rank([0.0, 1.0, 1.0, 2.0]) == pytest.approx(2 / 8)
    assert signed_rank([0.0, -1.0, 1.0, 2.0]) == pytest.approx(6 / 8)  # |sum| of 4 or more: all but ±1


def test_exact_and_normal_signed_ranks_agree_on_many_units():
    from scipy import stats

    gains = np.random.default_rng(0).normal(0.15, 1, 190)
    ours, theirs = signed_rank(gains), stats.wilcoxon(gains, method="asymptotic").pvalue
    assert ours == pytest.approx(theirs, rel=0.05)
    assert signed_rank(np.tile(gains, 2)) < ours


def test_holm_keeps_the_order_and_never_exceeds_one():
    assert holm([0.5, 0.001, 0.4]) == pytest.approx([0.8, 0.003, 0.8])
    assert holm([]) == []


def test_mcnemar_by_hand():
    assert sign_test(5, 0) == pytest.approx(2 / 32)
    assert sign_test(1, 8) == pytest.approx(2 * 10 / 512)


def test_two_shares_of_few_rows_are_not_told_apart():
    low, high = two_shares(0.9, 0.7, rows=10)
    assert low < 0 < high
    assert two_shares(0.9, 0.7, rows=200)[0] > 0


def test_of_five_methods_without_effect_one_in_twenty_comparisons_claims_a_gain_at_most():
    from motet.report.certainty import together

    draw, level, times = np.random.default_rng(2), together(5), 400
    claims = 0
    for _ in range(times):
        found = [interval(*one_training(draw, "none", 6), level).above for _ in range(5)]
        claims += any(found)
    assert claims / times <= 0.05
