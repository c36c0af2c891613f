"""Advice: skew beyond chance, power by hand, methods that fit, predictions that cover, test rows untouched."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

import motet
from motet.advice.advice_text import as_text
from motet.advice.before_training import (
    DIFFER,
    distance_by_chance,
    fitting,
    groups_of,
    power_of,
    smallest_gain,
    smallest_mean_gain,
)
from motet.advice.predicted_gains import shrunk
from motet.cli.main import main
from motet.errors import MotetError


def patients(clients: int = 8, rows: int = 60, *, apart: bool = False, seed: int = 0) -> pd.DataFrame:
    """Hospitals with the same rule; with `apart`, the classes of each half of them are nearly disjoint."""
    draw = np.random.default_rng(seed)
    who = np.repeat(np.arange(clients), rows)
    x = draw.standard_normal((clients * rows, 3))
    score = x @ [1.5, -1.0, 0.5] + draw.standard_normal(len(x)) * 0.5
    shift = np.where(who % 2 == 0, 2.5, -2.5) if apart else 0.0
    return pd.DataFrame(x, columns=list("abc")).assign(
        sick=np.where(score + shift > 0, "yes", "no"), hospital=[f"h{i}" for i in who]
    )


def advice(frame: pd.DataFrame, rounds: int = 0, **more: Any) -> motet.Advice:
    return motet.advise(data=frame, target="sick", client="hospital", rounds=rounds, **more)


# ---- before training ----


def test_clients_that_draw_from_the_same_rows_have_the_skew_of_chance() -> None:
    found = advice(patients())
    assert found.skew.words == "weak"
    assert abs(found.skew.label - found.skew.label_by_chance) < 0.05


def test_disjoint_labels_are_strong_skew_and_two_groups() -> None:
    found = advice(patients(apart=True))
    assert found.skew.words == "strong" and found.skew.groups == 2
    assert {"fedper", "ifca"} <= {fit.method for fit in found.fits}


def test_more_rows_differ_less_by_chance() -> None:
    whole = np.array([30.0, 70.0])
    near, far = distance_by_chance(whole, 1000), distance_by_chance(whole, 10)
    assert 0 < near < far / 5 and distance_by_chance(whole, 0) == 0


def test_labels_without_groups_have_one() -> None:
    draw = np.random.default_rng(0)
    assert groups_of([draw.multinomial(50, [0.25] * 4).astype(float) for _ in range(12)]) == 1


@pytest.mark.parametrize("clients", [8, 12, 60])
def test_shares_of_two_classes_that_are_spread_evenly_are_no_groups(clients: int) -> None:
    shares = np.linspace(0.05, 0.95, clients)
    assert groups_of([np.array([s, 1 - s]) * 100 for s in shares]) == 1


def test_one_client_alone_is_no_group() -> None:
    assert groups_of([np.array([0.0, 80.0]), *(np.array([40.0 + i, 40.0 - i]) for i in range(6))]) == 1


def test_skew_that_is_chance_makes_no_groups() -> None:
    for seed in range(3):
        assert advice(patients(clients=20, rows=20, seed=seed)).skew.groups == 1


def test_power_by_hand() -> None:
    # of ten rows on which all differences are in favour, six or more must differ: P(Bin(10, 0.6) >= 6) = 0.6331
    assert power_of(10, 0.6) == pytest.approx(0.6331, abs=1e-4)
    # eight rows: P(Bin(8, g) >= 6) = 28 g^6 (1-g)^2 + 8 g^7 (1-g) + g^8 = 0.8
    g = smallest_gain(8)
    assert 28 * g**6 * (1 - g) ** 2 + 8 * g**7 * (1 - g) + g**8 == pytest.approx(0.8, abs=1e-3)
    # many rows: the normal approximation, (1.960 + 0.842) * sqrt(0.2 / n)
    assert smallest_gain(2000) == pytest.approx(2.8016 * math.sqrt(DIFFER / 2000), rel=0.03)
    assert math.isnan(smallest_gain(5))


@pytest.mark.parametrize("rows", [10, 20, 60, 300])
def test_the_smallest_gain_is_found_four_times_of_five_in_a_simulation(rows: int) -> None:
    gain = smallest_gain(rows)
    differ = max(DIFFER, gain)
    draw, found = np.random.default_rng(rows), 0
    for better, worse, _ in draw.multinomial(
        rows, [(differ + gain) / 2, (differ - gain) / 2, 1 - differ], 2000
    ):
        found += better > worse and binomtest(int(worse), int(better + worse)).pvalue <= 0.05
    assert found / 2000 == pytest.approx(0.8, abs=0.03)


def test_power_of_a_study_by_hand() -> None:
    # two clients of 100 rows: sqrt(0.2 / 200 + 0.05² / 2) and Student's quantile 12.706 of one degree of freedom
    error = math.sqrt(2 * 0.2 / 100 / 4 + 0.05**2 / 2)
    assert smallest_mean_gain([100, 100]) == pytest.approx((12.7062 + 0.8416) * error, rel=1e-3)
    assert math.isnan(smallest_mean_gain([100]))


def test_every_method_that_is_named_exists_and_is_named_once() -> None:
    from motet.runs.recipe import method_names

    survey = json.loads(json.dumps(advice(patients(apart=True, rows=20)).survey))
    many = [dict(survey["clients"][0], client=f"c{i}", columns=i % 2) for i in range(1200)]
    for one in (survey, survey | {"clients": many}, survey | {"kind": "numbers"}):
        named = [fit.method for fit in fitting(one, advice(patients(apart=True)).skew)]
        assert set(named) <= set(method_names()) and len(named) == len(set(named)) and named[0] == "fedavg"


# ---- the probe ----


def test_predictions_cover_true_gains() -> None:
    draw, hits, means = np.random.default_rng(1), [], []
    for spread in (0.0, 0.05):
        for _ in range(150):
            rows = draw.integers(10, 60, 12).astype(float)
            true = 0.03 + spread * draw.standard_normal(12)
            own = true + np.sqrt(0.15 / rows) * draw.standard_normal(12)
            mean, error, _, centre, reach = shrunk(own, np.sqrt(0.15 / rows), rows)
            hits.append(np.mean(np.abs(centre - true) <= reach))
            means.append(abs(mean - 0.03) <= 2.2 * error)
    assert np.mean(hits) > 0.93 and np.mean(means) > 0.92


def test_models_that_agree_on_every_row_do_not_outweigh_others() -> None:
    own, rows = np.array([0.0, 0.0, 0.2, 0.2]), np.full(4, 50.0)
    mean, *_ = shrunk(own, np.array([0.0, 0.0, 0.05, 0.05]), rows)
    assert mean == pytest.approx(0.1)


def test_a_probe_predicts_a_gain_where_small_clients_share_a_rule() -> None:
    found = advice(patients(clients=12, rows=30, seed=3), rounds=15)
    assert found.best is not None and found.best.mean > 0
    told = found.clients
    assert (told["low"] < told["predicted"]).all() and (told["predicted"] < told["high"]).all()


def test_test_rows_change_no_advice(tmp_path: Path) -> None:
    frame = patients(clients=4, rows=40)
    frame["part"] = np.tile(["train"] * 24 + ["val"] * 8 + ["test"] * 8, 4)
    other = frame.copy()
    at = other["part"] == "test"
    other.loc[at, "sick"] = other.loc[at, "sick"].map({"yes": "no", "no": "yes"})
    other.loc[at, "a"] += 100
    found = [advice(f, rounds=3, part="part") for f in (frame, other)]
    assert found[0].gains == found[1].gains and found[0].gains
    assert (found[0].skew, found[0].fits) == (found[1].skew, found[1].fits)


# ---- what people see ----


@pytest.mark.parametrize("width", [60, 80])
def test_it_fits_a_narrow_terminal(width: int) -> None:
    text = as_text(advice(patients(clients=3)), width)
    assert max(map(len, text.splitlines())) <= max(width, 93) and "labels" in text


def test_the_command_speaks_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "data=wine", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["skew"]["words"] == "moderate" and found["clients"][0]["client"] == "client-00"
    assert found["probe"]["rounds"] == 0


def test_one_client_has_nobody_to_federate_with() -> None:
    with pytest.raises(MotetError, match="nobody to federate with"):
        advice(patients(clients=1))


def test_numbers_are_advised_too() -> None:
    frame = patients().assign(sick=lambda f: f["a"] * 2 + f["b"])
    found = advice(frame, rounds=3)
    assert found.metric == "rmse" and found.best is not None and "shows:" not in repr(found)
