"""Attacks: figures with right intervals, attacks that find what is there, and nothing where nothing is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import motet
from motet.audits import gradient_inversion as inversion
from motet.audits.attack_figures import clopper_pearson, difference, membership_figure
from motet.audits.label_inference import apart, from_contributions, mixture
from motet.audits.replay import open_run, replaying
from motet.audits.shadow_runs import Pools, likelihood_ratios, shadow_attack, shadow_of
from motet.cli.main import main
from motet.client import Batch, ClientData, Task
from motet.errors import UsageError
from motet.guard.pairs.chain import Chain
from motet.guard.pairs.clip import Clip
from motet.methods.fedavg import FedAvg
from motet.report.audit_report import audit_text, pictures_of_audits
from motet.report.figures import as_file
from motet.report.html import render
from motet.report.read import read
from motet.runs.build import cohort_of, resolve
from motet.runs.recipe import read as settings

# ---- figures ----


def test_exact_intervals_of_shares() -> None:
    """Clopper and Pearson's, by hand: with none of n, the upper end is 1 - 0.025^(1/n)."""
    assert clopper_pearson(0, 20) == (0.0, pytest.approx(1 - 0.025 ** (1 / 20)))
    assert clopper_pearson(20, 20) == (pytest.approx(0.025 ** (1 / 20)), 1.0)
    assert clopper_pearson(0, 0) == (0.0, 1.0)


def test_intervals_of_shares_hold_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    held = [
        low <= 0.3 <= high for low, high in (clopper_pearson(int(k), 40) for k in rng.binomial(40, 0.3, 2000))
    ]
    assert np.mean(held) >= 0.95


def test_a_null_attack_covers_zero() -> None:
    """Members and others are drawn alike: at most 5 % of intervals may miss zero, of advantage and of AUC."""
    rng, missed, off = np.random.default_rng(0), 0, 0
    for k in range(100):
        found = membership_figure(
            "null", "model", "server", rng.normal(size=120), rng.normal(size=80), seed=k
        )
        missed += not found.low <= 0.0 <= found.high
        low, high = found.more["auc_interval"]
        off += not low <= 0.5 <= high
        assert found.more["epsilon_at_least"] <= 1.5
    assert missed <= 5 and off <= 10  # a bootstrap's 95 % of so few rows is about 93 %


def test_the_advantage_of_a_known_attack_is_within_its_interval() -> None:
    """Members' scores are one deviation higher: the best threshold has an advantage of 2 Phi(1/2) - 1 = 0.383."""
    rng = np.random.default_rng(1)
    found = membership_figure("known", "model", "server", rng.normal(1, 1, 4000), rng.normal(0, 1, 4000))
    assert found.low < 0.383 < found.high and found.learns
    assert found.more["auc"] == pytest.approx(0.760, abs=0.02)  # Phi(1 / sqrt 2)


def test_differences_of_shares_reach_from_one_end_to_the_other() -> None:
    low, high = difference(50, 100, 50, 100)
    assert low == pytest.approx(-high) and low < 0 < high


# ---- membership ----


def shadows(many: int, rows: int, gain: float, seed: int = 0) -> list[tuple[Any, Any]]:
    """Scores of rows that differ among themselves far more than by membership, as hard and easy rows do."""
    rng = np.random.default_rng(seed)
    easy = np.random.default_rng(99).normal(0, 5, rows)
    found = []
    for _ in range(many):
        inside = rng.random(rows) < 0.5
        found.append((easy + gain * inside + rng.normal(0, 0.5, rows), inside))
    return found


def test_lira_sees_what_a_threshold_of_losses_does_not() -> None:
    (target, members), *others = shadows(17, 400, gain=1.0)
    ratios = likelihood_ratios(target, others)
    by_ratio = membership_figure("LiRA", "", "", ratios[members], ratios[~members])
    by_loss = membership_figure("loss threshold", "", "", target[members], target[~members])
    assert by_ratio.low > by_loss.high and by_ratio.value > 0.5


def test_lira_of_rows_that_teach_nothing_finds_nothing() -> None:
    (target, members), *others = shadows(17, 400, gain=0.0)
    ratios = likelihood_ratios(target, others)
    found = membership_figure("LiRA", "", "", ratios[members], ratios[~members])
    assert found.low <= 0 <= found.high


def test_an_attack_model_learns_from_shadow_models_that_members_are_surer() -> None:
    rng, y = np.random.default_rng(0), np.random.default_rng(1).integers(0, 3, 500)

    def model() -> tuple[Any, Any]:
        inside = rng.random(500) < 0.5
        return rng.normal(size=(500, 3)) + np.eye(3)[y] * (1 + 2.0 * inside)[:, None], inside

    (target, members), *others = (model() for _ in range(4))
    guess = shadow_attack(target, y, others)
    assert membership_figure("shadow", "", "", guess[members], guess[~members]).low > 0.2


# ---- inversion ----


