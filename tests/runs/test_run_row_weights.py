"""Runs on a table with a column of weights: what they read, train, score, keep and refuse."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score

import messy
from motet.cli.main import main
from motet.data.federated import DataError
from motet.errors import RunError
from motet.report.read import read as read_runs
from motet.report.score_intervals import one_share, score_intervals
from motet.runs.build import federated_data, forget_data
from motet.runs.choose_loss import chosen_loss
from motet.runs.choose_metric import chosen_metric, class_counts
from motet.runs.forget import forget
from motet.runs.recipe import RecipeError, read
from motet.runs.run import run, verify
from motet.trusted_code import trust_names
from survivors import table as survivors_table
from survivors import words as survival_words

WORDS = ["data=t.csv", "data.target=outcome", "data.client=site", "train.rounds=2", "engine.name=loop"]


def hospitals() -> pd.DataFrame:
    frames = [messy.patients(k).assign(site=site) for k, site in enumerate(messy.SITES)]
    frame = pd.concat(frames, ignore_index=True).drop(columns=["admitted", "ward"])
    return frame.assign(w=np.random.default_rng(0).gamma(1, 2, len(frame)).round(3) + 0.01)


def write(frame: pd.DataFrame) -> None:
    frame.to_csv("t.csv", index=False)
    forget_data()


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(hospitals())
    Path("metrics_of_rows.py").write_text(METRICS)
    trust_names(["metrics_of_rows:by_rows", "metrics_of_rows:by_weights"])
    sys.modules.pop("metrics_of_rows", None)


def go(name: str, *words: str) -> Any:
    return run(read(words=[*WORDS, *words]), Path(name))


def model(name: str) -> dict[str, Any]:
    return load_file(f"{name}/global.safetensors")


def same_bits(a: str, b: str) -> bool:
    one, two = model(a), model(b)
    return all((one[k] == two[k]).all() for k in one)


def test_weights_are_no_feature_and_change_what_is_learned_and_scored() -> None:
    weighed, plain = go("a", "data.weight=w"), go("b", "data.drop=w")
    columns = federated_data(read(words=[*WORDS, "data.weight=w"])).columns
    assert [c.name for c in columns] == ["age", "crp", "smoker"]
    assert not same_bits("a", "b")
    assert weighed.test["loss"].tolist() != plain.test["loss"].tolist()
    assert weighed.test["n"].tolist() == plain.test["n"].tolist()  # rows, whatever they count


def test_scores_are_weighted_means_over_test_rows() -> None:
    done = go("a", "data.weight=w", "train.metric=accuracy")
    rows = pd.read_parquet("a/predictions.parquet").query("side == 'personal' and client == 'east'")
    assert rows["weight"].nunique() > 5
    expected = accuracy_score(rows["target"], rows["p1"] > 0.5, sample_weight=rows["weight"])
    found = done.test.query("side == 'personal' and client == 'east'")["accuracy"]
    assert found.item() == pytest.approx(expected)


def test_weights_of_one_are_the_run_without_weights_to_the_bit() -> None:
    write(hospitals().assign(w=1))
    one, none = go("a", "data.weight=w"), go("b", "data.drop=w")
    pd.testing.assert_frame_equal(one.test, none.test)
    assert same_bits("a", "b")


def test_the_metric_and_balanced_classes_go_by_what_rows_count() -> None:
    """Cases and controls: half of the rows are ill, and each of the others stands for 99."""
    frame = hospitals()
    ill = np.arange(len(frame)) % 2 == 0
    write(frame.assign(outcome=np.where(ill, "ill", "well"), w=np.where(ill, 1.0, 99.0)))
    recipe = read(words=[*WORDS, "data.weight=w", "net.class_weights=balanced"])
    data = federated_data(recipe)
    metric, why = chosen_metric(recipe, data)
    assert metric == "auc" and re.match(
        r"auc, because (0\.9\d|1|1\.\d) % of the training rows by weight are 'ill'", why
    )
    counts, rows = class_counts(data), class_counts(data, by_weight=False)
    assert counts["ill"] / counts["well"] == pytest.approx(rows["ill"] / rows["well"] / 99, rel=1e-5)
    of_class = dict(zip(data.classes, chosen_loss(recipe, data)["class_weights"], strict=True))
    assert of_class["ill"] * counts["ill"] == pytest.approx(of_class["well"] * counts["well"], rel=1e-3)
    plain = read(words=[*WORDS, "data.drop=w"])
    assert chosen_metric(plain, federated_data(plain))[0] == "accuracy"


def test_the_interval_of_a_weighted_accuracy_rests_on_fewer_rows() -> None:
    """As many as equal rows whose mean is as sure (Kish 1965): (sum w)^2 / sum w^2."""
    go("a", "data.weight=w", "train.metric=accuracy")
    found = read_runs([Path("a")])[0]
    rows = found.test[found.test["side"] == "personal"].set_index("client")
    held = pd.read_parquet("a/predictions.parquet").query("side == 'personal' and client == 'east'")["weight"]
    expected = one_share(float(rows.loc["east", "score"]), float(held.sum() ** 2 / (held**2).sum()))
    assert score_intervals(found)["east"] == pytest.approx(expected)
    plain = one_share(float(rows.loc["east", "score"]), int(rows.loc["east", "n"]))
    assert expected[1] - expected[0] > plain[1] - plain[0]


def test_a_run_notices_that_weights_changed_and_is_not_read_as_one_without() -> None:
    go("a", "data.weight=w")
    verify(Path("a"))
    with pytest.raises(RunError, match="holds another run"):
        go("a", "data.drop=w")
    frame = hospitals()
    write(frame.assign(w=frame["w"].where(frame.index > 0, 9.0)))
    with pytest.raises(RunError, match="data"):
        go("a", "data.weight=w")


def test_new_rows_need_no_weights() -> None:
    go("a", "data.weight=w")
    new = hospitals().drop(columns=["w", "outcome", "site"]).head(5)
    new.to_csv("new.csv", index=False)
    assert main(["predict", "new.csv", "--model", "a/global.safetensors", "--to", "out.csv"]) == 0
    assert len(pd.read_csv("out.csv")) == 5


def test_forgetting_a_client_is_the_run_that_never_had_it() -> None:
    go("a", "data.weight=w")
    forget(Path("a"), "west", Path("less"))
    frame = hospitals()
    write(frame[frame["site"] != "west"])
    go("never", "data.weight=w")
    assert same_bits("less", "never")


def test_the_pooled_baseline_and_stacking_take_weights() -> None:
    write(hospitals().assign(even=1.0))
    for k, family in enumerate(("forest", "linear")):
        how = ("method=stacking", "method.trees=3", f"method.private={family}", f"method.meta={family}")
        a = go(f"a{k}", *how, "data.weight=w", "data.drop=even")
        b = go(f"b{k}", *how, "data.weight=even", "data.drop=w")
        assert np.isfinite(a.test["loss"]).all() and a.test["loss"].tolist() != b.test["loss"].tolist()
    pooled = federated_data(read(words=[*WORDS, "data.weight=w", "data.drop=even"])).pooled()
    held = pooled.clients_data["everyone"]
    assert held.weighted and held.total == pytest.approx(held.n, rel=1e-5)


def test_a_rate_that_is_left_open_is_safe_for_the_heaviest_row() -> None:
    """One row of a thousand counts as much as all others: whichever batch it is in, the steps must not diverge."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(600, 3))
    frame = pd.DataFrame(x, columns=list("abc")).assign(site=np.repeat(["east", "north", "west"], 200))
    frame = frame.assign(outcome=x @ [1, -1, 0.5] + 0.3 * draw.normal(size=600), w=1.0)
    frame.loc[[101, 301, 501], "w"] = 200.0
    write(frame)
    how = (
        "method=local",
        "net=mlp",
        "net.hidden=[8]",
        "method.lr=auto",
        "train.rounds=3",
        "data.kind=numbers",
    )
    done, plain = go("a", *how, "data.weight=w"), go("b", *how, "data.drop=w")
    assert done.facts["settings"]["method"]["lr"] < plain.facts["settings"]["method"]["lr"] / 2
    losses = done.scores.query("part == 'val' and side == 'personal'").groupby("round")["loss"].mean()
    assert np.isfinite(losses).all() and losses.iloc[-1] < losses.iloc[0]


