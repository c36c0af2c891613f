"""One row's share in a trained reply: settings that make a reply of a few rows, and what an attacker has of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sites
from motet.client import ClientData
from motet.deploy.site.contract import turn_seed
from motet.deploy.site.policy import Policy
from motet.deploy.site.row_shares import StepWeights, largest_share, with_even_batches
from motet.deploy.site.service import SiteService
from motet.engines.letters import Letter, Reply
from motet.methods.ditto import Ditto
from motet.methods.fedala import FedALA
from motet.methods.fedavg import FedAvg
from motet.methods.fedprox import FedProx
from motet.methods.fedrecon import FedRecon
from motet.methods.pfedme import PFedMe
from motet.methods.stacking import Stacking

LETTERS = 120


def site(folder: Path, many: int = 60, policy: Policy | None = None) -> SiteService:
    g = torch.Generator().manual_seed(0)
    rows = ClientData(*(sites.examples(0, n, g) for n in (many, 12, 12)))
    return SiteService("a", folder, sites.federation({"a": rows}), policy or Policy(), b"k" * 32)


def recipe(method: str, **settings: Any) -> dict[str, Any]:
    found = sites.recipe(method)
    return found | {"method": found["method"] | settings, "net": {"name": "logistic"}}


def offered(service: SiteService, given: dict[str, Any]) -> str:
    letter = Letter("offer", "r", recipe=given, send={"rounds": LETTERS})
    return Reply.read(service.answer(letter.pack())).refusal


# ---- settings that are refused ----


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {"batch": 1, "lr": 0.1, "decay": 10.0}),
        ("fedprox", {"batch": 1, "lr": 0.1, "mu": 10.0}),
        ("feddyn", {"batch": 2, "lr": 0.1, "alpha": 10.0}),
        ("fedavg", {"batch": 9}),
        ("fedavg", {"batch": 1, "steps": 1}),
        ("fedavg", {"batch": 3, "steps": 3, "optimiser": "adam"}),
        ("fedala", {"mix_share": 1e-6}),
        ("fedala", {"mix_share": 0.1}),
    ],
)
def test_settings_that_make_a_reply_of_a_few_rows_are_refused(
    tmp_path: Path, method: str, settings: dict[str, Any]
) -> None:
    assert offered(site(tmp_path), recipe(method, **settings)) == "rows"


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedala", "pfedme", "ditto", "feddyn", "scaffold"])
@pytest.mark.parametrize("many", [12, 17, 33, 36, 61])
def test_usual_settings_are_not_refused(tmp_path: Path, method: str, many: int) -> None:
    assert not offered(site(tmp_path, many), recipe(method)), "whatever the number of rows"


def test_stacking_needs_enough_rows_for_its_contribution_scores() -> None:
    assert Stacking(None, share=0.25).rows_trained(48) == 12
    assert Stacking(None, share=0.999).rows_trained(1000) == 1
    assert Stacking(None, share=0.001, variant="pooled").rows_trained(48) == 48


# ---- shares by hand ----


def test_shares_computed_by_hand() -> None:
    def share(n: int, **settings: Any) -> float:
        return largest_share(FedAvg(None, **settings), n)

    assert share(33, batch=16) == pytest.approx(1 / 3), "the last batch of three is one row"
    assert share(20, batch=64) == pytest.approx(1 / 20)
    assert share(32, batch=16, lr=0.1, decay=10.0) == pytest.approx(1 / 16), "each step forgets all before it"
    assert share(3, batch=1, lr=0.1, decay=5.0) == pytest.approx(1 / (1 + 0.5 + 0.25))
    assert share(3, batch=1, lr=0.1, decay=5.0, epochs=2) == pytest.approx(1 / 1.75), (
        "it is last in each epoch"
    )
    assert share(30, batch=10, steps=1) == pytest.approx(1 / 10)
    assert share(20, batch=10, steps=3) == pytest.approx(2 / 30), "a row that is in two of three steps"
    assert largest_share(FedProx(None, lr=0.1, mu=10.0, batch=1), 9) == 1
    assert largest_share(PFedMe(None, lr=1.0, lam=1.0, batch=1), 9) == 1


def test_momentum_lets_the_first_steps_count_most() -> None:
    assert StepWeights(momentum=0.5).last(3) == pytest.approx([1.75, 1.5, 1.0])
    assert StepWeights(momentum=1.0).last(3) == pytest.approx([3, 2, 1])
    assert StepWeights(pull=0.5).last(3) == pytest.approx([0.25, 0.5, 1])
    assert StepWeights().last(3) == pytest.approx([1, 1, 1])


def test_adams_steps_count_as_its_corrected_mean_says() -> None:
    """Two steps: m^ is g1, then (0.09 g1 + 0.1 g2) / 0.19."""
    made = StepWeights(adam=True).last(2) * 0.1
    assert made == pytest.approx([1 + 0.09 / 0.19, 0.1 / 0.19])


def test_weights_of_steps_are_those_of_training() -> None:
    """Gradients that do not depend on the weights, one unit in each step: where does it end?"""
    from motet.client.optimisers import Optimiser
    from motet.vec import Vec

    for momentum, decay in ((0.0, 0.0), (0.0, 3.0), (0.9, 0.0)):
        found = []
        for at in range(5):
            optimiser, u = Optimiser("sgd", momentum, decay), Vec({"u": torch.zeros(1)})
            state = optimiser.initial(u)
            for step in range(5):
                g, state = optimiser.direction(Vec({"u": torch.ones(1) * (step == at)}), u, state)
                u = u - 0.1 * g
            found.append(float(-u["u"] / 0.1))
        assert StepWeights(0.1 * decay, momentum).last(5) == pytest.approx(found)


@given(st.integers(10, 500), st.integers(10, 80), st.sampled_from([FedAvg, FedALA, FedRecon]))
def test_even_batches_leave_no_rows_alone(n: int, batch: int, method: Any) -> None:
    fitted = with_even_batches(method(None, batch=batch), n, 10)
    for rows in fitted.parts_trained(n):
        assert rows <= fitted.batch or rows % fitted.batch == 0 or rows % fitted.batch >= 10
    assert with_even_batches(fitted, n, 10) == fitted


# ---- the attacks ----


def gradients(service: SiteService, given: dict[str, Any], lr: float) -> list[np.ndarray]:
    """What replies to zeros say of gradients: (classes, columns and bias), for each letter."""
    assert not offered(service, given)
    zeros = sites.method(given).task.w0.zeros()
    found = []
    for number in range(LETTERS):
        seed = turn_seed(1, number)
        letter = Letter("verb", "r", number, 0, seed, "train", "mean", given, zeros)
        reply = Reply.read(service.answer(letter.pack()))
        assert not reply.refusal
        weight, bias = (v.double().numpy() / -lr for v in reply.tree.values())
        found.append(np.column_stack([weight, bias]))
    return found


def errors(service: SiteService, found: list[np.ndarray]) -> tuple[float, float]:
    """The usual distance of what an attacker takes for a row to the nearest true row, and that of draws with the
    columns' means and spreads."""
    true = service.rows.of("r").clients_data["a"].train.take().x.double().numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        claims = np.array([g[:, :-1] / g[:, -1:] for g in found]).reshape(-1, true.shape[1])
    guesses = np.random.default_rng(0).normal(true.mean(0), true.std(0), claims.shape)

    def nearest(rows: np.ndarray) -> float:
        return float(np.median([np.linalg.norm(true - r, axis=1).min() for r in np.nan_to_num(rows)]))

    return nearest(claims), nearest(guesses)


