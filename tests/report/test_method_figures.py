"""What methods say of their rounds, and their groups, as figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from motet.report import figures, group_figures, method_figures, pictures, tables
from motet.report.read import read
from motet.runs.store import Store

Make = Callable[..., Path]


def saying(folder: Path, numbers: Mapping[str, list[float]]) -> Path:
    """The run, whose method says these numbers of its rounds."""
    store = Store(folder, writing=True)
    for number in range(len(next(iter(numbers.values())))):
        store.add_metrics(number, {name: values[number] for name, values in numbers.items()})
    store.commit()
    store.close()
    return folder


def drawn(folders: list[Path]) -> dict[str, figures.Picture]:
    runs = read(folders)
    return {p.name: p for p in pictures.pictures(runs, tables.comparison(runs))}


def test_rewards_and_weights_of_a_game_are_drawn_with_a_band_over_runs(make: Make) -> None:
    folders = [
        saying(make("page", {"a": 0.5}, seed=seed), {
            "server": [1.0, 2.0 + seed], "clients": [3.0, 4.0], "largest weight": [0.5, 0.6],
            "smallest weight": [0.1, 0.05], "effective clients": [3.0, 2.0],
        })
        for seed in (0, 1)
    ]  # fmt: skip
    found = drawn(folders)["rounds-of-page"]
    last = found.data[(found.data["name"] == "server") & (found.data["round"] == 2)].iloc[0]
    assert (last["value"], last["low"], last["high"], last["runs"]) == (2.5, 2.0, 3.0, 2)
    text = figures.in_page(found)
    assert all(
        f">{name}</text>" in text for name in ("reward", "clients, mean", "largest", "weight p of a client")
    )
    assert "bands reach from the lowest run" in found.caption and "do not send them" in found.caption


def test_alpha_of_a_swarm_is_drawn_on_a_scale_of_powers_where_it_changes_much(make: Make) -> None:
    found = drawn([saying(make("swarm", {"a": 0.5}), {"loss": [2.0, 1.0], "alpha": [0.001, 1.0]})])
    text = figures.in_page(found["rounds-of-swarm"])
    assert "loss of the best particle" in text and ">0.01</text>" in text and "mathdefault" not in text


def test_numbers_of_a_strange_method_have_panels_under_their_own_names(make: Make) -> None:
    found = drawn([saying(make("mine", {"a": 0.5}), {"loss": [2.0, 1.0], "pace": [1.0, 1.0]})])
    text = figures.in_page(found["rounds-of-mine"])
    assert ">loss</text>" in text and ">pace</text>" in text and "particle" not in text


def test_what_never_changes_has_no_figure(make: Make) -> None:
    assert "rounds-of-mine" not in drawn([saying(make("mine", {"a": 0.5}), {"pace": [1.0, 1.0]})])
    assert method_figures.pictures(read([make("ditto", {"a": 0.5})]), ["ditto"]) == []


def test_shares_of_classes_tell_groups_apart(make: Make) -> None:
    folder = make("pfa", {"a": 0.5, "b": 0.5, "c": 0.5}, record={"groups": {"a": 0, "b": 0, "c": 1}})
    store = Store(folder, writing=True)
    store.clients([
        ("a", 1, 4, 1, 1, {"0": 4}), ("b", 1, 4, 1, 1, {"0": 2, "1": 2}), ("c", 1, 2, 1, 1, {"1": 2}),
    ])  # fmt: skip
    store.commit()
    store.close()
    found = drawn([folder])["what-sets-groups-apart"]
    rows = {(r.group, r[4]): (r.share, r.overall, r.clients) for r in found.data.itertuples(index=True)}
    assert rows[0, "cat"] == (0.75, pytest.approx(0.6), 2)
    assert rows[1, "cat"] == (0.0, pytest.approx(0.6), 1) and rows[1, "dog"][0] == 1.0
    assert "group 1 (2)" in figures.in_page(found)


def test_one_group_sets_nothing_apart(make: Make) -> None:
    folder = make("pfa", {"a": 0.5}, record={"groups": {"a": 0}})
    assert group_figures.pictures(read([folder])) == []