METRICS = """
import numpy as np
def by_rows(y, p):
    return float((p.argmax(-1) == y).mean())
def by_weights(y, p, sample_weight=None):
    return float(np.average(p.argmax(-1) == y, weights=sample_weight))
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method=stacking", "method.public=dp-linear"], "method.public=linear"),
        (["method=swarm", "method.clip=5"], "method.clip=0"),
        (["train.metric=metrics_of_rows:by_rows"], "sample_weight=None"),
    ],
)
def test_what_cannot_count_by_weights_is_refused_before_anything_is_written(
    words: list[str], said: str
) -> None:
    with pytest.raises(RecipeError) as e:
        go("a", "data.weight=w", *words)
    assert said in str(e.value) and "hint:" in str(e.value) and not Path("a").exists()


def test_an_own_metric_that_takes_weights_is_given_them() -> None:
    done = go("a", "data.weight=w", "train.metric=metrics_of_rows:by_weights")
    rows = done.test.query("side == 'personal'")
    assert rows["own"].tolist() == pytest.approx(rows["accuracy"].tolist())


@pytest.mark.parametrize("extreme", [1e-50, 1e45])
def test_weights_that_would_vanish_beside_others_are_refused(extreme: float) -> None:
    frame = hospitals()
    write(frame.assign(w=np.where(frame["site"] == "west", extreme, 1.0)))
    with pytest.raises(DataError, match="more than 1e\\+12 times as large") as e:
        federated_data(read(words=[*WORDS, "data.weight=w"]))
    assert "hint: write 0" in str(e.value)


@pytest.mark.parametrize("unit", [1e-290, 1e290])
def test_only_ratios_of_weights_matter_whatever_their_unit(unit: float) -> None:
    frame = hospitals().assign(w=lambda f: np.where(f.index % 3 == 0, 1e9, 1.0))
    write(frame)
    plain = federated_data(read(words=[*WORDS, "data.weight=w"])).clients_data["west"].train.take().live
    write(frame.assign(w=frame["w"] * unit))
    found = federated_data(read(words=[*WORDS, "data.weight=w"])).clients_data["west"].train.take().live
    assert found.tolist() == pytest.approx(plain.tolist(), rel=1e-6) and plain.min() > 0


def test_weights_of_survival_times_are_refused(tmp_path: Path) -> None:
    path = survivors_table(tmp_path)
    words = survival_words(path)
    file = Path(next(w for w in words if w.startswith("data=")).removeprefix("data="))
    pd.read_csv(file).assign(w=2.0).to_csv(file, index=False)
    with pytest.raises(DataError, match="counts all rows"):
        federated_data(read(words=[*words, "data.weight=w"]))


def test_a_models_card_says_that_its_scores_are_weighted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *WORDS, "data.weight=w", "method=local", "--out", "r"]) == 0
    assert "weighted: a test row counts by its weight" in capsys.readouterr().out
    cards = list(Path("r/models").glob("*.md"))
    assert cards and all("test examples, each counting by its weight:" in c.read_text() for c in cards)
