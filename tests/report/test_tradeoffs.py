"""The plane of personal and global scores, and scores against cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from motet.report import figures, pictures, point_names, tables, tradeoffs
from motet.report.read import read

Make = Callable[..., Path]


def drawn(folders: list[Path]) -> dict[str, figures.Picture]:
    runs = read(folders)
    return {p.name: p for p in pictures.pictures(runs, tables.comparison(runs))}


def plane(make: Make, seeds: int = 1) -> list[Path]:
    """ditto and fedavg are on the front, finetune is beaten by ditto; local has no global model."""
    scores = {"ditto": (0.8, 0.5), "fedavg": (0.7, 0.6), "finetune": (0.7, 0.4), "local": (0.9, None)}
    return [
        make(
            method,
            {"a": own + 0.01 * seed, "b": own + 0.01 * seed},
            seed=seed,
            shared=None if shared is None else {"a": shared, "b": shared},
        )
        for method, (own, shared) in scores.items()
        for seed in range(seeds)
    ]


def test_the_front_holds_what_no_other_method_beats(make: Make) -> None:
    found = drawn(plane(make))["personal-against-global"]
    rows = found.data.set_index("label")
    assert sorted(rows.index[rows["front"]]) == ["ditto", "fedavg"]
    assert rows.loc["ditto", ["personal", "global"]].tolist() == [0.8, 0.5]
    assert "(Pareto front): ditto, fedavg." in found.caption
    assert "at the edge: local" in found.caption and "intervals" not in found.caption


def test_errors_have_their_front_at_the_other_corner() -> None:
    points = {"a": (1.0, 2.0), "b": (2.0, 1.0), "c": (2.0, 2.0)}
    assert tradeoffs.front(points, better=-1) == ["b", "a"]
    assert tradeoffs.front(points) == ["c"]


def test_equal_points_are_all_on_the_front() -> None:
    assert tradeoffs.front({"a": (1.0, 1.0), "b": (1.0, 1.0)}) == ["a", "b"]


def test_three_runs_have_an_interval_over_runs(make: Make) -> None:
    found = drawn(plane(make, seeds=3))
    row = found["personal-against-global"].data.set_index("label").loc["ditto"]
    # 0.80, 0.81, 0.82: sd 0.01, and Student's t with two degrees of freedom is 4.3027
    assert row["personal_high"] - row["personal"] == pytest.approx(4.3027 * 0.01 / 3**0.5, rel=1e-4)
    assert "95 % intervals over runs" in found["personal-against-global"].caption
    assert "95 % intervals over runs" in found["score-against-cost"].caption


def test_cost_is_time_and_bytes_of_a_run(make: Make) -> None:
    found = drawn(plane(make))["score-against-cost"].data.set_index("label")
    assert found.loc["ditto", "seconds"] == 6.0
    # three rounds, two clients, 2 KiB up and 1 KiB down each
    assert found.loc["ditto", "mib"] == pytest.approx(3 * 2 * 3 / 1024)


def test_a_single_method_has_neither_figure(make: Make) -> None:
    found = drawn([make("ditto", {"a": 0.5}, shared={"a": 0.4})])
    assert not {"personal-against-global", "score-against-cost"} & set(found)


def test_names_of_close_points_do_not_cover_each_other() -> None:
    at = [(50.0, 50.0), (52.0, 50.0), (50.0, 52.0), (52.0, 52.0)]
    names = ["fedavg", "fedprox", "ditto", "finetune"]
    found = point_names.offsets(at, names, 9.0, (0.0, 400.0, 0.0, 400.0))
    boxes = [
        point_names._box(x + dx, y + dy, dx, len(n) * point_names.WIDTH * 9.0, 9.0)
        for (x, y), (dx, dy), n in zip(at, found, names, strict=True)
    ]
    assert not any(point_names._cover(a, b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_bad_methods_stand_at_the_edge_with_their_scores(make: Make) -> None:
    folders = [
        make(m, {"a": v}, shared={"a": v}) for m, v in (("ditto", 0.9), ("fedavg", 0.91), ("page", 0.92))
    ]
    folders.append(make("swarm", {"a": 0.3}, shared={"a": 0.3}))
    assert "swarm (30.0, 30.0)" in figures.in_page(drawn(folders)["personal-against-global"])
