"""Settings of the swarm side by side, as Table 1 runs them: each is what it is alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from motet.core import MethodUnfit
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.wrappers.faulty import Faulty
from motet.methods.swarm import Swarm
from motet.runs import experiment as experiments
from motet.runs import recipe as recipes
from rounds import TWO, after, one_number, turn
from swarm_data import divided, line, linear, same

sys.path.append(str(Path(__file__).parents[2]))
from experiments.swarm.batch import SwarmBatch, settings_by_state


def test_settings_side_by_side_know_nothing_of_each_other() -> None:
    """Each of three settings, twice; each is what it is alone."""
    x, y = line()
    clients_data = divided(x, y, torch.arange(60) % 4)
    lists = {
        "w1": [0.5, 0.0, 0.2],
        "w2": [0.1, 0.3, 0.8],
        "alpha": [0.1, 2.0, 1.0],
        "adapt": [True, False, True],
    }
    given = {f"{k}s": v for k, v in lists.items()}
    s = after(SwarmBatch(linear(4, 1), swarms=2, stretch=50, **given), Loop(clients_data), 1)
    assert s["theta"].shape == (6, 20, 5)
    for i in range(3):
        own = {k: v[i] for k, v in lists.items()}
        alone = after(Swarm(linear(4, 1), swarms=2, stretch=50, **own), Loop(clients_data), 1)  # type: ignore[arg-type]
        assert all(same(alone[k], s[k][2 * i : 2 * i + 2]) < 1e-12 for k in ("theta", "loss", "alpha"))
        assert torch.equal(alone["source"], s["source"])
    assert s["alpha"][2:4].tolist() == [2.0, 2.0]  # it does not adapt


def test_losses_of_a_converged_setting_are_not_asked_for() -> None:
    """With alpha 0 no particle can ever move; the other setting goes on as it does alone."""
    here, asked = Loop(TWO), []
    shared: Any = {"swarms": 2, "stretch": 30, "w2": 0.3}
    both = SwarmBatch(one_number(), w1s=(0.0, 0.4), **shared)
    s = start(here, both, turn(here, -1))
    s["alpha"][:2] = 0
    inner = here.ask
    here.ask = lambda ask: asked.append(ask.send["theta"].shape) or inner(ask)  # type: ignore[method-assign]
    then = play(here, both, s, turn(here, 0))
    assert asked == [torch.Size([2, 21, 1])] * 30
    assert all(torch.equal(then[k][:2], s[k][:2]) for k in ("theta", "v", "loss", "alpha"))
    alone = after(Swarm(one_number(), w1=0.4, **shared), Loop(TWO), 1)
    assert all(torch.equal(then[k][2:], alone[k]) for k in ("theta", "v", "loss", "alpha", "failures"))


def test_a_converged_setting_gets_the_losses_of_other_clients() -> None:
    here = Faulty(Loop(TWO), lambda client, number: client == "b" and number >= 0)
    method = SwarmBatch(one_number(), w1s=(0.0, 0.4), stretch=3)
    s = start(here, method, turn(here, -1))
    s["alpha"][0] = 0
    then = play(here, method, s, turn(here, 0))
    assert torch.equal(then["theta"][0], s["theta"][0])
    assert torch.allclose(then["loss"][0], (s["theta"][0, :, 0] - 3) ** 2)  # a's alone


def test_a_setting_converges_when_alpha_has_been_halved_to_zero() -> None:
    here, how = Loop(TWO), {"w1s": (1.0, 0.0), "w2": 0.0, "adapts": (True, False), "patience": 1}
    method = SwarmBatch(one_number(), particles=2, stretch=1200, first="unit", **how)  # type: ignore[arg-type]
    s = after(method, here, 1)
    assert float(s["alpha"][0]) == 0 and [list(a) for a in settings_by_state(s, 1)] == [[1], [0]]
    both = settings_by_state(s | {"alpha": torch.zeros(2)}, 1)
    assert [list(a) for a in both] == [[0, 1], []]  # a round must ask


@pytest.mark.parametrize(
    "how, says",
    [
        ({"w1s": (0.2, 0.6), "w2s": (0.2, 0.6)}, r"w1 \+ w2 is 1.2"),
        ({"w1s": (0.2, 0.6), "w2s": (0.2, 0.6, 0.0)}, "the same number"),
        ({"w1s": (0.2, 0.6), "loss": "one_vs_all"}, "a swarm for each class"),
    ],
)
def test_lists_that_cannot_work_are_refused(how: Any, says: str) -> None:
    with pytest.raises(MethodUnfit, match=says):
        after(SwarmBatch(one_number(), **how), Loop(TWO), 0)


@pytest.mark.parametrize("name, lists", [("table1", {"w1s", "w2s"}), ("figure8", {"alphas", "adapts"})])
def test_the_recipes_of_table_1_and_figure_8_take_lists(name: str, lists: set[str]) -> None:
    settings = experiments.find(f"swarm/{name}").at("quick")
    method = settings["method"] | {k: [True] if k == "adapts" else [0.5] for k in lists}
    shared = {k: settings[k] for k in ("data", "net", "train", "engine", "save")}
    found = recipes.check(shared | {"seed": 0, "method": method})
    assert recipes.method_class(found.settings["method"]["name"]) is SwarmBatch
