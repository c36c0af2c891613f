"""FedProto, FedDBE, FENDA-FL, kNN-Per and SuPerFed: features, prototypes and second models, by hand and in limits.

Networks of two numbers are head * body * x, both 1 at the start. Client a has one example (1, 3), client b three
examples (2, 0); lr is 0.1.
"""

from __future__ import annotations

import math
from pathlib import Path
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
from motet.methods.moon import MOON
from motet.methods.perfcl import PerFCL
from motet.methods.superfed import SuPerFed
from motet.parts.features import contrast, squared_mmd
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


def test_fedproto_adds_lam_times_the_distance_to_the_prototype() -> None:
    # Feature 2 of x = 2, prototype 5 of its class: 9 of one feature, 3 times.
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False))
    task = Task(net, "classes", 2)
    w = Vec(task.w0 | {"0.weight": torch.ones(1, 1)})
    batch = Batch.of(torch.tensor([[2.0]]), torch.tensor([1]))
    C = {"C": torch.tensor([[0.0], [5.0]]), "known": torch.ones(2)}
    far = FedProto(task, lam=3.0).near(w, batch, C) - task.loss(w, batch)
    assert float(far) == pytest.approx(27.0, abs=1e-4)


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


@pytest.mark.parametrize("method", ["fedproto", "fedpac", "gpfl", "knnper"])
@pytest.mark.parametrize("kind", ["numbers", "times of survival"])
def test_methods_about_classes_refuse_other_targets_before_training(
    method: str, kind: str, tmp_path: Path
) -> None:
    rows = "\n".join(f"{k},{k % 7 + 1},{k % 2},h{k % 3}" for k in range(60))
    (tmp_path / "stays.csv").write_text(f"age,days,died,hospital\n{rows}\n")
    times = [f"data={tmp_path}/stays.csv", "data.target=days", "data.client=hospital", "data.event=died"]
    words = ["data=diabetes"] if kind == "numbers" else times
    with pytest.raises(RecipeError, match=rf"method {method} and .*: .*and the targets are {kind}\.\nhint: "):
        resolve(read(words=[*words, f"method={method}", "net=mlp"]))


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


def test_knnper_takes_the_share_with_the_least_validation_loss(task: Any, clients_data: Any) -> None:
    here, method = Loop(clients_data), KNNPer(task)
    w = after(method, here, 1)
    for c in ("c08", "c09", "c10"):
        data = here.data(c)
        _, store, share = method.personal(w, (), data).args
        losses = [
            data.val.mean(
                task.per_example_loss(method.mixed(w, store, torch.tensor(s / 10), data.val.x), data.val.y)
            )
            for s in range(11)
        ]
        assert float(share) == pytest.approx(min(range(11), key=lambda s: float(losses[s])) / 10)


# ---- SuPerFed ----


def test_superfed_first_trains_the_shared_model_as_fedprox_does(task: Any, clients_data: Any) -> None:
    here = Loop(clients_data)
    w = after(SuPerFed(task, first=9, mu=0.3), here, 2)
    assert apart(w, after(FedProx(task, mu=0.3), Loop(clients_data), 2)) < 1e-6
    assert apart(here.keeps.get("c03")["v"], other_start(task.w0, 1)) < 1e-6
    after(SuPerFed(task, first=1), here, 2)
    assert apart(here.keeps.get("c03")["v"], other_start(task.w0, 1)) > 1e-3


def test_a_model_that_superfed_has_not_trained_yet_is_in_no_mixture() -> None:
    # At 5 a has the loss 4, and at 3, where v happens to be, 0.
    method, here = SuPerFed(one_number()), Loop(TWO)
    after(FedProx(one_number()), here, 1)
    w, v = (Vec(weight=torch.tensor([[x]])) for x in (5.0, 3.0))
    for trained, expected in ((0.0, 5.0), (1.0, 3.0)):
        keep = {"v": v, "trained": torch.tensor(trained)}
        assert number(method.personal(w, keep, here.data("a")).args[0]) == pytest.approx(expected)
    assert not bool(method.join(here.data("a"))["trained"])


def test_superfeds_loss_by_hand() -> None:
    # w 1, v 3, lambda 0.25: the mixture 1.5 has the loss 2.25 at (1, 3). Sent 0, mu 2: 1. The cosine is 1, nu 0.5: 0.5.
    method = SuPerFed(one_number(), mu=2.0, nu=0.5)
    w, v, sent = (Vec(weight=torch.tensor([[x]])) for x in (1.0, 3.0, 0.0))
    batch = Batch.of(torch.ones(1, 1), torch.tensor([3.0]))
    loss = method.on_the_way(Vec.join(w=w, v=v), batch, (sent, torch.tensor(0.25), torch.tensor(1.0)))
    assert float(loss) == pytest.approx(2.25 + 1 + 0.5)


