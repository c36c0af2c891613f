"""Which models to fetch within a budget."""

from __future__ import annotations

from motet.published import Feature, Manifest
from motet.stacking.fetching import order, overlap, within


def manifest(client: str, size: int, names: str = "ab") -> Manifest:
    return Manifest(client, "numbers", tuple(Feature(n) for n in names), size=size)


MANY = [
    manifest("big", 100),
    manifest("other", 10, "cd"),
    manifest("small", 40),
    manifest("half", 10, "abcd"),
]


def test_overlap_is_the_share_of_columns_that_both_know() -> None:
    assert overlap(manifest("x", 1, "abc"), ["b", "c", "d"]) == 0.5


def test_the_more_columns_are_shared_the_earlier_and_of_equals_the_smaller() -> None:
    assert [m.client for m in order(MANY, "ab")] == ["small", "big", "half", "other"]


def test_what_was_important_comes_first_and_what_is_unknown_counts_as_average() -> None:
    trust = {"big": 0.8, "small": 0.1}
    assert [m.client for m in order(MANY, "ab", trust)][:2] == ["big", "half"]


def test_a_model_that_does_not_fit_is_passed_over() -> None:
    assert within(60, MANY, "ab") == ["small", "half", "other"]
    assert within(5, MANY, "ab") == []


def test_no_budget_is_no_limit() -> None:
    assert len(within(0, MANY, "ab")) == 4
