"""The schema handshake: sites that agree get the rows that a loop would have; what does not fit is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import sites
from motet.data.federated import DataError
from motet.data.table_files import FRAME, SourceTable
from motet.deploy.agreement.handshake import handshake
from motet.deploy.agreement.layout import Layout, Split
from motet.deploy.agreement.schema import merge
from motet.deploy.site.contract import turn_seed
from motet.deploy.site.ledger import read_ledger
from motet.deploy.site.policy import Policy, RefusedByPolicy
from motet.deploy.site.service import SiteService
from motet.deploy.site.table import SiteTable
from motet.engines.letters import Letter, Reply
from motet.runs.build import federated_data, method_of, task_of
from motet.runs.predict import predict
from motet.runs.recipe import check, read
from motet.wire import WireError, pack, unpack

SEED = 3


def patients(many: int, seed: int, **columns: Any) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = {"age": rng.normal(50, 10, many).round(1), "sex": rng.choice(["f", "m"], many)}
    more = {"ill": rng.random(many) < 0.5, "bp": rng.normal(120, 5, many), "y": rng.integers(0, 3, many)}
    return pd.DataFrame(frame | more | columns)


def services_of(
    folder: Path, tables: Mapping[str, pd.DataFrame], policy: Policy | None = None, **how: Any
) -> dict[str, SiteService]:
    (folder / "tables").mkdir(parents=True)
    services = {}
    for site, table in tables.items():
        path = folder / "tables" / f"{site}.csv"
        table.to_csv(path, index=False)
        services[site] = sites.OfferedSite(
            site, folder / site, SiteTable(site, path, "y", **how), policy, b"k" * 32
        )
    return services


def said(folder: Path) -> str:
    """The reason of a site's last refusal, which stays there."""
    return read_ledger(folder)[0][-1].text


def calls(services: Mapping[str, SiteService]) -> Callable[[Letter], dict[str, Reply]]:
    return lambda letter: {s: Reply.read(d.answer(letter.pack())) for s, d in services.items()}


# ---- sites that agree ----


def different() -> dict[str, pd.DataFrame]:
    """Other sizes, a category of one site's own, a class that one site never saw, and empty cells."""
    tables = {"a": patients(40, 0), "b": patients(55, 1), "c": patients(70, 2)}
    tables["a"]["y"] %= 2
    tables["c"].loc[::7, "sex"] = "x"
    tables["b"].loc[::9, "bp"] = np.nan
    tables["c"].loc[::11, "sex"] = np.nan
    return tables


@pytest.mark.parametrize("scale", ["federation", "client", "none"])
@pytest.mark.parametrize("numbers", [False, True])
def test_sites_lay_out_the_very_rows_that_a_loop_has(tmp_path: Path, scale: str, numbers: bool) -> None:
    tables = different()
    if numbers:
        tables = {s: t.assign(y=np.linspace(-1, 7, len(t)) ** 2) for s, t in tables.items()}
    fine = Policy(least_rows=1, least_category=1)  # sex is "x" in 6 training rows of c
    services = services_of(tmp_path, tables, fine, missing="mean", split=Split(seed=SEED))
    words = [
        "data.target=y",
        "data.missing=mean",
        "data.unseen=0",
        f"data.scale={scale}",
        f"data.seed={SEED}",
    ]
    simulated = federated_data(read(None, [f"data={tmp_path / 'tables'}", *words]))
    _, layout = handshake(calls(services), "r", seed=SEED, scale=scale)
    assert [c[0] for c in layout.columns] == [c.name for c in simulated.columns]
    assert layout.classes == simulated.classes
    assert layout.target == pytest.approx((simulated.offset, simulated.scale))
    for site, service in services.items():
        here, there = service.rows.of("r").clients_data[site], simulated.clients_data[site]
        for part in ("train", "val", "test"):
            a, b = getattr(here, part).take(), getattr(there, part).take()
            assert a.x.shape == b.x.shape and (a.x - b.x).abs().max() < 1e-6
            assert a.y.dtype == b.y.dtype and (a.y - b.y).abs().max() < 1e-6


