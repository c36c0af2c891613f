"""Federated Swarm Intelligence: moves by hand, what never changes, losses that are lost, least squares."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from motet.client import Batch, ClientData, Data, Task, seed_of
from motet.core import MethodUnfit
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.pulse import pulse
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.engines.wrappers.counted import Counted
from motet.engines.wrappers.faulty import Faulty
from motet.methods.swarm import Swarm
from motet.parts import swarms, trials
from motet.runs.recipe import read
from motet.runs.run import run
from motet.vec import leaves
from rounds import TWO, after, one_number, turn

engines = pytest.mark.parametrize("engine", [Loop, Vmap, Threads])


def home_of(x: Tensor, y: Tensor) -> ClientData:
    return ClientData(Batch.of(x, y), Batch.of(x[:0], y[:0]), Batch.of(x[:0], y[:0]))


def dealt(x: Tensor, y: Tensor, owner: Tensor) -> dict[str, ClientData]:
    return {f"c{int(o)}": home_of(x[owner == o], y[owner == o]) for o in owner.unique()}


def linear(features: int, outputs: int, kind: Any = "numbers") -> Task:
    torch.manual_seed(0)
    return Task(nn.Sequential(nn.Flatten(), nn.Linear(features, outputs)), kind, outputs)


def line(many: int = 60, features: int = 4) -> tuple[Tensor, Tensor]:
    """A straight line with some noise around it."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(many, features, generator=g)
    y = x @ torch.arange(1.0, features + 1) + 0.5 + 0.3 * torch.randn(many, generator=g)
    return x, y


def three_classes(many: int = 60) -> tuple[Tensor, Tensor]:
    x, y = line(many)
    return x, (y > -2).long() + (y > 2).long()


def same(a: Any, b: Any) -> float:
    return max(
        float((p.double() - q.double()).abs().max()) for p, q in zip(leaves(a), leaves(b), strict=True)
    )


def not_for_large_numbers(scores: Tensor, y: Tensor) -> float:
    """Squared error, but not a number where the first score is above 2."""
    return float("nan") if scores[0] > 2 else float(((scores - y) ** 2).mean())


def wrong_answers(scores: Tensor, y: Tensor) -> float:
    """Has no gradient."""
    return float((scores.argmax(1) != y).double().mean())


# ---- moves ----


def test_an_epoch_by_hand() -> None:
    # 3 particles of 1 number; losses of client a (1 example) and b (3): ((w - 3)^2 + 3 (2 w)^2) / 4.
    method = Swarm(one_number(), particles=3, stretch=1, w1=0.25, w2=0.5, alpha=2.0, first="unit")
    here = Loop(TWO)
    s = start(here, method, turn(here, -1))
    dice = swarms.Dice.of(seed_of(0, -1), 1)
    theta = torch.from_numpy(dice.roll(3, 1))
    assert torch.equal(s["theta"], theta)
    assert torch.allclose(s["loss"], ((theta - 3) ** 2 + 3 * (2 * theta) ** 2)[:, :, 0] / 4)

    best = theta[0, int(s["loss"].argmin())]
    r1, r2 = torch.from_numpy(dice.roll(2, 3, 1))[0]
    v = 2.0 * (0.5 * r1 * (best - theta) + 0.25 * (2 * r2 - 1))
    new = ((theta + v - 3) ** 2 + 3 * (2 * (theta + v)) ** 2)[:, :, 0] / 4
    fell = new < s["loss"]
    after_one = play(here, method, s, turn(here, 0))
    assert torch.allclose(after_one["v"], v, rtol=1e-14)  # kept, accepted or not
    assert torch.allclose(after_one["theta"], torch.where(fell[:, :, None], theta + v, theta), rtol=1e-14)
    assert torch.allclose(after_one["loss"], torch.minimum(new, s["loss"]))
    better = bool(after_one["loss"].min() < s["loss"].min())
    assert float(after_one["alpha"]) == (4.0 if better else 2.0)
    assert int(after_one["failures"]) == (0 if better else 1)


