"""Clients without a score of the metric are counted and named; weighted scores say so."""

from __future__ import annotations

import math

from motet.report.html import render
from motet.report.read import read
from motet.report.tables import by_client, comparison, summary
from motet.report.terminal import as_text, clients_text, summary_text
from motet.runs.store import Store

SCORES = {"a": 0.5, "b": 0.75, "c": math.nan, "d": math.nan}
SAID = "2 of 4 clients (2 have rows of one class and no AUC)"


def test_a_mean_says_over_how_many_clients_it_is_and_why_not_all(make):
    (run,) = read([make("ditto", SCORES, metric="auc")])
    assert f"mean ± sd over {SAID}" in summary_text(summary(run))
    text = as_text(comparison([run]))
    assert f"Means are over {SAID}." in " ".join(text.split())
    assert int(comparison([run])["clients"].iloc[0]) == 2


def test_a_mean_of_several_splits_is_over_the_clients_that_any_of_them_scored(make):
    parts = [
        {"a": 0.5, "b": 0.75, "c": math.nan, "d": math.nan},
        {"a": 0.5, "b": 0.75, "c": 0.5, "d": math.nan},
    ]
    folders = [
        make("ditto", s, metric="auc", split=i, folder=f"d{i}", natural=True) for i, s in enumerate(parts)
    ]
    table = comparison(read(folders))
    said = (
        "Means are over 3 of 4 clients (1 has rows of one class and no AUC); in a single run over 2 or more."
    )
    assert said in " ".join(as_text(table).split()) and int(table["clients"].iloc[0]) == 3


def test_clients_of_drawn_splits_are_counted_split_by_split(make):
    folders = [make("ditto", SCORES, metric="auc", split=i, folder=f"d{i}") for i in range(2)]
    text = " ".join(as_text(comparison(read(folders))).split())
    assert "Means are over 4 of 8 clients (4 have rows of one class and no AUC), counted in 2 splits." in text


def test_clients_without_a_score_are_listed_with_the_reason(make):
    runs = read([make("ditto", SCORES, metric="auc", rows={"c": 40})])
    lines = clients_text(by_client(runs), "auc").splitlines()
    assert [line.split() for line in lines[-3:-1]] == [["c", "40", "–"], ["d", "7", "–"]]
    assert lines[-1] == "–: 2 have rows of one class and no AUC; means leave them out"
    page = render(runs)
    assert f"Means are over {SAID}." in page and '<th scope="row" title="c">c</th>' in page


def test_clients_that_all_have_scores_need_no_words(make):
    runs = read([make("ditto", {"a": 0.5, "b": 0.75}, metric="auc")])
    assert "mean ± sd over 2 clients\n" in summary_text(summary(runs[0]))
    assert "–" not in clients_text(by_client(runs), "auc") and "Means are over" not in render(runs)


def test_a_run_with_groups_says_how_many_clients_each_has(make):
    groups = {"a": 0, "b": 1, "c": 1}
    (run,) = read([make("pfa", dict.fromkeys(groups, 0.5), record={"groups": groups})])
    assert "  groups    2, with 2, 1 clients\n" in summary_text(summary(run))


def test_a_narrow_table_names_the_columns_that_it_hides(make):
    runs = read([make(m, {"a": 0.5, "b": 0.7}, shared={"a": 0.4, "b": 0.6}) for m in ("fedavg", "local")])
    narrow, wide = (as_text(comparison(runs), (), width) for width in (60, 120))
    assert "Not shown: " in narrow and "--to FILE.csv" in " ".join(narrow.split()) and "Not shown" not in wide
    assert max(map(len, narrow.splitlines())) <= 60


def test_a_report_explains_no_column_that_its_table_lacks(make):
    page = render(read([make("fedavg", {"a": 0.5}), make("ditto", {"a": 0.5})]))
    assert "<b>Over alone</b>" not in page and "<b>Better, same, worse</b>" not in page


def test_a_curve_that_ends_before_its_run_says_why(make):
    folder = make("finetune", {"a": 0.5})
    store = Store(folder, writing=True)
    store.ended(3, 2.0, 1, 2048, 1024)
    store.commit()
    store.close()
    page = render(read([folder]))
    assert "last round with validation scores; finetune trained for some rounds more." in page


def test_weighted_scores_say_so_everywhere(make):
    runs = read([make("ditto", {"a": 0.5}, weighted=True), make("local", {"a": 0.5}, weighted=True)])
    assert "weighted: a test row counts by its weight" in summary_text(summary(runs[0]))
    assert "Scores are weighted" in as_text(comparison(runs)) and "Scores are weighted" in render(runs)
