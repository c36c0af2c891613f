"""Which methods can be put around which: the table of docs/guides/methods.md, over all pairs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conftest import twelve_clients
from motet.client import Batch, ClientData, Task
from motet.core import MethodUnfit, Turn
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.runs.recipe import RecipeError, method_class, method_names
from motet.vec import leaves

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "methods.md"
OUTER = ("fedopt", "page", "dapfl", "ifca", "cfl", "fedperc")


@cache
def clients() -> dict[str, ClientData]:
    return dict(list(twelve_clients().items())[:4])


@cache
def task() -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        batch = next(iter(clients().values())).train.take()
        net = nn.Sequential(nn.Linear(batch.shape[0], 4), nn.ReLU(), nn.Linear(4, 3))
    return Task(net, "classes", 3)


def turn(number: int) -> Turn:
    return Turn(number, sorted(clients()), sorted(clients()), seed=number + 1, proxy=proxy())


@cache
def proxy() -> Batch:
    return next(iter(clients().values())).val.take()


def fits(inner: str, outer: str) -> bool:
    """Whether a run of the pair begins, takes two rounds, is scored and meets newcomers; a refusal must say why and
    give a hint."""
    try:
        method = method_class(f"{inner}+{outer}")(task())
        method.check()
        here = Loop(clients())
        state = start(here, method, turn(-1))
        for number in range(2):
            state = play(here, method, state, turn(number))
        here.evaluate(method, state, turn(1), "test")
        play(here, method.for_visit(), state, turn(2))
    except (MethodUnfit, RecipeError) as e:
        assert "hint: " in str(e), f"{inner}+{outer}: {e}"
        return False
    return True


def said(outer: str) -> set[str]:
    """The methods that the guide's table has for `+outer`."""
    row = next(line for line in GUIDE.read_text().splitlines() if line.startswith(f"| `+{outer}` |"))
    return {name.strip(" `") for name in row.split("|")[3].split(",")}


@pytest.mark.parametrize("outer", OUTER)
def test_the_guide_says_what_fits_around_what(outer: str) -> None:
    inside = [m for m in method_names() if m not in ("stacking", "swarm")]
    found = {m for m in inside if fits(m, outer)}
    assert found == said(outer), f"| `+{outer}` | … | {', '.join(f'`{m}`' for m in sorted(found))} |"


@pytest.mark.parametrize("outer", ["stacking", "swarm", "ditto", "fedper"])
def test_other_methods_go_around_nothing(outer: str) -> None:
    with pytest.raises(RecipeError, match=f"(?s){outer} cannot be put around fedavg.*hint: "):
        method_class(f"fedavg+{outer}")


