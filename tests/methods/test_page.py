"""PAGE: rounds computed by hand, what is remembered, who weighs what, and the limit in which it is FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from motet.client import Batch, ClientData, Task, seed_of
from motet.core import MethodUnfit, Turn, average
from motet.engines.driver import play, training
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.engines.wrappers.faulty import Faulty
from motet.methods.fedavg import FedAvg
from motet.methods.page import PAGE
from motet.parts import agents
from motet.parts import games as game
from motet.runs.build import resolve
from motet.runs.recipe import read
from motet.vec import leaves
from rounds import TWO, after, apart, evaluate_server_testples, one_number, turn

engines = pytest.mark.parametrize("engine", [Loop, Vmap])
ONE = Batch.of(torch.tensor([[1.0]]), torch.tensor([1.0]))  # the server's example (1, 1): loss (w - 1)^2
PAPER: dict[str, Any] = {
    "looks": 1,
    "floor": 0.0,
    "opening": 0.0,
    "steady": False,
    "warm_up": 36,
    "eps": 1e-5,
}
RANGE: dict[str, Any] = PAPER | {"lr_min": 0.01, "lr_max": 0.1, "epochs_max": 6, "batch": 4}
# agents learn from the third round on
QUICK: dict[str, Any] = PAPER | {"warm_up": 2, "recall": 2, "epochs_max": 4}


def drawn(settings: agents.AgentSettings, seed: int) -> torch.Tensor:
    """The first action, whatever the state."""
    return agents.act(agents.born(settings, 0), torch.zeros(settings.states), seed, settings)[0]


def trained(method: PAGE) -> tuple[float, float]:
    """w_a and w_b after round 0. An epoch of a leads from w to 3 + (w - 3)(1 - 2 eta), of b to w (1 - 8 eta)."""
    chosen = []
    for client in "ab":
        a = drawn(method.client.mind, seed_of(seed_of(0, 0), client)).tolist()
        chosen.append((0.01 + 0.09 * (a[0] + 1) / 2, round(1 + 5 * (a[1] + 1) / 2)))
    (eta_a, alpha_a), (eta_b, alpha_b) = chosen
    assert eta_a != eta_b
    return 3 - 2 * (1 - 2 * eta_a) ** alpha_a, (1 - 8 * eta_b) ** alpha_b


@engines
@pytest.mark.parametrize("private", [False, True])
def test_a_round_by_hand(engine: Any, private: bool) -> None:
    method, here = PAGE(one_number(), private=private, **RANGE), engine(TWO)
    w_a, w_b = trained(method)
    u = [(float(v) + 1) / 2 for v in drawn(method.server(4).mind, seed_of(0, 0))[:2]]  # two seats of four
    w = (u[0] * w_a + u[1] * w_b) / sum(u)
    s = after(method, here, 1, ONE)
    assert s["w"]["weight"].item() == pytest.approx(w, rel=1e-5)
    assert s["s"].tolist() == pytest.approx([1 / (1 + (v - 1) ** 2) for v in (w_a, w_b)] + [0, 0], rel=1e-5)
    assert s["r"].item() == pytest.approx(1 / (1e-5 + (w - 1) ** 2), rel=1e-4)
    kept = here.keeps.get("a")
    assert kept["w"]["weight"].item() == pytest.approx(w_a, rel=1e-5)
    assert kept["r"].item() == pytest.approx(1 / (1e-5 + (w_a - 3) ** 2), rel=1e-4)
    assert kept["now"].item() == pytest.approx(1 / (1 + (w_a - 3) ** 2), rel=1e-5)


@pytest.mark.parametrize("private", [False, True])
def test_the_papers_reward_is_one_over_the_weighted_mean_of_local_losses(private: bool) -> None:
    method = PAGE(one_number(), reward="paper", private=private, fixed=("p",), **RANGE)
    w_a, w_b = trained(method)
    s = after(method, Loop(TWO), 1, ONE)
    mean = ((w_a - 3) ** 2 + (2 * w_b) ** 2) / 2
    assert s["r"].item() == pytest.approx(1 / (1e-5 + mean), rel=1e-4)


@engines
def test_memory_holds_actions_as_chosen_and_what_they_led_to(engine: Any) -> None:
    method, here = PAGE(one_number(), **RANGE), engine(TWO)
    first = after(method, Loop(TWO), 1, ONE)
    s = after(method, here, 3, ONE)
    row = s["agent"]["memory"][0]  # of 4 accuracies, 4 actions, the reward, 4 accuracies
    assert s["agent"]["stored"] == 2 and here.keeps.get("a")["agent"]["stored"] == 1
    assert row[4:8].tolist() == drawn(method.server(4).mind, seed_of(0, 0)).tolist()
    assert torch.equal(row[:4], first["s"]) and row[8] == first["r"]
    a = drawn(
        method.client.mind, seed_of(seed_of(0, 1), "a")
    )  # round 0 is not remembered: no state was before it
    memory = here.keeps.get("a")["agent"]["memory"]
    assert torch.equal(memory[0, 1:3], a) and memory[1:].abs().max() == 0


def test_rewards_are_scaled_or_mixed() -> None:
    plain, scaled, mixed = (
        PAGE(one_number(), **RANGE, **how)
        for how in ({}, {"client_scale": 10.0, "server_scale": 5.0}, {"client_mix": 2.0, "server_mix": 3.0})
    )
    states, rewards = [], []
    for method in (plain, scaled, mixed):
        here = Loop(TWO)
        states.append(after(method, here, 3, ONE))
        rewards.append([here.keeps.get(c)["agent"]["memory"][0, 3].item() for c in "ab"])
    assert rewards[1] == pytest.approx([10 * r for r in rewards[0]])
    assert states[1]["agent"]["memory"][0, 8] == pytest.approx(5 * states[0]["agent"]["memory"][0, 8].item())
    # b's move in round 1 also earns 2 / f_b(W) for the W that it receives in round 2
    w = after(plain, Loop(TWO), 2, ONE)["w"]["weight"].item()
    assert rewards[2][1] - rewards[0][1] == pytest.approx(2 / (1e-5 + (2 * w) ** 2), rel=1e-4)
    # the server's in round 0 also earns 3 times the mean of what clients earn in round 1
    earned = states[2]["agent"]["memory"][0, 8] - states[0]["agent"]["memory"][0, 8]
    assert earned.item() == pytest.approx(3 * sum(rewards[0]) / 2, rel=1e-4)


def test_a_scale_changes_nothing_where_rewards_are_steadied(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    found = []
    for scale in (1.0, 8.0):
        how = QUICK | {"steady": True, "looks": 3}
        method = PAGE(task, client_scale=scale, server_scale=scale, **how)
        s = after(method, Loop(clients_data), 6, evaluate_server_testples())
        assert s["agent"]["learned"] > 0
        found.append(s)
    assert torch.equal(found[0]["a"], found[1]["a"]) and apart(found[0]["w"], found[1]["w"]) == 0


def test_actions_span_the_ranges_affinely(task: Task) -> None:
    method = PAGE(task, lr_min=0.001, lr_max=0.1, epochs_max=20)
    me = {"most": torch.tensor(20)}
    low, middle, high = (method.client.choice(torch.full((2,), a), me) for a in (-1.0, 0.0, 1.0))
    assert [c[0].item() for c in (low, middle, high)] == pytest.approx([0.001, 0.0505, 0.1])
    assert [c[1].item() for c in (low, middle, high)] == [1, 10, 20]


def test_weights_sum_to_one_and_the_absent_have_none() -> None:
    a, at = torch.tensor([0.5, -1.0, 1.0, 0.0]), torch.tensor([0, 1, 3])
    server = PAGE(one_number(), **PAPER).server(4)
    assert server.shares(a, at).tolist() == pytest.approx([0.6, 0, 0.4])
    assert server.shares(-torch.ones(4), at).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert game.shares(a[at], floor=0.2).tolist() == pytest.approx([0.8 / 1.6, 0.2 / 1.6, 0.6 / 1.6])


@engines
def test_private_gives_the_same_numbers_though_only_a_mean_model_is_seen(
    engine: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    found = []
    for private in (False, True):
        here = engine(clients_data)
        s = after(PAGE(task, private=private, server_mix=0.5, **QUICK), here, 5, evaluate_server_testples())
        found.append([*leaves(s), *(v for c in clients_data for v in leaves(here.keeps.get(c)))])
    pairs = [[torch.as_tensor(v) for v in pair] for pair in zip(*found, strict=True)]
    assert max(float((p - q).abs().max()) for p, q in pairs if p.numel()) < 1e-6


def test_private_collects_two_numbers_of_each_client(task: Task, clients_data: dict[str, ClientData]) -> None:
    method, here = PAGE(task, private=True, looks=1), Loop(clients_data)
    before = method.start(turn(here, -1, evaluate_server_testples()))
    talk: Any = method.round(before, turn(here, 0, evaluate_server_testples()))
    ask = next(talk)
    said = {"score": torch.tensor(0.5), "f": torch.tensor(1.0), "late": torch.tensor(False)}
    second = talk.send({c: said for c in ask.to})
    assert ask.learn == "all" and second.learn == "mean"
    assert sum(second.weights.values()) == pytest.approx(1)


class Even(FedAvg):
    """FedAvg whose clients weigh the same."""

    def round(self, w: Any, turn: Turn) -> Any:
        return (yield average(self.train, turn.cohort, send=w, weights=dict.fromkeys(turn.cohort, 1.0)))


@engines
@pytest.mark.parametrize("private", [False, True])
def test_with_everything_fixed_it_is_even_fedavg_at_the_upper_ends(
    engine: Any, private: bool, task: Task, clients_data: dict[str, ClientData]
) -> None:
    method = PAGE(task, lr_max=0.2, epochs_max=3, fixed=("eta", "alpha", "p"), private=private)
    fixed = after(method, engine(clients_data), 4, evaluate_server_testples())
    assert apart(fixed["w"], after(Even(task, lr=0.2, epochs=3), engine(clients_data), 4)) < 1e-6


@engines
def test_agents_learn_and_engines_agree(engine: Any, task: Task, clients_data: dict[str, ClientData]) -> None:
    here, loop = engine(clients_data), Loop(clients_data)
    s, t = (after(PAGE(task, **QUICK), e, 6, evaluate_server_testples()) for e in (here, loop))
    assert s["agent"]["learned"] == 4 and here.keeps.get("c03")["agent"]["learned"] == 3
    assert apart(s["w"], t["w"]) < 2e-5


def test_random_actions_are_drawn_for_good(task: Task, clients_data: dict[str, ClientData]) -> None:
    here = Loop(clients_data)
    s = after(PAGE(task, random=True, **QUICK), here, 5, evaluate_server_testples())
    assert s["agent"]["learned"] == 0 and here.keeps.get("c03")["agent"]["learned"] == 0
    method = PAGE(task, **QUICK)
    assert torch.equal(s["a"], drawn(method.server(24).mind, seed_of(0, 4)))


def test_an_absent_client_weighs_nothing_and_keeps_its_last_accuracy(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    method, here = (
        PAGE(task, **QUICK),
        Faulty(Loop(clients_data), lambda c, number: c == "c04" and number == 1),
    )
    before = after(method, here, 1, evaluate_server_testples())
    s = play(here, method, before, turn(here, 1, evaluate_server_testples()))
    assert s["s"][s["seats"]["c04"]] == before["s"][4] != 0 and s["now"][4] == before["now"][4]
    u = torch.stack([(s["a"][k] + 1) / 2 for c, k in s["seats"].items() if c != "c04"])
    models = [here.keeps.get(c)["w"] for c in s["seats"] if c != "c04"]
    total = task.w0.zeros()
    for m, p in zip(models, u / u.sum(), strict=True):
        total = total + p * m
    assert apart(total, s["w"]) < 1e-6


def test_a_late_client_gets_a_seat_while_there_are_any(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    few = {c: clients_data[c] for c in ("c00", "c01")}
    method = PAGE(task, capacity=3, **QUICK)
    s = after(method, Loop(few), 2, evaluate_server_testples())
    assert s["seats"] == {"c00": 0, "c01": 1}
    more = Loop(few | {"b00": clients_data["c02"]})
    s = play(more, method, s, turn(more, 2, evaluate_server_testples()))
    assert s["seats"] == {"c00": 0, "c01": 1, "b00": 2} and s["s"].shape == (3,)
    full = Loop(few | {"b00": clients_data["c02"], "b01": clients_data["c03"]})
    with pytest.raises(
        MethodUnfit, match="has 3 seats for clients, and there are 4.\nhint: method.capacity=8"
    ):
        play(full, method, s, turn(full, 3, evaluate_server_testples()))
    moved = Loop(
        {"c01": clients_data["c01"], "b00": clients_data["c02"], "b01": clients_data["c03"]}
    )  # c00 has left
    assert play(moved, method, s, turn(moved, 3, evaluate_server_testples()))["seats"]["b01"] == 0


def test_a_budget_bounds_what_a_client_chooses(task: Task, clients_data: dict[str, ClientData]) -> None:
    here = Loop(clients_data)
    method = PAGE(task, epochs_max=8, budget=(1, 5, 40))
    after(method, here, 1, evaluate_server_testples())
    most = {c: int(here.keeps.get(c)["most"]) for c in clients_data}
    assert set(most.values()) == {1, 5, 8}
    assert method.client.choice(torch.ones(2), {"most": torch.tensor(5)})[1] == 5


def test_who_has_not_trained_yet_has_the_global_model(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    method, here = PAGE(task, **QUICK), Loop(clients_data)
    s = after(method, here, 1, evaluate_server_testples())
    data = here.data("c00")
    x = data.x
    assert torch.equal(method.personal(s["w"], method.join(data), data)(x), task.predict(s["w"], x))
    kept = here.keeps.get("c00")
    assert torch.equal(method.personal(s["w"], kept, data)(x), task.predict(kept["w"], x))


@engines
@pytest.mark.parametrize("private", [False, True])
def test_local_scores_are_those_of_the_personal_models(
    engine: Any, private: bool, task: Task, clients_data: dict[str, ClientData]
) -> None:
    method, here = PAGE(task, private=private, **QUICK), engine(clients_data)
    before, now = (
        after(method, here, 2, evaluate_server_testples()),
        turn(here, 2, evaluate_server_testples()),
    )
    asks = training(method, before, now)
    s = play(here, method, before, now)
    names, local = here.evaluate_trained(method, asks, now)
    others, scores = here.evaluate(method, s, now, "test")
    own = dict(zip(others, scores["personal"]["loss"], strict=True))
    assert sum(local["test"]["loss"]).item() == pytest.approx(sum(own[c] for c in names).item(), rel=1e-5)


def test_a_server_that_looks_plays_what_earns_most_and_remembers_all_it_looked_at() -> None:
    method, here = PAGE(one_number(), **RANGE | {"looks": 6, "stride": 0.2}), Loop(TWO)
    even = after(PAGE(one_number(), fixed=("p",), **RANGE), Loop(TWO), 1, ONE)
    s = after(method, here, 1, ONE)
    assert s["r"] >= even["r"] and s["r"] >= s["tried"]["r"].max()
    assert len(s["tried"]["r"]) == 5  # six looks, of which one was played
    assert s["tried"]["a"].abs().max() <= 1
    again = after(method, Loop(TWO), 2, ONE)
    assert again["agent"]["stored"] == 6
    rewards = sorted(again["agent"]["memory"][:6, 8].tolist())
    assert rewards == pytest.approx(sorted([s["r"].item(), *s["tried"]["r"].tolist()]), rel=1e-4)


def test_a_look_goes_up_the_slope_by_a_stride() -> None:
    # Shares are (a + 1) / sum(a + 1) of two: at a = (0, 0) the first's grows by 1/4 for each unit of a_1.
    def payoff(p: torch.Tensor) -> torch.Tensor:
        return 3 * p[0].float()

    server = PAGE(one_number(), **RANGE | {"looks": 3, "stride": 0.2}).server(2)
    own, last, third = server.look(torch.tensor([-0.5, 0.0]), torch.zeros(2), torch.tensor([0, 1]), payoff)
    assert (own[1].item(), last[1].item()) == pytest.approx((1.0, 1.5))
    assert third[0].tolist() == pytest.approx([0.2, -0.2])  # (1, -1) has root mean square 1
    assert third[1].item() == pytest.approx(3 * 1.2 / 2)


def test_private_cannot_look(task: Task, clients_data: dict[str, ClientData]) -> None:
    with pytest.raises(MethodUnfit, match="sees no models to look with.\nhint: method.looks=1"):
        after(PAGE(task, private=True), Loop(clients_data), 1, evaluate_server_testples())


def test_who_misses_the_deadline_is_absent_earns_nothing_and_keeps_its_accuracy() -> None:
    slow = RANGE | {"speeds": (0.5, 10.0), "deadline": 3.0, "fixed": ("alpha",)}
    # six epochs take 12 units of time at half an epoch a unit, and 0.6 at ten
    method, here = PAGE(one_number(), **slow), Loop(TWO | {c: TWO["a"] for c in "cdef"})
    s = after(method, here, 1, ONE)
    keeps = {c: here.keeps.get(c) for c in here.clients}
    late = {c for c in here.clients if keeps[c]["speed"] == 0.5}
    assert 0 < len(late) < 6
    assert {c for c in here.clients if keeps[c]["r"] == 0} == late
    assert all((s["now"][s["seats"][c]] == 0) == (c in late) for c in here.clients)
    assert s["told"]["counted"] <= 6 - len(late) + 1e-5
    none = after(PAGE(one_number(), **slow | {"speeds": (0.5,)}), Loop(TWO), 2, ONE)
    assert none["w"] == one_number().w0  # all are late: nobody is waited for, and nothing changes


def test_an_agent_learns_to_keep_its_deadline() -> None:
    method = PAGE(
        one_number(), lr_min=0.01, lr_max=0.02, epochs_max=20, batch=4, deadline=8.0, recall=16,
        actor_lr=0.02, critic_lr=0.05, gamma=0.0, fade=40, warm_up=20, looks=1, opening=0.5,
    )  # fmt: skip
    here = Loop(TWO)
    after(method, here, 70, ONE)
    for c in "ab":
        kept = here.keeps.get(c)
        assert not method.client.late(method.client.choice(kept["a"], kept)[1], kept)


def test_as_published_actions_are_cut_off_and_remembered_as_they_were_cut() -> None:
    method, here = PAGE(one_number(), as_published=True, **RANGE), Loop(TWO)
    first, s = after(method, Loop(TWO), 1, ONE), after(method, here, 3, ONE)
    # p of round 1 is chosen by what models did in round 0, so round 0 is chosen by nothing
    assert first["s"].abs().max() == 0 and first["now"][:2].min() > 0
    row = s["agent"]["memory"][1]
    assert torch.equal(row[:4], first["now"]) and row[4:8].sum().item() == pytest.approx(1)
    kept = here.keeps.get("a")
    assert 0.01 <= kept["a"][0] <= 0.1 and 1 <= kept["a"][1] <= 6 and kept["a"][1] % 1 == 0
    assert torch.equal(kept["agent"]["memory"][0, 1:3] < 7, torch.tensor([True, True]))
    w = after(method, Loop(TWO), 2, ONE)["w"]["weight"].item()  # what a received in round 2
    assert kept["now"].item() == pytest.approx(1 / (1 + (w - 3) ** 2), rel=1e-5)


def test_as_published_agents_end_up_at_the_upper_ends() -> None:
    method, here = PAGE(one_number(), as_published=True, **RANGE), Loop(TWO)
    after(method, here, 40, ONE)
    assert [here.keeps.get(c)["a"].tolist() for c in "ab"] == [pytest.approx([0.1, 6.0])] * 2


def test_memory_is_as_long_as_the_run(task: Task) -> None:
    recipe = resolve(
        read(None, ["data.name=wine", "method.name=page", "data.server_test=0.2", "data.proxy=0.5"])
    ).recipe
    assert recipe["method"]["memory"] == recipe.train.rounds


def test_a_server_without_examples_is_told_how_to_get_some(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    with pytest.raises(MethodUnfit, match="it has none.\nhint: data.proxy=0.2"):
        after(PAGE(task), Loop(clients_data), 1)
