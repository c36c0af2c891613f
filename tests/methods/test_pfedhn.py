"""pFedHN: a round by hand, and gradients of the hypernetwork."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from motet.audits.update_checks import flat_update
from motet.client import ClientData, Task, seed_of
from motet.core import Turn
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.methods.pfedhn import PFedHN
from motet.parts.extra_layers import new_embedding, new_linear
from motet.vec import Vec
from rounds import TWO, after, apart, one_number


@pytest.mark.parametrize("engine", [Loop, Vmap])
def test_a_round_of_pfedhn_by_hand(engine: Any) -> None:
    # Both start at 1: a goes to 1.4 and b to 0.2, so that Delta is 0.4 and -0.8. The last layer was zero, so that the
    # embeddings and the first layer stay. With z the hidden units of both, client j's number is then
    # 1 + alpha (mean of Delta + sum over i of Delta_i z_i z_j / hidden).
    method, here = PFedHN(one_number(), lr=0.1, batch=4, width=3, hidden=5, server_lr=0.3), engine(TWO)
    s = after(method, here, 1)
    first = new_linear(seed_of(0, -1), 3, 5)
    v = torch.stack([new_embedding(seed_of("embedding", c), 1, 3)[0] for c in "ab"])
    z, delta = torch.tanh(v @ first["weight"].T + first["bias"]), torch.tensor([0.4, -0.8])
    expected = 1 + 0.3 * (delta.mean() + (delta @ z) @ z.T / 5)
    found = [float(method.download(s, c)["weight"]) for c in "ab"]
    assert found == pytest.approx(expected.tolist(), rel=1e-5)
    assert torch.equal(s["v"]["a"], v[0]) and torch.equal(s["phi"]["weight"], first["weight"])


def test_later_steps_follow_the_gradient_of_differences_times_outputs(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    method, here = PFedHN(task, width=4, hidden=6, server_lr=0.1), Loop(clients_data)
    s = after(method, here, 2)
    names, g = ["c03", "c07"], torch.Generator().manual_seed(0)
    deltas = {c: task.w0.map(lambda a, _: torch.randn(a.shape, generator=g)) for c in names}

    def total(phi: Vec, v: dict[str, Any]) -> float:
        return sum(float(method.model(phi, v[c]).dot(deltas[c])) for c in names)

    phi, moved = method.moved(s["phi"], s["v"], deltas)
    step = 1e-2
    for at in ((0, 1), (2, 3)):
        up, down = (Vec({k: a.clone() for k, a in s["phi"].items()}) for _ in range(2))
        up["weight"][at] += step
        down["weight"][at] -= step
        slope = (total(up, s["v"]) - total(down, s["v"])) / (2 * step)
        assert float(phi["weight"][at] - s["phi"]["weight"][at]) == pytest.approx(
            0.1 * slope, rel=0.05, abs=1e-3
        )
    assert set(moved) == set(names) and float((moved["c03"] - s["v"]["c03"]).norm()) > 0


def test_who_never_came_has_the_model_of_the_mean_embedding(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    method, here = PFedHN(task), Loop(clients_data)
    s = after(method, here, 2)
    mean = torch.stack([s["v"][c] for c in sorted(s["v"])]).mean(0)
    assert apart(method.download(s, "nobody"), method.model(s["phi"], mean)) == 0
    assert apart(method.download(s, "nobody"), method.download(s, "c03")) > 0
    assert apart(method.download(after(method, here, 0), "nobody"), task.w0) == 0


def test_the_model_after_training_is_the_trained_one_and_its_update_the_difference() -> None:
    """Client a goes from 1 to 1.4; scores after training, guards, attacks and checks of updates all measure that."""
    method, here = PFedHN(one_number(), lr=0.1, batch=4), Loop(TWO)
    here.begin(method, Turn(0, ["a"], ["a"], 0))
    reply, keep = method.train(method.task.w0, (), here.data("a"))
    model = method.trained_model(method.task.w0, reply, keep, here.data("a"))
    assert float(model(torch.ones(1, 1))) == pytest.approx(1.4)
    assert flat_update(reply, method.task.w0) == pytest.approx([0.4])
