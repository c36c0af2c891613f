"""PAGE: rounds computed by hand, what is remembered, who weighs what, and the limit in which it is FedAvg."""

from __future__ import annotations

import sys
from dataclasses import replace
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
from motet.parts import agents, games
from motet.parts.agents import AgentSettings, AgentSpec
from motet.runs import experiment as experiments
from motet.runs.build import resolve
from motet.runs.recipe import method_class, read
from motet.trusted_code import trust_names
from motet.vec import leaves
from rounds import TWO, after, apart, one_number, server_examples, turn

engines = pytest.mark.parametrize("engine", [Loop, Vmap])
ONE = Batch.of(torch.tensor([[1.0]]), torch.tensor([1.0]))  # the server's example (1, 1): loss (w - 1)^2
AGENT = AgentSettings(gamma=0.0, noise_rate=1.0, noise_decay=200)  # as the paper reads in all else
PAPER: dict[str, Any] = {"candidates": 1, "floor": 0.0, "eps": 1e-5, "agent": AGENT}
RANGE: dict[str, Any] = PAPER | {"lr_min": 0.01, "lr_max": 0.1, "epochs_max": 6, "batch": 4}
# agents learn from the third round on
QUICK: dict[str, Any] = PAPER | {"epochs_max": 4, "agent": replace(AGENT, warm_up=2, batch_size=2)}
PUBLISHED: dict[str, Any] = {"lr_min": 0.01, "lr_max": 0.1, "epochs_max": 6, "batch": 4}
EQUAL: dict[str, Any] = {"candidates": 1, "floor": 1.0}


def beside(name: str) -> Any:
    """A class of the experiments on PAGE."""
    experiments.find("page/table1-synthetic")
    trust_names([f"experiments.page.{name}"])
    return method_class(f"experiments.page.{name}")


PrivatePAGE = beside("private:PrivatePAGE")
methods = pytest.mark.parametrize("page", [PAGE, PrivatePAGE])


def drawn(spec: AgentSpec, seed: int) -> torch.Tensor:
    """The first action, whatever the state."""
    return agents.act(agents.initial(spec, 0), torch.zeros(spec.states), seed, spec)[0]


def trained(method: PAGE) -> tuple[float, float]:
    """w_a and w_b after round 0. An epoch of a leads from w to 3 + (w - 3)(1 - 2 eta), of b to w (1 - 8 eta)."""
    chosen = []
    for client in "ab":
        a = drawn(method.agent.sized(1, 2), seed_of(seed_of(0, 0), client)).tolist()
        chosen.append((0.01 + 0.09 * (a[0] + 1) / 2, round(1 + 5 * (a[1] + 1) / 2)))
    (eta_a, alpha_a), (eta_b, alpha_b) = chosen
    assert eta_a != eta_b
    return 3 - 2 * (1 - 2 * eta_a) ** alpha_a, (1 - 8 * eta_b) ** alpha_b


@engines
@methods
def test_a_round_by_hand(engine: Any, page: type[PAGE]) -> None:
    method, here = page(one_number(), **RANGE), engine(TWO)
    w_a, w_b = trained(method)
    u = [(float(v) + 1) / 2 for v in drawn(method.server(4).spec, seed_of(0, 0))[:2]]  # two seats of four
    w = (u[0] * w_a + u[1] * w_b) / sum(u)
    s = after(method, here, 1, ONE)
    assert s["w"]["weight"].item() == pytest.approx(w, rel=1e-5)
    assert s["s"].tolist() == pytest.approx([1 / (1 + (v - 1) ** 2) for v in (w_a, w_b)] + [0, 0], rel=1e-5)
    assert s["r"].item() == pytest.approx(1 / (1e-5 + (w - 1) ** 2), rel=1e-4)
    kept = here.keeps.get("a")
    assert kept["w"]["weight"].item() == pytest.approx(w_a, rel=1e-5)
    assert kept["r"].item() == pytest.approx(1 / (1e-5 + (w_a - 3) ** 2), rel=1e-4)
    assert kept["now"].item() == pytest.approx(1 / (1 + (w_a - 3) ** 2), rel=1e-5)


@methods
def test_the_papers_reward_is_one_over_the_weighted_mean_of_local_losses(page: type[PAGE]) -> None:
    method = page(one_number(), reward="paper", **RANGE | EQUAL)
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
    assert row[4:8].tolist() == drawn(method.server(4).spec, seed_of(0, 0)).tolist()
    assert torch.equal(row[:4], first["s"]) and row[8] == first["r"]
    a = drawn(
        method.agent.sized(1, 2), seed_of(seed_of(0, 1), "a")
    )  # round 0 is not remembered: no state was before
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


