"""What a site lets a method measure: the estimate at the offer is never below what the ledger then counts, and weights
that the policy forbids are known before anything is spent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sites
from motet.deploy.agreement.refusals import explained
from motet.deploy.site.contract import numbers_sent
from motet.deploy.site.needs import needs_of
from motet.deploy.site.policy import Policy
from motet.deploy.site.storage import site_key
from motet.engines.flare import Flare
from motet.engines.letters import Letter, Reply

CASES: list[tuple[str, dict[str, Any]]] = [
    ("swarm", {"particles": 5, "stretch": 3, "bound": 30.0}),
    ("swarm", {"particles": 4, "stretch": 2, "tries": 3, "swarms": 2, "bound": 30.0}),
    ("pfa", {}),
    ("pfa", {"distance": "euclidean"}),
    ("pfa", {"regroup_every": 1}),
    ("pfa", {"k": 0, "choose_k": "trials"}),
    ("fedperc", {"regroup_every": 2}),
]
POLICY = Policy(learn="collect", least_rows=1, largest_share=1.0, losses=1_000_000)


def recipe(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    made = sites.recipe(method)
    net = {"name": "logistic"} if method == "swarm" else made["net"]
    return made | {"method": made["method"] | settings, "net": sites.recipes.read(more={"net": net})["net"]}


def service(site: str, folder: Path, policy: Policy) -> sites.SiteService:
    own = sites.federation({site: sites.clients_data()[site]})
    return sites.OfferedSite(site, folder, own, policy, site_key(folder / "key"))


@pytest.mark.parametrize(("method", "settings"), CASES)
def test_a_run_measures_no_more_than_the_offer_said(
    method: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    held = recipe(method, settings)
    made = sites.method(held)
    services = {s: service(s, tmp_path / s, POLICY) for s in sites.SITES}
    engine = Flare(sites.SITES, sites.in_process(services), "r", held)
    sites.go(made, engine)
    assert not engine.away
    for site, one in services.items():
        own = sites.federation({site: sites.clients_data()[site]})
        said = numbers_sent(needs_of(made, own), made, sites.ROUNDS)
        left = sum(one.ledger.numbers.values())
        assert 0 < left <= said, site
        assert said <= 3 * left + 50, "and it is not far above"


def offered(folder: Path, held: dict[str, Any], policy: Policy) -> str:
    own = sites.federation({"a": sites.clients_data()["a"]})
    plain = sites.SiteService("a", folder, own, policy, site_key(folder / "key"))
    return Reply.read(plain.answer(Letter("offer", "r", recipe=held, send={"rounds": 40}).pack())).refusal


def test_a_swarm_that_would_spend_more_than_the_policy_has_is_refused_at_the_offer(tmp_path: Path) -> None:
    held = recipe("swarm", {"bound": 30.0})
    assert (
        offered(tmp_path, held, replace(POLICY, losses=48_800)) == "losses"
    )  # 40 * 10 * (42 + 80) and the start
    assert offered(tmp_path, held, replace(POLICY, losses=48_842)) == ""
    assert "losses and sketches" in explained("losses")


def test_a_swarm_without_a_bound_is_refused_at_the_offer_and_not_at_its_second_evaluation(
    tmp_path: Path,
) -> None:
    assert offered(tmp_path, recipe("swarm", {}), POLICY) == "weight"
    assert offered(tmp_path, recipe("swarm", {"bound": 31.0}), POLICY) == "weight"
    assert "hint: for a swarm, method.bound" in explained("weight")
    assert offered(tmp_path, recipe("swarm", {}) | {"net": sites.recipe("swarm")["net"]}, POLICY) == ""


def test_particles_with_a_bound_stay_within_it_and_are_scored(tmp_path: Path) -> None:
    held = recipe("swarm", {"particles": 5, "alpha": 50.0, "bound": 30.0})
    made = sites.method(held)
    services = {s: service(s, tmp_path / s, POLICY) for s in sites.SITES}
    engine = Flare(sites.SITES, sites.in_process(services), "r", held)
    state = sites.go(made, engine)
    assert 1 < float(state["theta"].abs().max()) <= 30
    engine.evaluate(made, state, sites.turn(sites.ROUNDS - 1), "test")
    assert not engine.refusals and not engine.away
