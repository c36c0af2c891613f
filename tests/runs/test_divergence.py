"""Divergence ends a run with the reason, and a sound model is never taken for a diverged one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import motet
from motet import methods, verb
from motet.errors import Diverged
from motet.runs.divergence import diverged
from motet.runs.run import Run


def table(clients: int = 4, rows: int = 40, columns: int = 19, seed: int = 0) -> pd.DataFrame:
    """A linear target in thousands; the last client's rows are ten times as large as those of others."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(clients * rows, columns))
    who = np.repeat(np.arange(clients), rows)
    y = 1000 * (x.sum(1) + rng.normal(size=len(x)))
    x[who == clients - 1] *= 10
    return pd.DataFrame(x).add_prefix("x").assign(target=y, client=[f"c{i}" for i in who])


def of_numbers(loss: list[float], r2: list[float]) -> dict[str, torch.Tensor]:
    return {
        "n": torch.full((len(loss),), 2.0),
        "loss": torch.tensor(loss),
        "r2": torch.tensor(r2),
    }


def of_classes(loss: float, balanced: float) -> dict[str, torch.Tensor]:
    return {"n": torch.tensor([20.0]), "loss": torch.tensor([loss]), "balanced": torch.tensor([balanced])}


def test_a_client_whose_loss_is_no_number_or_ten_thousand_times_the_constant_one_has_diverged() -> None:
    names, bad = ["a", "b", "c"], [0.5, 0.5, -2000.0]
    assert diverged("numbers", 1, names, of_numbers([1, 90, 5000], bad)) == ("", "")
    assert diverged("numbers", 1, names, of_numbers([1, 1, 11_000], bad)) == ("client c", "1.1e+04")
    far_off = of_numbers([1, 1, 11_000], [0.5, 0.5, -20.0])  # so are its targets
    assert diverged("numbers", 1, names, far_off) == ("", "")
    nan = of_numbers([1, float("nan"), 1], [0.5] * 3)
    assert diverged("numbers", 1, names, nan) == ("client b", "nan")


def test_of_several_clients_that_diverged_the_one_with_the_largest_loss_is_named() -> None:
    found = of_numbers([2e4, 1e6, 3e4], [-2000.0] * 3)
    assert diverged("numbers", 1, ["a", "b", "c"], found) == ("client b", "1e+06")


def test_the_median_of_clients_diverges_at_a_thousand_times_the_constant_loss() -> None:
    said = diverged("numbers", 1, ["a", "b"], of_numbers([2000, 1500], [-1000.0, -1000.0]))
    assert said == ("half of the clients", "1.75e+03 or more")


def test_a_client_with_a_single_validation_row_may_diverge_too() -> None:
    assert diverged("numbers", 1, ["a"], of_numbers([1e6], [0.0]))[0] == "client a"


def test_an_overconfident_classifier_that_finds_classes_has_not_diverged() -> None:
    assert diverged("classes", 2, ["a"], of_classes(1e6, 0.85))[0] == ""
    assert diverged("classes", 2, ["a"], of_classes(60, 0.5))[0] == ""
    assert diverged("classes", 2, ["a"], of_classes(1e6, 0.5))[0] == "client a"


def test_clients_without_validation_rows_are_passed_over() -> None:
    scores = of_numbers([float("nan"), 1.0], [0.5, 0.5]) | {"n": torch.tensor([0.0, 2.0])}
    assert diverged("numbers", 1, ["a", "b"], scores)[0] == ""


@pytest.mark.parametrize("method", ["local", "fedavg", "ditto"])
def test_a_rate_that_is_too_large_ends_the_run_with_round_reason_and_hint(
    tmp_path: Path, method: str
) -> None:
    given = {"data": table(), "target": "target", "client": "client", "out": tmp_path, "unseen": 0.0}
    with pytest.raises(
        motet.errors.RunError, match=r"(?s)diverged in round \d+: .*hint: try a smaller method.lr"
    ):
        motet.run(method=method, lr=1.0, rounds=60, **given)
    facts = Run(tmp_path).facts
    assert facts["status"] == "failed" and facts["failure"].startswith("diverged in round")


