"""Groups of clients: how they are found, who comes late, and what is refused."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from grouped_clients import ENGINES, both, engines_and_both, few, kinds, opposites, three_layers
from motet.client import Batch, ClientData, Task
from motet.core import MethodUnfit, NoReply, Turn, average
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.wrappers.hostile import Hostile
from motet.methods.fedavg import FedAvg
from motet.methods.fedperc import FedPerC
from motet.methods.pfa import PFA
from motet.parts import clusters
from motet.runs.method_asks import asks_in
from rounds import after, apart, one_number, turn


@pytest.fixture(scope="module")
def net() -> Task:
    return three_layers()


@pytest.mark.parametrize(
    ("engine", "how"),
    [
        *((engine, {"k": 3}) for engine in ENGINES),
        (Loop, {"k": 3, "distance": "euclidean", "extractor_join": "mean"}),
        (Loop, {"k": 0, "distance": "euclidean"}),
        (
            Loop,
            {"grouping": "threshold", "threshold": 1.0, "distance": "euclidean", "extractor_join": "mean"},
        ),
    ],
)
def test_clients_of_different_kinds_get_different_groups(engine: Any, how: Any, net: Task) -> None:
    clients_data, truth = kinds()
    s = after(FedPerC(net, warm_up=1, **how), engine(clients_data), 2)
    assert clusters.agreement(np.array(list(s["groups"].values())), np.array(truth)) == 1.0


def test_enough_noise_hides_the_kinds(net: Task) -> None:
    clients_data, truth = kinds()
    found = {}
    for epsilon in (0.01, 100.0):
        as_published = {"distance": "euclidean", "extractor_join": "mean"}
        s = after(PFA(net, warm_up=0, k=3, epsilon=epsilon, **as_published), Loop(clients_data), 1)
        assert s["centres"].min() >= 0 and s["centres"].max() <= 1
        found[epsilon] = clusters.agreement(np.array(list(s["groups"].values())), np.array(truth))
    assert found[100.0] == 1.0 and found[0.01] < 0.5


def test_with_mahalanobis_distance_the_server_learns_one_more_mean_and_late_clients_use_the_same_matrix(
    net: Task,
) -> None:
    clients_data, truth = kinds()
    m, engine = (
        PFA(net, warm_up=0, k=3, distance="mahalanobis", epsilon=300.0, vector_clip=2.0),
        Loop(clients_data),
    )
    talk = m.round(m.start(turn(engine, -1)), turn(engine, 0))
    asked = next(talk)
    engine.begin(m, turn(engine, 0))
    assert (asked.verb.__name__, asked.learn) == ("sparsity", "all")
    (then,) = talk.send(engine.ask(asked))
    assert (then.verb.__name__, then.learn) == ("second_moments", "mean")
    assert talk.send([None]) == []  # nobody says how its examples differ: there are no groups to train in
    with pytest.raises(StopIteration) as ended:
        talk.send([])
    assert not ended.value.value["models"] and not ended.value.value["groups"]
    early = [c for c in clients_data if c != "c07"]
    s = play(engine, m, m.start(turn(engine, -1)), few(engine, 0, early))
    later = play(engine, m, s, few(engine, 1, ["c07"]))
    assert torch.equal(later["whitening"], s["whitening"]) and later["groups"]["c07"] == s["groups"]["c01"]
    assert truth[7] == truth[1]


@engines_and_both
def test_trials_of_k_leave_clients_as_they_were(engine: Any, method: Any, net: Task) -> None:
    clients_data, _ = kinds()
    tried = after(method(net, warm_up=1, k=0, choose_k="trials"), here := engine(clients_data), 3)
    k = len(tried["models"])
    same = after(method(net, warm_up=1, k=k), there := engine(clients_data), 3)
    assert tried["groups"] == same["groups"]
    assert max(apart(a, b) for a, b in zip(tried["models"], same["models"], strict=True)) == 0
    if method is FedPerC:
        assert all(apart(here.keeps.get(c), there.keeps.get(c)) == 0 for c in clients_data)


def test_trials_choose_the_k_with_the_least_loss_of_half_of_the_clients(net: Task) -> None:
    tried = []

    class Two(PFA):
        def trial(self, s: Any, groups: dict[str, int]) -> Any:
            tried.append(groups)
            yield []
            return abs(len(set(groups.values())) - 2)

    clients_data, _ = kinds()
    assert len(after(Two(net, warm_up=0, k=0, choose_k="trials"), Loop(clients_data), 1)["models"]) == 2
    assert {len(groups) for groups in tried} == {6} and len({tuple(groups) for groups in tried}) == 1


@engines_and_both
def test_a_client_moves_to_a_better_group_if_regrouping_is_on(engine: Any, method: Any, net: Task) -> None:
    clients_data, truth = opposites()
    found = []
    for every in (0, 1):
        m, e = method(net, warm_up=0, k=2, regroup_every=every, lr=0.3, epochs=2), engine(clients_data)
        s = play(e, m, start(e, m, turn(e, -1)), turn(e, 0))
        wrong = dict(zip(clients_data, [0, 1, 0, 1, 0, 1, 1, 0], strict=True))  # the last two are exchanged
        s = s | {"groups": wrong, "models": [s["models"][0]] * 2}
        for t in range(1, 5):
            s = play(e, m, s, turn(e, t))
        found.append(clusters.agreement(np.array(list(s["groups"].values())), np.array(truth)))
    assert found[0] < 1 and found[1] == 1


def test_a_client_without_validation_examples_stays_in_its_group(net: Task) -> None:
    clients_data, _ = opposites()
    none = {
        c: ClientData(h.train, Batch.of(h.val.x[:0], h.val.y[:0]), h.test) for c, h in clients_data.items()
    }
    s = after(PFA(net, warm_up=0, grouping="random", k=2, regroup_every=1), engine := Loop(none), 2)
    assert play(engine, PFA(net, k=2, regroup_every=1), s, turn(engine, 2))["groups"] == s["groups"]


@both
@pytest.mark.parametrize("how", [{"k": 3}, {"grouping": "none"}])
def test_the_summary_holds_groups_and_places_of_vectors(method: Any, how: Any, net: Task) -> None:
    clients_data, truth = kinds()
    m = method(net, warm_up=1, **how)
    assert m.summary(after(m, Loop(clients_data), 1)) == {"groups": {}}
    summary = json.loads(json.dumps(m.summary(after(m, Loop(clients_data), 2))))
    assert sorted(summary["groups"]) == sorted(clients_data) and ("places" in summary) == ("k" in how)
    if "k" in how:
        assert (
            summary["silhouette"] > 0.3 and 0.3 < summary["share"] <= 1 and len(summary["places"]["c00"]) == 2
        )


@pytest.fixture
def two_nets() -> Task:
    """The same task, which can also build a second network."""

    def build(name: str) -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 50), nn.ReLU(), nn.Linear(50, 3))

    return three_layers(build=build)


def test_an_extractor_that_comes_with_weights_is_not_trained(two_nets: Task) -> None:
    clients_data, _ = kinds()
    for name, fixed in (("mlp weights=some.safetensors", True), ("mlp", False)):
        s = after(PFA(two_nets, warm_up=2, k=3, extractor=name), Loop(clients_data), 2)
        assert (apart(s["extractor"], two_nets.other(name).w0) == 0) == fixed


def test_random_groups_need_no_vectors_and_are_of_one_size(net: Task) -> None:
    clients_data, _ = kinds()
    s = after(FedPerC(net, warm_up=1, grouping="random", k=3), Loop(clients_data), 2)
    assert s["centres"].shape == (3, 0)
    assert np.bincount(list(s["groups"].values())).tolist() == [4, 4, 4]


@engines_and_both
def test_an_extractor_is_trained_beside_the_global_model_and_measures_the_vectors(
    engine: Any, method: Any, net: Task, two_nets: Task
) -> None:
    clients_data, truth = kinds()
    s = after(method(two_nets, warm_up=2, k=3, extractor="mlp"), engine(clients_data), 3)
    assert apart(s["extractor"], after(FedAvg(two_nets.other("mlp")), engine(clients_data), 2)) == 0
    assert apart(s["W_g"], after(FedAvg(net), engine(clients_data), 2)) == 0
    assert s["centres"].shape == (3, 32)
    assert clusters.agreement(np.array(list(s["groups"].values())), np.array(truth)) == 1.0


def test_an_extractor_that_cannot_be_built_is_named(net: Task) -> None:
    with pytest.raises(MethodUnfit, match="method.extractor: nobody said how to build 'vgg11'"):
        PFA(net, extractor="vgg11").start(None)  # type: ignore[arg-type]


# ---- late clients, and unusable replies ----


@engines_and_both
def test_a_late_client_joins_a_group_and_trains_in_its_first_round(
    engine: Any, method: Any, net: Task
) -> None:
    clients_data, truth = kinds()
    m, e = method(net, warm_up=0, k=3), engine(clients_data)
    early = [c for c in clients_data if c != "c07"]
    s = play(e, m, start(e, m, turn(e, -1)), few(e, 0, early))
    assert "c07" not in s["groups"] and e.keeps.get("c07") is None
    (arrived,) = m.personal(m.download(s, "c07"), e.keep("c07"), None).args
    assert apart(arrived, s["W_g"]) == 0
    after_it = play(e, m, s, few(e, 1, ["c07"]))
    group = after_it["groups"]["c07"]
    assert group == s["groups"]["c01"] and truth[7] == truth[1]
    assert [apart(a, b) > 0 for a, b in zip(after_it["models"], s["models"], strict=True)] == [
        g == group for g in range(3)
    ]
    assert torch.equal(after_it["centres"], s["centres"])


@both
def test_a_client_with_unusable_replies_does_no_harm_even_alone_in_its_group(method: Any, net: Task) -> None:
    clients_data, _ = kinds()
    m, engine = method(net, warm_up=0, k=3), Loop(clients_data)
    s = play(engine, m, start(engine, m, turn(engine, -1)), turn(engine, 0))
    spoilt = Hostile(engine, ["c00"], "nan")
    kept = play(spoilt, m, s, few(engine, 1, ["c00", "c01"]))  # c00 alone of its group
    assert apart(kept["models"][0], s["models"][0]) == 0 and apart(kept["models"][1], s["models"][1]) > 0
    new = s | {"groups": {c: g for c, g in s["groups"].items() if c != "c00"}}
    left = play(spoilt, m, new, few(engine, 1, ["c00", "c01"]))  # a new client, whose vector is nan
    assert "c00" not in left["groups"]


def test_if_no_group_sends_a_usable_reply_training_has_diverged(net: Task) -> None:
    clients_data, _ = kinds()
    with pytest.raises(
        NoReply, match="(?s)diverged in round 1.*replies is finite.*hint: try a smaller method.lr"
    ):
        after(PFA(net, warm_up=0, k=3, lr=1e30), Loop(clients_data), 1)


def test_one_ask_without_an_answer_does_not_disturb_the_others(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    class Two(FedAvg):
        def round(self, w: Any, turn: Turn) -> Any:
            return (yield [average(self.train, some, send=w) for some in ([], turn.cohort)])

    nothing, mean = after(Two(task), Loop(clients_data), 1)
    assert nothing is None and apart(mean, after(FedAvg(task), Loop(clients_data), 1)) == 0


# ---- what is refused ----


@both
def test_a_network_of_one_layer_is_refused(method: Any) -> None:
    with pytest.raises(
        MethodUnfit, match="one layer has none.\nhint: use a network with more than one layer"
    ):
        method(one_number()).start(None)
    method(one_number(), grouping="none").start(None)


def test_random_groups_without_a_number_are_refused(task: Task) -> None:
    with pytest.raises(MethodUnfit, match="hint: method.k=4"):
        PFA(task, grouping="random", k=0).start(None)  # type: ignore[arg-type]


def test_noise_that_would_guarantee_nothing_is_refused(task: Task) -> None:
    local = copy.copy(task)
    local.statistics = "local"
    with pytest.raises(MethodUnfit, match="(?s)epsilon is 1,.*hint: net.norm=group"):
        replace(PFA(local), epsilon=1.0).start(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("grouping", ["kmeans", "random"])
def test_regrouping_with_local_statistics_is_refused(grouping: Any, task: Task) -> None:
    local = copy.copy(task)
    local.statistics = "local"
    with pytest.raises(MethodUnfit, match="(?s)regroup_every is 2,.*hint: method.regroup_every=0"):
        PFA(local, grouping=grouping, regroup_every=2).start(None)  # type: ignore[arg-type]


@both
def test_a_site_can_read_every_ask_of_grouping_from_the_methods_text(method: Any) -> None:
    assert set(asks_in(method)) == {
        ("train", "average"),
        ("train_extractor", "average"),
        ("sparsity", "collect"),
        ("second_moments", "average"),
        ("validation_loss", "average"),
        ("best_group", "collect"),
    }
