"""FedProto, FedDBE, FENDA-FL, kNN-Per and SuPerFed: features, prototypes and second models, by hand and in limits.

Networks of two numbers are head * body * x, both 1 at the start. Client a has one example (1, 3), client b three
examples (2, 0); lr is 0.1.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from motet.client import Batch, Task
from motet.core import MethodUnfit
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.methods.fedcp import FedCP
from motet.methods.feddbe import FedDBE
from motet.methods.fedproto import FedProto
from motet.methods.fedprox import FedProx
from motet.methods.fenda import FENDA
from motet.methods.gpfl import GPFL
from motet.methods.knnper import KNNPer
from motet.methods.local import Local
from motet.methods.superfed import SuPerFed
from motet.parts.prototypes import blank, by_class, distance_to, joined
from motet.parts.several_models import other_start
from motet.runs.build import resolve
from motet.runs.recipe import RecipeError, read
from motet.vec import Vec
from rounds import TWO, after, apart, one_number

engines = pytest.mark.parametrize("engine", [Loop, Vmap])


def two_numbers() -> Task:
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    for p in net.parameters():
        nn.init.constant_(p, 1.0)
    return Task(net, "numbers", 1)


def number(tree: Any) -> float:
    (value,) = tree.values()
    return float(value)


# ---- prototypes ----


def test_prototypes_are_means_over_all_examples_of_a_class_and_a_class_that_nobody_has_keeps_none() -> None:
    # Two clients with 1 and 3 rows: class 0 has features 1 | 2 and 3, class 1 has none | 5; nobody has class 2.
    replies = []
    for z, y in (([[1.0]], [0]), ([[2.0], [3.0], [5.0]], [0, 0, 1])):
        sums, counts = by_class(torch.tensor(z), Batch.of(torch.zeros(len(y), 1), torch.tensor(y)), 3)
        replies.append((sums / len(y), counts / len(y)))
    mean = {
        "sums": (replies[0][0] + 3 * replies[1][0]) / 4,
        "counts": (replies[0][1] + 3 * replies[1][1]) / 4,
    }
    old = {"C": torch.tensor([[9.0], [9.0], [9.0]]), "known": torch.tensor([0.0, 0.0, 0.0])}
    found = joined(old, mean)
    assert found["C"].flatten().tolist() == pytest.approx([2.0, 5.0, 9.0]) and found["known"].tolist() == [
        1,
        1,
        0,
    ]
    far = distance_to(torch.tensor([[4.0], [4.0]]), torch.tensor([0, 2]), found)
    assert far.tolist() == [4.0, 0.0]


def test_fedproto_without_a_pull_is_local_training(task: Any, clients_data: Any) -> None:
    here, alone = Loop(clients_data), Loop(clients_data)
    C = after(FedProto(task, lam=0.0), here, 2)
    after(Local(task), alone, 2)
    assert apart(here.keeps.get("c07"), alone.keeps.get("c07")) < 1e-6
    assert C["C"].shape == (3, 8) and C["known"].tolist() == [1, 1, 1]


def test_a_round_of_fedproto_is_the_mean_over_the_features_of_trained_models(
    task: Any, clients_data: Any
) -> None:
    here = Loop(clients_data)
    C = after(FedProto(task), here, 1)
    z, y = [], []
    for c in here.clients:
        rows = clients_data[c].train
        z.append(task.predict_from(here.keeps.get(c), rows.x)[1])
        y.append(rows.y)
    expected = torch.stack([torch.cat(z)[torch.cat(y) == k].mean(0) for k in range(3)])
    assert torch.allclose(C["C"], expected, atol=1e-5)


def test_fedproto_predicts_the_nearest_prototype_and_never_a_class_without_one(task: Any) -> None:
    method, x = FedProto(task), torch.zeros(1, 6)
    z = task.predict_from(task.w0, x)[1]
    C = {"C": torch.cat([z + 1, z + 0.1, z]), "known": torch.tensor([1.0, 1.0, 0.0])}
    scores = method.nearest(task.w0, C, x)[0]
    assert scores.tolist() == pytest.approx([-8, -0.08, -18], abs=1e-4)
    assert torch.equal(method.nearest(task.w0, blank(task), x), task.predict(task.w0, x))


def test_noise_is_as_large_as_features_may_be_and_they_are_cut_to_that(task: Any, clients_data: Any) -> None:
    method = FedProto(task).bounded(0.5)
    assert method.feature_clip == 0.5 and FedProto(task, feature_clip=0.2).bounded(0.5).feature_clip == 0.2
    here = Loop(clients_data)
    after(FedProto(task), here, 1)
    data = here.data("c09")
    reply, _ = method.prototypes((), task.w0, data)
    assert float(reply["sums"].abs().max()) <= 0.5
    found = method.noised("prototypes", (), reply, torch.ones)
    assert torch.allclose(found["sums"] - reply["sums"], torch.full((3, 8), 0.5))
    assert torch.allclose(found["counts"] - reply["counts"], torch.ones(3))


@pytest.mark.parametrize("method", ["fedproto", "gpfl", "knnper"])
@pytest.mark.parametrize(("data", "kind"), [("diabetes", "numbers"), ("tcga_brca", "times of survival")])
def test_methods_about_classes_refuse_other_targets_before_training(
    method: str, data: str, kind: str
) -> None:
    with pytest.raises(RecipeError, match=rf"method {method} and .*: .*and the targets are {kind}\.\nhint: "):
        resolve(read(words=[f"data={data}", f"method={method}", "net=mlp"]))


@pytest.mark.parametrize("method", [FedCP, FedProto, FENDA, GPFL])
def test_methods_that_need_features_refuse_a_network_of_one_layer(method: Any) -> None:
    with pytest.raises(MethodUnfit, match=r"this network is all head\.\nhint: .*net=mlp"):
        method(one_number()).check()


# ---- FedDBE ----


@engines
def test_a_round_of_feddbe_by_hand(engine: Any) -> None:
    # head (body x + p): a's residual -2 has slopes -4 in head, body and p; b's residual 2 has 8, 8 and 4.
    # p: 0.4 and -0.4. Head and body: (1.4 + 3 * 0.2) / 4 = 0.5. Mean features then: (0.5 + 3 * 1) / 4 = 0.875.
    here = engine(TWO)
    s = after(FedDBE(two_numbers(), lr=0.1, batch=4), here, 1)
    assert [float(v) for v in s["w"].values()] == pytest.approx([0.5, 0.5])
    assert [number(here.keeps.get(c)) for c in "ab"] == pytest.approx([0.4, -0.4])
    assert float(s["z"]) == pytest.approx(0.875) and bool(s["known"])


def test_feddbes_mean_features_are_measured_once_and_then_held(task: Any, clients_data: Any) -> None:
    first, third = (after(FedDBE(task), Loop(clients_data), rounds) for rounds in (1, 3))
    assert torch.equal(first["z"], third["z"]) and apart(first["w"], third["w"]) > 0
    batch, own = clients_data["c06"].train, Vec(p=torch.zeros(8))
    both = Vec.join(w=task.w0, own=own)
    mean = task.predict_from(task.w0, batch.x)[1].mean(0)
    off, on = (FedDBE(task).without_bias(both, batch, (mean + 2.0, torch.tensor(k))) for k in (0.0, 3.0))
    assert float(off) == pytest.approx(float(task.loss(task.w0, batch)), abs=1e-6)
    assert float(on - off) == pytest.approx(3 * 4.0, abs=1e-4)


# ---- FENDA-FL ----


def test_a_step_of_fenda_by_hand() -> None:
    # All four numbers 1: the score is 2 and the residual -1, so that each slope is -2 and each number goes to 1.2.
    method, here = FENDA(two_numbers(), lr=0.1, batch=4), Loop(TWO)
    after(method, here, 1)
    one = Vec({"1.weight": torch.ones(1, 1)})
    body = Vec({"0.weight": torch.ones(1, 1)})
    reply, keep = method.train(body, {"head": one, "own": Vec(body | one)}, here.data("a"))
    assert number(reply) == number(keep["head"]) == pytest.approx(1.2)
    assert [float(v) for v in keep["own"].values()] == pytest.approx([1.2, 1.2])
    predict = method.personal(reply, keep, here.data("a"))
    assert float(predict(torch.tensor([[2.0]]))) == pytest.approx(4 * 1.44)


def test_fenda_sends_the_body_alone(task: Any, clients_data: Any) -> None:
    assert list(after(FENDA(task), Loop(clients_data), 1)) == list(task.body)


# ---- kNN-Per ----


def test_votes_of_neighbours_by_hand(task: Any) -> None:
    # Two nearest of 0: at 0 (class 0) and at 1 (class 1); mean distance 0.5: votes 1 and e^-2.
    store = {"z": torch.tensor([[0.0], [1.0], [10.0]]), "y": torch.tensor([0, 1, 1]), "live": torch.ones(3)}
    votes = KNNPer(task, neighbours=2).votes(torch.tensor([[0.0]]), store)[0]
    total = 1 + math.exp(-2)
    assert votes.tolist() == pytest.approx([1 / total, math.exp(-2) / total, 0])


def test_without_a_share_of_neighbours_knnper_is_its_global_model(task: Any, clients_data: Any) -> None:
    here, method = Loop(clients_data), KNNPer(task)
    w = after(method, here, 1)
    predict = method.personal(w, (), here.data("c08"))
    x = clients_data["c08"].test.x
    alone = method.mixed(w, predict.args[1], torch.tensor(0.0), x)
    assert torch.allclose(alone, task.predict(w, x).log_softmax(-1).clamp(min=math.log(1e-4)), atol=1e-5)
    assert 0 <= float(predict.args[2]) <= 1 and len(predict.args[1]["y"]) == clients_data["c08"].n


# ---- SuPerFed ----


def test_superfed_first_trains_the_shared_model_as_fedprox_does(task: Any, clients_data: Any) -> None:
    here = Loop(clients_data)
    w = after(SuPerFed(task, first=9, mu=0.3), here, 2)
    assert apart(w, after(FedProx(task, mu=0.3), Loop(clients_data), 2)) < 1e-6
    assert apart(here.keeps.get("c03"), other_start(task.w0, 1)) < 1e-6
    after(SuPerFed(task, first=1), here, 2)
    assert apart(here.keeps.get("c03"), other_start(task.w0, 1)) > 1e-3


def test_superfeds_loss_by_hand() -> None:
    # w 1, v 3, lambda 0.25: the mixture 1.5 has the loss 2.25 at (1, 3). Sent 0, mu 2: 1. The cosine is 1, nu 0.5: 0.5.
    method = SuPerFed(one_number(), mu=2.0, nu=0.5)
    w, v, sent = (Vec(weight=torch.tensor([[x]])) for x in (1.0, 3.0, 0.0))
    batch = Batch.of(torch.ones(1, 1), torch.tensor([3.0]))
    loss = method.on_the_way(Vec.join(w=w, v=v), batch, (sent, torch.tensor(0.25), torch.tensor(1.0)))
    assert float(loss) == pytest.approx(2.25 + 1 + 0.5)


# ---- FedCP and GPFL ----


def test_fedcp_divides_features_between_two_heads() -> None:
    # One feature of 1: LayerNorm makes of two outputs a and b the numbers 1 and -1 (or 0 and 0), so that r is
    # e / (e + 1/e) where a > b. Global head 2, personal head 3: 2 r + 3 (1 - r).
    method, w = FedCP(two_numbers()), two_numbers().w0
    policy = Vec(weight=torch.tensor([[2.0], [1.0]]), bias=torch.zeros(2))
    u = Vec.join(w=Vec(w | {"1.weight": torch.tensor([[3.0]])}), policy=policy)
    scores, f = method.scores_from(
        u, Vec({"1.weight": torch.tensor([[2.0]])}), torch.ones(1), torch.ones(1, 1)
    )
    r = math.e / (math.e + 1 / math.e)
    assert float(f) == 1 and float(scores) == pytest.approx(2 * r + 3 * (1 - r), abs=1e-3)


def test_a_policy_without_a_preference_takes_the_mean_of_both_heads(task: Any) -> None:
    method, x = FedCP(task), torch.ones(2, 6)
    policy = Vec(weight=torch.zeros(16, 8), bias=torch.zeros(16))
    head = task.w0.pick(task.head)
    scores, f = method.scores_from(Vec.join(w=task.w0, policy=policy), head, method.condition(head), x)
    assert torch.allclose(scores, 2 * task.top(head, f / 2), atol=1e-6)


def test_the_global_head_of_fedcp_is_the_mean_of_personal_heads(task: Any, clients_data: Any) -> None:
    same = {c: clients_data[c] for c in ("c05", "c06")}
    here = Loop(same)
    w, _ = after(FedCP(task), here, 1).split("w", "policy")
    n = [same[c].n for c in same]
    heads = [here.keeps.get(c) for c in same]
    mean = (n[0] * heads[0] + n[1] * heads[1]) / sum(n)
    assert apart(w.pick(task.head), mean) < 1e-6


def test_gpfls_losses_by_hand() -> None:
    # One feature: the valve's normalisation of one number gives 0, so that features stay: f = 2. Class embeddings 1 and
    # -1: cosines 1 and -1, angle log(1 + e^-2). Place (2 - 1)^2. Scores of the head (1, -1): 2 and -2.
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False))
    task = Task(net, "classes", 2)
    layer = Vec(weight=torch.ones(1, 1), bias=torch.zeros(1), scale=torch.ones(1))
    E = torch.tensor([[1.0], [-1.0]])
    body, head = Vec({"0.weight": torch.ones(1, 1)}), Vec({"1.weight": torch.tensor([[1.0], [-1.0]])})
    u = Vec.join(body=body, embeddings=Vec(E=E), gamma=layer, beta=layer, head=head)
    batch = Batch.of(torch.tensor([[2.0]]), torch.tensor([0]))
    loss = GPFL(task, lam=0.5).guided(u, batch, (E, E.mean(0), E[0]))
    expected = math.log(1 + math.exp(-4)) + math.log(1 + math.exp(-2)) + 0.5 * 1
    assert float(loss) == pytest.approx(expected, abs=1e-5)


def test_gpfl_sends_all_but_the_head_and_knows_its_shares_of_classes(task: Any, clients_data: Any) -> None:
    here, method = Loop(clients_data), GPFL(task)
    shared = after(method, here, 1)
    assert not any(k.startswith("head") for k in shared) and set(here.keeps.get("c03")) == set(task.head)
    y = clients_data["c03"].train.y
    shares = method.shares(here.data("c03"))
    assert shares.tolist() == pytest.approx([float((y == k).float().mean()) for k in range(3)])
