"""Who is paired with whom: counted by hand."""

from __future__ import annotations

import math

import pytest

from motet.report.gains import alone, gain_frame
from motet.report.read import read
from motet.report.tables import by_client, comparison, long


def row(table, method):
    return table.set_index("method").loc[method]


def groups_of(runs):
    found = {}
    for run in runs:
        found.setdefault(run.label, []).append(run)
    return found


@pytest.fixture
def three_splits(make):
    """client-0 and client-1 are other clients in every split; in points, the gains are 2, 0 | -1, 3 | 0, 0."""
    scores = [((0.50, 0.60), (0.52, 0.60)), ((0.70, 0.40), (0.69, 0.43)), ((0.80, 0.90), (0.80, 0.90))]
    folders = []
    for split, (local, ditto) in enumerate(scores):
        for method, both in (("local", local), ("ditto", ditto)):
            personal = dict(zip(("client-0", "client-1"), both, strict=True))
            folders.append(make(method, personal, folder=f"{method}-{split}", split=split, natural=False))
    return folders


def test_clients_of_three_splits_are_six_clients(three_splits):
    runs = read(three_splits)
    gains = gain_frame(alone(groups_of(runs)["ditto"], groups_of(runs))[0])
    assert gains.groupby("unit")["gain"].mean().mul(100).round(6).to_list() == [2, 0, -1, 3, 0, 0]
    ditto = row(comparison(runs), "ditto")
    assert (ditto["pairs_local"], ditto["clients"]) == (6, 6)
    assert ditto["gain_local"] == pytest.approx(0.04 / 6)


def test_a_split_never_makes_another_row_and_clients_have_a_row_in_each(three_splits):
    runs = read(three_splits)
    assert set(comparison(runs)["method"]) == {"ditto", "local"}
    frame = by_client(runs)
    assert list(zip(frame["split"], frame["client"], strict=True))[:3] == [
        (0, "client-0"),
        (0, "client-1"),
        (1, "client-0"),
    ]
    assert list(frame["ditto"]) == [0.52, 0.60, 0.69, 0.43, 0.80, 0.90]


def test_clients_with_names_of_their_own_are_averaged_over_splits_first(make):
    folders = [
        make(method, {"Basel": basel, "Bern": bern}, folder=f"{method}-{split}", split=split, natural=True)
        for split, scores in enumerate([(0.5, 0.5, 0.7, 0.6), (0.5, 0.5, 0.5, 0.6)])
        for method, basel, bern in (("local", *scores[:2]), ("ditto", *scores[2:]))
    ]
    runs = read(folders)
    ditto = row(comparison(runs), "ditto")
    assert ditto["pairs_local"] == 2 and ditto["gain_local"] == pytest.approx(0.1)
    assert list(by_client(runs).columns) == ["client", "train", "ditto", "local"]


def test_only_clients_that_both_have_are_paired(make):
    runs = read([make("local", {"a": 0.5, "b": 0.9}), make("ditto", {"a": 0.6, "c": 0.1})])
    ditto = row(comparison(runs), "ditto")
    assert ditto["pairs_local"] == 1 and ditto["gain_local"] == pytest.approx(0.1)
    assert math.isnan(ditto["gain_local_low"])  # one client has no interval


# ---- its own kind ----


def test_a_method_with_a_model_of_its_own_kind_alone_is_compared_with_that(make):
    runs = read(
        [
            make("local", {"a": 0.1, "b": 0.1}),
            make("stacking", {"a": 0.8, "b": 0.9}, alone={"a": 0.7, "b": 0.9}),
        ]
    )
    stack = row(comparison(runs), "stacking")
    assert stack["gain_local"] == pytest.approx(0.05)
    assert stack["alone_is"] == "its own model, trained alone"


def test_a_stack_without_its_own_kind_alone_is_compared_with_nothing(make):
    runs = read([make("local", {"a": 0.1, "b": 0.1}), make("stacking", {"a": 0.8, "b": 0.9})])
    assert math.isnan(row(comparison(runs), "stacking")["gain_local"])


def settings(net, method="x", **train):
    return {
        "net": {"name": net},
        "data": {"name": "toy", "seed": 3},
        "method": {"name": method},
        "train": train,
    }


def test_alone_has_the_same_network(make):
    folders = [
        make("local", {"a": 0.2, "b": 0.2}, folder="l1", net="linear", settings=settings("linear")),
        make("local", {"a": 0.5, "b": 0.5}, folder="l2", net="mlp", settings=settings("mlp")),
        make("fedavg", {"a": 0.6, "b": 0.6}, net="linear", settings=settings("linear")),
        make("ditto", {"a": 0.6, "b": 0.6}, net="vgg11", settings=settings("vgg11")),
    ]
    table = comparison(read(folders))
    assert row(table, "fedavg")["gain_local"] == pytest.approx(0.4)
    assert row(table, "fedavg")["alone_is"] == "local (name=linear), linear"
    assert math.isnan(row(table, "ditto")["gain_local"])


def test_of_several_rows_of_local_the_best_on_validation_counts(make):
    def local(lr):
        return settings("mlp") | {"method": {"name": "local", "lr": lr}}

    folders = [
        make("local", {"a": 0.9, "b": 0.9}, val={"a": 0.1, "b": 0.1}, folder="l1", settings=local(0.1)),
        make("local", {"a": 0.5, "b": 0.5}, val={"a": 0.3, "b": 0.3}, folder="l2", settings=local(0.01)),
        make("fedavg", {"a": 0.6, "b": 0.6}, settings=settings("mlp")),
    ]
    fedavg = row(comparison(read(folders)), "fedavg")
    assert fedavg["gain_local"] == pytest.approx(0.1) and "lr=0.01" in fedavg["alone_is"]


# ---- all in rows ----


def test_the_long_frame_has_every_test_score_once(make):
    folders = [make("ditto", {"a": 0.5, "b": 0.7}, shared={"a": 0.4, "b": 0.4}, split=2, natural=True)]
    folders.append(make("local", {"a": 0.1}, status="failed", failure="no", reported=None))
    frame = long(read(folders))
    assert list(frame.columns) == [
        "split",
        "seed",
        "method",
        "label",
        "side",
        "client",
        "metric",
        "value",
        "n",
    ]
    assert len(frame) == 4 and set(frame["split"]) == {2} and set(frame["metric"]) == {"accuracy"}
    assert frame.set_index(["side", "client"]).loc[("personal", "b"), "value"] == 0.7
