"""Methods that a privacy budget covers: nothing but private steps sees rows, and all of these are counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.sites import SITES, clients_data, go, method, recipe, turn

from motet.audits.recorded_replies import Recorder
from motet.client import Batch, ClientData, descent
from motet.client.data import PrivateSteps
from motet.client.private_steps import DrawnStep
from motet.core import Ask, MethodUnfit, Tree
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.mean import ReplyMean
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.guard.pairs.chain import Chain, float_leaves
from motet.guard.pairs.client_noise import ClientNoise
from motet.runs.client_privacy import check_one_mean
from motet.runs.example_privacy import check_coverage
from motet.runs.method_asks import check_guards
from motet.runs.recipe import RecipeError, method_class, method_names
from motet.runs.sections import GuardSettings
from motet.vec import leaves

COVERED = [name for name in method_names() if "private_steps" in vars(method_class(name))]


def private(data: dict[str, ClientData], noise: float = 1.0) -> dict[str, ClientData]:
    return {c: replace(d, noise=noise, private=PrivateSteps(0.5)) for c, d in data.items()}


def numbers(tree: Any) -> torch.Tensor:
    return torch.cat([v.flatten().double() for v in leaves(tree)])


def others(data: dict[str, ClientData]) -> dict[str, ClientData]:
    """As many rows with quite other contents, validation and test rows the same."""

    def other(rows: Batch) -> Batch:
        return Batch.of(5 - 3 * rows.x.flip(0), (rows.y + 1) % 3)

    return {c: replace(d, train=other(d.train.take())) for c, d in data.items()}


def test_the_methods_that_people_would_try_are_covered() -> None:
    assert {"fedavg", "fedprox", "fedopt", "scaffold", "mrmtl", "ditto", "fedper", "fedrep", "local"} <= set(
        COVERED
    )
    assert not {
        "fedperc",
        "pfa",
        "fedproto",
        "finetune",
        "knnper",
        "ifca",
        "page",
        "swarm",
        "stacking",
    } & set(COVERED)
    assert "private_steps" in vars(method_class("ditto+fedopt")), "a server around a method sees no rows"


@pytest.mark.parametrize("name", [n for n in method_names() if n not in COVERED])
def test_others_are_refused_with_the_reason(name: str) -> None:
    found = method_class(name)
    with pytest.raises(RecipeError, match=f"of {name} a budget would not cover all: ."):
        check_coverage(object.__new__(found), name)
    assert found.beyond_budget or found.has_public_models, "in words"


@pytest.mark.parametrize("name", COVERED)
def test_without_drawn_rows_nothing_leaves_of_rows_and_all_steps_are_counted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def nobody(rule: Any, seed: Any, n: Any, length: Any, sigma: Any, u: Any) -> Iterator[DrawnStep]:
        many = int(length[1]) or int(length[0]) * -(-int(n) // rule.batch)
        for step in range(many):
            taken.append(int(n))
            yield DrawnStep(
                step, torch.zeros(0, dtype=torch.long), torch.zeros(sum(a.numel() for a in u.values()))
            )

    monkeypatch.setattr(descent, "private_batches", nobody)
    trained, found = method(recipe(name)), list[Any]()
    for data in (clients_data(), others(clients_data())):
        engine = Loop(private(data))
        state = go(trained, engine, last=2)
        kept = [engine.keeps.get(c, 2) for c in SITES]
        found.append(
            [torch.as_tensor(v).double() for v in leaves((state, kept)) if not isinstance(v, str | bytes)]
        )
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)), (
        "rows were seen outside of private steps"
    )
    expected = [n for n in (11, 17, 23) for _ in range(trained.private_steps(n))]
    in_first_round = [n for n in expected if n != 23]  # of the first two sites
    assert sorted(taken) == sorted(2 * (in_first_round + expected))


@pytest.mark.parametrize("name", [n for n in COVERED if n != "centralised"])
def test_one_row_moves_what_a_client_sends_and_keeps_by_cut_gradients_alone(name: str) -> None:
    """In a round with one step of each training, all rows drawn: by a cut gradient over the number of rows, once or
    twice. A row that is not finite counts as none."""
    length, n = 0.01, 17
    held = recipe(name)
    held["method"] |= {"batch": 64, "lr": 1.0} | (
        {"head_epochs": 1} if "head_epochs" in held["method"] else {}
    )
    trained, found = method(held), []
    for gone in (None, 0, 5):
        data = {c: replace(d, noise=1e-9, private=PrivateSteps(length)) for c, d in clients_data().items()}
        if gone is not None:
            rows = data["b"].train.take()
            x = rows.x.clone()
            x[gone] = torch.nan
            data["b"] = replace(data["b"], train=Batch.of(x, rows.y))
        loop = Loop(data)
        engine = Recorder(loop, loop)
        play(engine, trained, start(engine, trained, turn(-1)), turn(0))
        found.append(numbers((engine.asks[-1].replies["b"], loop.keeps.get("b", 0) or torch.zeros(1))))
    for fewer in found[1:]:
        moved = float((found[0] - fewer).norm())
        assert 0 < moved <= 2 * trained.private_steps(n) * length / n


@pytest.mark.parametrize("name", ["fedavg", "mrmtl", "ditto", "scaffold"])
def test_engines_agree_on_private_training(name: str) -> None:
    trained, data = method(recipe(name)), private(clients_data())
    loop, threads, stacked = (
        numbers(go(trained, engine, last=2)) for engine in (Loop(data), Threads(data), Vmap(data, chunk=2))
    )
    assert torch.equal(loop, threads) and torch.allclose(loop, stacked, atol=1e-5)


@pytest.mark.long  # a minute for inductor
def test_compiled_private_steps_agree() -> None:
    trained, data = method(recipe("fedavg")), private(clients_data())
    loop, compiled = (
        numbers(go(trained, engine, last=1)) for engine in (Loop(data), Vmap(data, chunk=3, compiled=True))
    )
    assert torch.allclose(loop, compiled, atol=1e-5)


def test_two_trainings_of_a_round_have_noise_of_their_own() -> None:
    trained, data = method(recipe("ditto")), private(clients_data(), noise=50.0)
    engine = Loop(data)
    state = go(trained, engine, last=1)  # the mean of two sites' models
    w, v = (torch.cat([t.flatten() for t in leaves(x)]) for x in (state, engine.keeps.get("a", 1)))
    assert float(torch.corrcoef(torch.stack([w, v]))[0, 1]) < 0.9


# ---- whole clients ----


class MeansOf(Loop):
    """A loop that remembers what the server has of each mean."""

    def __init__(self, data: dict[str, ClientData], clip: float) -> None:
        super().__init__(data)
        self.private = ClientNoise(clip, 1e-9, len(data))
        self.chain, self.means = Chain((self.private,)), list[torch.Tensor]()

    def folded(self, ask: Ask, fold: ReplyMean) -> Tree:
        mean = super().folded(ask, fold)
        self.means.append(torch.cat([v.double().flatten() for v in float_leaves(mean)[0]]))
        return mean


def allowed(name: str) -> bool:
    if name in ("centralised", "local", "stacking"):
        return False
    try:
        made = method(recipe(name))
        check_one_mean(made, name, "fixed")
        check_guards(made, GuardSettings(clip=1.0))
    except (RecipeError, MethodUnfit):
        return False
    return True


@pytest.mark.parametrize(
    "name", [n for n in (*method_names(), "ditto+fedopt", "scaffold+dapfl") if allowed(n)]
)
def test_one_client_moves_a_mean_by_twice_the_clip_over_their_number_at_most(name: str) -> None:
    """Whatever its rows and whatever it keeps of earlier rounds, in which the server sent the same."""
    clip, trained, mine = 0.05, method(recipe(name)), clients_data()
    theirs = mine | {"b": others(mine)["b"]}
    engines = [MeansOf(data, clip) for data in (mine, theirs)]
    states = [start(engine, trained, turn(-1)) for engine in engines]
    for number in range(3):
        now = replace(turn(number), cohort=SITES)
        states = [play(engine, trained, states[0], now) for engine in engines]
        one, other = (engine.means[number] for engine in engines)
        assert 0 < float((one - other).norm()) <= 2 * clip / 3 * (1 + 1e-4)