def test_the_rate_that_is_chosen_learns_the_same_table(tmp_path: Path) -> None:
    given = {"data": table(), "target": "target", "client": "client", "out": tmp_path, "unseen": 0.0}
    done = motet.run(method="fedavg", rounds=60, **given)
    chosen = done.facts["settings"]["method"]["lr"]
    assert 0 < chosen < 0.05 and f"lr = {chosen}" in (tmp_path / "recipe.toml").read_text()
    own = done.test[(done.test["side"] == "personal") & (done.test["client"] != "c3")]
    assert own["rmse"].mean() < 4400  # the deviation of the targets
    assert motet.verify(tmp_path) == []


def test_a_simulated_attack_may_ruin_models(tmp_path: Path) -> None:
    given = {"data": table(), "target": "target", "client": "client", "out": tmp_path, "unseen": 0.0}
    guard = {"attack": "flip", "attackers": 0.5}
    assert motet.run(method="fedavg", lr=0.02, rounds=8, guard=guard, **given).facts["status"] == "done"


def test_of_two_rounds_with_the_same_score_the_lower_loss_is_reported(tmp_path: Path) -> None:
    done = motet.run(method="fedavg", data="wine", clients=3, rounds=30, lr=0.01, patience=0, out=tmp_path)
    val = (
        done.scores.query("part == 'val' and side == 'personal'")
        .groupby("round")[["accuracy", "loss"]]
        .mean()
    )
    best = val[val["accuracy"] == val["accuracy"].max()]
    assert len(best) > 1 and done.facts["reported"] == best["loss"].idxmin()


def test_the_error_is_one_of_motets_own() -> None:
    assert issubclass(Diverged, motet.errors.RunError)


def test_a_server_without_rows_chooses_a_rate_that_is_safe_for_collinear_columns() -> None:
    from motet.client import Batch, Task
    from motet.client.curvature import curvature
    from motet.data.federated import FederatedData
    from motet.methods.fedavg import FedAvg
    from motet.nets import build
    from motet.runs.rates import rates_for

    nowhere = FederatedData("town", {}, {}, "numbers", 1, (), (), (50,))
    task = Task(build("regression", {}, (50,), 1, "numbers", 0), "numbers", 1)
    rate, _ = rates_for(FedAvg(task), task, nowhere)
    rows = np.random.default_rng(0).normal(size=(16, 1)).repeat(50, 1)
    collinear = Batch.of(torch.tensor(rows, dtype=torch.float32), torch.zeros(16))
    assert rate * curvature(task.loss, task.w0, collinear) < 2


class NoLossAtTheStart(methods.FedAvg):
    @verb
    def train(self, w, keep, data):  # type: ignore[no-untyped-def]
        return self.descend(self.over_nothing, w, data), keep

    def over_nothing(self, w, batch):  # type: ignore[no-untyped-def]
        return self.task.loss(w, batch) * 0 / 0


def no_loss_far_below(predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Not finite where a target is far below the others."""
    return (predictions - targets).square() * ((targets + 1).sqrt() * 0 + 1)


@pytest.mark.parametrize("lr", [0.01, "auto"])
@pytest.mark.parametrize("engine", ["loop", "vmap", "threads"])
def test_a_loss_that_is_not_finite_at_the_start_is_named_and_no_rate_is_blamed(
    engine: str, lr: float | str, tmp_path: Path
) -> None:
    settings = {"target": "target", "client": "client", "lr": lr, "rounds": 2, "engine": engine}
    with pytest.raises(motet.MotetError) as failed:
        motet.run(method=NoLossAtTheStart, data=table(), out=tmp_path / "run", **settings)
    said = str(failed.value)
    assert "the loss is not finite at the initial weights of client c" in said and "\nhint: " in said
    assert "lr" not in said and "diverged" not in said


def test_so_is_one_that_is_not_finite_for_one_clients_validation_rows(tmp_path: Path) -> None:
    frame = table()
    frame.loc[frame["client"] == "c1", "target"] -= 1e6
    settings = {"target": "target", "client": "client", "lr": 0.001, "rounds": 2}
    with pytest.raises(motet.MotetError) as failed:
        motet.run(method="fedavg", data=frame, loss=no_loss_far_below, out=tmp_path / "run", **settings)
    said = str(failed.value)
    assert "the loss is not finite at the initial weights of client c1" in said and "lr" not in said
