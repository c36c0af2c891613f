"""A study: which runs it is made of, what it refuses before anything runs, and which splits it takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import motet
from motet.cli.main import main
from motet.data.federated import Pool
from motet.runs.recipe import RecipeError
from motet.runs.run_study import record_of
from motet.runs.study import Asked, Study, as_file, flat_grid, grid_words, read, whole_numbers
from motet.runs.study_record import read_studies


def planned(*words: str, methods: Any = ("ditto",), grid: tuple[str, ...] = (), **asked: Any) -> Study:
    return read(None, ("data=wine", *words), Asked(methods, grid_words(grid), **asked))


def labels(study: Study) -> list[str]:
    return [row.label for row in study.rows]


def test_a_study_always_has_local_and_gives_each_method_what_it_knows() -> None:
    study = planned("method.lr=0.3", "fedprox.mu=0.7", methods=["fedprox"], seeds="0-1")
    made = [j.recipe for j in study.jobs()]
    assert [(r["method"]["name"], r.seed) for r in made] == [
        ("fedprox", 0), ("local", 0), ("fedprox", 1), ("local", 1),
    ]  # fmt: skip
    assert all(r["method"]["lr"] == 0.3 for r in made) and made[0]["method"]["mu"] == 0.7


def test_seeds_vary_the_run_and_splits_the_data() -> None:
    made = [j.recipe for j in planned(methods=["local"], seeds=[0, 3], splits="0-1").jobs()]
    assert [(r.seed, r["data"]["seed"]) for r in made] == [(0, 0), (3, 0), (0, 1), (3, 1)]


def test_a_grid_over_one_method_makes_rows_of_that_method_only() -> None:
    study = planned(methods=["fedavg", "ditto"], grid=("ditto.lam=0.01,1",))
    assert labels(study) == ["fedavg", "ditto lam=0.01", "ditto lam=1", "local"]


def test_a_grid_over_methods_concerns_all_that_have_the_setting_and_grids_are_multiplied() -> None:
    study = planned(methods=["ditto", "stacking"], grid=("method.lr=0.05,0.1", "ditto.lam=1,2"))
    assert labels(study) == [
        "ditto lr=0.05 lam=1", "ditto lr=0.05 lam=2", "ditto lr=0.1 lam=1", "ditto lr=0.1 lam=2",
        "stacking", "local lr=0.05", "local lr=0.1",
    ]  # fmt: skip


def test_every_setting_of_training_and_network_has_its_own_local() -> None:
    study = planned(methods=["fedavg"], grid=("train.rounds=1,2", "net=mlp,logistic"))
    assert labels(study)[:2] == ["fedavg rounds=1 net=mlp", "local rounds=1 net=mlp"]
    assert [r.label.split()[0] for r in study.rows].count("local") == 4


def test_lists_and_words_are_values_of_a_grid() -> None:
    assert grid_words(["net.hidden=[8],[16,8]", "data.split=iid,dirichlet"]) == {
        "net.hidden": [[8], [16, 8]],
        "data.split": ["iid", "dirichlet"],
    }
    assert flat_grid({"page": {"agent": {"gamma": [0.5, 0.9]}}}) == {"page.agent.gamma": [0.5, 0.9]}


def test_a_study_can_be_a_file_and_one_method_be_there_several_times(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        'methods = ["fedavg", { name = "ditto", lam = 1.0 }, { name = "ditto", lam = 2.0 }]  # three rows\n'
        'seeds = "0-2"\nsplits = [4]\ndata = "wine"\n[train]\nrounds = 3\n[grid]\nfedavg.lr = [0.1, 0.2]\n'
    )
    study = read(file, [], Asked())
    assert labels(study) == ["fedavg lr=0.1", "fedavg lr=0.2", "ditto lam=1.0", "ditto lam=2.0", "local"]
    assert (study.seeds, study.splits, study.jobs()[0].recipe.train.rounds) == ((0, 1, 2), (4,), 3)
    other = read(file, ["train.rounds=5"], Asked(["local"], {"local.lr": [1.0]}, seeds="7"))
    assert (labels(other), other.seeds) == (["local lr=1.0"], (7,))


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["method.lr=0.3", "fedprox.mu=0.7"], {"methods": ["fedprox"], "seeds": "0-1"}),
        (["data.seed=3", "net=mlp", "net.hidden=[16, 8]"], {"methods": ["ditto"]}),
        ([], {"methods": [{"name": "ditto", "lam": 0.5}, "fedavg"], "splits": [0, 2]}),
        (["train.rounds=3"], {"methods": ["ditto"], "grid": ("ditto.lam=0.1,1", "net.name=mlp,logistic")}),
    ],
)
def test_the_record_of_a_study_is_enough_to_go_on_with_it(
    tmp_path: Path, words: list[str], asked: dict[str, Any]
) -> None:
    study = planned(*words, **asked)
    record_of(study, tmp_path, tuning=True).write(tmp_path)
    (record,) = read_studies(tmp_path)
    (tmp_path / "again.toml").write_text(as_file(record.asked))
    again = read(tmp_path / "again.toml", [], Asked())
    assert (again.rows, again.seeds, again.splits) == (study.rows, study.seeds, study.splits)
    assert record.tune and record_of(again, tmp_path, tuning=True).name == record.name


def test_a_study_with_what_no_file_can_say_is_not_written_as_one() -> None:
    for value in (None, "\ud800", object()):
        with pytest.raises(RecipeError, match="cannot be written as a file"):
            as_file({"data": {"name": value}})


def test_a_whole_recipe_can_be_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["recipe", "data=wine", "method=ditto", "seed=3"])
    (tmp_path / "r.toml").write_text(capsys.readouterr().out)
    study = read(tmp_path / "r.toml", [], Asked(["ditto"]))
    assert study.seeds == (3,) and study.splits == (0,)


WRONG = {
    "method.lrr=0.3": "unknown setting method.lrr\nhint: did you mean 'lr'",
    "method=ditto": "a comparison runs several methods",
    "seed=3": "hint: --seeds",
    "fedprox.mu=1": "fedprox has settings, and it is not among the methods",
    "--grid ditto.lamm=1,2": "unknown setting lamm of ditto\nhint: did you mean 'lam'",
    "--grid method.lamm=1,2": "unknown setting method.lamm\nhint: did you mean 'lam'",
    "--grid train.roundz=1,2": "unknown setting train.roundz",
    "--grid fedprox.mu=1,2": "fedprox is not among the methods: ditto, local",
    "--grid tain.rounds=1": "unknown section tain.rounds\nhint: did you mean 'train'",
    "--grid ditto.lam=1,x": "method.lam is 'x'",
    "--grid ditto.lam=1,1": "expected different ones",
    "--grid ditto.lam=1 --grid ditto.lam=2": "is given twice",
    "--grid data.seed=0,1": "hint: --splits",
    "--grid seed=0,1": "hint: --seeds",
    "--grid data=wine,digits": "one federation",
    "--grid engine.name=loop,vmap": "would give the same results",
    "--grid lam": "cannot read --grid 'lam'",
    "ditto.lam=1 --grid ditto.lam=1,2": "ditto.lam is 1, and the grid varies it",
    "train.rounds=1 --grid train.rounds=1,2": "train.rounds is 1, and the grid varies it",
    "--seeds 0-2,1": "seeds are 0-2,1, and 1 is there twice",
    "--seeds 4-0": "seeds are '4-0'; expected whole numbers",
    "--seeds -1": "seeds are '-1'; expected whole numbers",
    "--splits a": "splits are 'a'; expected whole numbers",
    "data.seed=1 --splits 0-1": "both say which",
    "--methods dito": "unknown method dito\nhint: did you mean 'ditto'",
    "seeds=0-4": "hint: --seeds",
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_is_said_before_anything_runs(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = re.sub(r"--seeds -1", "--seeds=-1", words).split()
    methods = [] if "--methods" in words else ["--methods", "ditto"]
    assert (
        main(["compare", "data=wine", *methods, *given, "--jobs", "1", "--out", str(tmp_path / "runs")]) == 2
    )
    assert WRONG[words] in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_data_that_are_not_there_are_said_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["compare", "data=nowhere.csv", "data.target=y", "--jobs", "1", "--out", str(tmp_path / "runs")])
        == 2
    )
    assert "nowhere.csv" in capsys.readouterr().err and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("given", "meant"),
    [("0-2,5", (0, 1, 2, 5)), ([3, 1], (3, 1)), (range(2), (0, 1)), (4, (4,)), ("7", (7,))],
)
def test_seeds_are_numbers_spans_and_mixtures(given: Any, meant: tuple[int, ...]) -> None:
    assert whole_numbers(given, "seeds") == meant


@pytest.mark.parametrize("given", ["", "0,,1", "1.5", [0, 0], [True], ["a"], [], "0-99999999", 1.5])
def test_what_are_no_seeds_is_refused(given: Any) -> None:
    with pytest.raises(RecipeError, match="seeds are"):
        whole_numbers(given, "seeds")


# ---- splits ----


def few(rows: int = 12) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(0).normal(size=(4, rows, 3))
    return {f"ward {i}": (x, (x[:, 0] > 0).astype(int)) for i, x in enumerate(draw)}


def test_few_rows_of_named_clients_are_split_five_times_and_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = motet.compare(["local"], data=few(), rounds=1, base=tmp_path, progress=True)
    assert sorted(r.facts["split"] for r in found.runs) == [0, 1, 2, 3, 4]
    said = capsys.readouterr().err
    assert "5 splits of 4 clients, because 48 rows are few to test on; --splits 0 for one" in said


def test_one_split_is_taken_where_it_is_asked_for_or_enough(tmp_path: Path) -> None:
    from motet.runs.from_python import study

    def splits(**settings: Any) -> tuple[int, ...]:
        return study(None, ["local"], settings, {}, None, settings.pop("splits", None)).splits

    assert splits(data=few(), splits=0) == (0,) and splits(data=few(3000)) == (0,)
    assert splits(data="wine") == (0,) and splits(data=few(), split="iid", clients=4) == (0,)
    assert splits(data={"name": "wine", "seed": 3}) == (3,)


def marked() -> Pool:
    """Few rows of named clients, of which the data say which are for the test."""
    x = np.random.default_rng(0).normal(size=(48, 3)).astype(np.float32)
    owner, part = np.repeat(["a", "b", "c", "d"], 12), np.tile([0, 0, 2], 16)
    return Pool(x, (x[:, 0] > 0).astype(np.int64), "classes", ("no", "yes"), owner=owner, part=part)


def test_test_rows_that_the_data_give_are_the_same_in_every_split_so_there_is_one() -> None:
    from motet.runs.from_python import study

    assert study(None, ["local"], {"data": marked}, {}, None, None).splits == (0,)


# ---- from Python ----


class Halves(motet.methods.FedAvg):  # type: ignore[name-defined,misc]
    """FedAvg with a setting of its own."""

    share: motet.Share = 0.5  # of nothing


def test_methods_are_names_classes_and_dicts_with_grids_from_python(tmp_path: Path) -> None:
    found = motet.compare(
        ["fedavg", {"name": "ditto", "lam": 2.0}, Halves],
        data="wine", rounds=1, base=tmp_path, grid={"fedavg.lr": [0.1, np.float64(0.2)]},
    )  # fmt: skip
    named = sorted(r.label.split(":")[-1] for r in found.runs)
    assert named == ["Halves", "ditto", "fedavg (lr=0.1)", "fedavg (lr=0.2)", "local"]
    assert {r.facts["settings"]["method"].get("lam") for r in found.runs} == {None, 2.0}


def test_a_keyword_that_the_grid_varies_is_refused_in_python(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="train.rounds is 1, and the grid varies it"):
        motet.compare(["local"], data="wine", rounds=1, grid={"train.rounds": [1, 2]}, base=tmp_path)


def test_an_exception_in_a_callback_ends_the_call_and_the_run_is_saved(tmp_path: Path) -> None:
    def stop(end: motet.RoundEnd) -> None:
        raise KeyError(f"after round {end.round}")

    with pytest.raises(KeyError, match="after round 0"):
        motet.compare(["fedavg"], data="wine", rounds=9, base=tmp_path, on_round=stop)
    (only,) = tmp_path.glob("wine-*")
    assert len(motet.Run(only).rounds) == 1
