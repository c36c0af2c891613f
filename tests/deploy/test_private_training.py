"""Private training between organisations: noise of the site's own, a budget over all runs, a ledger that stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from tests.sites import clients_data, federation, lenient, method, recipe

from motet.deploy.site.contract import turn_seed
from motet.deploy.site.ledger import Ledger, LedgerLine, LedgerRolledBack, read_ledger
from motet.deploy.site.policy import Policy, PolicyError
from motet.deploy.site.service import SiteService
from motet.deploy.site.storage import site_key
from motet.engines.letters import Letter, Reply
from motet.evidence.party_evidence import privacy_budget
from motet.guard.accounting import NoisySteps, epsilon_of
from motet.vec import leaves

pytest.importorskip("opacus")
PRIVATE = {"level": "example", "noise_multiplier": 2.0}
FOUR_ROUNDS = epsilon_of(
    [NoisySteps(2.0, 0.5, 8)], 1e-3
)  # 23 rows in batches of 16: two steps of rate 1/2 a round


def site(folder: Path, **policy: Any) -> SiteService:
    own = federation({"c": clients_data()["c"]})  # 23 training rows
    return SiteService("c", folder, own, lenient(Policy(**policy)), site_key(folder / "key"))


def settings(name: str = "fedavg", **privacy: Any) -> dict[str, Any]:
    return recipe(name) | ({"privacy": privacy} if privacy else {})


def asked(service: SiteService, letter: Letter) -> Reply:
    return Reply.read(service.answer(letter.pack()))


def offered(service: SiteService, held: dict[str, Any], rounds: int = 4, run: str = "r") -> str:
    return asked(service, Letter("offer", run, recipe=held, send={"rounds": rounds})).refusal


def train(
    service: SiteService, held: dict[str, Any], number: int = 0, run: str = "r", shift: float = 0.0
) -> Reply:
    w, seed = method(held).task.w0, turn_seed(1, number)
    sent = w + w * shift
    letter = Letter("verb", run, round=number, seed=seed, recipe=held, send=sent, verb="train", learn="mean")
    return asked(service, letter)


def numbers(reply: Reply) -> torch.Tensor:
    return torch.cat([v.flatten() for v in leaves(reply.tree)])


def test_noise_is_the_site_s_own_and_the_same_letter_gets_the_same_reply(tmp_path: Path) -> None:
    held = settings(**PRIVATE)
    one, other = site(tmp_path / "1"), site(tmp_path / "2")
    assert not offered(one, held) and not offered(other, held)
    first = train(one, held)
    assert torch.equal(numbers(first), numbers(train(one, held))), "and is spent once"
    assert not torch.equal(numbers(first), numbers(train(other, held))), "though seed and rows are the same"
    assert len(one.ledger.private) == 1
    assert len(Ledger(tmp_path / "1").private) == 1, "and so it is after a restart"


def test_a_budget_is_for_all_runs_and_ends_before_anything_leaves(tmp_path: Path) -> None:
    held = settings(**PRIVATE)
    service = site(tmp_path, epsilon=5.0, delta=1e-3)
    assert offered(service, held, rounds=200) == "privacy", "the whole run would cost more"
    assert not offered(service, held, rounds=4)
    assert not train(service, held, 0).refusal
    again = site(tmp_path, epsilon=5.0, delta=1e-3)  # a process that was started anew
    assert not again.ledger.began("other") and not offered(again, held, rounds=4, run="other")
    tight = site(tmp_path, epsilon=1.02 * FOUR_ROUNDS, delta=1e-3)
    assert offered(tight, held, rounds=4, run="third") == "privacy" and not offered(
        tight, held, rounds=3, run="fourth"
    )


def test_a_reply_beyond_the_budget_is_refused_although_the_offer_was_within_it(tmp_path: Path) -> None:
    held = settings(**PRIVATE)
    service = site(tmp_path, epsilon=1.02 * FOUR_ROUNDS, delta=1e-3, repeats=50)
    assert not offered(service, held, rounds=4)
    found = [train(service, held, 0, shift=0.01 * i).refusal for i in range(6)]
    assert found == ["", "", "", "", "privacy", "privacy"]
    left = len(service.ledger.private)
    assert train(service, held, 1).refusal == "privacy" and len(service.ledger.private) == left


def test_a_policy_may_require_privacy(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="next to no noise"):
        Policy.of({"private": "required"})
    service = site(tmp_path, private="required", epsilon=50.0, delta=1e-3)
    assert offered(service, settings()) == "privacy"
    assert not offered(service, settings(**PRIVATE))


def test_methods_and_second_trainings_that_no_budget_covers_are_refused(tmp_path: Path) -> None:
    service = site(tmp_path, learn="collect")
    assert offered(service, settings("finetune", **PRIVATE)) == "recipe"
    held = settings(**PRIVATE)
    assert not offered(service, held)
    letter = Letter("evaluate_trained", "r", round=-1, seed=turn_seed(1, 0), recipe=held, verb="train")
    assert asked(service, letter).refusal == "privacy"


def test_epsilon_gives_the_noise_of_the_site_s_own_rows(tmp_path: Path) -> None:
    held = settings(level="example", epsilon=2.0, delta=1e-3)
    service = site(tmp_path, epsilon=2.0, delta=1e-3)
    assert not offered(service, held, rounds=10)
    for number in range(10):
        assert not train(service, held, number).refusal, number
    assert train(service, held, 9, shift=0.1).refusal == "privacy"


def test_a_recipe_with_noise_and_epsilon_ends_where_epsilon_does(tmp_path: Path) -> None:
    two = epsilon_of([NoisySteps(2.0, 0.5, 4)], 1e-3)
    held = settings(level="example", noise_multiplier=2.0, epsilon=1.001 * two, delta=1e-3)
    service = site(tmp_path)
    assert not offered(service, held, rounds=4)
    assert [train(service, held, number).refusal for number in range(4)] == ["", "", "privacy", "privacy"]


def test_a_server_that_repeats_rounds_gets_no_more_than_the_recipe_s_epsilon(tmp_path: Path) -> None:
    """Also at a site whose policy has no budget of its own."""
    held = settings(level="example", epsilon=2.0, delta=1e-3)
    service = site(tmp_path)
    assert not offered(service, held, rounds=4)
    found = [train(service, held, 0, shift=0.01 * i).refusal for i in range(3)]
    assert found == ["", "", ""], "a policy lets a round be repeated three times"
    assert [train(service, held, number).refusal for number in (1, 2, 3)] == ["", "privacy", "privacy"]
    assert epsilon_of([steps for _, steps in service.ledger.private], 1e-3) <= 2.0
    assert not train(service, held, 1).refusal, "a reply that left may leave again"


def test_a_site_s_evidence_says_what_training_spent() -> None:
    left = [LedgerLine(job="verb", noise=2.0, rate=0.5, steps=2, round=i) for i in range(4)]
    said = privacy_budget(Policy(epsilon=9.0, delta=1e-3), [*left, replace(left[0], again=True)])
    assert said == f"epsilon {FOUR_ROUNDS:.4g} of 9 (delta 0.001) for 4 replies that were privately trained"
    assert privacy_budget(Policy(), []) == "none"


# ---- two processes of one site, as when two runs go on at once ----


def test_lines_of_another_process_are_no_roll_back(tmp_path: Path) -> None:
    held, place = settings(**PRIVATE), tmp_path / "kept"
    one, other = site(place), site(place)
    assert not offered(one, held, run="r") and not offered(other, held, run="s")
    for number in range(2):
        assert not train(one, held, number, "r").refusal and not train(other, held, number, "s").refusal
    assert len(Ledger(place).private) == 4 and read_ledger(place)[1] == []


def test_two_runs_at_once_do_not_spend_more_than_the_budget_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, place, tight = settings(**PRIVATE), tmp_path / "kept", 1.02 * FOUR_ROUNDS
    one, other = (site(place, epsilon=tight, delta=1e-3, repeats=50) for _ in range(2))
    assert not offered(one, held, run="r") and not offered(other, held, run="s")
    for i in range(3):
        assert not train(one, held, 0, "r", 0.01 * i).refusal
    visit = SiteService.visit

    def meanwhile(service: SiteService, letter: Letter, its_method: Any) -> Any:
        """The other run takes the last reply after this one was found to be within the budget."""
        monkeypatch.setattr(SiteService, "visit", visit)
        assert not train(other, held, 0, "s").refusal
        return visit(service, letter, its_method)

    monkeypatch.setattr(SiteService, "visit", meanwhile)
    assert train(one, held, 0, "r", 0.03).refusal == "privacy", "and what was computed stays here"
    assert epsilon_of([steps for _, steps in Ledger(place).private], 1e-3) <= tight


# ---- a ledger that was rolled back, or changed ----


def written(folder: Path, many: int) -> Ledger:
    ledger = Ledger(folder)
    for i in range(many):
        ledger.write(LedgerLine(caller="server", job="verb", run="r", round=i, letter=str(i)))
    return ledger


@pytest.mark.parametrize("how", ["an older copy", "cut at its end", "cut in a line", "gone"])
def test_a_ledger_that_was_rolled_back_is_refused_by_name(tmp_path: Path, how: str) -> None:
    place = tmp_path / "kept"
    before = written(place, 2).path.read_bytes()
    path = written(place, 3).path
    whole = path.read_bytes()
    content = {
        "an older copy": before, "cut at its end": whole[: whole.rindex(b"\n", 0, -1) + 1], "cut in a line": whole[:-9]
    }  # fmt: skip
    path.unlink() if how == "gone" else path.write_bytes(content[how])
    with pytest.raises(LedgerRolledBack, match="rolled back.*\n.*restore"):
        Ledger(place).write(LedgerLine(caller="server"))
    assert any("rolled back" in said for said in read_ledger(place)[1])
    path.write_bytes(whole)
    Ledger(place).write(LedgerLine(caller="server"))
    assert read_ledger(place)[1] == []


def test_a_site_answers_nothing_with_a_ledger_that_was_rolled_back(tmp_path: Path) -> None:
    place, held = tmp_path / "kept", settings(**PRIVATE)
    service = site(place)
    assert not offered(service, held)
    before = service.ledger.path.read_bytes()
    assert not train(service, held).refusal
    service.ledger.path.write_bytes(before)
    assert train(service, held, 1).refusal == "ledger", "while it runs"
    again = site(place)
    assert train(again, held, 1).refusal == "ledger" and offered(again, held, run="new") == "ledger"
    assert service.ledger.path.read_bytes() == before, "and writes nothing that would hide it"


@pytest.mark.parametrize("changed", [b'"steps": 0', b'"steps": x'])
def test_a_line_that_was_changed_gives_no_budget_back(tmp_path: Path, changed: bytes) -> None:
    place, held = tmp_path / "kept", settings(**PRIVATE)
    service = site(place, epsilon=50.0, delta=1e-3)
    assert not offered(service, held)
    assert not train(service, held).refusal and not train(service, held, 1).refusal
    whole = service.ledger.path.read_bytes()
    service.ledger.path.write_bytes(whole.replace(b'"steps": 2', changed, 1))
    again = site(place, epsilon=50.0, delta=1e-3)
    assert train(again, held, 2).refusal == "ledger" and offered(again, held, run="new") == "ledger"
    with pytest.raises(LedgerRolledBack, match="changed: line 3 does not follow"):
        again.ledger.check_unchanged()


def test_a_line_that_a_crash_cut_off_is_no_change(tmp_path: Path) -> None:
    place = tmp_path / "kept"
    path = written(place, 2).path
    with path.open("ab") as file:
        file.write(b'{"time": "20')  # of a line whose stamp was not written any more
    assert len(written(place, 1).rounds) == 2 and not Ledger(place).damage
