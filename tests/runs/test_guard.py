"""Guarded runs: hostile clients are borne, what the server learned is on record, and old runs still open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import motet
from motet.report import html as page
from motet.report import tables
from motet.report.read import read as runs_in
from motet.report.terminal import summary_text
from motet.runs.build import attackers_of
from motet.runs.recipe import RecipeError, read
from motet.runs.run import run, verify
from motet.runs.store import Store
from rewritten import rewritten

# Twenty clients, fifteen rounds; five epochs because means that leave out much learn little from one.
SMALL = [
    "data=digits",
    "data.alpha=0.5",
    "data.unseen=0",
    "method.epochs=5",
    "train.rounds=15",
    "save.models=none",
]
FEW = ["data=wine", "data.clients=8", "train.rounds=3", "save.models=none"]


def accuracy(done: motet.Run) -> float:
    """Of all clients, the hostile ones too: their own tests are honest, and FedAvg's model is everyone's."""
    test = done.test
    return float(test[test["side"] == "personal"]["accuracy"].mean())


def guarded(folder: Path, *words: str) -> motet.Run:
    return run(read(words=[*SMALL, *words]), folder)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> float:
    return accuracy(guarded(tmp_path_factory.mktemp("clean")))


@pytest.mark.parametrize("attack", ["nan", "zero", "flip"])
@pytest.mark.parametrize("mean", ["median", "trimmed", "krum"])
def test_a_fifth_of_the_clients_hostile_costs_at_most_three_points(
    tmp_path: Path, clean: float, attack: str, mean: str
) -> None:
    done = guarded(tmp_path, f"guard.attack={attack}", f"guard.mean={mean}")
    assert len(done.facts["attackers"]) == 4
    assert accuracy(done) > clean - 0.03


def test_the_plain_mean_bears_nan_and_nothing_else(tmp_path: Path, clean: float) -> None:
    assert accuracy(guarded(tmp_path / "nan", "guard.attack=nan")) > clean - 0.03
    assert accuracy(guarded(tmp_path / "zero", "guard.attack=zero")) < clean - 0.1


def test_a_reply_that_is_left_out_is_an_event_and_the_run_goes_on(tmp_path: Path) -> None:
    done = run(read(words=[*FEW, "guard.attack=nan", "guard.attackers=0.1"]), tmp_path)
    (who,) = done.facts["attackers"]
    events = Store(tmp_path).frame("events")
    said = list(events.loc[events["kind"] == "refused", "text"])
    assert said == [
        f"round {i + 1}: the reply of client {who} to train is not finite; left out" for i in range(3)
    ]
    assert done.facts["status"] == "done" and verify(tmp_path) == []
    shown = summary_text(tables.summary(runs_in([tmp_path])[0]))
    assert f"3 replies were not finite and left out, the first in round 1: the reply of client {who}" in shown


def test_what_a_site_refused_is_not_said_to_be_a_reply_that_is_not_finite(tmp_path: Path) -> None:
    run(read(words=FEW), tmp_path)
    store = Store(tmp_path, writing=True)
    for site in ("north", "south"):
        store.event("refused", f"site {site}: too few rows are behind a number (rows)")
    store.commit()
    store.close()
    shown = summary_text(tables.summary(runs_in([tmp_path])[0])).replace("\n", " ")
    assert "Sites refused 2 times, the first time by site north: too few rows are behind a number" in shown
    assert "not finite" not in shown


def test_what_the_server_learned_and_who_attacked_is_on_record(tmp_path: Path) -> None:
    done = run(read(words=[*FEW, "guard.mean=median", "guard.attack=flip"]), tmp_path / "r")
    assert done.facts["learns"] == "every reply of averaged asks (median)"
    clients = done.clients[done.clients["seen"] == 1]["client"]
    assert done.facts["attackers"] == attackers_of(read(words=[*FEW, "guard.attack=flip"]), clients)
    shown = summary_text(tables.summary(runs_in([done.folder])[0]))
    html = page.write(runs_in([done.folder]), tmp_path / "report.html").read_text()
    for text in (shown, html):
        assert "The server saw every reply, because guard.mean = median." in text
        assert "Simulated attack: 2 clients were made to send updates with their sign flipped" in text


def test_runs_with_another_mean_or_attack_are_rows_of_their_own(tmp_path: Path) -> None:
    words = [(), ("guard.mean=median",), ("guard.mean=trimmed", "guard.attack=flip", "guard.mix=false")]
    folders = [run(read(words=[*FEW, *w]), tmp_path / str(i)).folder for i, w in enumerate(words)]
    runs = runs_in(folders)
    assert [r.label for r in runs] == [
        "fedavg (attack=none, mean=mean)",
        "fedavg (attack=none, mean=median)",
        "fedavg (attack=flip by 0.2, mean=trimmed 0.2 unmixed)",
    ]
    warnings = tables.comparison(runs).attrs["warnings"]
    assert any(w.startswith("fedavg (attack=none, mean=median), seed 0: The server saw") for w in warnings)


def test_methods_without_replies_or_clients_are_not_in_the_way_of_a_guard(tmp_path: Path) -> None:
    for method in ("local", "centralised"):
        words = [f"method={method}", "guard.mean=krum", "guard.attack=flip"]
        assert run(read(words=[*FEW, *words]), tmp_path / method).facts["status"] == "done"


def test_krum_refuses_a_cohort_that_is_too_small_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"(?s)needs at least 5 replies.*hint: a larger train.cohort"):
        run(read(words=[*FEW, "guard.mean=krum", "train.cohort=4"]), tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_run_of_the_version_before_guards_is_found_and_verified(tmp_path: Path) -> None:
    recipe = read(words=FEW)
    done = run(recipe, tmp_path)
    settings = {k: v for k, v in done.facts["settings"].items() if k != "guard"}
    with rewritten(tmp_path) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'settings'", (json.dumps(settings),))
        db.execute("DELETE FROM meta WHERE key IN ('guard', 'learns', 'attack', 'attackers')")
    assert run(recipe, tmp_path).facts["created"] == done.facts["created"]
    assert verify(tmp_path) == []
    assert tables.summary(runs_in([tmp_path])[0])["notes"] == []


def test_models_after_training_are_scored_under_an_attack_too(tmp_path: Path) -> None:
    done = run(read(words=[*FEW, "train.after_training=true", "guard.attack=flip"]), tmp_path)
    assert (done.test["side"] == "after_training").any()