# ---- FedCP and GPFL ----


def test_fedcp_divides_features_between_two_heads() -> None:
    # One feature of 1: LayerNorm makes of two outputs 2 and 1 the numbers 1 and -1, and ReLU 1 and 0, so that r is
    # e / (e + 1). Global head 2, personal head 3: 2 r + 3 (1 - r).
    method, w = FedCP(two_numbers()), two_numbers().w0
    policy = Vec(
        weight=torch.tensor([[2.0], [1.0]]), bias=torch.zeros(2), scale=torch.ones(2), shift=torch.zeros(2)
    )
    h, g = (Vec({"1.weight": torch.tensor([[number]])}) for number in (3.0, 2.0))
    scores, f = method.scores_from(Vec(w | h), policy, g, torch.ones(1), torch.ones(1, 1))
    r = math.e / (math.e + 1)
    assert float(f) == 1 and float(scores) == pytest.approx(2 * r + 3 * (1 - r), abs=1e-3)


def test_a_policy_without_a_preference_takes_the_mean_of_both_heads(task: Any) -> None:
    method, x = FedCP(task), torch.ones(2, 6)
    policy = Vec(weight=torch.zeros(16, 8), bias=torch.zeros(16), scale=torch.ones(16), shift=torch.zeros(16))
    head = task.w0.pick(task.head)
    scores, f = method.scores_from(task.w0, policy, head, method.condition(head), x)
    assert torch.allclose(scores, 2 * task.top(head, f / 2), atol=1e-6)


def test_the_global_head_of_fedcp_is_the_mean_of_personal_heads(task: Any, clients_data: Any) -> None:
    same = {c: clients_data[c] for c in ("c05", "c06")}
    here = Loop(same)
    w, _ = after(FedCP(task), here, 1).split("w", "policy")
    n = [same[c].n for c in same]
    heads = [here.keeps.get(c) for c in same]
    mean = (n[0] * heads[0] + n[1] * heads[1]) / sum(n)
    assert apart(w.pick(task.head), mean) < 1e-6


def test_a_model_that_fedcp_trained_still_has_the_received_global_head(task: Any, clients_data: Any) -> None:
    here, method = Loop(clients_data), FedCP(task, lr=0.5)
    sent = after(method, here, 1)
    data, h = here.data("c05"), here.keeps.get("c05")
    reply, own = method.train(sent, h, data)
    g, x = sent.split("w")[0].pick(task.head), clients_data["c05"].test.x
    expected = method.scores_from(*reply.split("w", "policy"), g, method.condition(own), x)[0]
    assert torch.equal(method.trained_model(sent, reply, own, data)(x), expected)
    assert not torch.allclose(expected, method.personal(reply, own, data)(x), atol=1e-4)


def test_the_discrepancy_of_two_samples_by_hand() -> None:
    # One real feature each, 0 and 2, so that the squared distance is 4: four kernels, each 1 + 1 - 2 exp(-2 / width).
    live = torch.tensor([1.0, 0.0])
    x, y = torch.tensor([[0.0], [9.0]]), torch.tensor([[2.0], [-7.0]])
    expected = sum(2 - 2 * math.exp(-2 / width) for width in (10, 15, 20, 50))
    assert float(squared_mmd(x, y, live)) == pytest.approx(expected, abs=1e-5)
    # Two of each, 0 and 2 against 1 and 1: within the first half the pairs are 4 apart, across all are 1 apart.
    x, y = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [1.0]])
    widths = (10, 15, 20, 50)
    expected = sum((1 + math.exp(-2 / v)) / 2 + 1 - 2 * math.exp(-0.5 / v) for v in widths)
    assert float(squared_mmd(x, y, torch.ones(2))) == pytest.approx(expected, abs=1e-5)
    assert float(squared_mmd(x, x, torch.ones(2))) == 0


