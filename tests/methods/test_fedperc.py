"""PFA and FedPerC: what they become in the limits, the warm-up, and rounds in groups."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from grouped_clients import ENGINES, both, engines, engines_and_both, kinds, three_layers
from motet.client import ClientData, Task
from motet.engines.driver import play, training
from motet.engines.loop import Loop
from motet.methods.fedavg import FedAvg
from motet.methods.fedper import FedPer
from motet.methods.fedperc import FedPerC
from motet.methods.local import Local
from motet.methods.pfa import PFA
from motet.vec import Vec
from motet.wire import pack, unpack
from rounds import after, apart, turn

WARM, ROUNDS = 2, 3


@pytest.fixture(scope="module")
def net() -> Task:
    return three_layers()


def from_here(task: Task, w: Vec) -> Task:
    """The same task, where everyone starts from w."""
    moved = copy.copy(task)
    moved.w0 = w
    return moved


def going_on(method: Any, engine: Any) -> Any:
    """The state after the rounds that follow the warm-up, with their numbers and seeds."""
    state = method.start(turn(engine, -1))
    for t in range(WARM, WARM + ROUNDS):
        state = play(engine, method, state, turn(engine, t))
    return state


# ---- limits ----


@pytest.mark.parametrize(
    ("engine", "how"),
    [
        *((engine, {"k": 1}) for engine in ENGINES),
        (Loop, {"grouping": "none"}),
        (Loop, {"grouping": "threshold", "threshold": 99.0}),
    ],
)
def test_with_one_group_fedperc_is_fedper_from_the_same_global_model(
    engine: Any, how: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    here, there = engine(clients_data), engine(clients_data)
    s = after(FedPerC(task, warm_up=WARM, **how), here, WARM + ROUNDS)
    w = after(FedAvg(task), engine(clients_data), WARM)
    assert apart(s["W_g"], w) == 0 and len(s["models"]) == 1
    body = going_on(FedPer(from_here(task, w)), there)
    assert apart(s["models"][0], body) == 0
    assert all(apart(here.keeps.get(c), there.keeps.get(c)) == 0 for c in clients_data)


@engines
def test_with_groups_of_one_fedperc_is_local_training_from_the_global_model(
    engine: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    here, there = engine(clients_data), engine(clients_data)
    method = FedPerC(task, warm_up=WARM, grouping="threshold", threshold=0.0)
    s = after(method, here, WARM + ROUNDS)
    assert sorted(s["groups"].values()) == list(range(12))
    going_on(Local(from_here(task, s["W_g"])), there)
    for c in clients_data:
        (w,) = method.personal(method.download(s, c), here.keeps.get(c), None).args
        assert apart(w, there.keeps.get(c)) < 1e-6  # groups of one are stacked by themselves


@engines
def test_with_one_group_pfa_is_fedavg(engine: Any, task: Task, clients_data: dict[str, ClientData]) -> None:
    s = after(PFA(task, warm_up=WARM, k=1), engine(clients_data), WARM + ROUNDS)
    assert apart(s["models"][0], after(FedAvg(task), engine(clients_data), WARM + ROUNDS)) == 0
    assert apart(s["W_g"], after(FedAvg(task), engine(clients_data), WARM)) == 0


@both
def test_a_group_is_a_federation_of_its_own(method: Any, net: Task) -> None:
    clients_data, truth = kinds()
    s = after(method(net, warm_up=0, k=3), Loop(clients_data), ROUNDS)
    for g in range(3):
        own = {c: h for (c, h), kind in zip(clients_data.items(), truth, strict=True) if kind == g}
        alone = after(method(net, warm_up=0, k=1), Loop(own), ROUNDS)
        assert apart(s["models"][g], alone["models"][0]) == 0


# ---- phases ----


@both
def test_the_warm_up_is_fedavg_and_everyone_has_the_global_model(
    method: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    m, engine = method(task, warm_up=5), Loop(clients_data)
    s = after(m, engine, 3)
    w = after(FedAvg(task), Loop(clients_data), 3)
    assert not s["models"] and not s["groups"] and apart(m.global_model(s), w) == 0
    (own,) = m.personal(m.download(s, "c00"), engine.keep("c00"), None).args
    assert apart(own, w) == 0


@engines_and_both
def test_a_pause_between_groupings_changes_nothing(method: Any, engine: Any, net: Task) -> None:
    clients_data, _ = kinds()
    m = method(net, warm_up=1, k=3, epsilon=5.0)
    whole, first = engine(clients_data), engine(clients_data)
    expected = after(m, whole, 4)
    s = unpack(pack(after(m, first, 2)))
    for t in (2, 3):
        s = play(first, m, s, turn(first, t))
    assert s["groups"] == expected["groups"] and torch.equal(s["centres"], expected["centres"])
    assert max(apart(a, b) for a, b in zip(s["models"], expected["models"], strict=True)) == 0


@both
def test_rounds_in_groups_begin_with_training(method: Any, net: Task) -> None:
    clients_data, _ = kinds()
    m, engine = method(net, warm_up=1, k=3), Loop(clients_data)
    asks = training(m, after(m, engine, 2), turn(engine, 2))
    assert sorted(c for a in asks for c in a.to) == sorted(clients_data) and len(asks) == 3
    names, sums = engine.evaluate_trained(m, asks, turn(engine, 2))
    assert sorted(names) == sorted(clients_data) and bool(torch.isfinite(sums["val"]["loss"]).all())


@both
def test_in_the_warm_up_scores_after_training_are_of_the_trained_model(method: Any, net: Task) -> None:
    clients_data, _ = kinds()
    m, plain, engine = method(net, warm_up=3), FedAvg(net), Loop(clients_data)
    found = engine.evaluate_trained(m, training(m, after(m, engine, 1), turn(engine, 1)), turn(engine, 1))[1]
    asks = training(plain, after(plain, Loop(clients_data), 1), turn(engine, 1))
    assert torch.equal(
        found["test"]["loss"],
        Loop(clients_data).evaluate_trained(plain, asks, turn(engine, 1))[1]["test"]["loss"],
    )


@both
def test_only_the_group_stays_of_a_visit(method: Any, net: Task) -> None:
    clients_data, truth = kinds()
    seen = {c: h for c, h in clients_data.items() if c not in ("c07", "c08")}
    m, engine = method(net, warm_up=1, k=3), Loop({c: clients_data[c] for c in ("c07", "c08")})
    s = after(m, Loop(seen), 3)
    met = m.after_visit(s, play(engine, m, s, turn(engine, 3)))
    assert met["groups"] == s["groups"] | {"c07": truth[7], "c08": truth[8]}
    assert met["models"] is s["models"] and met["W_g"] is s["W_g"]
    (w,) = m.personal(m.download(met, "c07"), engine.keep("c07"), None).args
    assert apart(w.drop(net.head), s["models"][truth[7]].drop(net.head)) == 0
    warm = after(m, Loop(seen), 1)
    assert m.after_visit(warm, play(engine, m, warm, turn(engine, 1))) is warm
