"""A server that tries to see single replies through masked sums: by other terms, letters, runs or models."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as changed

from deploy.test_masked_sites import Federation, at, gap, lied, recipe, send_with
from motet.core import NoReply, average
from motet.deploy.server.summed import SummedSites
from motet.deploy.site.ledger import Ledger, LedgerLine, read_ledger
from motet.deploy.site.masking import SiteSums, SumRules, check_written
from motet.deploy.site.policy import Policy
from motet.engines.flare import TooFew
from motet.engines.letters import BEFORE, Letter, Reply
from motet.engines.masked_asks import MaskSettings
from motet.guard.masks.refused import MaskRefused
from motet.vec import leaves


def terms_with(letter: Letter, **fields: Any) -> Letter:
    return send_with(letter, terms=letter.send["terms"] | fields)


@pytest.mark.parametrize("fields", [{"range": 2.0**58}, {"range": 0.001}, {"bits": 32}])
def test_a_sum_holds_the_numbers_that_were_agreed_on(fields: dict[str, Any], tmp_path: Path) -> None:
    """A range of the server's choice would round all replies away but the one with most rows, or say how large the
    largest number of a single reply is."""
    fed = Federation(tmp_path, recipe())
    said = lied(fed, "shares", "abcd", lambda x: terms_with(x, **fields))
    assert "and the run was offered with 1024 in 64" in said


def test_weights_that_round_a_reply_away_are_refused(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe())
    said = lied(fed, "shares", "abcd", lambda x: terms_with(x, unit=2.0**45))
    assert "it would be rounded away" in said


@pytest.mark.parametrize("fields", [{"even": True}, {"unit": 1000.0}])
def test_the_same_replies_are_not_weighed_in_another_way(fields: dict[str, Any], tmp_path: Path) -> None:
    """Many units would show single replies: the sum of what each of them is rounded by jumps where one of them does."""
    fed = Federation(tmp_path, recipe())
    fed.go(last=1)
    fed.engine = fed.new_engine()
    said = lied(fed, "shares", "abcd", lambda x: terms_with(x, **fields))
    assert "these replies were summed before, by rows over 23.0, and are now to be summed" in said


def asked_again(fed: Federation, number: int) -> None:
    """The letter of the first round once more, with another number, without d."""
    fed.engine.begin(fed.method, fed.turn(0))
    fed.engine.number = number
    fed.engine.ask(average(fed.method.train, ["a", "b", "c"], send=fed.method.task.w0))


def test_the_same_replies_by_a_letter_with_another_number_are_not_summed_without_one(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe())
    fed.go(last=1)
    fed.engine = fed.new_engine()
    with pytest.raises(TooFew):
        asked_again(fed, number=1)
    assert "these replies were summed before, of a,b,c,d" in fed.reason("a")


def test_the_same_replies_of_another_run_are_not_summed_without_one(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe())
    fed.go(last=1)
    fed.engine = fed.new_engine()
    fed.engine.run = "s"
    for site in fed.names:
        send = {"rounds": 20, "sites": list(fed.names)}
        fed.services[site].answer(Letter("offer", "s", recipe=fed.settings, send=send).pack())
    with pytest.raises(TooFew):
        asked_again(fed, number=0)
    assert "these replies were summed before, of a,b,c,d" in fed.reason("a")
    assert "another seed" in fed.reason("a")


def test_a_run_without_replies_goes_on_when_a_site_is_lost(tmp_path: Path) -> None:
    """`local` sends nothing, so its replies are the same in every round, and show nothing."""
    fed = Federation(tmp_path, recipe("local"))
    fed.go(last=1)
    fed.change = at("verb", "d", lambda letter: None)
    fed.go(1, 2, ())
    assert "d" in fed.engine.away


def test_a_site_that_is_sent_another_model_than_the_rest_is_not_in_a_sum_with_them(tmp_path: Path) -> None:
    """Pasquini et al. 2022: with a model that does not train, the others' replies are known, and the sum shows one."""
    fed = Federation(tmp_path, recipe())

    def dead(letter: Letter) -> Letter:
        return changed(letter, send=letter.send.map(lambda v, _: v * 0))

    fed.change = at("verb", "bcd", dead)
    try:
        state = fed.go(last=1)
    except TooFew:
        return  # the sum of weights is random too, and may be none
    assert max(float(v.abs().max()) for v in leaves(state)) > 100  # random numbers


def test_a_site_that_was_offered_other_settings_than_the_rest_is_not_in_a_sum_with_them(
    tmp_path: Path,
) -> None:
    """With a rate of 1e-30 the others' replies are what they were sent, and the sum would show the last one's."""
    fed, still = Federation(tmp_path, recipe()), recipe()
    still["method"] |= {"lr": 1e-30}
    for site in "bcd":
        send = {"rounds": 20, "sites": list(fed.names)}
        offer = Letter("offer", "r", recipe=still, send=send)
        assert not Reply.read(fed.services[site].answer(offer.pack())).refusal
    fed.change = lambda site, letter: letter if site == "a" else changed(letter, recipe=still)
    try:
        state = fed.go(last=1)
    except TooFew:
        return
    assert max(float(v.abs().max()) for v in leaves(state)) > 100  # random numbers