def test_a_scale_changes_nothing_where_rewards_are_normalised(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    found = []
    for scale in (1.0, 8.0):
        how = QUICK | {"agent": replace(QUICK["agent"], normalise_rewards=True), "candidates": 3}
        method = PAGE(task, client_scale=scale, server_scale=scale, **how)
        s = after(method, Loop(clients_data), 6, server_examples())
        assert s["agent"]["learned"] > 0
        found.append(s)
    assert torch.equal(found[0]["a"], found[1]["a"]) and apart(found[0]["w"], found[1]["w"]) == 0


def test_actions_span_the_ranges_affinely(task: Task) -> None:
    method = PAGE(task, lr_min=0.001, lr_max=0.1, epochs_max=20)
    low, middle, high = (method.ranges(torch.full((2,), a), {}) for a in (-1.0, 0.0, 1.0))
    assert [c[0].item() for c in (low, middle, high)] == pytest.approx([0.001, 0.0505, 0.1])
    assert [c[1].item() for c in (low, middle, high)] == [1, 10, 20]


def test_weights_sum_to_one_and_the_absent_have_none() -> None:
    a, at = torch.tensor([0.5, -1.0, 1.0, 0.0]), torch.tensor([0, 1, 3])
    server = PAGE(one_number(), **PAPER).server(4)
    assert server.weights(a, at).tolist() == pytest.approx([0.6, 0, 0.4])
    assert server.weights(-torch.ones(4), at).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert games.shares(a[at], floor=0.2).tolist() == pytest.approx([0.8 / 1.6, 0.2 / 1.6, 0.6 / 1.6])


@engines
def test_private_gives_the_same_numbers_though_only_a_mean_model_is_seen(
    engine: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    found = []
    for page in (PAGE, PrivatePAGE):
        here = engine(clients_data)
        s = after(page(task, server_mix=0.5, **QUICK), here, 5, server_examples())
        found.append([*leaves(s), *(v for c in clients_data for v in leaves(here.keeps.get(c)))])
    pairs = [[torch.as_tensor(v) for v in pair] for pair in zip(*found, strict=True)]
    assert max(float((p - q).abs().max()) for p, q in pairs if p.numel()) < 1e-6


def test_private_collects_two_numbers_of_each_client(task: Task, clients_data: dict[str, ClientData]) -> None:
    method, here = PrivatePAGE(task), Loop(clients_data)
    before = method.start(turn(here, -1, server_examples()))
    talk: Any = method.round(before, turn(here, 0, server_examples()))
    ask = next(talk)
    reply = {"score": torch.tensor(0.5), "f": torch.tensor(1.0)}
    second = talk.send({c: reply for c in ask.to})
    assert ask.learn == "all" and second.learn == "mean"
    assert sum(second.weights.values()) == pytest.approx(1)


class Even(FedAvg):
    """FedAvg whose clients weigh the same."""

    def round(self, w: Any, turn: Turn) -> Any:
        return (yield average(self.train, turn.cohort, send=w, weights=dict.fromkeys(turn.cohort, 1.0)))


@engines
@methods
def test_with_ranges_of_one_value_and_equal_weights_it_is_even_fedavg(
    engine: Any, page: type[PAGE], task: Task, clients_data: dict[str, ClientData]
) -> None:
    method = page(task, lr_min=0.2, lr_max=0.2, epochs_min=3, epochs_max=3, **EQUAL)
    fixed = after(method, engine(clients_data), 4, server_examples())
    assert apart(fixed["w"], after(Even(task, lr=0.2, epochs=3), engine(clients_data), 4)) < 1e-6


@engines
def test_agents_learn_and_engines_agree(engine: Any, task: Task, clients_data: dict[str, ClientData]) -> None:
    here, loop = engine(clients_data), Loop(clients_data)
    s, t = (after(PAGE(task, **QUICK), e, 6, server_examples()) for e in (here, loop))
    assert s["agent"]["learned"] == 4 and here.keeps.get("c03")["agent"]["learned"] == 3
    assert apart(s["w"], t["w"]) < 2e-5


def test_actions_are_random_for_good_where_the_warm_up_never_ends(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    here, method = Loop(clients_data), PAGE(task, **QUICK | {"agent": replace(AGENT, warm_up=10**6)})
    s = after(method, here, 5, server_examples())
    assert s["agent"]["learned"] == 0 and here.keeps.get("c03")["agent"]["learned"] == 0
    assert torch.equal(s["a"], drawn(method.server(24).spec, seed_of(0, 4)))


def test_an_absent_client_weighs_nothing_and_keeps_its_last_accuracy(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    method, here = (
        PAGE(task, **QUICK),
        Faulty(Loop(clients_data), lambda c, number: c == "c04" and number == 1),
    )
    before = after(method, here, 1, server_examples())
    s = play(here, method, before, turn(here, 1, server_examples()))
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
    method = PAGE(task, max_clients=3, **QUICK)
    s = after(method, Loop(few), 2, server_examples())
    assert s["seats"] == {"c00": 0, "c01": 1}
    more = Loop(few | {"b00": clients_data["c02"]})
    s = play(more, method, s, turn(more, 2, server_examples()))
    assert s["seats"] == {"c00": 0, "c01": 1, "b00": 2} and s["s"].shape == (3,)
    full = Loop(few | {"b00": clients_data["c02"], "b01": clients_data["c03"]})
    with pytest.raises(
        MethodUnfit, match="has 3 seats for clients, and there are 4.\nhint: method.max_clients=8"
    ):
        play(full, method, s, turn(full, 3, server_examples()))
    moved = Loop(
        {"c01": clients_data["c01"], "b00": clients_data["c02"], "b01": clients_data["c03"]}
    )  # c00 has left
    assert play(moved, method, s, turn(moved, 3, server_examples()))["seats"]["b01"] == 0


def test_who_has_not_trained_yet_has_the_global_model(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    method, here = PAGE(task, **QUICK), Loop(clients_data)
    s = after(method, here, 1, server_examples())
    data = here.data("c00")
    x = data.x
    assert torch.equal(method.personal(s["w"], method.join(data), data)(x), task.predict(s["w"], x))
    kept = here.keeps.get("c00")
    assert torch.equal(method.personal(s["w"], kept, data)(x), task.predict(kept["w"], x))


@engines
@methods
def test_scores_after_training_are_those_of_the_personal_models(
    engine: Any, page: type[PAGE], task: Task, clients_data: dict[str, ClientData]
) -> None:
    method, here = page(task, **QUICK), engine(clients_data)
    before, now = (
        after(method, here, 2, server_examples()),
        turn(here, 2, server_examples()),
    )
    asks = training(method, before, now)
    s = play(here, method, before, now)
    names, local = here.evaluate_trained(method, asks, now)
    others, scores = here.evaluate(method, s, now, "test")
    own = dict(zip(others, scores["personal"]["loss"], strict=True))
    assert sum(local["test"]["loss"]).item() == pytest.approx(sum(own[c] for c in names).item(), rel=1e-5)


def test_the_server_takes_the_candidate_of_the_largest_reward_and_remembers_all_of_them() -> None:
    method, here = PAGE(one_number(), **RANGE | {"candidates": 6, "stride": 0.2}), Loop(TWO)
    even = after(PAGE(one_number(), **RANGE | EQUAL), Loop(TWO), 1, ONE)
    s = after(method, here, 1, ONE)
    assert s["r"] >= even["r"] and s["r"] >= s["tried"]["r"].max()
    assert len(s["tried"]["r"]) == 5  # six candidates, of which one was chosen
    assert s["tried"]["a"].abs().max() <= 1
    again = after(method, Loop(TWO), 2, ONE)
    assert again["agent"]["stored"] == 6
    rewards = sorted(again["agent"]["memory"][:6, 8].tolist())
    assert rewards == pytest.approx(sorted([s["r"].item(), *s["tried"]["r"].tolist()]), rel=1e-4)


def test_a_candidate_is_a_stride_up_the_slope() -> None:
    # Shares are (a + 1) / sum(a + 1) of two: at a = (0, 0) the first's grows by 1/4 for each unit of a_1.
    def reward(p: torch.Tensor) -> torch.Tensor:
        return 3 * p[0].float()

    server = PAGE(one_number(), **RANGE | {"candidates": 3, "stride": 0.2}).server(2)
    own, last, third = server.search(torch.tensor([-0.5, 0.0]), torch.zeros(2), torch.tensor([0, 1]), reward)
    assert (own[1].item(), last[1].item()) == pytest.approx((1.0, 1.5))
    assert third[0].tolist() == pytest.approx([0.2, -0.2])  # (1, -1) has root mean square 1
    assert third[1].item() == pytest.approx(3 * 1.2 / 2)


def test_private_cannot_compare_candidates(task: Task, clients_data: dict[str, ClientData]) -> None:
    with pytest.raises(MethodUnfit, match="sees no models to compare them with.\nhint: method.candidates=1"):
        after(PrivatePAGE(task, candidates=2), Loop(clients_data), 1, server_examples())


# ---- classes beside the experiments ----


def test_a_budget_bounds_what_a_client_chooses(task: Task, clients_data: dict[str, ClientData]) -> None:
    here = Loop(clients_data)
    method = beside("deadlines:DeadlinePAGE")(task, epochs_max=8, budget=(1, 5, 40))
    after(method, here, 1, server_examples())
    most = {c: int(here.keeps.get(c)["most"]) for c in clients_data}
    assert set(most.values()) == {1, 5, 8}
    assert method.ranges(torch.ones(2), {"most": torch.tensor(5)})[1] == 5


def test_who_misses_the_deadline_is_absent_earns_nothing_and_keeps_its_accuracy() -> None:
    page = beside("deadlines:DeadlinePAGE")
    slow = RANGE | {"speeds": (0.5, 10.0), "deadline": 3.0, "epochs_min": 6}
    # six epochs take 12 units of time at half an epoch a unit, and 0.6 at ten
    method, here = page(one_number(), **slow), Loop(TWO | {c: TWO["a"] for c in "cdef"})
    s = after(method, here, 1, ONE)
    keeps = {c: here.keeps.get(c) for c in here.clients}
    late = {c for c in here.clients if keeps[c]["speed"] == 0.5}
    assert 0 < len(late) < 6
    assert {c for c in here.clients if keeps[c]["r"] == 0} == late
    assert all((s["now"][s["seats"][c]] == 0) == (c in late) for c in here.clients)
    assert method.metrics(s)["effective clients"] <= 6 - len(late) + 1e-5
    none = after(page(one_number(), **slow | {"speeds": (0.5,)}), Loop(TWO), 2, ONE)
    assert none["w"] == one_number().w0  # all are late, and nothing changes


def test_an_agent_learns_to_keep_its_deadline() -> None:
    agent = AgentSettings(
        batch_size=16, actor_lr=0.02, critic_lr=0.05, gamma=0.0, noise_decay=40, warm_up=20, noise_rate=1.0,
        initial_action=0.5, normalise_rewards=True,
    )  # fmt: skip
    how: dict[str, Any] = {"lr_min": 0.01, "lr_max": 0.02, "epochs_max": 20, "batch": 4, "candidates": 1}
    method = beside("deadlines:DeadlinePAGE")(one_number(), deadline=8.0, agent=agent, **how)
    here = Loop(TWO)
    after(method, here, 70, ONE)
    assert not any(method.late(here.keeps.get(c)) for c in "ab")


def test_as_published_actions_are_cut_off_and_remembered_as_they_were_cut() -> None:
    method, here = beside("published:PublishedPAGE")(one_number(), **PUBLISHED), Loop(TWO)
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
    method, here = beside("published:PublishedPAGE")(one_number(), **PUBLISHED), Loop(TWO)
    after(method, here, 40, ONE)
    assert [here.keeps.get(c)["a"].tolist() for c in "ab"] == [pytest.approx([0.1, 6.0])] * 2


def test_as_published_cuts_off_at_the_upper_end_before_the_middle() -> None:
    beside("published:PublishedPAGE")
    cut_off = sys.modules["experiments.page.published"].cut_off
    eta, alpha = cut_off(torch.tensor([0.0, -0.9]), torch.tensor(False), 0.001, 0.1, torch.tensor(20))
    assert (eta.item(), alpha.item()) == (pytest.approx(0.1), 10)


# ---- settings ----


def test_memory_is_as_long_as_the_run(task: Task) -> None:
    recipe = resolve(
        read(None, ["data.name=wine", "method.name=page", "data.server_test=0.2", "data.proxy=0.5"])
    ).recipe
    assert recipe["method"]["agent"]["capacity"] == recipe.train.rounds


def test_a_server_without_examples_is_told_how_to_get_some(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    with pytest.raises(MethodUnfit, match="it has none.\nhint: data.proxy=0.2"):
        after(PAGE(task), Loop(clients_data), 1)
