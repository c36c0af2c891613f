"""Masked sums: what the server sees, what it gets with clients lost at every step, and whom it cannot fool."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from motet.core import NoReply
from motet.engines.mean import RunningMean
from motet.guard.masks.fixed_point import FixedPoint
from motet.guard.masks.in_process import LocalKeys, LocalSum, MaskedMean
from motet.guard.masks.member import Member
from motet.guard.masks.messages import KeyNote, ShareNote, SumTerms, UnmaskNote
from motet.guard.masks.neighbours import complete_graph, neighbours_of, ring, sparse_graph
from motet.guard.masks.refused import MaskRefused
from motet.guard.masks.sum_server import SumServer
from motet.vec import Vec

Inputs = dict[str, tuple[Any, float]]


def inputs(n: int, width: int = 50, seed: int = 0) -> Inputs:
    g = np.random.default_rng(seed)
    return {f"c{i:02d}": (g.normal(size=width), float(g.integers(5, 200))) for i in range(n)}


def plain(of: Inputs, names: Any) -> Any:
    return sum(of[c][0] * of[c][1] for c in names) / sum(of[c][1] for c in names)


def off(server: SumServer, total: Any, of: Inputs) -> tuple[float, float]:
    """By how much the sum's mean is off, and by how much it may be."""
    numbers, unit = server.terms.numbers, server.terms.unit
    found = numbers.mean(total)
    bound = numbers.bound([of[c][1] / unit for c in server.alive])
    return float(np.abs(found - plain(of, server.alive)).max()), bound


# ---- the numbers ----


def test_three_replies_become_their_weighted_mean() -> None:
    of = {
        "a": (np.array([1.0, -2.0]), 1.0),
        "b": (np.array([3.0, 0.5]), 2.0),
        "c": (np.array([0.0, 1.0]), 1.0),
    }
    server, total = LocalSum().run(of)
    assert np.allclose(server.terms.numbers.mean(total), [7 / 4, 0.0], atol=1e-12)
    assert server.terms.numbers.weight(total) * server.terms.unit == pytest.approx(4.0)


@pytest.mark.parametrize("bits", [64, 32])
@pytest.mark.parametrize("step", ["nobody", "keys", "shares", "masked", "unmask"])
@pytest.mark.parametrize("many", [0, 1, 3])
def test_with_clients_lost_at_any_step_the_sum_is_that_of_the_others(bits: int, step: str, many: int) -> None:
    of, lost = inputs(10), {"c03", "c07", "c09"} if many == 3 else {"c04"} if many else set()
    server, total = LocalSum(bits, 8.0, lost=lambda s, c: s == step and c in lost).run(of)
    away, bound = off(server, total, of)
    assert away <= bound < (1e-10 if bits == 64 else 1e-5)
    assert server.alive == set(of) - (lost if step in ("keys", "shares", "masked") else set())


def test_clients_may_be_lost_at_every_step_of_one_sum() -> None:
    of, at = inputs(16), {"c00": "keys", "c05": "shares", "c08": "masked", "c11": "consent", "c12": "unmask"}
    server, total = LocalSum(lost=lambda s, c: at.get(c) == s).run(of)
    away, bound = off(server, total, of)
    assert away <= bound and server.alive == set(of) - {"c00", "c05", "c08"}


