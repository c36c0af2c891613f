"""Survival in reports and surveys: words, and curves with the rows that were still watched; none of too few rows."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from motet.data.load import load
from motet.data.survey import survey
from motet.report import survey_html, survey_text, tables
from motet.report.pictures import pictures
from motet.report.read import read as read_runs
from motet.report.survival_figures import FEWEST, halved
from motet.report.terminal import summary_text
from motet.runs.recipe import read
from motet.runs.run import run
from survivors import HOSPITALS, survivors, table, words


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    base = tmp_path_factory.mktemp("survival")
    path = table(base)
    return [
        run(read(words=[*words(path), f"method={method}", "save.models=none"]), base / method).folder
        for method in ("fedavg", "local")
    ]


def test_a_run_is_shown_in_percent_of_concordance_beside_equal_risks(folders: list[Path]) -> None:
    text = summary_text(tables.summary(read_runs(folders[:1])[0]))
    assert "concordance %" in text and "constant  50.0, equal risks" in text


def test_a_comparison_has_curves_of_both_halves_with_the_rows_still_watched(folders: list[Path]) -> None:
    runs = read_runs(folders)
    (picture,) = [p for p in pictures(runs, tables.comparison(runs)) if p.name == "survival-by-risk"]
    first = picture.data[picture.data["time"] == 0].set_index("half")
    tested = sum(int(n) for n in runs[0].clients["test"])
    assert first["watched"].sum() == tested and (first["survival"] == 1.0).all()
    assert f"{tested} rows" in picture.caption and "3 clients" in picture.caption


def test_rows_are_halved_at_the_median_of_their_own_client() -> None:
    """Risks of two clients' models are on different scales."""
    y, z = np.arange(1.0, 13.0), np.linspace(0, 1, 12)
    halves = halved({"a": (y, z), "b": (y, z + 100)})
    assert halves is not None and (halves.higher.rows, halves.lower.rows) == (12, 12)
    assert halved({"a": (y[: FEWEST - 1], z[: FEWEST - 1])}) is None and halved({}) is None


def test_a_survey_counts_events_and_draws_every_clients_curve(tmp_path: Path) -> None:
    how: dict[str, Any] = {"target": "days", "event": "died", "client": "hospital", "unseen": 0}
    found = asdict(survey(load(str(table(tmp_path)), how)))
    events = survivors().groupby("hospital")["died"].sum()
    assert found["labels"] == ["censored", "event"] and found["counts"][1] == events.sum()
    for client in found["clients"]:
        curve = [s for s in client["survival"] if s is not None]
        assert curve[0] == 1.0 and curve == sorted(curve, reverse=True) and len(found["times"]) == 201
        assert client["counts"][1] == events[client["client"]]
    assert "had their event" in survey_text.of_features(found)
    page = survey_html.page(found)
    assert page.count("<svg") == 2 and all(f"{h}, {events[h]} of {n}" in page for h, n in HOSPITALS.items())


def test_a_survey_of_classes_has_no_curves() -> None:
    found = asdict(survey(load("wine", {"clients": 3})))
    assert found["times"] == [] and survey_html.page(found).count("<svg") == 1
