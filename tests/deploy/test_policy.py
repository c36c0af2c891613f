"""A site's policy, what methods need, and dry runs: refusals come before anything starts, with the reason."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sites
from motet.core import average, collect
from motet.deploy.site.contract import turn_seed
from motet.deploy.site.dry_run import dry_run, dry_text
from motet.deploy.site.ledger import read_ledger
from motet.deploy.site.needs import needs_of
from motet.deploy.site.policy import Policy, PolicyError
from motet.deploy.site.service import SiteService
from motet.deploy.site.table import SiteTable
from motet.engines.letters import Letter, Reply
from motet.runs.method_asks import asks_in
from motet.runs.recipe import method_class, method_names, read


def offer(tmp_path: Path, policy: Policy, method: str = "fedper", rounds: int = 5) -> str:
    """The clause and the reason of a refusal."""
    return offered(sites.service("a", tmp_path, policy), tmp_path, "r", method, rounds)


def offered(service: SiteService, folder: Path, run: str, method: str = "fedper", rounds: int = 5) -> str:
    letter = Letter("offer", run, recipe=sites.recipe(method), send={"rounds": rounds})
    return refusal(service, letter.pack(), folder)


def refusal(service: SiteService, message: bytes, folder: Path) -> str:
    clause = Reply.read(service.answer(message)).refusal
    return f"{clause}: {read_ledger(folder)[0][-1].text}" if clause else ""


# ---- reading ----


def test_a_policy_is_read_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('methods = ["fedavg"]\nlearn = "collect"\nrounds = 9\ncounts = false\n')
    assert Policy.read(path) == Policy(methods=("fedavg",), learn="collect", rounds=9, counts=False)


def test_all_that_is_wrong_with_a_policy_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('learn = "everything"\nrounds = 0\nreply_byte = 5\nmethods = "fedavg"\n')
    with pytest.raises(PolicyError) as e:
        Policy.read(path)
    for part in ("one of average, collect", "rounds is 0", "did you mean 'reply_bytes'", "must be a list"):
        assert part in str(e.value)
    with pytest.raises(PolicyError, match="there is no policy"):
        Policy.read(tmp_path / "none.toml")


# ---- offers ----


def test_a_method_within_the_policy_is_accepted(tmp_path: Path) -> None:
    assert offer(tmp_path, Policy(methods=("fedper",), verbs=("train",), rounds=5)) == ""


@pytest.mark.parametrize(
    ("policy", "method", "reason"),
    [
        (Policy(), "pfa", "learn: pfa asks for sparsity by `collect`"),
        (Policy(), "page", "learn: page asks for train by `collect`"),
        (Policy(methods=("fedavg",)), "fedper", "methods = ['fedavg'], and fedper is none of them"),
        (Policy(verbs=("fedavg.train",)), "fedper", "verbs = ['fedavg.train'], and train is none of them"),
        (Policy(reply_bytes=100), "fedper", "and this site's policy has reply_bytes = 100"),
        (Policy(rounds=4), "fedper", "rounds: the run has 5 rounds, and this site's policy has rounds = 4"),
    ],
)
def test_a_method_that_needs_more_is_refused_before_it_starts_with_the_reason(
    tmp_path: Path, policy: Policy, method: str, reason: str
) -> None:
    assert reason in offer(tmp_path, policy, method)
    assert not list(tmp_path.rglob("*.keep"))


class Late(method_class("fedavg")):  # type: ignore[misc]
    """FedAvg whose server uses single replies in its hundredth round."""

    def round(self, w: Any, turn: Any) -> Any:
        if turn.number < 100:
            return (yield average(self.train, turn.cohort, send=w))
        replies = yield collect(self.train, turn.cohort, send=w)
        return next(iter(replies.values()))


def test_what_only_later_rounds_ask_is_known_from_the_methods_text() -> None:
    late = Late(sites.method(sites.recipe("fedavg")).task)
    needs = needs_of(late, sites.federation({"a": sites.clients_data()["a"]}))
    found = {(n.verb, n.learn): n.seen for n in needs}
    assert found[("train", "average")] and found[("train", "collect")] is False
    assert any("by `collect`" in why.text for why in Policy().objections("late", needs, 5, 0))


def test_every_ask_of_every_method_stands_in_its_text() -> None:
    for name in method_names():
        settings = sites.recipe(name)
        found = needs_of(sites.method(settings), sites.federation({"a": sites.clients_data()["a"]}))
        seen = {(n.verb, n.learn) for n in found if n.seen and n.verb != "evaluate"}
        assert seen, name
        assert seen <= set(asks_in(method_class(name))), name


# ---- asks ----


def ask(number: int = 0, **more: Any) -> bytes:
    method = sites.method(sites.recipe("fedper"))
    usual: dict[str, Any] = {
        "verb": "train",
        "recipe": sites.recipe("fedper"),
        "send": method.start(sites.turn(-1)),
    }
    return Letter("verb", "r", number, 0, turn_seed(1, number), **(usual | more)).pack()


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Policy(verbs=("train_extractor",)), "train is none of them"),
        (Policy(methods=("fedavg",)), "fedper is none of them"),
        (Policy(reply_bytes=64), "reply_bytes = 64"),
    ],
)
def test_what_the_policy_refuses_has_no_contract_and_no_letter_of_it_is_answered(
    tmp_path: Path, policy: Policy, reason: str
) -> None:
    service = sites.service("a", tmp_path, policy)
    assert "was not offered" in refusal(service, ask(), tmp_path)
    assert reason in read_ledger(tmp_path)[0][-2].text
    assert not list(tmp_path.rglob("*.keep")), "nothing is kept of an ask that was refused"


def test_rounds_are_counted_over_restarts_and_a_repeated_one_counts_once(tmp_path: Path) -> None:
    policy = Policy(rounds=2)
    assert not offered(sites.service("a", tmp_path, policy), tmp_path, "r", rounds=2)
    for number in (0, 0, 1, 0):
        assert not refusal(sites.service("a", tmp_path, policy), ask(number), tmp_path)
    service = sites.service("a", tmp_path, policy)
    assert refusal(service, ask(2), tmp_path).startswith("rounds: ")
    assert "rounds = 2, and they are used up" in refusal(service, ask(-1), tmp_path)
    assert "after 2 of earlier runs" in offered(service, tmp_path, "another", rounds=1)


def test_scores_and_numbers_of_rows_stay_where_the_policy_says_so(tmp_path: Path) -> None:
    service = sites.service("a", tmp_path, Policy(scores=False, counts=False))
    reply = Reply.read(service.answer(ask()))
    assert reply.n == 1 and not reply.refusal
    sent = {"global": (), "download": reply.tree, "same": False}
    letter = Letter(
        "evaluate", "r", 0, 0, turn_seed(1, 0), recipe=sites.recipe("fedper"), send=sent, base=(0, 0)
    )
    assert refusal(service, letter.pack(), tmp_path).startswith("scores: ")


# ---- dry runs ----


@pytest.fixture
def source(tmp_path: Path) -> SiteTable:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": rng.normal(50, 9, 40), "sex": rng.choice(["f", "m"], 40), "y": rng.integers(0, 2, 40)}
    )
    frame.to_csv(tmp_path / "a.csv", index=False)
    return SiteTable("hospital-a", tmp_path / "a.csv", "y")


def test_a_dry_run_says_what_would_leave_verb_by_verb(source: SiteTable) -> None:
    recipe = read(None, ["method=fedper", "net=mlp", "net.hidden=[8]", "train.rounds=7"])
    text = dry_text(dry_run(source, Policy(), recipe))
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    contract = text.partition("the contract that letters of such a run are held to:")[2]
    terms = [" ".join(line.split()) for line in contract.splitlines()]
    wanted = [
        "caller server",
        "rows train 24, val 6, test 10",
        "may ask train average; 3 in a round, 16 in all",
    ]
    assert set(wanted) <= set(terms)
    assert "hospital-a with fedper, in 7 rounds; nothing was sent" in text
    assert "a mean (average)" in lines["train"] and "fc1.weight 8×3 float32" in lines["train"]
    assert "head" not in lines["train"], "what stays is not what leaves"
    assert {"describe", "measure", "train", "evaluate"} <= set(lines)
    assert text.endswith("within this site's policy")


def test_a_dry_run_is_json_for_machines_and_says_what_would_be_refused(source: SiteTable) -> None:
    report = json.loads(json.dumps(asdict(dry_run(source, Policy(sums=False, rounds=3), "page"))))
    train = next(n for n in report["needs"] if n["verb"] == "train")
    assert train["learn"] == "collect" and train["up"] > 0
    said = " ".join(report["objections"])
    assert "by `collect`" in said and "rounds = 3" in said and "no sums of columns" in said


def test_sizes_of_a_dry_run_are_those_of_the_replies(tmp_path: Path) -> None:
    method = sites.method(sites.recipe("fedper"))
    need = next(
        n for n in needs_of(method, sites.federation({"a": sites.clients_data()["a"]})) if n.verb == "train"
    )
    reply = sites.service("a", tmp_path).answer(ask())
    assert abs(len(reply) - need.up) <= 10, "but for the digits of the number of rows"
