"""Losses between organisations: what a site lets a recipe choose, and which scores a server believes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from motet.client.losses import Criterion
from motet.data.federated import DataError
from motet.deploy.server.run_files import check_for_sites
from motet.deploy.site.loss_limits import heaviest_row
from motet.deploy.site.policy import Policy
from motet.deploy.site.table import SiteTable
from motet.engines.letters import Reply
from motet.engines.site_scores import ScoreRules
from motet.errors import MotetError
from motet.runs.recipe import read
from motet.wire import WireError
from patients import RECIPE, asked, layout_of, patients, site


def offer(folder: Path, net: dict[str, Any], frame: pd.DataFrame | None = None, **how: Any) -> Reply:
    """What a site says to a run with these settings of its network."""
    service = site(folder, patients() if frame is None else frame, Policy(least_category=1), **how)
    assert not asked(service, "layout", layout_of(service).tree()).refusal
    name = "regression" if how.get("kind") == "numbers" else "logistic"
    return asked(service, "offer", {"rounds": 2}, recipe=RECIPE | {"net": {"name": name} | net})


def test_a_site_trains_by_a_focal_loss_with_weights(tmp_path: Path) -> None:
    assert not offer(tmp_path, {"loss": "focal", "class_weights": [1.0, 2.0]}).refusal


def test_weights_that_make_a_reply_that_of_a_few_rows_are_refused(tmp_path: Path) -> None:
    frame = patients().assign(ill=["yes"] * 2 + ["no"] * 58)
    assert offer(tmp_path, {"class_weights": [0.0, 1.0]}, frame).refusal == "rows"
    y = torch.tensor([0] * 58 + [1] * 2)
    assert heaviest_row(Criterion("cross_entropy", (0.0, 1.0)), y) == 30.0, "two rows count for all sixty"
    assert heaviest_row(Criterion("cross_entropy", (0.0, 1.0)), y[:5]) == 5.0


def test_a_site_refuses_a_gamma_and_a_level_at_which_few_rows_count(tmp_path: Path) -> None:
    assert offer(tmp_path / "g", {"loss": "focal", "gamma": 50.0}).refusal == "limits"
    frame = patients().assign(ill=range(60))
    how = {"kind": "numbers"}
    assert offer(tmp_path / "q", {"loss": "quantile", "quantile": 0.001}, frame, **how).refusal == "limits"
    assert not offer(tmp_path / "ok", {"loss": "quantile", "quantile": 0.9}, frame, **how).refusal


def test_a_site_refuses_poisson_where_its_own_targets_are_below_zero(tmp_path: Path) -> None:
    how, counts = {"kind": "numbers"}, patients().assign(ill=range(60))
    assert not offer(tmp_path / "a", {"loss": "poisson"}, counts, **how).refusal
    assert (
        offer(tmp_path / "b", {"loss": "poisson"}, counts.assign(ill=range(-1, 59)), **how).refusal == "data"
    )


def test_a_strangers_loss_is_not_imported_at_a_site(tmp_path: Path) -> None:
    assert offer(tmp_path, {"loss": "os:getcwd"}).refusal == "recipe"


def test_survival_is_refused_at_the_beginning(tmp_path: Path) -> None:
    patients().to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(DataError, match="cannot be learned between organisations yet"):
        SiteTable("a", tmp_path / "a.csv", "age", kind="survival").describe()
    with pytest.raises(MotetError, match="net.loss is cox"):
        check_for_sites(read(words=["net.loss=cox"]))


def test_scores_of_other_losses_must_fit_each_other_too() -> None:
    def score(**values: float) -> dict[str, torch.Tensor]:
        return {k: torch.tensor(float(v), dtype=torch.float64) for k, v in values.items()}

    rules = ScoreRules("numbers", 1, 2.0, False, Criterion("quantile", scale=2.0))
    good = {"n": 9, "rmse": 1.0, "mae": 0.8, "r2": 0.5, "loss": 0.2, "pinball": 0.4}
    assert float(rules.check(score(**good))["pinball"]) == 0.4
    for wrong in ({"pinball": 0.1}, {"loss": -0.2}, {"mae": 1.5}):
        with pytest.raises(WireError):
            rules.check(score(**good | wrong))
    rare = {"accuracy": 0.5, "balanced": 0.5, "auc": 0.5, "f1": 0.5, "brier": 0.3, "ece": 0.1, "pairs": 4}
    focal = ScoreRules("classes", 2, 1.0, False, Criterion("focal"))
    assert float(focal.check(score(n=8, loss=0.05, **rare))["loss"]) == pytest.approx(0.05)
    with pytest.raises(WireError):
        ScoreRules("classes", 2, 1.0, False).check(score(n=8, loss=0.05, **rare))