def test_a_round_that_is_repeated_by_those_who_were_left_has_the_same_weights(tmp_path: Path) -> None:
    """The site with most rows was lost after keys, so that weights were shares of its rows."""
    fed = Federation(tmp_path, recipe())
    fed.engine.rows["d"] = {"train": 1000}
    fed.change, fed.engine.summed = at("verb", "d", lambda letter: None), SummedSites(tmp_path)
    state = fed.go(last=1)
    fed.change, fed.engine = (lambda site, letter: letter), fed.new_engine()
    fed.engine.summed = SummedSites(tmp_path)
    assert gap(fed.go(last=1), state) < 1e-9


def test_numbers_that_would_round_a_small_site_away_are_said_at_the_server(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe(mask_bits=32))
    fed.engine.masks = MaskSettings(bits=32)
    fed.engine.rows["d"] = {"train": 100_000}
    with pytest.raises(NoReply, match="guard.mask_bits=64, or a smaller guard.mask_range"):
        fed.go(last=1)


def rows_by_refusals(fed: Federation, low: float, high: float) -> float:
    """What a server finds that tries units for the weights of site a, and looks whether a refuses."""
    for _ in range(12):
        unit, before = (low + high) / 2, len(fed.carried)
        fed.engine = fed.new_engine()
        fed.change = at("shares", "abcd", lambda x, unit=unit: terms_with(x, unit=unit))
        with suppress(TooFew, NoReply):
            fed.go(last=1)
        said = next(Reply.read(r) for s, x, r in fed.carried[before:] if s == "a" and x.job == "verb")
        low, high = (unit, high) if said.refusal else (low, unit)
    return high


def test_a_number_of_rows_does_not_follow_from_refusals_of_weights(tmp_path: Path) -> None:
    shown = Federation(tmp_path / "shown", recipe())
    rows = shown.engine.rows["a"]["train"]
    assert rows_by_refusals(shown, 0.5, 200.0) == pytest.approx(rows, abs=0.1)
    hidden = Federation(tmp_path / "hidden", recipe(), counts="masked")
    assert rows_by_refusals(hidden, 0.5, 200.0) < 1


@pytest.mark.parametrize("noise", [float("nan"), 0.5])
def test_noise_of_a_sum_that_is_another_one_or_no_number_is_refused(noise: float, tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe())
    said = lied(fed, "verb", "abcd", lambda x: changed(x, masked=x.masked | {"noise": noise}))
    assert "each site of the sum is to add noise" in said


def test_a_collected_reply_is_in_no_masked_sum(tmp_path: Path) -> None:
    """Its number of rows would be stored for the sum, and leave with the same letter in the clear."""
    fed = Federation(tmp_path, recipe("scaffold"), counts="masked")
    contract = fed.services["a"].stored_contract("r")
    assert contract is not None
    letter = Letter("verb", "r", 0, 0, learn="all", masked={"session": bytes(32)})
    assert "replies that are collected are in no masked sum" in [o.text for o in contract.of_ask(letter)]


def test_two_processes_of_a_site_do_not_unmask_the_same_replies_with_different_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that go on at once have a process each. A server that asks both at the same moment finds neither sum in the
    ledger before the other is written."""
    fed, step = Federation(tmp_path, recipe()), SiteSums.step

    def meanwhile(sums: SiteSums, letter: Letter, rules: SumRules) -> Any:
        tree, written = step(sums, letter, rules)
        if written and sums.name == "a":
            line = LedgerLine(caller="server", job="mask", run="s", round=0, letter="x")
            Ledger(tmp_path / "a").write(changed(line, **(written | {"sum_of": "a,b,c"})))
        return tree, written

    monkeypatch.setattr(SiteSums, "step", meanwhile)
    fed.go(last=1)  # b, c and d are enough to unmask
    assert [x.sum_of for x in read_ledger(tmp_path / "a")[0] if x.sum_of and not x.clause] == ["a,b,c"]
    assert "of a,b,c, and are now to be summed of a,b,c,d" in fed.reason("a")


def test_two_processes_of_a_site_do_not_sum_columns_with_more_sets_of_sites_than_its_policy_has(
    tmp_path: Path,
) -> None:
    one, other, policy = Ledger(tmp_path / "kept"), Ledger(tmp_path / "kept"), Policy(cohorts=1)
    line = LedgerLine(caller="server", job="mask", round=BEFORE, sum_of="a,b,c", sum_for="x", sum_as="evenly")
    another = changed(line, sum_of="a,b,c,d")
    one.write(line, partial(check_written, line, policy, one))
    with pytest.raises(MaskRefused, match="cohorts = 1"):
        other.write(another, partial(check_written, another, policy, other))
    one.write(line, partial(check_written, line, policy, one))  # the same set once more
