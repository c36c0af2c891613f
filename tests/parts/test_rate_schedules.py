"""Learning rates over rounds: by hand, as torch has them, and the same on every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from motet.core import MethodUnfit
from motet.engines.driver import training
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.methods.fedavg import FedAvg
from motet.methods.finetune import FineTune
from motet.methods.scaffold import Scaffold
from motet.parts.rate_schedules import RateSchedule
from motet.runs.build import resolve
from motet.runs.recipe import RecipeError, read
from motet.runs.run import run
from rounds import TWO, after, apart, one_number, turn


def factors(schedule: RateSchedule, rounds: int) -> list[float]:
    return [schedule.factor(r) for r in range(rounds)]


def by_torch(kind: Any, rounds: int, **how: Any) -> list[float]:
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, found = kind(optimiser, **how), []
    for _ in range(rounds):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return found


def test_a_warm_up_rises_in_equal_steps_and_then_the_rate_is_whole() -> None:
    assert factors(RateSchedule(warm_up=3, over=6), 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_and_step_are_torchs() -> None:
    scheduler = torch.optim.lr_scheduler
    cosine = by_torch(scheduler.CosineAnnealingLR, 10, T_max=10, eta_min=0.1)
    assert factors(RateSchedule("cosine", over=10, last=0.1), 10) == pytest.approx(cosine)
    step = by_torch(scheduler.StepLR, 10, step_size=3, gamma=0.2)
    assert factors(RateSchedule("step", over=10, every=3, by=0.2), 10) == pytest.approx(step)


def test_a_warm_up_goes_before_a_cosine_or_steps() -> None:
    assert factors(RateSchedule("cosine", warm_up=1, over=5), 5)[:3] == pytest.approx(
        [0.5, 1.0, 0.853553], abs=1e-6
    )
    assert factors(RateSchedule("step", warm_up=1, over=5, every=2), 5) == [0.5, 1.0, 1.0, 0.5, 0.5]


schedules = st.builds(
    RateSchedule, st.sampled_from(["constant", "cosine", "step"]), st.integers(0, 20), st.integers(21, 300),
    st.floats(0, 1), st.integers(1, 50), st.floats(0.01, 1),
)  # fmt: skip


@given(schedules, st.integers(-1, 400))
def test_a_rate_is_never_0_nor_above_the_one_that_the_recipe_names(
    schedule: RateSchedule, number: int
) -> None:
    assert 0 < schedule.factor(number) <= 1
    assert float(schedule.factor_at(torch.tensor(number))) == schedule.factor(number)


@pytest.mark.parametrize("make", [Loop, Vmap, Threads])
def test_two_rounds_with_another_rate_each_by_hand(make: Any) -> None:
    # As in rounds.py: a goes to w - 2 lr (w - 3), b, which counts three times, to w - 8 lr w.
    # lr 0.1: 1.4 and 0.2, mean 0.5. Then lr 0.05: 0.5 + 0.25 and 0.5 - 0.2, mean 0.4125.
    method = FedAvg(one_number(), lr=0.1, batch=8, schedule=RateSchedule("step", over=9, every=1))
    assert after(method, make(TWO), 2)["weight"].item() == pytest.approx(0.4125)


def test_control_variates_are_gradients_at_the_rate_of_the_round(clients_data: Any, task: Any) -> None:
    """With rates that change, c_i is still the mean gradient of the round: of one whole batch, the gradient at x."""
    method = Scaffold(task, lr=0.1, batch=64, schedule=RateSchedule("cosine", over=4))
    engine = Loop(clients_data)
    before = after(method, engine, 2)
    kept = {c: engine.keep(c) for c in engine.clients}
    engine.begin(method, turn(engine, 2))
    engine.ask(training(method, before, turn(engine, 2))[0])
    for client, data in clients_data.items():
        x = before["x"].map(lambda a, _: a.clone().requires_grad_(True))
        with torch.enable_grad():
            slopes = torch.autograd.grad(task.loss(x, data.train), list(x.values()))
        # y = x - lr (g - c_i + c), so that c_i - c + (x - y) / lr is g
        fresh = engine.keeps.get(client)
        assert fresh is not kept[client]
        assert apart(fresh, type(fresh)(zip(x, slopes, strict=True))) < 1e-4


def test_models_after_training_have_the_rate_of_their_round(clients_data: Any, task: Any) -> None:
    """A rate of a thousandth leaves scores as they were, so a rate of the round before would be seen."""
    schedule = RateSchedule("step", over=9, every=1, by=0.001)
    method = FedAvg(task, lr=0.5, schedule=schedule)
    for make in (Loop, Vmap, Threads):
        engine = make(clients_data)
        state = after(method, engine, 1)
        asks = training(method, state, turn(engine, 1))
        trained = engine.evaluate_trained(method, asks, turn(engine, 1))[1]["test"]["loss"]
        still = engine.evaluate(method, state, turn(engine, 0), "test")[1]["global"]["loss"]
        assert torch.allclose(trained, still, atol=1e-3)


@pytest.mark.parametrize("make", [Loop, Vmap, Threads])
def test_tuning_at_evaluation_has_the_whole_rate(make: Any, clients_data: Any, task: Any) -> None:
    """The rate of the last round is almost nothing; a model that is tuned with it would be the global one."""
    schedule, found = RateSchedule("step", over=3, every=1, by=0.001), []
    for how in ({"schedule": schedule}, {}):
        method, engine = FineTune(task, lr=0.1, **how), make(clients_data)
        engine.begin(method, turn(engine, 2))
        found.append(engine.evaluate(method, task.w0, turn(engine, 2), "test")[1]["personal"]["loss"])
    assert torch.equal(*found)


def test_newcomers_train_with_the_whole_rate(tmp_path: Path) -> None:
    words = [
        "data=wine",
        "data.clients=6",
        "data.unseen=0.4",
        "train.rounds=1",
        "method=local",
        "method.lr=0.1",
    ]
    falls = ["method.schedule.kind=step", "method.schedule.every=1", "method.schedule.by=1e-6",
             "method.schedule.over=2"]  # fmt: skip
    found = [run(read(words=[*words, *more]), tmp_path / str(len(more))).test for more in ([], falls)]
    first, second = (f[f["side"] == "visit"].set_index("client")["loss"] for f in found)
    assert len(first) and first.equals(second)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"over": 5},
            r"schedule.over is 5, and .*kind is constant.*\nhint: method.schedule.kind=cosine or step",
        ),
        ({"every": 5}, r"schedule.every is 5, .*constant.*\nhint: method.schedule.kind=step"),
        ({"kind": "cosine", "over": 5, "by": 0.1}, "schedule.by is 0.1, .*cosine, which does not use it"),
        ({"kind": "step", "over": 5, "last": 0.1}, "schedule.last is 0.1, .*step, which does not use it"),
        ({"warm_up": 1, "over": 5, "last": 0.1}, "schedule.last is 0.1, .*constant"),
    ],
)
def test_settings_that_a_kind_does_not_use_are_refused(how: Any, said: str) -> None:
    with pytest.raises(MethodUnfit, match=said):
        RateSchedule(**how).check()
    for used in ({}, {"warm_up": 1, "over": 5}, {"kind": "cosine", "over": 5, "last": 0.1}):
        RateSchedule(**used).check()


def test_a_schedule_is_over_the_whole_run_unless_it_says_otherwise() -> None:
    words = ["data=wine", "data.clients=4", "train.rounds=30", "method.schedule.kind=cosine"]
    assert resolve(read(words=words)).recipe["method"]["schedule"]["over"] == 30
    longer = resolve(read(words=[*words, "method.schedule.over=50"])).recipe
    assert (
        longer["method"]["schedule"]["over"] == 50
        and "[method.schedule]  # of lr over rounds" in longer.toml()
    )


def test_what_is_wrong_with_a_schedule_is_said_before_a_run_begins(tmp_path: Path) -> None:
    words = ["data=wine", "data.clients=4", "train.rounds=5", "method.schedule.warm_up=5"]
    with pytest.raises(
        MethodUnfit, match=r"warm_up is 5, and the schedule has 5 rounds.\nhint: .*train.rounds=50"
    ):
        resolve(read(words=words))
    with pytest.raises(MethodUnfit, match="a learning rate of 0 trains nothing"):
        resolve(read(words=[*words[:3], "method.schedule.kind=step", "method.schedule.by=0"]))
    with pytest.raises(RecipeError, match="method.schedule.kind=…"):
        read(words=["method.schedule=cosine"])
    with pytest.raises(RecipeError, match="unknown setting method.schedule of page"):
        read(words=["method=page", "method.schedule.kind=cosine"])
