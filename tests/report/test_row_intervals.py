"""Intervals of these very clients cover what they claim, and clients that differ do not make them wide."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from motet.report.client_outcomes import METRICS, Compared, Predicted
from motet.report.gains import with_side
from motet.report.read import read
from motet.report.row_intervals import _by_rows, gain_of_these
from motet.report.tables import comparison
from motet.report.verdict import verdict

CONSTANT, PERSONAL = "constant", "personal"
ROWS = 40


def predicted(folder, scores, side):
    """Rows of class 0, so many of them called right."""
    parts = []
    for client, score in scores.items():
        right = np.arange(ROWS) < round(score * ROWS)
        p0 = np.where(right, 0.9, 0.1)
        parts.append(
            pd.DataFrame(
                {"side": side, "client": client, "row": range(ROWS), "target": 0, "p0": p0, "p1": 1 - p0}
            )
        )
    return parts


def made(make, method, own, constant, **more):
    folder = make(method, own, constant=constant, tests=ROWS, **more)
    parts = [*predicted(folder, own, PERSONAL), *predicted(folder, constant, CONSTANT)]
    pd.concat(parts).to_parquet(folder / "predictions.parquet")
    return folder


OWN = dict(zip("abcdef", (0.95, 0.95, 0.9, 0.75, 0.7, 0.675), strict=True))
NONE = dict(zip("abcdef", (0.95, 0.95, 0.9, 0.5, 0.1, 0.05), strict=True))  # three clients gain nothing


def test_models_beat_a_constant_though_half_of_the_clients_gain_nothing(make):
    folder = made(make, "ditto", OWN, NONE)
    found = gain_of_these(with_side(read([folder]), CONSTANT))
    assert found.mean == pytest.approx(1.475 / 6) and found.low > 0.15
    assert not any("not known to beat" in line for line in verdict(read([folder])))


def test_models_no_better_than_a_constant_are_not_known_to_beat_it(make):
    folder = made(make, "ditto", NONE | {"a": 0.975}, NONE)
    assert any("not known to beat the majority class" in line for line in verdict(read([folder])))


def test_without_predictions_the_spread_between_clients_counts(make):
    folder = make("ditto", OWN, constant=NONE, tests=ROWS)
    assert comparison(read([folder]))["gain_constant_low"][0] < 0


def test_what_trainings_add_makes_the_interval_longer(make):
    folders = [
        made(make, "ditto", {c: v + by for c, v in OWN.items()}, NONE, seed=seed)
        for seed, by in enumerate((0.05, -0.05))
    ]
    one, two = (gain_of_these(with_side(read(some), CONSTANT)) for some in (folders[:1], folders))
    assert two.high - two.low > one.high - one.low


def test_seven_rows_are_too_few_to_tell(make):
    folder = make("ditto", {"a": 6 / 7}, constant={"a": 1 / 7}, tests=7)
    frame = pd.concat([*predicted(folder, {"a": 0.9}, PERSONAL), *predicted(folder, {"a": 0.1}, CONSTANT)])
    frame[frame["row"] < 7].to_parquet(folder / "predictions.parquet")
    assert np.isnan(gain_of_these(with_side(read([folder]), CONSTANT)).low)


def test_equal_risks_are_named_as_they_are(make):
    from motet.report.verdict import _constant

    row = {"name": "ditto", "role": "", "gain_constant_low": -0.1, "gain_constant_high": 0.1}
    said = _constant(row, [row, {"role": "constant", "name": "equal risks"}], "cindex")
    assert said == "; ditto is not known to beat equal risks"


@pytest.mark.long
@pytest.mark.parametrize(("clients", "rows"), [(4, (20, 80)), (6, (15, 60)), (20, (8, 20))])
def test_intervals_of_these_clients_cover_their_mean_gain(make_once, clients, rows):
    """Simulated accuracies against a majority class, paired by rows."""
    draw, covered, times = np.random.default_rng(5), 0, 300
    for number in range(times):
        base = draw.uniform(0.5, 0.95, clients)
        share = np.maximum(base, draw.uniform(0.6, 0.9, clients))
        folder, truth = (
            simulated(make_once, draw, base, share, rows, f"{clients}-{number}"),
            (share - base).mean(),
        )
        found = gain_of_these(with_side(read([folder]), CONSTANT))
        covered += found.low <= truth <= found.high
    assert 0.92 <= covered / times <= 0.98


def simulated(make, draw, base, share, rows, name):
    parts, scores = [], {PERSONAL: {}, CONSTANT: {}}
    for i, (b, s) in enumerate(zip(base, share, strict=True)):
        many = int(draw.integers(*rows))
        target = (draw.uniform(size=many) > b).astype(int)
        called = np.where(draw.uniform(size=many) < s, target, 1 - target)
        for side, calls in ((PERSONAL, called), (CONSTANT, np.zeros(many, int))):
            p1 = np.where(calls == 1, 0.9, 0.1)
            columns = {
                "side": side,
                "client": f"c{i}",
                "row": range(many),
                "target": target,
                "p0": 1 - p1,
                "p1": p1,
            }
            parts.append(pd.DataFrame(columns))
            scores[side][f"c{i}"] = float((calls == target).mean())
    folder = make("ditto", scores[PERSONAL], constant=scores[CONSTANT], folder=name)
    pd.concat(parts).to_parquet(folder / "predictions.parquet")
    return folder


@pytest.mark.parametrize("sizes", [[1] * 12, [20] * 5 + [1] * 5])
def test_clients_with_one_row_do_not_count_as_certain(sizes):
    """Two models that are equally often right: that one beats the other is claimed in 5 % of draws at most."""
    draw, times = np.random.default_rng(1), 100
    assert sum(falsely_claimed(draw, sizes) for _ in range(times)) / times <= 0.05


def falsely_claimed(draw, sizes):
    units, gains = [], []
    for number, many in enumerate(sizes):
        y, right = draw.integers(0, 2, many), draw.uniform(size=(2, many)) < 0.7
        sides = [Predicted(y, np.eye(2)[np.where(r, y, 1 - y)]) for r in right]
        own, other = right.mean(1)
        units.append(Compared(own, other, many, {0: [tuple(sides)]}, 0.2))
        gains.append({"unit": number, "gain": own - other, "split": 0, "seed": 0})
    run = SimpleNamespace(metric="accuracy", better=1)
    return _by_rows(units, run, METRICS["accuracy"], pd.DataFrame(gains)).low > 0
