"""Layouts of the server's making: whether one is refused must tell nothing of cells, and what is accepted must not
single out rows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from msgspec.structs import replace

from motet.deploy.agreement.layout import Layout
from motet.deploy.site.layout_checks import FAR
from motet.deploy.site.policy import Policy
from motet.deploy.site.service import SiteService
from motet.deploy.site.split import begin_anew
from patients import ROWS, asked, clause, layout_of, patients, site


def with_one_cell(folder: Path, policy: Policy | None = None) -> SiteService:
    """All patients have a viral load of 0, and one has not."""
    frame = patients().assign(load=0.0)
    learned = np.flatnonzero(site(folder / "first", frame).rows.source.learned("classes"))
    frame.loc[learned[7], "load"] = 48219.37
    return site(folder / "second", frame, policy)


def of_load(middle: float, spread: float) -> Any:
    values = {"means": 0.0, "middle": middle, "spread": spread}
    numbers = {k: torch.tensor([v], dtype=torch.float64) for k, v in values.items()}
    return Layout((("load", "number", ""),), "classes", ("no", "yes"), "federation", **numbers).tree()


# ---- what a refusal tells ----


@pytest.mark.parametrize("policy", [Policy(), Policy(round_sums=True), Policy(sums=False, counts=False)])
def test_whether_a_layout_is_refused_tells_nothing_of_what_was_not_said(
    tmp_path: Path, policy: Policy
) -> None:
    service = with_one_cell(tmp_path, replace_layouts(policy))
    answers = set()
    for i, middle in enumerate((0.0, 1e3, 1e6, 1e9)):
        for j, spread in enumerate((1e-9, 1e-3, 0.5, 1.5, 900.0, 1e5)):
            answers.add(asked(service, "layout", of_load(middle, spread), f"q{i}{j}").refusal)
    assert len(answers) == 1, "every one is answered alike"
    if policy.sums:
        rows = service.rows.of("q00").clients_data["a"].train.take().x
        assert float(rows.abs().max()) <= FAR, "and what it makes of the column is bounded"


def replace_layouts(policy: Policy) -> Policy:
    from dataclasses import replace as changed

    return changed(policy, layouts=1000)


def test_bisection_by_layouts_finds_what_was_said_and_no_more(tmp_path: Path) -> None:
    """Rounded means and spreads are all that 200 refusals give."""
    service = site(tmp_path, patients(), Policy(round_sums=True, layouts=1000))
    sums = asked(service, "measure", {"kind": "classes"}).tree
    said, age = float(sums["total"][0] / sums["many"][0]), patients()["age"]
    layout, low, high = layout_of(service), 0.0, 2e4
    for number in range(60):
        middle, half = 1e4, (low + high) / 2
        odd = layout.tree() | {k: getattr(layout, k).clone() for k in ("middle", "spread", "means")}
        odd["middle"][0], odd["spread"][0], odd["means"][0] = middle, half / FAR, middle
        refused = bool(asked(service, "layout", odd, f"q{number}").refusal)
        low, high = (half, high) if refused else (low, half)
    found, true = 1e4 - (low + high) / 2, float(age[service.rows.source.learned("classes")].mean())
    assert abs(found - said) < 1e-6 < abs(said - true)


@pytest.mark.parametrize("kind", ["auto", "numbers"])
def test_a_list_of_classes_is_no_question_which_numbers_there_are(tmp_path: Path, kind: str) -> None:
    frame = patients().assign(ill=np.random.default_rng(0).permutation(ROWS) * 7 + 9000)
    service = site(tmp_path, frame, kind=kind)
    everything = [str(v) for v in range(9000, 9500)]
    for fixed in (False, True):
        if fixed:
            assert not asked(service, "measure", {"kind": "numbers"}).refusal
        answers = set()
        for left_out in ("9000", "9001", "9007", "9499"):
            classes = tuple(v for v in everything if v != left_out)
            tree = Layout((("age", "number", ""),), "classes", classes, "client").tree()
            answers.add(asked(service, "layout", tree, f"q{left_out}").refusal)
        assert answers == {"layout"}
    assert asked(service, "measure", {"kind": "classes"}).refusal == "layout", "nor for sums"


def test_a_few_different_layouts_may_be_used_for_good(tmp_path: Path) -> None:
    service = site(tmp_path, patients(), Policy(layouts=3))
    layout = layout_of(service)
    found = []
    for i in range(6):
        other = replace(layout, middle=layout.middle + i / 100)
        found.append(asked(service, "layout", other.tree(), f"run {i}").refusal)
    assert found == [""] * 3 + ["layout"] * 3
    again = site(tmp_path, patients(), Policy(layouts=3))
    assert not asked(again, "layout", layout.tree(), "another run").refusal, (
        "one that was used does not count"
    )
    begin_anew(tmp_path / "kept")
    other = replace(layout, middle=layout.middle + 1)
    assert asked(again, "layout", other.tree(), "anew").refusal == "layout", "also after --new-split"


# ---- what an accepted one does ----


def test_spreads_that_are_a_thousand_times_too_small_are_refused(tmp_path: Path) -> None:
    service = site(tmp_path, patients())
    layout = layout_of(service)
    for factor, refusal in ((1.0, ""), (10.0, ""), (100.0, "layout"), (990.0, "layout")):
        odd = replace(layout, spread=layout.spread / factor)
        assert asked(service, "layout", odd.tree(), f"run {factor}").refusal == refusal
    far = layout.middle.clone()
    far[0] -= 900 * layout.spread[0]
    assert asked(service, "layout", replace(layout, middle=far).tree(), "far").refusal == "layout"


# ---- time and memory ----


def test_a_layout_of_thousands_of_categories_is_no_work(tmp_path: Path) -> None:
    service = site(tmp_path, patients())
    layout_of(service)
    columns = tuple((f"ward={i}", "flag", "ward") for i in range(4000))
    layout = Layout(columns, "classes", ("no", "yes"), "federation", means=torch.zeros(4000).double(),
                    middle=torch.zeros(4000).double(), spread=torch.ones(4000).double())  # fmt: skip
    before = time.process_time()
    assert not asked(service, "layout", layout.tree(), "wide").refusal
    assert time.process_time() - before < 5, "it was 30 seconds with work that grows with the square"


@pytest.mark.parametrize("limit", [{"letter_memory": 15_000_000}, {"letter_seconds": 0.05}])
def test_work_before_a_run_has_limits_too(tmp_path: Path, limit: dict[str, Any]) -> None:
    service = site(tmp_path, patients(), Policy(**limit))
    # One array of the rows has 60 MB: far more than what a process may have free from work before.
    columns = tuple((f"c{i}", "flag", "") for i in range(125_000))
    layout = Layout(columns, "classes", ("no", "yes"), "client")
    assert asked(service, "layout", layout.tree(), "wide").refusal == "limits"


# ---- names of classes ----


def test_rare_classes_do_not_leave_by_name(tmp_path: Path) -> None:
    frame = patients()
    frame.loc[:2, "ill"] = ["HIV (J. Doe)", "syphilis", "F64.0"]
    service = site(tmp_path / "1", frame)
    assert clause(service, "describe", ()) == "categories"
    numbers = patients().assign(ill=np.where(np.arange(ROWS) < ROWS - 1, 40 + np.arange(ROWS) % 3, 103))
    assert clause(site(tmp_path / "2", numbers), "describe", ()) == "categories"
    assert not asked(site(tmp_path / "3", frame, Policy(least_category=1)), "describe").refusal


# ---- another table ----


def blanked(what: str, gone: int) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The table without one patient's values, as an owner may change it."""
    frame = patients().astype(object)
    frame.loc[gone, ["age", "pressure", "sugar"]] = [0, 0.0, 0.0]
    if what == "one number is written in another way":
        frame.loc[gone, "age"] = 0.0
    if what == "a column has another type":
        frame["age"] = [f"{v}.0" for v in frame["age"]]
    if what == "a column is new":
        frame["dose"] = np.arange(ROWS)
    return frame, ("sugar",) if what == "a column is dropped" else ()


@pytest.mark.parametrize(
    "what",
    ["nothing else", "one number is written in another way", "a column has another type", "a column is dropped",
     "a column is new"],
)  # fmt: skip
def test_a_new_split_is_refused_where_few_rows_differ_in_the_columns_in_common(
    tmp_path: Path, what: str
) -> None:
    service = site(tmp_path, patients())
    assert not asked(service, "measure", {"kind": "classes"}).refusal
    frame, drop = blanked(what, int(np.flatnonzero(service.rows.source.learned("classes"))[5]))
    begin_anew(tmp_path / "kept")
    assert asked(site(tmp_path, frame, drop=drop), "measure", {"kind": "classes"}).refusal == "rows"


def test_another_table_is_no_change_of_the_one_before(tmp_path: Path) -> None:
    assert not asked(site(tmp_path, patients()), "measure", {"kind": "classes"}).refusal
    begin_anew(tmp_path / "kept")
    assert not asked(site(tmp_path, patients(seed=5)), "measure", {"kind": "classes"}).refusal
