"""FedPAC: statistics, mixtures of heads and alignment by hand, and its limits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from motet.client import Batch, ClientData, Task
from motet.engines.loop import Loop
from motet.methods.fedpac import FedPAC, pooled
from motet.methods.fedrep import FedRep
from motet.parts.head_mixtures import mixtures
from motet.vec import Vec
from rounds import after, apart


def one_feature() -> Task:
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False))
    nn.init.constant_(net[0].weight, 1.0)
    return Task(net, "classes", 2)


def holding(x: list[float], y: list[int]) -> ClientData:
    rows = Batch.of(torch.tensor(x)[:, None], torch.tensor(y))
    return ClientData(rows, rows, rows)


# ---- mixtures of heads ----


def test_two_clients_mix_by_bias_and_variance_by_hand() -> None:
    # Client 0, weight a of client 1: (3 a)^2 + 1 (1 - a)^2 + 2 a^2, slope 18 a - 2 (1 - a) + 4 a: a = 2 / 24.
    # Client 1, weight b of client 0: (3 b)^2 + 1 b^2 + 2 (1 - b)^2, slope 20 b - 4 (1 - b): b = 4 / 24.
    alpha = mixtures(torch.tensor([[1.0], [4.0]]), torch.tensor([1.0, 2.0]))
    assert alpha.flatten().tolist() == pytest.approx([22 / 24, 2 / 24, 4 / 24, 20 / 24])


def test_clients_without_chance_use_their_own_heads_and_equal_ones_share_by_certainty() -> None:
    far = mixtures(torch.tensor([[0.0, 1.0], [5.0, 0.0], [0.0, 9.0]]), torch.full((3,), 1e-9))
    assert torch.allclose(far, torch.eye(3, dtype=torch.float64), atol=1e-6)
    same = mixtures(torch.ones(3, 4), torch.tensor([1.0, 2.0, 4.0]))  # by 1 / v
    assert torch.allclose(same, torch.tensor([4.0, 2.0, 1.0]).double().div(7).expand(3, 3), atol=1e-6)


def test_no_other_mixture_is_better() -> None:
    g = torch.Generator().manual_seed(0)
    h, v = torch.randn(6, 10, generator=g).double(), torch.rand(6, generator=g).double() + 0.1
    alpha = mixtures(h, v)
    assert torch.all(alpha >= 0) and torch.allclose(alpha.sum(1), torch.ones(6).double())

    def cost(a: Any, i: int) -> Any:
        return (h[i] - a @ h).square().sum(-1) + (a.square() * v).sum(-1)

    others = torch.distributions.Dirichlet(torch.full((6,), 0.5).double()).sample((2000,))
    assert all(cost(alpha[i], i) <= cost(others, i).min() + 1e-9 for i in range(6))


# ---- statistics, by hand ----


def test_features_their_shares_and_their_variance_by_hand() -> None:
    # Class 0 has the features 1 and 3, class 1 has 5: h = (4 / 3, 5 / 3), E|z|^2 = 35 / 3, |h|^2 = 41 / 9,
    # so that V = (35 / 3 - 41 / 9) / 3.
    task = one_feature()
    method, here = FedPAC(task), Loop({"a": holding([1.0, 3.0, 5.0], [0, 0, 1])})
    s = after(method, here, 0)
    reply, _ = method.prototypes(s["body"], task.w0.pick(task.head), here.data("a"))
    assert reply["sums"].flatten().tolist() == pytest.approx([4 / 3, 5 / 3])
    assert float(reply["v"]) == pytest.approx(64 / 27, rel=1e-5) and float(reply["n"]) == 3


def test_centroids_count_examples_and_not_clients() -> None:
    few = {"sums": torch.tensor([[1.0], [0.0]]), "counts": torch.tensor([1.0, 0.0]), "n": torch.tensor(1.0)}
    many = {"sums": torch.tensor([[5.0], [0.0]]), "counts": torch.tensor([1.0, 0.0]), "n": torch.tensor(3.0)}
    assert pooled({"a": few, "b": many})["sums"].flatten().tolist() == pytest.approx([4.0, 0.0])


def test_the_body_is_held_near_the_centroids_of_classes() -> None:
    # Feature 2 of x = 2, centroid 5 of its class: 9, three times.
    task = one_feature()
    batch = Batch.of(torch.tensor([[2.0]]), torch.tensor([1]))
    C = {"C": torch.tensor([[0.0], [5.0]]), "known": torch.ones(2)}
    given = (task.w0.pick(task.head), C)
    far = FedPAC(task, lam=3.0).aligned(task.w0.drop(task.head), batch, given) - task.loss(task.w0, batch)
    assert float(far) == pytest.approx(27.0, abs=1e-4)


# ---- rounds ----


def test_with_one_client_and_no_pull_it_is_fedrep(task: Task, clients_data: dict[str, ClientData]) -> None:
    one = {"c05": clients_data["c05"]}
    here, plain = Loop(one), Loop(one)
    s = after(FedPAC(task, lam=0.0, head_epochs=2), here, 3)
    body = after(FedRep(task, head_epochs=2), plain, 3)
    assert apart(s["body"], body) < 1e-6
    assert apart(s["heads"]["c05"], plain.keeps.get("c05")) < 1e-6


def test_a_round_gives_each_client_the_mixture_of_the_heads_that_were_trained(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    method, here = FedPAC(task), Loop(clients_data)
    s = after(method, here, 1)
    data = {c: here.data(c) for c in here.clients}
    replies = [
        method.prototypes(task.w0.drop(task.head), task.w0.pick(task.head), data[c])[0] for c in here.clients
    ]
    alpha = mixtures(
        torch.stack([r["sums"].flatten() for r in replies]), torch.stack([r["v"] for r in replies])
    )
    i = here.clients.index("c07")
    weight = next(k for k in task.head if k.endswith("weight"))
    trained = torch.stack([here.keeps.get(c)[weight] for c in here.clients])
    expected = torch.tensordot(alpha[i].float(), trained, dims=1)
    assert torch.allclose(s["heads"]["c07"][weight], expected, atol=1e-5)
    assert torch.allclose(method.download(s, "c07")[weight], expected, atol=1e-5)
    assert torch.allclose(method.download(s, "nobody")[weight], trained.mean(0), atol=1e-5)


def test_noise_of_the_variance_is_as_large_as_one_example_may_count() -> None:
    task = one_feature()
    method = FedPAC(task).bounded(0.5)
    reply = {
        "sums": torch.zeros(2, 1),
        "counts": torch.zeros(2),
        "v": torch.tensor(1.0),
        "n": torch.tensor(4.0),
    }
    found = method.noised("prototypes", (), reply, torch.ones)
    assert float(found["v"]) == pytest.approx(1 + 0.25 / 4) and float(found["n"]) == 4
    assert set(found) == set(reply) and isinstance(task.w0, Vec)
