"""The swarm trains on any loss: functions without a gradient, and losses that are not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from motet.client import Task
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.engines.wrappers.faulty import Faulty
from motet.methods.swarm import Swarm
from motet.runs.recipe import read
from motet.runs.run import run
from motet.trusted_code import trust_names
from rounds import TWO, after, one_number
from swarm_data import divided, line, linear, one_client, same, three_classes, two_classes

engines = pytest.mark.parametrize("engine", [Loop, Vmap, Threads])


def not_for_large_numbers(scores: Tensor, y: Tensor) -> float:
    """Squared error, but not a number where the first score is above 2."""
    return float("nan") if scores[0] > 2 else float(((scores - y) ** 2).mean())


def wrong_answers(scores: Tensor, y: Tensor) -> float:
    """Has no gradient."""
    return float((scores.argmax(1) != y).double().mean())


def one_minus_auc(scores: Tensor, y: Tensor) -> float:
    """The share of pairs of a positive and a negative example that stand in the wrong order."""
    gap = (scores[:, 1] - scores[:, 0])[y == 1][:, None] - (scores[:, 1] - scores[:, 0])[y == 0]
    return float((gap < 0).double().mean() + (gap == 0).double().mean() / 2)


def ninth_decile(scores: Tensor, y: Tensor) -> float:
    """The quantile loss whose best constant has nine tenths of the targets below it."""
    return float(torch.maximum(0.9 * (y - scores), 0.1 * (scores - y)).mean())


def even_handed(scores: Tensor, y: Tensor, x: Tensor) -> float:
    """Wrong answers, and how unequal the shares of yes are on both sides of the first feature."""
    yes = scores.argmax(1) == 1
    sides = [
        yes[side].double().mean() if side.any() else yes.double().mean()
        for side in (x[:, 0] > 0, x[:, 0] <= 0)
    ]
    return float((yes != (y == 1)).double().mean() + 5 * (sides[0] - sides[1]).abs())


OWN = (not_for_large_numbers, wrong_answers, one_minus_auc, ninth_decile, even_handed)
trust_names(f"{__name__}:{loss.__name__}" for loss in OWN)


def test_what_has_no_gradient_can_be_trained() -> None:
    x, y = three_classes()
    torch.manual_seed(1)
    task = Task(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), "classes", 3)
    method = Swarm(task, loss=f"{__name__}:wrong_answers", stretch=100, spread=1.0)
    s = after(method, Vmap(divided(x, y, torch.arange(60) % 3)), 1)
    wrong = float((task.predict(s["best"], x).argmax(1) != y).double().mean())
    assert wrong == pytest.approx(float(s["loss"].min())) and wrong < 0.15


def test_the_area_under_a_curve_can_be_trained() -> None:
    x, y = two_classes()
    method = Swarm(linear(4, 2, "classes"), loss=f"{__name__}:one_minus_auc", stretch=60, spread=1.0)
    s = after(method, Loop(divided(x, y, torch.arange(120) % 2)), 1)
    assert one_minus_auc(method.task.predict(s["best"], x), y) < 0.02


def test_a_quadratic_surrogate_of_a_loss_of_one_s_own_is_remarked_on() -> None:
    own, task = f"{__name__}:one_minus_auc", linear(4, 2, "classes")
    (said,) = Swarm(task, loss=own, rule="surrogate").remarks()
    assert "one_minus_auc: if it is not smooth" in said and "rule=cma" in said
    assert Swarm(task, loss=own).remarks() == [] and Swarm(task, rule="surrogate").remarks() == []


def test_a_quantile_can_be_trained() -> None:
    x, y = torch.zeros(100, 1), torch.arange(100.0) / 10
    method = Swarm(linear(1, 1), loss=f"{__name__}:ninth_decile", stretch=150, spread=1.0, alpha=1.0)
    s = after(method, Loop(divided(x, y, torch.arange(100) % 4)), 1)
    assert float((y <= method.task.predict(s["best"], x)).float().mean()) == pytest.approx(0.9, abs=0.02)


def test_a_penalty_on_unfairness_sees_features_and_works() -> None:
    x, y = two_classes()
    clients_data = divided(x, y, torch.arange(120) % 2)
    unfair, fair = (
        after(
            Swarm(linear(4, 2, "classes"), loss=f"{__name__}:{f}", stretch=80, spread=1.0),
            Loop(clients_data),
            1,
        )
        for f in ("wrong_answers", "even_handed")
    )
    task = linear(4, 2, "classes")
    assert even_handed(task.predict(fair["best"], x), y, x) < even_handed(
        task.predict(unfair["best"], x), y, x
    )


@engines
def test_a_client_whose_losses_are_no_numbers_is_left_out(engine: Any) -> None:
    x, y = line()
    clients_data = divided(x, y, torch.arange(60) % 4)
    broken = clients_data | {"bad": one_client(x[:5] * torch.nan, y[:5])}
    method = Swarm(linear(4, 1), stretch=20)
    here = engine(broken)
    s = after(method, here, 2)
    assert same(s, after(method, engine(clients_data), 2)) < 1e-9
    assert {(c, v) for c, v, _ in here.refused} == {("bad", "loss_of_particles")}


@engines
def test_a_particle_whose_loss_is_no_number_stays_and_the_others_go_on(engine: Any) -> None:
    # Client a's score is w itself: above 2 its loss is lost. The minimum is at w = 3/13, far from there.
    method = Swarm(one_number(), loss=f"{__name__}:not_for_large_numbers", stretch=150, spread=1.0, alpha=4.0)
    here = engine(TWO)
    s = after(method, here, 1)
    assert int(s["excluded"]) > 0 and not here.refused
    assert float(s["theta"].max()) <= 2 and s["loss"].isfinite().all()
    assert float(next(iter(s["best"].values()))) == pytest.approx(3 / 13, abs=1e-3)


def test_a_run_writes_down_that_losses_were_lost_and_goes_on(tmp_path: Path) -> None:
    words = [
        "data=diabetes",
        "data.split=iid",
        "data.clients=3",
        "net=linear",
        "train.rounds=3",
        "method=swarm",
    ]
    words += [f"method.loss={__name__}:not_for_large_numbers", "method.alpha=4.0", "method.particles=5"]
    done = run(read(None, words), tmp_path / "run")
    events = done.events
    said = events[events["kind"] == "note"]["text"].tolist()
    assert done.facts["status"] == "done" and any("losses were not finite" in s for s in said)


@engines
def test_losses_of_other_clients_are_not_compared(engine: Any) -> None:
    """From round 1 on b is silent: remembered losses, which b had a part in, are asked for anew."""
    method = Swarm(one_number(), stretch=40, spread=1.0)
    here = Faulty(engine(TWO), lambda client, number: client == "b" and number >= 1)
    s = after(method, here, 4)
    assert float(next(iter(s["best"].values()))) == pytest.approx(3.0, abs=1e-2)  # a's own minimum
    assert float(s["loss"].min()) < 1e-3