@pytest.mark.parametrize("batch", [16, 10])
def test_steps_that_forget_all_before_them_show_a_batch_and_no_row(tmp_path: Path, batch: int) -> None:
    service = site(tmp_path)
    found = gradients(service, recipe("fedavg", batch=batch, lr=0.1, decay=10.0), 0.1)
    miss, guess = errors(service, found)
    print(f"error {miss:.3f}, of guessing {guess:.3f}")
    assert miss > 0.95 * guess


@pytest.mark.parametrize("secret", [True, False])
def test_one_row_at_the_end_of_an_epoch_is_not_told_from_two_replies(tmp_path: Path, secret: bool) -> None:
    """33 rows in batches of 16 are 16, 16 and one. Every reply is the sum of all rows and 15 times that one."""
    service = site(tmp_path, 33, Policy(secret_orders=secret))
    found = gradients(service, recipe("fedavg", lr=1e-3), 1e-3)
    everything = np.mean(found, 0) / (1 / 16 + 15 / (16 * 33))  # the sum of all rows' gradients
    alone = [(g - everything / 16) * 16 / 15 for g in found]
    miss, guess = errors(service, alone)
    print(f"error {miss:.3f}, of guessing {guess:.3f}")
    assert miss > 0.95 * guess if secret else miss < 0.5 * guess


def test_a_pull_of_a_model_that_stays_at_home_is_no_share_of_a_reply() -> None:
    ditto, fedavg = Ditto(None, lr=0.8, lam=1.2), FedAvg(None, lr=0.8)
    assert largest_share(ditto, 60) == largest_share(fedavg, 60)
    assert largest_share(FedProx(None, lr=0.8, mu=1.2), 60) > largest_share(fedavg, 60)
