"""Every method's class says which paper it is from, which algorithm, and what differs: help() shows it."""

from __future__ import annotations

import re

import pytest

from motet.runs.recipe import method_class, method_names

NO_PAPER = {"local", "centralised", "finetune"}  # what papers compare with


@pytest.mark.parametrize("name", method_names())
def test_a_methods_class_says_which_paper_which_algorithm_and_what_differs(name: str) -> None:
    cls = method_class(name)
    text = cls.__doc__ or ""
    assert not text.startswith(f"{cls.__name__}("), "a dataclass without a docstring"
    assert text.split("\n")[0].endswith("."), "the first line is a sentence"
    if name not in NO_PAPER:
        assert re.search(r"\b(19|20)\d\d\b", text), "the year of the paper"
        assert re.search(r"Algorithm|[Ss]ection|[Ee]quation|variant|code", text), "which part of the paper"
        assert re.search(r"Differs from the paper|As in the paper", text)