def test_a_site_that_starts_again_finds_the_layout_that_was_agreed_on(tmp_path: Path) -> None:
    services = services_of(tmp_path, {"a": patients(40, 0), "b": patients(30, 1)})
    handshake(calls(services), "r")
    again = SiteService("a", tmp_path / "a", services["a"].rows.data, Policy(), b"k" * 32)
    old, new = (d.rows.of("r").clients_data["a"].train.take() for d in (services["a"], again))
    assert torch.equal(old.x, new.x)
    recipe = {"method": {"name": "fedavg"}, "net": {"name": "mlp"}, "seed": 0}
    reply = Reply.read(again.answer(Letter("offer", "another run", recipe=recipe, send={"rounds": 1}).pack()))
    assert reply.refusal == "layout"
    assert "no layout of columns was agreed on for run another run" in said(tmp_path / "a")


def test_a_table_that_changed_during_a_run_is_refused(tmp_path: Path) -> None:
    services = services_of(tmp_path, {"a": patients(40, 0), "b": patients(30, 1)})
    _, layout = handshake(calls(services), "r")
    recipe = sites.recipe("fedavg")
    offer = Letter("offer", "r", recipe=recipe, send={"rounds": 1})
    assert not Reply.read(services["a"].answer(offer.pack())).refusal
    patients(40, 5).to_csv(tmp_path / "tables" / "a.csv", index=False)
    again = SiteService(
        "a", tmp_path / "a", SiteTable("a", tmp_path / "tables" / "a.csv", "y"), Policy(), b"k" * 32
    )
    letters = [
        Letter("layout", "r", send=layout.tree()), Letter("layout", "another run", send=layout.tree()),
        Letter("describe"), Letter("measure", send={"kind": "classes"}),
        Letter("evaluate", "r", 0, seed=turn_seed(1, 0), recipe=recipe, part="test"),
    ]  # fmt: skip
    for letter in letters:
        assert Reply.read(again.answer(letter.pack())).refusal == "data"
        assert "the table a.csv, or which of its columns are used, changed" in said(tmp_path / "a")
    with pytest.raises(RefusedByPolicy, match="--new-split"):
        again.rows.of("r")


def test_a_run_that_began_keeps_its_layout(tmp_path: Path) -> None:
    services = services_of(tmp_path, {"a": patients(40, 0), "b": patients(30, 1)})
    _, layout = handshake(calls(services), "r")
    recipe = sites.recipe("local")
    train = Letter("verb", "r", 0, 0, turn_seed(1, 0), "train", recipe=recipe)
    assert not Reply.read(services["a"].answer(train.pack())).refusal
    again = Letter("layout", "r", send=layout.tree())
    assert Reply.read(services["a"].answer(again.pack())).tree == {"train": 24, "val": 6, "test": 10}
    other = Letter("layout", "r", send=layout.tree() | {"classes": ("0", "1", "2", "3")})
    assert Reply.read(services["a"].answer(other.pack())).refusal == "layout"
    assert "began here with another layout" in said(tmp_path / "a")


def test_numbers_of_rows_leave_only_where_the_policy_lets_them(tmp_path: Path) -> None:
    tables = {"a": patients(40, 0), "b": patients(30, 1)}
    agreement, _ = handshake(calls(services_of(tmp_path / "1", tables)), "r")
    assert agreement.counts["a"]["rows"] == 40 and "rows" in agreement.text()
    silent = services_of(tmp_path / "2", tables, Policy(counts=False))
    agreement, _ = handshake(calls(silent), "r")
    assert agreement.counts == {} and "40" not in agreement.text()


def test_a_site_that_lets_no_sums_leave_is_known_before_anything_trains(tmp_path: Path) -> None:
    services = services_of(tmp_path, {"a": patients(40, 0), "b": patients(30, 1)}, Policy(sums=False))
    with pytest.raises(DataError, match="sums"):
        handshake(calls(services), "r")
    _, layout = handshake(calls(services), "r", scale="client")
    assert layout.means == () and layout.scale == "client"


