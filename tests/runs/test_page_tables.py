"""What PAGE's experiments compute themselves: convergence by one rule, and what deviations are worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from motet.engines.loop import Loop
from motet.runs import experiment as experiments
from rounds import TWO, one_number, turn


def procedure(name: str) -> Any:
    return experiments.module_of(experiments.find(name), "procedure")


def test_a_run_has_converged_at_its_best_round_before_patience_runs_out() -> None:
    sets = procedure("page/table2").sets
    assert sets.best_round({0: 0.5, 5: 0.7, 10: 0.6, 15: 0.7, 20: 0.9}, patience=10) == 5
    assert sets.best_round({0: 0.5, 5: 0.7, 10: 0.6, 15: 0.7, 20: 0.9}, patience=50) == 20
    assert sets.best_round({4: 0.5}, patience=1) == 4


def test_table_2_goes_by_the_global_model_for_global_methods_and_by_both_for_page() -> None:
    sides = procedure("page/table2").sides
    assert (sides("SCAFFOLD"), sides("Ditto"), sides("PAGE")) == (
        ["global"],
        ["after_training"],
        ["global", "after_training"],
    )


@pytest.mark.parametrize("name", [n for n in experiments.names() if n.startswith("page/")])
def test_every_experiment_of_page_can_be_planned(name: str) -> None:
    found = experiments.find(name)
    for scale in experiments.SCALES:
        assert found.at(scale)["rows"] if found.is_procedure else found.plan(scale)
    assert not found.is_procedure or procedure(name).perform


def test_a_client_that_deviates_plays_the_given_action_for_a_round() -> None:
    page = procedure("page/equilibrium").DeviatingPAGE(one_number())
    data = Loop(TWO)
    data.begin(page, turn(data, 0))
    keep = page.join(data.data("a"))
    own = page.lead(keep, torch.zeros(()), torch.tensor(1))[0]
    given, kept = replace(page, action=(1.0, -1.0)).lead(keep, torch.zeros(()), torch.tensor(1))
    assert own.tolist() != given.tolist() == kept["a"].tolist() == [1.0, -1.0]
    assert page.ranges(given, kept)[1] == 1


def test_a_deviation_is_worth_its_best_trial_over_what_was_played() -> None:
    found = procedure("page/equilibrium").rise(
        np.array([2.0, 4.0, 1.0]), np.array([[1.0, 4.1, 0.5], [3.0, 2.0, 1.0]])
    )
    assert found["best rise"] == pytest.approx(0.025)  # of 0.5, 0.025 and 0
    assert found["would gain a tenth"] == pytest.approx(1 / 3)


def test_the_server_deviates_to_equal_weights_and_by_one_client_at_a_time() -> None:
    tried = procedure("page/equilibrium").shares(torch.tensor([0.5, 0.3, 0.2]).double())
    assert tried[0].tolist() == pytest.approx([1 / 3] * 3)
    assert tried[1].tolist() == pytest.approx([0, 0.6, 0.4]) and tried[2].tolist() == pytest.approx(
        [1 / 1.5, 0.3 / 1.5, 0.2 / 1.5]
    )
    assert len(tried) == 7
