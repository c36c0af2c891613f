"""FedPerC and PFA: what they become in the limits, who is in which group, and who comes late."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from motet.client import Batch, ClientData, Task, seed_of
from motet.core import MethodUnfit, NoReply, Turn, average
from motet.engines.driver import play, start, training
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.engines.wrappers.hostile import Hostile
from motet.methods.fedavg import FedAvg
from motet.methods.fedper import FedPer
from motet.methods.fedperc import FedPerC
from motet.methods.local import Local
from motet.methods.pfa import PFA
from motet.parts import clusters
from motet.vec import Vec
from motet.wire import pack, unpack
from rounds import after, apart, one_number, turn

ENGINES = [Loop, Vmap, partial(Threads, workers=2)]
engines = pytest.mark.parametrize("engine", ENGINES, ids=["loop", "vmap", "threads"])
both = pytest.mark.parametrize("method", [PFA, FedPerC])
WARM, ROUNDS = 2, 3


def from_here(task: Task, w: Vec) -> Task:
    """The same task, where everyone starts from w."""
    moved = copy.copy(task)
    moved.w0 = w
    return moved


def going_on(method: Any, engine: Any) -> Any:
    """The state after the rounds that follow the warm-up, with their numbers and seeds."""
    state = method.start(turn(engine, -1))
    for t in range(WARM, WARM + ROUNDS):
        state = play(engine, method, state, turn(engine, t))
    return state


def kinds(each: int = 4, kinds: int = 3) -> tuple[dict[str, ClientData], list[int]]:
    """Clients of clearly different kinds: each kind's examples lie in a direction of its own."""
    g = torch.Generator().manual_seed(0)

    def some(kind: int, many: int) -> Batch:
        x = 0.3 * torch.randn(many, 6, generator=g)
        x[:, 2 * kind : 2 * kind + 2] += 2
        return Batch.of(x, torch.randint(0, 3, (many,), generator=g))

    truth = [i % kinds for i in range(each * kinds)]
    return {
        f"c{i:02}": ClientData(some(k, 20 + i), some(k, 5), some(k, 5)) for i, k in enumerate(truth)
    }, truth


@pytest.fixture(scope="module")
def net() -> Task:
    torch.manual_seed(3)
    layers = [nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3)]
    return Task(nn.Sequential(*layers), "classes", 3)


# ---- limits ----


