"""Tables against numbers computed by hand."""

from __future__ import annotations

import json
import math

import pytest

from motet.report.html import render
from motet.report.read import read
from motet.report.tables import by_client, comparison, history, summary
from motet.report.terminal import as_records, as_text, summary_text
from rewritten import rewritten


def row(table, method):
    return table.set_index("method").loc[method]


# ---- one run ----


def test_summary_has_mean_population_sd_and_worst_tenth_rounded_up(make):
    personal = {f"c{i}": i / 20 for i in range(11)}  # 0, 0.05 … 0.5; a tenth of 11 clients is two of them
    found = summary(read([make("ditto", personal, shared={c: 0.25 for c in personal})])[0])
    assert found["personal"] == pytest.approx(0.25)
    assert found["personal_sd"] == pytest.approx(math.sqrt(10) / 20)  # variance of 0…10 is 10
    assert found["personal_worst"] == pytest.approx((0 + 0.05) / 2)
    assert (found["global"], found["global_sd"]) == (0.25, 0)


def test_worst_tenth_of_errors_are_the_largest(make):
    found = summary(read([make("ditto", {f"c{i}": float(i) for i in range(11)}, metric="rmse")])[0])
    assert found["personal_worst"] == pytest.approx(9.5)


def test_summary_has_costs_and_unseen_clients(make):
    found = summary(read([make("ditto", {"a": 1.0, "b": 0.0}, unseen={"u": (0.5, 1.0), "v": (0.0, 0.5)})])[0])
    assert (found["arrival"], found["visit"], found["unseen"]) == (0.25, 0.75, 2)
    assert (found["up"], found["down"]) == (2048, 1024)  # of a client in a round
    assert (found["total_up"], found["seconds"], found["reported"]) == (2048 * 2 * 3, 6.0, 1)


def test_summary_is_valid_json_and_text(make):
    found = summary(read([make("local", {"a": 1.0})])[0])
    assert json.loads(json.dumps(found, allow_nan=False))["global"] is None
    assert "personal  100.0 ± 0.0" in summary_text(found)


def test_clients_without_test_rows_are_left_out(make):
    folder = make("ditto", {"a": 1.0, "b": 0.5})
    with rewritten(folder) as db:
        db.execute("UPDATE scores SET n = 0, accuracy = NULL WHERE client = 'b'")
    run = read([folder])[0]
    assert (summary(run)["personal"], summary(run)["clients"], run.trouble) == (1.0, 1, "")


# ---- methods side by side ----


@pytest.fixture
def three(make):
    local = {"a": 0.5, "b": 0.9, "c": 0.4, "d": 0.6}
    return [
        make("local", local),
        make("fedavg", {"a": 0.6, "b": 0.7, "c": 0.6, "d": 0.6}),
        make("ditto", {"a": 0.8, "b": 0.8, "c": 0.6, "d": 0.6}),
        make("centralised", {"a": 0.3, "b": 1.0, "c": 1.0, "d": 1.0}),
    ]


def test_gains_are_paired_with_the_same_client_alone(three):
    table = comparison(read(three))
    ditto = row(table, "ditto")
    assert ditto["gain_local"] == pytest.approx((0.3 - 0.1 + 0.2 + 0.0) / 4)
    assert ditto["pairs_local"] == 4 and ditto["alone_is"] == "local, mlp"
    assert math.isnan(row(table, "local")["gain_local"])


def test_pooled_training_is_a_row_like_others_and_never_the_best(three):
    table = comparison(read(three))
    assert list(table["method"]) == ["centralised", "ditto", "fedavg", "local"]
    assert list(table["name"])[0] == "all rows in one place (centralised)"
    assert list(table["best"]) == [False, True, False, False]


def test_smaller_errors_are_better(make):
    folders = [
        make("local", {"a": 2.0, "b": 1.0}, metric="rmse"),
        make("ditto", {"a": 1.0, "b": 1.5}, metric="rmse"),
    ]
    table = comparison(read(folders))
    assert list(table["method"]) == ["ditto", "local"]
    ditto = row(table, "ditto")
    assert ditto["gain_local"] == 0.25


def test_seeds_are_averaged_after_clients_and_have_their_own_spread(make):
    folders = [make("ditto", {"a": 0.2, "b": 0.4}), make("ditto", {"a": 0.5, "b": 0.9}, seed=1)]
    folders += [make("local", {"a": 0.1, "b": 0.5}), make("local", {"a": 0.5, "b": 0.5}, seed=1)]
    ditto = row(comparison(read(folders)), "ditto")
    assert ditto["personal"] == pytest.approx((0.3 + 0.7) / 2)
    assert ditto["sd"] == pytest.approx((0.1 + 0.2) / 2)
    assert ditto["seed_sd"] == pytest.approx(math.sqrt(2 * 0.2**2))
    assert ditto["gain_local"] == pytest.approx((0.1 - 0.1 + 0.0 + 0.4) / 4)
    assert ditto["pairs_local"] == 4  # without a split of its own, a seed draws other clients