@pytest.mark.parametrize("step", ["shares", "masked", "consent", "unmask"])
def test_below_the_threshold_the_sum_fails_and_nothing_is_unmasked(step: str) -> None:
    of = inputs(10)  # 7 must stay
    away = set(list(of)[:4]) if step != "consent" else set(list(of)[1:5])
    lost = lambda s, c: (s == step and c in away) or (step == "consent" and s == "masked" and c == "c00")  # noqa: E731
    made = LocalSum(lost=lost, recorded=True)
    with pytest.raises(MaskRefused, match=r"must|needs|shares of"):
        made.run(of)
    revealed = [note for s, _, note in made.view if s == "unmask"]
    assert len(revealed) < 7 and (step == "unmask" or not revealed)


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_for_all_trees_weights_and_losses_the_mean_is_the_plain_one_within_the_bound(
    data: st.DataObject,
) -> None:
    n, width = data.draw(st.integers(3, 9)), data.draw(st.integers(0, 12))
    numbers = st.floats(-1000, 1000, allow_nan=False)
    of = {
        f"c{i}": (
            np.array(data.draw(st.lists(numbers, min_size=width, max_size=width))),
            data.draw(st.floats(0.01, 1e4)),
        )
        for i in range(n)
    }
    allowed = n - max(complete_graph(n).least, 3)
    lost = set(data.draw(st.permutations(sorted(of)))[: data.draw(st.integers(0, allowed))])
    server, total = LocalSum(lost=lambda s, c: s == "masked" and c in lost).run(of)
    if width:
        away, bound = off(server, total, of)
        assert away <= bound


@given(st.lists(st.floats(-8, 8), min_size=1, max_size=20), st.floats(0.001, 1.0), st.sampled_from([64, 32]))
@settings(max_examples=100, deadline=None)
def test_one_number_is_off_by_half_a_step(numbers: list[float], weight: float, bits: int) -> None:
    fixed = FixedPoint(7, bits, 8.0)
    words = fixed.encoded(np.array(numbers), weight).view(np.int64 if bits == 64 else np.int32)
    exact = np.array(numbers) * weight * 2.0**fixed.fraction
    assert np.abs(words[:-1] - exact).max() <= 0.5 + np.abs(exact).max() * 2**-51


