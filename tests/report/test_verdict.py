"""The verdict: what it claims, what it does not, and that test rows choose nothing."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest

from motet.report import export_table
from motet.report.comparison import Comparison
from motet.report.html import render
from motet.report.read import read
from motet.report.tables import comparison
from motet.report.terminal import as_text, clients_text, summary_text
from motet.report.verdict import verdict
from rewritten import rewritten

ROWS = 400  # test rows of a client
CLIENTS = [f"c{i}" for i in range(10)]
ALONE = dict.fromkeys(CLIENTS, 0.7)
ONE_TRAINING = (
    "One training: what another split or seed would change is not in the interval; "
    "--seeds 0-2, or --splits 0-2."
)


def lines_of(folders):
    return verdict(read(folders))


def shifted(by, spread=0.01):
    return {c: 0.7 + by + spread * (-1) ** i for i, c in enumerate(CLIENTS)}


def test_a_gain_is_claimed_with_its_interval_and_its_clients(make):
    lines = lines_of([make("local", ALONE, tests=ROWS), make("ditto", shifted(0.1), tests=ROWS)])
    assert lines == [
        "Federating helps here: +10.0 points of accuracy on average (95 %: +9.2 to +10.8);"
        " 10 clients better, 0 the same, 0 worse.",
        "Best: ditto, the only federated method here.",
        ONE_TRAINING,
    ]


def test_no_claim_where_the_interval_holds_zero(make):
    (first, *_) = lines_of(
        [make("local", ALONE, tests=ROWS), make("ditto", shifted(0.004, 0.02), tests=ROWS)]
    )
    assert first.startswith(
        "Whether federating helps cannot be told here: +0.4 points of accuracy on average"
    )


def test_a_harm_is_called_a_harm(make):
    lines = lines_of([make("local", ALONE, tests=ROWS), make("ditto", shifted(-0.1), tests=ROWS)])
    assert lines[0].startswith(
        "Federating harms here: -10.0 points of accuracy on average (95 %: -10.8 to -9.2)"
    )
    assert "10 worse" in lines[0]
    assert lines[1].startswith("Best of the federated methods: ditto")


def test_the_runs_to_look_at_are_those_of_the_chosen_method_or_of_the_best_by_validation(make):
    val = {"local": 0.8, "fedavg": 0.6, "ditto": 0.7}
    better = {"local": 0.0, "fedavg": 0.02, "ditto": 0.1}
    folders = [
        make(m, shifted(better[m]), seed=s, tests=ROWS, val=dict.fromkeys(CLIENTS, val[m]))
        for m in val
        for s in (1, 0)
    ]
    runs = Comparison(folders).chosen
    assert [(run.label, run.seed) for run in runs] == [("ditto", 0), ("ditto", 1)]
    worse = make("fedprox", shifted(-0.1), tests=ROWS, val=dict.fromkeys(CLIENTS, 0.5))
    assert {run.label for run in Comparison([*folders[:2], worse]).chosen} == {"local"}


def test_the_runs_to_look_at_are_finished_ones(make):
    failed = {"status": "failed", "failure": "diverged", "reported": None}
    best = [
        make("ditto", shifted(0.2), split=s, folder=f"d{s}", **(failed if s == 0 else {})) for s in (0, 1)
    ]
    whole = [make("local", ALONE, split=s, folder=f"l{s}") for s in (1, 0)]
    chosen = Comparison([*best, *whole]).chosen
    assert [(run.label, run.split) for run in chosen] == [("local", 0), ("local", 1)]
    assert [(run.label, run.split) for run in Comparison(best).chosen] == [("ditto", 1)]
    other = make("local", ALONE, split=0, folder="other", **failed)
    assert {run.label for run in Comparison([best[0], other]).chosen} == {"ditto"}


def test_scores_that_differ_by_rounding_are_equal(make):
    scores = {"local": 0.0, "ditto": -1e-12}
    folders = [
        make(m, {c: 7.0 + v + by * i for i, (c, v) in enumerate(ALONE.items())}, metric="rmse", tests=ROWS)
        for m, by in scores.items()
    ]
    table = comparison(read(folders))
    (ditto,) = [row for row in table.to_dict("records") if row["method"] == "ditto"]
    assert (ditto["gain_local"], ditto["gain_local_low"], ditto["gain_local_high"]) == (0, 0, 0)
    assert "  0 (0 to 0)  " in as_text(table) and lines_of(folders)[0].startswith("No difference in RMSE")


@pytest.mark.parametrize("many", [2, 10])
def test_equal_scores_claim_nothing(make, many):
    some = dict.fromkeys(CLIENTS[:many], 0.7)
    lines = lines_of([make("local", some, tests=ROWS), make("ditto", some, tests=ROWS)])
    assert (
        lines[0] == f"No difference in accuracy on these {400 * many:,} test rows, at any of {many} clients."
    )
    assert not any("Federating" in line or "One training" in line for line in lines)


def test_few_equal_gains_say_why_there_is_no_interval(make):
    some = [make(m, dict.fromkeys("ab", v), tests=10) for m, v in (("local", 0.7), ("ditto", 0.8))]
    assert lines_of(some)[0] == (
        "Whether federating helps cannot be told here: +10.0 points of accuracy at each of 2 clients, too few for an"
        " interval."
    )


def test_one_client_is_too_few_for_an_interval(make):
    some = [make(m, {"a": v}, tests=10) for m, v in (("local", 0.7), ("ditto", 0.8))]
    assert lines_of(some)[0].endswith(
        "+10.0 points of accuracy from one pair of scores, too few for an interval."
    )


# ---- what the interval leaves out ----


def test_a_verdict_of_one_training_says_so_wherever_it_is_read(make, tmp_path):
    from motet.report.comparison import Comparison

    found = Comparison([make("local", ALONE, tests=ROWS), make("ditto", shifted(0.1), tests=ROWS)])
    table = as_text(found.table, found.verdict, 80)
    pages = [found.save(tmp_path / f"table.{kind}").read_text() for kind in ("html", "md", "tex")]
    said = [
        " ".join(text.split()).replace("−", "-") for text in (table, repr(found), found._repr_html_(), *pages)
    ]
    assert all(
        "One training: what another split or seed would change is not in the interval" in t for t in said
    )


@pytest.mark.parametrize("what", ["seed", "split"])
def test_a_verdict_of_several_trainings_does_not(make, what):
    folders = [
        make(m, s, folder=f"{m}-{i}", tests=ROWS, **({"split": 0, "seed": 0} | {what: i}))
        for i in range(2)
        for m, s in (("local", ALONE), ("ditto", shifted(0.1)))
    ]
    assert not any("One training" in line for line in lines_of(folders))


def test_a_second_training_that_failed_is_none(make):
    folders = [make("local", ALONE, tests=ROWS), make("ditto", shifted(0.1), tests=ROWS)]
    folders += [make(m, {}, seed=1, status="failed", failure="diverged") for m in ("local", "ditto")]
    assert any("One training" in line for line in lines_of(folders))


def test_where_the_data_fix_the_test_rows_only_seeds_are_advised(make):
    folders = [make(m, s, tests=ROWS, natural=True, given_tests=True)
               for m, s in (("local", ALONE), ("ditto", shifted(0.1)))]  # fmt: skip
    assert lines_of(folders)[-1] == (
        "One training: what another seed would change is not in the interval; --seeds 0-2."
    )


def test_a_gain_that_holds_for_all_methods_at_once_has_a_star(make):
    weak = {c: 0.72 + 0.0246 * (-1) ** i for i, c in enumerate(CLIENTS)}  # clear for itself alone, see below
    folders = three_methods(make, shifted(0.1), weak)
    table = comparison(read(folders))
    text = " ".join(as_text(table, (), 100).split())
    assert "+10.0 (+9.2 to +10.8)*" in text and "+2.0 (+0.1 to +3.9) " in text
    note = "ach interval by itself at 95 %; * a gain also when corrected for the 3 federated methods"
    assert note in text
    page = " ".join(render(read(folders)).split())
    assert "+10.0 (+9.2 to +10.8)*" in page and note in page
    assert note.replace("*", "\\*") in export_table.as_markdown(table)
    assert f"% E{note}" in export_table.as_latex(table)


def test_one_method_needs_no_star(make):
    folders = [make("local", ALONE, tests=ROWS), make("ditto", shifted(0.1), tests=ROWS)]
    text = as_text(comparison(read(folders)), (), 100)
    assert "*" not in text and "corrected" not in text


def test_clients_are_called_one_by_one_and_some_by_chance(make):
    folders = [make("local", ALONE, tests=ROWS), make("ditto", shifted(0.1), tests=ROWS)]
    note = "each at 95 %: of 20 clients up to about one is called better or worse by chance"
    assert note in " ".join(as_text(comparison(read(folders)), (), 80).split())
    assert note in " ".join(render(read(folders)).split())


def test_a_report_marks_only_a_gain_as_a_success_and_has_proper_minus_signs(make):
    def head(by, spread=0.01):
        folders = [make(m, s, folder=f"{m}{by}", tests=ROWS)
                   for m, s in (("local", ALONE), ("ditto", shifted(by, spread)))]  # fmt: skip
        return render(read(folders)).split('<div class="')[1].split("</div>")[0]

    assert head(0.1).startswith('finding helps">') and head(-0.1).startswith('finding harms">')
    open_ = head(-0.004, 0.02)
    assert open_.startswith('finding">') and "−0.4 points" in open_ and "-0.4" not in open_


def test_errors_are_in_their_own_unit_and_less_is_better(make):
    errors = {c: 2.0 for c in CLIENTS}
    less = {c: 1.69 + 0.1 * (-1) ** i for i, c in enumerate(CLIENTS)}
    lines = lines_of(
        [make("local", errors, metric="rmse", tests=ROWS), make("ditto", less, metric="rmse", tests=ROWS)]
    )
    assert (
        lines[0] == "Federating helps here: 0.310 less error (RMSE) on average (95 %: 0.235 to 0.385 less)."
    )


def test_clients_of_several_splits_are_counted_as_such(make):
    folders = [
        make(method, scores, folder=f"{method}-{split}", split=split, tests=ROWS)
        for split in range(3)
        for method, scores in (("local", ALONE), ("ditto", shifted(0.1)))
    ]
    assert "; of 30 clients in 3 splits, 30 better, 0 the same, 0 worse." in lines_of(folders)[0]


def test_clients_that_are_left_out_are_counted_in_the_first_sentence(make):
    missing = dict.fromkeys(("x", "y"), math.nan)
    folders = [make("local", ALONE | missing, metric="auc", tests=ROWS)]
    folders += [make("ditto", shifted(0.1) | missing, metric="auc", tests=ROWS)]
    first = lines_of(folders)[0]
    assert first.startswith(
        "Federating helps here: +10.0 points of AUC on average over 10 of 12 clients (95 %:"
    )


def test_methods_that_cannot_be_told_apart_from_the_best_are_named(make):
    folders = [make("local", ALONE, tests=ROWS), make("ditto", shifted(0.11), tests=ROWS)]
    folders += [
        make(
            "finetune",
            {c: v - 0.001 * (-1) ** i for i, (c, v) in enumerate(shifted(0.11).items())},
            tests=ROWS,
        )
    ]
    folders += [make("fedavg", shifted(0.02), tests=ROWS)]
    table = comparison(read(folders))
    assert verdict(read(folders), table)[1] == "Best: ditto; finetune cannot be told apart."
    apart = table.set_index("method")["p_best"]
    assert apart["fedavg"] < 0.05 <= apart["finetune"] and not table["distinct"].any()


def test_one_run_is_compared_with_nothing(make):
    lines = lines_of([make("ditto", {"a": 0.5, "b": 1.0}, tests=ROWS)])
    assert lines == [
        "ditto: 75.0 % accuracy on average over 2 clients.",
        "Whether federating helps needs a run of local to compare with.",
    ]


def test_without_a_run_alone_nothing_is_said_of_federating(make):
    lines = lines_of([make("ditto", ALONE, tests=ROWS), make("fedavg", ALONE, tests=ROWS)])
    assert lines[0].startswith("Whether federating helps cannot be told here: no run of local")


def test_few_test_rows_and_the_reason_for_the_metric_are_said_in_one_line(make):
    why = "balanced, because class 1 has 3.7 % of the rows"
    folders = [
        make(m, ALONE, tests=12, metric="balanced", better=1, metric_why=why) for m in ("local", "ditto")
    ]
    last = lines_of(folders)[-1]
    assert last.startswith("Balanced accuracy, because class 1 has 3.7 % of the rows. Few test rows: half of")


def test_the_usual_metric_needs_no_reason(make):
    folders = [
        make(m, ALONE, tests=ROWS, metric_why="accuracy, because it is usual") for m in ("local", "ditto")
    ]
    assert not any("usual" in line for line in lines_of(folders))


# ---- what is chosen, and by what ----


def ruined(folder, to):
    """A copy of a run whose test scores are other numbers."""
    shutil.copytree(folder, to)
    with rewritten(to) as db:
        db.execute("UPDATE scores SET accuracy = 1 - accuracy WHERE part = 'test'")
    return to


def test_test_rows_choose_nothing(make, tmp_path):
    draw = np.random.default_rng(0)
    folders = [
        make(
            m,
            dict(zip(CLIENTS, draw.uniform(size=10), strict=True)),
            val=dict.fromkeys(CLIENTS, v),
            tests=ROWS,
        )
        for m, v in (
            ("local", 0.5),
            ("fedavg", 0.6),
            ("ditto", 0.7),
            ("finetune", 0.65),
            ("centralised", 0.9),
        )
    ]
    other = [ruined(f, tmp_path / f"ruined-{f.name}") for f in folders]
    one, two = comparison(read(folders)), comparison(read(other))
    assert (
        list(one["method"]) == list(two["method"]) == ["centralised", "ditto", "finetune", "fedavg", "local"]
    )
    assert list(one["best"]) == list(two["best"]) == [False, True, False, False, False]
    assert list(one["alone_is"]) == list(two["alone_is"])
    assert list(one["personal"]) != list(two["personal"])
    best = [verdict(read(some))[1].split(": ")[1].split(";")[0] for some in (folders, other)]
    assert best == ["ditto", "ditto"]


def test_the_constant_prediction_is_the_last_row_and_must_be_beaten(make):
    low = dict.fromkeys(CLIENTS, 0.9)
    folders = [make(m, s, constant=low, tests=ROWS) for m, s in (("local", ALONE), ("ditto", shifted(0.1)))]
    table = comparison(read(folders))
    assert list(table["method"]) == ["ditto", "local", "majority class"]
    assert list(table["best"]) == [True, False, False]
    text = verdict(read(folders), table)[1]
    known = "the majority class of each client's own training rows (accuracy 90.0 %)"
    assert text.endswith(f"; no model, training alone included, beats {known}.")
    beaten = [make(m, s, folder=f"b-{m}", constant=dict.fromkeys(CLIENTS, 0.5), tests=ROWS)
              for m, s in (("local", ALONE), ("ditto", shifted(0.1)))]  # fmt: skip
    assert "beat" not in verdict(read(beaten))[1]


def test_a_model_that_is_surely_worse_than_the_constant_is_called_worse(make):
    constant = dict.fromkeys(CLIENTS, 1.5)
    poor = {c: v + 3.0 for c, v in ALONE.items()}
    good = {c: v for c, v in ALONE.items()}
    ditto = make("ditto", poor, constant=constant, metric="rmse", tests=ROWS)
    local, better = (
        make("local", scores, constant=constant, metric="rmse", tests=ROWS, folder=name)
        for name, scores in (("poor", poor), ("good", good))
    )
    none = "the mean of each client's own training rows (RMSE 1.50)"
    said = verdict(read([ditto, local]))[1]
    assert said.endswith(f"; no model, training alone included, beats {none}.")
    assert verdict(read([ditto, better]))[1].endswith(f"; ditto is worse than {none}.")
    assert verdict(read([ditto]))[0].endswith(f"; ditto is worse than {none}.")


def test_the_constant_of_numbers_is_the_mean(make):
    folders = [make("ditto", {"a": 1.0, "b": 2.0}, constant={"a": 3.0, "b": 3.0}, metric="rmse", tests=ROWS)]
    assert list(comparison(read(folders))["method"]) == ["ditto", "mean"]


def test_failed_and_diverged_methods_have_no_numbers(make):
    folders = [make("local", ALONE, tests=ROWS), make("ditto", shifted(0.1), tests=ROWS)]
    folders += [
        make(
            "fedavg", ALONE, status="failed", failure="diverged in round 8: the loss is 1e+30", reported=None
        )
    ]
    table = comparison(read(folders))
    text = as_text(table, verdict(read(folders), table), 80)
    (line,) = [x for x in text.splitlines() if x.startswith("fedavg  ")]
    assert line.split("  ")[-1].strip() == "diverged in round 8: the loss is 1e+30"
    assert "fedavg" not in verdict(read(folders), table)[1]


# ---- convergence ----


def rising(make, method, ran, **more):
    curve = [dict.fromkeys(CLIENTS, 0.9 - 0.8 / (1 + r / 8)) for r in range(1, ran + 1)]
    return make(method, ALONE, val=curve, tests=ROWS, **more)


def test_a_run_that_was_still_improving_is_flagged_with_the_rounds_that_would_do(make):
    lines = lines_of([rising(make, "local", 300), rising(make, "fedavg", 50)])
    assert lines[-1] == "Not yet converged: fedavg would need about 400 rounds."


def test_the_first_line_says_of_which_round_it_speaks_where_training_was_not_done(make):
    lines = lines_of([make("local", shifted(0), tests=ROWS), rising(make, "fedavg", 50)])
    assert lines[0].startswith(
        "Whether federating helps cannot be told here after 50 rounds (fedavg not yet converged): 0.0 points"
    )
    clear = lines_of([rising(make, "local", 50, folder="l"), make("ditto", shifted(0.2), tests=ROWS)])
    assert clear[0].startswith(
        "Federating helps here after 50 rounds (local not yet converged): +20.0 points"
    )


def test_a_run_that_patience_ended_has_converged(make):
    assert not any("converged" in line for line in lines_of([rising(make, "fedavg", 50, rounds=500)]))


def test_one_run_says_so_too(make):
    from motet.report.tables import summary

    run = read([rising(make, "fedavg", 50)])[0]
    assert "still improving when it stopped; about 400 rounds would do" in summary_text(summary(run))


# ---- the terminal ----


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_table_fits_the_terminal_and_keeps_its_gains(make, width):
    folders = [make(m, shifted(0.01 * i), shared=ALONE, seed=s, tests=ROWS)
               for i, m in enumerate(("local", "fedavg", "centralised", "a_method_with_a_long_name"))
               for s in (0, 1)]  # fmt: skip
    folders.append(make("ditto", ALONE, status="failed", failure="x " * 200, reported=None))
    table = comparison(read(folders))
    text = as_text(table, verdict(read(folders), table), width, wide=True)
    assert max(map(len, text.splitlines())) <= width
    table_text, _, hidden = text.partition("Not shown: ")
    assert "over alone (95 %)" in text and ("global" in table_text) == (width >= 80)
    assert ("global" in hidden) == (width < 80)  # what is hidden is named
    assert text.startswith("Federating helps here")


def test_clients_are_shown_with_whole_rows_and_percent(make):
    from motet.report.tables import by_client

    runs = read([make("ditto", {"a": 29 / 30, "b": 0.5}, rows={"a": 1072})])
    lines = clients_text(by_client(runs), "accuracy").splitlines()
    assert lines[1].split() == ["client", "training", "rows", "ditto"]
    assert lines[2].split() == ["a", "1,072", "96.7"]


def test_pooled_training_is_not_federating(make):
    lines = lines_of([make("local", ALONE, tests=ROWS), make("centralised", shifted(0.1), tests=ROWS)])
    assert not any(line.startswith("Federating") for line in lines)
    assert lines[1] == "Whether federating helps needs a federated method to compare with."


def test_a_method_that_is_chosen_and_does_worse_on_test_rows_is_not_praised(make):
    better = shifted(0.1)
    folders = [make("local", ALONE, tests=ROWS), make("fedavg", better, tests=ROWS, val=shifted(0.0))]
    folders += [make("ditto", {c: v - 0.05 for c, v in better.items()}, tests=ROWS, val=shifted(0.2))]
    assert lines_of(folders)[1] == "Best: ditto; on test rows, which choose nothing, fedavg did better."


def test_a_method_that_failed_on_the_hard_split_is_not_best(make):
    easy, hard = shifted(0.1), shifted(-0.2)
    folders = [make("local", ALONE, folder=f"local-{s}", split=s, tests=ROWS) for s in (0, 1)]
    folders += [
        make("fedavg", v, folder=f"fedavg-{s}", split=s, tests=ROWS) for s, v in enumerate((easy, hard))
    ]
    folders += [make("ditto", {c: v - 0.02 for c, v in easy.items()}, folder="ditto-0", split=0, tests=ROWS)]
    folders += [make("ditto", {}, folder="ditto-1", split=1, status="failed", failure="diverged")]
    table = comparison(read(folders))
    assert table.loc[table["best"], "method"].tolist() == ["fedavg"]


# ---- the method that is chosen, and the others ----


def three_methods(make, ditto, others):
    """ditto is chosen by validation rows; all others have the same test scores."""
    folders = [make("local", ALONE, tests=ROWS, val=shifted(0.0))]
    folders += [make("ditto", ditto, tests=ROWS, val=shifted(0.2))]
    return folders + [make(m, others, tests=ROWS, val=shifted(0.1)) for m in ("fedavg", "finetune")]


def test_methods_that_clearly_gain_are_named_where_the_chosen_one_does_not(make):
    lines = lines_of(three_methods(make, shifted(0.004, 0.02), shifted(0.1)))
    assert lines[0].startswith("Whether federating helps cannot be told here: +0.4 points")
    assert lines[1] == (
        "That is of ditto, which validation rows chose. On test rows, which choose nothing, fedavg (+10.0 points) and "
        "finetune (+10.0 points) clearly gain over training alone, also when corrected for the number of methods."
    )
    assert lines[2].startswith("Best of the federated methods: ditto")


def test_a_gain_that_is_clear_only_for_itself_is_not_told(make):
    # ten gains with mean 0.02 and standard error 0.0082: t is 2.43, 2.26 is needed for one and 2.93 for three
    weak = {c: 0.72 + 0.0246 * (-1) ** i for i, c in enumerate(CLIENTS)}
    folders = three_methods(make, shifted(0.004, 0.02), weak)
    table = comparison(read(folders)).set_index("method")
    assert table.loc["fedavg", "gain_local_low"] > 0 and not table.loc["fedavg", "clear_gain"]
    assert not any("clearly" in line for line in lines_of(folders))


def test_other_methods_are_not_told_where_the_chosen_one_gains(make):
    assert len(lines_of(three_methods(make, shifted(0.1), shifted(0.12)))) == 3


def test_clear_gains_of_errors_are_in_words(make):
    errors = {c: 2.0 for c in CLIENTS}
    less = {c: 1.69 + 0.1 * (-1) ** i for i, c in enumerate(CLIENTS)}
    same = {c: 2.0 + 0.1 * (-1) ** i for i, c in enumerate(CLIENTS)}
    folders = [make("local", errors, metric="rmse", tests=ROWS)]
    folders += [make("ditto", same, metric="rmse", tests=ROWS, val=dict.fromkeys(CLIENTS, 1.0))]
    folders += [make("fedavg", less, metric="rmse", tests=ROWS, val=dict.fromkeys(CLIENTS, 1.5))]
    assert "fedavg (0.310 less error) clearly gains" in lines_of(folders)[1]


# ---- data that fix the test rows ----


@pytest.mark.parametrize(
    ("seeds", "splits", "said"),
    [
        ((0, 1), (0, 0), "initial weights and batches"),
        ((0, 0), (0, 1), "validation rows"),
        ((0, 1), (0, 1), "initial weights, batches and validation rows"),
    ],
)
def test_runs_on_fixed_test_rows_say_what_varies_and_speak_of_no_splits(make, seeds, splits, said):
    folders = [
        make(m, v, seed=seed, split=split, folder=f"{m}-{i}", natural=True, given_tests=True, fingerprint=f"f{split}",
             tests=ROWS)
        for i, (seed, split) in enumerate(zip(seeds, splits, strict=True))
        for m, v in (("local", ALONE), ("ditto", shifted(0.1)))
    ]  # fmt: skip
    runs = read(folders)
    table = comparison(runs)
    lines = verdict(runs, table)
    assert lines[-1] == f"The data fix the test rows: runs of a method differ in {said}, not in test rows."
    page = render(runs)
    for text in (as_text(table, lines, 80), page.split("<h2>To do it again")[0]):
        assert "split" not in text.split("<script")[0].split("</style>")[-1]
        assert "on other test rows scores would" in " ".join(text.split()).lower()
    assert "test rows fixed by the data" in page


def test_drawn_test_rows_need_no_such_words(make):
    folders = [
        make(m, v, seed=s, split=s, folder=f"{m}-{s}", natural=True, tests=ROWS)
        for s in (0, 1)
        for m, v in (("local", ALONE), ("ditto", shifted(0.1)))
    ]
    table = comparison(read(folders))
    assert "test rows:" not in as_text(table, verdict(read(folders), table), 80)
