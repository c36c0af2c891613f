"""Clients without a score of the metric are counted and named; weighted scores say so."""

from __future__ import annotations

import math

from motet.report.html import render
from motet.report.read import read
from motet.report.tables import by_client, comparison, summary
from motet.report.terminal import as_text, clients_text, summary_text

SCORES = {"a": 0.5, "b": 0.75, "c": math.nan, "d": math.nan}
SAID = "2 of 4 clients (2 have rows of one class and no AUC)"


def test_a_mean_says_over_how_many_clients_it_is_and_why_not_all(make):
    (run,) = read([make("ditto", SCORES, metric="auc")])
    assert f"mean ± sd over {SAID}" in summary_text(summary(run))
    text = as_text(comparison([run]))
    assert f"Means are over {SAID}." in " ".join(text.split())
    assert int(comparison([run])["clients"].iloc[0]) == 2


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


def test_weighted_scores_say_so_everywhere(make):
    runs = read([make("ditto", {"a": 0.5}, weighted=True), make("local", {"a": 0.5}, weighted=True)])
    assert "weighted: a test row counts by its weight" in summary_text(summary(runs[0]))
    assert "Scores are weighted" in as_text(comparison(runs)) and "Scores are weighted" in render(runs)