@pytest.mark.parametrize(
    ("numbers", "weight", "why"),
    [
        ([1.0, np.nan], 1, "not finite"),
        ([np.inf], 1, "not finite"),
        ([8.1], 1, "8.1"),
        ([1.0], 1.5, "weight"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_by_name(numbers: list[float], weight: float, why: str) -> None:
    with pytest.raises(MaskRefused, match=why):
        FixedPoint(3, 64, 8.0).encoded(np.array(numbers), weight)


def test_the_largest_numbers_of_all_clients_do_not_overflow() -> None:
    for bits in (64, 32):
        of = {f"c{i}": (np.array([8.0, -8.0]), 5.0) for i in range(7)}
        server, total = LocalSum(bits, 8.0).run(of)
        assert np.allclose(server.terms.numbers.mean(total), [8.0, -8.0], atol=1e-5)


# ---- what the server sees ----


def test_the_servers_whole_view_of_masked_replies_looks_random_and_holds_no_reply() -> None:
    of = {c: (np.full(20_000, 0.25 * (i + 1)), 10.0) for i, c in enumerate("abcde")}
    made = LocalSum(recorded=True, lost=lambda s, c: s == "masked" and c == "e")
    server, total = made.run(of)
    masked = {c: note for s, c, note in made.view if s == "masked"}
    fixed = server.terms.numbers
    for c, sent in masked.items():
        counts = np.bincount(np.frombuffer(sent, np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4
        words = np.frombuffer(sent, np.uint64) / 2.0**64
        assert stats.kstest(words, "uniform").pvalue > 1e-4
        assert abs(np.corrcoef(words[:-1], np.arange(20_000))[0, 1]) < 0.05
        plain_words = fixed.encoded(*of[c][:1], 1.0).tobytes()
        everything = b"".join(raw(note) for _, _, note in made.view)
        assert plain_words[:16] not in everything  # not two numbers of it in a row
    for a, b in (("a", "b"), ("a", "c"), ("b", "d")):  # nor do two of them differ by less than random
        apart = np.frombuffer(masked[a], np.uint64) - np.frombuffer(masked[b], np.uint64)
        assert stats.kstest(apart / 2.0**64, "uniform").pvalue > 1e-4
    assert off(server, total, of)[0] <= off(server, total, of)[1]


def test_masked_replies_have_nothing_to_do_with_the_replies() -> None:
    of = inputs(5, 20_000, 3)
    made = LocalSum(recorded=True)
    made.run(of)
    for c, sent in [(c, note) for s, c, note in made.view if s == "masked"]:
        words = np.frombuffer(sent, np.uint64)[:-1] / 2.0**64
        assert abs(np.corrcoef(words, of[c][0])[0, 1]) < 0.04  # 5 standard errors


def test_the_view_after_unmasking_gives_the_sum_and_no_part_of_it() -> None:
    """Self masks are known, pair masks are not: a single reply without its self mask is still random."""
    from motet.guard.masks import keys as crypto
    from motet.guard.masks.keystream import add_mask

    of = {c: (np.zeros(20_000), 10.0) for c in "abcd"}
    made = LocalSum(recorded=True)
    server, _ = made.run(of)
    sent = {c: note for s, c, note in made.view if s == "masked"}
    shares = {c: n.alive["a"] for c, n in server.revealed.items()}
    words = np.frombuffer(sent["a"], np.uint64).copy()
    add_mask(words, crypto.self_mask(server.opened("a", shares), server.context), negative=True)
    assert stats.kstest(words / 2.0**64, "uniform").pvalue > 1e-4


def raw(note: Any) -> bytes:
    return note if isinstance(note, bytes) else msgspec.msgpack.encode(note)


# ---- a server that lies ----


class Stage:
    """Members of one sum, taken by hand to a step."""

    def __init__(self, n: int = 5, upto: str = "masked", **how: Any) -> None:
        self.keys, self.session = LocalKeys(), os.urandom(32)
        self.names = [f"c{i}" for i in range(n)]
        self.members = {
            c: Member(c, self.session, self.keys.sign(c), self.keys.verify, **how) for c in self.names
        }
        self.server = SumServer(self.session)
        for c, m in self.members.items():
            self.server.take_keys(c, m.keys())
        if upto == "keys":
            return
        self.terms = self.server.open(FixedPoint(n), 1.0)
        self.notes = list(self.server.notes.values())
        if upto == "terms":
            return
        for c, m in self.members.items():
            self.server.take_shares(c, m.share(self.terms, self.notes))
        if upto == "shares":
            return
        for c, m in self.members.items():
            words = m.mask(np.ones(4), 1.0, self.server.sealed_for(c))
            self.server.take_masked(c, words, 4)


def changed(note: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(note, **fields)


def forged(s: Stage) -> tuple[SumTerms, list[KeyNote]]:
    """The server puts a key of its own in the place of c1's."""
    own = Member("c1", s.session, LocalKeys().sign("c1"), s.keys.verify).keys()
    return s.terms, [own if n.client == "c1" else n for n in s.notes]


def swapped(s: Stage) -> tuple[SumTerms, list[KeyNote]]:
    """Keys of two clients change places."""
    a, b = (n for n in s.notes if n.client in ("c1", "c2"))
    swap = {"c1": changed(b, client="c1"), "c2": changed(a, client="c2")}
    return s.terms, [swap.get(n.client, n) for n in s.notes]


def replayed(s: Stage) -> tuple[SumTerms, list[KeyNote]]:
    """c1's key of another sum, signed by c1."""
    old = Member("c1", os.urandom(32), s.keys.sign("c1"), s.keys.verify).keys()
    return s.terms, [old if n.client == "c1" else n for n in s.notes]


LIES: dict[str, tuple[Any, str]] = {
    "a forged key": (forged, "the key of c1 is not signed by c1"),
    "two keys swapped": (swapped, "the key of c1 is not signed by c1"),
    "a key of another sum": (replayed, "the key of c1 is not signed by c1"),
    "a copied key": (
        lambda s: (s.terms, [changed(s.notes[1], client=n.client) if n.client == "c2" else n for n in s.notes]),
        "two keys of the sum are the same",
    ),
    "another key of the client itself": (
        lambda s: (s.terms, [changed(n, mask_key=bytes(32)) if n.client == "c0" else n for n in s.notes]),
        "said to be those of c0 are others",
    ),
    "a low threshold": (lambda s: (changed(s.terms, threshold=2), s.notes), "the terms are unsafe"),
    "a small sum": (lambda s: (changed(s.terms, least=2), s.notes), "the terms are unsafe"),
    "few neighbours": (lambda s: (changed(s.terms, neighbours=2), s.notes), "the terms are unsafe"),
    "other clients than keys": (lambda s: (s.terms, s.notes[:-1]), "not one for each client"),
    "a key twice": (lambda s: (s.terms, [*s.notes, s.notes[1]]), "not one for each client"),
    "another sum": (lambda s: (changed(s.terms, session=os.urandom(32)), s.notes), "another sum"),
    "without the client": (
        lambda s: (changed(s.terms, clients=s.terms.clients[1:]), s.notes[1:]),
        "c0 is not among the clients",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_lies_about_keys_or_terms_is_refused_by_name(lie: str) -> None:
    stage = Stage(upto="terms")
    make, why = LIES[lie]
    with pytest.raises(MaskRefused, match=why):
        stage.members["c0"].share(*make(stage))


def test_a_sum_of_two_is_refused() -> None:
    stage = Stage(2, upto="terms")
    with pytest.raises(MaskRefused, match="a sum of 2 replies was asked for, and min_in_sum is 3"):
        stage.members["c0"].share(stage.terms, stage.notes)


def test_the_sparse_graph_is_refused_by_a_client_that_does_not_trust_the_server() -> None:
    stage = Stage(60, upto="keys")
    terms = stage.server.open(FixedPoint(60), 1.0, sparse_graph(60))
    with pytest.raises(MaskRefused, match="unsafe"):
        stage.members["c0"].share(terms, list(stage.server.notes.values()))


def test_both_shares_of_a_client_are_not_revealed() -> None:
    m, names = Stage().members["c0"], [f"c{i}" for i in range(5)]
    with pytest.raises(MaskRefused, match="both shares of c1 were asked for"):
        m.unmask(names, ["c1"], {})
    m.unmask(names, [], {})  # c1's self mask
    with pytest.raises(MaskRefused, match="another list of survivors came before"):
        m.unmask([c for c in names if c != "c1"], ["c1"], {})


def test_a_lie_about_who_was_lost_needs_the_others_signatures() -> None:
    stage = Stage()
    left, m = ["c0", "c2", "c3", "c4"], stage.members
    with pytest.raises(MaskRefused, match="0 clients signed the list of survivors, and 4 must"):
        m["c0"].unmask(left, ["c1"], {})
    signed = {c: m[c].consent(left) for c in left}
    with pytest.raises(MaskRefused, match="c2 did not sign"):
        m["c3"].unmask(left, ["c1"], signed | {"c2": signed["c4"]})
    with pytest.raises(MaskRefused, match="the server contradicts itself"):
        m["c2"].consent(["c0", "c1", "c2", "c3"])
    assert set(m["c3"].unmask(left, ["c1"], signed).gone) == {"c1"}


def test_a_client_that_is_said_to_be_lost_does_not_answer() -> None:
    stage = Stage()
    with pytest.raises(MaskRefused, match="c1 is said to be lost, and was asked"):
        stage.members["c1"].consent(["c0", "c2", "c3", "c4"])


def test_too_few_survivors_or_strangers_are_refused() -> None:
    m = Stage().members
    with pytest.raises(MaskRefused, match="3 replies are left, and a sum needs 4"):
        m["c0"].consent(["c0", "c1", "c2"])
    with pytest.raises(MaskRefused, match="spy is said to be in the sum"):
        m["c0"].consent(["c0", "c1", "c2", "spy"])
    with pytest.raises(MaskRefused, match="not the clients of this sum"):
        m["c0"].unmask(["c0", "c1", "c2", "c3"], [], {})


def test_a_mask_is_never_put_on_two_replies() -> None:
    stage = Stage()
    with pytest.raises(MaskRefused, match="one reply only"):
        stage.members["c0"].mask(np.zeros(4), 1.0, stage.server.sealed_for("c0"))


def test_a_changed_or_misdirected_share_is_refused_by_name() -> None:
    stage = Stage(upto="shares")
    sealed = stage.server.sealed_for("c0")
    for wrong in (sealed["c2"], bytes(48), sealed["c1"][:-1]):
        m = stage.members["c0"]
        m.masked = False
        with pytest.raises(MaskRefused, match="the share of c1 cannot be opened"):
            m.mask(np.ones(4), 1.0, sealed | {"c1": wrong})


def test_different_terms_for_different_clients_give_no_sum() -> None:
    """Masks follow from the terms: those of clients that were given others do not cancel."""
    stage = Stage(4, upto="terms")
    for c, m in stage.members.items():
        terms = changed(stage.terms, range=512.0) if c == "c0" else stage.terms
        stage.server.take_shares(c, m.share(terms, stage.notes))
    with pytest.raises(MaskRefused, match="the share of c0 cannot be opened"):
        stage.members["c1"].mask(np.ones(4), 1.0, stage.server.sealed_for("c1"))


# ---- clients that lie ----


def test_what_a_client_says_wrongly_is_refused_by_name_and_the_sum_goes_on() -> None:
    stage = Stage(7, upto="shares")
    server, m = stage.server, stage.members
    server.take_shares("c1", server.shares["c1"])
    assert "twice; the first one stands" in server.refused.pop("c1")
    words = {c: m[c].mask(np.full(4, i + 1.0), 1.0, server.sealed_for(c)) for i, c in enumerate(m)}
    for c in m:
        server.take_masked(c, words[c][:-8] if c == "c2" else words[c], 4)
    assert "wrong length" in server.refused["c2"] and server.gone == {"c2"}
    server.take_masked("c1", words["c1"], 4)
    assert "twice" in server.refused["c1"]
    alive = sorted(server.alive)
    for c in alive:
        server.take_consent(c, m[c].consent(alive))
    notes = {c: m[c].unmask(alive, ["c2"], server.consents) for c in alive}
    false = changed(notes["c3"], alive=notes["c3"].alive | {"c0": bytes(16)})
    for c in alive:
        server.take_unmasked(c, false if c == "c3" else notes[c])
    server.take_unmasked("c4", notes["c4"])
    assert "false share of c0" in server.refused["c3"] and "twice" in server.refused["c4"]
    assert np.allclose(server.terms.numbers.mean(server.total()), (1 + 2 + 4 + 5 + 6 + 7) / 6)


def garbage() -> Iterator[Any]:
    yield from (
        b"",
        None,
        {},
        [],
        {"client": "c0"},
        {"sealed": {"c1": b"x" * 500}, "hashes": {}},
        3.5,
        "text",
    )


@pytest.mark.parametrize("said", list(garbage()), ids=repr)
def test_garbage_from_a_client_is_refused_at_every_step(said: Any) -> None:
    fresh = SumServer(bytes(32))
    fresh.take_keys("c0", said)
    assert "c0" in fresh.refused and not fresh.notes
    stage = Stage(upto="terms")
    stage.server.take_shares("c0", said)
    stage.server.take_masked("c0", said, 4)
    stage.server.take_unmasked("c0", said)
    assert "c0" in stage.server.refused and not stage.server.shares and not stage.server.alive


def test_a_key_that_somebody_else_sent_is_refused_by_the_server() -> None:
    stage = Stage(upto="keys")
    server = SumServer(stage.session)
    note = stage.members["c1"].keys()
    server.take_keys("c1", note)
    server.take_keys("c2", note)
    server.take_keys("c3", changed(note, client="c3"))
    assert set(server.notes) == {"c1"} and set(server.refused) == {"c2", "c3"}


def test_notes_survive_the_way_as_plain_trees() -> None:
    stage = Stage(upto="terms")
    for thing in (stage.terms, stage.notes[0], stage.members["c0"].share(stage.terms, stage.notes)):
        assert msgspec.convert(msgspec.structs.asdict(thing), type(thing)) == thing
    assert msgspec.convert({"alive": {"a": bytes(16)}, "gone": {}}, UnmaskNote).alive
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"sealed": {"a": b"x" * 500}, "hashes": {}}, ShareNote)


# ---- the graph ----


def test_neighbours_are_mutual_and_as_many_as_the_graph_says() -> None:
    names, session = tuple(f"c{i:03d}" for i in range(60)), os.urandom(16)
    graph = sparse_graph(60)
    near = {c: set(neighbours_of(c, names, graph, session)) for c in names}
    assert {len(n) for n in near.values()} == {graph.neighbours}
    assert all(a in near[b] for a in names for b in near[a])
    assert ring(names, session) != ring(names, bytes(16)) != list(names)


@pytest.mark.parametrize("n", [51, 80, 150])
def test_the_sparse_graph_holds_what_it_promises(n: int) -> None:
    """As many as may be lost and collude: what is left is one piece, and nobody's both secrets can be had."""
    graph, g = sparse_graph(n), np.random.default_rng(n)
    for _ in range(20):
        order, half = g.permutation(n), graph.neighbours // 2
        bad = set(order[: int(0.2 * n)].tolist()) | set(order[int(0.2 * n) : int(0.3 * n)].tolist())
        left = [i for i in range(n) if i not in bad]
        steps = [(b - a) for a, b in zip(left, left[1:], strict=False)] + [left[0] + n - left[-1]]
        assert sum(s > half for s in steps) <= 1
        colluding = set(order[: int(0.2 * n)].tolist())
        for i in range(n):
            near = [(i + s) % n for s in range(-half, half + 1) if s]
            assert 2 * graph.threshold > len(near) + 1 + len(colluding & set(near))


def test_a_sum_over_the_sparse_graph_with_clients_lost_is_that_of_the_others() -> None:
    of, lost = inputs(60, 20), {"c03", "c41", "c59"}
    server, total = LocalSum(lost=lambda s, c: s == "masked" and c in lost).run(of)
    away, bound = off(server, total, of)
    assert not server.terms.graph.complete and away <= bound and server.alive == set(of) - lost


# ---- as the mean of an engine ----


def test_the_masked_mean_of_trees_is_the_plain_one() -> None:
    masked, plain_mean = MaskedMean(), RunningMean()
    for i in range(4):
        tree = (Vec(a=torch.full((2, 3), i / 3), b=torch.tensor(1.0 + i)), torch.tensor([i, 2]), 0.5 * i)
        masked.add(tree, i + 1.0, f"c{i}")
        plain_mean.add(tree, i + 1.0)
    found, want = masked.mean(), plain_mean.mean()
    assert isinstance(found[0], Vec) and found[0]["a"].dtype == torch.float32
    assert all(
        torch.allclose(a, b, atol=1e-6)
        for a, b in zip([*found[0].values(), *found[1:]], [*want[0].values(), *want[1:]], strict=True)
    )
    assert masked.weight == 10 and min(masked.left.values()) > 8 * 11


def test_stacked_replies_are_masked_client_by_client() -> None:
    masked = MaskedMean()
    masked.add_stacked(Vec(a=torch.arange(6.0).reshape(3, 2)), torch.tensor([1.0, 1.0, 2.0]), ["x", "y", "z"])
    assert torch.allclose(masked.mean()["a"], torch.tensor([2.5, 3.5])) and set(masked.left) == {
        "x",
        "y",
        "z",
    }


def test_a_mean_of_two_replies_is_no_mean() -> None:
    masked = MaskedMean()
    for c in "ab":
        masked.add(torch.ones(2), 1.0, c)
    with pytest.raises(NoReply, match="2 clients sent keys, and a masked sum needs 3"):
        masked.mean()


def test_a_reply_out_of_range_names_its_client() -> None:
    masked = MaskedMean(range=4.0)
    for i, c in enumerate("abc"):
        masked.add(torch.tensor([5.0 * i]), 1.0, c)
    with pytest.raises(MaskRefused, match="client b: its reply has a number as large as 5"):
        masked.mean()
