"""Masked sums between organisations: by letters, with a server that lies, and with processes that were killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from cryptography.hazmat.primitives import hashes
from msgspec.structs import replace as changed

import sites
from motet.core import NoReply, Turn, average
from motet.deploy.server.summed import SummedSites
from motet.deploy.site.contract import turn_seed
from motet.deploy.site.ledger import read_ledger
from motet.deploy.site.policy import Policy
from motet.deploy.site.service import SiteService
from motet.deploy.site.site_identity import SiteIdentity
from motet.deploy.site.storage import site_key
from motet.engines.driver import play, start
from motet.engines.expected_replies import ExpectedReplies
from motet.engines.flare import Flare, TooFew
from motet.engines.letters import Letter, Reply
from motet.engines.loop import Loop
from motet.engines.masked_asks import MaskSettings
from motet.guard.masks.in_process import LocalKeys
from motet.guard.masks.member import Member
from motet.guard.pairs.chain import Chain
from motet.guard.pairs.clip import Clip
from motet.guard.pairs.compress import Compress
from motet.vec import leaves
from motet.wire import unpack

NAMES = ("a", "b", "c", "d")
GUARD = {
    "clip": 0.0,
    "bits": 32,
    "top": 1.0,
    "masked": True,
    "mask_bits": 64,
    "mask_range": 1024.0,
    "min_in_sum": 3,
}
Change = Callable[[str, Letter], Letter | None]


def data() -> dict[str, Any]:
    three = sites.clients_data()
    return three | {"d": three["b"]}


def recipe(method: str = "fedavg", **guard: Any) -> dict[str, Any]:
    return sites.recipe(method) | {"guard": GUARD | guard}


class Federation:
    """Four sites in this process. `change` sees every letter before it is delivered; None loses the site's answer."""

    def __init__(
        self, folder: Path, settings: dict[str, Any], names: tuple[str, ...] = NAMES, **policy: Any
    ) -> None:
        self.folder, self.settings, self.names = folder, settings, names
        self.keys, self.policy = LocalKeys(), sites.lenient(Policy(learn="collect", **policy))
        self.services = {s: self.service(s) for s in names}
        self.change: Change = lambda site, letter: letter
        self.carried: list[tuple[str, Letter, bytes]] = []
        self.offered = {s: self.offer(s) for s in names}
        self.method = sites.method(settings)
        self.engine = self.new_engine()

    def service(self, site: str) -> SiteService:
        for name in self.names:
            self.keys.sign(name)
        identity = SiteIdentity(self.keys.sign(site), self.keys.verify)
        data_here = sites.federation({site: data()[site]})
        folder = self.folder / site
        return SiteService(site, folder, data_here, self.policy, site_key(folder / "key"), identity)

    def offer(self, site: str) -> Reply:
        send = {"rounds": 20, "sites": list(self.names)}
        return Reply.read(
            self.services[site].answer(Letter("offer", "r", recipe=self.settings, send=send).pack())
        )

    def new_engine(self, masks: MaskSettings | None = MaskSettings()) -> Flare:  # noqa: B008
        expect = ExpectedReplies(self.method.task, (sites.FEATURES,))
        engine = Flare(self.names, self.post, "r", self.settings, expect=expect)
        engine.masks = masks if self.settings.get("guard", {}).get("masked") else None
        engine.rows = {s: {"train": len(d.train.x)} for s, d in data().items()}
        return engine

    def post(self, letters: Any) -> tuple[dict[str, bytes], dict[str, str]]:
        came, failed = {}, {}
        for site, message in letters.items():
            letter = self.change(site, Letter.read(message))
            if letter is None:
                failed[site] = "no answer"
                continue
            came[site] = self.services[site].answer(letter.pack())
            self.carried.append((site, letter, came[site]))
        return came, failed

    def turn(self, number: int) -> Turn:
        return Turn(number, self.names, self.names, turn_seed(1, number), sites.server_examples())

    def go(self, first: int = 0, last: int = 2, state: Any = None) -> Any:
        if first == 0:
            state = start(self.engine, self.method, self.turn(-1))
        for number in range(first, last):
            state = play(self.engine, self.method, state, self.turn(number))
        return state

    def reason(self, site: str) -> str:
        """The last refusal of a site, as its own ledger has it."""
        return [x.text for x in read_ledger(self.folder / site)[0] if x.clause][-1]


def at(step: str, who: str, change: Callable[[Letter], Letter | None]) -> Change:
    """Change one step's letter to one site."""

    def changed_letter(site: str, letter: Letter) -> Letter | None:
        now = letter.job if letter.job == "verb" else letter.send.get("step") if letter.job == "mask" else ""
        return change(letter) if now == step and site in who else letter

    return changed_letter


