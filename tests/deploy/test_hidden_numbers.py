"""Scores, sums of columns and counts in masked sums: what the server gets, what it cannot get, and what it says."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replaced
from scipy import stats

from deploy.test_job import ROUNDS, SITES, Came, Cut, Letters, Town
from deploy.test_masked_sites import Federation, at, data, recipe
from motet.cli.main import main
from motet.core import NoReply, average
from motet.data.federated import DataError
from motet.deploy.server.all_sites import AllSites
from motet.deploy.server.handshake_sums import HandshakeSums
from motet.deploy.server.run_files import read_report
from motet.deploy.site.ledger import read_ledger
from motet.deploy.site.own_scores import read_scores, scores_text
from motet.deploy.site.policy import Policy, PolicyError
from motet.deploy.site.service import SiteService
from motet.deploy.site.site_identity import SiteIdentity
from motet.engines.flare import Flare
from motet.engines.letters import Letter, LetterJob, Reply, asked_for
from motet.engines.loop import Loop
from motet.engines.masked_asks import MaskSettings
from motet.engines.score_sums import mean_scores, score_names, score_numbers
from motet.guard.masks.exact import RANGE, digit_sums, digits_of, exact_sums
from motet.guard.masks.in_process import LocalKeys, LocalSum
from motet.guard.masks.refused import MaskRefused
from motet.runs.run import Run
from motet.runs.store import Store
from motet.text import ALL_SITES

HIDDEN = Policy(masks="required", scores="masked", counts="masked", sums="masked")
KEYS = ["round", "part", "side"]
WORDS = ("method.lr=0.1", "method.epochs=1", "guard.masked=true")


class HiddenTown(Town):
    """Sites with keys; `carried` has all that the server was sent, and `change` sees letters before they arrive."""

    def __init__(
        self, folder: Path, policy: Policy = HIDDEN, words: Sequence[str] = WORDS, **policies: Policy
    ) -> None:
        self.keys = LocalKeys()
        for site in SITES:
            self.keys.sign(site)
        self.carried: list[tuple[str, Letter, bytes]] = []
        self.change: Callable[[str, Letter], Letter] = lambda site, letter: letter
        super().__init__(folder, words=words, **{s: policy for s in SITES} | policies)

    def service(self, site: str) -> SiteService:
        made = super().service(site)
        made.sums.identity = SiteIdentity(self.keys.sign(site), self.keys.verify)
        return made

    def post(self, letters: Letters) -> Came:
        came = {}
        for site, message in letters.items():
            letter = self.change(site, Letter.read(message))
            came[site] = self.services[site].answer(letter.pack())
            self.carried.append((site, letter, came[site]))
        return came, {}

    def reason(self, site: str) -> str:
        return [x.text for x in read_ledger(self.folder / site)[0] if x.clause][-1]


# ---- exact sums ----


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e28, 1e28), min_size=1, max_size=6))
def test_a_sum_of_digits_is_off_by_half_a_step_for_each_number(numbers: list[float]) -> None:
    (found,) = exact_sums(np.sum([digits_of([x]) for x in numbers], axis=0))
    assert abs(found - sum(map(Fraction, numbers))) <= len(numbers) * Fraction(1, 1 << 97)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 2.0**96, -(2.0**120)])
def test_a_number_that_digits_cannot_hold_is_refused(odd: float) -> None:
    with pytest.raises(MaskRefused, match="exact sum"):
        digits_of([odd])


ACCURACY = {"a": 0.5, "b": 0.75, "c": 1.0, "d": 0.25}
AUC = {"a": (0.6, 10.0), "b": (0.9, 30.0), "c": (float("nan"), 0.0), "d": (0.7, 20.0)}


def scores_of(client: str) -> dict[str, dict[str, float]]:
    auc, pairs = AUC[client]
    return {"personal": {"n": 8.0, "accuracy": ACCURACY[client], "auc": auc, "pairs": pairs}}


@pytest.mark.parametrize(
    ("lost", "accuracy", "sd", "auc"),
    [("", 0.625, 0.2795084971874737, (6 + 27 + 14) / 60), ("d", 0.75, 0.2041241452319315, (6 + 27) / 40)],
)
def test_the_masked_mean_of_scores_is_the_plain_one_with_nobody_and_one_lost(
    lost: str, accuracy: float, sd: float, auc: float
) -> None:
    of = {c: (digits_of(score_numbers(scores_of(c))), 1.0) for c in "abcd"}
    server, total = LocalSum(64, RANGE, lost=lambda step, c: step == "masked" and c == lost).run(of)
    sums = exact_sums(digit_sums(server.terms.numbers, total))
    means, spreads = mean_scores(score_names(scores_of("a")), sums, len(server.alive), "val")
    found = {k: float(v) for k, v in means["personal"].items()}
    assert found["accuracy"] == accuracy and found["n"] == 8 * len(server.alive)
    assert found["auc"] == pytest.approx(auc, abs=1e-15)  # by pairs; c has none
    assert spreads["personal"]["accuracy"] == pytest.approx(sd, abs=1e-15)
    tested, _ = mean_scores(score_names(scores_of("a")), sums, len(server.alive), "test")
    assert float(tested["personal"]["auc"]) == pytest.approx(
        (0.6 + 0.9 + 0.7 * (not lost)) / (2 + (not lost))
    )


def test_a_loss_that_no_exact_sum_holds_is_none() -> None:
    """A site whose training diverged is then in the sum, as one without a loss, and the round ends."""
    found = score_numbers({"global": {"loss": 1e20, "n": 4.0}})
    assert found == [0, 0, 0, 4] and len(digits_of(found)) == 32


# ---- a whole run ----


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> HiddenTown:
    town = HiddenTown(tmp_path_factory.mktemp("hidden"))
    assert town.go().state == "done"
    return town


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> HiddenTown:
    """The same with scores in the clear."""
    town = HiddenTown(
        tmp_path_factory.mktemp("shown"), Policy(masks="required", counts="masked", sums="masked")
    )
    assert town.go().state == "done"
    return town


def test_the_global_model_is_the_same_to_the_bit_with_masked_and_with_plain_scores(
    hidden: HiddenTown, shown: HiddenTown
) -> None:
    assert Store(hidden.run).state(ROUNDS - 1) == Store(shown.run).state(ROUNDS - 1)
    a, b = Run(hidden.run), Run(shown.run)
    assert a.facts["reported"] == b.facts["reported"]
    assert set(a.scores["client"]) == {ALL_SITES} and set(b.scores["client"]) == set(SITES)


def at_home(town: HiddenTown) -> pd.DataFrame:
    """Every score of every site, as its owner has it."""
    rows = [(s, r) for s in SITES for r in read_scores(town.folder / s, town.order.run)]
    return pd.DataFrame([{k: r[k] for k in KEYS} | r["scores"] | {"site": s} for s, r in rows])


def test_masked_scores_are_means_and_spreads_of_what_sites_have_at_home(hidden: HiddenTown) -> None:
    found, own = Run(hidden.run), at_home(hidden).groupby(KEYS)
    metrics = ["accuracy", "loss", "brier", "f1", "ece", "balanced"]
    told = found.scores.set_index(KEYS)
    np.testing.assert_allclose(told[metrics].loc[[*own.groups]], own[metrics].mean(), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(told["n"].loc[[*own.groups]], own["n"].sum())
    sd = own["accuracy"].std(ddof=0).loc[ROUNDS - 1, "test", "personal"]
    assert found.facts["site_scores"]["test"]["sd"]["personal"]["accuracy"] == pytest.approx(sd, abs=1e-12)


def test_masked_sums_of_columns_are_those_that_sites_would_say(hidden: HiddenTown, tmp_path: Path) -> None:
    plain = Town(tmp_path)
    assert plain.go().state == "done"
    found, same = (Store(t.run).facts() for t in (hidden, plain))
    assert found["totals"] == {"train": 115, "val": 42, "test": 53} and "totals" not in same
    means = [unpacked(t.run / "layout.motet") for t in (hidden, plain)]
    for name in ("means", "middle", "spread"):
        torch.testing.assert_close(means[0][name], means[1][name], rtol=1e-13, atol=1e-13)
    assert Run(hidden.run).clients["train"].tolist() == [0, 0, 0]


def unpacked(path: Path) -> Any:
    from motet.wire import unpack

    return unpack(path.read_bytes())


def leaves_of(tree: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict | list | tuple):
        pairs = tree.items() if isinstance(tree, dict) else ((str(i), v) for i, v in enumerate(tree))
        for k, v in pairs:
            yield from leaves_of(v, f"{at}.{k}" if at else str(k))
    else:
        yield at, tree


def test_what_the_server_got_has_no_score_sum_or_count_of_a_site(hidden: HiddenTown) -> None:
    """No reply holds a number at all, but for the split and the version, which are no secrets; masked ones look
    random."""
    words = b""
    for _, letter, raw in hidden.carried:
        reply = Reply.read(raw)
        found = [(k, v) for k, v in leaves_of(reply.tree) if isinstance(v, int | float | torch.Tensor)]
        odd = [k for k, v in found if not isinstance(v, bool) and not k.startswith(("split.", "protocol"))]
        odd = [k for k in odd if ".shape." not in k]  # of a masked reply's form
        assert not odd and reply.n in (0, 1), (letter.job, odd)
        if letter.job in ("evaluate", "measure", "count"):
            words += reply.tree["words"]
    counts = np.bincount(np.frombuffer(words, np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4 and len(words) > 10_000
    own = [
        v
        for s in SITES
        for r in read_scores(hidden.folder / s, hidden.order.run)
        for v in r["scores"].values()
    ]
    sent = b"".join(raw for _, letter, raw in hidden.carried)
    assert len(own) and not [v for v in own if v not in (0.0, 0.5, 1.0) and np.float64(v).tobytes() in sent]


def test_a_run_with_masked_scores_is_shown_and_says_what_is_not_known(
    hidden: HiddenTown, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["show"], ["show", "--clients"], ["report", "--to", str(tmp_path / "r.html")]):
        assert main([words[0], str(hidden.run), *words[1:]]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "over 3 clients" in said and "No site's own score or gain is known here" in said
    assert "personal" in Run(hidden.run).summary


def test_a_sites_owner_sees_its_own_scores(hidden: HiddenTown) -> None:
    text = scores_text(hidden.order.run, read_scores(hidden.folder / "a", hidden.order.run))
    assert "accuracy" in text and "personal" in text and "test" in text


def test_a_server_that_is_killed_at_any_letter_ends_with_the_same_model_and_scores(
    hidden: HiddenTown, tmp_path: Path
) -> None:
    town, draw = HiddenTown(tmp_path), random.Random(3)

    def post(letters: Letters) -> Came:
        if draw.random() < 0.02:
            raise Cut
        return town.post(letters)

    for _ in range(60):
        try:
            if town.go(post).state == "done":
                break
        except Cut:
            continue
    assert read_report(town.run).state == "done"
    assert Store(town.run).state(ROUNDS - 1) == Store(hidden.run).state(ROUNDS - 1)
    a, b = (Run(t.run).scores.sort_values(KEYS).reset_index(drop=True) for t in (town, hidden))
    assert a.equals(b)


@pytest.mark.long
def test_models_as_training_leaves_them_are_scored_in_masked_sums_too(tmp_path: Path) -> None:
    town = HiddenTown(tmp_path, words=[*WORDS, "train.after_training=true"])
    assert town.go().state == "done"
    found = Run(town.run).scores.query("side == 'after_training'")
    assert set(found["client"]) == {ALL_SITES} and found["accuracy"].between(0, 1).all()


# ---- what is refused ----


def test_nothing_that_is_masked_leaves_in_the_clear(hidden: HiddenTown) -> None:
    run = hidden.order.run
    evaluate = next(x for s, x, _ in hidden.carried if x.job == "evaluate" and s == "a")
    from msgspec.structs import replace

    asked = {
        "sums": Letter("measure", run, send={"kind": "classes"}),
        "counts": Letter("count", run, send={"classes": []}),
        "scores": replace(evaluate, masked={}),
    }
    for clause, letter in asked.items():
        assert Reply.read(hidden.services["a"].answer(letter.pack())).refusal == clause
    assert 'scores = "masked"' in hidden.reason("a")


def alone(town: HiddenTown, who: list[str], job: str, send: dict[str, Any], least: int = 1) -> str:
    """What a server meets that asks these sites alone."""
    engine = Flare(who, town.post, town.order.run)
    summed = HandshakeSums(AllSites(engine, town.post), town.order.run, least)
    with pytest.raises(DataError):
        summed(job, send, who, 4 if job == "measure" else 3)
    return town.reason(who[0])


def test_a_server_that_asks_one_site_alone_is_refused(hidden: HiddenTown) -> None:
    said = alone(hidden, ["a"], "count", {"classes": []})
    assert "a sum of 1 replies was asked for, and min_in_sum is 3" in said


def test_a_column_or_a_class_that_a_site_does_not_have_is_not_summed_with_it(hidden: HiddenTown) -> None:
    send = {"kind": "classes", "columns": ["p", "salary"], "target": False}
    assert "'salary', which is no column of this site" in alone(hidden, [*SITES], "measure", send, 3)
    assert "classes of the layout" in alone(hidden, [*SITES], "count", {"classes": ["no"]}, 3)


def test_sums_before_runs_are_of_few_different_sets_of_sites(tmp_path: Path) -> None:
    town = HiddenTown(tmp_path)
    for s in SITES:
        town.services[s].ledger.cohorts |= {f"a,b,{x}" for x in "defgh"}
    assert "cohorts = 5" in alone(
        town, [*SITES], "measure", {"kind": "classes", "columns": ["p"], "target": False}, 3
    )


def test_sums_of_columns_are_in_no_sum_of_a_runs_scores(hidden: HiddenTown) -> None:
    """There they would not count as a set of sites, and could be summed with any number of them."""
    run = hidden.order.run
    scored = next(x for s, x, _ in hidden.carried if x.job == "mask" and s == "a" and x.send.get("exact"))
    site, session = hidden.services["a"], b"columns in scores"
    keys = replaced(scored, send={"step": "keys", "session": session, "exact": True})
    assert not Reply.read(site.answer(keys.pack())).refusal
    asked: dict[LetterJob, Any] = {
        "measure": {"kind": "classes", "columns": ["p"], "target": False},
        "count": {"classes": []},
    }
    for job, send in asked.items():
        letter = Letter(job, run, *scored.label, send=send, masked={"session": session, "sealed": {}})
        assert Reply.read(site.answer(letter.pack())).refusal == "masks"
        assert "begun for another kind of reply" in hidden.reason("a")


def test_the_same_scores_after_training_are_the_same_whatever_part_the_letter_names() -> None:
    """Both parts are scored by such a letter, so that two names would be two sums of the same scores."""
    assert asked_for("evaluate_trained", "val", 1.0) == asked_for("evaluate_trained", "test", 1.0)
    assert asked_for("evaluate", "val", 1.0) != asked_for("evaluate", "test", 1.0)


def test_sites_that_hide_sums_and_a_run_without_masks_do_not_fit(tmp_path: Path) -> None:
    town = HiddenTown(tmp_path, Policy(sums="masked"), words=["method.lr=0.1", "method.epochs=1"])
    report = town.go()
    assert report.state == "failed" and "guard.masked=true, or data.scale=client" in report.why


def test_letters_of_masked_sums_have_a_budget(hidden: HiddenTown) -> None:
    contract = hidden.services["a"].stored_contract(hidden.order.run)
    assert contract is not None and (rule := contract.rule("mask")) is not None
    keys = [x for s, x, _ in hidden.carried if x.job == "mask" and s == "a" and x.round == 0]
    assert 0 < len(keys) < rule.per_round < rule.in_all
    ledger = hidden.services["b"].ledger
    ledger.asks[hidden.order.run, 0, "mask"] |= {str(i) for i in range(rule.per_round)}
    from msgspec.structs import replace

    new = replace(keys[0], send={"step": "keys", "session": bytes(32)})
    assert Reply.read(hidden.services["b"].answer(new.pack())).refusal == "asks"


def test_a_policy_says_true_false_or_masked() -> None:
    assert Policy.of({"scores": "masked", "counts": False}).hidden == ["scores"]
    with pytest.raises(PolicyError, match="scores"):
        Policy.of({"scores": "shown"})


# ---- engines ----


@pytest.mark.parametrize("lost", ["", "d"])
def test_scores_of_those_that_are_left_are_summed(lost: str, tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe(), scores="masked")
    state, fed.engine.hides_scores = fed.go(last=1), True
    change = at("evaluate", "d", lambda letter: None)
    fed.change = lambda site, x: None if x.job == "evaluate" and site == lost else change(site, x)
    clients, found = fed.engine.evaluate(fed.method, state, fed.turn(0), "test")
    loop = Loop({s: v for s, v in data().items() if s != lost})
    _, plain = loop.evaluate(fed.method, state, fed.turn(0), "test")
    assert clients == [ALL_SITES] and fed.engine.spreads["test"]["sites"] == 4 - bool(lost)
    for metric in ("accuracy", "loss", "brier"):
        assert float(found["global"][metric]) == pytest.approx(
            float(plain["global"][metric].mean()), abs=1e-12
        )
    assert float(found["global"]["n"]) == float(plain["global"]["n"].sum())


def test_with_too_few_sites_that_let_scores_leave_there_are_none_and_an_event_says_so(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe(), scores="masked")
    state, fed.engine.hides_scores = fed.go(last=1), True
    fed.engine.masks = MaskSettings(min_in_sum=5)
    assert fed.engine.evaluate(fed.method, state, fed.turn(0), "val") == ([], {})
    assert "a, b, c, d are not scored on val rows" in fed.engine.left_out[-1]


def test_a_group_that_is_too_small_for_a_sum_becomes_an_event(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe())
    fed.engine.begin(fed.method, fed.turn(0))
    with pytest.raises(NoReply):
        fed.engine.ask(average(fed.method.train, ["a", "b"], send=fed.method.task.w0))
    assert fed.engine.left_out == [
        "round 1: a, b are left out of train: 2 sites were to be averaged, and guard.min_in_sum is 3: their sum would "
        "show too much"
    ]
