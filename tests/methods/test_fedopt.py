"""FedOpt: its four optimisers by hand, its reductions, and the methods around which its server goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from motet.client import Task
from motet.core import MethodUnfit
from motet.engines.driver import play
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.methods.fedavg import FedAvg
from motet.methods.fedopt import FedOpt
from motet.runs.build import resolve
from motet.runs.identity import code_of
from motet.runs.recipe import RecipeError, method_class, method_names, read
from motet.trusted_code import UntrustedCode
from motet.vec import Vec, leaves
from rounds import TWO, after, one_number, server_examples, turn

# From x, one step of 0.1 leads client a to x - 0.2 (x - 3) and client b, which counts three times, to x - 0.8 x. Their
# mean is 0.35 x + 0.15, so Delta = 0.15 - 0.65 x: -0.5 in the first round, from 1. beta1 is 0.9 but for momentum.
BY_HAND = {
    # m = -0.5, x = 0.5; Delta = -0.175, m = 0.5 * -0.5 - 0.175 = -0.425, x = 0.075
    "momentum": ({"beta1": 0.5}, 0.5, 0.075),
    # v = 0.01 + 0.25; x = 1 - 0.05 / (0.509902 + 0.1); Delta = -0.446713, m = -0.0896713, v = 0.459552
    "adagrad": ({}, 0.918020, 0.802747),
    # v = 0.9 * 0.01 + 0.1 * 0.25; x = 1 - 0.05 / (0.184391 + 0.1); Delta = -0.385721, m = -0.0835721, v = 0.0454780
    "adam": ({}, 0.824186, 0.557400),
    # v = 0.01 + 0.1 * 0.25; x = 1 - 0.05 / (0.187083 + 0.1); Delta = -0.386792, m = -0.0836792, v = 0.0499608
    "yogi": ({}, 0.825834, 0.567181),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_two_rounds_of_each_optimiser_by_hand(name: str) -> None:
    settings, first, second = BY_HAND[name]
    how: Any = {"server_lr": 1.0, "beta2": 0.9, "tau": 0.1} | settings
    method = FedOpt(one_number(), lr=0.1, batch=8, server_optimiser=name, **how)
    found = [after(method, Loop(TWO), rounds)["x"]["weight"].item() for rounds in (1, 2)]
    assert found == pytest.approx([first, second], abs=2e-6)


def test_yogi_takes_squares_away_where_the_change_is_small() -> None:
    method = FedOpt(one_number(), server_optimiser="yogi", beta2=0.9)
    v = method.squares(Vec(a=torch.tensor([1.0, 0.25, 0.1])), Vec(a=torch.tensor([0.25, 0.25, 0.25])))
    assert v["a"].tolist() == pytest.approx([0.975, 0.25, 0.125])  # as far as the sign of v - Delta^2 says


def without_effect(name: str, task: Any) -> Any:
    """A server that takes the mean, put around a method."""
    how: Any = {"server_optimiser": "momentum", "beta1": 0.0, "server_lr": 1.0}
    return method_class(f"{name}+fedopt")(task, **how)


@pytest.mark.parametrize("make", [Loop, Vmap, Threads])
def test_momentum_0_and_rate_1_is_fedavg_to_the_bit(make: Any, task: Any, clients_data: Any) -> None:
    plain, found = (after(m, make(clients_data), 3) for m in (FedAvg(task), without_effect("fedavg", task)))
    assert all(torch.equal(a, found["x"][k]) for k, a in plain.items())


OWN_STEPS = {"fedrecon", "pfedhn", "reptile", "scaffold"}  # settings of their own for the server's step
OTHER_STATES = {"feddyn", "fedperc", "grouptune", "local", "page", "pfa", "stacking", "swarm"}
OTHER_STATES |= {"cfl", "fedamp", "feddbe", "fedfomo", "fedpac", "fedproto", "fedsoft", "ifca", "l2gd"}
AVERAGE = sorted({*method_names()} - OWN_STEPS - OTHER_STATES - {"centralised", "fedopt"})


@pytest.mark.parametrize("name", AVERAGE)
def test_a_server_that_takes_the_mean_changes_nothing_around_any_averaging_method(
    name: str, task: Any, clients_data: Any
) -> None:
    engines = [Loop(clients_data), Loop(clients_data)]
    methods = [method_class(name)(task), without_effect(name, task)]
    plain, found = (after(m, e, 2) for m, e in zip(methods, engines, strict=True))
    assert all(torch.equal(a, found["x"][k]) for k, a in plain.items())
    kept = [[v for c in e.clients for v in leaves(e.keeps.get(c))] for e in engines]
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(*kept, strict=True))


@pytest.mark.parametrize("name", sorted(OWN_STEPS | {"centralised", "fedopt"}))
def test_a_method_with_a_server_step_of_its_own_is_refused_by_its_settings(name: str) -> None:
    with pytest.raises(RecipeError, match=r"hint: .*fedper\+fedopt"):
        read(words=[f"method={name}+fedopt"])


@pytest.mark.parametrize("name", sorted(OTHER_STATES))
def test_a_server_without_one_averaged_model_is_refused_as_it_starts(
    name: str, task: Any, clients_data: Any
) -> None:
    with pytest.raises(MethodUnfit, match="moves one model towards the mean of clients' models"):
        after(without_effect(name, task), Loop(clients_data), 1, server_examples())


def test_only_fedopt_goes_around_others() -> None:
    with pytest.raises(RecipeError, match=r"fedprox cannot be put around fedavg\nhint: fedopt can"):
        read(words=["method=fedavg+fedprox"])
    with pytest.raises(RecipeError, match="unknown method fedprx"):
        read(words=["method=fedprx+fedopt"])


def test_a_method_with_fedopt_has_the_settings_of_both_and_its_own_strength_is_tuned() -> None:
    made = read(words=["method=fedprox+fedopt", "method.mu=0.5", "method.tau=0.01"])
    assert (made["method"]["mu"], made["method"]["tau"]) == (0.5, 0.01)
    assert method_class("fedprox+fedopt").strength == "mu"
    assert method_class("fedper+fedopt").strength == method_class("fedopt").strength == "server_lr"
    assert method_class("fedprox+fedopt") is method_class("fedprox+fedopt")


@pytest.mark.parametrize(("name", "rate"), [("momentum", 1.0), ("yogi", 0.03)])
def test_the_servers_rate_follows_from_its_optimiser_unless_it_is_given(name: str, rate: float) -> None:
    words = ["data=wine", "data.clients=4", "method=fedopt", f"method.server_optimiser={name}"]
    assert resolve(read(words=words)).recipe["method"]["server_lr"] == rate
    assert resolve(read(words=[*words, "method.server_lr=0.5"])).recipe["method"]["server_lr"] == 0.5


def test_statistics_of_batchnorm_are_the_mean_whatever_the_server_does(clients_data: Any) -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    net.statistics = "averaged"  # type: ignore[assignment]
    task, engine = Task(net, "classes", 3), Loop(clients_data)
    method = FedOpt(task, server_optimiser="adam", server_lr=0.5)
    before = after(method, engine, 0)
    found = play(engine, method, before, turn(engine, 0))["x"]
    mean = play(engine, FedAvg(task), before["x"], turn(engine, 0))
    assert torch.equal(found["1.running_mean"], mean["1.running_mean"])
    assert not torch.equal(found["1.weight"], mean["1.weight"])


MINE = """
from motet.methods.fedavg import FedAvg


class Mine(FedAvg):
    \"\"\"A method of one's own.\"\"\"
"""


def test_fedopt_goes_around_a_method_of_ones_own_whose_code_needs_trust_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "around_mine.py").write_text(MINE)
    name = "around_mine:Mine+fedopt"
    (tmp_path / "r.toml").write_text(f'[data]\nname = "wine"\n[method]\nname = "{name}"\n')
    with pytest.raises(UntrustedCode, match="around_mine:Mine"):
        read(tmp_path / "r.toml")
    found = read(words=["data=wine", f"method={name}"])
    assert issubclass(method_class(name), FedAvg) and list(code_of(found)) == ["around_mine:Mine"]
