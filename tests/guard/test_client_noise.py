"""Client-level noise: cut updates, the noise of their mean, Poisson scaling and a clip that adapts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from motet.client import Batch, ClientData, Task
from motet.core import MethodUnfit, Talk, Tree, Turn, average
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.guard.pairs.chain import Leaving
from motet.guard.pairs.client_noise import ClientNoise
from motet.methods.fedavg import FedAvg
from motet.vec import Vec

SENT = Vec(a=torch.tensor([1.0, 1.0]), b=torch.tensor([0.0]))


def left(guard: ClientNoise, *update: float, seed: int = 0) -> Tensor:
    reply = SENT + Vec(a=torch.tensor(update[:2]), b=torch.tensor(update[2:]))
    out, kept = guard.leave(reply, Leaving(SENT, 1.0, seed), ())
    assert kept == ()
    moved: Tensor = torch.cat([(out - SENT)[k] for k in SENT])
    return moved


def test_updates_are_cut_and_short_ones_are_left() -> None:
    guard = ClientNoise(1.0, 1.0, 10)
    assert left(guard, 3.0, 0.0, 4.0).tolist() == pytest.approx([0.6, 0.0, 0.8])
    assert left(guard, 0.1, 0.0, 0.0).tolist() == pytest.approx([0.1, 0.0, 0.0])


def test_what_is_no_float_is_refused() -> None:
    with pytest.raises(MethodUnfit, match="floating"):
        ClientNoise(1.0, 1.0, 10).leave((SENT, torch.tensor(3)), Leaving(SENT, 1.0, 0), ())


def spread(draws: list[Tensor]) -> float:
    return float(torch.cat(draws).double().std())


def test_a_server_s_noise_has_the_scale_z_s_over_m() -> None:
    guard = ClientNoise(0.5, 2.0, 10)
    wide = Vec(a=torch.zeros(4000))
    found = guard.released(wide, wide, 10, seed=3)["a"]
    assert spread([found]) == pytest.approx(2.0 * 0.5 / 10, rel=5 / math.sqrt(8000))
    assert torch.equal(found, guard.released(wide, wide, 10, seed=3)["a"])


def test_shares_of_all_clients_make_the_same_noise() -> None:
    guard, wide = ClientNoise(0.5, 2.0, 10, by="clients"), Vec(a=torch.zeros(4000))
    replies = [guard.leave(wide, Leaving(wide, 1.0, seed), ())[0]["a"] for seed in range(10)]
    mean = guard.released(Vec(a=torch.stack(replies).mean(0)), wide, 10, seed=3)["a"]
    assert spread([mean]) == pytest.approx(2.0 * 0.5 / 10, rel=5 / math.sqrt(8000))


def test_a_poisson_draw_divides_by_the_expected_number() -> None:
    guard = ClientNoise(1.0, 1e-9, 10, scaled=True)
    mean = Vec(a=torch.tensor([2.0, 1.0]), b=torch.tensor([0.0]))  # the mean update of 5 replies is (1, 0, 0)
    assert guard.released(mean, SENT, 5, seed=0)["a"].tolist() == pytest.approx([1.5, 1.0])


def test_a_clip_that_adapts_goes_to_the_quantile_and_its_count_costs_noise() -> None:
    guard = ClientNoise(10.0, 1.0, 100, quantile=0.5)
    assert guard.of_updates == pytest.approx((1 - 1 / 10**2) ** -0.5)  # (z^-2 - (2 * 100 / 20)^-2)^(-1/2)
    for number in range(120):
        for i in range(100):
            left(guard, i / 50, 0.0, 0.0, seed=i)  # lengths from 0 to 2: the median is 1
        guard.released(SENT, SENT, 100, seed=number)
    assert guard.clip == pytest.approx(1.0, rel=0.2)
    with pytest.raises(MethodUnfit, match="clip_quantile"):
        _ = ClientNoise(1.0, 1.0, 10, quantile=0.5).of_updates


def test_with_a_secret_draw_one_client_moves_the_count_by_half_at_most() -> None:
    """The count's noise is paid for as if one client moved it by 1/2: there and short, there and long, or absent."""

    def next_clip(*lengths: float) -> float:
        guard = ClientNoise(1.0, 1.0, 100, scaled=True, quantile=0.5)
        for i, length in enumerate(lengths):
            left(guard, length, 0.0, 0.0, seed=i)
        guard.released(SENT, SENT, float(len(lengths)), seed=7)
        return guard.clip

    absent, short, long = next_clip(*[0.5] * 50), next_clip(*[0.5] * 51), next_clip(*[0.5] * 50, 2.0)
    # clip *= exp(-0.2 share): half a client of 100 expected ones is a share of 0.005
    assert short / absent == pytest.approx(math.exp(-0.2 * 0.005)) and long / absent == pytest.approx(
        math.exp(0.001)
    )


class Early(FedAvg):
    """Averages a training before the first round too."""

    def start(self, turn: Turn) -> Tree | Talk:
        return (yield average(self.train, turn.clients, send=self.task.w0))


class Twice(FedAvg):
    """Averages two trainings of each round."""

    def round(self, w: Vec, turn: Turn) -> Tree | Talk:
        return (yield average(self.train, turn.cohort, send=(yield average(self.train, turn.cohort, send=w))))


def test_a_release_that_no_round_counts_is_refused() -> None:
    rows = Batch.of(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))
    engine = Loop({"a": ClientData(rows, rows, rows)})
    engine.private = ClientNoise(1.0, 1.0, 1)
    task = Task(torch.nn.Linear(2, 2), "classes", 2)
    with pytest.raises(MethodUnfit, match=r"early asks before the first round \(train\)"):
        start(engine, Early(task), Turn(-1, ["a"], ["a"], 0))
    with pytest.raises(MethodUnfit, match=r"twice asks a second time in a round \(train\)"):
        play(engine, Twice(task), task.w0, Turn(0, ["a"], ["a"], 0))
