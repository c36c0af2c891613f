"""Noise on losses against a server that spends its whole budget on one person.

The attacker knows motet's text, the columns' means and spreads, and some values of one patient of the site. It builds
networks that are sure of one label for rows in one narrow slice, and for all others undecided: a loss counts the rows
in the slice. It asks until the budget is spent and takes means.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sites
from motet.client import ClientData
from motet.deploy.site.contract import noise_scale, turn_seed
from motet.deploy.site.policy import Policy
from motet.deploy.site.service import SiteService
from motet.engines.letters import Letter, Reply
from motet.parts.particle_losses import first_equal

PARTICLES, CLIP, TARGETS = 500, 0.5, (1, 2)


class LossAttack:
    """A site of some rows, and questions to it."""

    def __init__(self, folder: Path, rows: int, policy: Policy) -> None:
        g = torch.Generator().manual_seed(0)
        data = ClientData(*(sites.examples(0, n, g) for n in (rows, 12, 12)))
        self.service = SiteService("a", folder, sites.federation({"a": data}), policy, b"k" * 32)
        self.x, self.y, self.n = data.train.take().x, data.train.take().y, rows
        given = sites.recipe("swarm")
        settings = {"particles": PARTICLES, "stretch": 1, "clip": CLIP}
        net = {"name": "mlp", "hidden": [6, 1]}
        self.recipe: dict[str, Any] = given | {"method": given["method"] | settings, "net": net}
        offer = Letter("offer", "r", recipe=self.recipe, send={"rounds": policy.losses // (8 * PARTICLES)})
        assert not Reply.read(self.service.answer(offer.pack())).refusal
        self.w0 = sites.method(self.recipe).task.w0
        self.asked = 0

    def slice(self, u: torch.Tensor, at: float, label: int, column: int | None, above: float) -> torch.Tensor:
        """A particle that is sure of a label near `at` along u, if the column is above a value too."""
        w = self.w0.zeros()
        first, bias, second, offset, last, _ = w.values()
        for i, (edge, shift) in enumerate(((at - 5e-6, 0), (at - 5e-6, 1), (at + 5e-6, 0), (at + 5e-6, 1))):
            first[i], bias[i] = 4e6 * u, -4e6 * edge - shift
        second[0] = torch.tensor([1e3, -1e3, -1e3, 1e3, 0, 0])
        if column is not None:
            for i in (4, 5):
                first[i, column], bias[i] = 4e6, -4e6 * above - (i - 4)
            second[0, 4:], offset[0] = torch.tensor([1e3, -1e3]), -1e3
        last[label] = 20.0
        return torch.cat([v.double().reshape(-1) for v in w.values()])

    def count(self, theta: torch.Tensor, many: int) -> float:
        """How many rows are in the slice, from so many losses. Weights that do nothing make particles different."""
        found: list[float] = []
        while len(found) < many:
            some = theta.expand(1, min(PARTICLES, many - len(found)), -1).clone()
            some[..., -1] += torch.arange(some.shape[1]) * 1e-9 + self.asked * 1e-6
            number, self.asked = self.asked // 6, self.asked + 1
            letter = Letter("verb", "r", number, self.asked, turn_seed(1, number), "loss_of_particles", "mean",
                            self.recipe, {"theta": some})  # fmt: skip
            reply = Reply.read(self.service.answer(letter.pack()))
            assert not reply.refusal
            found += reply.tree[0, 0].tolist()
        return (CLIP - float(np.mean(found))) / CLIP * self.n


def values_of(attack: LossAttack, row: int, many: int) -> np.ndarray:
    """Bisection for two values of one row whose other values are known; `many` losses for each step."""
    g = torch.Generator().manual_seed(8)
    u = torch.randn(sites.FEATURES, generator=g)
    u[list(TARGETS)] = 0
    found = []
    for column in TARGETS:
        low, high = -4.0, 4.0
        for _ in range(10):
            middle = (low + high) / 2
            theta = attack.slice(u, float(u @ attack.x[row]), int(attack.y[row]), column, middle)
            low, high = (middle, high) if attack.count(theta, many) > 0.5 else (low, middle)
        found.append((low + high) / 2)
    return np.array(found)


def errors(folder: Path, policy: Policy, people: int, rows: int, many: int = 0) -> tuple[float, float]:
    """Of the attack, and of guessing the columns' means; each person has a site of its own, with a whole budget."""
    miss, guess = [], []
    for row in range(people):
        attack = LossAttack(folder / str(row), rows, policy)
        true = attack.x[row, list(TARGETS)].numpy()
        miss.append(abs(values_of(attack, row, many or policy.losses // 2 // 20) - true))
        guess.append(abs(attack.x[:, list(TARGETS)].mean(0).numpy() - true))
    print(f"error {np.mean(miss):.3f}, of guessing {np.mean(guess):.3f}")
    return float(np.mean(miss)), float(np.mean(guess))


def test_a_whole_budget_of_losses_does_not_give_two_values_of_a_person(tmp_path: Path) -> None:
    miss, guess = errors(tmp_path, Policy(), 3, 300)
    assert miss > 0.95 * guess


@pytest.mark.long
def test_nor_at_a_site_of_many_rows(tmp_path: Path) -> None:
    miss, guess = errors(tmp_path, Policy(), 6, 6000)
    assert miss > 0.95 * guess


def test_all_losses_on_one_question_tell_who_is_among_the_rows(tmp_path: Path) -> None:
    """What noise does not defend: the count of rows with these very values, to a quarter of a row."""
    found = {}
    for who in ("a patient", "somebody else"):
        attack = LossAttack(tmp_path / who, 300, Policy())
        u = torch.randn(sites.FEATURES, generator=torch.Generator().manual_seed(8))
        at = float(u @ attack.x[0]) + (0.01 if who == "somebody else" else 0.0)
        found[who] = attack.count(attack.slice(u, at, int(attack.y[0]), None, 0.0), Policy().losses // 2)
    assert found["a patient"] > 0.5 > found["somebody else"]


def test_without_noise_the_same_questions_give_both(tmp_path: Path) -> None:
    miss, guess = errors(tmp_path, Policy(noise=0.0), 2, 300, many=1)
    assert miss < 0.05 * guess


def test_the_same_particle_twice_in_a_letter_gets_the_same_noise(tmp_path: Path) -> None:
    attack = LossAttack(tmp_path, 60, Policy())
    theta = torch.zeros(1, 5, len(attack.slice(torch.zeros(6), 0.0, 0, None, 0.0)), dtype=torch.float64)
    theta[0, 3] = 1.0
    letter = Letter(
        "verb", "r", 0, 0, turn_seed(1, 0), "loss_of_particles", "mean", attack.recipe, {"theta": theta}
    )
    loss = Reply.read(attack.service.answer(letter.pack())).tree[0, 0]
    assert len(set(loss.tolist())) == 2 and loss[0] == loss[4] != loss[3]
    assert first_equal(theta).tolist() == [0, 0, 0, 3, 0]


def test_a_twentieth_of_the_budget_leaves_a_count_uncertain_by_the_policys_rows() -> None:
    policy, n = Policy(), 700
    draws = np.random.default_rng(0).laplace(0, noise_scale(policy, n), (400, policy.losses // 40))
    assert abs((draws.mean(1) * n).std() - policy.noise) < 0.1
