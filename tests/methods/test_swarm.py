"""Federated Swarm Intelligence: an epoch by hand, what never changes, refusals, least squares."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from motet.client import ClientData, Task, seed_of
from motet.core import MethodUnfit
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.engines.wrappers.counted import Counted
from motet.methods.swarm import Swarm
from motet.parts import particle_losses as losses
from motet.parts.swarms import UniformDraws, gbest
from motet.trusted_code import names_in, trust_names
from rounds import TWO, after, one_number, turn
from swarm_data import divided, line, linear, one_client, same, three_classes


def test_an_epoch_by_hand() -> None:
    # 3 particles of 1 number; losses of client a (1 example) and b (3): ((w - 3)^2 + 3 (2 w)^2) / 4.
    method = Swarm(one_number(), particles=3, stretch=1, w1=0.25, w2=0.5, alpha=2.0, first="unit")
    here = Loop(TWO)
    s = start(here, method, turn(here, -1))
    draws = UniformDraws.seeded(seed_of(0, -1), 1)
    theta = torch.from_numpy(draws.draw(3, 1))
    assert torch.equal(s["theta"], theta)
    assert torch.allclose(s["loss"], ((theta - 3) ** 2 + 3 * (2 * theta) ** 2)[:, :, 0] / 4)

    best = theta[0, int(s["loss"].argmin())]
    r1, r2 = torch.from_numpy(draws.draw(2, 3, 1))[0]
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


def test_the_best_loss_never_rises() -> None:
    x, y = line()
    here = Loop(divided(x, y, torch.arange(60) % 4))
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
    clients_data = divided(x, y, torch.arange(60) % 4)
    alone, s = (after(Swarm(linear(4, 1), swarms=n, stretch=50), Vmap(clients_data), 1) for n in (1, 3))
    assert all(same(alone[k][0], s[k][0]) < 1e-12 for k in ("theta", "loss", "alpha"))
    assert not torch.equal(s["theta"][0], s["theta"][1])
    best = torch.cat([v.flatten() for v in s["best"].values()])
    at = s["loss"].amin(1).argmin()
    assert torch.equal(best, s["theta"][at, s["loss"][at].argmin()].float())


def test_a_trail_remembers_the_best_particles_and_their_losses() -> None:
    x, y = line()
    here = Loop(divided(x, y, torch.arange(60) % 4))
    method = Swarm(linear(4, 1), swarms=2, stretch=10, trail=20)
    s = after(method, here, 4)
    trail = s["trail"]  # (records, swarms, numbers + 1)
    assert trail.shape == (3, 2, 6)  # before the first round, and after the second and the fourth
    assert torch.equal(trail[-1, :, -1], s["loss"].amin(1))
    assert torch.equal(trail[-1, :, :-1], gbest(s)[:, 0])
    assert method.summary(s)["trail"] == trail.tolist() and method.summary(s)["epochs"] == 40


def test_conventional_pso_goes_everywhere_and_remembers_each_particles_best() -> None:
    x, y = line()
    here = Loop(divided(x, y, torch.arange(60) % 3))
    method = Swarm(linear(4, 1), rule="pso", alpha=3.72, w1=0.2, w2=0.4, adapt=False, stretch=400, spread=1.0)
    s = after(method, here, 1)
    exact = torch.cat([x, torch.ones(60, 1)], 1).double()
    best = torch.linalg.lstsq(exact, y.double()[:, None]).solution
    least = float(((exact @ best)[:, 0] - y).square().mean())
    assert float(s["loss"].min()) == pytest.approx(least, rel=1e-4)
    assert not torch.equal(s["x"], s["theta"])


@settings(max_examples=5, deadline=None, phases=[Phase.generate])
@given(owner=st.lists(st.integers(0, 6), min_size=60, max_size=60))
@pytest.mark.parametrize("loss", ["task", "one_vs_all"])
def test_how_examples_are_divided_changes_nothing(loss: str, owner: list[int]) -> None:
    x, y = line() if loss == "task" else three_classes()
    task = linear(4, 1) if loss == "task" else linear(4, 3, "classes")
    method = Swarm(task, loss=loss, particles=6, stretch=300, alpha=1.0, first="unit")
    whole = after(method, Vmap({"all": one_client(x, y)}), 1)
    parts = after(method, Vmap(divided(x, y, torch.tensor(owner))), 1)
    assert same(whole, parts) < 1e-9


def test_a_network_is_divided_as_freely() -> None:
    x, y = three_classes()
    torch.manual_seed(1)
    task = Task(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), "classes", 3)
    found = [
        after(Swarm(task, particles=5, stretch=300), Vmap(divided(x, y, o)), 1)
        for o in (torch.zeros(60), torch.arange(60) % 7, y)
    ]
    assert max(same(found[0], f) for f in found[1:]) < 1e-9


def test_swarms_of_classes_are_put_together_to_one_network() -> None:
    task = linear(4, 3, "classes")
    w = losses.weights(task, losses.initial_particle(task, True)[:, None], True)
    assert all(torch.equal(w[k][0], v.double()) for k, v in task.w0.items())
    x, y = three_classes()
    here = Vmap(divided(x, y, y))  # one class a client
    method = Swarm(task, loss="one_vs_all", stretch=300)
    s = after(method, here, 1)
    assert float((task.predict(method.global_model(s), x).argmax(1) == y).float().mean()) > 0.9


def test_an_epoch_asks_once_and_learns_means_alone() -> None:
    x, y = line()
    here = Counted(Loop(divided(x, y, torch.arange(60) % 4)))
    asked: list[Any] = []
    inner = here.ask
    here.ask = lambda ask: asked.append(ask) or inner(ask)  # type: ignore[method-assign]
    after(Swarm(linear(4, 1), stretch=50), here, 2)
    assert len(asked) == 1 + 2 * 50
    assert {a.learn for a in asked} == {"mean"}


@pytest.mark.parametrize(
    "how, says",
    [
        ({"loss": "hinge"}, "module:function"),
        ({"loss": "nowhere:none"}, "names the module 'nowhere', which is not there"),
        ({"loss": "math:none"}, "has no function 'none'"),
        ({"loss": "one_vs_all"}, "one linear layer"),
        ({"loss": "one_vs_all", "swarms": 2}, "swarm for each class"),
        ({"w1": 0.6, "w2": 0.6}, r"w1 \+ w2 is 1.2"),
        ({"trail": 15}, "a multiple of stretch"),
        ({"epsilon": 1.0}, "set method.clip"),
    ],
)
def test_what_cannot_work_is_refused(
    how: Any, says: str, task: Task, clients_data: dict[str, ClientData]
) -> None:
    trust_names(names_in(how))
    with pytest.raises(MethodUnfit, match=says):
        after(Swarm(task, **how), Loop(clients_data), 0)


def boston() -> tuple[Tensor, Tensor]:
    """The training rows, as they are."""
    from motet.data.sets.boston import load

    pool = load()
    return torch.tensor(pool.x[:404]).double(), torch.tensor(pool.y[:404]).double()


@pytest.mark.skipif("MOTET_DATA" not in os.environ, reason="Boston housing is needed: set MOTET_DATA")
@pytest.mark.parametrize("seed", [0, 1])
def test_a_swarm_without_mutation_reaches_least_squares_on_boston(seed: int) -> None:
    x, y = boston()
    here = Loop(divided(x, y, torch.arange(404) // 101))
    method = Swarm(
        linear(13, 1), particles=30, stretch=1000, w1=0.0, w2=1.0, alpha=100.0, patience=5, first="unit"
    )
    s = start(here, method, turn(here, -1 - 100 * seed))
    for t in range(20):
        s = play(here, method, s, turn(here, t))
        if float(s["loss"].min()) < 22.00485:
            break
    assert float(s["loss"].min()) == pytest.approx(22.0048, abs=1e-3)


def test_more_tries_need_fewer_messages() -> None:
    x, y = line()
    clients_data = divided(x, y, torch.arange(60) % 4)
    one, eight = (
        after(Swarm(linear(4, 1), particles=5, tries=n, stretch=60, w2=0.2), Loop(clients_data), 1)
        for n in (1, 8)
    )
    assert float(eight["loss"].min()) < float(one["loss"].min())
