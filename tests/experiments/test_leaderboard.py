"""The leaderboard: the same budget for every method, choices on validation rows, and tables from what runs left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from motet.errors import MotetError
from motet.runs import experiment
from motet.runs.find_methods import method_names


@pytest.fixture(scope="module")
def procedure() -> Any:
    return experiment.module_of(experiment.find("leaderboard"), "procedure")


@pytest.fixture
def tables(procedure: Any) -> Any:
    from experiments.leaderboard import write_tables

    return write_tables


def small(**more: Any) -> dict[str, Any]:
    """Two rounds of three clients."""
    words = ["sets.digits.data.clients=3", "sets.digits.train.rounds=2", "sets.digits.train.evaluate=1"]
    return experiment.find("leaderboard").at("desk", ["digits"], [0, 1], words) | more


def test_a_method_takes_part_because_it_exists(procedure: Any) -> None:
    assert sorted(procedure.chosen_methods(small())) == method_names()
    assert procedure.chosen_methods(small(methods="ditto,fedavg")) == ["local", "fedavg", "ditto"]


def test_every_method_with_a_rate_may_try_the_same_number_of_settings(procedure: Any) -> None:
    rows = [procedure.row_of(m, "digits", small()) for m in ("fedavg", "ditto", "fedrep", "fedcp", "apfl")]
    found = procedure.entered(rows, 100, 5)
    assert [len(s.tried) for s in found.searches] == [5] * 5 and not found.unfit


def test_rates_are_spread_from_the_lowest_to_the_highest(procedure: Any) -> None:
    rates = [{"lr": 10 ** (k / 6)} for k in (0, *range(-6, 0), *range(1, 7))]
    assert [round(one["lr"], 1) for one in procedure.spread(rates, 5)] == [1.0, 0.1, 0.3, 3.2, 10.0]


def test_a_rate_and_a_strength_are_tried_above_and_below_the_default(procedure: Any) -> None:
    board = [(1, 1), (0.1, 1), (10, 1), (0.3, 0.1), (0.3, 10), (3, 0.1), (3, 10), (1, 100)]
    tried = procedure.spread([{"lr": a, "lam": b} for a, b in board], 5)
    assert [(t["lr"], t["lam"]) for t in tried] == [(1, 1), (0.3, 0.1), (0.3, 10), (3, 0.1), (3, 10)]


def test_a_method_that_does_not_apply_is_left_out_by_name(
    procedure: Any, tables: Any, tmp_path: Path
) -> None:
    settings = small(methods="fedrecon", budget=1, seeds=[0])
    settings["sets"]["digits"]["net"] = {"name": "linear"}  # all head
    procedure.perform(settings, tmp_path, 1, lambda _: None)
    standing = tables.json.loads((tmp_path / "digits.json").read_text())
    assert "fedrecon" not in standing["methods"] and "all head" in standing["unfit"]["fedrecon"]
    assert "Left out: fedrecon" in "\n".join(tables.page([standing]))


def test_data_that_are_not_here_are_an_error_and_no_table_without_methods(
    procedure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTET_DATA", str(tmp_path))
    settings = experiment.find("leaderboard").at("desk", ["school"], [0])
    with pytest.raises(MotetError, match="'school' is not here"):
        procedure.contest("school", settings, tmp_path / "out", 1, print)


def test_a_small_one_runs_goes_on_and_is_shown(procedure: Any, tables: Any, tmp_path: Path) -> None:
    said: list[str] = []
    rows = procedure.perform(small(methods="ditto", budget=2), tmp_path, 1, said.append)
    assert set(rows) == {"digits, local", "digits, fedavg", "digits, ditto"}
    assert sum(line.startswith("  tuning") for line in said) == 12  # three methods, two settings, two stages
    assert procedure.perform(small(methods="ditto", budget=2), tmp_path, 1, said.append) == rows
    assert said[-1] == "  ditto, seed 1: read"
    standing = tables.json.loads((tmp_path / "digits.json").read_text())
    assert len(standing["methods"]["ditto"]["scores"]) == 2 and standing["methods"]["local"]["kilobytes"] < 1
    text = "\n".join(tables.page([standing]))
    assert "### digits" in text and "| ditto |" in text.replace("**", "") and "Over FedAvg" in text


@pytest.mark.parametrize(
    ("low", "high", "called"),
    [(0.1, 0.3, "helps"), (-0.1, 0.3, "not shown"), (-0.3, -0.1, "harms"), (None, None, "not shown")],
)
def test_a_verdict_goes_by_the_interval(tables: Any, low: Any, high: Any, called: str) -> None:
    assert tables.verdict({"mean": 0.1, "low": low, "high": high}) == called


def test_an_interval_over_seeds_is_students(tables: Any) -> None:
    assert tables.over_seeds([0.9, 0.92, 0.94], "accuracy") == "92.0 ± 5.0"
    assert tables.over_seeds([0.9], "accuracy") == "90.0"
