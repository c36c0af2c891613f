"""Tuning: the same budget for every method, choices on validation rows alone; what somebody chose stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import motet
from motet.cli.main import main
from motet.runs import recipe as recipes
from motet.runs.build import resolve
from motet.runs.study import Asked, Row, read
from motet.runs.tune import in_words, search_of, tune


def row(method: Any, *words: str) -> Row:
    return read(None, ["data=wine", "data.clients=3", *words], Asked([method])).rows[0]


def tried(method: Any, *words: str) -> list[dict[str, Any]]:
    found = search_of(row(method, *words), 0, 0)
    assert found
    return found.tried


@pytest.mark.parametrize(
    "method", ["fedavg", "fedprox", "ditto", "pfedme", "feddyn", "finetune", "fedala", "local"]
)
def test_every_method_that_descends_has_the_same_budget_and_starts_with_its_default(method: str) -> None:
    usual = resolve(row(method).recipe(0, 0)).recipe["method"]
    found = tried(method)
    assert len(found) == 13 and all(found[0][k] == usual[k] for k in found[0])
    assert min(c["lr"] for c in found) == pytest.approx(usual["lr"] / 10, rel=0.05)
    assert max(c["lr"] for c in found) == pytest.approx(usual["lr"] * 10, rel=0.05)


def test_a_strength_is_tried_over_four_orders_of_magnitude_and_epochs_over_one() -> None:
    usual = recipes.read(words=["method=ditto"])["method"]["lam"]
    factors = sorted({c["lam"] / usual for c in tried("ditto")})
    assert factors == pytest.approx([0.01, 0.1, 1, 10, 100], rel=0.05)
    assert sorted({c["tune"] for c in tried("finetune")}) == [1, 2, 5, 10, 20]


def test_what_somebody_chose_is_not_tuned() -> None:
    assert {tuple(c) for c in tried("ditto", "method.lr=0.5")} == {("lam",)}
    assert {tuple(c) for c in tried({"name": "ditto", "lam": 2.0})} == {("lr",)}
    assert search_of(row({"name": "ditto", "lam": 2.0, "lr": 0.5}), 0, 0) is None
    assert search_of(row("stacking"), 0, 0) is None


def test_a_value_that_a_setting_does_not_allow_is_not_tried() -> None:
    class Picky(motet.methods.FedAvg):  # type: ignore[name-defined,misc]
        """A strength that is a share."""

        strength = "part"
        part: motet.Share = 0.5  # of something

    from motet.data.own_code import name_of

    assert {c["part"] for c in tried(name_of(Picky))} == {0.005, 0.05, 0.5}


def rows_of() -> dict[str, Any]:
    """Two clients of 40 rows; the target follows the first column."""
    draw = np.random.default_rng(1).normal(size=(2, 40, 4)).astype(np.float32)
    return {f"ward {i}": (x, (x[:, 0] + 0.3 * x[:, 1] > 0).astype(int)) for i, x in enumerate(draw)}


def study_of(data: Any) -> Any:
    from motet.runs.from_python import study

    settings = {"data": data, "rounds": 4, "unseen": 0.0, "engine": "loop"}
    return study(None, ["local"], settings, {}, [0, 1], [0, 1])


def with_ruined_test_rows(data: dict[str, Any]) -> dict[str, Any]:
    """The same rows, with noise in the features of those that are for the test in split 0."""
    from motet.runs.build import federated_data

    federated = federated_data(study_of(data).rows[0].recipe(0, 0))
    wrong = {}
    for name, (x, y) in data.items():
        rulers = federated.rulers.get(name)
        kept = federated.clients_data[name].test.take().x.numpy()
        scaled = rulers.apply(x) if rulers else x
        hit = np.array([np.isclose(kept, r, atol=1e-4).all(1).any() for r in scaled])
        assert hit.sum() == len(kept)
        wrong[name] = (np.where(hit[:, None], -7 * x[::-1], x), y)
    return wrong


def test_ruined_test_rows_change_no_choice(tmp_path: Path) -> None:
    fine = rows_of()
    ruined = with_ruined_test_rows(fine)
    chosen = []
    for i, data in enumerate((fine, ruined)):
        study, said = tune(study_of(data), tmp_path / str(i))
        chosen.append(([r.settings["method"] for r in study.rows], said))
    assert chosen[0] == chosen[1]
    assert (study.seeds, study.splits) == ((0, 1), (0, 1))
    assert "best of 13 on validation rows, 5.8 runs' worth of rounds" in said["local"]


def test_tuning_trains_no_round_twice_and_is_not_repeated(tmp_path: Path) -> None:
    first, said = tune(study_of(rows_of()), tmp_path)
    folders = list((tmp_path / "tuning").glob("*-local-*"))
    rounds = sorted(len(motet.Run(f).rounds) for f in folders)
    assert rounds == [1] * 7 + [2] * 4 + [4] * 2
    begun = {f: len(motet.Run(f).events) for f in folders if motet.Run(f).facts["status"] == "done"}
    again, same = tune(study_of(rows_of()), tmp_path)
    assert (again, same) == (first, said)
    assert all(len(motet.Run(f).events) == n for f, n in begun.items())


def test_a_tuned_comparison_says_what_it_chose_and_what_it_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data=wine", "data.clients=3", "data.unseen=0", "train.rounds=4", "engine.name=loop"]
    given = ["--methods", "local", "--tune", "--jobs", "1", "--quiet", "--out", str(tmp_path)]
    assert main(["compare", *words, *given]) == 0
    said = capsys.readouterr().err
    assert "tuned:  local: lr " in said and "best of 13 on validation rows" in said


def test_settings_are_said_in_short() -> None:
    assert in_words({"lr": 0.031622, "lam": 1.0, "tune": 5}) == "lr 0.032, lam 1, tune 5"