def test_draws_are_uniform_and_depend_on_seed_and_swarm_alone() -> None:
    u = swarms.Dice.of(5, 2).roll(100_000)
    assert u.min() >= 0 and u.max() < 1
    assert u.mean(1) == pytest.approx([1 / 2, 1 / 2], abs=0.005)
    assert u.var(1) == pytest.approx([1 / 12, 1 / 12], abs=0.001)
    assert abs(np.corrcoef(u)[0, 1]) < 0.015
    assert np.array_equal(swarms.Dice.of(5, 7).roll(10)[:2], u[:, :10])
    assert not np.array_equal(swarms.Dice.of(6, 2).roll(10), u[:, :10])


@given(first=st.integers(1, 50), then=st.integers(1, 50))
def test_draws_go_on_where_they_were(first: int, then: int) -> None:
    dice = swarms.Dice.of(3, 2)
    whole = dice.roll(first + then)
    again = swarms.Dice.of(3, 2)
    assert np.array_equal(again.roll(first), whole[:, :first])
    assert np.array_equal(swarms.Dice(again.places()).roll(then), whole[:, first:])


@pytest.mark.parametrize(
    "consecutive, lengths", [(False, [1, 2, 2, 4, 4, 2, 2]), (True, [1, 2, 2, 4, 4, 4, 2])]
)
def test_alpha_doubles_on_success_and_halves_after_failures(consecutive: bool, lengths: list[int]) -> None:
    rule = swarms.SwarmRule(failures=3, consecutive=consecutive)
    alpha, failures, seen = np.ones(1), np.zeros(1, int), [1]
    for fell in (True, False, True, False, False, False):  # cumulative: the third failure is the fifth epoch
        swarms.adapted(alpha, failures, np.array([fell]), rule)
        seen.append(int(alpha[0]))
    assert seen == lengths


def test_alpha_has_a_cap_or_is_fixed() -> None:
    alpha, none, fell = np.full(2, 3.0), np.zeros(2, int), np.array([True, True])
    swarms.adapted(alpha, none, fell, swarms.SwarmRule(adapt=np.array([True, False]), cap=4.0))
    assert alpha.tolist() == [4, 3]


def test_the_best_loss_never_rises() -> None:
    x, y = line()
    here = Loop(dealt(x, y, torch.arange(60) % 4))
    method = Swarm(linear(4, 1), stretch=1)
    s = start(here, method, turn(here, -1))
    seen = [float(s["loss"].min())]
    for t in range(100):
        s = play(here, method, s, turn(here, t))
        seen.append(float(s["loss"].min()))
    assert all(b <= a for a, b in zip(seen, seen[1:], strict=False)) and seen[-1] < seen[0]


def test_with_w1_one_nothing_ever_moves() -> None:
    here, method = Loop(TWO), Swarm(one_number(), w1=1.0, w2=0.0, first="unit")
    before = start(here, method, turn(here, -1))
    assert torch.equal(after(method, here, 3)["theta"], before["theta"])


def test_how_many_epochs_a_round_has_changes_nothing() -> None:
    a = after(Swarm(one_number(), stretch=1, w1=0.3), Loop(TWO), 12)
    b = after(Swarm(one_number(), stretch=4, w1=0.3), Loop(TWO), 3)
    assert same(a, b) == 0


def test_swarms_side_by_side_know_nothing_of_each_other_and_the_best_counts() -> None:
    x, y = line()
    clients_data = dealt(x, y, torch.arange(60) % 4)
    alone, s = (after(Swarm(linear(4, 1), swarms=n, stretch=50), Vmap(clients_data), 1) for n in (1, 3))
    assert all(same(alone[k][0], s[k][0]) < 1e-12 for k in ("theta", "loss", "alpha"))
    assert not torch.equal(s["theta"][0], s["theta"][1])
    best = torch.cat([v.flatten() for v in s["best"].values()])
    at = s["loss"].amin(1).argmin()
    assert torch.equal(best, s["theta"][at, s["loss"][at].argmin()].float())