def test_sites_that_write_yes_and_no_in_other_words_have_two_classes(tmp_path: Path) -> None:
    words = {"a": ["nein", "ja"], "b": [0, 1], "c": ["No", "Sí"], "d": ["no", "yes"]}
    tables = {
        s: patients(
            40, i, y=np.resize(pair, 40), smoker=np.resize(["ne", "ano"] if s == "a" else ["n", "y"], 40)
        )
        for i, (s, pair) in enumerate(words.items())
    }
    services = services_of(tmp_path, tables, Policy(least_rows=1, least_category=1))
    agreement, layout = handshake(calls(services), "r")
    assert layout.classes == ("no", "yes") and "sites write yes and no" in "".join(agreement.notes)
    assert agreement.class_counts() == {"no": 80, "yes": 80}
    assert next(f.kind for f in agreement.fields if f.name == "smoker") == "flag"
    for site, service in services.items():
        rows = service.rows.of("r").clients_data[site]
        flag = [c[0] for c in layout.columns].index("smoker")
        for part in ("train", "val", "test"):
            batch = getattr(rows, part).take()
            assert batch.y.tolist() == batch.x[:, flag].tolist()


# ---- what does not fit ----


def descriptions(**tables: pd.DataFrame) -> dict[str, Any]:
    """Descriptions, without files: a source reads what it is given."""
    found = {}
    for site, table in tables.items():
        source = SiteTable(site, Path("nowhere"), "y", least_category=1)
        source.__dict__["table"] = SourceTable(table, [FRAME], [len(table)])
        found[site] = source.describe()
    return found


def test_classes_that_a_site_never_saw_are_a_note_and_no_problem() -> None:
    few = patients(20, 0).assign(y=1)
    agreement = merge(descriptions(a=few, b=patients(30, 1)))
    assert agreement.problems == [] and agreement.classes == ("0", "1", "2")
    assert "site a has no rows of class 0, 2" in agreement.notes


def test_classes_that_are_whole_numbers_keep_their_order() -> None:
    agreement = merge(
        descriptions(a=patients(24, 0, y=np.arange(24) % 12), b=patients(24, 0, y=np.arange(24) % 3))
    )
    assert agreement.classes == tuple(map(str, range(12)))


def test_few_numbers_at_one_site_and_many_at_another_are_numbers() -> None:
    few, many = patients(40, 0, y=np.arange(40) % 4), patients(40, 1, y=np.arange(40))
    assert merge(descriptions(a=few, b=many)).kind == "numbers"
    halves = merge(
        descriptions(a=patients(36, 0, y=np.arange(36) % 18), b=patients(36, 0, y=50 + np.arange(36) % 18))
    )
    assert halves.kind == "numbers"


def test_different_columns_are_refused_by_name_and_borne_by_stacking() -> None:
    tables = descriptions(a=patients(20, 0, hb=1.5), b=patients(20, 1).drop(columns="bp"))
    agreement = merge(tables, "fedper")
    with pytest.raises(DataError) as e:
        agreement.check()
    assert "site a has no column" not in str(e.value)
    assert "site b has no column 'bp', 'hb', and fedper needs the same columns" in str(e.value)
    stacked = merge(tables, "stacking").check()
    assert "hb" in [c[0] for c in stacked.layout("federation").columns]
    common = merge(tables, "fedper", "common").check().layout("federation")
    assert [c[0] for c in common.columns] == ["age", "sex=f", "sex=m", "ill"]


def test_columns_that_a_site_does_not_hold_are_zero_there_and_say_so(tmp_path: Path) -> None:
    services = services_of(tmp_path, {"a": patients(40, 0), "b": patients(40, 1).drop(columns=["bp", "sex"])})
    _, layout = handshake(calls(services), "r", "stacking")
    client_data = services["b"].rows.of("r").clients_data["b"]
    absent = [c.name for c in client_data.columns if not c.here]
    assert absent == ["sex=f", "sex=m", "bp"]
    at = [c[0] for c in layout.columns].index("bp")
    assert float(client_data.train.x[:, at].abs().max()) == 0
    train = services["a"].rows.of("r").clients_data["a"].train.take().x[:, at]
    assert abs(float(train.mean())) < 1e-6  # the mean is that of the sites that hold the column


