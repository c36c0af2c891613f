"""The site alone divides its rows: attacks with splits, layouts and tables that would subtract sums to a row.

Every attack goes through the site's own service, as letters; the attacker knows everything but the rows.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from msgspec.structs import replace

from motet.cli.main import main
from motet.data.federated import DataError
from motet.deploy.agreement.layout import Layout, Split
from motet.deploy.agreement.schema import TableDescription, merge
from motet.deploy.demo import free_port
from motet.deploy.flare.all_kits import create
from motet.deploy.site.config import open_service
from motet.deploy.site.policy import Policy, RefusedByPolicy
from motet.deploy.site.service import SiteService
from motet.deploy.site.split import begin_anew
from motet.engines.letters import Letter, Reply
from motet.wire import pack
from patients import NUMBERS, ROWS, asked, clause, layout_of, patients, refused, site

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


def described(service: SiteService) -> dict[str, Any]:
    tree = asked(service, "describe").tree
    return {name: tree[name] for name in TableDescription.__struct_fields__}


def test_scaling_is_chosen_once(tmp_path: Path) -> None:
    service = site(tmp_path, patients())
    layout = layout_of(service)
    assert clause(service, "layout", replace(layout, scale="none").tree()) == "layout"
    fixed = site(tmp_path / "fixed", patients(), split=Split(scale="client"))
    assert merge({"a": described(fixed)}).layout("auto").scale == "client"
    assert clause(fixed, "layout", layout.tree()) == "layout"
    both = merge({"a": described(service), "b": described(fixed)})
    both.note_splits(Split())
    with pytest.raises(DataError, match="sites have fixed theirs: federation at a, client at b"):
        both.check()


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


# ---- any letters ----


def drawn_letter(draw: random.Random, layout: Layout, number: int) -> Letter:
    """A letter before a run with whatever a server may say in it."""
    job = draw.choice(("describe", "measure", "layout"))
    some = tuple(c for c in layout.columns if draw.random() < 0.7) or layout.columns
    numbers = {
        k: torch.tensor([draw.choice([0.0, 1.0, 50.0, 1e-3, 1e3]) for _ in some]).double()
        for k in ("means", "middle")
    }
    spread = {"spread": torch.tensor([10 ** draw.uniform(-1, 3) for _ in some]).double()}
    split = Split(draw.choice([0.0, 0.15, 0.6]), draw.choice([0.0, 0.25, 0.39]), draw.randrange(50))
    more: dict[str, Any] = {
        "columns": some, "scale": draw.choice(["federation", "federation", "client", "none"]),
        "kind": draw.choice(["classes", "classes", "numbers"]), "splits": draw.choice([{}, {}, {"a": split}]),
        "classes": draw.choice([("no", "yes"), ("yes", "no"), ("no", "perhaps", "yes"), ("no",)]),
    }  # fmt: skip
    tree = layout.tree() | numbers | spread | more
    if job == "layout":
        return Letter("layout", f"r{number % 20}", send=tree)
    asks = [
        {"kind": more["kind"]},
        {"layout": tree, "middle": numbers["middle"]},
        {"kind": "classes", "seed": number},
    ]
    return Letter(job, send=draw.choice(asks) if job == "measure" else ())  # type: ignore[arg-type]


@pytest.mark.parametrize("letters", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_no_sequence_of_letters_before_a_run_tells_more_of_a_row_than_the_means(
    tmp_path: Path, letters: int
) -> None:
    service, draw = site(tmp_path, patients()), random.Random(1)
    layout, source = layout_of(service), service.rows.source
    sums, used = set(), list[tuple[str, ...]]()
    for number in range(letters):
        letter = drawn_letter(draw, layout, number)
        reply = Reply.read(service.answer(letter.pack()))
        if letter.job == "measure" and not reply.refusal:
            sums.add(tuple((reply.tree["total"] / reply.tree["many"]).tolist()[:3]))
            sums.add(tuple(reply.tree["total"].tolist()[:3]))
        if letter.job == "layout" and not reply.refusal:
            targets = service.rows.of(letter.run).clients_data["a"].train.y
            used.append(tuple(letter.send["classes"][k] for k in targets))
    assert len(used) > 1 and len(set(used)) == 1, "the same training rows, whatever is asked for"
    rows = source.table.frame[NUMBERS].to_numpy(float)[source.learned("classes")]
    guesses = np.array([*sums, *(np.subtract(a, b) for a, b in itertools.permutations(sums, 2))])
    errors = abs(guesses[:, None] - rows).max(-1, initial=0, where=rows.std(0) > 0)
    assert (errors.min(0) >= abs(rows.mean(0) - rows).max(-1) - 1e-9).all(), (
        "no guess is nearer than the means"
    )
    assert len(sums) == 2


# ---- another table ----


def test_a_table_with_one_row_more_tells_nothing_of_it(tmp_path: Path) -> None:
    service = site(tmp_path, patients())
    asked(service, "measure", {"kind": "classes"})
    longer = pd.concat([patients(), patients(1, seed=9)])
    assert clause(site(tmp_path, longer), "measure", {"kind": "classes"}) == "data"
    begin_anew(tmp_path / "kept")
    with pytest.raises(RefusedByPolicy, match="training rows differ from a table of this site") as e:
        site(tmp_path, longer).say(Letter("measure", send={"kind": "classes"}))
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


def test_a_damaged_split_answers_nothing_and_the_owner_begins_anew(tmp_path: Path) -> None:
    honest = asked(site(tmp_path, patients()), "measure", {"kind": "classes"})
    file, draw = tmp_path / "kept" / "split.motet", random.Random(0)
    whole = file.read_bytes()
    for _ in range(40):
        broken, at = bytearray(whole), draw.randrange(len(whole))
        broken[at] ^= 1 << draw.randrange(8)
        file.write_bytes(bytes(broken))
        assert clause(site(tmp_path, patients()), "measure", {"kind": "classes"}) == "state"
    file.write_bytes(whole[:70])
    assert "split.motet is damaged" in str(refused(site(tmp_path, patients()), Letter("describe")))
    assert "was damaged" in begin_anew(tmp_path / "kept")
    again = asked(site(tmp_path, patients()), "measure", {"kind": "classes"})
    assert pack(again.tree) == pack(honest.tree)


# ---- the owner ----


def test_the_owner_says_the_split_when_the_site_joins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create("care", "localhost", ["a"], tmp_path / "care", free_port())
    kit = tmp_path / "care" / "a"
    patients().to_csv(tmp_path / "a.csv", index=False)
    data = ["--data", str(tmp_path / "a.csv"), "--target", "ill"]

    monkeypatch.setattr("motet.deploy.flare.process.become", lambda kit: None)

    def join(*words: str, code: int = 0) -> str:
        assert main(["federation", "join", str(kit), *words]) == code
        found = capsys.readouterr()
        return found.out + found.err

    assert "val 0.2, test 0.25, seed 3" in join(*data, "--val", "0.2", "--seed", "3")
    assert "val 0.2, test 0.3, seed 3" in join("--test", "0.3"), "what is not said stays"
    assert "leaves no rows for training" in join("--val", "0.8", code=2)
    assert open_service(kit).rows.source.split == Split(0.2, 0.3, 3)
    (kit / "policy.toml").write_text("")  # sums may leave in the clear
    layout_of(open_service(kit))
    assert "refused: the table's rows are divided already" in join("--seed", "4", "--dry-run", code=1)
    assert not asked(open_service(kit), "describe").refusal, "a dry run changes nothing"
    assert "rows are divided already: val 0.2, test 0.3, seed 3" in join("--seed", "4", code=2)
    assert not asked(open_service(kit), "describe").refusal, "the site goes on as it was"
    join("--seed", "4", "--new-split")
    assert asked(open_service(kit), "describe").tree["split"] == (0.2, 0.3, 4, "auto")