def test_settings_side_by_side_know_nothing_of_each_other() -> None:
    """Each of three settings, twice; each is what it is alone."""
    x, y = line()
    clients_data = dealt(x, y, torch.arange(60) % 4)
    lists = {
        "w1": [0.5, 0.0, 0.2],
        "w2": [0.1, 0.3, 0.8],
        "alpha": [0.1, 2.0, 1.0],
        "adapt": [True, False, True],
    }
    s = after(Swarm(linear(4, 1), swarms=2, stretch=50, **lists), Loop(clients_data), 1)  # type: ignore[arg-type]
    assert s["theta"].shape == (6, 20, 5)
    for i in range(3):
        own = {k: v[i] for k, v in lists.items()}
        alone = after(Swarm(linear(4, 1), swarms=2, stretch=50, **own), Loop(clients_data), 1)  # type: ignore[arg-type]
        assert all(same(alone[k], s[k][2 * i : 2 * i + 2]) < 1e-12 for k in ("theta", "loss", "alpha"))
        assert torch.equal(alone["source"], s["source"])
    assert s["alpha"][2:4].tolist() == [2.0, 2.0]  # it does not learn


def test_a_setting_that_came_to_rest_is_not_asked_for_any_more() -> None:
    """With alpha 0 no particle can ever move; the other setting goes on as it does alone."""
    here, asked = Loop(TWO), []
    shared: Any = {"swarms": 2, "stretch": 30, "w2": 0.3}
    both = Swarm(one_number(), w1=(0.0, 0.4), **shared)
    s = start(here, both, turn(here, -1))
    s["alpha"][:2] = 0
    inner = here.ask
    here.ask = lambda ask: asked.append(ask.send["theta"].shape) or inner(ask)  # type: ignore[method-assign]
    then = play(here, both, s, turn(here, 0))
    assert asked == [torch.Size([2, 21, 1])] * 30
    assert all(torch.equal(then[k][:2], s[k][:2]) for k in ("theta", "v", "loss", "alpha"))
    alone = after(Swarm(one_number(), w1=0.4, **shared), Loop(TWO), 1)
    assert all(torch.equal(then[k][2:], alone[k]) for k in ("theta", "v", "loss", "alpha", "failures"))


def test_a_setting_at_rest_learns_what_its_places_cost_other_clients() -> None:
    here = Faulty(Loop(TWO), lambda client, number: client == "b" and number >= 0)
    method = Swarm(one_number(), w1=(0.0, 0.4), stretch=3)
    s = start(here, method, turn(here, -1))
    s["alpha"][0] = 0
    then = play(here, method, s, turn(here, 0))
    assert torch.equal(then["theta"][0], s["theta"][0])
    assert torch.allclose(then["loss"][0], (s["theta"][0, :, 0] - 3) ** 2)  # a's alone


def test_a_swarm_that_stands_still_comes_to_rest() -> None:
    """Alpha is halved some thousand times, and is nothing then."""
    here, how = Loop(TWO), {"w1": (1.0, 0.0), "w2": 0.0, "adapt": (True, False), "patience": 1}
    method = Swarm(one_number(), particles=2, stretch=1200, first="unit", **how)  # type: ignore[arg-type]
    s = after(method, here, 1)
    assert float(s["alpha"][0]) == 0 and [list(a) for a in swarms.moving(s)] == [[1], [0]]
    assert [list(a) for a in swarms.moving(s | {"alpha": torch.zeros(2)})] == [
        [0, 1],
        [],
    ]  # somebody must ask


def test_a_trail_remembers_the_best_particles_and_their_losses() -> None:
    x, y = line()
    here = Loop(dealt(x, y, torch.arange(60) % 4))
    method = Swarm(linear(4, 1), swarms=2, stretch=10, trail=20)
    s = after(method, here, 4)
    trail = s["trail"]  # (records, swarms, numbers + 1)
    assert trail.shape == (3, 2, 6)  # before the first round, and after the second and the fourth
    assert torch.equal(trail[-1, :, -1], s["loss"].amin(1))
    assert torch.equal(trail[-1, :, :-1], swarms.leaders(s)[:, 0])
    assert method.summary(s)["trail"] == trail.tolist() and method.summary(s)["epochs"] == 40


def test_conventional_pso_goes_everywhere_and_remembers_each_particles_best() -> None:
    x, y = line()
    here = Loop(dealt(x, y, torch.arange(60) % 3))
    method = Swarm(linear(4, 1), rule="pso", alpha=3.72, w1=0.2, w2=0.4, adapt=False, stretch=400, spread=1.0)
    s = after(method, here, 1)
    exact = torch.cat([x, torch.ones(60, 1)], 1).double()
    best = torch.linalg.lstsq(exact, y.double()[:, None]).solution
    least = float(((exact @ best)[:, 0] - y).square().mean())
    assert float(s["loss"].min()) == pytest.approx(least, rel=1e-4)
    assert not torch.equal(s["x"], s["theta"])


