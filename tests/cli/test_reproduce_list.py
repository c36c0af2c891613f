"""What stands beside `motet reproduce --list`, and keywords of the other of motet.run and motet.compare."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import motet
from motet.cli.main import main
from motet.runs.recipe_text import RecipeError

PAGE = Path(__file__).parents[2] / "experiments" / "page"


def test_settings_beside_a_list_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        raise SystemExit(main(["reproduce", "--list", "page", "bogus=1"]))
    assert "bogus=1 was given" in capsys.readouterr().err


def test_base_of_a_single_run_is_called_out() -> None:
    with pytest.raises(RecipeError, match="hint: did you mean 'out'"):
        motet.run(data="wine", base="x")


@pytest.mark.parametrize("readme", sorted(PAGE.glob("*/README.md")), ids=lambda p: p.parent.name)
def test_a_desk_run_that_a_readme_reports_is_listed(readme: Path) -> None:
    if re.search(r"--scale desk[^\n]*`, commit [0-9a-f]{7}", readme.read_text()):
        assert "\nran.desk = " in (readme.parent / "recipe.toml").read_text()
