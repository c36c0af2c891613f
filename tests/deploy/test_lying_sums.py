"""A server that tries to see single replies through masked sums: by other terms, letters, runs or models."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from deploy import test_masked_sites
from deploy.test_masked_sites import Federation, at, data, gap, lied, recipe, send_with
from motet.core import Client, NoReply, Tree, average
from motet.deploy.server.summed import SummedSites
from motet.deploy.site.ledger import Ledger, LedgerLine, read_ledger
from motet.deploy.site.masking import SiteSums, SumRules, check_written
from motet.deploy.site.policy import Policy
from motet.deploy.site.service import SiteService
from motet.deploy.site.site_identity import SiteIdentity
from motet.engines.flare import TooFew
from motet.engines.letters import BEFORE, Letter, Reply, asked_in
from motet.engines.masked_asks import MaskedSum, MaskSettings, asked_hash
from motet.guard.masks.fixed_point import FixedPoint
from motet.guard.masks.in_process import LocalKeys
from motet.guard.masks.refused import MaskRefused
from motet.vec import leaves
from motet.wire import unpack


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


# ---- two sums of one round, at weights that are nearly the same ----

EVERYBODY, WITHOUT_D = ("a", "b", "c", "d"), ("a", "b", "c")


def ask(
    fed: Federation,
    who: tuple[str, ...],
    number: int = 0,
    moved: float = 0.0,
    run: str = "r",
    in_round: int = 0,
) -> torch.Tensor:
    """What a server gets that asks these sites to train, from weights that are moved a little."""
    fed.engine = fed.new_engine()
    fed.engine.run = run
    fed.engine.begin(fed.method, fed.turn(in_round))
    fed.engine.number = number
    w = fed.method.task.w0.map(lambda v, _: v + moved)
    return flat(fed.engine.ask(average(fed.method.train, list(who), send=w)))


def flat(tree: Tree) -> torch.Tensor:
    return torch.cat([v.double().flatten() for v in leaves(tree)])


def error_of_difference(fed: Federation, all_: torch.Tensor, without_d: torch.Tensor) -> float:
    """How far from d's update, as a share of its length, is what two sums say of it."""
    rows = {s: float(fed.engine.rows[s]["train"]) for s in EVERYBODY}
    most = sum(rows.values())
    told = (all_ * most - without_d * (most - rows["d"])) / rows["d"]
    stored = fed.services["d"].states(Letter("verb", "r")).get((0, 0))
    assert stored is not None
    reply = flat(Reply.read(bytes(unpack(stored)["reply"])).tree)
    return float((told - reply).norm() / (reply - flat(fed.method.task.w0)).norm())


class SecretOrders(Federation):
    """Sites that draw the orders of batches from keys of their own, as in new kits."""

    def service(self, site: str) -> SiteService:
        made = super().service(site)
        made.policy = replace(made.policy, secret_orders=True)
        return made


@pytest.mark.parametrize("kind", [Federation, SecretOrders])
def test_two_asks_of_one_round_do_not_show_a_sites_update(kind: type[Federation], tmp_path: Path) -> None:
    fed = kind(tmp_path, recipe())
    first = ask(fed, EVERYBODY)
    with pytest.raises(TooFew):
        second = ask(fed, WITHOUT_D, 1, 1e-7)
        assert error_of_difference(fed, first, second) > 0.1
    assert (
        "replies to train of round 1 were summed before, of a,b,c,d, and are now to be summed of a,b,c"
        in fed.reason("a")
    )


def test_two_runs_with_one_seed_do_not_show_a_sites_update(tmp_path: Path) -> None:
    fed = SecretOrders(tmp_path, recipe())
    for site in fed.names:
        offer = Letter("offer", "s", recipe=fed.settings, send={"rounds": 20, "sites": list(fed.names)})
        assert not Reply.read(fed.services[site].answer(offer.pack())).refusal
    first, second = ask(fed, EVERYBODY), ask(fed, WITHOUT_D, 0, 1e-7, run="s")
    assert error_of_difference(fed, first, second) > 0.1


def test_two_rounds_show_an_update_of_whole_batches(tmp_path: Path) -> None:
    """Not defended, as the threat model says: sites come and go between rounds."""
    whole = recipe()
    whole["method"] |= {"batch": 100}
    fed = SecretOrders(tmp_path, whole)
    first, second = ask(fed, EVERYBODY), ask(fed, WITHOUT_D, 0, 1e-7, in_round=1)
    assert error_of_difference(fed, first, second) < 1e-4