# ---- clients ----


@settings(max_examples=5, deadline=None, phases=[Phase.generate])
@given(owner=st.lists(st.integers(0, 6), min_size=60, max_size=60))
@pytest.mark.parametrize("loss", ["task", "one_vs_all"])
def test_how_examples_are_divided_changes_nothing(loss: str, owner: list[int]) -> None:
    x, y = line() if loss == "task" else three_classes()
    task = linear(4, 1) if loss == "task" else linear(4, 3, "classes")
    method = Swarm(task, loss=loss, particles=6, stretch=300, alpha=1.0, first="unit")
    whole = after(method, Vmap({"all": home_of(x, y)}), 1)
    parts = after(method, Vmap(dealt(x, y, torch.tensor(owner))), 1)
    assert same(whole, parts) < 1e-9


def test_a_network_is_divided_as_freely() -> None:
    x, y = three_classes()
    torch.manual_seed(1)
    task = Task(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), "classes", 3)
    found = [
        after(Swarm(task, particles=5, stretch=300), Vmap(dealt(x, y, o)), 1)
        for o in (torch.zeros(60), torch.arange(60) % 7, y)
    ]
    assert max(same(found[0], f) for f in found[1:]) < 1e-9


def data_of(x: Tensor, y: Tensor, padding: int = 0) -> Data:
    wide = torch.cat([x, torch.zeros(padding, *x.shape[1:])]), torch.cat([y, y.new_zeros(padding)])
    return Data(*wide, torch.tensor(len(x)), torch.tensor(1), Batch.of(x[:0], y[:0]))


@pytest.mark.parametrize("many", [3, 60])  # fewer examples than numbers, and more
def test_the_root_of_the_gram_matrix_tells_the_same_losses(many: int) -> None:
    x, y = line()
    task, data = linear(4, 1), data_of(x[:many], y[:many], padding=2)
    theta = torch.linspace(-3, 3, 2 * 7 * 5, dtype=torch.float64).reshape(2, 7, 5)
    quick = trials.from_root(trials.root(task, data), theta)
    assert torch.allclose(quick, trials.losses(task, theta, data), rtol=1e-12)
    by_hand = ((x[:many].double() @ theta[1, 2, :4] + theta[1, 2, 4] - y[:many]) ** 2).mean()
    assert float(quick[1, 2]) == pytest.approx(float(by_hand), rel=1e-12)


def test_losses_of_a_linear_network_are_those_of_any_network() -> None:
    x, y = three_classes()
    plain, other = linear(4, 3, "classes"), linear(4, 3, "classes")
    other.net.append(nn.Identity())  # no longer known to be linear
    theta = torch.linspace(-3, 3, 7 * 15, dtype=torch.float64).reshape(1, 7, 15)
    a, b = (trials.losses(t, theta, data_of(x, y)) for t in (plain, other))
    assert torch.allclose(a, b, rtol=1e-12) and not trials.linear(other)


def test_one_vs_all_is_a_logistic_loss_for_each_class_that_does_not_overflow() -> None:
    x, y = three_classes()
    task, data = linear(4, 3, "classes"), data_of(x, y)
    theta = torch.linspace(-3, 3, 3 * 2 * 5, dtype=torch.float64).reshape(3, 2, 5)
    loss = trials.losses(task, theta, data, "one_vs_all")
    z = x.double() @ theta[2, 1, :4] + theta[2, 1, 4]
    by_hand = nn.functional.binary_cross_entropy_with_logits(z, (y == 2).double())
    assert float(loss[2, 1]) == pytest.approx(float(by_hand), rel=1e-12)
    assert trials.losses(task, 1e30 * theta, data, "one_vs_all").isfinite().all()
    assert torch.allclose(trials.losses(task, theta, data, "published"), loss, atol=0.3)


