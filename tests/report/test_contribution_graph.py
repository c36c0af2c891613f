"""The contribution graph in a report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from motet.report import contribution_graph
from motet.report.figures import in_page
from motet.report.html import render
from motet.report.read import read

Make = Callable[..., Path]
TRUST = {"a": {"a": 0.5, "b": 0.5}, "b": {"a": 0.2, "b": 0.8}, "<i>": {"a": 0.9, "<i>": 0.1}}
SCORES = {"a": 0.5, "b": 0.6, "<i>": 0.7}


def test_who_relies_on_whom_is_drawn_where_a_method_says_so(make: Make) -> None:
    run = make("stacking", SCORES, record={"trust": TRUST, "free_riders": ["<i>"]})
    page = render(read([run]))
    assert "Who relies on whom" in page and "Gives little and takes: &lt;i&gt;" in page
    assert "Who relies on whom" not in render(read([make("fedavg", SCORES)]))


def test_of_many_clients_some_are_drawn_and_the_caption_says_so(make: Make) -> None:
    many = {f"c{k}": {"c0": 1.0} for k in range(40)}
    (picture,) = contribution_graph.picture(read([make("stacking", SCORES, record={"trust": many})])[0])
    assert "24 of 40 clients are drawn" in picture.caption and "<svg" in in_page(picture)
    assert len(picture.data) == 40
