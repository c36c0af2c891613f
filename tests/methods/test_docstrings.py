"""Every method says on its class where it comes from, so that help(Ditto) explains it."""

from __future__ import annotations

import inspect
import re

import pytest

from motet.runs.recipe import method_class, method_names

AUTHORS_AND_YEAR = re.compile(r"[A-Z]\w+ (et al\.|& [A-Z]\w+|and [A-Z]\w+),? (19|20)\d\d")
PLACE = re.compile(r"Algorithms? \d|[Ss]ections? \d|[Ee]quations? \d|\bvariant\b|\bscheme\b|baseline of ours")


@pytest.mark.parametrize("name", method_names())
def test_a_method_names_its_paper_and_the_place_in_it(name: str) -> None:
    text = inspect.cleandoc(vars(method_class(name)).get("__doc__") or "")
    assert AUTHORS_AND_YEAR.search(text), f"{name}: the class's docstring names no authors with a year"
    assert PLACE.search(text), (
        f"{name}: it names no algorithm, section or equation, and is no baseline of ours"
    )


@pytest.mark.parametrize("name", method_names())
def test_the_first_line_of_a_methods_docstring_is_a_sentence(name: str) -> None:
    first = inspect.cleandoc(vars(method_class(name)).get("__doc__") or "").split("\n")[0]
    assert first.endswith("."), f"{name}: the first line is {first!r}"
