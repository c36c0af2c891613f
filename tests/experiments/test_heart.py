"""FLamby's cells on heart disease: the published numbers of test rows that FedAvg predicts rightly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from motet.data.federated import DataError
from motet.data.files.cache import arrays
from motet.runs import experiment
from motet.runs.run import run


def test_fedavg_has_the_cells_that_flamby_published(tmp_path: Path) -> None:
    try:
        arrays("heart")
    except DataError:
        pytest.skip("the data set heart is not here")
    found = experiment.find("heart/flamby")
    show = experiment.module_of(found, "show")
    (planned,) = found.plan("full", ["FedAvg"], [44])
    run(planned.recipe, tmp_path / "run")
    pool = show.flamby_pool(arrays("heart"))
    away = np.abs(np.subtract(show.cells(tmp_path / "run", pool), show.PUBLISHED["FedAvg"]["44"]))
    assert (away <= 1).all() and (away == 0).sum() >= 4


def test_a_seed_in_braces_is_a_number_in_the_settings() -> None:
    planned = experiment.find("heart/flamby").plan("full", ["FedAvg"], [43])
    assert planned[0].recipe.settings["net"]["torch_seed"] == 43