def one(net: nn.Module, shape: tuple[int, ...]) -> tuple[Task, inversion.OneExample]:
    torch.manual_seed(0)
    task = Task(net, "classes", 3)
    x = torch.rand(5, *shape)
    rows = Batch.of(x, torch.tensor([0, 1, 2, 1, 0]))
    data = ClientData(rows, rows, rows)
    return task, inversion.one_example(FedAvg(task, lr=0.05, epochs=2), task, data, 3, 0)


@pytest.mark.parametrize("net", [[nn.Linear(36, 3)], [nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 3)]])
def test_an_example_can_be_read_off_an_update_and_not_off_a_masked_one(net: list[nn.Module]) -> None:
    torch.manual_seed(1)
    task, example = one(nn.Sequential(nn.Flatten(), *net), (1, 6, 6))
    found = inversion.inverted(task, example.sent, example.reply, (1, 6, 6))
    assert found == pytest.approx(example.x, abs=1e-3)
    clipped = inversion.after_chain(Chain((Clip(0.01),)), example, 0)
    assert inversion.correlation(inversion.inverted(task, example.sent, clipped, (1, 6, 6)), example.x) > 0.99
    masked = inversion.after_masks(example, 64, 1024.0)
    assert (
        abs(inversion.correlation(inversion.inverted(task, example.sent, masked, (1, 6, 6)), example.x)) < 0.6
    )


def test_an_example_of_a_convolution_is_found_by_search() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(8 * 36, 3))
    task, example = one(net, (1, 6, 6))
    assert (
        inversion.correlation(inversion.inverted(task, example.sent, example.reply, (1, 6, 6)), example.x)
        > 0.8
    )


# ---- labels ----


def test_a_mixture_of_classes_is_found_in_its_mean_vector() -> None:
    means = np.array([[1.0, 0.0, 0.2], [0.0, 1.0, 0.4], [0.3, 0.3, 0.9]])
    shares = np.array([0.5, 0.2, 0.3])
    assert mixture(shares @ means, means) == pytest.approx(shares, abs=1e-6)


