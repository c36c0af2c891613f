"""What a site publishes: its owner's choice, made once and stored, counted against its budget, and named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime")

import sites
from motet.deploy.site.contract import turn_seed
from motet.deploy.site.ledger import LedgerLine
from motet.deploy.site.policy import Policy, PolicyError
from motet.deploy.site.storage import site_key
from motet.engines.flare import Flare
from motet.engines.letters import Letter, Reply
from motet.published import Published

OPEN = sites.lenient(Policy(learn="collect"))


def site(folder: Path, policy: Policy = OPEN, name: str = "a") -> sites.SiteService:
    own = sites.federation({name: sites.clients_data()[name]})
    return sites.OfferedSite(name, folder / "kept", own, policy, site_key(folder / "key"))


def recipe(**settings: Any) -> dict[str, Any]:
    made = sites.recipe("stacking")
    return made | {"method": made["method"] | {"trees": 3} | settings}


def asked(service: sites.SiteService, held: dict[str, Any], number: int = 0, run: str = "r") -> Reply:
    letter = Letter("verb", run, number, verb="publish", learn="all", seed=turn_seed(1, number), recipe=held)
    return Reply.read(service.answer(letter.pack()))


def model(reply: Reply) -> Published:
    assert not reply.refusal, reply.refusal
    return Published.from_tree(reply.tree[0])


def test_a_repeated_ask_in_another_round_or_run_gets_the_stored_model_and_no_new_noise(
    tmp_path: Path,
) -> None:
    pytest.importorskip("opacus")
    held, service = recipe(public="dp-linear"), site(tmp_path)
    first = model(asked(service, held))
    again = site(tmp_path)  # after a restart
    assert model(asked(again, held, 1)) == first and model(asked(again, held, 0, "other run")) == first
    assert sum(again.ledger.budgets.values()) == pytest.approx(first.manifest.privacy.epsilon)


def test_a_second_run_with_the_stored_model_is_within_a_budget_that_is_spent(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    service = site(tmp_path, replace(OPEN, publish="dp-linear epsilon=1", epsilon=1.0))
    first = model(asked(service, recipe()))
    assert model(asked(service, recipe(), 0, "second run")) == first
    other = site(
        tmp_path, replace(OPEN, publish="dp-linear epsilon=0.5", epsilon=1.0)
    )  # another model is new
    assert asked(other, recipe(), 0, "third run").refusal
    assert "after epsilon 0.99" in other.ledger.path.read_text()


def test_what_was_privately_trained_counts_before_a_model_is_published(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    service = site(tmp_path, replace(OPEN, publish="dp-linear epsilon=1", epsilon=3.0))
    service.ledger.write(
        LedgerLine(job="verb", verb="train", run="t", round=0, letter="x", noise=1.0, rate=0.5, steps=2)
    )
    assert asked(service, recipe()).refusal, "the offer is refused, so that the run is unknown"
    assert "of earlier models and private training" in service.ledger.path.read_text()


def test_a_site_s_noise_is_not_that_of_the_seed_which_the_server_knows(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    held = recipe(public="dp-linear")
    a, b = (model(asked(site(tmp_path / k), held)) for k in "ab")
    assert a.model != b.model and a.manifest.features != b.manifest.features
    assert "arithmetic" not in a.manifest.privacy.note


def test_the_owner_s_choice_holds_whatever_the_recipe_says(tmp_path: Path) -> None:
    policy = replace(OPEN, publish="linear", publish_columns=("x0", "x2"))
    service = site(tmp_path, policy)
    made = model(asked(service, recipe(public="forest")))
    assert made.manifest.family == "linear model" and made.manifest.names == ("x0", "x2")
    lines = [
        line for line in service.ledger.path.read_text().splitlines() if "linear model on 2 columns" in line
    ]
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ({"families": ("dp-linear",)}, {"public": "forest"}),
        ({"epsilon": 0.5}, {"public": "dp-linear", "epsilon": 1.0}),
        ({"epsilon": 5.0}, {"public": "dp-linear", "epsilon": 1.0, "versions": 2}),
        ({"epsilon": 4.0}, {"public": "forest"}),
        ({"model_bytes": 100}, {"public": "forest"}),
    ],
)
def test_a_model_that_the_policy_does_not_allow_is_refused_in_a_word_and_told_at_home(
    tmp_path: Path, policy: dict[str, Any], settings: dict[str, Any]
) -> None:
    service = site(tmp_path, replace(OPEN, **policy))
    if "epsilon" in policy and settings.get("versions") == 2:
        assert model(asked(service, recipe(**settings)))  # 1 + 4 are 5
        settings = settings | {"epsilon": 0.9}
    reply = asked(service, recipe(**settings), 0, "second")
    said = service.ledger.path.read_text()
    assert reply.refusal and "would be published" in said or "model_bytes" in said
    assert '"clause": "publish"' in said


def test_a_site_publishes_a_private_network_by_its_policy_and_boosting_says_what_it_cannot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("opacus")
    service = site(tmp_path / "a", replace(OPEN, publish="dp-network epsilon=2", epsilon=2.0))
    made = model(asked(service, recipe(public="forest")))
    assert 1.5 < (made.manifest.privacy.epsilon or 0) <= 2.0
    assert "arithmetic" not in made.manifest.privacy.note
    assert "epsilon 2" in service.ledger.path.read_text()
    other = site(tmp_path / "b", replace(OPEN, publish="dp-boosting epsilon=2", epsilon=2.0))
    assert asked(other, recipe(public="forest")).refusal
    assert "dp-boosting knows two classes, and there are 3" in caplog.text


def test_a_site_that_may_not_publish_is_left_out_and_the_federation_goes_on(tmp_path: Path) -> None:
    policies = {"a": OPEN, "b": OPEN, "c": replace(OPEN, families=("dp-linear",))}
    services = {s: site(tmp_path / s, p, s) for s, p in policies.items()}
    held = recipe()
    engine = Flare(sites.SITES, sites.in_process(services), "r", held)
    method = sites.method(held)
    state = sites.go(method, engine, 1, 2, method.start(sites.turn(-1)))
    assert sorted(state["catalogue"]) == ["a", "b"] and set(engine.away) == {"c"}


def test_families_mix_in_one_federation_without_a_word_in_the_recipe(tmp_path: Path) -> None:
    chosen = {"a": "forest trees=5", "b": "linear", "c": "nothing"}
    services = {s: site(tmp_path / s, replace(OPEN, publish=w), s) for s, w in chosen.items()}
    held = recipe()
    method = sites.method(held)
    engine = Flare(sites.SITES, sites.in_process(services), "r", held)
    summary = method.summary(sites.go(method, engine))
    what = {c: p["what"].partition(" on ")[0] for c, p in summary["published"].items()}
    assert what == {"a": "a forest of 5 trees", "b": "a linear model", "c": "nothing"}
    assert summary["named"]["c"] == "free rider: it publishes nothing"


def test_a_policy_with_an_unknown_family_is_refused_with_what_there_is() -> None:
    with pytest.raises(PolicyError, match="did you mean 'dp-linear'"):
        Policy.of({"publish": "dp-lineer epsilon=1"})


# A ledger that lost lines.


def test_a_model_that_could_not_be_written_down_counts_and_is_checked_before_it_leaves(
    tmp_path: Path,
) -> None:
    pytest.importorskip("opacus")
    service = site(tmp_path, replace(OPEN, epsilon=1.0))
    write = service.ledger.write

    def full(line: LedgerLine) -> None:
        if line.job == "verb" and not line.clause:
            raise OSError(28, "No space left on device")
        write(line)

    service.ledger.write = full  # type: ignore[method-assign]
    whole, small = recipe(public="dp-linear", epsilon=1.0), recipe(public="dp-linear", epsilon=0.3)
    assert asked(service, whole).refusal
    service.ledger.write = write  # type: ignore[method-assign]
    assert asked(service, small, 0, "second").refusal  # the first is stored
    assert "epsilon 0.3 would be published after epsilon 0.99" in service.ledger.path.read_text()
    assert model(asked(service, whole)).manifest.privacy.epsilon == pytest.approx(1.0, abs=0.02)
    assert asked(service, small, 0, "third").refusal


def test_stored_models_that_never_left_are_refused_once_others_spent_the_budget(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    service = site(tmp_path, replace(OPEN, epsilon=1.0))
    whole = recipe(public="dp-linear", epsilon=1.0)
    assert model(asked(service, whole))
    service.ledger.budgets = {"of another model": 0.5}  # the line of the stored one is lost
    assert asked(service, whole, 1, "second").refusal == "publish"


def test_a_lost_ledger_gives_no_budget_back(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    policy = replace(OPEN, epsilon=1.0)
    first = model(asked(site(tmp_path, policy), recipe(public="dp-linear", epsilon=1.0)))
    (tmp_path / "kept" / "ledger.jsonl").unlink()
    service, less = site(tmp_path, policy), recipe(public="dp-linear", epsilon=0.9)
    assert asked(service, less, 0, "second").refusal  # the stamp beside it tells of a line that is gone
    (tmp_path / "kept.stamp").unlink()  # the owner gives the ledger up for lost: stored models still count
    service = site(tmp_path, policy)
    assert asked(service, less, 0, "third").refusal
    assert "epsilon 0.9 would be published after epsilon 0.99" in service.ledger.path.read_text()
    assert model(asked(service, recipe(public="dp-linear", epsilon=1.0), 0, "fourth")) == first


def test_budgets_of_models_that_an_earlier_version_stored_are_read_off_them(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    policy = replace(OPEN, epsilon=1.0)
    made = model(asked(site(tmp_path, policy), recipe(public="dp-linear", epsilon=0.5)))
    (written,) = (tmp_path / "kept" / "published").glob("*/epsilon")
    written.unlink()
    (found,) = site(tmp_path, policy).publications.stored().values()
    assert found == made.manifest.privacy.epsilon
