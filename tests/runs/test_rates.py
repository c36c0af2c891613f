"""Rates that a recipe leaves open: a curvature is measured once for all that start alike, and never for another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from motet.client import Batch, Task
from motet.runs import rates
from motet.runs.build import resolve
from motet.runs.recipe import read
from motet.runs.run import Run, run


def rows(of: float = 1.0) -> list[Batch]:
    x = torch.arange(12.0).reshape(4, 3) * of
    return [Batch.of(x, torch.tensor([0, 1, 0, 1]))]


def net(seed: int = 0, layer: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), layer or nn.ReLU(), nn.Linear(4, 2))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    monkeypatch.setattr(rates, "_measured", {})
    seen: list[float] = []
    usual = rates.largest_curvature
    monkeypatch.setattr(rates, "largest_curvature", lambda *given: seen.append(usual(*given)) or seen[-1])
    return seen


def test_methods_that_start_alike_measure_once(measured: list[float]) -> None:
    first, again = (rates.known_curvature(Task(net(), "classes", 2), rows()) for _ in range(2))
    assert first == again and len(measured) == 1


@pytest.mark.parametrize(
    ("task", "batches"),
    [
        (Task(net(1), "classes", 2), rows()),
        (Task(net(0, nn.Tanh()), "classes", 2), rows()),
        (Task(net(), "classes", 2), rows(2.0)),
    ],
)
def test_other_weights_layers_or_rows_are_measured_anew(
    task: Task, batches: list[Batch], measured: list[float]
) -> None:
    rates.known_curvature(Task(net(), "classes", 2), rows())
    rates.known_curvature(task, batches)
    assert len(measured) == 2


class Own(nn.Module):
    """Looks the same whatever `power` is."""

    def __init__(self, power: int) -> None:
        super().__init__()
        self.power, self.last = power, nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(x**self.power)
        return out


def test_a_network_of_ones_own_code_is_always_measured(measured: list[float]) -> None:
    for power in (1, 2):
        torch.manual_seed(0)
        rates.known_curvature(Task(Own(power), "classes", 2), rows())
    assert len(measured) == 2 and measured[0] != measured[1]


# ---- a penalty that acts only on the model at home ----

QUICK = ["data=wine", "data.clients=4", "train.rounds=3", "train.report=last"]


def made(folder: Path, *words: str) -> Run:
    return run(read(words=[*QUICK, "method=ditto", *words]), folder)


def global_weights(done: Run) -> dict[str, np.ndarray]:
    return load_file(done.folder / "global.safetensors")


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_grid_over_lam_leaves_dittos_global_model_as_it_is(tmp_path: Path, optimiser: str) -> None:
    grid = {
        lam: made(tmp_path / str(lam), f"method.optimiser={optimiser}", f"method.lam={lam}")
        for lam in (0, 1, 100)
    }
    first = global_weights(grid[0])
    assert all(np.array_equal(a, global_weights(r)[k]) for r in grid.values() for k, a in first.items())
    chosen = [r.facts["settings"]["method"] for r in grid.values()]
    assert len({m["lr"] for m in chosen}) == 1
    shares = [m["home_share"] for m in chosen]
    assert shares[0] == 1.0 and 1.0 >= shares[1] > shares[2] > 0.0


def test_the_rate_at_home_counts_the_pull() -> None:
    # With rate 1 / L and share s, s / L is 1 / (L + lam).
    for lam in (0.3, 10.0):
        method = resolve(read(words=[*QUICK, "method=ditto", f"method.lam={lam}"])).recipe["method"]
        lr, share = method["lr"], method["home_share"]
        assert share * lr == pytest.approx(1 / (1 / lr + lam), rel=0.05)


def test_a_rate_that_is_given_is_that_of_both_models() -> None:
    words = [*QUICK, "method=ditto", "method.lr=0.1", "method.lam=10"]
    assert resolve(read(words=words)).recipe["method"]["home_share"] == 1.0


def test_rates_that_clients_choose_are_safe_for_both_models() -> None:
    method = resolve(read(words=[*QUICK, "method=ditto+dapfl", "method.lam=10"])).recipe["method"]
    plain = resolve(read(words=[*QUICK, "method=ditto", "method.lam=10"])).recipe["method"]
    assert (method["lr_max"], method["home_share"]) == (plain["lr"], plain["home_share"])