@engines
@pytest.mark.parametrize(
    "how", [{"k": 1}, {"grouping": "none"}, {"grouping": "threshold", "threshold": 99.0}]
)
def test_with_one_group_fedperc_is_fedper_from_the_same_global_model(
    engine: Any, how: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    here, there = engine(clients_data), engine(clients_data)
    s = after(FedPerC(task, warm_up=WARM, **how), here, WARM + ROUNDS)
    w = after(FedAvg(task), engine(clients_data), WARM)
    assert apart(s["w"], w) == 0 and len(s["models"]) == 1
    body = going_on(FedPer(from_here(task, w)), there)
    assert apart(s["models"][0], body) == 0
    assert all(apart(here.keeps.get(c), there.keeps.get(c)) == 0 for c in clients_data)


@engines
def test_with_everyone_alone_fedperc_trains_the_global_model_on_at_home(
    engine: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    here, there = engine(clients_data), engine(clients_data)
    method = FedPerC(task, warm_up=WARM, grouping="threshold", threshold=0.0)
    s = after(method, here, WARM + ROUNDS)
    assert sorted(s["members"].values()) == list(range(12))
    going_on(Local(from_here(task, s["w"])), there)
    for c in clients_data:
        (w,) = method.personal(method.download(s, c), here.keeps.get(c), None).args
        assert apart(w, there.keeps.get(c)) < 1e-6  # groups of one are stacked by themselves


@engines
def test_with_one_group_pfa_is_fedavg(engine: Any, task: Task, clients_data: dict[str, ClientData]) -> None:
    s = after(PFA(task, warm_up=WARM, k=1), engine(clients_data), WARM + ROUNDS)
    assert apart(s["models"][0], after(FedAvg(task), engine(clients_data), WARM + ROUNDS)) == 0
    assert apart(s["w"], after(FedAvg(task), engine(clients_data), WARM)) == 0


@both
def test_a_group_is_a_federation_of_its_own(method: Any, net: Task) -> None:
    clients_data, truth = kinds()
    s = after(method(net, warm_up=0, k=3), Loop(clients_data), ROUNDS)
    for g in range(3):
        own = {c: h for (c, h), kind in zip(clients_data.items(), truth, strict=True) if kind == g}
        alone = after(method(net, warm_up=0, k=1), Loop(own), ROUNDS)
        assert apart(s["models"][g], alone["models"][0]) == 0


# ---- phases ----


@both
def test_warming_up_is_fedavg_and_everyone_has_the_global_model(
    method: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    m, engine = method(task, warm_up=5), Loop(clients_data)
    s = after(m, engine, 3)
    w = after(FedAvg(task), Loop(clients_data), 3)
    assert s["phase"] == 0 and not s["members"] and apart(m.global_model(s), w) == 0
    (own,) = m.personal(m.download(s, "c00"), engine.keep("c00"), None).args
    assert apart(own, w) == 0


@engines
@both
def test_a_pause_between_groupings_changes_nothing(method: Any, engine: Any, net: Task) -> None:
    clients_data, _ = kinds()
    m = method(net, warm_up=1, k=3, epsilon=5.0)
    whole, first = engine(clients_data), engine(clients_data)
    expected = after(m, whole, 4)
    s = unpack(pack(after(m, first, 2)))
    for t in (2, 3):
        s = play(first, m, s, turn(first, t))
    assert s["members"] == expected["members"] and torch.equal(s["centres"], expected["centres"])
    assert max(apart(a, b) for a, b in zip(s["models"], expected["models"], strict=True)) == 0


@both
def test_rounds_in_groups_begin_with_training(method: Any, net: Task) -> None:
    clients_data, _ = kinds()
    m, engine = method(net, warm_up=1, k=3), Loop(clients_data)
    asks = training(m, after(m, engine, 2), turn(engine, 2))
    assert sorted(c for a in asks for c in a.to) == sorted(clients_data) and len(asks) == 3
    names, sums = engine.evaluate_trained(m, asks, turn(engine, 2))
    assert sorted(names) == sorted(clients_data) and bool(torch.isfinite(sums["val"]["loss"]).all())


@both
def test_in_the_warm_up_local_scores_are_of_the_trained_model(method: Any, net: Task) -> None:
    clients_data, _ = kinds()
    m, plain, engine = method(net, warm_up=3), FedAvg(net), Loop(clients_data)
    found = engine.evaluate_trained(m, training(m, after(m, engine, 1), turn(engine, 1)), turn(engine, 1))[1]
    asks = training(plain, after(plain, Loop(clients_data), 1), turn(engine, 1))
    assert torch.equal(
        found["test"]["loss"],
        Loop(clients_data).evaluate_trained(plain, asks, turn(engine, 1))[1]["test"]["loss"],
    )


# ---- groups ----


@engines
@both
@pytest.mark.parametrize(
    "how",
    [{"k": 3}, {"k": 0}, {"grouping": "threshold", "threshold": 1.0}, {"k": 3, "distance": "mahalanobis"}],
)
def test_kinds_of_clients_are_found(engine: Any, method: Any, how: Any, net: Task) -> None:
    clients_data, truth = kinds()
    s = after(method(net, warm_up=1, **how), engine(clients_data), 2)
    assert clusters.agreement(np.array(list(s["members"].values())), np.array(truth)) == 1.0


def test_noise_hides_the_kinds_if_there_is_enough_of_it(net: Task) -> None:
    clients_data, truth = kinds()
    found = {}
    for epsilon in (0.01, 100.0):
        s = after(PFA(net, warm_up=0, k=3, epsilon=epsilon), Loop(clients_data), 1)
        assert s["centres"].min() >= 0 and s["centres"].max() <= 1
        found[epsilon] = clusters.agreement(np.array(list(s["members"].values())), np.array(truth))
    assert found[100.0] == 1.0 and found[0.01] < 0.5


def test_with_mahalanobis_distance_only_a_mean_more_is_learned_and_newcomers_use_the_same_ruler(
    net: Task,
) -> None:
    clients_data, truth = kinds()
    m, engine = PFA(net, warm_up=0, k=3, distance="mahalanobis", epsilon=300.0, reach=2.0), Loop(clients_data)
    talk = m.round(m.start(turn(engine, -1)), turn(engine, 0))
    asked = next(talk)
    engine.begin(m, turn(engine, 0))
    assert (asked.verb.__name__, asked.learn) == ("sketch", "all")
    (then,) = talk.send(engine.ask(asked))
    assert (then.verb.__name__, then.learn) == ("spread", "mean")
    assert talk.send([None]) == []  # nobody says how its examples differ: there are no groups to train in
    with pytest.raises(StopIteration) as ended:
        talk.send([])
    assert ended.value.value["phase"] == 0 and not ended.value.value["members"]
    early = [c for c in clients_data if c != "c07"]
    s = play(engine, m, m.start(turn(engine, -1)), few(engine, 0, early))
    later = play(engine, m, s, few(engine, 1, ["c07"]))
    assert torch.equal(later["ruler"], s["ruler"]) and later["members"]["c07"] == s["members"]["c01"]
    assert truth[7] == truth[1]


@engines
@both
def test_trials_of_how_many_groups_leave_clients_as_they_were(engine: Any, method: Any, net: Task) -> None:
    clients_data, _ = kinds()
    tried = after(method(net, warm_up=1, k=0, choose="trials"), here := engine(clients_data), 3)
    k = len(tried["models"])
    same = after(method(net, warm_up=1, k=k), there := engine(clients_data), 3)
    assert tried["members"] == same["members"]
    assert max(apart(a, b) for a, b in zip(tried["models"], same["models"], strict=True)) == 0
    if method is FedPerC:
        assert all(apart(here.keeps.get(c), there.keeps.get(c)) == 0 for c in clients_data)


def test_trials_choose_what_half_of_the_clients_do_best_with(net: Task) -> None:
    heard = []

    class Two(PFA):
        def tried(self, s: Any, teams: dict[str, int]) -> Any:
            heard.append(teams)
            yield []
            return abs(len(set(teams.values())) - 2)

    clients_data, _ = kinds()
    assert len(after(Two(net, warm_up=0, k=0, choose="trials"), Loop(clients_data), 1)["models"]) == 2
    assert {len(teams) for teams in heard} == {6} and len({tuple(teams) for teams in heard}) == 1


def opposites() -> tuple[dict[str, ClientData], list[int]]:
    """Clients whose examples look alike, half of whom call yes what the others call no."""
    g = torch.Generator().manual_seed(0)

    def some(flip: int, many: int) -> Batch:
        x = torch.randn(many, 6, generator=g)
        return Batch.of(x, (x[:, 0] > 0).long() ^ flip)

    truth = [i % 2 for i in range(8)]
    return {f"c{i}": ClientData(some(k, 40), some(k, 20), some(k, 5)) for i, k in enumerate(truth)}, truth


@engines
@both
def test_who_does_better_elsewhere_moves_if_it_may(engine: Any, method: Any, net: Task) -> None:
    clients_data, truth = opposites()
    found = []
    for move in (0, 1):
        m, e = method(net, warm_up=0, k=2, move=move, lr=0.3, epochs=2), engine(clients_data)
        s = play(e, m, start(e, m, turn(e, -1)), turn(e, 0))
        wrong = dict(zip(clients_data, [0, 1, 0, 1, 0, 1, 1, 0], strict=True))  # the last two are exchanged
        s = s | {"members": wrong, "models": [s["models"][0]] * 2}
        for t in range(1, 5):
            s = play(e, m, s, turn(e, t))
        found.append(clusters.agreement(np.array(list(s["members"].values())), np.array(truth)))
    assert found[0] < 1 and found[1] == 1


def test_who_has_no_validation_examples_stays(net: Task) -> None:
    clients_data, _ = opposites()
    none = {
        c: ClientData(h.train, Batch.of(h.val.x[:0], h.val.y[:0]), h.test) for c, h in clients_data.items()
    }
    s = after(PFA(net, warm_up=0, grouping="random", k=2, move=1), engine := Loop(none), 2)
    assert play(engine, PFA(net, k=2, move=1), s, turn(engine, 2))["members"] == s["members"]


@both
@pytest.mark.parametrize("how", [{"k": 3}, {"grouping": "none"}])
def test_a_report_is_told_groups_and_where_sketches_lie(method: Any, how: Any, net: Task) -> None:
    clients_data, truth = kinds()
    m = method(net, warm_up=1, **how)
    assert m.record(after(m, Loop(clients_data), 1)) == {"groups": {}}
    told = json.loads(json.dumps(m.record(after(m, Loop(clients_data), 2))))
    assert sorted(told["groups"]) == sorted(clients_data) and ("places" in told) == ("k" in how)
    if "k" in how:
        assert told["silhouette"] > 0.5 and 0.5 < told["share"] <= 1 and len(told["places"]["c00"]) == 2


def test_an_extractor_that_comes_with_weights_is_not_trained(net: Task) -> None:
    def build(words: str) -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 50), nn.ReLU(), nn.Linear(50, 3))

    seeing = Task(net.net, "classes", 3, build=build)
    clients_data, _ = kinds()
    for words, still in (("mlp weights=some.safetensors", True), ("mlp", False)):
        s = after(PFA(seeing, warm_up=2, k=3, extractor=words), Loop(clients_data), 2)
        assert (apart(s["eye"], seeing.other(words).w0) == 0) == still


def test_random_groups_send_no_sketch_and_are_of_one_size(net: Task) -> None:
    clients_data, _ = kinds()
    s = after(FedPerC(net, warm_up=1, grouping="random", k=3), Loop(clients_data), 2)
    assert s["centres"].shape == (3, 0)
    assert np.bincount(list(s["members"].values())).tolist() == [4, 4, 4]


@engines
@both
def test_another_network_can_be_listened_to_and_is_trained_beside(
    engine: Any, method: Any, net: Task
) -> None:
    clients_data, truth = kinds()

    def build(name: str) -> nn.Module:
        torch.manual_seed(len(name))
        return nn.Sequential(nn.Linear(6, 50), nn.ReLU(), nn.Linear(50, 3))

    seeing = Task(net.net, "classes", 3, build=build)
    s = after(method(seeing, warm_up=2, k=3, extractor="mlp"), engine(clients_data), 3)
    assert apart(s["eye"], after(FedAvg(seeing.other("mlp")), engine(clients_data), 2)) == 0
    assert apart(s["w"], after(FedAvg(net), engine(clients_data), 2)) == 0
    assert s["centres"].shape == (3, 32)
    assert clusters.agreement(np.array(list(s["members"].values())), np.array(truth)) == 1.0


def test_an_extractor_that_cannot_be_built_is_named(net: Task) -> None:
    with pytest.raises(MethodUnfit, match="method.extractor: nobody said how to build 'vgg11'"):
        PFA(net, extractor="vgg11").start(None)  # type: ignore[arg-type]


# ---- who comes late, and who is lost ----


def few(engine: Any, number: int, clients: list[str]) -> Turn:
    return Turn(number, clients, engine.clients, seed_of(0, number))


@engines
@pytest.mark.parametrize("method", [PFA, FedPerC])
def test_a_newcomer_is_sketched_joins_and_trains_in_its_first_round(
    engine: Any, method: Any, net: Task
) -> None:
    clients_data, truth = kinds()
    m, e = method(net, warm_up=0, k=3), engine(clients_data)
    early = [c for c in clients_data if c != "c07"]
    s = play(e, m, start(e, m, turn(e, -1)), few(e, 0, early))
    assert "c07" not in s["members"] and e.keeps.get("c07") is None
    (arrived,) = m.personal(m.download(s, "c07"), e.keep("c07"), None).args
    assert apart(arrived, s["w"]) == 0
    after_it = play(e, m, s, few(e, 1, ["c07"]))
    group = after_it["members"]["c07"]
    assert group == s["members"]["c01"] and truth[7] == truth[1]
    assert [apart(a, b) > 0 for a, b in zip(after_it["models"], s["models"], strict=True)] == [
        g == group for g in range(3)
    ]
    assert torch.equal(after_it["centres"], s["centres"])


@both
def test_of_a_visit_only_the_group_stays(method: Any, net: Task) -> None:
    clients_data, truth = kinds()
    seen = {c: h for c, h in clients_data.items() if c not in ("c07", "c08")}
    m, engine = method(net, warm_up=1, k=3), Loop({c: clients_data[c] for c in ("c07", "c08")})
    s = after(m, Loop(seen), 3)
    met = m.after_visit(s, play(engine, m, s, turn(engine, 3)))
    assert met["members"] == s["members"] | {"c07": truth[7], "c08": truth[8]}
    assert met["models"] is s["models"] and met["w"] is s["w"]
    (w,) = m.personal(m.view(met, "c07"), engine.keep("c07"), None).args
    assert apart(w.drop(net.head), s["models"][truth[7]].drop(net.head)) == 0
    warm = after(m, Loop(seen), 1)
    assert m.after_visit(warm, play(engine, m, warm, turn(engine, 1))) is warm


@both
def test_a_client_that_spoils_its_replies_is_borne_even_alone(method: Any, net: Task) -> None:
    clients_data, _ = kinds()
    m, engine = method(net, warm_up=0, k=3), Loop(clients_data)
    s = play(engine, m, start(engine, m, turn(engine, -1)), turn(engine, 0))
    spoilt = Hostile(engine, ["c00"], "nan")
    kept = play(spoilt, m, s, few(engine, 1, ["c00", "c01"]))  # c00 alone of its group
    assert apart(kept["models"][0], s["models"][0]) == 0 and apart(kept["models"][1], s["models"][1]) > 0
    stranger = s | {"members": {c: g for c, g in s["members"].items() if c != "c00"}}
    left = play(spoilt, m, stranger, few(engine, 1, ["c00", "c01"]))  # a stranger, whose sketch is nan
    assert "c00" not in left["members"]


def test_where_no_group_sends_anything_that_can_be_used_training_has_diverged(net: Task) -> None:
    clients_data, _ = kinds()
    with pytest.raises(NoReply, match="(?s)replies is finite.*hint: training diverged"):
        after(PFA(net, warm_up=0, k=3, lr=1e30), Loop(clients_data), 1)


def test_one_ask_without_an_answer_leaves_the_others_theirs(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    class Two(FedAvg):
        def round(self, w: Any, turn: Turn) -> Any:
            return (yield [average(self.train, some, send=w) for some in ([], turn.cohort)])

    nothing, mean = after(Two(task), Loop(clients_data), 1)
    assert nothing is None and apart(mean, after(FedAvg(task), Loop(clients_data), 1)) == 0


# ---- what cannot be ----


@both
def test_a_network_of_one_layer_is_refused(method: Any) -> None:
    with pytest.raises(
        MethodUnfit, match="one layer has none.\nhint: use a network with more than one layer"
    ):
        method(one_number()).start(None)
    method(one_number(), grouping="none").start(None)


def test_random_groups_want_their_number(task: Task) -> None:
    with pytest.raises(MethodUnfit, match="hint: say method.k=4"):
        PFA(task, grouping="random", k=0).start(None)  # type: ignore[arg-type]


def test_noise_that_would_promise_nothing_is_refused(task: Task) -> None:
    local = copy.copy(task)
    local.statistics = "local"
    with pytest.raises(MethodUnfit, match="(?s)epsilon is 1,.*hint: net.norm=group"):
        replace(PFA(local), epsilon=1.0).start(None)  # type: ignore[arg-type]
