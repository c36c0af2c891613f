"""Numbers about few rows, names in categories, counts and cells stay at a site; its owner sees what leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from motet.data.federated import DataError
from motet.deploy.agreement.column_sums import ColumnSums, pooled
from motet.deploy.agreement.layout import Layout, Split
from motet.deploy.site.disclosure import coarse_scores, column_sums
from motet.deploy.site.dry_run import dry_run, dry_text
from motet.deploy.site.policy import Policy, RefusedByPolicy
from motet.deploy.site.service import SiteService
from motet.deploy.site.table import SiteTable
from motet.deploy.site.table_reading import TableReading
from motet.engines.letters import Letter, Reply
from motet.engines.site_scores import ScoreRules
from motet.runs import recipe as recipes
from motet.runs.build import method_of, task_of
from motet.runs.recipe import read
from patients import RECIPE, ROWS, asked, clause, in_round, layout_of, offered, patients, refused, site

# ---- rows behind a number ----


def test_no_number_of_few_rows_leaves(tmp_path: Path) -> None:
    few = site(tmp_path / "few", patients(14))
    assert clause(few, "measure", {"kind": "classes"}) == "rows"
    service = site(tmp_path / "some", patients(60), split=Split(val=0.05))
    layout = layout_of(service)
    assert asked(service, "layout", layout.tree()).tree["val"] == 3
    assert clause(few, "layout", replace(layout, splits={}).tree()) == "rows"


def test_few_validation_rows_are_scored_by_nobody_and_seen_by_no_verb(tmp_path: Path) -> None:
    service = site(tmp_path, patients(60), split=Split(val=0.05))
    offered(service)
    method = service.method(train := in_round("verb", (), verb="train"))
    assert len(service.visit(train, method).data.val) == 0
    assert len(service.rows.of("r").clients_data["a"].val) == 3
    w = method.task.w0
    sent = {"global": w, "download": w, "same": True, "sides": ["personal", "global"]}
    assert refused(service, in_round("evaluate", sent, part="val")).clause == "rows"
    assert refused(service, in_round("evaluate_trained", w, verb="train")).clause == "rows"
    assert Reply.read(service.answer(in_round("evaluate", sent, part="test").pack())).tree


def test_a_sum_that_is_one_cell_does_not_leave(tmp_path: Path) -> None:
    z = np.column_stack([np.zeros(40), np.r_[37.5, np.zeros(39)], np.arange(40.0), np.ones(40)])
    z = np.column_stack(
        [z, np.r_[np.arange(9.0), np.full(31, np.nan)], np.arange(40) < 9, np.arange(40) < 20]
    )
    found = column_sums(z, [""] * 7, Policy())
    assert found.many.tolist() == [40, 0, 40, 40, 0, 0, 40] and found.total.tolist() == [
        0,
        0,
        780,
        40,
        0,
        0,
        20,
    ]
    assert column_sums(z, [""] * 7, Policy(least_rows=1)).total[1] == 37.5


def test_a_sum_that_is_nearly_one_cell_does_not_leave() -> None:
    z = np.random.default_rng(0).lognormal(3, 1, (40, 2))
    z[7, 1] = 1e6
    assert column_sums(z, ["", ""], Policy()).many.tolist() == [40, 0]


def test_rows_of_a_rare_category_cannot_be_computed_from_the_others(tmp_path: Path) -> None:
    frame = patients()
    frame.loc[[3, 8], "ward"] = "chapel"
    service = site(tmp_path, frame)
    columns = [c[0] for c in service.rows.source.own_layout("classes").columns]
    said = dict(
        zip(columns, asked(service, "measure", {"kind": "classes"}).tree["many"].tolist(), strict=True)
    )
    assert said["age"] == 36 and {said[c] for c in columns if c.startswith("ward=")} == {0}


def test_a_federation_scales_a_column_by_the_sites_that_say_its_sums() -> None:
    layout = Layout((("a", "number", ""), ("b", "number", "")), "classes", ("no", "yes"))
    z = np.random.default_rng(0).normal(3, 2, (90, 2))
    own = {s: layout.columns for s in "xy"}
    parts = {"x": ColumnSums.measured(z[:50]), "y": ColumnSums.measured(z[50:])}
    found = pooled(layout, own, {s: p.tree() for s, p in parts.items()})
    np.testing.assert_allclose(found.scaler.middle, z.mean(0), rtol=1e-14)
    np.testing.assert_allclose(found.scaler.spread, z.std(0), rtol=1e-14)
    for lie in (
        (),
        {"rows": 1},
        parts["x"].tree() | {"total": torch.zeros(3)},
        parts["x"].tree() | {"many": "many"},
    ):
        with pytest.raises(DataError, match="site y sent no"):
            pooled(layout, own, {"x": parts["x"].tree(), "y": lie})
    silent = ColumnSums(*(v * [1, 0] for v in parts["y"]))
    found = pooled(layout, own, {"x": parts["x"].tree(), "y": silent.tree()})
    np.testing.assert_allclose(found.scaler.middle[1], z[:50, 1].mean(), rtol=1e-14)


# ---- categories ----


def test_names_of_60_patients_never_leave(tmp_path: Path) -> None:
    names = [f"Patient {chr(65 + i % 26)}{i}" for i in range(ROWS)]
    kept = TableReading(keep=("patient",))
    service = site(tmp_path, patients().assign(patient=names), more=kept)
    jobs: list[tuple[Any, Any]] = [
        ("describe", ()),
        ("measure", {"kind": "classes"}),
        ("layout", {"columns": ()}),
    ]
    for job, send in jobs:
        assert clause(service, job, send) in ("categories", "layout")
        reply = service.answer(Letter(job, "r", send=send).pack())
        assert Reply.read(reply).refusal and not any(n.encode() in reply for n in names)
    assert clause(service, "describe", ()) == "categories"
    with pytest.raises(RefusedByPolicy, match=r"(?s)most values of 'patient' are different.*--drop patient"):
        dry_run(SiteTable("a", tmp_path / "a.csv", "ill", more=kept))
    dropped = site(tmp_path / "2", patients().assign(patient=names), drop=("patient",))
    assert not asked(dropped, "describe").refusal


def test_ids_are_left_out_of_what_a_site_says_and_the_owner_is_told(tmp_path: Path) -> None:
    names = [f"Patient {chr(65 + i % 26)}{i}" for i in range(ROWS)]
    service = site(tmp_path, patients().assign(patient=names))
    reply = asked(service, "describe")
    assert "patient" not in [c["name"] for c in reply.tree["columns"]]
    text = dry_text(dry_run(SiteTable("a", tmp_path / "a.csv", "ill")))
    assert "note: column 'patient' looks like an id" in text and "--keep patient" in text


def test_a_target_of_names_is_refused(tmp_path: Path) -> None:
    service = site(tmp_path, patients().assign(ill=[f"case {i}" for i in range(ROWS)]))
    assert clause(service, "describe", ()) == "categories"


def test_rare_categories_are_other_and_a_model_takes_new_ones_for_it(tmp_path: Path) -> None:
    frame = patients()
    frame.loc[[3, 8], "ward"] = ["the isolated room", "chapel"]
    service = site(tmp_path, frame)
    reply = service.answer(Letter("describe").pack())
    assert b"isolated" not in reply and b"chapel" not in reply
    ward = next(c for c in Reply.read(reply).tree["columns"] if c["name"] == "ward")
    assert ward["values"] == ["east", "other", "west"]
    layout = layout_of(service)
    at = [c[0] for c in layout.columns].index("ward=other")
    held = service.rows.of("honest").clients_data["a"]
    assert sum(float(part.x[:, at].sum()) for part in (held.train, held.val, held.test)) == 2
    exact = site(tmp_path / "exact", frame, Policy(least_category=1))
    assert "chapel" in asked(exact, "describe").tree["columns"][3]["values"]


def test_a_category_that_is_called_other_takes_the_rare_ones_in(tmp_path: Path) -> None:
    frame = patients()
    frame.loc[:9, "ward"] = "other"
    frame.loc[[20, 21], "ward"] = "chapel"
    source = site(tmp_path, frame).rows.source
    feature = source.features["ward"]
    assert [c.name for c in feature.columns] == ["ward=east", "ward=other", "ward=west"]
    assert feature.values.sum(0)[1] == 12 and (feature.values.sum(1) == 1).all()


# ---- cells in messages ----


def test_errors_with_cells_and_names_of_files_are_refusals_of_which_a_clause_leaves(tmp_path: Path) -> None:
    frame = patients().astype({"age": object})
    frame.loc[3, "age"] = "Jane Doe, b. 1961-03-04"
    assert clause(site(tmp_path / "1", frame), "describe", ()) == "data"
    service = site(tmp_path / "2", patients())
    (tmp_path / "2" / "a.csv").rename(tmp_path / "2" / "secret.csv")
    assert clause(service, "describe", ()) == "data"
    strange = site(tmp_path / "3", patients())
    layout = layout_of(site(tmp_path / "4", patients()))
    assert clause(strange, "layout", replace(layout, classes=("no", "maybe")).tree()) == "layout"


# ---- counts ----


def test_without_counts_no_number_of_rows_leaves(tmp_path: Path) -> None:
    service = site(tmp_path, patients(), Policy(counts=False), split=Split(val=0.2))
    description = asked(service, "describe").tree
    assert description["counts"] == {}
    sums = asked(service, "measure", {"kind": "classes"}).tree
    assert set(sums["rows"].tolist()) == set(sums["many"].tolist()) == {1.0}
    train = service.rows.source.measure("classes", Policy())
    assert not np.isclose(sums["total"][0], train.mean[0], rtol=1e-12), "times 33 it would be whole"
    assert abs(float(sums["total"][0]) - train.mean[0]) < 0.05 * train.mean[0]
    assert asked(service, "layout", layout_of(service).tree()).tree == {}
    offered(service)
    w = service.method(in_round("verb", (), verb="train")).task.w0
    assert Reply.read(service.answer(in_round("verb", w, verb="train").pack())).n == 1
    sent = {"global": w, "download": w, "same": False, "sides": ["personal", "global", "constant"]}
    for letter in (
        in_round("evaluate", sent, part="test"),
        in_round("evaluate_trained", w, verb="train", part="test"),
    ):
        reply = Reply.read(service.answer(letter.pack()))
        assert reply.n == 1 and reply.tree
        for scores in reply.tree.values():
            assert float(scores["n"]) == 1 and float(scores["pairs"]) in (0, 1)


def test_rounded_sums_scale_nearly_the_same(tmp_path: Path) -> None:
    exact, coarse = (site(tmp_path / str(k), patients(), Policy(round_sums=k)) for k in (False, True))
    a, b = (layout_of(s).scaler for s in (exact, coarse))
    at = layout_of(exact).numbers
    assert (abs(a.middle - b.middle) <= a.spread / 60)[at].all() and (a.middle != b.middle)[at].any()
    assert (abs(np.log(b.spread / a.spread)) < 0.03)[at].all()
    said = asked(coarse, "measure", {"kind": "classes"}).tree
    assert set(said["many"].tolist()) == {30.0}


# ---- what the owner sees ----


def test_a_dry_run_shows_the_very_values_that_would_leave(tmp_path: Path) -> None:
    frame = patients()
    frame.loc[[3, 8], "ward"] = ["the isolated room", "chapel"]
    frame["dose"] = np.r_[37.5, np.zeros(ROWS - 1)]
    service = site(tmp_path, frame)
    text = dry_text(
        dry_run(SiteTable("a", tmp_path / "a.csv", "ill"), Policy(), read(words=["method=fedavg"]))
    )
    values = text.split("the contract that")[0].splitlines()
    lines = {line[2:].split("  ")[0]: line for line in values if line.startswith("  ")}
    assert lines["ward"].endswith("east, other, west") and lines["ill (target)"].endswith("no, yes")
    assert lines["rows"].endswith("60") and "val 0.15, test 0.25, seed 0" in lines["split"]
    sums = asked(service, "measure", {"kind": "classes"}).tree
    assert f"{float(sums['total'][0] / sums['many'][0]):.4g}, spread" in lines["mean of age"]
    assert "not said" in lines["mean of dose"] and "37.5" not in text and "chapel" not in text
    assert "9 rows, least_rows = 10; hint: a larger --val" in lines["scores on val rows"]
    silent = dry_text(dry_run(SiteTable("a", tmp_path / "a.csv", "ill"), Policy(counts=False, sums=False)))
    assert (
        "not said" in silent
        and "mean of age" not in silent
        and " 60" not in silent.split("the contract that")[0].split("values that leave")[1]
    )


def scores_of(service: SiteService) -> dict[str, dict[str, float]]:
    offered(service)
    w = method_of(recipes.check(RECIPE), task_of(recipes.check(RECIPE), service.rows.of("r"))).task.w0
    send = {"global": w + 0.1, "download": (), "same": False, "sides": ["global", "constant"]}
    reply = Reply.read(service.answer(in_round("evaluate", send, part="test").pack()))
    assert not reply.refusal
    return {side: {k: float(v) for k, v in found.items()} for side, found in reply.tree.items()}


def test_numbers_of_rows_that_stay_do_not_leave_in_scores(tmp_path: Path) -> None:
    """How many rows a rare class has would follow from pairs, and from shares with all their digits."""
    rare = patients(200).assign(ill=np.where(np.arange(200) % 29 == 0, "yes", "no"))  # 7 of 200
    hidden = scores_of(site(tmp_path / "1", rare))
    uncounted = scores_of(site(tmp_path / "2", patients(200), Policy(counts=False)))
    for found, pairs in ((hidden, 49.0), (uncounted, 1.0)):
        for side, digits in (("global", 2), ("constant", 1)):
            shares = {
                k: v for k, v in found[side].items() if k in ("balanced", "f1", "auc", "brier", "ece", "loss")
            }
            assert all(v == round(v, digits) for v in shares.values())
            assert found[side]["pairs"] == pairs
    exact = scores_of(site(tmp_path / "3", patients(200)))["global"]
    assert exact["pairs"] > 100 and exact["loss"] != round(exact["loss"], 2)


def test_coarse_scores_are_scores_that_a_server_takes() -> None:
    rules = ScoreRules("classes", 2, 1.0, False)
    for wrong in np.linspace(0, 1, 41):
        names = ("accuracy", "balanced", "auc", "f1", "brier", "ece")
        exact = dict.fromkeys(names, 1 - wrong) | {"loss": wrong * np.log(2), "n": 40.0, "pairs": 39.0}
        tensors = {k: torch.tensor(v, dtype=torch.float64) for k, v in exact.items()}
        for side in ("global", "constant"):
            rules.check(coarse_scores({side: tensors})[side], 40)
