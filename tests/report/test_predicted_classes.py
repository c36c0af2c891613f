"""Confusion matrices and calibration, of probabilities given by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from motet.report import figures, pictures, tables
from motet.report import predicted_classes as classes
from motet.report.client_outcomes import METRICS, Predicted
from motet.report.read import read

Make = Callable[..., Path]
ROWS = {  # client: (class, probability of dog) of each test row
    "a": [(0, 0.1), (0, 0.4), (1, 0.9), (1, 0.8)],
    "b": [(0, 0.7), (0, 0.2), (1, 0.3), (1, 0.6)],
}


def with_predictions(folder: Path, rows: Mapping[str, list[tuple[int, float]]]) -> Path:
    """The run with its predictions for test rows."""
    found = [
        ("personal", client, i, y, 1 - p, p) for client, some in rows.items() for i, (y, p) in enumerate(some)
    ]
    frame = pd.DataFrame(found, columns=["side", "client", "row", "target", "p0", "p1"])
    frame.to_parquet(folder / "predictions.parquet")
    return folder


def drawn(folders: list[Path]) -> dict[str, figures.Picture]:
    runs = read(folders)
    return {p.name: p for p in pictures.pictures(runs, tables.comparison(runs))}


def predicted(rows: list[tuple[int, float]], weight: list[float] | None = None) -> Predicted:
    y, p = np.array([r[0] for r in rows]), np.array([[1 - r[1], r[1]] for r in rows])
    return Predicted(y, p, None if weight is None else np.array(weight))


def test_all_clients_and_the_worst_one_have_a_confusion_matrix(make: Make) -> None:
    folder = with_predictions(make("ditto", {"a": 1.0, "b": 0.5}), ROWS)
    found = drawn([folder])["confusion"]
    rows = {tuple(r[:3]): r[3] for r in found.data.itertuples(index=False)}
    assert rows["all clients", "cat", "cat"] == 3 and rows["all clients", "cat", "dog"] == 1
    assert rows["b", "dog", "cat"] == 1 and ("a", "cat", "cat") not in rows
    assert "b is the client with the worst score" in found.caption
    assert ">cat</text>" in figures.in_page(found)


def test_rows_count_by_their_weights() -> None:
    found = classes.confusion([predicted([(0, 0.1), (0, 0.9), (1, 0.9)], [2.0, 0.5, 1.0])])
    assert found.tolist() == [[2.0, 0.5], [0.0, 1.0]]


def test_bins_and_calibration_error_by_hand() -> None:
    # likeliest classes: 0.9 right, 0.9 wrong (bin 14); 0.6 right (bin 9)
    bins = classes.reliability([predicted([(1, 0.9), (0, 0.9), (1, 0.6)])])
    assert bins["bin"].tolist() == [9, 14] and bins["rows"].tolist() == [1.0, 2.0]
    assert bins["accuracy"].tolist() == [1.0, 0.5]
    assert classes.calibration_error(bins) == pytest.approx((0.4 * 1 + 0.4 * 2) / 3)


def test_the_figures_error_is_that_of_the_scores() -> None:
    draw = np.random.default_rng(0)
    y, p = draw.integers(0, 4, 300), draw.dirichlet(np.ones(4), 300)
    found = classes.calibration_error(classes.reliability([Predicted(y, p)]))
    assert found == pytest.approx(float(METRICS["ece"](y, p, np.ones((1, 300)))[0]))


def test_calibration_is_drawn_of_the_chosen_method_and_of_training_alone(make: Make) -> None:
    names = ["local", "ditto", "fedavg", "fedprox", "finetune", "page"]
    folders = [with_predictions(make(m, {"a": 0.4 + i / 10, "b": 0.5}), ROWS) for i, m in enumerate(names)]
    found = drawn(folders)["calibration"]
    shown = list(dict.fromkeys(found.data["label"]))
    assert len(shown) == 4 and "local" in shown and "page" in shown
    assert "Not drawn: 2 of 6 methods" in found.caption


def test_numbers_and_runs_without_predictions_have_neither(make: Make) -> None:
    folders = [make("local", {"a": 1.0}, metric="rmse"), make("ditto", {"a": 2.0}, metric="rmse")]
    assert not {"confusion", "calibration"} & set(drawn(folders))


def test_many_classes_are_cut_to_the_most_frequent(make: Make) -> None:
    many = 30
    folder = make("ditto", {"a": 0.5}, classes=[f"class {k}" for k in range(many)])
    y = np.repeat(np.arange(many), np.arange(1, many + 1))
    frame = pd.DataFrame({"side": "personal", "client": "a", "row": np.arange(len(y)), "target": y})
    frame = frame.assign(**{f"p{k}": (y == k).astype(float) for k in range(many)})
    frame.to_parquet(folder / "predictions.parquet")
    found = drawn([folder])["confusion"]
    assert "Only the 20 most frequent classes" in found.caption
    text = figures.in_page(found)
    assert ">class 29<" in text and ">class 9<" not in text