def test_replies_of_one_round_are_not_weighed_in_two_ways(tmp_path: Path) -> None:
    """Of sites of which all but one have the same number of rows, evenly weighed less by rows is that one's reply."""
    fed = Federation(tmp_path, recipe())
    ask(fed, EVERYBODY)
    fed.change = at("shares", "abcd", lambda x: terms_with(x, even=True))
    with pytest.raises((TooFew, NoReply)):
        ask(fed, EVERYBODY, 1, 1e-7)
    assert "by rows over 23.0, and are now to be summed evenly" in fed.reason("a")


def test_a_sum_for_which_no_site_revealed_its_shares_may_be_had_with_those_that_are_left(
    tmp_path: Path,
) -> None:
    fed = Federation(tmp_path, recipe())
    fed.change = at("unmask", "abcd", lambda letter: None)
    with pytest.raises(TooFew):
        ask(fed, EVERYBODY)
    fed.change = lambda site, letter: letter
    assert len(ask(fed, WITHOUT_D, 0, 1e-7))


def test_a_site_that_alone_revealed_its_shares_is_in_no_other_sum_of_the_round(tmp_path: Path) -> None:
    """The server says that it got too few, and asks those that are left. Only the ledger knows, after a restart too."""
    fed = Federation(tmp_path, recipe())
    fed.change = at("unmask", "bcd", lambda letter: None)
    with pytest.raises(TooFew):
        ask(fed, EVERYBODY)
    fed.change = lambda site, letter: letter
    fed.services = {s: fed.service(s) for s in fed.names}
    with pytest.raises(TooFew):
        ask(fed, WITHOUT_D, 0, 1e-7)
    assert "replies to train of round 1 were summed before, of a,b,c,d" in fed.reason("a")


def test_a_ledger_of_an_older_motet_counts_too(tmp_path: Path) -> None:
    """Its lines name the verb of the letter alone."""
    fed = Federation(tmp_path, recipe())
    line = LedgerLine(caller="server", job="mask", verb="train", run="r", round=0, letter="x")
    for site in fed.names:
        old = changed(line, sum_of="a,b,c,d", sum_for="y", sum_as="by rows over 23.0")
        Ledger(tmp_path / site).write(old)
    with pytest.raises(TooFew):
        ask(fed, WITHOUT_D)
    assert "replies to train of round 1 were summed before, of a,b,c,d" in fed.reason("a")
    assert len(ask(fed, EVERYBODY, 1))


def test_a_sum_that_was_begun_for_one_verb_takes_no_reply_to_another(tmp_path: Path) -> None:
    """Else the ledger would name the wrong one."""
    fed = Federation(tmp_path, recipe())
    fed.change = lambda site, x: changed(x, verb="other") if x.job == "mask" else x
    with pytest.raises((TooFew, NoReply)):
        ask(fed, EVERYBODY)
    assert "begun for another kind of reply" in fed.reason("a")


def test_scores_of_a_round_are_no_replies_to_its_verb(tmp_path: Path) -> None:
    """Who was lost when models were scored as training leaves them may train with the others of that round."""
    ledger, line = Ledger(tmp_path), LedgerLine(job="mask", verb="train", run="r", round=0)
    ledger.count(changed(line, letter="x", sum_of="a,b,c", sum_for="x", sum_as="evenly", sum_verb="-"))
    check_written(changed(line, sum_of="a,b,c,d", sum_for="y", sum_verb="train"), Policy(), ledger)