def on_the_loop(method: Any, rounds: int = 2, chain: Chain | None = None) -> Any:
    loop = Loop(data())
    loop.chain = chain
    state = start(loop, method, Turn(-1, NAMES, NAMES, turn_seed(1, -1), sites.server_examples()))
    for number in range(rounds):
        turn = Turn(number, NAMES, NAMES, turn_seed(1, number), sites.server_examples())
        state = play(loop, method, state, turn)
    return state


def gap(a: Any, b: Any) -> float:
    pairs = zip(leaves(a), leaves(b), strict=True)
    return max(
        float((torch.as_tensor(p).double() - torch.as_tensor(q).double()).abs().max()) for p, q in pairs
    )


# ---- sums ----


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedper", "swarm"])
def test_masked_letters_give_what_the_loop_gives_up_to_rounding(method: str, tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe(method, mask_range=4096.0))
    fed.engine.masks = MaskSettings(range=4096.0)
    assert gap(fed.go(), on_the_loop(fed.method)) < 1e-5


def test_no_reply_of_a_site_is_in_what_the_server_got(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe())
    fed.go(last=1)
    for site in NAMES:
        stored = fed.services[site].states(Letter("verb", "r")).get((0, 0))
        assert stored is not None
        tree = Reply.read(bytes(unpack(stored)["reply"])).tree
        sent = b"".join(reply for s, _, reply in fed.carried if s == site)
        for v in leaves(tree):
            numbers = v.contiguous().numpy().tobytes()
            assert numbers[:8] not in sent and v.double().numpy().tobytes()[:8] not in sent


@pytest.mark.parametrize("step", ["keys", "shares", "verb", "unmask"])
def test_a_site_that_is_lost_at_any_step_is_left_out_and_the_sum_is_that_of_the_others(
    step: str, tmp_path: Path
) -> None:
    fed = Federation(tmp_path, recipe())
    fed.change = at(step, "d", lambda letter: None)
    state = fed.go(last=1)
    if step != "unmask":
        fed.engine.clients = list("abc")
        loop = Loop({s: v for s, v in data().items() if s != "d"})
        turn = Turn(0, list("abc"), NAMES, turn_seed(1, 0), sites.server_examples())
        want = play(loop, fed.method, start(loop, fed.method, fed.turn(-1)), turn)
    else:
        want = on_the_loop(fed.method, 1)
    assert gap(state, want) < 1e-5 and "d" in fed.engine.away


@pytest.mark.parametrize("step", ["keys", "shares", "verb", "unmask"])
def test_with_too_few_left_the_round_does_not_count_and_goes_on_later_with_new_keys(
    step: str, tmp_path: Path
) -> None:
    fed = Federation(tmp_path, recipe())
    fed.change = at(step, "cd", lambda letter: None)
    with pytest.raises(TooFew, match="tried again with new keys"):
        fed.go(last=1)
    fed.change, fed.engine = (lambda site, letter: letter), fed.new_engine()
    assert gap(fed.go(), on_the_loop(fed.method)) < 1e-5
    sessions = {x.send["session"] for s, x, _ in fed.carried if x.job == "mask" and x.round == 0}
    assert len(sessions) == 2


def test_a_group_below_min_in_sum_is_no_sum(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe())
    fed.engine.begin(fed.method, fed.turn(0))
    with pytest.raises(NoReply, match="2 sites were to be averaged, and guard.min_in_sum is 3"):
        fed.engine.ask(average(fed.method.train, ["a", "b"], send=fed.method.task.w0))
    fed.engine.masks = MaskSettings(min_in_sum=2)  # a server that does not care
    with pytest.raises(TooFew):
        fed.engine.ask(average(fed.method.train, ["a", "b"], send=fed.method.task.w0))
    assert "a sum of 2 replies was asked for, and min_in_sum is 3" in fed.reason("a")


# ---- kill and go on ----


