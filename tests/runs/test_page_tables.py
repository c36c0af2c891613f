"""What PAGE's experiments compute themselves: convergence by one rule, and what deviations are worth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from motet.runs import experiment as experiments


def procedure(name: str) -> Any:
    return experiments.module_of(experiments.find(name), "procedure")


def test_a_run_has_converged_at_its_best_round_before_patience_runs_out() -> None:
    sets = procedure("page/table2").sets
    assert sets.resolved({0: 0.5, 5: 0.7, 10: 0.6, 15: 0.7, 20: 0.9}, patience=10) == 5
    assert sets.resolved({0: 0.5, 5: 0.7, 10: 0.6, 15: 0.7, 20: 0.9}, patience=50) == 20
    assert sets.resolved({4: 0.5}, patience=1) == 4


def test_table_2_goes_by_the_global_model_for_global_methods_and_by_both_for_page() -> None:
    sides = procedure("page/table2").sides
    assert (sides("SCAFFOLD"), sides("Ditto"), sides("PAGE")) == (["global"], ["local"], ["global", "local"])


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
