"""The figures' numbers from outcomes written by hand; and the cells that the figures' recipes name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from motet.data.federated import Pool
from motet.runs import experiment

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "stacking"))
import paper_figures as figures
from cells import Cell, some_rows
from paper_models import FAMILIES, of_family

RUNS = "stacking/columns"  # runs of the method, not cells
ALL = [n for n in experiment.names() if n.startswith("stacking/") and n != RUNS]


def result(rows: tuple[int, int], gains: tuple[float, float]) -> dict[str, Any]:
    held = [[0.7 + g] for g in gains]
    outcome = {
        "baseline": [[0.7], [0.7]],
        "held": held,
        "pooled": [[0.7], [0.7]],
        "trust_held": [[0.4, 0.6], [0.2, 0.8]],
        "trust_pooled": [[1.0, 0.0], [0.0, 1.0]],
    }
    clients = {"names": ["a", "b"], "rows": list(rows), "positive": [0.5, 0.1], "alike": [[1, 0.5], [0.5, 1]]}
    return {"clients": clients, "outcomes": {"all 0": outcome}, "cpu_seconds": 2.0}


def test_means_of_a_cell() -> None:
    found = figures.means(result((10, 90), (0.03, 0.01)))
    assert found["baseline"] == pytest.approx(0.7) and found["held"] == pytest.approx(0.02)
    assert found["held self"] == pytest.approx(0.6) and found["pooled self"] == 1.0


def test_the_larger_the_less_it_gains_and_the_more_important_it_is() -> None:
    found = figures.by_size([result((10, 90), (0.03, 0.01)), result((20, 80), (0.02, 0.015))])
    assert found["size~gain"] == pytest.approx(-1) and found["size~importance"] > 0.8


def test_importance_is_what_others_give() -> None:
    assert figures.importance(result((1, 1), (0, 0))["outcomes"]["all 0"]).tolist() == pytest.approx(
        [0.25, 0.75]
    )


def test_trends_of_balance_and_of_natural_clients() -> None:
    some = [result((10, 90), (0.01, 0.03))]
    assert figures.by_balance(some)["balance~gain"] == pytest.approx(-1)
    assert figures.by_client(some)["b"] == {"baseline": [0.7], "held": [pytest.approx(0.03)], "pooled": [0.0]}


def test_trust_by_both_clients_labels() -> None:
    """Client a has half positives and trusts b (0.1) with 0.6; b trusts a with 0.2."""
    grid = figures.by_thirds([result((10, 90), (0, 0))])
    assert grid[1, 0] == pytest.approx(0.6) and grid[0, 1] == pytest.approx(0.2) and np.isnan(grid[2]).all()


def test_vehicle_loan_is_with_and_without_its_leak() -> None:
    settings = experiment.find("stacking/figure2").at("desk")
    leaky, clean = (figures.cell_of(settings, f"{n}vehicle_loan beta=1.0", 1) for n in ("leaky_", ""))
    assert leaky.data == clean.data == "vehicle_loan"
    assert leaky.data_options["as_published"] and not clean.data_options["as_published"]


def test_an_interval_is_that_of_a_mean_over_seeds() -> None:
    assert figures.with_interval([0.01, 0.02, 0.03]) == "+0.0200 (-0.0048 to +0.0448)"
    assert figures.with_interval([0.01]) == "+0.0100"


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scale", experiment.SCALES)
def test_every_row_of_every_scale_names_cells_and_the_papers_rows_are_known(name: str, scale: str) -> None:
    found = experiment.find(name)
    settings = found.at(scale)
    for row in settings["rows"]:
        if "=" in row or settings["split"] == "natural":
            cell = figures.cell_of(settings, row, 1)
            assert cell.data == row.partition(" ")[0].removeprefix("leaky_") and cell.how["repeats"] >= 1
    known = set(found.settings["rows"])
    assert {r.partition(":")[0] for r in found.expected} <= known
    assert {c for row in found.expected.values() for c in row} <= set(found.columns)


def test_a_figure_of_small_data_is_computed_from_its_own_folder(tmp_path: Path) -> None:
    found = experiment.find("stacking/figure4")
    settings = found.at("quick") | {"how": found.at("quick")["how"] | {"trees": 3}}
    rows = experiment.module_of(found, "procedure").perform(settings, tmp_path, 1, lambda _: None)
    (row,) = rows.values()
    assert {"baseline all 0", "held all 0", "held untested 16", "jaccard~importance"} <= set(row["values"])
    assert set(found.columns) <= set(row["values"])  # a table finds its numbers by the columns' names
    (cell,) = tmp_path.glob("*.json")
    assert json.loads(cell.read_text())["library"]["forests"].startswith("scikit-learn ")
    assert (tmp_path / "figure4.png").stat().st_size > 10_000


def test_some_rows_are_always_the_same_ones() -> None:
    pool = Pool(np.arange(20.0).reshape(10, 2), np.arange(10) % 2, "classes", ("a", "b"))
    a, b = some_rows(pool, 4), some_rows(pool, 4)
    assert np.array_equal(a.x, b.x) and len(a.y) == 4 and some_rows(pool, 0) is pool


def test_a_cell_without_a_choice_of_rows_is_named_as_before() -> None:
    assert "rows" not in json.loads(Cell("wine", "iid", 1).text())
    assert Cell("wine", "iid", 1).file != Cell("wine", "iid", 1, rows=5).file


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_what_is_easy(family: str) -> None:
    if family == "dp-logistic":
        pytest.importorskip("opacus")
    x = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    model = of_family(family, 1, x.min(0), x.max(0)).fit(x, y)
    assert (model.predict_proba(x).argmax(1) == y).mean() > 0.85


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(ValueError, match="forest, boosting"):
        of_family("oracle", 1, np.zeros(1), np.ones(1))
