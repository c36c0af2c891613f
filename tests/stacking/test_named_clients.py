"""Who publishes nonsense, a copy, or nothing of use is named; an honest client with few rows is not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

pytest.importorskip("onnxruntime")

from motet.client import Batch, ClientData, Task
from motet.engines.loop import Loop
from motet.methods.stacking import Stacking
from motet.published import Published
from motet.published.public_choice import PublicChoice
from motet.stacking import contribution
from motet.stacking.catalogue import reasons, seen
from motet.stacking.public_models import public_models
from motet.stacking.stack import StackRows
from rounds import after

HONEST, SMALL = ("a", "b", "c", "d"), "small"
ROWS = {"a": 600, "b": 500, "c": 400, "d": 500, "small": 40, "copier": 400, "shuffler": 500, "rider": 400}


def federation(seed: int) -> dict[str, ClientData]:
    """Two classes by five noisy columns, and clients whose mixtures differ; `shuffler` learns from shuffled labels."""
    g = torch.Generator().manual_seed(seed)

    def rows(many: int, shift: float) -> Batch:
        x = torch.randn(many, 5, generator=g)
        z = x[:, 0] + 0.7 * x[:, 1] - 0.5 * x[:, 2] * x[:, 3] + shift
        return Batch.of(x, (z + 0.8 * torch.randn(many, generator=g) > 0).long())

    made = {}
    for k, (name, many) in enumerate(ROWS.items()):
        shift = 0.4 * ((k % 3) - 1)
        made[name] = ClientData(rows(many, shift), rows(max(many // 4, 12), shift), rows(40, shift))
    h = made["shuffler"].train.take()
    order = torch.randperm(len(h.y), generator=g)
    made["shuffler"] = replace(made["shuffler"], train=Batch.of(h.x, h.y[order]))
    return made


class Cheated(Loop):
    """`copier` publishes what `a` published, `rider` a model that answers the same for all rows."""

    def perform(self, verb: Any, client: str, sent: Any, keep: Any, data: Any) -> Any:
        reply, kept = super().perform(verb, client, sent, keep, data)
        if getattr(verb, "__name__", "") != "publish":
            return reply, kept
        if client == "a":
            self.copied = reply
        return {"copier": self.copied, "rider": [constant().tree()]}.get(client, reply), kept


@cache
def constant() -> Published:
    rows = StackRows(
        torch.zeros(20, 5).numpy(), torch.arange(20).numpy() % 2, dict.fromkeys(_NAMES, "number"), ("0", "1")
    )
    return public_models(PublicChoice("forest", trees=1), rows, 0, secret=False)[0]


_NAMES = [f"x{k}" for k in range(5)]


@cache
def summary(seed: int) -> dict[str, Any]:
    method = Stacking(Task(torch.nn.Linear(5, 2), "classes", 2), trees=20)
    return method.summary(after(method, Cheated(federation(seed)), 1))


def check(seed: int) -> None:
    named = summary(seed)["named"]
    kinds = {c: why.partition(":")[0] for c, why in named.items()}
    assert kinds == {
        "shuffler": "nonsense",
        "a": "duplicate",
        "copier": "duplicate",
        "rider": "free rider",
    }, named


@pytest.mark.parametrize("seed", [0, 1])
def test_cheats_are_named_and_a_small_honest_client_is_not(seed: int) -> None:
    check(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_cheats_are_named_on_ten_of_ten_seeds_and_honest_clients_on_none(seed: int) -> None:
    check(seed)


def test_contributions_on_validation_rows_put_nonsense_below_half_of_an_equal_part() -> None:
    given = contribution.in_strength(summary(0)["trust"])
    assert given["shuffler"] * len(given) < 0.5 and given["rider"] * len(given) < 0.2
    assert min(given[c] for c in HONEST) > given["shuffler"]


def test_the_summary_has_the_graph_its_centralities_and_its_history() -> None:
    found = summary(0)
    assert set(found["centralities"]) == {"in_strength", "pagerank", "authority", "hub", "betweenness"}
    assert found["history"] == [contribution.in_strength(found["trust"])]
    assert set(found["self_importance"]) == set(ROWS)


def test_who_publishes_nothing_is_named_at_once() -> None:
    state = {"trust": {"a": {"a": 1.0}}, "history": [], "refused": {}, "catalogue": {"a": [1], "b": []}}
    assert contribution.named(state) == {"b": "free rider: it publishes nothing"}


# One client lies.

EVERYONE = ("a", "b", "c", "d", "e", "liar")


def honest(me: str, of_liar: float = 0.5) -> dict[str, Any]:
    skill = {c: 0.9 for c in EVERYONE if c not in (me, "liar")} | {"private": 0.9, "liar": of_liar}
    return {
        "trust": {},
        "refused": {},
        "skill": skill if me != "liar" else skill | {"liar": 0.0},
        "alike": [],
    }


def named_if(lie: dict[str, Any], of_liar: float = 0.5) -> dict[str, str]:
    """Who is named after the liar's reply has this in it; the liar publishes a constant."""
    replies = {c: honest(c, of_liar) for c in EVERYONE}
    own = replies["liar"]
    replies["liar"] = own | lie | {"skill": own["skill"] | lie.get("skill", {})}
    served = {c: [o for o in EVERYONE if o != c] for c in EVERYONE}
    state = {"catalogue": dict.fromkeys(EVERYONE, [1]), "seen": seen({}, replies, served)}
    return contribution.named(state)


@pytest.mark.parametrize("of_liar", [0.5, 0.51])
def test_nobody_vouches_for_itself(of_liar: float) -> None:
    expected = "free rider" if of_liar == 0.5 else "nonsense"
    for lie in ({}, {"skill": {"liar": 1.0}}):
        (who, why), *rest = named_if(lie, of_liar).items()
        assert who == "liar" and why.startswith(expected) and not rest


@pytest.mark.parametrize("pairs", [[["a", "ghost"]], [["a", "b"]] * 10, [["a", "a"]], [["a", "liar"]]])
def test_one_client_alone_names_no_honest_one_as_a_duplicate(pairs: list[list[str]]) -> None:
    assert set(named_if({"alike": pairs})) == {"liar"}


def test_where_one_client_alone_was_served_both_its_name_is_said() -> None:
    replies = {"c": honest("c") | {"alike": [["b", "a"]]}, "a": honest("a"), "b": honest("b")}
    served = {"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"]}
    state = {"catalogue": dict.fromkeys("abc", [1]), "seen": seen({}, replies, served)}
    assert contribution.named(state)["a"] == "duplicate: its model answers as b's, as c alone says"


def test_a_refusal_says_who_reported_it_and_counts_only_for_served_models() -> None:
    said = {"b": "client b: a virus \x1b[31m", "ghost": "no model", "c": "itself"}
    found = reasons({"c": {"refused": said}}, {"c": ["a", "b"]})
    assert set(found) == {"b"} and found["b"].endswith("(reported by c)") and "\x1b" not in found["b"]