@pytest.mark.parametrize("step", ["shares", "verb", "unmask"])
def test_a_site_whose_process_was_killed_in_a_masked_round_goes_on_with_new_keys(
    step: str, tmp_path: Path
) -> None:
    fed = Federation(tmp_path, recipe("fedper"))

    def killed(letter: Letter) -> Letter:
        fed.services["b"] = fed.service("b")
        return letter

    fed.change, fed.engine.summed = at(step, "b", killed), SummedSites(tmp_path)
    if step == "unmask":
        assert gap(fed.go(last=1), on_the_loop(fed.method, 1)) < 1e-5  # three of four shares are enough
    else:
        state = fed.go(last=1)
        assert "b" in fed.engine.refusals and "knows no such sum" in fed.reason("b")
        assert leaves(state)
    fed.change, fed.engine = (lambda site, letter: letter), fed.new_engine()
    for s in NAMES:
        fed.services[s] = fed.service(s)
    if step == "unmask":
        assert gap(fed.go(), on_the_loop(fed.method)) < 1e-5
        return
    with pytest.raises(TooFew):  # the others' replies were summed without b, and are not summed with it
        fed.go()
    assert "these replies were summed before, of a,c,d" in fed.reason("a")
    fed.engine = fed.new_engine()  # a server that remembers asks the same sites, and all go on
    fed.engine.summed = SummedSites(tmp_path)
    assert gap(fed.go(last=1), state) < 1e-5 and leaves(fed.go())


@pytest.mark.parametrize("step", ["keys", "verb"])
def test_a_sum_that_one_site_does_not_agree_to_leaves_the_others_free(step: str, tmp_path: Path) -> None:
    """a revealed its shares and b, c, d did not hear of it; then d is lost. If b and c now revealed theirs for a sum
    without d, which a refuses, no sum of the round could be had any more when d comes back."""
    fed = Federation(tmp_path, recipe())
    for lost, who in (("unmask", "bcd"), (step, "d")):
        fed.engine = fed.new_engine()
        fed.change, fed.engine.summed = at(lost, who, lambda letter: None), SummedSites(tmp_path)
        with pytest.raises(TooFew):
            fed.go(last=1)
    assert "these replies were summed before, of a,b,c,d" in fed.reason("a")
    fed.change, fed.engine = (lambda site, letter: letter), fed.new_engine()
    fed.engine.summed = SummedSites(tmp_path)
    assert gap(fed.go(), on_the_loop(fed.method)) < 1e-5


def test_a_server_that_was_killed_repeats_the_round_and_sites_mask_the_same_replies_anew(
    tmp_path: Path,
) -> None:
    fed = Federation(tmp_path, recipe("fedper"))
    fed.go(last=1)
    fed.engine = fed.new_engine()
    fed.carried.clear()
    assert gap(fed.go(), on_the_loop(fed.method)) < 1e-5
    lines = [x for x in read_ledger(tmp_path / "a")[0] if x.job == "verb" and x.round == 0]
    assert [x.again for x in lines] == [False, True] and lines[0].sha256 != lines[1].sha256
    sums = [x.sum_of for x in read_ledger(tmp_path / "a")[0] if x.sum_of]
    assert sums == ["a,b,c,d"] * 3


# ---- a server that lies ----


def lied(fed: Federation, step: str, who: str, change: Callable[[Letter], Letter | None]) -> str:
    fed.change = at(step, who, change)
    with pytest.raises((TooFew, NoReply)):
        fed.go(last=1)
    return fed.reason(who[0])


def send_with(letter: Letter, **fields: Any) -> Letter:
    return changed(letter, send=letter.send | fields)


def test_a_key_that_the_server_put_in_anothers_place_is_refused(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe())

    def swap(letter: Letter) -> Letter:
        own = Member("b", letter.send["session"], LocalKeys().sign("b"), fed.keys.verify).keys()
        notes = [msgspec.structs.asdict(own) if n["client"] == "b" else n for n in letter.send["notes"]]
        return send_with(letter, notes=notes)

    assert "the key of b is not signed by b" in lied(fed, "shares", "acd", swap)


def test_a_party_that_is_no_site_of_the_run_is_refused(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe())
    fed.keys.sign("spy")

    def spy(letter: Letter) -> Letter:
        own = Member("spy", letter.send["session"], fed.keys.sign("spy"), fed.keys.verify).keys()
        notes = [msgspec.structs.asdict(own) if n["client"] == "b" else n for n in letter.send["notes"]]
        return send_with(letter, notes=notes)

    assert "spy takes part in the sum, and is no site of the run" in lied(fed, "shares", "acd", spy)


def test_both_shares_of_a_site_are_not_revealed(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe())
    said = lied(fed, "unmask", "abc", lambda x: send_with(x, gone=["d"]))
    assert "both shares of d were asked for" in said


def test_a_false_list_of_survivors_is_refused(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe())
    said = lied(fed, "unmask", "abc", lambda x: send_with(x, alive=["a", "b", "c"], gone=["d"]))
    assert "0 clients signed the list of survivors, and 3 must" in said


