"""The metric that a run goes by, what it is compared with, and what is kept of predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import motet
from motet.cli.main import main
from motet.report.read import read as read_report
from motet.runs.choose_metric import auto_metric
from motet.runs.compare_runs import differences
from motet.runs.mean_scores import mean_score
from motet.runs.recipe import RecipeError, read
from motet.runs.run import RunError, run, verify
from motet.runs.store import METRICS, Store
from rewritten import rewritten

SPLIT = ["data=wine", "data.clients=4", "data.unseen=0", "save.models=none"]
WINE = [*SPLIT, "train.rounds=3"]
EARLIER = ("accuracy", "balanced", "rmse", "mae", "r2", "loss")


def rare(folder: Path, hospitals: int = 6, rows: int = 150) -> list[str]:
    """Hospitals with one common logistic truth, where few patients die."""
    random = np.random.default_rng(7)
    x = random.normal(size=(hospitals * rows, 6)).round(3)
    chance = 1 / (1 + np.exp(-(x @ [1.2, -0.9, 0.7, 0.5, 0.0, 0.0] - 4.6)))
    frame = pd.DataFrame(x, columns=[f"v{k}" for k in range(6)])
    frame["hospital"] = np.repeat([f"h{k}" for k in range(hospitals)], rows)
    frame["outcome"] = np.where(random.random(len(x)) < chance, "died", "alive")
    frame.to_csv(folder / "rare.csv", index=False)
    named = [f"data={folder / 'rare.csv'}", "data.target=outcome", "data.client=hospital", "data.unseen=0"]
    return [*named, "train.rounds=4", "save.models=none"]


def module(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))


# ---- which metric ----


def test_a_federation_with_a_rare_outcome_goes_by_auc_and_says_why(tmp_path: Path) -> None:
    done = run(read(words=rare(tmp_path)), tmp_path / "r")
    facts, counts = done.facts, pd.read_csv(tmp_path / "rare.csv")["outcome"].value_counts()
    assert 0.03 < counts["died"] / counts.sum() < 0.045
    assert (facts["metric"], facts["better"]) == ("auc", 1)
    assert "of the training rows are 'died'" in facts["metric_why"]
    assert facts["settings"]["train"]["metric"] == "auc"
    test = done.test.set_index("side")
    assert (test.loc["constant", "auc"].dropna() == 0.5).all()
    assert test.loc["constant", "accuracy"].mean() > 0.95 and test.loc["personal", "auc"].mean() > 0.5


def test_federating_helps_hospitals_that_have_a_handful_of_rare_outcomes_each(tmp_path: Path) -> None:
    """Accuracy is that of the majority class everywhere, and AUC is not."""
    random = np.random.default_rng(2)
    x = random.normal(size=(900, 30)).round(3)
    chance = 1 / (1 + np.exp(5.6 - 0.75 * (x[:, 1:10:2].sum(1) - x[:, 0:10:2].sum(1))))
    frame = pd.DataFrame(x, columns=[f"v{k}" for k in range(30)])
    frame = frame.assign(hospital=np.repeat([f"h{k}" for k in range(6)], 150))
    frame["outcome"] = np.where(random.random(900) < chance, "died", "alive")
    found = motet.compare(["fedavg"], data=frame, target="outcome", client="hospital", base=tmp_path, jobs=0)
    assert found.verdict[0].startswith("Federating helps here: +"), found.verdict
    assert "AUC, because 2." in found.verdict[-1] and len(found.folders) == 30
    rows = found.frame.query("metric == 'accuracy'").groupby("method")["value"].mean()
    assert (
        abs(rows["fedavg"] - rows["local"])
        < 0.01
        < 0.1
        < found.table.set_index("method").loc["fedavg", "gain_local"]
    )


@pytest.mark.parametrize(
    ("counts", "metric"),
    [
        ({"a": 80, "b": 20}, "auc"),  # the first explains 80 % of an accuracy
        ({"a": 79, "b": 21}, "accuracy"),
        ({"a": 100, "b": 100, "c": 20}, "auc"),  # 9 %, and the even share is a third
        ({"a": 100, "b": 100, "c": 40}, "accuracy"),
        ({"a": 100, "b": 100, "c": 0}, "accuracy"),  # a class that nobody has is no rare class
        ({str(k): 1 + 99 * (k > 0) for k in range(30)}, "accuracy"),  # of many classes some are always rare
        ({}, "accuracy"),
    ],
)
def test_auto_is_auc_where_a_class_is_rare(counts: dict[str, int], metric: str) -> None:
    assert auto_metric("classes", counts)[0] == metric


@pytest.mark.parametrize(
    ("data", "metric", "said"),
    [
        ("diabetes", "auc", "the targets are numbers.*\n.*hint: auto, rmse, mae, r2, loss"),
        ("wine", "rmse", "the targets are classes.*\n.*hint: auto, accuracy, balanced, auc"),
        ("wine", "acuracy", "did you mean 'accuracy'"),
        ("wine", "nowhere:score", "'nowhere', which is not there"),
    ],
)
def test_a_metric_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, data: str, metric: str, said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        run(read(words=[f"data={data}", f"train.metric={metric}"]), tmp_path / "r")
    assert not (tmp_path / "r").exists()


# ---- choosing the round ----


def test_the_round_is_chosen_by_the_metric_that_was_given(tmp_path: Path) -> None:
    done = run(read(words=[*WINE, "train.metric=loss", "train.rounds=6"]), tmp_path / "r")
    val = done.scores.query("part == 'val' and side == 'personal'").groupby("round")["loss"].mean()
    assert done.facts["reported"] == val.idxmin() and done.facts["metric_why"] == ""
    assert (done.facts["metric"], done.facts["better"]) == ("loss", -1)


def test_mean_auc_counts_clients_by_their_pairs_and_leaves_out_who_has_none() -> None:
    scores = {"n": np.array([9.0, 9, 9]), "auc": np.array([1.0, 0.5, np.nan]), "pairs": np.array([3.0, 1, 0])}
    assert mean_score("auc", scores) == pytest.approx(3.5 / 4)
    assert np.isnan(mean_score("auc", {k: v[2:] for k, v in scores.items()}))


def test_of_rounds_with_the_same_auc_the_one_with_the_smallest_loss_is_chosen(tmp_path: Path) -> None:
    done = run(read(words=[*WINE, "train.metric=auc", "train.rounds=8"]), tmp_path / "r")
    val = done.scores.query("part == 'val' and side == 'personal'")
    rows = val.groupby("round")[["auc", "loss"]].mean()  # at last 1 at every client
    best = rows[rows["auc"] > rows["auc"].max() - 1e-9]
    assert len(best) > 1 and done.facts["reported"] == best["loss"].idxmin()


def test_where_nobody_has_auc_on_validation_rows_the_round_is_chosen_by_loss(tmp_path: Path) -> None:
    words = [*rare(tmp_path, hospitals=3, rows=40), "data.val=0.05", "train.metric=auc"]
    done = run(read(words=words), tmp_path / "r")
    val = done.scores.query("part == 'val' and side == 'personal'")
    assert "auc" not in val or val["auc"].isna().all()
    assert done.facts["reported"] == val.groupby("round")["loss"].mean().idxmin()
    assert done.facts["round_by"] == "loss" and "metric" in set(done.events["kind"])


# ---- a user's own metric ----


def test_an_own_metric_chooses_and_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def miss(targets, p):\n    return float((p.argmax(1) != targets).mean())\nmiss.smaller_is_better = True\n"
    module(tmp_path, monkeypatch, "own_miss", text)
    done = run(read(words=[*WINE, "train.metric=own_miss:miss"]), tmp_path / "r")
    facts = done.facts
    assert (facts["metric"], facts["better"], facts["metric_name"]) == ("own", -1, "own_miss:miss")
    np.testing.assert_allclose(done.scores["own"], 1 - done.scores["accuracy"])
    assert verify(done.folder) == []


def test_an_own_metric_may_be_given_as_a_function(tmp_path: Path) -> None:
    def hits(targets: Any, p: Any) -> float:
        return float((p.argmax(1) == targets).mean())

    done = motet.run(data="wine", clients=3, unseen=0, rounds=1, metric=hits, out=tmp_path / "r")
    assert done.facts["metric"] == "own" and done.facts["metric_name"].startswith("session:hits-")
    np.testing.assert_allclose(done.test["own"], done.test["accuracy"])


def test_an_own_metric_of_numbers_gets_them_in_their_own_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def error(targets, values):\n    return float(abs(targets - values).mean())\n"
    module(
        tmp_path, monkeypatch, "own_error", text + "def least(targets, values):\n    return targets.min()\n"
    )
    words = ["data=diabetes", "data.clients=3", "data.unseen=0", "train.rounds=2", "save.models=none"]
    done = run(read(words=[*words, "train.metric=own_error:error"]), tmp_path / "r")
    np.testing.assert_allclose(done.scores["own"], done.scores["mae"], rtol=1e-4)
    least = run(read(words=[*words, "train.metric=own_error:least"]), tmp_path / "s")
    assert least.scores["own"].min() >= 25  # of all targets of these data


def test_an_own_metric_that_cannot_score_a_constant_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(tmp_path, monkeypatch, "own_nan", "def score(targets, p):\n    return float('nan')\n")
    with pytest.raises(RecipeError, match="own_nan:score, client client-.: it returned nan"):
        run(read(words=[*WINE, "train.metric=own_nan:score"]), tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_an_own_metric_that_fails_later_ends_the_run_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "calls = []\ndef score(targets, p):\n    calls.append(1)\n    return 0.5 if len(calls) < 22 else [][0]\n"
    module(tmp_path, monkeypatch, "own_late", text)
    words = [*SPLIT, "train.metric=own_late:score", "train.rounds=9", "save.checkpoint=0"]
    assert main(["run", *words, "--out", str(tmp_path / "r")]) == 2
    said = capsys.readouterr().err
    assert "own_late:score, client client-" in said and "IndexError" in said
    found = motet.Run(tmp_path / "r")
    assert found.facts["status"] == "failed" and "own_late:score" in found.facts["failure"]
    assert 1 <= len(found.rounds) < 9, "rounds that ended are saved"


# ---- sides and predictions ----


def test_the_constant_predicts_a_clients_own_majority(tmp_path: Path) -> None:
    done = run(read(words=WINE), tmp_path / "r")
    constant = done.scores.query("side == 'constant'")
    assert set(constant["part"]) == {"val", "test"} and set(constant["round"]) == {done.facts["reported"]}
    rows = pd.read_parquet(done.folder / "predictions.parquet")
    for client, labels in done.clients.set_index("client")["labels"].items():
        counts = {int(k): n for k, n in json.loads(labels).items()}
        most = max(counts, key=lambda k: (counts[k], -k))
        share = (rows.loc[rows["client"] == client, "target"] == most).mean()
        score = constant.query("client == @client and part == 'test'")["accuracy"].item()
        assert score == pytest.approx(share)


def test_predictions_are_those_that_were_scored(tmp_path: Path) -> None:
    done = run(read(words=[*WINE, "method=finetune"]), tmp_path / "r")
    kept = pd.read_parquet(done.folder / "predictions.parquet")
    rows = kept.query("side == 'personal'")
    p = rows[["p0", "p1", "p2"]].to_numpy()
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)
    right = pd.Series(p.argmax(1) == rows["target"], index=rows.index).groupby(rows["client"]).mean()
    test = done.test.query("side == 'personal'").set_index("client")["accuracy"]
    pd.testing.assert_series_equal(right, test, check_names=False, check_index_type=False)
    assert set(kept["side"]) == {"personal", "constant"} and rows.groupby("client")["row"].min().eq(0).all()


def test_predicted_numbers_are_in_the_targets_own_unit(tmp_path: Path) -> None:
    words = ["data=diabetes", "data.clients=3", "data.unseen=0.3", "train.rounds=2", "save.models=none"]
    done = run(read(words=words), tmp_path / "r")
    rows = pd.read_parquet(done.folder / "predictions.parquet").query("side == 'personal'")
    mse = ((rows["target"] - rows["value"]) ** 2).groupby(rows["client"]).mean()
    test = done.test.query("side == 'personal'").set_index("client")["rmse"]
    np.testing.assert_allclose(np.sqrt(mse), test[mse.index], rtol=1e-4)
    assert set(rows["client"]) == set(done.clients.query("seen == 1")["client"])


def test_a_stack_is_compared_with_its_own_kind_alone(tmp_path: Path) -> None:
    done = run(read(words=[*WINE, "method=stacking", "method.trees=3", "train.rounds=1"]), tmp_path / "r")
    alone = done.scores.query("side == 'alone'")
    assert set(alone["part"]) == {"val", "test"} and alone["accuracy"].gt(0.5).any()
    rows = pd.read_parquet(done.folder / "predictions.parquet")
    assert set(rows["side"]) == {"personal", "alone", "constant"}
    assert len(rows.query("side == 'alone'")) == len(rows.query("side == 'personal'"))


# ---- stores of earlier versions ----


def as_earlier(folder: Path) -> None:
    """Make a run's store as version 0.1 wrote it: fewer metrics, no constants, no metric in the recipe."""
    with rewritten(folder) as db:
        columns = f"round, part, side, client, n, {', '.join(EARLIER)}"
        db.execute(f"CREATE TABLE earlier AS SELECT {columns} FROM scores WHERE side != 'constant'")
        db.execute("DROP TABLE scores")
        typed = (
            "round INTEGER NOT NULL, part TEXT NOT NULL, side TEXT NOT NULL, client TEXT NOT NULL, n INTEGER"
        )
        db.execute(
            f"CREATE TABLE scores ({typed} NOT NULL, {', '.join(f'{m} REAL' for m in EARLIER)}, "
            "PRIMARY KEY (round, part, side, client)) WITHOUT ROWID"
        )
        db.execute(f"INSERT INTO scores ({columns}) SELECT {columns} FROM earlier")
        db.execute("DROP TABLE earlier")
        db.execute("DELETE FROM meta WHERE key IN ('metric_name', 'metric_why')")