def test_a_failed_run_is_shown_and_does_not_count(make):
    why = "client a, verb train, round 2: loss is nan (lr=0.5)"
    folders = [
        make("ditto", {"a": 0.6}), make("ditto", {"a": 0.1}, seed=1, status="failed", failure=why),
        make("scaffold", {"a": 0.1}, status="failed", failure=why, reported=None),
    ]  # fmt: skip
    table = comparison(read(folders))
    assert list(table["failed"]) == [1, 1]
    assert row(table, "ditto")["personal"] == 0.6
    assert math.isnan(row(table, "scaffold")["personal"])
    text = as_text(table)
    assert f"scaffold: seed 0: {why}" in text and f"ditto: seed 1: {why}" in text
    assert any(line.startswith("scaffold ") and "failed: client a" in line for line in text.splitlines())


def test_failures_name_their_splits_where_runs_differ_by_them(make, tmp_path):
    bad = {"status": "failed", "failure": "loss is nan", "reported": None}
    folders = [make("ditto", {"a": 0.1}, folder=f"d{s}", split=s, **bad) for s in (0, 1)]
    assert row(comparison(read(folders)), "ditto")["trouble"] == (
        "split 0, seed 0 and split 1, seed 0: loss is nan"
    )
    assert "split 0, seed 0 and split 1, seed 0: loss is nan" in render(read(folders))
    assert row(comparison(read(folders[:1])), "ditto")["trouble"] == "seed 0: loss is nan"


def test_more_rounds_are_advised_where_a_poor_model_was_still_improving(make):
    val = [{c: 0.05 + 0.02 * i for c in BAD} for i in range(12)]
    (run,) = read([make("fedavg", BAD, constant=GOOD, val=val, settings={"method": {"lr": 0.1}})])
    assert summary(run)["needs"]
    assert summary(run)["below_constant"].endswith(
        ": it was still improving when it stopped, so give it more rounds"
    )


def test_a_diverged_run_is_failed_and_an_unfinished_one_is_not(make):
    folders = [
        make("ditto", {"a": math.inf, "b": 1.0}, metric="rmse"),
        make("fedavg", {"a": 1.0, "b": 1.0}, metric="rmse", status="running", reported=None),
        make("local", {"a": math.nan, "b": math.nan}, metric="rmse"),
    ]
    table = comparison(read(folders))
    assert "diverged: test scores of 1 of 2" in row(table, "ditto")["trouble"]
    assert "diverged: test scores of 2 of 2" in row(table, "local")["trouble"]
    assert "not finished: 3 of 3 rounds" in row(table, "fedavg")["trouble"]
    assert [row(table, m)["failed"] for m in ("ditto", "local", "fedavg")] == [1, 1, 0]


def test_runs_of_one_method_with_other_settings_are_rows_of_their_own(make):
    def settings(lam):
        return {"method": {"name": "ditto", "lam": lam}, "engine": {"name": f"any {lam}"}}

    folders = [make("ditto", {"a": 0.5}, folder=f"r{x}", settings=settings(x)) for x in (0.1, 1.0)]
    assert set(comparison(read(folders))["method"]) == {"ditto (lam=0.1)", "ditto (lam=1.0)"}


def test_a_repeated_run_is_named_by_its_folder(make):
    folders = [make("ditto", {"a": 0.5}, folder=name) for name in ("one", "two")]
    assert set(comparison(read(folders))["method"]) == {"ditto [one]", "ditto [two]"}


def test_runs_on_other_data_are_not_compared(make):
    runs = read([make("ditto", {"a": 0.5}), make("local", {"a": 0.5}, data="other")])
    with pytest.raises(ValueError, match=r"data differs \(other, toy\)\nhint:"):
        comparison(runs)


def test_a_seed_that_a_method_lacks_is_not_compared(make):
    folders = [make("ditto", {"a": 0.5}), make("ditto", {"a": 0.9}, seed=1), make("local", {"a": 0.6})]
    runs = read(folders)
    assert list(by_client(runs)["ditto"]) == [0.5]
    assert row(comparison(runs), "ditto")["gain_local"] == pytest.approx(-0.1)
    assert any("Not every method has every seed" in w for w in comparison(runs).attrs["warnings"])


def grid_of_lam(make, rates, **typed):
    """A run for each lam, with the rate that was chosen for it."""
    folders = []
    for lam, lr in rates.items():
        asked = {"method": {"name": "near", "lam": lam, "lr": "auto"} | typed}
        chosen = {"method": asked["method"] | {"lr": lr}}
        folders.append(make("near", {"a": 0.5}, folder=f"lam-{lam}", asked=asked, settings=chosen))
    return comparison(read(folders)).attrs["warnings"]


