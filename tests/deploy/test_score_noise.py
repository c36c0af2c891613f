"""Scores at weights that the server chooses: what they tell, and what they do not where a site's policy has noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sites
from deploy.test_gatekeeper import KEY, asked, offered, rows_of
from motet.client import Task
from motet.deploy.site.contract import turn_seed
from motet.deploy.site.noise import laplace_noise
from motet.deploy.site.policy import Policy
from motet.deploy.site.score_noise import ScoreNoise
from motet.deploy.site.service import SiteService
from motet.engines.letters import Letter
from motet.engines.site_scores import ScoreRules
from motet.nets import build
from motet.vec import Vec

LOGISTIC = sites.recipe("fedavg") | {"net": {"name": "logistic"}}
STEPS = 12  # questions for one age


class Questions:
    """A server that asks how many of a class are older than some age, in scores of a model of its choice."""

    def __init__(self, folder: Path, policy: Policy) -> None:
        data = rows_of(40, 60, 15)
        self.val = data.clients_data["a"].val.take()
        self.service = SiteService("a", folder, data, policy, KEY)
        assert offered(self.service, LOGISTIC, rounds=100) == ""
        self.w = sites.method(LOGISTIC).task.w0.zeros()
        self.asked = 0

    def older(self, age: float) -> float:
        """Rows of class 0 that are older, and rows of class 1 that are not, by the accuracy."""
        weight, bias = self.w.values()
        weight, bias = weight.clone(), bias.clone()
        weight[0, 0], bias[0], bias[1] = 8.0, -8.0 * age, 0.0
        bias[2] = -20.0
        model = Vec(zip(self.w, (weight, bias), strict=True))
        send = {"global": model, "download": (), "same": False, "sides": ["global"]}
        at, self.asked = self.asked // 20, self.asked + 1
        letter = Letter("evaluate", "r", at, recipe=LOGISTIC, seed=turn_seed(1, at), send=send, part="val")
        reply = asked(self.service, letter)
        assert reply.refusal == ""
        return float(reply.tree["global"]["accuracy"]) * len(self.val)

    def oldest(self) -> float:
        """The age beyond which nobody of class 0 is left, by halving."""
        low, high = -3.5, 3.5
        none = self.older(high)  # rows of class 1 alone
        for _ in range(STEPS):
            middle = (low + high) / 2
            younger = int(
                ((self.val.y == 1) & (self.val.x[:, 0] > middle)).sum()
            )  # the attacker knows class 1
            low, high = (middle, high) if self.older(middle) + younger - none > 0.5 else (low, middle)
        return (low + high) / 2


def test_exact_scores_at_chosen_weights_give_the_oldest_patients_age(tmp_path: Path) -> None:
    questions = Questions(tmp_path, Policy())
    truth = float(questions.val.x[questions.val.y == 0, 0].max())
    assert abs(questions.oldest() - truth) < 0.002


def test_with_noise_on_scores_the_oldest_age_stays_uncertain(tmp_path: Path) -> None:
    missed = []
    for i in range(8):
        questions = Questions(tmp_path / str(i), Policy(score_noise=1.0))
        questions.service.secret = bytes([i]) * 32
        truth = float(questions.val.x[questions.val.y == 0, 0].max())
        missed.append(abs(questions.oldest() - truth))
    assert np.mean(missed) > 0.1  # the ages of neighbours differ by some 0.1


def test_the_same_letter_gets_the_same_scores_and_a_run_has_few_scorings(tmp_path: Path) -> None:
    questions = Questions(tmp_path, Policy(score_noise=1.0))
    first = questions.older(0.3)
    questions.asked = 0
    assert questions.older(0.3) == first
    rule = questions.service.stored_contract("r").rule("evaluate")  # type: ignore[union-attr]
    assert rule is not None and rule.in_all == 2 * 101 + rule.per_round


# ---- the numbers ----


def task(kind: str, outputs: int) -> Task:
    return Task(build("linear", {}, (2,), outputs, kind, 0), kind, outputs, scale=2.0)  # type: ignore[arg-type]


def scored(task: Task, z: torch.Tensor, y: torch.Tensor, rows: float, letter: str = "l") -> dict[str, float]:
    found = ScoreNoise(rows, 3.0, laplace_noise(KEY, letter, 1.0)).of(task, "a", z, y)
    return {k: float(v) for k, v in found.items()}


def test_without_noise_the_scores_are_exact_but_for_large_losses() -> None:
    z = torch.tensor([[2.0, 0.0], [0.0, 9.0], [0.0, 1.0]])
    found = scored(task("classes", 2), z, torch.tensor([0, 0, 1]), 0.0)
    assert found["accuracy"] == pytest.approx(2 / 3)
    lost = [np.log(1 + np.exp(-2)), 3.0, np.log(1 + np.exp(-1))]  # the second row's is 9
    assert found["loss"] == pytest.approx(np.mean(lost))
    numbers = scored(task("numbers", 1), torch.tensor([1.0, 9.0]), torch.tensor([0.0, 0.0]), 0.0)
    assert numbers["loss"] == pytest.approx((1 + 9) / 2)  # an error of 9 deviations counts 3
    assert numbers["mae"] == pytest.approx(2.0 * (1 + 3) / 2)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["classes", "numbers"]), st.integers(10, 60), st.integers(0, 10**6), st.floats(0.1, 20)
)
def test_noised_scores_are_scores_that_a_server_believes(kind: str, n: int, seed: int, rows: float) -> None:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g) if kind == "classes" else torch.randn(n, generator=g)
    z = torch.randn(n, 3, generator=g) if kind == "classes" else torch.randn(n, generator=g)
    of = task(kind, 3 if kind == "classes" else 1)
    found = scored(of, z, y, rows, str(seed))
    ScoreRules.of(of).check({k: torch.tensor(v, dtype=torch.float64) for k, v in found.items()}, n)


def test_a_score_is_uncertain_by_the_rows_that_the_policy_says() -> None:
    y = torch.tensor([0, 1] * 500)
    z = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
    of = task("classes", 2)
    drawn = [scored(of, z, y, 2.0, str(i))["accuracy"] * 1000 for i in range(300)]
    assert np.std(drawn) == pytest.approx(2 * np.sqrt(2), rel=0.15)  # Laplace's distribution with scale 2
