"""What a server can learn from the numbers before a run: attacks on the split, the sums, categories and counts.

Every attack goes through the site's own service, as letters; the attacker knows everything but the rows.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from msgspec.structs import replace

from motet.cli.main import main
from motet.deploy.agreement.column_sums import ColumnSums, pooled
from motet.deploy.agreement.handshake import handshake
from motet.deploy.agreement.layout import Layout, Split
from motet.deploy.agreement.schema import merge
from motet.deploy.site.config import open_service
from motet.deploy.site.disclosure import column_sums
from motet.deploy.site.dry_run import dry_run, dry_text
from motet.deploy.site.policy import Policy, RefusedByPolicy
from motet.deploy.site.service import SiteService
from motet.deploy.site.split import begin_anew
from motet.deploy.site.table import SiteTable
from motet.engines.letters import Letter, Reply
from motet.runs.recipe import read
from motet.wire import pack

ROWS = 60
NUMBERS = ["age", "pressure", "sugar"]
RECIPE = {"method": {"name": "fedavg", "lr": 0.1, "epochs": 1}, "net": {"name": "logistic"}, "seed": 0}


def patients(rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    numbers = {"age": draw.integers(20, 90, rows), "pressure": draw.normal(130, 20, rows).round(1)}
    more = {"sugar": draw.normal(5.5, 1, rows).round(2), "ward": draw.choice(["east", "west"], rows)}
    return pd.DataFrame(numbers | more | {"ill": draw.choice(["no", "yes"], rows)})


def site(folder: Path, frame: pd.DataFrame, policy: Policy | None = None, **how: Any) -> SiteService:
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / "a.csv", index=False)
    source = SiteTable("a", folder / "a.csv", "ill", **how)
    return SiteService("a", folder / "kept", source, policy, b"k" * 32)


def asked(service: SiteService, job: Any, send: Any = (), run: str = "r", **more: Any) -> Reply:
    return Reply.read(service.answer(Letter(job, run, send=send, **more).pack()))


def clause(service: SiteService, job: str, send: Any) -> str:
    """The clause under which a letter is refused."""
    with pytest.raises(RefusedByPolicy) as e:
        service.jobs[job](Letter(job, "r", send=send))  # type: ignore[arg-type]
    return e.value.clause


def layout_of(service: SiteService) -> Layout:
    """The layout that the site alone would come to."""
    return handshake(lambda letter: {"a": Reply.read(service.answer(letter.pack()))}, "honest")[1]


# ---- differences of sums ----


def splits(many: int) -> list[Split]:
    """Shares and seeds, from ordinary ones to those that leave one row."""
    shares = [(0.15, 0.25), (0.0, 0.985), (0.3, 0.3), (0.6, 0.25), (0.0, 0.0), (0.15, 0.84)]
    return [
        Split(v, t, seed) for seed, (v, t) in itertools.islice(itertools.product(range(99), shares), many)
    ]


def test_310_letters_with_splits_of_the_servers_choice_bring_one_answer(tmp_path: Path) -> None:
    service = site(tmp_path, patients())
    layout = layout_of(service)
    honest = pack(asked(service, "measure", {"kind": "classes"}).tree)
    answers = set()
    for wish in splits(310):
        tree = layout.tree() | {"val": wish.val, "test": wish.test, "seed": wish.seed}
        del tree["splits"]
        for send in (
            {"layout": tree, "middle": ()},
            {"kind": "classes", "val": wish.val},
            {"kind": "classes"},
        ):
            reply = asked(service, "measure", send)
            answers |= {pack(reply.tree)} if not reply.refusal else set()
    assert answers == {honest}
    assert clause(service, "measure", {"layout": layout.tree(), "middle": torch.zeros(3)}) == "sums"


def test_layouts_with_splits_of_the_servers_choice_are_refused(tmp_path: Path) -> None:
    service = site(tmp_path, patients())
    layout = layout_of(service)
    rows = service.rows.of("honest").clients_data["a"].train.take().x
    for wish in splits(28)[1:]:
        assert clause(service, "layout", replace(layout, splits={"a": wish}).tree()) == "layout"
        assert clause(service, "layout", layout.tree() | {"val": wish.val, "seed": wish.seed}) == "layout"
    assert asked(service, "layout", replace(layout, splits={}).tree(), "another").tree["train"] == 36
    assert torch.equal(service.rows.of("another").clients_data["a"].train.take().x, rows)


def test_columns_categories_classes_and_kinds_of_the_servers_choice_choose_no_rows(tmp_path: Path) -> None:
    service = site(tmp_path, patients())
    layout = layout_of(service)
    honest = pack(asked(service, "measure", {"kind": "classes"}).tree)
    more = (*layout.columns, ("ward=Jane Doe", "flag", "ward"), ("strange", "number", ""))
    cut = [layout.columns[:k] for k in range(1, len(layout.columns))]
    targets = service.rows.of("honest").clients_data["a"].train.y
    for i, columns in enumerate([more, *cut]):
        wide = torch.ones(len(columns), dtype=torch.float64)
        middle = torch.cat([layout.middle, wide])[: len(columns)]
        spread = torch.cat([layout.spread, wide])[: len(columns)]
        odd = replace(layout, columns=tuple(columns), means=middle, middle=middle, spread=spread)
        odd = replace(odd, classes=("no", "perhaps", "yes") if i % 2 else ("yes", "no"))
        assert not asked(service, "layout", odd.tree(), f"run {i}").refusal
        seen = service.rows.of(f"run {i}").clients_data["a"].train.y
        assert [odd.classes[k] for k in seen] == [layout.classes[k] for k in targets], "the very same rows"
        assert pack(asked(service, "measure", {"kind": "classes"}).tree) == honest
    assert clause(service, "measure", {"kind": "numbers"}) in ("layout", "data")


def test_a_target_that_is_classes_or_numbers_is_read_in_one_way_for_good(tmp_path: Path) -> None:
    """Rows are drawn class by class: read as numbers, other rows would be training rows."""
    service = site(tmp_path, patients().assign(ill=np.arange(ROWS) % 4))
    assert not asked(service, "measure", {"kind": "classes"}).refusal
    assert clause(service, "measure", {"kind": "numbers"}) == "layout"
    again = site(tmp_path, patients().assign(ill=np.arange(ROWS) % 4))
    assert clause(again, "measure", {"kind": "numbers"}) == "layout", "also after a restart"


def test_scaling_is_chosen_once(tmp_path: Path) -> None:
    service = site(tmp_path, patients())
    layout = layout_of(service)
    assert clause(service, "layout", replace(layout, scale="none").tree()) == "layout"
    fixed = site(tmp_path / "fixed", patients(), split=Split(scale="client"))
    assert merge({"a": asked(fixed, "describe").tree}).layout("auto").scale == "client"
    assert clause(fixed, "layout", layout.tree()) == "layout"


@pytest.mark.parametrize("change", [{"spread": 1e-9}, {"middle": 1e9}, {"spread": 1e-6, "middle": 50.0}])
def test_a_layout_that_scales_a_column_out_of_bounds_is_refused(
    tmp_path: Path, change: dict[str, float]
) -> None:
    """Tiny spreads make one row outweigh all others in what is trained."""
    service = site(tmp_path, patients())
    layout = layout_of(service)
    odd = {k: torch.tensor([v, *getattr(layout, k)[1:]]) for k, v in change.items()}
    assert clause(service, "layout", layout.tree() | odd) == "layout"


def test_a_layout_cannot_mark_rows_with_empty_cells(tmp_path: Path) -> None:
    frame = patients()
    frame.loc[::6, ["pressure", "ward"]] = np.nan
    service = site(tmp_path, frame, Policy(least_rows=1), missing="mean")
    layout = layout_of(service)
    for at, fill in ((1, 1e9), (3, 40.0)):
        means = layout.means.clone()
        means[at] = fill
        assert clause(service, "layout", layout.tree() | {"means": means}) == "layout"
    scaled = replace(layout, kind="classes", target=(0.0, 1e-9))
    assert not asked(service, "layout", scaled.tree()).refusal, "classes have no scale"
    numbers = site(tmp_path / "numbers", patients().assign(ill=np.linspace(0, 1, ROWS)))
    scaled = replace(layout_of(numbers), target=(0.0, 1e-9))
    assert clause(numbers, "layout", scaled.tree()) == "layout"


def test_columns_under_another_name_or_kind_are_refused(tmp_path: Path) -> None:
    service = site(tmp_path, patients())
    layout = layout_of(service)
    names = [c[0] for c in layout.columns]
    wrong = [
        ("age", "flag", ""),
        ("age", "number", "ward"),
        ("ward", "number", ""),
        ("age=50", "flag", "age"),
    ]
    for column in wrong:
        columns = [column, *(c for c in layout.columns[1:] if c[0] != column[0])][: len(names)]
        columns += [(f"more {i}", "number", "") for i in range(len(names) - len(columns))]
        assert clause(service, "layout", replace(layout, columns=tuple(columns)).tree()) == "layout", column


# ---- another table ----


def test_a_table_with_one_row_more_tells_nothing_of_it(tmp_path: Path) -> None:
    service = site(tmp_path, patients())
    asked(service, "measure", {"kind": "classes"})
    longer = pd.concat([patients(), patients(1, seed=9)])
    assert clause(site(tmp_path, longer), "measure", {"kind": "classes"}) == "data"
    begin_anew(tmp_path / "kept")
    with pytest.raises(RefusedByPolicy, match="training rows differ from a table of this site") as e:
        site(tmp_path, longer).measure(Letter("measure", send={"kind": "classes"}))
    assert e.value.clause == "rows"
    much_longer = pd.concat([patients(), patients(40, seed=9)])
    assert not asked(site(tmp_path, much_longer), "measure", {"kind": "classes"}).refusal
    begin_anew(tmp_path / "kept")
    assert not asked(site(tmp_path, patients()), "measure", {"kind": "classes"}).refusal, (
        "the first one again"
    )


def test_the_owner_changes_a_split_and_nobody_else(tmp_path: Path) -> None:
    service = site(tmp_path, patients())
    assert asked(service, "describe").tree["split"] == (0.15, 0.25, 0, "auto")
    layout_of(service)
    assert asked(service, "describe").tree["split"] == (0.15, 0.25, 0, "federation")
    near, wish = Split(val=0.2), Split(val=0.2, seed=5)
    assert clause(site(tmp_path, patients(), split=wish), "measure", {"kind": "classes"}) == "data"
    begin_anew(tmp_path / "kept")
    assert clause(site(tmp_path, patients(), split=near), "measure", {"kind": "classes"}) == "rows", (
        "33 of 36 rows"
    )
    anew = site(tmp_path, patients(), split=wish)
    assert asked(anew, "layout", layout_of(anew).tree()).tree == {"train": 33, "val": 12, "test": 15}


def test_what_is_stored_of_a_table_tells_nothing_without_the_key(tmp_path: Path) -> None:
    service = site(tmp_path, patients())
    layout_of(service)
    stored, digest = (tmp_path / "kept" / "split.motet").read_bytes(), service.rows.split.digest()
    assert digest.encode() in stored
    other = SiteService("a", tmp_path / "kept", service.rows.data, Policy(), b"?" * 32)
    assert other.rows.split.digest() != digest
    hashed = service.rows.source.row_hashes()
    assert not any(h.tobytes() in stored for h in hashed), "hashes of rows that anybody could compute"
    assert (tmp_path / "kept" / "split.motet").stat().st_mode & 0o077 == 0


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
    asked(service, "layout", layout_of(service).tree())
    letter = Letter("verb", "r", 0, 0, 1, "train", recipe=RECIPE)
    method = service.method(letter)
    assert len(service.visit(letter, method).data.val) == 0
    assert len(service.rows.of("r").clients_data["a"].val) == 3
    w = method.task.w0
    sent = {"global": w, "download": w, "same": True, "sides": ["personal", "global"]}
    for part, right in (("val", False), ("test", True)):
        reply = asked(service, "evaluate", sent, recipe=RECIPE, part=part)
        assert ("least_rows = 10" in reply.refusal) is not right, part
        assert bool(reply.tree) is right


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
    silent = ColumnSums(*(v * [1, 0] for v in parts["y"]))
    found = pooled(layout, own, {"x": parts["x"].tree(), "y": silent.tree()})
    np.testing.assert_allclose(found.scaler.middle[1], z[:50, 1].mean(), rtol=1e-14)


# ---- categories ----


def test_names_of_60_patients_never_leave(tmp_path: Path) -> None:
    names = [f"Patient {chr(65 + i % 26)}{i}" for i in range(ROWS)]
    service = site(tmp_path, patients().assign(patient=names))
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
        dry_run(SiteTable("a", tmp_path / "a.csv", "ill"))
    dropped = site(tmp_path / "2", patients().assign(patient=names), drop=("patient",))
    assert not asked(dropped, "describe").refusal


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
    assert clause(strange, "layout", replace(layout, classes=("no", "maybe")).tree()) == "data"


# ---- counts ----


def test_without_counts_no_number_of_rows_leaves(tmp_path: Path) -> None:
    service = site(tmp_path, patients(), Policy(counts=False))
    description = asked(service, "describe").tree
    assert description["counts"] == {}
    sums = asked(service, "measure", {"kind": "classes"}).tree
    assert set(sums["rows"].tolist()) == set(sums["many"].tolist()) == {1.0}
    train = service.rows.source.measure("classes", Policy())
    assert not np.isclose(sums["total"][0], train.mean[0], rtol=1e-12), "36 * mean would be whole"
    assert abs(float(sums["total"][0]) - train.mean[0]) < 0.05 * train.mean[0]
    assert asked(service, "layout", layout_of(service).tree()).tree == {}
    w = service.method(Letter("verb", "r", recipe=RECIPE)).task.w0
    assert asked(service, "verb", w, recipe=RECIPE, verb="train", round=0, seed=1).n == 1
    sent = {"global": w, "download": w, "same": False, "sides": ["personal", "global", "constant"]}
    for job, send in (("evaluate", sent), ("evaluate_trained", w)):
        reply = asked(service, job, send, recipe=RECIPE, verb="train", part="test")
        if "least_rows" in reply.refusal:  # evaluate_trained scores 9 validation rows too
            continue
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
    lines = {line[2:].split("  ")[0]: line for line in text.splitlines() if line.startswith("  ")}
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
        and " 60" not in silent.split("values that leave")[1]
    )


def test_the_owner_says_the_split_when_the_site_joins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (kit := tmp_path / "a").mkdir()
    card = {"federation": "care", "party": "a", "host": "localhost", "port": 8002}
    (kit / "motet.json").write_text(json.dumps(card))
    patients().to_csv(tmp_path / "a.csv", index=False)
    data = ["--data", str(tmp_path / "a.csv"), "--target", "ill"]

    def join(*words: str) -> str:
        assert main(["federation", "join", str(kit), *words, "--dry-run"]) == 0
        return capsys.readouterr().out

    assert "val 0.2, test 0.25, seed 3" in join(*data, "--val", "0.2", "--seed", "3")
    assert "val 0.2, test 0.3, seed 3" in join("--test", "0.3"), "what is not said stays"
    assert open_service(kit).rows.source.split == Split(0.2, 0.3, 3)
    layout_of(open_service(kit))
    join("--seed", "4")
    refusal = asked(open_service(kit), "describe").refusal
    assert "rows are divided already: val 0.2, test 0.3, seed 3" in refusal and "--new-split" in refusal
    monkeypatch.setattr("motet.deploy.flare.process.become", lambda kit: None)
    assert main(["federation", "join", str(kit), "--new-split"]) == 0
    assert asked(open_service(kit), "describe").tree["split"] == (0.2, 0.3, 4, "auto")
    assert main(["federation", "join", str(kit), "--val", "0.8", "--dry-run"]) == 2
    assert "leaves no rows for training" in capsys.readouterr().err
