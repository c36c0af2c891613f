"""Robust means: by hand, whatever the order, and with a minority that says anything it likes."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from motet.core import NoReply
from motet.engines.mean import RunningMean
from motet.guard.gather import GatheredMean, Robust, after_mixing, robust_mean
from motet.guard.reply_rows import ReplyRows
from motet.guard.robust import krum, median, trimmed, whole
from motet.vec import Vec, leaves, stack

MEANS: dict[str, Robust] = {n: robust_mean(n) for n in ("median", "trimmed", "krum")} | {
    f"mixed {n}": robust_mean(n, mix=True) for n in ("median", "trimmed")
}
numbers = st.floats(-100, 100, width=32).map(lambda v: v + 0.0)  # without a negative zero
rows_of_two = st.lists(st.tuples(numbers, numbers), min_size=5, max_size=12)


def mean_of(robust: Robust, replies: list[Any], weights: list[float] | None = None) -> Any:
    fold = GatheredMean(robust)
    for reply, weight in zip(replies, weights or [1.0] * len(replies), strict=True):
        fold.add(reply, weight)
    return fold.mean()


def row(robust: Robust, replies: list[Any], weights: list[float] | None = None) -> list[float]:
    return list(mean_of(robust, [torch.tensor(r) for r in replies], weights).tolist())


# ---- by hand ----


def test_the_median_takes_the_middle_of_every_coordinate() -> None:
    assert row(median, [[1.0, 9.0], [2.0, -7.0], [50.0, 8.0]]) == [2.0, 8.0]
    assert row(median, [[1.0], [2.0], [4.0], [900.0]]) == [3.0]
    assert row(median, [[1.0], [2.0], [3.0]], [1.0, 1.0, 1000.0]) == [2.0]  # a weight is a claim


def test_the_trimmed_mean_cuts_both_ends_and_weighs_the_rest() -> None:
    five = [[-900.0], [1.0], [2.0], [3.0], [900.0]]
    assert row(partial(trimmed, share=0.2), five) == [2.0]
    assert row(partial(trimmed, share=0.2), five, [1.0, 1.0, 1.0, 2.0, 1.0]) == [2.25]
    assert row(partial(trimmed, share=0.5), five) == [2.0]  # the median
    assert row(partial(trimmed, share=0.5), [[1.0], [3.0]]) == [2.0]  # nothing can be cut of two


def test_krum_takes_the_row_whose_neighbours_are_nearest() -> None:
    # f = 1 of 5: two neighbours count. Scores: 1 + 9 = 10, 1 + 4 = 5, 4 + 9 = 13, 16 + 25 = 41, far.
    five = [[0.0], [1.0], [3.0], [-4.0], [90.0]]
    assert row(partial(krum, hostile=0.2, many=1), five) == [1.0]
    assert row(partial(krum, hostile=0.2, many=2), five) == [0.5]
    assert row(partial(krum, hostile=0.2), five) == [0.0]  # of the four that are not hostile
    assert row(partial(krum, hostile=0.2, many=99), five) == [18.0]  # all of them: the plain mean


def test_mixing_brings_the_honest_together() -> None:
    # f = 1 of 5: each row gives way to the mean of itself and its three nearest.
    five = [[0.0], [1.0], [3.0], [-4.0], [90.0]]
    mixed = GatheredMean(partial(after_mixing, lambda rows: next(iter(rows.slices())).flatten(), 0.2))
    for reply in five:
        mixed.add(torch.tensor(reply), 1.0)
    assert sorted(mixed.robust(mixed.rows).tolist()) == [0.0, 0.0, 0.0, 0.0, 23.5]
    assert row(robust_mean("median", mix=True), five) == [0.0]
    assert row(robust_mean("krum", mix=True), five) == row(krum, five)


def test_krum_refuses_to_speak_of_too_few_replies() -> None:
    with pytest.raises(NoReply, match=r"(?s)1 hostile of 4 replies .* needs at least 5 replies.*hint:"):
        row(krum, [[0.0]] * 4)


def test_shares_are_rounded_up_to_whole_rows() -> None:
    assert [whole(0.2, n) for n in (1, 5, 6, 18, 20)] == [1, 1, 2, 4, 4]
    assert whole(0.1, 30) == 3 and whole(0.0, 30) == 0


@pytest.mark.parametrize("name", MEANS)
def test_a_reply_without_weight_takes_no_part(name: str) -> None:
    five = [[0.0], [1.0], [2.0], [3.0], [4.0]]
    assert row(MEANS[name], [*five, [1e30]], [1.0] * 5 + [0.0]) == row(MEANS[name], five)


# ---- trees ----


@pytest.mark.parametrize("name", MEANS)
def test_the_result_is_a_tree_like_the_replies(name: str) -> None:
    replies = [
        {"w": Vec(a=torch.full((2, 3), float(i)), b=torch.tensor(i, dtype=torch.float64)), "n": [i]}
        for i in range(7)
    ]
    found = mean_of(MEANS[name], replies)
    assert isinstance(found["w"], Vec) and found["w"]["a"].shape == (2, 3)
    assert found["w"]["a"].dtype == torch.float32 and found["w"]["b"].dtype == torch.float64
    assert [float(v.flatten()[0]) for v in leaves(found)] == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("name", MEANS)
def test_replies_with_nothing_in_them_have_a_mean_with_nothing_in_it(name: str) -> None:
    assert mean_of(MEANS[name], [(), ()]) == ()


def test_replies_of_different_shape_have_no_mean() -> None:
    with pytest.raises(TypeError, match="differ in shape"):
        mean_of(median, [{"a": torch.zeros(2)}, {"a": torch.zeros(3)}])


@pytest.mark.parametrize("name", MEANS)
def test_stacked_replies_are_replies(name: str) -> None:
    draw = torch.Generator().manual_seed(3)
    replies = [Vec(a=torch.randn(4, generator=draw), b=torch.randn(2, 2, generator=draw)) for _ in range(9)]
    fold = GatheredMean(MEANS[name])
    fold.add_stacked(stack(replies[:4]), torch.ones(4))
    fold.add_stacked(stack(replies[4:]), torch.ones(5))
    assert fold.weight == 9
    expected = leaves(mean_of(MEANS[name], replies))
    assert all(torch.equal(a, b) for a, b in zip(expected, leaves(fold.mean()), strict=True))


# ---- large replies ----


@pytest.mark.parametrize("name", MEANS)
def test_what_does_not_fit_into_memory_goes_to_a_file_and_comes_out_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("motet.guard.reply_rows._SLICE", 50)  # several slices of few coordinates
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    draw = torch.Generator().manual_seed(1)
    replies = [torch.randn(33, generator=draw) for _ in range(8)]
    replies[5] = replies[2].clone()  # a tie
    small, large = GatheredMean(MEANS[name]), GatheredMean(MEANS[name], memory=4 * 33 * 3)
    for reply in replies:
        small.add(reply, 1.0)
        large.add(reply, 1.0)
    assert large.rows.file is not None and small.rows.file is None
    assert torch.equal(small.mean(), large.mean())
    assert large.rows.file.closed and not list(tmp_path.iterdir())


def test_a_row_that_is_not_there_is_told() -> None:
    with pytest.raises(IndexError, match="there is no row"):
        ReplyRows().digest(0)


# ---- whatever the replies ----


@given(rows_of_two, st.randoms(), st.sampled_from(sorted(MEANS)), st.booleans())
def test_the_order_of_replies_changes_no_bit(rows: list[Any], draw: Any, name: str, one: bool) -> None:
    robust = partial(krum, hostile=0.15, many=int(one)) if name == "krum" else MEANS[name]
    weighted = [(r, float(1 + i % 3)) for i, r in enumerate(rows)]
    mixed = list(weighted)
    draw.shuffle(mixed)
    a, b = (row(robust, [r for r, _ in w], [v for _, v in w]) for w in (weighted, mixed))
    assert a == b


@given(rows_of_two, st.lists(st.floats(0.5, 9), min_size=12, max_size=12))
def test_without_trimming_it_is_the_weighted_mean(rows: list[Any], weights: list[float]) -> None:
    plain = RunningMean()
    for r, w in zip(rows, weights, strict=False):
        plain.add(torch.tensor(r), w)
    found = row(partial(trimmed, share=0.0), rows, weights[: len(rows)])
    assert found == pytest.approx(plain.mean().tolist(), abs=1e-4)


@given(st.tuples(numbers, numbers), st.integers(5, 9), st.sampled_from(sorted(MEANS)))
def test_the_mean_of_equal_replies_is_that_reply(reply: Any, many: int, name: str) -> None:
    robust = partial(krum, hostile=0.1) if name == "krum" else MEANS[name]
    assert row(robust, [reply] * many) == pytest.approx(list(reply), rel=1e-6)
    assert row(median, [reply] * many) == list(reply)


anything = st.floats(-(2.0**127), 2.0**127, width=32)


@given(rows_of_two, st.data(), st.sampled_from(["median", "trimmed"]))
def test_a_minority_leaves_every_coordinate_among_the_honest(honest: list[Any], data: Any, name: str) -> None:
    many = data.draw(st.integers(0, len(honest) - 1))  # fewer than half of all
    lies = data.draw(st.lists(st.tuples(anything, anything), min_size=many, max_size=many))
    claims = data.draw(st.lists(st.floats(1, 1e6), min_size=many, max_size=many))
    share = many / (len(honest) + many)
    robust = partial(trimmed, share=share) if name == "trimmed" else median
    found = row(robust, [*honest, *lies], [1.0] * len(honest) + claims)
    for i, value in enumerate(found):
        low, high = min(r[i] for r in honest), max(r[i] for r in honest)
        assert low - 1e-4 <= value <= high + 1e-4


@given(rows_of_two, st.data(), st.booleans())
def test_krum_returns_an_honest_reply_where_the_hostile_are_far(
    honest: list[Any], data: Any, together: bool
) -> None:
    """A lie that looks like an honest reply may be chosen, and does no harm."""
    many = data.draw(st.integers(0, (len(honest) - 3)))  # 2f + 2 < n
    far = st.floats(2.0**14, 2.0**100, width=32)
    one = data.draw(st.tuples(far, far))
    lies = [one if together else data.draw(st.tuples(far, far)) for _ in range(many)]
    everyone = [*lies, *honest]
    found = row(partial(krum, hostile=many / len(everyone), many=1), everyone)
    assert any(math.dist(found, r) < 1e-6 for r in honest)
    found = row(partial(krum, hostile=many / len(everyone)), everyone)
    assert all(abs(v) <= 100 for v in found)