def test_swarms_of_classes_are_put_together_to_one_network() -> None:
    task = linear(4, 3, "classes")
    w = trials.weights(task, trials.particle(task, True)[:, None], True)
    assert all(torch.equal(w[k][0], v.double()) for k, v in task.w0.items())
    x, y = three_classes()
    here = Vmap(dealt(x, y, y))  # one class a client
    method = Swarm(task, loss="one_vs_all", stretch=300)
    s = after(method, here, 1)
    assert float((task.predict(method.global_model(s), x).argmax(1) == y).float().mean()) > 0.9


def test_what_has_no_gradient_can_be_trained() -> None:
    x, y = three_classes()
    torch.manual_seed(1)
    task = Task(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), "classes", 3)
    method = Swarm(task, loss=f"{__name__}:wrong_answers", stretch=100, spread=1.0)
    s = after(method, Vmap(dealt(x, y, torch.arange(60) % 3)), 1)
    wrong = float((task.predict(s["best"], x).argmax(1) != y).double().mean())
    assert wrong == pytest.approx(float(s["loss"].min())) and wrong < 0.15


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


def two_classes() -> tuple[Tensor, Tensor]:
    x, y = line(120)
    return x, (y > 0.5).long()


def test_the_area_under_a_curve_can_be_trained() -> None:
    x, y = two_classes()
    method = Swarm(linear(4, 2, "classes"), loss=f"{__name__}:one_minus_auc", stretch=60, spread=1.0)
    s = after(method, Loop(dealt(x, y, torch.arange(120) % 2)), 1)
    assert one_minus_auc(method.task.predict(s["best"], x), y) < 0.02


def test_a_quantile_can_be_trained() -> None:
    x, y = torch.zeros(100, 1), torch.arange(100.0) / 10
    method = Swarm(linear(1, 1), loss=f"{__name__}:ninth_decile", stretch=150, spread=1.0, alpha=1.0)
    s = after(method, Loop(dealt(x, y, torch.arange(100) % 4)), 1)
    assert float((y <= method.task.predict(s["best"], x)).float().mean()) == pytest.approx(0.9, abs=0.02)


def test_a_penalty_on_unfairness_sees_features_and_works() -> None:
    x, y = two_classes()
    clients_data = dealt(x, y, torch.arange(120) % 2)
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


# ---- what goes wrong ----


@engines
def test_a_client_whose_losses_are_no_numbers_is_left_out(engine: Any) -> None:
    x, y = line()
    clients_data = dealt(x, y, torch.arange(60) % 4)
    broken = clients_data | {"bad": home_of(x[:5] * torch.nan, y[:5])}
    method = Swarm(linear(4, 1), stretch=20)
    here = engine(broken)
    s = after(method, here, 2)
    assert same(s, after(method, engine(clients_data), 2)) < 1e-9
    assert {(c, v) for c, v, _ in here.refused} == {("bad", "tell")}


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


def test_an_epoch_asks_once_and_learns_means_alone() -> None:
    x, y = line()
    here = Counted(Loop(dealt(x, y, torch.arange(60) % 4)))
    asked: list[Any] = []
    inner = here.ask
    here.ask = lambda ask: asked.append(ask) or inner(ask)  # type: ignore[method-assign]
    after(Swarm(linear(4, 1), stretch=50), here, 2)
    assert len(asked) == 1 + 2 * 50
    assert {a.learn for a in asked} == {"mean"}


def test_noise_is_laplaces_and_its_scale_is_that_of_one_example() -> None:
    data = data_of(*line())
    drawn = trials.noise(data, torch.tensor(3), torch.Size([200, 500]))
    assert float(drawn.mean()) == pytest.approx(0, abs=0.02)
    assert float(drawn.abs().mean()) == pytest.approx(1, abs=0.02)
    assert float(drawn.square().mean()) == pytest.approx(2, abs=0.05)
    method = Swarm(linear(4, 1), epsilon=0.5, clip=6.0)
    theta = torch.zeros(1, 20_000, 5, dtype=torch.float64)
    quiet = trials.losses(method.task, theta, data, clip=6.0)
    assert float(quiet.max()) <= 6
    reply, _ = method.tell({"theta": theta, "epoch": torch.tensor(0)}, (), data)
    assert float((reply[0] - quiet).abs().mean()) == pytest.approx(6 / 60 / 0.5, rel=0.05)


