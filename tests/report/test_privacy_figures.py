"""What privacy costs, in reports: scores against epsilon, and who spent how much."""

from __future__ import annotations

import math

from motet.report.html import render
from motet.report.pictures import pictures
from motet.report.privacy_figures import MOST_CLIENTS, budgets, scores_by_epsilon
from motet.report.read import read
from motet.report.spent_privacy import budget_sentence, privacy_lines
from motet.report.tables import comparison
from report.conftest import Make


def spent(epsilon: float, clients: int = 2) -> dict[str, object]:
    each = {f"c{i}": epsilon - 0.01 * i for i in range(clients)}
    return {
        "level": "example", "epsilon": epsilon, "delta": 1e-3, "noise": "arithmetic, for studies", "clients": each,
        "rounds": dict.fromkeys(each, 3), "noise_multipliers": dict.fromkeys(each, 1.25),
    }  # fmt: skip


def test_scores_stand_against_what_was_spent(make: Make) -> None:
    runs = read(
        [
            make("fedavg", {"a": 0.6, "b": 0.8}, folder="1", privacy=spent(1.0)),
            make("fedavg", {"a": 0.8, "b": 0.8}, folder="2", privacy=spent(5.0)),
            make("fedavg", {"a": 0.9, "b": 0.9}, folder="3"),
            make("local", {"a": 0.5, "b": 0.5}, folder="4"),
        ]
    )
    found = scores_by_epsilon(runs)
    assert found["method"].tolist() == ["fedavg"] * 3, "a method without private runs has no price"
    assert [round(v, 6) for v in found["score"]] == [0.7, 0.8, 0.9]
    assert found["epsilon"].tolist()[:2] == [1.0, 5.0] and math.isnan(found["epsilon"].tolist()[2])
    (picture,) = [p for p in pictures(runs, comparison(runs)) if p.name == "score-against-epsilon"]
    assert "without differential privacy stand at the right" in picture.caption
    page = render(runs)
    assert "What privacy costs" in page and "spent of privacy" in page and "1.25" in page


def test_without_privacy_nothing_is_shown(make: Make) -> None:
    runs = read([make("fedavg", {"a": 0.6}), make("local", {"a": 0.5})])
    assert not [p for p in pictures(runs, comparison(runs)) if p.name == "score-against-epsilon"]
    assert budgets(runs) == [] and "spent of privacy" not in render(runs)


def test_of_many_clients_those_that_spent_most_are_listed(make: Make) -> None:
    (found,) = budgets(read([make("fedavg", {"a": 0.6}, privacy=spent(1.0, MOST_CLIENTS + 3))]))
    assert len(found["rows"]) == MOST_CLIENTS and found["rows"][0] == ("c0", "1", "3", "1.25")
    assert found["cut"].startswith("3 clients")


def test_of_many_runs_there_is_one_table(make: Make) -> None:
    runs = read([make("fedavg", {"a": 0.6}, seed=s, privacy=spent(float(s + 1))) for s in range(4)])
    (found,) = budgets(runs)
    assert [row[1:] for row in found["rows"]] == [(str(s), str(s + 1), "0.001", "1.25") for s in range(4)]
    assert (
        found["said"] == "Epsilon is that of the client that spent most, for each training row of a client."
    )


def test_a_federated_run_says_what_its_recipe_gave_each_site(make: Make) -> None:
    asked = {"level": "example", "epsilon": 2.0, "delta": None, "noise": "each site's own"}
    said = budget_sentence({"privacy": asked})
    assert said == "epsilon 2 for each training row of a client; noise: each site's own"
    (found,) = budgets(read([make("fedavg", {"a": 0.6}, privacy=asked)]))
    assert found["rows"] == [] and found["said"].startswith("Epsilon 2 for each training row")


def test_a_summary_says_what_epsilon_does_not_count() -> None:
    summary = {"epsilon": 2.0, "delta": 0.001, "privacy": "example", "privacy_noise": "arithmetic"}
    ((head, text),) = privacy_lines(summary)
    assert head == "privacy" and text.startswith("epsilon 2, delta 0.001 for each training row")
    assert "not counted: scaling of columns, scores and what they chose" in text
    assert privacy_lines(summary | {"epsilon": None}) == []