def test_of_many_columns_people_see_those_that_some_site_lacks() -> None:
    wide = {f"c{i:02}": 1.5 * np.arange(20) for i in range(25)}
    text = merge(
        descriptions(a=patients(20, 0, **wide, hb=2.5), b=patients(20, 1, **wide)), "stacking"
    ).text()
    assert "and 29 columns that all sites hold" in text and "c07" not in text
    assert "hb      number     yes   -" in text


def test_a_column_of_two_kinds_is_refused_with_both_sites_named() -> None:
    with pytest.raises(DataError, match="column 'age' is not of one kind: number at a; text at b"):
        merge(descriptions(a=patients(20, 0), b=patients(20, 1, age="old"))).check()


def test_truth_values_and_numbers_are_read_as_numbers() -> None:
    agreement = merge(descriptions(a=patients(20, 0), b=patients(20, 1, ill=0.5)))
    assert agreement.problems == []
    assert next(f.kind for f in agreement.fields if f.name == "ill") == "number"


def test_one_class_everywhere_is_nothing_to_learn() -> None:
    same = patients(20, 0, y="yes")
    with pytest.raises(DataError, match="nothing to learn"):
        merge(descriptions(a=same, b=same)).check()


@pytest.mark.parametrize(
    "broken",
    [(), {"columns": []}, {"columns": [1], "target": {}, "auto": 1, "holes": 0, "counts": {}},
     {"columns": [{"name": 1, "kind": "number", "values": []}], "target": {"name": "y", "kind": "classes",
      "classes": []}, "auto": True, "holes": False, "counts": {}}],
)  # fmt: skip
def test_a_site_that_sends_no_description_is_named(broken: Any) -> None:
    with pytest.raises(DataError, match="site b sent something that is no description"):
        merge(descriptions(a=patients(20, 0)) | {"b": broken})


def test_a_layout_survives_the_wire_and_nothing_else_is_taken_for_one() -> None:
    layout = Layout((("age", "number", ""), ("sex=f", "flag", "sex")), "classes", ("no", "yes"))
    layout = layout.with_means(np.array([2, 2]), np.array([6.0, 1.0]))
    layout = layout.with_spread(np.array([2, 2]), np.array([8.0, 0.5]))
    assert layout.scaler.middle.tolist() == [3.0, 0.0] and layout.scaler.spread.tolist() == [2.0, 1.0]
    back = Layout.of(unpack(pack(layout.tree())))
    assert pack(back.tree()) == pack(layout.tree())
    tree = layout.tree()
    wrong = (
        {"kind": "words"}, {"means": torch.zeros(3)}, {"val": 0.9},
        {"splits": {"a": (0.9, 0.2, 0, "auto")}}, {"columns": (("x",),)}, {"classes": (1,)},
        {"columns": 2 * (("age", "number", ""),)}, {"spread": torch.tensor([1.0, 0.0])},
        {"target": (0.0, 0.0)}, {"middle": torch.tensor([1.0, torch.nan])},
    )  # fmt: skip
    for change in wrong:
        with pytest.raises(WireError):
            Layout.of(tree | change)


# ---- and after a run ----


def test_a_personal_model_stays_at_the_site_and_is_used_there(tmp_path: Path) -> None:
    services = services_of(tmp_path, {"a": patients(40, 0), "b": patients(30, 1)})
    handshake(calls(services), "care 1")
    recipe = sites.recipe("fedrod")
    checked = check(recipe)
    method = method_of(checked, task_of(checked, services["a"].rows.of("care 1")))
    train = Letter("verb", "care 1", 0, 0, turn_seed(1, 0), "train", recipe=recipe, send=method.task.w0)
    view = Reply.read(services["a"].answer(train.pack())).tree
    save = Letter("save_model", "care 1", 0, 0, turn_seed(1, 0), recipe=recipe, send=view, base=(0, 0))
    assert Reply.read(services["a"].answer(save.pack())).tree == {"saved": True}
    model = tmp_path / "a" / "models" / "care%201.safetensors"
    table, _ = predict(model, tmp_path / "tables" / "a.csv")
    assert len(table) == 40 and list(table) == ["row", "prediction", "p(0)", "p(1)", "p(2)"]
    assert "personal model of client a" in model.with_suffix(".md").read_text()