@pytest.mark.parametrize(
    "name", ["fedper+ifca", "fedper+cfl", "ditto+ifca", "knnper+ifca", "fedper+fedperc", "ditto+fedperc"]
)
def test_groups_of_a_method_agree_on_engines(name: str) -> None:
    method, states = method_class(name)(task()), []
    for engine in (Loop, Vmap):
        here: Any = engine(clients())
        state = start(here, method, turn(-1))
        for number in range(2):
            state = play(here, method, state, turn(number))
        states.append(state)
    assert states[0]["groups"] == states[1]["groups"] and set(states[0]["groups"]) == set(clients())
    for a, b in zip(*(leaves(s["models"]) for s in states), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_one_group_of_a_method_is_the_method() -> None:
    plain, grouped = method_class("fedper")(task()), method_class("fedper+ifca")(task(), k=1)
    here, there = Loop(clients()), Loop(clients())
    w, s = start(here, plain, turn(-1)), start(there, grouped, turn(-1))
    for number in range(2):
        w, s = play(here, plain, w, turn(number)), play(there, grouped, s, turn(number))
    assert all(torch.equal(a, s["models"][0][k]) for k, a in w.items())
    assert "head" not in str(s["models"][0].keys()) and set(w) == set(task().body)


def test_cfl_around_fedavg_is_cfl() -> None:
    plain, around = method_class("cfl")(task(), first=0), method_class("fedavg+cfl")(task(), first=0)
    states = []
    for method in (plain, around):
        here = Loop(clients())
        s = start(here, method, turn(-1))
        for number in range(2):
            s = play(here, method, s, turn(number))
        states.append(s)
    assert states[0]["groups"] == states[1]["groups"]
    assert all(map(torch.equal, *(leaves(s["models"]) for s in states)))


def played(name: str, rounds: int = 3, **how: Any) -> tuple[Any, Any, Any]:
    """The method, its state and its engine after some rounds."""
    method, here = method_class(name)(task(), **how), Loop(clients())
    s = start(here, method, turn(-1))
    for number in range(rounds):
        s = play(here, method, s, turn(number))
    return method, s, here


def used(method: Any, s: Any, here: Any) -> list[Any]:
    """All clients' personal models."""
    found = dict(here.personal_models(method, s, turn(2)))
    return [v for c in sorted(found) for v in leaves(found[c])]


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.mark.parametrize(("combined", "named"), [("fedper+fedperc", "fedperc"), ("fedavg+fedperc", "pfa")])
def test_the_grouping_around_what_papers_put_inside_is_the_paper(combined: str, named: str) -> None:
    for rounds in (1, 3):  # in the warm-up, and in two groups
        found, expected = (played(name, rounds, k=2) for name in (combined, named))
        assert same(leaves(found[1]["models"]), leaves(expected[1]["models"]))
        assert found[1]["groups"] == expected[1]["groups"]
        models = [[v for v in used(*p) if v.numel() > 1] for p in (found, expected)]
        assert same(*models)


@pytest.mark.parametrize("name", ["fedper", "fedprox", "ditto", "apfl", "fedrep"])
def test_one_group_without_a_warm_up_is_the_method_inside(name: str) -> None:
    grouped = played(f"{name}+fedperc", warm_up=0, grouping="none")
    plain = played(name)
    assert same(leaves(grouped[1]["models"]), leaves(plain[1])) and same(used(*grouped), used(*plain))


def test_what_a_client_has_not_trained_starts_from_the_model_of_the_warm_up() -> None:
    method, s, here = played("ditto+fedperc", rounds=1, k=2)
    assert same(used(method, s, here), [v for _ in clients() for v in s["W_g"].values()])


def test_trials_of_numbers_of_groups_are_refused_around_another_method() -> None:
    with pytest.raises(MethodUnfit, match=r"method.choose_k is trials.*\nhint: "):
        method_class("fedper+fedperc")(task(), k=0, choose_k="trials").check()


@pytest.mark.parametrize("name", ["fedper+dapfl+fedopt", "fedper+dapfl+ifca"])
def test_parts_can_be_named_one_after_another(name: str) -> None:
    method, s, here = played(name)
    assert len(used(method, s, here)) == len(clients()) * len(task().w0)


def test_dapfls_agents_around_fedavg_are_dapfl() -> None:
    found, expected = (played(name, 4) for name in ("fedavg+dapfl", "dapfl"))
    assert same(leaves(found[1]), leaves(expected[1]))
    agents = [leaves(found[2].keeps.get(c)["me"]) for c in clients()]
    assert all(same(a, leaves(expected[2].keeps.get(c))) for a, c in zip(agents, clients(), strict=True))


@pytest.mark.parametrize("name", ["fedprox", "scaffold", "feddyn", "fedper", "ditto", "fedopt"])
def test_agents_with_one_choice_are_the_method_inside(name: str) -> None:
    agents = played(f"{name}+dapfl", lr_min=0.05, lr_max=0.05, epochs_max=1)
    plain = played(name, lr=0.05, epochs=1)
    assert same(leaves(agents[1]), leaves(plain[1])) and same(used(*agents), used(*plain))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("fedproto+dapfl", "agents need clients that train as FedAvg's do and do nothing else"),
        ("pfedme+dapfl", "its learning rate is not that of steps on the task's loss"),
        ("finetune+dapfl", "epochs_at_evaluation of its own"),
        ("page+dapfl", "agents need clients"),
        ("feddbe+fedperc", "groups need clients that train as FedAvg's do and do nothing else"),
        ("ifca+fedperc", "IFCA and FedPerC both have k"),
    ],
)
def test_senseless_pairs_are_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(RecipeError, match=f"(?s){why}.*hint: "):
        method_class(name)