def test_the_same_replies_are_not_summed_again_without_one_of_them(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe())
    fed.go(last=1)
    fed.engine = fed.new_engine()
    fed.change = at("verb", "d", lambda letter: None)
    with pytest.raises(TooFew):
        fed.go(last=1)
    assert "these replies were summed before, of a,b,c,d, and are now to be summed of a,b,c" in fed.reason(
        "a"
    )


def test_a_letter_that_wants_a_reply_in_the_clear_is_refused(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe())
    fed.engine.masks = None
    with pytest.raises(TooFew):
        fed.go(last=1)
    assert "offered with masked means" in fed.reason("a")


def test_steps_of_a_run_without_masks_and_garbage_are_refused(tmp_path: Path) -> None:
    fed = Federation(tmp_path, sites.recipe("fedavg"))
    step = Letter(
        "mask",
        "r",
        0,
        0,
        seed=turn_seed(1, 0),
        recipe=fed.settings,
        send={"step": "keys", "session": bytes(32)},
    )
    assert Reply.read(fed.services["a"].answer(step.pack())).refusal == "masks"
    masked = Federation(tmp_path / "m", recipe())
    for send in (
        {},
        {"step": "keys"},
        {"step": "shares", "session": bytes(32)},
        {"step": "unmask"},
        3,
        {"step": "x"},
    ):
        letter = changed(step, recipe=masked.settings, send=send)
        assert Reply.read(masked.services["a"].answer(letter.pack())).refusal in ("masks", "letter", "error")


# ---- sites that lie ----


class Liar:
    """A site that changes what its service answers to a step."""

    def __init__(self, service: SiteService, step: str, change: Callable[[Any], Any]) -> None:
        self.service, self.step, self.change = service, step, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self.service, name)

    def answer(self, message: bytes) -> bytes:
        letter, reply = Letter.read(message), self.service.answer(message)
        now = letter.job if letter.job == "verb" else letter.send.get("step") if letter.job == "mask" else ""
        return Reply(self.change(Reply.read(reply).tree)).pack() if now == self.step else reply


@pytest.mark.parametrize(
    ("step", "change"),
    [
        ("keys", lambda t: t | {"mask_key": b"short"}),
        ("keys", lambda t: t | {"client": "a"}),
        ("shares", lambda t: t | {"sealed": {}}),
        ("shares", lambda t: 7),
        ("verb", lambda t: t | {"words": t["words"][:-8]}),
        ("verb", lambda t: t | {"form": {"is": 1}}),
        ("verb", lambda t: 1.0),
        ("unmask", lambda t: t | {"alive": {k: bytes(16) for k in t["alive"]}}),
        ("unmask", lambda t: b"no"),
    ],
)
def test_a_site_that_says_something_else_is_left_out_and_the_others_go_on(
    step: str, change: Any, tmp_path: Path
) -> None:
    fed = Federation(tmp_path, recipe())
    fed.services["d"] = Liar(fed.services["d"], step, change)  # type: ignore[assignment]
    assert leaves(fed.go(last=1))


def test_a_reply_beyond_the_range_or_not_finite_stays_at_its_site_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    fed = Federation(tmp_path, recipe())

    def spoil(letter: Letter) -> Letter:
        return changed(letter, send=letter.send.map(lambda v, _: torch.full_like(v, 5000.0)))

    fed.change = at("verb", "d", spoil)
    assert leaves(fed.go(last=1))
    assert "and masked sums hold numbers up to 1024" in fed.reason("d") or fed.engine.refused


# ---- policies ----


def test_a_policy_that_demands_masks_refuses_a_run_without_them(tmp_path: Path) -> None:
    plain = Federation(tmp_path / "p", sites.recipe("fedavg"), masks="required")
    assert {r.refusal for r in plain.offered.values()} == {"masks"}
    assert 'masks = "required"' in plain.reason("a") and "guard.masked=true" in plain.reason("a")
    assert not any(r.refusal for r in Federation(tmp_path / "m", recipe(), masks="required").offered.values())


def test_two_sites_cannot_mask(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe(), ("a", "b"), masks="required")
    assert {r.refusal for r in fed.offered.values()} == {"masks"} and "the run has 2 sites" in fed.reason("a")


def test_a_site_without_a_certificate_cannot_mask(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe())
    for s in NAMES:
        fed.services[s].sums.identity = None
    with pytest.raises(TooFew):
        fed.go(last=1)
    assert "no certificate" in fed.reason("a")


# ---- other guards at sites ----


