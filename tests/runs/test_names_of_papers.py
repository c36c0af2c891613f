"""Names that papers give to methods which have another name here."""

from __future__ import annotations

import pytest

from motet.runs.find_methods import _KNOWN_AS, method_class
from motet.runs.recipe import RecipeError, read


@pytest.mark.parametrize("name", sorted(_KNOWN_AS))
def test_who_types_a_papers_name_is_told_which_setting_it_is(name: str) -> None:
    with pytest.raises(
        RecipeError, match=f"unknown method {name}\nhint: it is a setting of another one: method="
    ):
        read(words=[f"method={name}"])
    read(words=_KNOWN_AS[name].split())
    assert method_class(_KNOWN_AS[name].split()[0].partition("=")[2])
