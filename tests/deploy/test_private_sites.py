"""Whole sites with differential privacy: shares of noise in masked sums, ledgers that are charged, refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace as changed

pytest.importorskip("opacus")
pytest.importorskip("dp_accounting")

import sites
from deploy.test_masked_sites import NAMES, Federation, at, recipe
from motet.deploy.flare.kits import FederationError
from motet.deploy.server.offers import asked_of_sites, masks_of
from motet.deploy.server.run_files import make_order
from motet.deploy.site.ledger import Ledger
from motet.deploy.site.training_budget import whole_site_terms
from motet.engines.flare import TooFew
from motet.engines.letters import Letter, Reply
from motet.engines.masked_asks import MaskSettings
from motet.guard.accounting import NoisySteps, epsilon_of, epsilon_of_rounds
from motet.runs import recipe as recipes
from motet.runs.recipe_text import RecipeError
from motet.vec import leaves

CLIP, NOISE = 0.5, 4.0
SHARE = NOISE * CLIP / math.sqrt(3)  # of each site: three of them carry the whole noise
ROUNDS = 12


def settings(lr: float = 1e-9, **privacy: Any) -> dict[str, Any]:
    """Fedavg that learns nothing, so that all that changes is noise."""
    held = recipe(clip=CLIP)
    held["method"] |= {"lr": lr}
    asked = {"level": "client", "noise": "clients", "noise_multiplier": NOISE} | privacy
    return held | {"privacy": asked}


def federation(folder: Path, held: dict[str, Any] | None = None, **policy: Any) -> Federation:
    found = Federation(folder, held or settings(), **policy)
    found.engine = found.new_engine(MaskSettings(noise=SHARE))
    return found


def numbers(state: Any) -> torch.Tensor:
    return torch.cat([v.double().flatten() for v in leaves(state)])


def moved(found: Federation, rounds: int) -> torch.Tensor:
    """By what each round changed the model."""
    states = [found.go(last=0)]
    for number in range(rounds):
        states.append(found.go(number + 1, number + 2, states[-1]) if number else found.go(0, 1))
    steps = [numbers(b) - numbers(a) for a, b in zip(states[1:], states[2:], strict=False)]
    return torch.cat(steps)


def near(found: torch.Tensor, deviation: float) -> bool:
    """Within five standard errors of a standard deviation."""
    return abs(float(found.std()) / deviation - 1) < 5 / math.sqrt(2 * len(found))


def test_the_sum_of_all_sites_carries_more_noise_than_is_counted(tmp_path: Path) -> None:
    found = federation(tmp_path)
    assert {r.refusal for r in found.offered.values()} == {""}
    change = moved(found, ROUNDS)
    assert near(change * 4, SHARE * math.sqrt(4))  # the sum of four replies
    assert abs(float(change.mean())) < 5 * float(change.std()) / math.sqrt(len(change))


def test_with_as_many_dropouts_as_are_allowed_the_sum_has_the_noise_that_is_counted(tmp_path: Path) -> None:
    found = federation(tmp_path)
    found.change = at("verb", "d", lambda letter: None)
    change = moved(found, ROUNDS)
    assert near(change * 3, NOISE * CLIP)


def test_one_more_and_nothing_is_unmasked(tmp_path: Path) -> None:
    found = federation(tmp_path)
    found.change = at("verb", "cd", lambda letter: None)
    with pytest.raises(TooFew):
        found.go(last=1)


def test_every_site_is_charged_for_each_reply_by_half_of_the_noise(tmp_path: Path) -> None:
    found = federation(tmp_path)
    found.go(last=3)
    for site in NAMES:
        assert [steps for _, steps in Ledger(tmp_path / site).private] == [NoisySteps(NOISE / 2, 1.0, 1)] * 3


def test_a_row_may_turn_an_update_round_and_half_of_the_noise_counts_that() -> None:
    """The accountants agree where rows are not drawn: the Gaussian mechanism, many times."""
    found = epsilon_of([NoisySteps(NOISE / 2, 1.0, 3)], 1e-5)
    assert found == pytest.approx(epsilon_of_rounds(NOISE / 2, 1.0, 3, 1e-5), rel=0.15)
    assert found >= 0.999 * epsilon_of_rounds(NOISE / 2, 1.0, 3, 1e-5)


def test_noise_is_drawn_once_for_a_letter_and_is_no_function_of_the_seed(tmp_path: Path) -> None:
    one, other = federation(tmp_path / "1"), federation(tmp_path / "2")
    a, b = one.go(last=1), other.go(last=1)
    assert not torch.equal(numbers(a), numbers(b))
    again = federation(tmp_path / "1").go(last=1)
    assert torch.allclose(numbers(a), numbers(again), atol=1e-9), "the stored replies, summed once more"
    assert len(Ledger(tmp_path / "1" / "a").private) == 1


def test_a_budget_ends_before_anything_leaves(tmp_path: Path) -> None:
    two = epsilon_of([NoisySteps(NOISE / 2, 1.0, 2)], 1e-5)
    found = federation(tmp_path, epsilon=1.01 * two)
    assert {r.refusal for r in found.offered.values()} == {"privacy"}, "20 rounds would cost more"
    send = {"rounds": 2, "sites": list(NAMES)}
    offer = Letter("offer", "r", recipe=found.settings, send=send).pack()
    assert all(not Reply.read(s.answer(offer)).refusal for s in found.services.values())
    state = found.go(last=2)
    for site in NAMES:  # another content, which a policy lets come three times in a round
        letter = Letter(
            "verb", "r", round=1, seed=found.turn(1).seed, recipe=found.settings, send=state, verb="train",
            learn="mean", masked={"session": b"x" * 16, "sealed": {}, "noise": SHARE},
        )  # fmt: skip
        assert Reply.read(found.services[site].answer(letter.pack())).refusal == "privacy"
        assert len(Ledger(tmp_path / site).private) == 2


def test_a_server_that_asks_others_for_less_noise_is_refused_by_name(tmp_path: Path) -> None:
    found = federation(tmp_path)
    found.engine = found.new_engine(MaskSettings(noise=SHARE / 10))
    with pytest.raises(TooFew):
        found.go(last=1)
    assert "the others' share would be another one" in found.reason("a")


def test_masks_do_not_cancel_where_others_were_offered_less_noise(tmp_path: Path) -> None:
    """A server that tells site a what it wants to hear, and the others to add a hundredth."""
    found, little = federation(tmp_path), settings(noise_multiplier=NOISE / 100)
    send = {"rounds": 20, "sites": list(NAMES)}
    for site in "bcd":
        offer = Letter("offer", "r", recipe=little, send=send).pack()
        assert not Reply.read(found.services[site].answer(offer)).refusal

    def two_faced(site: str, letter: Letter) -> Letter:
        if site == "a":
            return letter
        masked = letter.masked | {"noise": SHARE / 100} if letter.masked else letter.masked
        return changed(letter, recipe=little, masked=masked)

    found.change = two_faced
    before = found.go(last=0)
    try:
        after = found.go(last=1)
    except TooFew:
        return
    assert float((numbers(after) - numbers(before)).abs().max()) > 100, "what comes out is random"


def test_replies_that_are_weighed_by_rows_are_refused(tmp_path: Path) -> None:
    found = federation(tmp_path)
    found.engine = found.new_engine(MaskSettings())
    with pytest.raises(TooFew):
        found.go(last=1)
    assert not Ledger(tmp_path / "a").sums


def test_updates_are_cut_also_to_a_policy_s_shorter_clip_and_noise_stays(tmp_path: Path) -> None:
    found = federation(tmp_path, settings(lr=5.0, noise_multiplier=0.01), clip=CLIP / 5)
    found.engine = found.new_engine(MaskSettings(noise=0.01 * CLIP / math.sqrt(3)))
    before = found.go(last=0)
    after = found.go(last=1)
    assert float((numbers(after) - numbers(before)).norm()) < 1.1 * CLIP / 5
    assert found.services["a"].stored_contract("r").private.share == pytest.approx(0.01 * CLIP / math.sqrt(3))


WRONG = [
    (["guard.masked=false"], "guard.masked=true"),
    (["privacy.noise=server"], "privacy.noise=clients"),
    (["privacy.sampling=poisson"], "privacy.sampling=fixed"),
    (["privacy.epsilon=2"], "privacy.delta=1e-5"),
]
RIGHT = ["privacy.level=client", "privacy.noise=clients", "guard.masked=true", "guard.clip=1"]


@pytest.mark.parametrize(("words", "hint"), WRONG)
def test_what_protects_no_site_is_refused_before_anybody_is_asked(words: list[str], hint: str) -> None:
    with pytest.raises(FederationError, match=f"hint: {hint}"):
        make_order("care", None, [*RIGHT, "privacy.noise_multiplier=2", *words], 3, 0, 60.0)


def test_the_server_and_sites_find_the_same_noise() -> None:
    words = [*RIGHT, "privacy.epsilon=2", "privacy.delta=1e-5", "train.rounds=10"]
    held = recipes.read(None, words)
    masks = masks_of(held)
    assert masks is not None
    z = masks.noise * math.sqrt(3)
    assert epsilon_of_rounds(z, 1.0, 10, 1e-5) == pytest.approx(2.0, rel=0.01)
    facts = asked_of_sites(held)["privacy"]
    assert facts["epsilon"] <= 2.0 and "3 sites of a sum carry all of it" in facts["noise"]


def test_a_method_whose_replies_are_collected_is_refused() -> None:
    held = recipes.read(None, [*RIGHT, "privacy.noise_multiplier=2"])
    with pytest.raises(RecipeError, match="collects single replies"):
        whole_site_terms(held, sites.method(sites.recipe("cfl")), 5, 3)
