"""A site's service: verbs by name, keeps encrypted, repeated asks, and whatever may come in."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import sites
from motet.client.visit import name_of
from motet.core import Turn
from motet.deploy.site.contract import turn_seed
from motet.deploy.site.ledger import read_ledger
from motet.deploy.site.policy import Policy
from motet.deploy.site.service import SiteService
from motet.deploy.site.storage import EncryptedState, EncryptedStateError, site_key
from motet.engines.driver import play, start
from motet.engines.letters import Label, Letter, Reply
from motet.engines.loop import Loop
from motet.engines.wrappers.faulty import Faulty
from motet.engines.wrappers.wrapper import Wrapper
from motet.vec import Vec, leaves
from motet.wire import pack, unpack

FEDPER = sites.recipe("fedper")
METHOD = sites.method(FEDPER)
BODY = METHOD.start(Turn(-1, ["a"], ["a"], 0))


def ask(number: int = 0, **more: Any) -> Letter:
    usual = {"verb": "train", "recipe": FEDPER, "send": BODY, "seed": turn_seed(1, number)}
    return Letter("verb", "r", number, 0, **(usual | more))


def asked(service: SiteService, letter: Letter) -> Reply:
    return Reply.read(service.answer(letter.pack()))


def offer(service: SiteService, recipe: Any) -> Reply:
    return asked(service, Letter("offer", "r", recipe=recipe, send={"rounds": 5}))


def said(folder: Path) -> str:
    """The reason of the last refusal, which stays at the site."""
    return read_ledger(folder)[0][-1].text


def keep_of(service: SiteService, label: Label) -> Any:
    content = service.states(ask()).get(label)
    assert content is not None
    return unpack(content)["keep"]


# ---- what it does ----


def test_a_verb_does_at_a_site_what_it_does_in_a_loop(tmp_path: Path) -> None:
    loop = Loop({"a": sites.clients_data()["a"]})
    expected = play(loop, METHOD, BODY, Turn(0, ["a"], ["a"], turn_seed(1, 0)))
    service = sites.service("a", tmp_path)
    reply = asked(service, ask())
    assert reply.n == loop.clients_data["a"].n
    assert all(torch.equal(reply.tree[k], expected[k]) for k in expected)
    assert all(torch.equal(keep_of(service, (0, 0))[k], v) for k, v in loop.keeps.get("a").items())


def test_a_repeated_ask_gets_the_same_reply_and_advances_nothing(tmp_path: Path) -> None:
    service = sites.service("a", tmp_path)
    first = service.answer(ask().pack())
    kept = pack(keep_of(service, (0, 0)))
    assert sites.service("a", tmp_path).answer(ask().pack()) == first
    assert pack(keep_of(service, (0, 0))) == kept


def test_another_ask_with_the_same_label_starts_again_from_the_version_that_it_names(tmp_path: Path) -> None:
    once, twice = sites.service("a", tmp_path / "1"), sites.service("a", tmp_path / "2")
    asked(twice, ask(0))
    asked(twice, ask(1, base=(0, 0), send=BODY * 0.5))  # a server that went back asks something else
    asked(once, ask(0))
    assert pack(asked(once, ask(1, base=(0, 0))).tree) == pack(asked(twice, ask(1, base=(0, 0))).tree)


def test_a_reply_that_is_not_finite_is_spoilt_and_the_client_keeps_what_it_had(tmp_path: Path) -> None:
    service = sites.service("a", tmp_path)
    asked(service, ask(0))
    reply = asked(service, ask(1, base=(0, 0), send=BODY * torch.nan))
    assert reply.spoilt and reply.tree == () and not reply.refusal
    assert pack(keep_of(service, (1, 0))) == pack(keep_of(service, (0, 0)))


def test_versions_that_the_server_may_go_back_to_stay_and_others_go(tmp_path: Path) -> None:
    service, base = sites.service("a", tmp_path), None
    for number in range(8):
        asked(service, ask(number, base=base, spare=((1, 0),)))
        base = (number, 0)
    assert service.states(ask()).labels() == {(1, 0), (5, 0), (6, 0), (7, 0)}
    assert asked(service, ask(3, base=(2, 0))).refusal == "state"
    assert "nothing is kept here of ask 0 of round 3" in said(tmp_path)


def test_scores_leave_as_metrics_and_are_those_of_the_loop(tmp_path: Path) -> None:
    service, loop = sites.service("a", tmp_path), Loop({"a": sites.clients_data()["a"]})
    turn = Turn(0, ["a"], ["a"], turn_seed(1, 0))
    body = play(loop, METHOD, BODY, turn)
    asked(service, ask())
    _, expected = loop.evaluate(METHOD, body, turn, "test")
    sent = {"global": (), "download": body, "same": False, "sides": ["personal", "global"]}
    reply = asked(service, replace(ask(send=sent, base=(0, 0)), job="evaluate", part="test"))
    got, want = leaves(reply.tree), leaves(expected)
    assert all(g.equal(w[0]) or (g.isnan() and w[0].isnan()) for g, w in zip(got, want, strict=True))


# ---- crashes ----


@dataclass
class Server:
    """A server of one site that loses replies, gives up, saves, and goes back to what it saved."""

    folder: Path
    body: Vec = field(default_factory=lambda: BODY)
    base: Label | None = None
    rounds: list[bool] = field(default_factory=list)  # of each round so far, whether the site counted
    saved: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.save()
        self.restart()

    def restart(self) -> None:
        self.service = sites.service("a", self.folder)

    def save(self) -> None:
        self.saved = self.body, self.base, list(self.rounds)

    def go_back(self) -> None:
        self.body, self.base, rounds = self.saved
        self.rounds = list(rounds)

    def play(self, fault: str) -> None:
        number = len(self.rounds)
        spare = (self.saved[1],) if self.saved[1] else ()
        letter = ask(number, base=self.base, send=self.body, spare=spare).pack()
        if fault == "cut off while writing":
            self.service.rows.run_folder("r").joinpath(f"{number}.0.keep.part").write_bytes(b"half a version")
        if fault not in ("none", "cut off while writing"):
            self.service.answer(letter)  # stored at the site, and lost on the way
        if fault in ("the site restarts", "cut off while writing"):
            self.restart()
        self.rounds.append(fault != "given up")
        if fault != "given up":
            reply = Reply.read(self.service.answer(letter))
            assert not reply.refusal
            self.body, self.base = reply.tree, (number, 0)


FAULTS = ("none", "lost", "the site restarts", "cut off while writing", "given up", "save", "go back")


@given(st.lists(st.sampled_from(FAULTS), min_size=1, max_size=9))
@settings(max_examples=15, deadline=None)
def test_any_sequence_of_crashes_ends_as_if_there_had_been_none(
    tmp_path_factory: pytest.TempPathFactory, events: list[str]
) -> None:
    server = Server(tmp_path_factory.mktemp("site"))
    for event in events:
        if event == "save":
            server.save()
        elif event == "go back":
            server.go_back()
        else:
            server.play(event)
    loop = Loop({"a": sites.clients_data()["a"]})
    faulty, body = Faulty(loop, lambda _, number: not server.rounds[number]), BODY
    for number, counted in enumerate(server.rounds):
        if counted:  # a round that nobody answered changes nothing
            body = play(faulty, METHOD, body, Turn(number, ["a"], ["a"], turn_seed(1, number)))
    assert pack(server.body) == pack(body)
    if server.base is not None:
        assert pack(keep_of(server.service, server.base)) == pack(loop.keeps.get("a"))


# ---- what is at rest ----


def test_what_is_kept_is_encrypted_at_rest(tmp_path: Path) -> None:
    service = sites.service("a", tmp_path)
    asked(service, ask())
    secret = keep_of(service, (0, 0))["head.weight"].numpy().tobytes()
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert any(p.suffix == ".keep" for p in files)
    assert not any(secret in p.read_bytes() for p in files)
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0


def test_another_key_opens_nothing_and_the_site_says_so(tmp_path: Path) -> None:
    asked(sites.service("a", tmp_path), ask())
    data = sites.federation({"a": sites.clients_data()["a"]})
    thief = SiteService("a", tmp_path, data, sites.lenient(), b"?" * 32)
    assert asked(thief, ask(1, base=(0, 0))).refusal == "state"
    assert "cannot be decrypted" in said(tmp_path)


def test_versions_cannot_be_swapped(tmp_path: Path) -> None:
    safe = EncryptedState(tmp_path, "r", b"k" * 32)
    safe.put((0, 0), b"old")
    (tmp_path / "0.0.keep").rename(tmp_path / "1.0.keep")
    with pytest.raises(EncryptedStateError, match="cannot be decrypted"):
        safe.get((1, 0))


def test_a_key_of_the_wrong_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(EncryptedStateError, match="holds 5 bytes; a site's key has 32"):
        site_key(tmp_path / "key")


# ---- whatever comes in ----


@pytest.mark.parametrize(
    "name", ["descend", "round", "personal", "join", "__init__", "task", "train.__call__", "", "os.system"]
)
def test_what_is_no_verb_is_refused_and_logged(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "motet.site"):
        assert asked(sites.service("a", tmp_path), ask(verb=name)).refusal == "verb"
    assert "refused" in caplog.text and "is no verb that fedper asks for" in said(tmp_path)


@pytest.mark.parametrize(
    ("section", "setting"),
    [("method", {"name": "os:system"}), ("method", {"name": "pfa", "extractor": "os:system"}),
     ("method", {"name": "swarm", "loss": "posix:_exit"}), ("net", {"name": "os:system"})],
)  # fmt: skip
def test_no_letter_makes_a_site_import_anything(tmp_path: Path, section: str, setting: Any) -> None:
    recipe = FEDPER | {section: setting}
    assert offer(sites.service("a", tmp_path), recipe).refusal == "recipe"
    assert "does not trust it" in said(tmp_path)


@pytest.mark.parametrize(
    ("section", "setting"),
    [
        ("net", {"name": "mlp", "weights": "/etc/passwd"}),
        ("method", {"name": "pfa", "extractor": "mlp weights=x"}),
    ],
)
def test_no_letter_makes_a_site_read_a_file(tmp_path: Path, section: str, setting: Any) -> None:
    assert offer(sites.service("a", tmp_path), FEDPER | {section: setting}).refusal == "recipe"
    assert "names a file" in said(tmp_path)


def test_messages_of_the_wrong_shape_or_size_or_form_are_refused_and_the_service_lives_on(
    tmp_path: Path,
) -> None:
    service = sites.service("a", tmp_path, Policy(letter_bytes=20_000))
    claim = pack(torch.zeros(1)).replace(b'"shape":[1]', b'"shape":[750000000]')  # 3 GB, it says
    claim = claim[:8] + (len(claim) - 20).to_bytes(8, "little") + claim[16:]  # the header's new length
    for message in (
        b"",
        b"hello",
        pack({"no": "letter"}),
        claim,
        bytes(30_000),
        bytes(3 << 30),
        ask().pack()[:-3],
    ):
        assert Reply.read(service.answer(message)).refusal
    bent = Vec(BODY | {"fc1.bias": torch.zeros(9)})
    assert asked(service, ask(send=bent)).refusal == "weights"
    assert "has shape (9,); this network's has (8,)" in said(tmp_path)
    assert asked(service, ask(send=torch.zeros(20_000))).refusal == "letter"
    assert "larger than the limit" in said(tmp_path)
    assert asked(service, ask(send={"w": 1})).refusal == "error"
    assert not asked(service, ask()).refusal


@pytest.mark.parametrize("name", ["..", "../../etc", "/etc/passwd", "", ".", "a\x00b", "x" * 300])
def test_a_runs_name_never_leads_out_of_the_sites_folder(tmp_path: Path, name: str) -> None:
    site = tmp_path / "site"
    asked(sites.service("a", site), replace(ask(), run=name))
    assert {p.name for p in tmp_path.iterdir()} == {"site", "site.stamp"}  # of the ledger
    assert {p.name for p in site.iterdir()} <= {"key", "runs", "ledger.jsonl", "ledger.lock"}


def test_recipes_that_are_wrong_are_refused_and_the_reason_stays_at_home(tmp_path: Path) -> None:
    service = sites.service("a", tmp_path)
    for wrong, reason in (
        (FEDPER | {"method": {"name": "fedpr"}}, "unknown method fedpr"),
        (FEDPER | {"method": {"name": "fedper", "lr": "fast"}}, "method.lr"),
        ({}, "must have the sections"),
    ):
        assert offer(service, wrong).refusal == "recipe"
        assert reason in said(tmp_path)


def test_the_ledger_says_what_left(tmp_path: Path) -> None:
    service = sites.service("a", tmp_path)
    size = len(service.answer(ask().pack()))
    service.answer(ask().pack())  # once more
    offered, first, again = read_ledger(tmp_path)[0]
    assert offered.job == "offer" and again.again and again.sha256 == first.sha256
    found = (first.caller, first.run, first.round, first.ask, first.job, first.verb, first.learn, first.bytes)
    assert found == ("server", "r", 0, 0, "verb", "train", "average", size)


class FirstAsk(Wrapper):
    """Remembers the first ask and its answer."""

    found: tuple[Any, Any] = ()  # type: ignore[assignment]

    def ask(self, ask: Any) -> Any:
        answer = super().ask(ask)
        self.found = self.found or (ask, answer)
        return answer


def test_methods_start_is_asked_in_round_minus_one(tmp_path: Path) -> None:
    settings_ = sites.recipe("swarm")
    method, engine = sites.method(settings_), FirstAsk(Loop({"a": sites.clients_data()["a"]}))
    seed = turn_seed(1, -1)
    start(engine, method, Turn(-1, ["a"], ["a"], seed))
    first, answer = engine.found
    letter = Letter("verb", "s", -1, 0, seed, name_of(first.verb), first.learn, settings_, first.sent_to("a"))
    reply = asked(sites.service("a", tmp_path), letter)
    assert not reply.refusal
    want = answer if first.learn == "mean" else answer["a"]
    assert all(torch.equal(g, w) for g, w in zip(leaves(reply.tree), leaves(want), strict=True))
