"""L2GD by hand and in limits, on the two clients of rounds.py: slopes 2 (x - 3) and 8 x, both start at 1."""

from __future__ import annotations

from typing import Any

import pytest

from motet.client import ClientData, Task, seed_of
from motet.core import MethodUnfit, Turn, average
from motet.engines.driver import play
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.methods.fedavg import FedAvg
from motet.methods.l2gd import L2GD, drawn
from motet.methods.local import Local
from rounds import TWO, after, apart, one_number, turn


def number(tree: Any) -> float:
    (value,) = tree.values()
    return float(value)


def draws(rounds: int, p: float) -> list[tuple[int, int]]:
    """Local steps and steps to the mean of each round."""
    seeds = [seed_of(0, t) for t in range(rounds)]
    return [(drawn(1 - p, s, "steps"), drawn(p, s, "pulls")) for s in seeds]


@pytest.mark.parametrize("engine", [Loop, Vmap])
def test_two_rounds_of_l2gd_by_hand(engine: Any) -> None:
    # A local step makes 0.6 + 0.8 x of client a's number and 0.2 x of client b's. theta = 0.1 * 2 * 0.4 / 0.6.
    p, lam, theta = 0.6, 2.0, 0.1 * 2 * 0.4 / 0.6
    a = b = mean = 1.0
    pulls = 0
    for steps, after_them in draws(2, p):
        a, b = (x + (1 - (1 - theta) ** pulls) * (mean - x) for x in (a, b))
        for _ in range(steps):
            a, b = 0.6 + 0.8 * a, 0.2 * b
        mean, pulls = (a + b) / 2, after_them
    method, here = L2GD(one_number(), lr=0.1, batch=4, p=p, lam=lam), engine(TWO)
    s = after(method, here, 2)
    assert [number(here.keeps.get(c)) for c in "ab"] == pytest.approx([a, b], rel=1e-5)
    assert number(s["mean"]) == pytest.approx(mean, rel=1e-5) and int(s["pulls"]) == pulls
    (used,) = method.personal(s, here.keeps.get("a"), here.data("a")).args
    assert number(used) == pytest.approx(a + (1 - (1 - theta) ** pulls) * (mean - a), rel=1e-5)


def test_coins_come_as_often_as_they_should() -> None:
    many = draws(4000, 0.25)
    assert sum(k for k, _ in many) / 4000 == pytest.approx(4, rel=0.05)  # 1 / p
    assert sum(a for _, a in many) / 4000 == pytest.approx(4 / 3, rel=0.05)  # 1 / (1 - p)
    assert min(k for k, _ in many) == min(a for _, a in many) == 1


class Even(FedAvg):
    """FedAvg whose clients count alike."""

    def round(self, w: Any, turn: Turn) -> Any:
        return (yield average(self.train, turn.cohort, send=w, weights=dict.fromkeys(turn.cohort, 1.0)))


def test_l2gd_without_a_pull_is_local_training_and_with_a_whole_one_fedavg(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    """Both with the numbers of steps that were drawn."""
    free, tied = Loop(clients_data), Loop(clients_data)
    after(L2GD(task, lam=0.0), free, 3)
    mean = after(L2GD(task, lam=1e9), tied, 3)["mean"]
    alone, w = Loop(clients_data), task.w0
    here = Loop(clients_data)
    for t, (steps, _) in enumerate(draws(3, 0.1)):
        play(alone, Local(task, steps=steps), (), turn(alone, t))
        w = play(here, Even(task, steps=steps), w, turn(here, t))
    assert all(apart(free.keeps.get(c), alone.keeps.get(c)) < 1e-6 for c in clients_data)
    assert apart(mean, w) < 1e-5


def test_a_coin_that_never_lets_clients_train_is_refused() -> None:
    with pytest.raises(MethodUnfit, match=r"method.p is 1; it must be below 1\.\nhint: "):
        L2GD(one_number(), p=1.0).check()
