"""Contributions to runs of any method: rankings, stated errors, names, files and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import known_parts as known
import motet
from motet.audits.measure_contributions import measure
from motet.audits.replay import replaying, without
from motet.audits.shapley import Sampling
from motet.audits.update_checks import Updates, named_by_updates
from motet.cli.main import main
from motet.engines.wrappers.hostile import Hostile
from motet.engines.wrappers.wrapper import Wrapper
from motet.errors import RunError, UsageError
from motet.report.contributions import contributions_text, cross_table
from motet.report.html import render
from motet.report.read import read
from motet.runs.build import attackers_of, resolve
from motet.runs.recipe import read as settings
from motet.runs.run import run

SMALL = {"wide": 100, "rounds": 3}
ONE = Sampling(groups=1)  # enough where values do not matter


def measured(seed: int, out: Path, run: dict[str, Any] | None = None, **how: Any) -> dict[str, Any]:
    folder = known.run_known(seed, out, **(run or {})).folder
    return measure(folder, trust=True, **{"leave_out": False} | how)


def is_right(found: dict[str, Any], parts: known.Parts) -> bool:
    """Honest clients, then the two with the same rows, then the free rider, then the one with noise for labels."""
    value = {c: r["value"] for c, r in found["values"].items()}
    twins = [value[parts.original], value[parts.copy]]
    honest = min(value[c] for c in parts.honest)
    return honest > max(twins) and min(twins) > value[parts.free_rider] > value[parts.noisy]


def test_known_parts_are_ranked_right_and_named(tmp_path: Path) -> None:
    parts = known.parts_of(0)
    found = measured(0, tmp_path / "run")
    assert is_right(found, parts) and found["same_bits"]
    assert set(found["named"]) == {parts.free_rider, parts.original, parts.copy}
    assert found["free_riders"] == [parts.free_rider]
    assert "zero in 5 of 5 rounds" in found["named"][parts.free_rider]
    assert parts.copy in found["named"][parts.original]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_known_parts_are_ranked_right_on_every_seed(tmp_path: Path, seed: int) -> None:
    found = measured(seed, tmp_path / "run")
    assert is_right(found, known.parts_of(seed))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_gtg_is_within_its_stated_error_on_every_seed(tmp_path: Path, seed: int) -> None:
    one, two = (measured(seed, tmp_path / "run", shapley=way)["values"] for way in ("exact", "gtg"))
    assert all(abs(one[c]["value"] - two[c]["value"]) <= two[c]["error"] for c in one)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("wide", [150, 300])
def test_with_fewer_features_only_ties_are_ranked_wrong(tmp_path: Path, wide: int) -> None:
    """Of 20 seeds; a tie is within two standard errors over the sites that both values are measured on."""
    wrong = []
    for seed in range(20):
        found, parts = measured(seed, tmp_path / str(seed), {"wide": wide}), known.parts_of(seed)
        value = {c: r["value"] for c, r in found["values"].items()}
        twins = parts.original, parts.copy
        assert min(value[c] for c in twins) > value[parts.free_rider] > value[parts.noisy]
        if is_right(found, parts):
            continue
        low, high = min(parts.honest, key=value.__getitem__), max(twins, key=value.__getitem__)
        sites = [c for c in known.NAMES if c not in (low, *twins)]
        apart = np.array([found["matrix"][low][s] - found["matrix"][high][s] for s in sites])
        assert abs(apart.mean()) < 2 * apart.std(ddof=1) / np.sqrt(len(apart))
        wrong.append(seed)
    assert len(wrong) <= 1


def test_gtg_is_within_its_stated_error_of_the_exact_values(tmp_path: Path) -> None:
    one, two = (measured(1, tmp_path / "run", SMALL, shapley=way) for way in ("exact", "gtg"))
    pairs = [
        (one["values"][c]["value"], two["values"][c]["value"], two["values"][c]["error"]) for c in known.NAMES
    ]
    assert all(abs(a - b) <= error for a, b, error in pairs)
    assert one["coalitions"] == 3 * 256 and two["way"] == "GTG-Shapley"
    assert all(error > 0 for _, _, error in pairs)


@pytest.mark.parametrize(("attack", "says"), [("replay", "was there before"), ("noise", "are noise"),
                                              ("inflate", "counts as 1000 examples and holds 100")])  # fmt: skip
def test_other_free_riders_and_inflated_numbers_are_named(tmp_path: Path, attack: str, says: str) -> None:
    found = measured(
        2, tmp_path / "run", SMALL | {"rounds": 4, "guard": {"attack": attack}}, shapley="gtg", sampling=ONE
    )
    assert says in found["named"][known.parts_of(2).free_rider]
    assert not {*found["named"]} & {*known.parts_of(2).honest}


def test_leaving_one_out_needs_no_shapley_values(tmp_path: Path) -> None:
    found = measured(0, tmp_path / "run", SMALL, shapley="none", leave_out=True)
    lost = {c: r["left_out"] for c, r in found["values"].items()}
    assert min(lost, key=lambda c: lost[c]) == known.parts_of(0).noisy
    assert all(r["left_out_low"] < r["left_out"] < r["left_out_high"] for r in found["values"].values())
    assert found["way"] == "leave one out" and "value" not in found["values"]["c0"]


def attackers_in(trainer: Any) -> list[str]:
    engine = trainer.engine
    while isinstance(engine, Wrapper):
        if isinstance(engine, Hostile):
            return engine.which
        engine = engine.engine
    return []


def test_a_replay_without_an_attacker_has_no_other_one_in_its_place() -> None:
    words = ["data=wine", "data.clients=4", "data.unseen=0", "method.lr=0.1"]
    words += ["guard.attack=zero", "guard.attackers=0.25"]
    resolved = resolve(settings(None, words))
    (rider,) = attackers_of(resolved.recipe, resolved.training.clients_data)
    for client in resolved.training.clients_data:
        with replaying(without(resolved, client)) as trainer:
            assert attackers_in(trainer) == ([] if client == rider else [rider])


def test_a_client_is_left_out_of_masked_sums_that_are_as_small_as_may_be(tmp_path: Path) -> None:
    how: dict[str, Any] = {"method": "fedavg", "rounds": 1, "lr": 0.1}
    data = {"name": "wine", "clients": 3, "unseen": 0}
    masked, plain = (
        motet.run(data=data, guard={"masked": on}, out=tmp_path / str(on), **how) for on in (True, False)
    )
    one, two = (measure(done.folder)["values"] for done in (masked, plain))
    assert all(one[c]["left_out"] == pytest.approx(two[c]["left_out"], abs=1e-6) for c in two)
    krum = motet.run(data=data | {"clients": 5}, guard={"mean": "krum"}, out=tmp_path / "krum", **how)
    with pytest.raises(
        RunError, match="without client client-0 the run cannot be played: .*Krum.*\nhint: --no-l"
    ):
        measure(krum.folder, shapley="none")


def test_guards_cohorts_and_personal_methods_can_be_measured(tmp_path: Path) -> None:
    guard = {"attack": "none", "masked": True, "clip": 5.0}
    found = measured(
        0, tmp_path / "run", SMALL | {"guard": guard, "cohort": 0.5}, shapley="gtg", sampling=ONE
    )
    assert found["same_bits"] and np.isfinite([r["value"] for r in found["values"].values()]).all()
    for method in ("fedper", "scaffold", "fedperc"):
        run = motet.run(method=method, data="wine", clients=3, rounds=2, net="mlp", out=tmp_path / method)
        own = measure(run.folder, leave_out=False, side="personal" if method == "fedper" else "auto")
        assert own["same_bits"] and set(own["cross_site"]) == set(own["values"]), method


def test_a_client_without_the_metric_is_in_no_mean(tmp_path: Path) -> None:
    """All rows of c3 are of one class, so that AUC says nothing of them; the others' values stay numbers."""
    rng = np.random.default_rng(0)
    data = {f"c{i}": (x := rng.normal(size=(60, 3)), (x[:, 0] > 0).astype(int)) for i in range(3)}
    data["c3"] = rng.normal(size=(60, 3)), np.ones(60, int)
    how: dict[str, Any] = {
        "net": "logistic",
        "rounds": 2,
        "lr": 0.1,
        "metric": "auc",
        "out": tmp_path / "run",
    }
    done = motet.run(method="fedavg", data=data, **how)
    found = measure(done.folder, by="metric")
    assert np.isfinite([r[k] for r in found["values"].values() for k in ("value", "left_out")]).all()
    assert found["unmeasured"] == ["c3"] and list(found["matrix"]["c0"]) == ["c0", "c1", "c2"]
    assert any("validation rows of c3 this cannot be told" in line for line in contributions_text(found, 200))


