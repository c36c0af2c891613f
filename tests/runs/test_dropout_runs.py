"""Runs of networks that draw: the same on engines and numbers of workers, and after a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import motet


class Stranger(nn.Module):
    """Dropout in a Sequential, in a function, and a constant buffer."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((shape[0],), 0.5))
        self.body = nn.Sequential(nn.Linear(shape[0], 8), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(self.body(x * self.scale), 0.2, self.training))


class Stopped(Exception):
    pass


def played(folder: Path, on_round: Any = None, more: dict[str, Any] | None = None, **engine: Any) -> Any:
    return motet.run(
        data={"name": "wine", "clients": 4}, net=Stranger, method="fedavg", lr=0.1, rounds=4, seed=1,
        engine=engine, out=folder, on_round=on_round, **more or {},
    )  # fmt: skip


def scores(run: Any) -> list[Any]:
    table = run.scores
    return table.sort_values(list(table.columns)).fillna(-1.0).to_numpy().tolist()


def test_loop_and_threads_have_the_same_bits_at_any_number_of_workers(tmp_path: Path) -> None:
    loop = played(tmp_path / "loop", name="loop")
    for workers in (1, 3):
        threads = played(tmp_path / f"threads{workers}", name="threads", workers=workers)
        assert scores(threads) == scores(loop)
    vmap = played(tmp_path / "vmap", name="vmap")
    losses = [
        run.scores.sort_values(["round", "part", "side", "client"])["loss"].tolist() for run in (loop, vmap)
    ]
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)


def test_a_run_that_was_stopped_and_goes_on_equals_an_undisturbed_one(tmp_path: Path) -> None:
    def stop(end: Any) -> None:
        if end.round == 2:
            raise Stopped

    whole = played(tmp_path / "whole", name="loop")
    with pytest.raises(Stopped):
        played(tmp_path / "stopped", on_round=stop, name="loop")
    again = played(tmp_path / "stopped", name="loop")
    assert not again.was_read and scores(again) == scores(whole)


def test_private_steps_draw_for_each_row_and_are_the_same_on_engines(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    private = {"privacy": {"level": "example", "noise_multiplier": 1.0, "accountant": "rdp"}}
    found = [played(tmp_path / name, more=private, name=name) for name in ("loop", "vmap")]
    losses = [r.scores.sort_values(["round", "part", "side", "client"])["loss"].tolist() for r in found]
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
