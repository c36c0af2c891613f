"""PAGE's game around other methods, the length of the server's step, and what is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from motet.client import Batch, ClientData, Task, seed_of
from motet.client.descent import unrolled
from motet.core import MethodUnfit
from motet.engines.driver import play
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.methods.fedavg import FedAvg
from motet.methods.feddyn import FedDyn
from motet.methods.page import PAGE
from motet.methods.scaffold import Scaffold
from motet.parts import agents
from motet.parts.agents import AgentSettings
from motet.runs import experiment as experiments
from motet.runs.build import resolve
from motet.runs.find_methods import method_names
from motet.runs.recipe import RecipeError, method_class, read
from motet.trusted_code import trust_names
from motet.vec import leaves
from rounds import TWO, after, apart, client_data, one_number, server_examples, turn

ONE = Batch.of(torch.tensor([[1.0]]), torch.tensor([1.0]))  # the server's example (1, 1): loss (w - 1)^2
FIXED: dict[str, Any] = {"lr_min": 0.05, "lr_max": 0.05, "epochs_min": 2, "epochs_max": 2, "batch": 4}
STILL: dict[str, Any] = {
    "candidates": 1,
    "floor": 1.0,
    "player": "constant",
    "step_max": 1.0,
    "step_rule": "search",
}
engines = pytest.mark.parametrize("engine", [Loop, Vmap])


def around(name: str, **how: Any) -> Any:
    return method_class(f"{name}+page")(one_number(), **how)


# ---- the length of the step ----


def trained() -> tuple[float, float]:
    """w_a and w_b of round 0: two epochs lead a from 1 to 3 - 2 * 0.9^2 and b to 0.6^2."""
    return 3 - 2 * 0.9**2, 0.6**2


def test_the_server_goes_from_its_model_through_the_mean_as_far_as_pays() -> None:
    # From 1 to the mean of 1.38 and 0.36, which is 0.87; the server's example (1, 0.5) is best served at 0.5.
    half = Batch.of(torch.tensor([[1.0]]), torch.tensor([0.5]))
    s = after(PAGE(one_number(), **FIXED | STILL | {"step_max": 8.0}), Loop(TWO), 1, half)
    mean = sum(trained()) / 2
    lengths = [8 ** (k / 7) for k in range(8)]
    best = min(lengths, key=lambda k: abs(1 + k * (mean - 1) - 0.5))
    assert best > 2
    assert s["step"][0].item() == pytest.approx(best)
    assert s["w"]["weight"].item() == pytest.approx(1 + best * (mean - 1), rel=1e-5)


def test_the_server_does_not_go_further_than_the_mean_where_that_costs() -> None:
    s = after(PAGE(one_number(), **FIXED | STILL | {"step_max": 8.0}), Loop(TWO), 1, ONE)  # 1 is best
    assert s["step"][0] == 1 and s["w"]["weight"].item() == pytest.approx(sum(trained()) / 2, rel=1e-5)


def test_fedexps_length_is_the_mean_of_two_rounds_and_bounded() -> None:
    method = PAGE(one_number(), **FIXED | STILL | {"step_max": 3.0, "step_rule": "fedexp"})
    a, b = (w - 1 for w in trained())
    now = max(1.0, (a**2 + b**2) / (4 * (((a + b) / 2) ** 2 + 0.001)))
    assert now > 3  # the two clients pull apart
    s = after(method, Loop(TWO), 1, ONE)
    assert s["step"].tolist() == pytest.approx([(1 + now) / 2 if now < 5 else 3.0, 3.0])
    assert s["w"]["weight"].item() == pytest.approx(1 + s["step"][0].item() * (a + b) / 2, rel=1e-5)
    far = after(replace(method, step_max=100.0), Loop(TWO), 1, ONE)
    assert far["step"].tolist() == pytest.approx([(1 + now) / 2, now], rel=1e-4)


def test_candidates_are_scored_as_the_agents_own_proposal_is_on_the_same_rows_at_the_same_length() -> None:
    how = FIXED | {"epochs_max": 6, "candidates": 5, "floor": 0.1, "step_max": 4.0}
    method, here = PAGE(one_number(), **how), Loop(TWO)
    before = after(method, here, 2, ONE)
    s = play(here, method, before, turn(here, 2, ONE))
    models = torch.stack([here.keeps.get(c)["w"]["weight"].flatten() for c in "ab"]).flatten().double()
    server, at = method.server(4), torch.tensor([0, 1])

    def earned(action: torch.Tensor, length: float) -> float:
        w0 = before["w"]["weight"].item()
        w = w0 + length * (float(server.weights(action, at) @ models) - w0)
        return 1 / (0.01 + (w - 1) ** 2)

    last, chosen = before["step"][0].item(), earned(s["a"], s["step"][0].item())
    assert s["r"].item() == pytest.approx(chosen, rel=1e-4)
    assert len(s["tried"]["r"]) == 4
    for action, r in zip(s["tried"]["a"], s["tried"]["r"].tolist(), strict=True):
        # as far below the chosen one as it was where all of them went equally far
        assert r - chosen == pytest.approx(earned(action, last) - earned(s["a"], last), rel=1e-2, abs=1e-3)
        assert r <= s["r"] + 1e-4


# ---- around other methods ----


@engines
@pytest.mark.parametrize(("name", "method"), [("fedavg", FedAvg), ("feddyn", FedDyn), ("scaffold", Scaffold)])
def test_with_one_choice_and_equal_weights_it_is_the_method_inside(
    engine: Any, name: str, method: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    same = {
        c: ClientData(*(part.take() for part in (h.train, h.val, h.test))) for c, h in clients_data.items()
    }
    least = min(h.n for h in same.values())
    even = {c: ClientData(cut(h.train, least), h.val, h.test) for c, h in same.items()}  # FedAvg goes by rows
    game = method_class(f"{name}+page")(task, **FIXED | STILL)
    here, plain = engine(even), engine(even)
    found = after(game, here, 4, server_examples())
    expected = after(method(task, lr=0.05, epochs=2, batch=4), plain, 4)
    inner = found["inner"]
    assert (
        max(float((a - b).abs().max()) for a, b in zip(leaves(inner), leaves(expected), strict=True)) < 1e-5
    )
    assert apart(found["w"], game.inner.global_model(inner)) == 0
    kept = (
        [leaves(here.keeps.get(c)["inner"]) for c in even],
        [leaves(plain.keeps.get(c) or ()) for c in even],
    )
    assert all(
        torch.allclose(a, b, atol=1e-5) for p, q in zip(*kept, strict=True) for a, b in zip(p, q, strict=True)
    )


def cut(batch: Any, rows: int) -> Batch:
    return Batch.of(batch.x[:rows], batch.y[:rows])


@engines
def test_around_fedavg_it_is_page(engine: Any, task: Task, clients_data: dict[str, ClientData]) -> None:
    quick = AgentSettings(gamma=0.0, noise_rate=1.0, noise_decay=20, warm_up=2, batch_size=2)
    how: dict[str, Any] = {
        "agent": quick,
        "player": "ddpg",
        "step_max": 1.0,
        "lr_scale": "linear",
        "epochs_max": 4,
    }
    how |= {"floor": 0.25, "candidates": 3}
    plain, found = (
        after(m(task, **how), engine(clients_data), 5, server_examples())
        for m in (PAGE, method_class("fedavg+page"))
    )
    assert apart(plain["w"], found["w"]) == 0 and torch.equal(plain["a"], found["a"])
    assert plain["agent"]["learned"] > 0


def test_a_step_beyond_the_mean_moves_the_model_of_the_method_inside_and_nothing_else() -> None:
    half = Batch.of(torch.tensor([[1.0]]), torch.tensor([0.5]))
    found = [
        after(around("scaffold", **FIXED | STILL | {"step_max": most}), Loop(TWO), 1, half)
        for most in (1.0, 8.0)
    ]
    short, far = (s["inner"]["x"]["weight"].item() for s in found)
    assert far - 1 == pytest.approx(found[1]["step"][0].item() * (short - 1), rel=1e-4)
    assert far == found[1]["w"]["weight"].item()
    assert torch.equal(found[0]["inner"]["c"]["weight"], found[1]["inner"]["c"]["weight"])


def test_scaffolds_client_divides_by_the_steps_and_the_rate_that_it_chose() -> None:
    # Without a correction in round 0, c_i is the mean slope on the way: (1 - w_i) / (epochs * rate).
    method, here = (
        around("scaffold", **FIXED | STILL | {"epochs_min": 3, "epochs_max": 3, "lr_max": 0.05}),
        Loop(TWO),
    )
    after(method, here, 1, ONE)
    for client in "ab":
        kept = here.keeps.get(client)
        expected = (1 - kept["w"]["weight"].item()) / (3 * 0.05)
        assert kept["inner"]["weight"].item() == pytest.approx(expected, rel=1e-4)


def test_training_steps_are_recorded_once_for_all_rounds(
    clients_data: dict[str, ClientData], task: Task
) -> None:
    method, here = method_class("feddyn+page")(task, epochs_max=2), Vmap(clients_data)
    after(method, here, 1, server_examples())
    recorded = unrolled.cache_info().misses
    after(method, here, 3, server_examples())
    assert unrolled.cache_info().misses == recorded


def test_clients_choose_their_rates_on_a_scale_of_ratios() -> None:
    method = PAGE(one_number(), lr_min=0.001, lr_max=0.1, lr_scale="log")
    rates = [method.ranges(torch.full((2,), a), {})[0].item() for a in (-1.0, 0.0, 1.0)]
    assert rates == pytest.approx([0.001, 0.01, 0.1])


UNFIT = r"\nhint: method=fedavg\+page, fedprox\+page, scaffold\+page or feddyn\+page"


@pytest.mark.parametrize("name", ["dapfl", "page", "stacking", "swarm", "fedperc", "pfa"])
def test_a_method_whose_clients_have_no_rate_to_choose_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match=UNFIT):
        read(words=[f"method={name}+page"])


@pytest.mark.parametrize(
    "name", ["fedper", "local", "fedrod", "finetune", "ditto", "fedala", "pfedme", "fedrecon", "grouptune"]
)
def test_a_method_with_a_personal_model_of_its_own_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match=UNFIT):
        read(words=[f"method={name}+page"])


@pytest.mark.parametrize("name", ["fedopt", "fedprox+fedopt", "fedavg+page"])
def test_a_method_whose_server_keeps_more_than_the_game_shows_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match=UNFIT):
        read(words=[f"method={name}+page"])


class ShadowsInner(FedAvg):
    """A setting of the name of a part of the game."""

    inner: int = 5


def test_a_setting_with_the_name_of_a_part_of_the_game_is_refused() -> None:
    with pytest.raises(MethodUnfit, match=r"ShadowsInner and PAGE both have inner\.\nhint: "):
        PAGE.around(ShadowsInner)


class Headless(FedAvg):
    """A server that shows no global model."""

    def global_model(self, state: Any) -> None:
        return None


def test_a_method_without_a_whole_global_model_is_refused(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    with pytest.raises(MethodUnfit, match="no whole global model that a game could score"):
        after(PAGE.around(Headless)(task), Loop(clients_data), 1, server_examples())


@pytest.mark.parametrize("name", method_names())
def test_around_every_method_it_is_refused_with_words_or_goes_by_all_settings(
    name: str, task: Task, clients_data: dict[str, ClientData]
) -> None:
    try:
        game = method_class(f"{name}+page")
    except RecipeError as error:
        assert "\nhint: " in str(error)
        return
    own = {f.name for f in fields(method_class(name))} - {f.name for f in fields(FedAvg)}
    words = {k: 2 * getattr(game, k) for k in own} | {"batch": 2, "decay": 0.1, "clip": 0.01, "lr_max": 0.2}

    def ends_at(**how: Any) -> Any:
        return after(game(task, epochs_max=2, **how), Loop(clients_data), 2, server_examples())["w"]

    usual = ends_at()
    assert [k for k, v in words.items() if apart(usual, ends_at(**{k: v})) == 0] == []


def test_settings_of_the_method_inside_that_clients_choose_are_none_of_the_games() -> None:
    made = read(words=["method=feddyn+page", "method.alpha=0.1", "method.lr_max=0.2"])
    assert (made["method"]["alpha"], made["method"]["lr_max"]) == (0.1, 0.2)
    for word in ("lr=0.1", "epochs=5", "steps=3"):
        with pytest.raises(RecipeError, match="unknown setting"):
            read(words=["method=feddyn+page", f"method.{word}"])


# ---- what has no effect is refused ----


def refused(*words: str) -> str:
    data = ["data.name=wine", "data.clients=4", "data.server_test=0.2", "data.proxy=0.5"]
    with pytest.raises(MethodUnfit) as error:
        resolve(read(None, [*data, *words]))
    return str(error.value)


def test_what_a_mode_does_not_go_by_is_refused_all_at_once() -> None:
    experiments.find("page/table1-synthetic")
    name = "experiments.page.published:PublishedPAGE"
    trust_names([name.partition(":")[0]])
    said = refused(f"method.name={name}", "method.candidates=4", "method.floor=0.5", "method.epochs_min=3")
    assert all(f"method.{k} is" in said for k in ("candidates", "floor", "epochs_min"))
    assert said.endswith("method.candidates=1 method.floor=0.0 method.epochs_min=1")


def test_settings_of_networks_are_refused_where_no_networks_play() -> None:
    said = refused(
        "method.name=page", "method.player=bandit", "method.agent.gamma=0.5", "method.agent.tau=0.1"
    )
    assert "method.agent.gamma is 0.5 and has no effect: the player bandit does not go by it" in said
    assert "method.agent.tau" in said


def test_a_scale_is_refused_where_rewards_are_normalised_and_nothing_is_mixed() -> None:
    assert "method.client_scale is 10.0" in refused("method.name=page", "method.client_scale=10")
    assert "method.stride" in refused("method.name=page", "method.candidates=1", "method.stride=0.3")
    assert "method.candidates is 3" in refused("method.name=page", "method.floor=1", "method.candidates=3")


def test_a_reward_that_no_length_changes_is_refused_where_lengths_are_searched() -> None:
    page = ["method.name=page", "method.reward=paper", "method.step_max=8"]
    assert "method.reward is 'paper' and has no effect" in refused(*page)


def test_proxy_rows_are_refused_where_no_agent_sees_scores() -> None:
    said = refused("method.name=page", "method.player=bandit", "method.proxy_rows=3")
    assert "method.proxy_rows is 3 and has no effect: with the player bandit" in said


# ---- mistakes that tests must find ----


def test_clients_are_rewarded_and_judged_by_validation_rows() -> None:
    """The one validation row (1, 0) is another than the training row (1, 3)."""
    rows, other = client_data((1.0, 3.0)).train, client_data((1.0, 0.0)).val
    here = Loop({"a": ClientData(rows, other, rows)})
    after(PAGE(one_number(), **FIXED | STILL), here, 1, ONE)
    kept = here.keeps.get("a")
    w = trained()[0]
    assert kept["w"]["weight"].item() == pytest.approx(w, rel=1e-5)
    assert kept["r"].item() == pytest.approx(1 / (0.01 + w**2), rel=1e-4)
    assert kept["now"].item() == pytest.approx(1 / (1 + w**2), rel=1e-4)


@engines
def test_a_client_remembers_the_state_in_which_it_acted_and_the_one_that_followed(engine: Any) -> None:
    how = FIXED | {"epochs_max": 6, "lr_max": 0.1, "candidates": 1, "floor": 1.0}
    agent = AgentSettings(gamma=0.0, noise_rate=1.0, noise_decay=200)
    method = PAGE(one_number(), agent=agent, **how)
    seen = []
    for rounds in (1, 2, 3):
        here = engine(TWO)
        after(method, here, rounds, ONE)
        seen.append(here.keeps.get("b"))
    state, action, reward, then = seen[2]["agent"]["memory"][0].split([1, 2, 1, 1])
    # acted in round 1 on what round 0 left, and round 1 led to what round 2 acts on
    assert state.item() == seen[0]["now"].item() == seen[1]["s"].item()
    assert then.item() == seen[1]["now"].item() != state.item()
    assert torch.equal(action, seen[1]["a"]) and reward.item() == seen[1]["r"].item()


def test_pages_noise_has_faded_when_its_rounds_are_over() -> None:
    method = PAGE(one_number(), epochs_max=3)
    spec = method.leader()
    assert 0 < spec.noise_decay <= 300 and spec.sigma > 0
    agent = agents.initial(spec, 1)
    now, gaps = torch.full((1,), 0.5), []
    for acted in (0, spec.noise_decay // 2, spec.noise_decay):
        a, _ = agents.act(
            agent | {"acted": torch.tensor(acted)}, now, seed_of(0, 1), replace(spec, initial_action=0.0)
        )
        gaps.append((a - agents.policy(agent["actor"]["now"], now, spec)).abs().max().item())
    assert gaps[0] > gaps[1] > gaps[2] == 0