def test_what_was_measured_is_shown_kept_and_drawn(tmp_path: Path, capsys: Any) -> None:
    run = motet.run(method="fedavg", data="wine", clients=4, rounds=2, out=tmp_path / "run")
    words = ["contributions", str(run.folder), "--quiet", "--threshold", "0.5", "--versions", "2"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == run.contributions and found["served"]["versions"] == 2
    for width in (60, 80):
        assert (
            max(map(len, [*contributions_text(found, width), *cross_table(found, (width - 12) // 10)]))
            <= width
        )
    page = render(read([run.folder]))
    assert "Contributions to fedavg" in page and "Who relies on whom" in page
    assert (
        main([*words[:3], "--graphml", "--no-leave-one-out"]) == 0 and "<graphml" in capsys.readouterr().out
    )


def test_what_cannot_be_measured_is_refused_in_words(tmp_path: Path, capsys: Any) -> None:
    one = motet.run(method="local", data="wine", clients=1, rounds=1, out=tmp_path / "one")
    with pytest.raises(RunError, match="has one client"):
        motet.contributions(one.folder)
    with pytest.raises(UsageError, match="shapley is 'banzhaf'; expected one of auto, exact"):
        motet.contributions(one.folder, shapley="banzhaf")
    with pytest.raises(UsageError, match="nothing is left to measure"):
        motet.contributions(one.folder, shapley="none", leave_one_out=False)
    pooled = motet.run(method="centralised", data="wine", rounds=1, out=tmp_path / "pooled")
    with pytest.raises(RunError, match="all rows are one client's"):
        motet.contributions(pooled.folder)
    with pytest.raises(RunError, match="diverged"):
        motet.run(method="fedavg", data="diabetes", lr=1e6, rounds=3, out=tmp_path / "diverged")
    with pytest.raises(RunError, match="a failed run has no models: diverged"):
        motet.contributions(tmp_path / "diverged")
    bare = motet.run(
        method="fedavg", data={"name": "wine", "val": 0}, rounds=1, lr=0.1, out=tmp_path / "bare"
    )
    with pytest.raises(RunError, match="no client has validation rows"):
        motet.contributions(bare.folder)
    assert main(["contributions", str(tmp_path / "nothing")]) == 2
    assert main(["contributions", str(tmp_path)]) == 2
    assert "holds" in capsys.readouterr().err


def test_nobody_contributes_where_nothing_is_averaged(tmp_path: Path) -> None:
    alone = motet.run(method="local", data="wine", clients=4, rounds=2, out=tmp_path / "run")
    found = measure(alone.folder, leave_out=False)  # nothing is averaged: nobody contributes
    assert all(r["value"] == 0 for r in found["values"].values())


def test_nobody_is_named_for_the_noise_of_differential_privacy(tmp_path: Path) -> None:
    """Of two clients with the same kind of rows, one has few, and so far more noise."""
    pytest.importorskip("opacus")
    rng = np.random.default_rng(0)
    data = {}
    for i, rows in enumerate((200, 200, 200, 8)):
        x = rng.normal(size=(rows, 4))
        data[f"c{i}"] = x, (x[:, 0] > 0).astype(int)
    run = motet.run(
        method="fedavg", data=data, net="logistic", rounds=6, lr=0.1, patience=0, report="last", out=tmp_path / "run",
        privacy={"level": "example", "epsilon": 3.0},
    )  # fmt: skip
    found = measure(run.folder, shapley="none")
    assert "noise" not in " ".join(found["named"].values()) and found["noised"]
    assert any("nobody is named for noise" in line for line in contributions_text(found, 200))


def test_names_for_noise_stay_where_updates_have_none() -> None:
    rng = np.random.default_rng(0)
    way = rng.normal(size=50)
    updates = Updates()
    for _ in range(5):
        honest = {f"c{i}": way + 0.3 * rng.normal(size=50) for i in range(4)}
        updates.sent.append(honest | {"c4": rng.normal(size=50)})
        updates.moved.append(None)
    assert [*named_by_updates(updates)] == ["c4"] and named_by_updates(updates, noised=True) == {}


def test_a_round_that_was_passed_over_counts_for_nobody(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    words = ["data=wine", "data.split=iid", "data.clients=4", "data.unseen=0", "method.batch=16", "method.lr=0.1",
             "train.cohort=0.25", "train.rounds=9", "train.patience=0", "privacy.level=example",
             "privacy.noise_multiplier=3"]  # fmt: skip
    one = max(resolve(settings(None, words)).budget.epsilon(f"client-{i}", 1) for i in range(4))  # type: ignore[union-attr]
    done = run(settings(None, [*words, f"privacy.epsilon={one * 1.001}"]), tmp_path / "r")
    passed_over = 9 - len(done.facts["privacy"]["rounds"])
    found = measure(done.folder, leave_out=False)
    assert passed_over > 0 and found["rounds"] == 9 and found["coalitions"] == 9 + 4


def test_a_method_whose_later_asks_follow_from_earlier_replies_is_refused_in_words(tmp_path: Path) -> None:
    words = [
        "data=digits",
        "data.clients=8",
        "data.unseen=0",
        "method=swarm",
        "net=logistic",
        "train.rounds=2",
    ]
    done = run(settings(None, words), tmp_path / "r")
    with pytest.raises(RunError, match="follows from earlier replies.*\nhint: --shapley none"):
        measure(done.folder, leave_out=False)
