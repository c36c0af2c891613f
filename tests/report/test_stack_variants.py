"""What users see of stacking: alone, held-out and pooled side by side, contributions, history and policies in use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime")

import motet
from motet.cli.main import main
from motet.report.contributions import contributions_text
from motet.report.html import render
from motet.report.read import read as read_runs
from motet.report.stack_variants import stacks, variants_of, variants_text
from motet.report.tables import summary
from motet.report.terminal import summary_text
from motet.runs.recipe import read
from motet.runs.run import run, verify

WORDS = ["data=breast_cancer", "data.clients=4", "data.alpha=3", "method=stacking", "method.trees=5"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> motet.Run:
    words = [*WORDS, "method.variant=auto", "method.threshold=0.3", "train.rounds=2", "train.report=last"]
    return run(read(words=words), tmp_path_factory.mktemp("variants") / "r")


def test_every_variant_is_scored_on_the_same_rows_of_every_client(done: motet.Run) -> None:
    frame = done.variants
    assert set(frame["part"]) == {"val", "test"}
    for _, rows in frame.groupby(["part", "client"]):
        assert list(rows["variant"]) == ["alone", "held-out", "pooled", "personal"]
        assert rows["n"].nunique() == 1
    assert {"accuracy", "balanced", "auc"} <= set(frame.columns)


def test_auto_uses_what_is_best_on_validation_rows(done: motet.Run) -> None:
    val = done.variants.query("part == 'val'").pivot(index="client", columns="variant", values="balanced")
    used = done.variants.pivot(index=["part", "client"], columns="variant", values=["loss", "accuracy"])
    assert (val["personal"] == val[["alone", "held-out", "pooled"]].max(axis=1)).all()
    for (
        _,
        row,
    ) in used.iterrows():  # and it is one of the three, on test rows too; alone has fewer trees' rows
        assert any(
            all(row[m, "personal"] == pytest.approx(row[m, v]) for m in ("loss", "accuracy"))
            for v in ("alone", "held-out", "pooled")
        )


def test_the_terminal_the_page_and_json_show_them_in_three_metrics(
    done: motet.Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (reported,) = read_runs([done.folder])
    found: Any = variants_of(reported)
    assert found["metrics"] == ["accuracy", "balanced", "auc"]
    rows = done.test[done.test["side"] == "pooled"]
    assert found["means"]["pooled"]["auc"] == pytest.approx(rows["auc"].mean())
    for wide in (60, 80):
        monkeypatch.setenv("COLUMNS", str(wide))
        main(["show", str(done.folder)])
        text = capsys.readouterr().out
        stacking = text.partition("mean of clients ")[2]
        assert "held-out stack" in stacking and "validation" in stacking
        assert max(map(len, stacking.splitlines())) <= wide
    assert "threshold 0.3 of an equal part" in text and "scikit-learn" in text and "last rounds" in text
    main(["show", str(done.folder), "--clients"])
    assert "test AUC" in capsys.readouterr().out
    main(["show", str(done.folder), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["variants"]["means"].keys() == {"alone", "held-out", "pooled", "personal"}
    assert len(said["contributions"]["history"]) == 2
    assert said["contributions"]["served"]["threshold"] == 0.3
    page = render([reported])
    for words in (
        "Stacks of stacking",
        "pooled stack",
        "betweenness",
        "Contributions by round",
        "scikit-learn",
    ):
        assert words in page
    assert "network logistic" not in page


def test_a_run_of_another_method_shows_nothing_of_stacks(tmp_path: Path) -> None:
    other = run(read(words=["data=wine", "method=local", "train.rounds=1"]), tmp_path / "r")
    (reported,) = read_runs([other.folder])
    assert variants_of(reported) is None and variants_text(None) == [] and contributions_text(None) == []
    assert other.variants.empty and "Stacks of" not in render([reported])


def test_a_run_with_compared_stacks_is_the_same_when_it_is_run_again(done: motet.Run) -> None:
    assert verify(done.folder) == []


def test_the_page_shows_the_variants_client_by_client(done: motet.Run) -> None:
    (run_,) = read_runs([done.folder])
    (shown,) = stacks([run_])
    found = variants_of(run_)
    assert found and [c for c, _ in shown["by_client"]] == list(found["clients"])
    assert all(len(cells) == len(shown["sides"]) * len(shown["heads"]) for _, cells in shown["by_client"])
    assert "client by client, on test rows" in render([run_])


def test_the_cost_says_in_which_rounds_anything_was_sent(done: motet.Run) -> None:
    (run_,) = read_runs([done.folder])
    found = summary(run_)
    said = summary_text(found | {"rounds": 4, "rounds_sent": 1.0})
    assert "per client in the one round that sent anything" in said
    assert "per client in each of 2 rounds" in summary_text(found | {"rounds": 4, "rounds_sent": 2.0})
    assert "per client and round" in summary_text(found | {"rounds": 2, "rounds_sent": 2.0})
