"""Guards that replies leave through: clipping and compression, on every engine, and after a pause."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.client import Batch, ClientData, seed_of
from motet.core import Method, Turn, average, verb
from motet.engines.driver import play
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.engines.wrappers.counted import Counted
from motet.guard.pairs.chain import ArrivedWrong, Chain, Leaving, kept_under
from motet.guard.pairs.clip import Clip
from motet.guard.pairs.compress import Compress, largest
from motet.runs.build import chain_of
from motet.runs.sections import GuardSettings
from motet.vec import Vec, leaves
from motet.wire import size

ENGINES: dict[str, Callable[..., Any]] = {
    "loop": Loop,
    "vmap": Vmap,
    "vmap in chunks": partial(Vmap, chunk=2),
    "threads": partial(Threads, workers=2),
}
CHAINS = {
    "clip": Chain((Clip(0.5),)),
    "8 bits": Chain((Compress(8),)),
    "a tenth": Chain((Compress(32, 0.1),)),
    "clip, a tenth in 8 bits": Chain((Clip(2.0), Compress(8, 0.1))),
}


class Exact(Method):
    """Replies are sums of eighths, which no engine rounds: guards then make the same bits of them everywhere."""

    task: Any = None

    def round(self, state: Any, turn: Turn) -> Any:
        return (yield average(self.train, turn.cohort, send=state))

    @verb
    def train(self, w: Any, keep: Any, data: Any) -> Any:
        steps = (torch.arange(40) * 7 % 16 - 8) / 8
        return w.map(lambda a, _: a + data.x[0, 0] * steps.reshape(a.shape)), keep


class Stackable:
    stackable, w0 = True, Vec()


def clients(many: int = 5) -> dict[str, ClientData]:
    def rows(i: int) -> Batch:
        return Batch.of(torch.full((i + 2, 1), (i - 2) / 4), torch.zeros(i + 2))

    return {f"c{i}": ClientData(rows(i), rows(i), rows(i)) for i in range(many)}


def played(engine: Any, first: int = 0, last: int = 3, state: Any = None) -> Any:
    state = Vec(w=torch.zeros(5, 8)) if state is None else state
    for number in range(first, last):
        turn = Turn(number, engine.clients, engine.clients, seed_of(3, number))
        state = play(engine, Exact(Stackable()), state, turn)
    return state


def guarded(chain: Chain, kind: str = "loop") -> Any:
    engine = ENGINES[kind](clients())
    engine.chain = chain
    return engine


def kept(engine: Any) -> list[Any]:
    return [v for c in engine.clients for v in leaves(engine.keeps.get(kept_under(c)) or {})]


# ---- one reply ----


def leaving(sent: Any, seed: int = 1) -> Leaving:
    return Leaving(sent, 1.0, seed)


def test_an_update_longer_than_the_limit_is_cut_to_it_and_a_shorter_one_stays() -> None:
    sent = Vec(a=torch.tensor([1.0, 1.0]))
    reply, _ = Clip(1.0).leave(Vec(a=torch.tensor([4.0, 5.0])), leaving(sent), ())
    assert torch.allclose(reply["a"], torch.tensor([1.6, 1.8]))  # (3, 4) has length 5
    short = Vec(a=torch.tensor([1.5, 1.0]))
    assert Clip(1.0).leave(short, leaving(sent), ())[0] is short


def test_a_reply_of_another_form_than_what_was_sent_is_an_update_itself() -> None:
    reply, _ = Clip(1.0).leave((torch.tensor([3.0]), torch.tensor(4.0), 7), leaving(Vec()), ())
    assert torch.allclose(torch.stack([reply[0][0], reply[1]]), torch.tensor([0.6, 0.8])) and reply[2] == 7


def test_8_bits_are_off_by_less_than_a_step_and_right_in_the_mean() -> None:
    sent, update = Vec(a=torch.zeros(1000)), torch.linspace(-1, 1, 1000)
    guard = Compress(8, feedback=False)
    found = [guard.arrive(guard.leave(Vec(a=update), leaving(sent, s), ())[0], sent)["a"] for s in range(200)]
    errors = torch.stack([f - update for f in found])
    assert errors.abs().max() <= 1 / 127 + 1e-6
    assert (
        errors.mean(0).abs().max() < 5 * (1 / 127) / 2 / 200**0.5
    )  # a step's error is at most half, by chance
    assert torch.equal(found[0], guard.arrive(guard.leave(Vec(a=update), leaving(sent, 0), ())[0], sent)["a"])


def test_the_largest_numbers_leave_and_of_equal_ones_the_first() -> None:
    assert largest(torch.tensor([1.0, -3.0, 3.0, 3.0, 0.0]), 0.4).tolist() == [1, 2]


@pytest.mark.parametrize("guard", [Compress(8), Compress(32, 0.3), Compress(8, 0.3)])
def test_what_compression_loses_is_sent_later(guard: Compress) -> None:
    sent, update = Vec(a=torch.zeros(10)), torch.tensor([0.9, 0.7, 0.5, 0.3, 0.1, 0, -0.2, -0.4, -0.6, -0.8])
    kept: Any = ()
    total = torch.zeros(10, dtype=torch.float64)
    for s in range(40):
        message, kept = guard.leave(Vec(a=update), leaving(sent, s), kept)
        total += guard.arrive(message, sent)["a"].double()
    assert torch.allclose(total + kept.double(), 40 * update.double(), atol=1e-4)
    assert (total / 40 - update).abs().max() < 0.1


def test_a_reply_of_its_own_form_arrives_in_its_form() -> None:
    reply = {"dy": Vec(a=torch.tensor([0.5, -0.25])), "n": 3, "c": (torch.tensor([1, 2]), torch.zeros(0))}
    chain = Chain((Compress(8),))
    message, _ = chain.leave(reply, leaving(()), {})
    came = chain.arrive(message, ())
    assert isinstance(came["dy"], Vec) and came["n"] == 3 and came["c"][0].tolist() == [1, 2]
    assert torch.allclose(came["dy"]["a"], reply["dy"]["a"], atol=0.01) and came["c"][1].shape == (0,)


BAD = {
    "too few codes": lambda m: m | {"codes": m["codes"][:-1]},
    "codes of another type": lambda m: m | {"codes": m["codes"].float()},
    "a place twice": lambda m: m | {"at": m["at"].clone().index_fill_(0, torch.tensor([1]), int(m["at"][0]))},
    "a place outside": lambda m: m | {"at": m["at"] + 40},
    "no scales": lambda m: {k: v for k, v in m.items() if k != "scales"},
    "too many scales": lambda m: m | {"scales": torch.ones(3)},
    "no message": lambda m: torch.ones(3),
    "a form of no type": lambda m: m | {"form": {"shape": [4], "type": "load"}},
    "a huge form": lambda m: m | {"form": {"shape": [1 << 40], "type": "float32"}},
}


@pytest.mark.parametrize("what", BAD)
def test_a_message_that_no_guard_made_is_refused(what: str) -> None:
    sent, chain = Vec(a=torch.zeros(40)), Chain((Compress(8, 0.1),))
    message, _ = chain.leave(Vec(a=torch.linspace(-1, 1, 40)), leaving(sent), {})
    with pytest.raises(ArrivedWrong, match="no compressed update"):
        chain.arrive(BAD[what](message), sent)


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30),
    st.sampled_from([8, 32]),
    st.floats(0.05, 1.0),
    st.integers(0, 2**40),
)
@settings(max_examples=60, deadline=None)
def test_every_update_arrives_within_a_step_of_what_was_to_leave(
    numbers: list[float], bits: Any, top: float, seed: int
) -> None:
    update, guard = torch.tensor(numbers), Compress(bits, top)
    message, kept = guard.leave(Vec(a=update), leaving(Vec(a=torch.zeros(len(numbers))), seed), ())
    came = guard.arrive(message, Vec(a=torch.zeros(len(numbers))))["a"]
    assert torch.allclose(came.double() + kept.double(), update.double(), rtol=1e-6, atol=1e-6)
    if top == 1.0:
        assert (came - update).abs().max() <= update.abs().max() / 127 * 1.001 + 1e-30


# ---- engines ----


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("kind", [k for k in ENGINES if k != "loop"])
def test_guards_make_the_same_bits_on_every_engine(chain: str, kind: str) -> None:
    loop, other = guarded(CHAINS[chain]), guarded(CHAINS[chain], kind)
    played(loop, last=1), played(other, last=1)
    assert bool(kept(loop)) == (chain != "clip")
    assert all(torch.equal(a, b) for a, b in zip(kept(loop), kept(other), strict=True))
    assert torch.allclose(played(loop)["w"], played(other)["w"], atol=1e-6)  # sums run in another order


@pytest.mark.parametrize("chain", CHAINS)
def test_a_run_that_was_paused_goes_on_to_the_same_bits(chain: str) -> None:
    whole = guarded(CHAINS[chain])
    state = played(whole)
    paused = guarded(CHAINS[chain])
    half = played(paused, last=2)
    paused.keeps.write(1)
    again = type(paused.keeps)(paused.keeps.database)
    resumed = guarded(CHAINS[chain])
    resumed.keeps = again
    assert torch.equal(played(resumed, 2, 3, half)["w"], state["w"])
    assert all(torch.equal(a, b) for a, b in zip(kept(resumed), kept(whole), strict=True))


def test_losses_and_sketches_leave_as_they_are() -> None:
    class Measured(Exact):
        measuring = ("train",)

    engine = guarded(Chain((Clip(1e-6),)))
    turn = Turn(0, engine.clients, engine.clients, 1)
    found = play(engine, Measured(Stackable()), Vec(w=torch.zeros(5, 8)), turn)
    assert torch.equal(found["w"], played(ENGINES["loop"](clients()), last=1)["w"])


def test_bytes_are_those_of_the_compressed_reply() -> None:
    engine = guarded(CHAINS["8 bits"])
    counted = Counted(engine, engine.left)
    played(counted, last=1)
    (_, up, _) = counted.take_by_verb()["c0", "train", "average"]
    message, _ = Compress(8).leave(Vec(w=torch.ones(5, 8)), leaving(Vec(w=torch.zeros(5, 8))), ())
    assert up == size(message) < size(Vec(w=torch.zeros(5, 8)))


def test_the_recipe_names_the_guards() -> None:
    assert chain_of(GuardSettings()) is None
    both = chain_of(GuardSettings(clip=2.0, bits=8, top=0.5))
    assert both == Chain((Clip(2.0), Compress(8, 0.5)))
