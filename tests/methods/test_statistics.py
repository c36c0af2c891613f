"""BatchNorm's statistics in methods: whoever compares, measures or averages models has those that clients use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from motet.client import Batch, ClientData, Task
from motet.client.batchnorm import statistics
from motet.engines.loop import Loop
from motet.methods.feddbe import FedDBE
from motet.methods.fedpac import FedPAC
from motet.methods.fedproto import FedProto
from motet.methods.fedsoft import FedSoft
from motet.methods.knnper import KNNPer
from motet.methods.pfedme import PFedMe
from motet.methods.superfed import SuPerFed
from motet.parts.several_models import other_start
from motet.runs.recipe import method_class
from motet.vec import Vec
from rounds import after

SHIFT = torch.tensor([4.0, -3.0, 2.0, 5.0, -6.0, 3.0])  # far from the initial statistics, which are 0 and 1


def task(policy: str) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    net.statistics = policy  # type: ignore[assignment]
    return Task(net, "classes", 3)


@pytest.fixture
def far(clients_data: dict[str, ClientData]) -> dict[str, ClientData]:
    def moved(b: Any) -> Batch:
        return Batch(b.x + SHIFT, b.y, b.live)

    return {c: ClientData(moved(d.train), moved(d.val), moved(d.test)) for c, d in clients_data.items()}


def feature(w: Vec, x: torch.Tensor, among: torch.Tensor) -> torch.Tensor:
    """Features of x, normalised by the statistics of other rows."""
    z, rows = (some @ w["0.weight"].T + w["0.bias"] for some in (x, among))
    return torch.tanh((z - rows.mean(0)) / (rows.var(0) + 1e-5).sqrt() * w["1.weight"] + w["1.bias"])


# ---- local statistics ----


@pytest.mark.parametrize("make", [FedProto, FedPAC])
def test_prototypes_are_of_features_as_the_client_predicts_with_them(
    make: Any, far: dict[str, ClientData]
) -> None:
    method, here = make(task("local")), Loop(far)
    after(method, here, 1)
    own, data = here.keeps.get("c07"), here.data("c07")
    x, y = far["c07"].train.x, far["c07"].train.y
    sent = after(method, Loop(far), 0)
    sent = sent["body"] if make is FedPAC else sent
    f = feature(method.own_model(sent, own), x, x)
    reply, _ = method.prototypes(sent, own, data)
    for k in range(3):
        torch.testing.assert_close(reply["sums"][k], f[y == k].sum(0) / len(y), atol=1e-5, rtol=0)


def test_mean_features_of_feddbe_are_those_that_the_client_predicts_with(far: dict[str, ClientData]) -> None:
    method, here = FedDBE(task("local")), Loop(far)
    after(method, here, 1)
    x, w = far["c07"].train.x, method.task.w0
    found, _ = method.mean_features(w, (), here.data("c07"))
    torch.testing.assert_close(found, feature(w, x, x).mean(0), atol=1e-5, rtol=0)


def losses(models: list[Vec], d: ClientData) -> torch.Tensor:
    """Of each example and model, as the client would predict."""
    x, y = d.train.x, d.train.y
    scores = [feature(w, x, x) @ w["3.weight"].T + w["3.bias"] for w in models]
    return torch.stack([nn.functional.cross_entropy(z, y, reduction="none") for z in scores], -1)


@pytest.mark.parametrize("name", ["ifca", "fedper+ifca"])
def test_a_client_chooses_a_model_by_the_statistics_that_it_predicts_with(
    name: str, far: dict[str, ClientData]
) -> None:
    method, here = method_class(name)(task("local"), k=4), Loop(far)
    s = after(method, here, 1)
    models = s if name == "ifca" else s["models"]
    for c in far:
        keep, data = here.keeps.get(c) or method.join(here.data(c)), here.data(c)
        found = method.choice(models, data) if name == "ifca" else method.nearest(models, keep, data)[0]
        whole = models if name == "ifca" else [Vec(w | keep) for w in models]
        assert int(found.argmax()) == int(losses(whole, far[c]).mean(0).argmin()), c


def test_shares_of_fedsoft_are_measured_with_the_statistics_that_a_client_predicts_with(
    far: dict[str, ClientData],
) -> None:
    method, here = FedSoft(task("local")), Loop(far)
    models = after(method, here, 2)
    u = (-losses(models, far["c07"]) / 0.1).softmax(-1).mean(0).clamp(min=0.01)
    torch.testing.assert_close(method.shares(models, here.data("c07")), u / u.sum(), atol=1e-5, rtol=0)


def test_the_share_of_neighbours_is_chosen_with_the_statistics_that_a_client_predicts_with(
    far: dict[str, ClientData],
) -> None:
    method, here = KNNPer(task("local")), Loop(far)
    w = after(method, here, 3)
    for c in far:
        own = method.task.at_home(method.personal(w, (), here.data(c)), here.data(c))
        val, (_, store, share) = far[c].val, own.args
        costs = [
            method.task.per_example_loss(own.func(own.args[0], store, torch.tensor(s / 10), val.x), val.y)
            for s in range(11)
        ]
        best = min(range(11), key=lambda s: float(costs[s].mean()))
        assert float(share) == pytest.approx(best / 10), c


# ---- averaged statistics ----


def test_the_shared_model_of_pfedme_has_the_statistics_that_batches_left_in_theta(
    far: dict[str, ClientData],
) -> None:
    method, one = PFedMe(task("averaged"), epochs=3), {"c07": far["c07"]}
    here = Loop(one)
    w, theta = after(method, here, 2), here.keeps.get("c07")
    for k in statistics(w):
        assert torch.equal(w[k], theta[k]) and not torch.allclose(w[k], method.task.w0[k], atol=0.1)


@pytest.mark.parametrize(
    "setting", ["scaffold server_lr", "reptile server_lr", "fedrecon server_lr", "pfedme beta"]
)
def test_statistics_are_the_mean_however_far_the_server_goes(
    setting: str, far: dict[str, ClientData]
) -> None:
    name, field = setting.split()
    found = [method_class(name)(task("averaged"), **{field: s}) for s in (1.0, 30.0)]
    near, beyond = (after(m, Loop(far), 1) for m in found)
    near, beyond = (s["x"] if name == "scaffold" else s for s in (near, beyond))
    assert all(torch.allclose(near[k], beyond[k], atol=1e-6) for k in statistics(near))
    assert not torch.allclose(near["0.weight"], beyond["0.weight"], atol=1e-3)


def test_superfeds_cosine_is_of_weights_alone() -> None:
    t = task("averaged")
    w, v = t.w0, other_start(t.w0, 1)
    rows = Batch.of(torch.randn(9, 6, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 3)
    given = (w, torch.tensor(0.0), torch.tensor(1.0))
    costs = [SuPerFed(t, nu=nu, mu=0.0).on_the_way(Vec.join(w=w, v=v), rows, given) for nu in (1.0, 0.0)]
    a, b = (torch.cat([u[k].flatten() for k in u if k not in statistics(u)]) for u in (w, v))
    assert float(costs[0] - costs[1]) == pytest.approx(float(torch.cosine_similarity(a, b, 0) ** 2), abs=1e-5)