@pytest.mark.parametrize(
    ("guard", "chain"),
    [
        ({"clip": 0.05}, Chain((Clip(0.05),))),
        ({"bits": 8}, Chain((Compress(8),))),
        ({"clip": 0.5, "bits": 8, "top": 0.2}, Chain((Clip(0.5), Compress(8, 0.2)))),
    ],
)
def test_guards_at_sites_give_what_they_give_on_the_loop(
    guard: dict[str, Any], chain: Chain, tmp_path: Path
) -> None:
    fed = Federation(tmp_path, recipe(masked=False, **guard))
    fed.engine.chain = chain
    half = fed.go(last=1)
    for s in NAMES:
        fed.services[s] = fed.service(s)  # killed, and started again
    assert gap(fed.go(1, 3, half), on_the_loop(fed.method, 3, chain)) == 0
    up = [len(reply) for _, x, reply in fed.carried if x.job == "verb"]
    assert "bits" not in guard or max(up) < 1500


def test_a_policy_clips_whatever_the_recipe_says(tmp_path: Path) -> None:
    fed = Federation(tmp_path, sites.recipe("fedavg"), clip=0.05)
    assert gap(fed.go(), on_the_loop(fed.method, 2, Chain((Clip(0.05),)))) == 0


def test_a_compressed_reply_that_is_none_excludes_its_site(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe(masked=False, bits=8))
    fed.engine.chain = Chain((Compress(8),))
    fed.services["d"] = Liar(fed.services["d"], "verb", lambda t: t | {"codes": t["codes"][:3]})  # type: ignore[assignment]
    fed.go(last=1)
    assert "no compressed update" in fed.engine.excluded["d"]


def test_masks_and_clipping_go_together(tmp_path: Path) -> None:
    fed = Federation(tmp_path, recipe(clip=0.05))
    assert gap(fed.go(), on_the_loop(fed.method, 2, Chain((Clip(0.05),)))) < 1e-5


# ---- kits ----


def test_a_site_that_joins_without_a_policy_demands_masks(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="kits need the extra motet[flare]")
    from motet.deploy.demo import free_port
    from motet.deploy.flare.all_kits import create
    from motet.deploy.flare.kits import open_kit
    from motet.deploy.site.config import read_policy, write_source
    from motet.deploy.site.table import SiteTable

    create("care", "localhost", ["a"], tmp_path / "care", free_port())
    kit = open_kit(tmp_path / "care" / "a")
    write_source(kit, SiteTable("a", tmp_path / "a.csv", "y"))
    assert read_policy(kit).masks == "required" and Policy().masks == "allowed"


def test_keys_count_if_the_federations_root_vouches_for_their_site(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="kits need the extra motet[flare]")
    from motet.deploy.demo import free_port
    from motet.deploy.flare.all_kits import create
    from motet.deploy.site.site_identity import certified_identity

    for place in ("care", "other"):
        create(place, "localhost", ["a", "b"], tmp_path / place, free_port())
    a, b = (certified_identity(tmp_path / "care" / s / "startup") for s in ("a", "b"))
    foreign = certified_identity(tmp_path / "other" / "b" / "startup")
    member = Member("b", bytes(32), b.sign, b.verify, certificate=b.certificate)
    note = member.keys()
    text = note.signed(bytes(32))
    assert a.verify(note, text, note.signature)
    assert not a.verify(note, text + b"!", note.signature)
    assert not a.verify(changed(note, client="a"), text, note.signature)  # another name
    assert not a.verify(
        changed(note, certificate=a.certificate), text, note.signature
    )  # another's certificate
    assert not a.verify(changed(note, certificate=b"none"), text, note.signature)
    stranger = Member("b", bytes(32), foreign.sign, foreign.verify, certificate=foreign.certificate).keys()
    assert not a.verify(stranger, stranger.signed(bytes(32)), stranger.signature)  # another root


def test_the_servers_own_certificates_take_no_part_in_a_sum(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="kits need the extra motet[flare]")
    from motet.deploy.demo import free_port
    from motet.deploy.flare.all_kits import create
    from motet.deploy.flare.kits import OWNER
    from motet.deploy.site.site_identity import _key, _padding, certified_identity

    create("care", "localhost", ["a"], tmp_path / "care", free_port())
    a = certified_identity(tmp_path / "care" / "a" / "startup")
    server = tmp_path / "care" / "server"
    for name, crt in (("localhost", "startup/server.crt"), (OWNER, "owner/startup/client.crt")):
        key = _key((server / crt.replace(".crt", ".key")).read_bytes())
        note = Member(
            name, bytes(32), lambda d, k=key: k.sign(d, _padding(), hashes.SHA256()), a.verify,
            certificate=(server / crt).read_bytes(),
        ).keys()  # fmt: skip
        assert not a.verify(note, note.signed(bytes(32)), note.signature)