def test_scores_of_likeness_tell_labels_and_equal_scores_tell_nothing() -> None:
    def data(label: int) -> ClientData:
        rows = Batch.of(torch.zeros(10, 1), torch.full((10,), label))
        return ClientData(rows, rows, rows)

    clients = {f"c{i}": data(i % 2) for i in range(6)}
    alike = {a: {b: 1.0 for b in clients if b != a and int(b[1]) % 2 == int(a[1]) % 2} for a in clients}
    found = from_contributions(alike, clients, 2)
    assert found is not None and found.value == pytest.approx(
        0.6
    )  # 2 of 5 others are alike: guessing is 0.6 off
    equal = from_contributions({a: dict.fromkeys(clients, 1.0) for a in clients}, clients, 2)
    assert equal is not None and equal.value == pytest.approx(0.0, abs=1e-12) and not equal.learns
    assert apart(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 1.0


# ---- runs ----


def test_an_overfitted_run_is_found_out_and_shown(tmp_path: Path, capsys: Any) -> None:
    """Labels of chance can only be learned by heart, so that training rows are known by their losses."""
    rng = np.random.default_rng(0)
    data = {f"c{i}": (rng.normal(size=(80, 30)), rng.integers(0, 2, 80)) for i in range(4)}
    run = motet.run(
        method="finetune", data=data, net="mlp", rounds=25, lr=0.5, report="last", out=tmp_path / "run"
    )
    assert main(["audit", str(run.folder), "--shadows", "4", "--examples", "3", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)[0]
    figures = {(f["attack"], f["on"].split()[0]): f for f in found["figures"]}
    assert figures["loss threshold", "personal"]["low"] > 0.2
    assert figures["LiRA", "personal"]["learns"] and found["same_bits"]
    inverted = [f["value"] for f in found["figures"] if f["attack"] == "gradient inversion"]
    assert inverted == [1.0, 0.0]
    assert "motet contributions" in found["skipped"]["property"] and "sparsity" in found["skipped"]["labels"]
    for width in (60, 80):
        assert max(map(len, audit_text(found, width))) <= width
    assert "What attackers learn of finetune" in render(read([run.folder]))


def test_sparsity_vectors_tell_labels_and_noise_hides_them(tmp_path: Path) -> None:
    found = {}
    for epsilon in (0.0, 0.1):
        run = motet.run(
            method="fedperc", epsilon=epsilon, data={"name": "digits", "clients": 8}, net="mlp", rounds=2,
            out=tmp_path / f"run{epsilon}",
        )  # fmt: skip
        found[epsilon] = motet.audit(run.folder, attacks=["labels"])["figures"][0]
    assert found[0.0]["learns"] and found[0.0]["value"] > 0.1
    assert found[0.1]["value"] < found[0.0]["value"] and not found[0.1]["learns"]


def test_several_runs_are_drawn_against_epsilon() -> None:
    def one(epsilon: float | None, value: float) -> dict[str, Any]:
        f = {"attack": "LiRA", "on": "global model", "by": "server", "what": "advantage", "value": value,
             "low": value - 0.05, "high": value + 0.05, "guess": 0.0, "sizes": "",
             "learns": True, "more": {}}  # fmt: skip
        return {"figures": [f], "epsilon": epsilon}

    drawn = pictures_of_audits([("a", one(0.5, 0.02)), ("b", one(5.0, 0.2)), ("c", one(None, 0.4))])
    assert len(drawn) == 1 and "epsilon" in drawn[0].caption
    assert as_file(drawn[0], "png", set()).startswith(b"\x89PNG")


def test_a_private_run_is_attacked_by_shadow_runs_and_updates_that_are_private_too(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    rng = np.random.default_rng(0)
    data = {f"c{i}": (rng.normal(size=(60, 8)), rng.integers(0, 2, 60)) for i in range(3)}
    run = motet.run(
        method="fedavg", data=data, net="logistic", rounds=2, lr=0.1, out=tmp_path / "run",
        privacy={"level": "example", "noise_multiplier": 4.0},
    )  # fmt: skip
    opened = open_run(run.folder)
    shadow, _ = shadow_of(opened.resolved, Pools.of(opened.resolved.training.clients_data), 0, 2)
    for c, own in shadow.training.clients_data.items():
        assert own.noise == 4.0 and own.private == opened.resolved.training.clients_data[c].private
    found = motet.audit(run.folder, attacks=["inversion"], examples=4)["figures"]
    kinds = {f["more"]["guard"]: f["more"]["correlation"] for f in found}
    assert kinds["no guard"] > 0.99 and kinds["differential privacy (example)"] < 0.9


def test_shadow_runs_of_private_runs_train_whom_their_own_draws_say() -> None:
    pytest.importorskip("opacus")
    words = ["data=wine", "data.clients=4", "data.unseen=0", "method.lr=0.1", "train.cohort=0.5", "train.rounds=8",
             "privacy.level=example", "privacy.noise_multiplier=3"]  # fmt: skip
    resolved = resolve(settings(None, words))
    for number in range(3):
        shadow, _ = shadow_of(resolved, Pools.of(resolved.training.clients_data), number, 8)
        with replaying(shadow) as trainer:
            for k in range(8):
                assert trainer.cohort(k) == cohort_of(shadow.recipe, trainer.engine.clients, k)


def test_a_run_without_other_rows_is_not_attacked_for_membership(tmp_path: Path) -> None:
    data = {"name": "wine", "val": 0, "test": 0, "unseen": 0}
    run = motet.run(method="fedavg", data=data, rounds=1, lr=0.1, out=tmp_path / "run")
    found = motet.audit(run.folder, attacks=["membership"], shadows=0)
    assert not found["figures"] and "178 of 178 rows are training rows" in found["skipped"]["membership"]


def test_what_an_attack_proves_of_epsilon_allows_for_delta() -> None:
    """All 100 members and none of 100 others are found: by hand, log((1 - u - delta) / u) with u = 1 - 0.0125^0.01."""
    members, others, u = np.ones(100), np.zeros(100), 1 - 0.0125 ** (1 / 100)
    for delta in (0.0, 0.1):
        found = membership_figure("", "", "", members, others, delta=delta)
        assert found.more["epsilon_at_least"] == pytest.approx(np.log((1 - u - delta) / u))
    few = membership_figure("", "", "", np.repeat([1.0, 0.0], [100, 900]), np.zeros(1000), delta=0.2)
    assert few.more["epsilon_at_least"] == 0.0, "a tenth of the members may be what delta allows"


def test_the_bound_in_the_picture_has_the_runs_own_delta_and_no_place_at_models_that_it_does_not_cover() -> (
    None
):
    def one(on: str, level: str) -> dict[str, Any]:
        f = {"attack": "LiRA", "on": on, "value": 0.1, "low": 0.0, "high": 0.2}
        return {"figures": [f], "epsilon": 1.0, "delta": 1e-3, "level": level}

    assert "delta 0.001" in pictures_of_audits([("a", one("personal models", "example"))])[0].caption
    assert "most that any" not in pictures_of_audits([("a", one("personal models", "client"))])[0].caption
    assert "most that any" in pictures_of_audits([("a", one("global model", "client"))])[0].caption


def test_what_cannot_be_attacked_is_refused_in_words(tmp_path: Path) -> None:
    run = motet.run(method="local", data="wine", clients=2, rounds=1, out=tmp_path / "run")
    with pytest.raises(UsageError, match="unknown attack"):
        motet.audit(run.folder, attacks=["membershp"])
    with pytest.raises(UsageError, match="shadows is 1; expected 0, or at least 2"):
        motet.audit(run.folder, shadows=1)
    with pytest.raises(FileNotFoundError, match="not a run"):
        motet.audit(tmp_path / "nothing")
    found = motet.audit(run.folder, shadows=0)
    assert {f["on"] for f in found["figures"]} == {
        "personal models"
    }  # local has no average and no global model
    assert "model of the form" in found["skipped"]["inversion"]


def test_an_input_of_a_network_with_torchs_quick_attention_can_be_searched() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))

    task = Task(Attention(), "classes", 2)
    update = task.w0.map(lambda a, _: torch.ones_like(a))
    assert torch.isfinite(inversion.searched(task, task.w0, update, (3, 4))).all()
