"""Budgets over several runs of a simulation: what is added up, what is refused before training, and damage."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("opacus")

from tests.runs.test_private_runs import PRIVATE, settings

from motet.deploy.flare.kits import FederationError
from motet.deploy.server.run_files import make_order
from motet.errors import RunError
from motet.guard.accounting import NoisySteps, epsilon_of
from motet.runs.budget_ledger import SpentByRun, append, history, one_name, read_ledger, spent_over_runs
from motet.runs.build import resolve
from motet.runs.recipe import Recipe, RecipeError, read
from motet.runs.run import run

DELTA = 1e-3


def recipe(ledger: Path, *words: str) -> Recipe:
    given: Recipe = settings(
        *PRIVATE, f"privacy.ledger={ledger}", f"privacy.delta={DELTA}", "train.rounds=1", *words
    )
    return given


def test_runs_add_up_and_the_one_that_would_overspend_is_refused_before_training(tmp_path: Path) -> None:
    ledger = tmp_path / "deep" / "privacy.jsonl"
    one = run(recipe(ledger), tmp_path / "1")
    spent = spent_over_runs(ledger, "wine", DELTA)
    assert set(spent) == set(one.facts["privacy"]["clients"])
    planned = resolve(recipe(ledger)).budget.planned()  # type: ignore[union-attr]
    assert spent == {c: epsilon_of([steps], DELTA) for c, steps in planned.items()}
    assert max(spent.values()) <= one.facts["privacy"]["epsilon"], "by the smaller bound of two accountants"
    run(recipe(ledger, "method=mrmtl"), tmp_path / "2")
    two = max(spent_over_runs(ledger, "wine", DELTA).values())
    assert two > max(spent.values())
    limit = f"privacy.ledger_epsilon={two * 1.01}"
    before = ledger.read_bytes()
    with pytest.raises(RecipeError, match=f"client .* would have spent epsilon .* {two:.4g} of it before"):
        run(recipe(ledger, "method=fedprox", limit), tmp_path / "3")
    assert not (tmp_path / "3" / "run.sqlite").exists() and ledger.read_bytes() == before
    run(recipe(ledger, limit), tmp_path / "1")  # finished, and only read
    again = run(recipe(ledger, limit), tmp_path / "elsewhere")  # the same bits
    assert ledger.read_bytes() == before
    assert again.facts["privacy"] == one.facts["privacy"]


def test_the_ledger_changes_no_result_and_no_identity(tmp_path: Path) -> None:
    plain = settings(*PRIVATE, f"privacy.delta={DELTA}", "train.rounds=1")
    assert plain.identity() == recipe(tmp_path / "l", "privacy.ledger_epsilon=9").identity()


def line(rows: str, *steps: tuple[str, int]) -> SpentByRun:
    return SpentByRun("", "", "d", rows, "example", {c: NoisySteps(1.0, 0.5, n) for c, n in steps}, "")


def test_on_another_split_the_client_that_spent_most_counts() -> None:
    before = [line("here", ("a", 1), ("b", 5)), line("there", ("a", 2), ("b", 7))]
    assert [s.steps for s in history(before, "a", "here", DELTA)] == [1, 7]
    assert [s.steps for s in history(before, "new", "here", DELTA)] == [5, 7]


def test_whole_clients_and_rows_are_not_added_up(tmp_path: Path) -> None:
    ledger = tmp_path / "privacy.jsonl"
    words = ["data.clients=9", "privacy.level=client", "guard.clip=1", "privacy.noise_multiplier=3"]
    run(recipe(ledger, *words, "privacy.delta=0.01"), tmp_path / "1")
    ((found,), _) = read_ledger(ledger)
    assert found.clients == {"": NoisySteps(3.0, 1.0, 1)}
    with pytest.raises(RecipeError, match="what they protect is not the same"):
        run(recipe(ledger), tmp_path / "2")
    tight = epsilon_of([NoisySteps(3.0, 1.0, 1)], 0.01)
    with pytest.raises(RecipeError, match="every client would have spent"):
        more = [*words, "privacy.delta=0.01", "method=fedprox", f"privacy.ledger_epsilon={tight * 1.01}"]
        run(recipe(ledger, *more), tmp_path / "3")


@pytest.mark.parametrize("how", ["changed", "left out", "cut off"])
def test_a_damaged_ledger_is_refused_by_name(tmp_path: Path, how: str) -> None:
    ledger, last = tmp_path / "privacy.jsonl", ""
    for _ in range(3):
        append(ledger, SpentByRun("t", "r", "d", "x", "example", {"a": NoisySteps(1.0, 0.5, 3)}, last))
        last = read_ledger(ledger)[1]
    lines = ledger.read_bytes().split(b"\n")
    content = {
        "changed": [lines[0].replace(b"3", b"1"), *lines[1:]],
        "left out": [lines[0], *lines[2:]],
        "cut off": [*lines[:2], lines[2][:-4]],
    }
    ledger.write_bytes(b"\n".join(content[how]))
    with pytest.raises(RunError, match=r"privacy.jsonl is damaged: .*\n?.*hint: restore"):
        read_ledger(ledger)


def test_a_limit_needs_a_ledger_and_sites_have_their_own(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="privacy.ledger names no file"):
        resolve(settings(*PRIVATE, "privacy.ledger_epsilon=1"))
    with pytest.raises(
        RecipeError, match=f"{tmp_path}, a folder\nhint: privacy.ledger={tmp_path}/privacy.jsonl"
    ):
        run(recipe(tmp_path), tmp_path / "r")
    with pytest.raises(FederationError, match="each site has a ledger of its own"):
        make_order("care", None, [*PRIVATE, f"privacy.ledger={tmp_path}"], 3, 0, 60.0)


def test_a_run_that_was_finished_without_the_ledger_is_counted_when_it_is_read_with_it(
    tmp_path: Path,
) -> None:
    ledger = tmp_path / "privacy.jsonl"
    plain = settings(*PRIVATE, f"privacy.delta={DELTA}", "train.rounds=1")
    first = run(plain, tmp_path / "1")
    run(
        recipe(ledger, "privacy.ledger_epsilon=0.001"), tmp_path / "1"
    )  # what was spent is not refused any more
    spent = spent_over_runs(ledger, "wine", DELTA)
    assert set(spent) == set(first.facts["privacy"]["clients"]) and min(spent.values()) > 0
    with pytest.raises(RecipeError, match=f"{max(spent.values()):.4g} of it before"):
        run(recipe(ledger, "method=mrmtl", f"privacy.ledger_epsilon={max(spent.values())}"), tmp_path / "2")


def test_one_file_is_one_data_set_however_its_path_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 7},{i % 5},{i % 2},{'abc'[i % 3]}" for i in range(240)]
    Path("own.csv").write_text("\n".join(["x,z,y,site", *rows]) + "\n")
    words = [*PRIVATE, f"privacy.ledger={tmp_path / 'l'}", f"privacy.delta={DELTA}", "train.rounds=1",
             "method.batch=16", "data.target=y", "data.client=site", "data.unseen=0", "method.lr=0.1",
             "save.models=none"]  # fmt: skip
    run(read(None, ["data=own.csv", *words]), tmp_path / "1")
    one = max(spent_over_runs(tmp_path / "l", "own.csv", DELTA).values())
    with pytest.raises(RecipeError, match=f"{one:.4g} of it before"):
        run(
            read(
                None, [f"data={tmp_path}/./own.csv", *words, "seed=1", f"privacy.ledger_epsilon={one * 1.01}"]
            ),
            tmp_path / "2",
        )


def test_a_folder_with_the_name_of_a_data_set_makes_no_other_set_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(recipe(tmp_path / "l"), Path("wine"))
    run(recipe(tmp_path / "l", "seed=1"), Path("other"))
    here = spent_over_runs(tmp_path / "l", "wine", DELTA)
    monkeypatch.chdir("/")
    assert here and spent_over_runs(tmp_path / "l", "wine", DELTA) == here, "from another folder too"


def test_a_folder_at_home_is_known_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert one_name("~/rows") == one_name(str(tmp_path / "rows")) == str((tmp_path / "rows").resolve())


def test_a_run_that_is_refused_by_its_folder_is_not_written_down(tmp_path: Path) -> None:
    ledger = tmp_path / "privacy.jsonl"
    run(recipe(ledger), tmp_path / "1")
    before = ledger.read_bytes()
    with pytest.raises(RunError, match="holds another run"):
        run(recipe(ledger, "method=mrmtl"), tmp_path / "1")
    assert ledger.read_bytes() == before