def test_a_store_of_an_earlier_version_is_read_verified_and_written(tmp_path: Path) -> None:
    done = run(read(words=WINE), tmp_path / "r")
    as_earlier(done.folder)
    (report,) = read_report([done.folder])
    assert not report.trouble and report.of("personal").notna().all()
    assert verify(done.folder) == []
    store = Store(done.folder, writing=True)
    assert store.metrics == METRICS
    values: Any = {"auc": np.array([0.25]), "accuracy": np.array([0.75])}
    store.scored(99, "val", "personal", ["a"], [3], values)
    store.commit()
    row = store.frame("scores").query("round == 99").iloc[0]
    assert (row["auc"], row["accuracy"], row["n"]) == (0.25, 0.75, 3)


def test_a_store_that_differs_in_a_new_metric_differs(tmp_path: Path) -> None:
    done, again = (run(read(words=WINE), tmp_path / name) for name in "rs")
    with rewritten(again.folder) as db:
        db.execute("UPDATE scores SET auc = 0.123 WHERE part = 'test'")
    assert differences(Store(done.folder), Store(again.folder)) != []


def test_a_run_error_names_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "calls = []\ndef score(t, p):\n    calls.append(1)\n    return 1.0 if len(calls) < 6 else 'good'\n"
    module(tmp_path, monkeypatch, "own_word", text)
    with pytest.raises(RunError, match="own_word:score, client client-(.|\n)*good"):
        run(read(words=[*WINE, "train.metric=own_word:score"]), tmp_path / "r")


def test_an_own_metric_is_shown_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "def miss(targets, p):\n    return float((p.argmax(1) != targets).mean())\nmiss.smaller_is_better = True\n"
    module(
        tmp_path, monkeypatch, "named_miss", text + "def hits(targets, p):\n    return 1 - miss(targets, p)\n"
    )
    runs = [str(tmp_path / name) for name in ("miss", "hits")]
    for folder in runs:
        words = [*SPLIT, f"train.metric=named_miss:{Path(folder).name}", "method=stacking", "train.rounds=1"]
        assert main(["run", *words, "--out", folder]) == 0
    shown = capsys.readouterr()
    assert "personal miss 0." in shown.err and "own metric" not in shown.out + shown.err
    assert main(["show", runs[0]]) == 0
    shown = capsys.readouterr()
    assert "miss, mean ± sd over" in shown.out and "own metric" not in shown.out
    assert main(["report", runs[0], "--to", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "own metric" not in page and "Validation is miss on" in page
    capsys.readouterr()
    assert (
        main(["report", *runs, "--to", str(tmp_path / "both.html")]) == 2
    )  # two metrics of one's own are not one
    assert "their metric differs (named_miss:hits, named_miss:miss)" in capsys.readouterr().err