def test_groups_of_one_round_are_summed_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As PFA asks them: no site is in two groups."""
    six = data() | {"e": data()["a"], "f": data()["c"]}
    monkeypatch.setattr(test_masked_sites, "data", lambda: six)
    fed = Federation(tmp_path, recipe(), names=tuple("abcdef"))
    assert len(ask(fed, ("a", "b", "c"))) and len(ask(fed, ("d", "e", "f"), 1))
    with pytest.raises(TooFew):
        ask(fed, ("c", "d", "e", "f"), 2, 1e-7)


def test_a_swarm_goes_on_when_a_site_is_lost_between_two_epochs_of_a_round(tmp_path: Path) -> None:
    """Its epochs are asks of one verb, so that its contract allows as many sets of sites in a round."""
    fed = Federation(tmp_path, recipe("swarm", mask_range=4096.0))
    fed.engine.masks = MaskSettings(range=4096.0)
    fed.change = at("verb", "d", lambda x: None if x.number > 3 else x)
    assert leaves(fed.go(last=1)) and "d" in fed.engine.away
    contract = fed.services["a"].stored_contract("r")
    assert contract is not None and contract.sets_in_round("loss_of_particles", fed.policy) == 20
    lines = read_ledger(tmp_path / "a")[0]
    assert {x.sum_of for x in lines if x.sum_of and x.round == 0} == {"a,b,c,d", "a,b,c"}


@pytest.mark.parametrize("settings", [{}, {"k": 0}, {"k": 0, "choose_k": "trials"}], ids=str)
@pytest.mark.parametrize("grouping", ["kmeans", "none", "threshold", "random"])
@pytest.mark.parametrize("name", ["pfa", "fedperc", "grouptune"])
def test_groups_are_summed_with_one_set_of_sites_however_they_are_found(
    name: str, grouping: str, settings: dict[str, Any]
) -> None:
    """Where the number of groups is tried out there are several sets in a round, and masked sums are refused."""
    from motet.runs.recipe import method_class

    method = method_class(name)(None, grouping=grouping, **settings)
    assert method.shows_differences() or method.most_asks() == 1


FIVE = ("a", "b", "c", "d", "e")


class FiveSites:
    """Sites' parts in sums, without training. A restart leaves them their ledgers alone."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.keys = folder, LocalKeys()
        for s in FIVE:
            self.keys.sign(s)
        self.sums = {s: self.site(s) for s in FIVE}
        self.round = 0

    def site(self, name: str) -> SiteSums:
        identity = SiteIdentity(self.keys.sign(name), self.keys.verify)
        return SiteSums(name, identity, Ledger(self.folder / name))


class AnySum(MaskedSum):
    """What a server does that chooses the sites, the weights, and who hears of which step."""

    def __init__(self, sites: FiveSites, sent: float, deaf: dict[str, set[str]], number: int) -> None:
        self.letter = Letter("verb", "r", sites.round, number, verb="train", send=sent)
        super().__init__(asked_in(self.letter, asked_hash("train", sent, 0.0)), 3)
        self.sites, self.deaf = sites, deaf

    def open(self) -> None:
        self.server.open(FixedPoint(len(self.server.notes)), 1.0, least=3, even=True)

    def masked_replies(self) -> None:
        for client, own in self.letters().items():
            if client in self.deaf.get("verb", ()):
                continue
            reply = Reply(torch.full((3,), float(self.letter.send) + ord(client)), 1).pack()
            with suppress(MaskRefused):
                left = self.sites.sums[client].leaving(changed(self.letter, **own), "", reply)
                self.server.take_masked(client, Reply.read(left).tree["words"], 3)

    def step(self, step: str, to: list[Client], **said: Any) -> dict[Client, Tree]:
        send = {"step": step, "session": self.server.session, **said}
        letter, found = changed(self.letter, job="mask", send=send), {}
        for client in [c for c in to if c not in self.deaf.get(step, ())]:
            sums = self.sites.sums[client]
            with suppress(MaskRefused):
                tree, written = sums.step(letter, SumRules(3, 64, 1024.0, FIVE))
                if written:
                    line = changed(LedgerLine.about(letter, "server", letter.digest), **written)
                    sums.ledger.write(line, partial(check_written, line, Policy(), sums.ledger))
                found[client] = tree
        return found


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> FiveSites:
    return FiveSites(tmp_path_factory.mktemp("five"))


SOME = st.sets(st.sampled_from(FIVE), max_size=2)
ASKS = st.lists(
    st.tuples(
        st.sets(st.sampled_from(FIVE), min_size=3),
        st.sampled_from([0.0, 1e-7, 1.0]),
        st.dictionaries(st.sampled_from(["verb", "consent", "unmask"]), SOME, max_size=2),
        SOME,
    ),
    min_size=2, max_size=3,
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(asks=ASKS)
def test_no_site_is_in_two_different_sums_of_one_verb_and_round(five: FiveSites, asks: Any) -> None:
    """Whoever is asked, with whatever weights, who hears of it, and who is restarted in between."""
    five.round += 1
    had = set[frozenset[str]]()
    for number, (who, sent, deaf, restarted) in enumerate(asks):
        one = AnySum(five, sent, deaf, number)
        with suppress(MaskRefused):
            one.total(sorted(who))
            had.add(frozenset(one.server.alive))
        five.sums |= {s: five.site(s) for s in restarted}
    assert all(one == other or not one & other for one in had for other in had)
    for s in FIVE:
        lines = [x for x in read_ledger(five.folder / s)[0] if x.round == five.round and x.sum_of]
        assert len({x.sum_of for x in lines}) <= 1