def test_gpfls_losses_by_hand() -> None:
    # One feature: the valve's normalisation of one number gives 0, so that features stay: f = 2. Class embeddings 5 and
    # -1: cosines 1 and -1, angle log(1 + e^-2). Distance 5 - 2. Scores of the head (1, -1): 2 and -2.
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False))
    task = Task(net, "classes", 2)
    layer = Vec(weight=torch.ones(1, 1), bias=torch.zeros(1), scale=torch.ones(1), shift=torch.zeros(1))
    E = torch.tensor([[5.0], [-1.0]])
    body, head = Vec({"0.weight": torch.ones(1, 1)}), Vec({"1.weight": torch.tensor([[1.0], [-1.0]])})
    u = Vec.join(body=body, embeddings=Vec(E=E), gamma=layer, beta=layer, head=head)
    batch = Batch.of(torch.tensor([[2.0]]), torch.tensor([0]))
    loss = GPFL(task, lam=0.5).guided(u, batch, (E, E.mean(0), E[0]))
    expected = math.log(1 + math.exp(-4)) + math.log(1 + math.exp(-2)) + 0.5 * 3
    assert float(loss) == pytest.approx(expected, abs=1e-5)


def test_gpfls_valve_by_hand() -> None:
    # Condition (1, 0) through the unit matrix, ReLU and LayerNorm is (1, -1); gamma, halved and moved by 1: (1.5, 0.5);
    # beta times 0: (0, 0). Features (2, -3) become relu((2.5 * 2, 1.5 * -3)) = (5, 0).
    unit = {"weight": torch.eye(2), "bias": torch.zeros(2)}
    gamma = Vec(unit | {"scale": torch.full((2,), 0.5), "shift": torch.ones(2)})
    beta = Vec(unit | {"scale": torch.zeros(2), "shift": torch.zeros(2)})
    u, f = Vec.join(gamma=gamma, beta=beta), torch.tensor([[2.0, -3.0]])
    turned = GPFL(two_numbers()).turned(u, f, torch.tensor([1.0, 0.0]))
    assert turned[0].tolist() == pytest.approx([5.0, 0.0], abs=1e-3)
    # ReLU comes before LayerNorm: of (-2, -1) it leaves (0, 0).
    turned = GPFL(two_numbers()).turned(u, f, torch.tensor([-2.0, -1.0]))
    assert turned[0].tolist() == pytest.approx([4.0, 0.0], abs=1e-3)


def test_gpfl_sends_all_but_the_head_and_knows_its_shares_of_classes(task: Any, clients_data: Any) -> None:
    here, method = Loop(clients_data), GPFL(task)
    shared = after(method, here, 1)
    assert not any(k.startswith("head") for k in shared) and set(here.keeps.get("c03")) == set(task.head)
    y = clients_data["c03"].train.y
    shares = method.shares(here.data("c03"))
    assert shares.tolist() == pytest.approx([float((y == k).float().mean()) for k in range(3)])


# ---- PerFCL ----


def test_a_contrast_by_hand() -> None:
    # Cosine similarities 1 to what is near and 0 to what is far, temperature 1/2: -log(e^2 / (e^2 + 1)).
    z, far = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    assert float(contrast(z, 5 * z, far, 0.5)) == pytest.approx(math.log(1 + math.exp(-2)))
    assert float(contrast(z, z, z, 0.5)) == pytest.approx(math.log(2))


def test_perfcl_without_contrasts_is_fenda(task: Any, clients_data: Any) -> None:
    here, plain = Loop(clients_data), Loop(clients_data)
    found = after(PerFCL(task, mu=0.0, gamma=0.0), here, 2)
    assert apart(found, after(FENDA(task), plain, 2)) < 1e-6
    assert apart(here.keeps.get("c07")["own"], plain.keeps.get("c07")["own"]) < 1e-6


def test_perfcl_contrasts_shared_features_as_moon_does_and_own_ones_with_what_was_sent(task: Any) -> None:
    w0, head = task.w0, task.w0.pick(task.head)
    shared, sent, last, own, before = (other_start(w0, k) for k in range(1, 6))
    batch = Batch.of(torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 3)
    both, given = Vec.join(shared=shared, own=own), [sent, last, before]

    def loss(**how: float) -> float:
        return float(PerFCL(task, **how).contrasted(both, batch, given))

    plain = loss(mu=0.0, gamma=0.0)
    moon = MOON(task, mu=1.0).contrasted(shared, batch, (sent, last)) - task.loss(shared, batch)
    assert loss(mu=1.0, gamma=0.0) - plain == pytest.approx(float(moon), abs=1e-5)
    apart_from = MOON(task, mu=1.0).contrasted(own, batch, (before, sent)) - task.loss(own, batch)
    assert loss(mu=0.0, gamma=1.0) - plain == pytest.approx(float(apart_from), abs=1e-5)
    assert set(head) <= set(shared)