@pytest.mark.parametrize(
    "how, says",
    [
        ({"loss": "hinge"}, "module:function"),
        ({"loss": "nowhere:none"}, "No module named 'nowhere'"),
        ({"loss": "math:none"}, "has no function 'none'"),
        ({"loss": "one_vs_all"}, "one linear layer"),
        ({"loss": "one_vs_all", "swarms": 2}, "swarm for each class"),
        ({"w1": 0.6, "w2": 0.6}, r"w1 \+ w2 is 1.2"),
        ({"w1": (0.2, 0.6), "w2": (0.2, 0.6)}, r"w1 \+ w2 is 1.2"),
        ({"w1": (0.2, 0.6), "w2": (0.2, 0.6, 0.0)}, "the same number"),
        ({"trail": 15}, "a multiple of stretch"),
        ({"epsilon": 1.0}, "set method.clip"),
    ],
)
def test_what_cannot_work_is_refused(
    how: Any, says: str, task: Task, clients_data: dict[str, ClientData]
) -> None:
    with pytest.raises(MethodUnfit, match=says):
        after(Swarm(task, **how), Loop(clients_data), 0)


# ---- Boston ----


def boston() -> tuple[Tensor, Tensor]:
    """The training rows, as they are."""
    from motet.data.sets.boston import load

    pool = load()
    return torch.tensor(pool.x[:404]).double(), torch.tensor(pool.y[:404]).double()


@pytest.mark.skipif("MOTET_DATA" not in os.environ, reason="Boston housing is needed: set MOTET_DATA")
@pytest.mark.parametrize("seed", [0, 1])
def test_a_swarm_without_mutation_reaches_least_squares_on_boston(seed: int) -> None:
    x, y = boston()
    here = Loop(dealt(x, y, torch.arange(404) // 101))
    method = Swarm(
        linear(13, 1), particles=30, stretch=1000, w1=0.0, w2=1.0, alpha=100.0, patience=5, first="unit"
    )
    s = start(here, method, turn(here, -1 - 100 * seed))
    for t in range(20):
        s = play(here, method, s, turn(here, t))
        if float(s["loss"].min()) < 22.00485:
            break
    assert float(s["loss"].min()) == pytest.approx(22.0048, abs=1e-3)


# ---- slow networks ----


def test_a_particle_takes_the_best_of_its_tries() -> None:
    x, y = line()
    here = Loop(dealt(x, y, torch.arange(60) % 4))
    method = Swarm(linear(4, 1), particles=3, tries=4, stretch=1, w1=0.2)
    s = start(here, method, turn(here, -1))
    flock = swarms.Flock(s, method.moves, 1)
    letter = torch.from_numpy(flock.move())
    assert letter.shape == (1, 13, 5)
    cost = trials.losses(method.task, letter, data_of(x, y))[0, :12].reshape(3, 4)
    best, at = cost.min(1)
    s2 = play(here, method, s, turn(here, 0))
    assert torch.allclose(s2["loss"][0], torch.minimum(best, s["loss"][0]))
    tried = letter[0, :12].reshape(3, 4, 5)[torch.arange(3), at]
    assert torch.allclose(s2["v"][0], tried - s["theta"][0])  # the speed of the try that counted


def test_more_tries_need_fewer_messages() -> None:
    x, y = line()
    clients_data = dealt(x, y, torch.arange(60) % 4)
    one, eight = (
        after(Swarm(linear(4, 1), particles=5, tries=n, stretch=60, w2=0.2), Loop(clients_data), 1)
        for n in (1, 8)
    )
    assert float(eight["loss"].min()) < float(one["loss"].min())


def test_tries_are_proposed_from_the_time_that_asks_take() -> None:
    now = [0.0]

    class Far(Counted):
        """An engine whose messages take a fifth of a second, and a millisecond for each particle."""

        def ask(self, ask: Any) -> Any:
            now[0] += 0.2 + 0.001 * ask.send["theta"].shape[1]
            return super().ask(ask)

    here, method = Far(Loop(TWO)), Swarm(one_number())
    here.begin(method, turn(here, 0))
    found = pulse(
        here,
        lambda n: method.evaluation_request(torch.zeros(1, n, 1).double(), 0, here.clients),
        clock=lambda: now[0],
    )
    assert (found.wait, found.each) == (pytest.approx(0.2), pytest.approx(0.001))
    assert found.tries(particles=20) == 10 and found.tries(particles=1000) == 1
