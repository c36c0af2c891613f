"""What stands beside `motet reproduce --list`, and keywords of the other of motet.run and motet.compare."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import motet
from motet.cli.main import main
from motet.runs import experiment as experiments
from motet.runs.recipe_text import RecipeError

# experiments whose quick scale has data that are generated or come with scikit-learn
COMPLETE = {
    *(f"page/{name}" for name in ("equilibrium", "figure2", "figure3", "players", "table1", "table1-synthetic")),
    *(f"page/table{i}" for i in (2, 3, 4, 5)), *(f"stacking/figure{i}" for i in (4, 5, 6)),
    "stacking/mixed", "swarm/figure7", "swarm/rules", "leaderboard",
}  # fmt: skip
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


@pytest.mark.parametrize("name", sorted({*experiments.names()} - COMPLETE))
def test_an_experiment_without_its_data_says_how_to_get_them_and_shows_no_traceback(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MOTET_DATA", raising=False)
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))
    assert main(["reproduce", name, "--jobs", "1", "--out", str(tmp_path / "out")]) == 2
    said = capfd.readouterr()
    last = said.err.partition("error: ")[2]
    assert (
        "motet data fetch" in last
        and last.count("hint:") == 1
        and "Traceback" not in said.err
        and not said.out
    )


def test_the_beginning_of_a_name_is_answered_with_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "heart"]) == 2
    assert (
        "unknown experiment heart\nhint: did you mean heart/columns or heart/fl4health or"
        in capsys.readouterr().err
    )


def test_seeds_of_an_experiment_may_be_written_with_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--seeds", "0", "1", "nothing/here"], ["nothing/here", "--seeds", "0", "1", "rounds=1"]):
        assert main(["reproduce", *words]) == 2
        assert "unknown experiment nothing/here" in capsys.readouterr().err