def test_rates_that_were_chosen_and_differ_between_rows_are_said_in_a_line(make):
    said = grid_of_lam(make, {0: 0.31, 1: 0.24, 100: 0.0097})
    assert said == [
        "Learning rates that motet chose differ between rows: lr 0.31 (lam=0) to 0.0097 (lam=100). "
        "method.lr=0.0097 holds them equal."
    ]


def test_rates_that_were_given_or_hardly_differ_need_no_line(make):
    assert not grid_of_lam(make, {0: 0.31, 0.3: 0.29})
    assert not grid_of_lam(make, {1: 0.31, 2: 0.01}, lr=0.1)


# ---- clients, rounds, words ----


def test_by_client_has_rows_in_natural_order(make):
    scores, rows = {"client-10": 0.5, "client-2": 1.0}, {"client-2": 40}
    frame = by_client(
        read([make("ditto", scores, rows=rows), make("local", dict.fromkeys(scores, 0.5), rows=rows)])
    )
    assert list(frame["client"]) == ["client-2", "client-10"]
    assert list(frame["train"]) == [40, 7]
    assert list(frame.columns) == ["client", "train", "ditto", "local"]  # nothing is chosen on test rows


def test_history_is_the_mean_over_clients_and_then_seeds(make):
    runs = read([make("ditto", {"a": 0.2, "b": 0.4}), make("ditto", {"a": 0.5, "b": 0.9}, seed=1)])
    past = history(runs)
    assert list(past["round"]) == [0, 1, 2]
    assert past["score"].to_list() == pytest.approx([0.5] * 3)
    assert set(past["seeds"]) == {2}


def test_text_is_at_most_a_hundred_columns_and_has_no_colour(make):
    long = {f"client-{i}": 0.5 for i in range(12)}
    folders = [
        make(m, long, seed=s) for m in ("local", "fedavg", "a_method_with_a_long_name") for s in (0, 1)
    ]
    folders.append(make("ditto", long, status="failed", failure="x " * 200))
    text = as_text(comparison(read(folders)))
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text and "50.0 ± 0.0" in text and "failed" in text


def test_errors_have_three_significant_digits(make):
    text = as_text(comparison(read([make("ditto", {"a": 1234.5, "b": 1234.5}, metric="rmse")])))
    assert "1230 ± 0" in text


def test_records_are_valid_json(three):
    records = as_records(comparison(read(three)))
    assert json.loads(json.dumps(records, allow_nan=False))[1]["method"] == "ditto"
    assert records[-1]["method"] == "local" and records[-1]["gain_local"] is None


BAD, GOOD = ({c: v + i / 100 for i, c in enumerate("abcdef")} for v in (0.1, 0.5))


def test_a_run_that_is_surely_worse_than_the_constant_says_what_would_help(make):
    settings = {"method": {"name": "ditto", "lr": 0.1, "lam": 100.0, "batch": 16}}
    (run,) = read([make("ditto", BAD, constant=GOOD, settings=settings)])
    said = "worse than the constant model (accuracy 52.5 %): try a smaller lr / lam"
    assert (
        summary(run)["below_constant"] == said
        and f"  trouble   {said}\n" in f"{summary_text(summary(run))}\n"
    )
    assert f"ditto: {said}." in " ".join(as_text(comparison([run])).split())
    assert f"<li>ditto: {said}.</li>" in render([run])


def test_where_rates_were_halved_no_smaller_rate_is_advised(make):
    halvings = [
        {"whose": who, "rates": {"lr": 0.1 / 2**i}} for i, who in enumerate(("client a", "client b"), 1)
    ]
    settings = {"method": {"name": "ditto", "lr": 0.1, "lam": 100.0}}
    sound = make("ditto", BAD, constant=GOOD, settings=settings, split=0)
    halved = make("ditto", BAD, constant=GOOD, settings=settings, split=1, halvings=halvings, folder="halved")
    advice = "its rate was halved already, so look at data.scale and at the rows of client a and client b"
    assert summary(read([halved])[0])["below_constant"].endswith(f": {advice}")
    text = " ".join(as_text(comparison(read([sound, halved]))).split())
    assert f"{advice}." in text and "try a smaller" not in text


def test_a_run_that_may_be_as_good_as_the_constant_says_nothing(make):
    near = {c: v + (0.2 if c in "ace" else -0.2) for c, v in GOOD.items()}
    for scores in (GOOD, near):
        (run,) = read([make("ditto", scores, constant=GOOD, folder=str(id(scores)))])
        assert summary(run)["below_constant"] == "" and "the constant model" not in as_text(comparison([run]))


def test_errors_are_worse_than_the_constant_where_they_are_larger(make):
    (run,) = read([make("fedavg", GOOD, constant=BAD, metric="rmse", settings={"method": {"lr": 0.1}})])
    assert summary(run)["below_constant"] == "worse than the constant model (RMSE 0.125): try a smaller lr"
    (better,) = read([make("fedprox", BAD, constant=GOOD, metric="rmse")])
    assert summary(better)["below_constant"] == ""
