"""Stacking: catalogue, stacks and contributions over rounds, and models that must not run."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
import torch

from conftest import make_clients_data
from motet.client import (
    Batch,
    ClientData,
    Column,
    Data,
    Task,
    seed_of,
)
from motet.core import Turn
from motet.engines.driver import play
from motet.engines.loop import Loop
from motet.methods.stacking import Stacking
from motet.published import Published
from motet.stacking import contribution
from motet.stacking.catalogue import digest, fetched
from motet.wire import pack, unpack
from rounds import after, turn


class Counting(Loop):
    """A loop that counts the replies to each verb."""

    def replies(self, ask: Any) -> Any:
        self.asked = [*getattr(self, "asked", []), (ask.verb.__name__, sorted(ask.to))]
        return super().replies(ask)


def federation(many: int = 4, size: int = 60) -> dict[str, ClientData]:
    return make_clients_data([size] * many)


def accuracy(method: Any, engine: Loop, state: Any) -> float:
    _, scores = engine.evaluate(method, state, turn(engine, 0), "test")
    return float(scores["personal"]["accuracy"].mean())


def first(state: Any) -> dict[str, Published]:
    """The first version of everyone's public model."""
    return fetched({c: v[0] for c, v in state["catalogue"].items()})[0]


def test_everyone_publishes_once_and_stacks_again_only_when_models_changed(task: Task) -> None:
    engine = Counting(federation())
    after(Stacking(task), engine, 3)
    assert engine.asked == [("publish", engine.clients), ("stack", engine.clients)]


def test_a_model_of_noise_is_trusted_least(task: Task) -> None:
    clients_data = federation(5, 150)
    h = clients_data["c02"]
    dice = torch.randint(0, 3, (h.n,), generator=torch.Generator().manual_seed(1))
    engine = Loop(clients_data | {"c02": ClientData(Batch.of(h.train.take().x, dice), h.val, h.test)})
    method = Stacking(task, trees=30)
    state = after(method, engine, 1)
    assert all(sum(row.values()) == pytest.approx(1) for row in state["trust"].values())
    given = contribution.in_strength(state["trust"])
    assert min(given, key=given.__getitem__) == "c02"
    assert accuracy(method, engine, state) > 0.6


def test_a_newcomer_publishes_and_stacks_and_the_others_stack_again(task: Task) -> None:
    clients_data = federation(4)
    few = Loop({c: h for c, h in clients_data.items() if c != "c03"})
    method = Stacking(task)
    state = after(method, few, 1)
    engine = Counting(clients_data, few.keeps)
    state = play(engine, method, state, turn(engine, 1))
    assert engine.asked == [("publish", ["c03"]), ("stack", engine.clients)]
    assert set(state["catalogue"]) == set(clients_data) and "c03" in state["trust"]["c00"]


def test_the_model_of_a_client_that_left_is_in_no_stack_of_the_next_round(task: Task) -> None:
    clients_data = federation(4)
    method, full = Stacking(task), Loop(clients_data)
    state = after(method, full, 1)
    engine = Loop({c: h for c, h in clients_data.items() if c != "c03"}, full.keeps)
    state = play(engine, method, state, turn(engine, 1))
    assert "c03" not in state["catalogue"] and "c03" not in state["trust"]
    assert all("c03" not in row for row in state["trust"].values())
    assert all("c03" not in (engine.keeps.get(c) or {})["whom"] for c in engine.clients)


def test_who_lost_a_model_before_its_next_turn_stacks_the_rest_when_it_predicts(task: Task) -> None:
    method, engine = Stacking(task), Loop(federation(3))
    state = after(method, engine, 1)
    gone = state | {"catalogue": {c: m for c, m in state["catalogue"].items() if c != "c02"}}
    assert 0 < accuracy(method, engine, gone) <= 1


class Mallory(Loop):
    """c01's public model is changed on its way."""

    change: Any

    def perform(self, verb: Any, client: str, sent: Any, keep: Any, data: Any) -> Any:
        reply, after = super().perform(verb, client, sent, keep, data)
        if client == "c01" and getattr(verb, "__name__", "") == "publish":
            reply = self.change(Published.from_tree(reply[0]))
        return reply, after


def cut_off(model: Published) -> Any:
    return [replace(model, model=model.model[:-9]).tree()]


def no_onnx(model: Published) -> Any:
    raw = b"\x07" * 50
    claims = replace(model.manifest, size=50, sha256=hashlib.sha256(raw).hexdigest())
    return [Published(claims, raw).tree()]


@pytest.mark.parametrize("change", [cut_off, no_onnx])
def test_a_bad_model_is_refused_by_its_owners_name_and_the_stacks_go_on(task: Task, change: Any) -> None:
    method, engine = Stacking(task), Mallory(federation(3))
    engine.change = change
    state = after(method, engine, 1)
    assert state["refused"]["c01"].startswith("client c01: ")
    assert "c01" not in state["trust"]["c00"] and "c02" in state["trust"]["c00"]
    assert method.summary(state)["refused"] == state["refused"]
    assert accuracy(method, engine, state) > 0.4


@pytest.mark.parametrize("words", [{"manifest": 1, "model": 2}, {"nothing": 0}])
def test_what_is_no_model_is_left_out_and_named(words: dict[str, int]) -> None:
    models, wrong = fetched({"mallory": {k: torch.zeros(v) for k, v in words.items()}})
    assert models == {} and wrong["mallory"].startswith("client mallory: ")


def test_a_budget_of_bytes_limits_what_is_served(task: Task) -> None:
    method, engine = Stacking(task, trees=5), Loop(federation(5))
    state = after(method, engine, 1)
    sizes = sorted(len(m[0]["model"]) for m in state["catalogue"].values())
    small = replace(method, budget=(sizes[-1] + sizes[-2]) / 1e6)
    menu = small.download(state, "c00")
    assert 1 <= len(menu) < 4 and "c00" not in menu
    assert sum(len(m["model"]) for m in menu.values()) <= sizes[-1] + sizes[-2]


def test_who_contributes_too_little_is_served_nothing_and_still_has_a_model(task: Task) -> None:
    method, engine = Stacking(task, trees=5, threshold=0.9), Loop(federation(4))
    state = after(method, engine, 3)
    served = [c for c in engine.clients if method.download(state, c)]
    assert served == contribution.served(state["trust"], engine.clients, 0.9)
    assert 0 < len(served) < 4
    assert 0 < accuracy(method, engine, state) <= 1


def test_auto_takes_the_variant_that_scores_better_on_validation_rows(task: Task) -> None:
    for variant in ("held-out", "pooled", "auto"):
        method, engine = Stacking(task, trees=5, variant=variant), Loop(federation(3))
        assert accuracy(method, engine, after(method, engine, 1)) > 0.4


@pytest.mark.parametrize("how", ["permutation", "shapley"])
def test_other_importances_sum_to_one_too(task: Task, how: Any) -> None:
    state = after(Stacking(task, trees=5, meta="linear", importance=how), Loop(federation(3)), 1)
    assert all(sum(row.values()) == pytest.approx(1) for row in state["trust"].values())


@pytest.mark.parametrize("family", ["boosting", "linear"])
def test_other_families_are_published_and_stacked(task: Task, family: Any) -> None:
    method, engine = Stacking(task, trees=10, public=family, private=family), Loop(federation(3))
    state = after(method, engine, 1)
    assert first(state)["c00"].manifest.family != "RandomForestClassifier"
    assert accuracy(method, engine, state) > 0.4


def numbers() -> tuple[Task, dict[str, ClientData]]:
    g = torch.Generator().manual_seed(3)

    def rows(many: int) -> Batch:
        x = torch.randn(many, 3, generator=g)
        return Batch.of(x, x[:, 0] - 2 * x[:, 1])

    task = Task(torch.nn.Linear(3, 1), "numbers", 1)
    return task, {f"c{k}": ClientData(rows(150), rows(10), rows(50)) for k in range(3)}


def test_numbers_are_predicted_too() -> None:
    task, clients_data = numbers()
    method, engine = Stacking(task, trees=30), Loop(clients_data)
    _, scores = engine.evaluate(method, after(method, engine, 1), turn(engine, 0), "test")
    assert (scores["personal"]["r2"] > 0.7).all()


def test_columns_that_a_client_lacks_are_not_in_its_models(task: Task) -> None:
    names = [Column(f"f{k}") for k in range(6)]
    clients_data = {}
    for k, (c, h) in enumerate(federation(3).items()):
        columns = tuple(replace(n, here=i % 3 != k) for i, n in enumerate(names))
        here = torch.tensor([n.here for n in columns]).float()
        clients_data[c] = ClientData(
            *(Batch(b.x * here, b.y, b.live) for b in (h.train, h.val, h.test)), columns
        )
    method, engine = Stacking(task), Loop(clients_data)
    state = after(method, engine, 1)
    read = {c: m.manifest.names for c, m in first(state).items()}
    assert read["c00"] == ("f1", "f2", "f4", "f5") and read["c01"] == ("f0", "f2", "f3", "f5")
    assert accuracy(method, engine, state) > 0.4


def test_metrics_and_summary_come_from_the_state_alone(task: Task) -> None:
    method, engine = Stacking(task, trees=5), Loop(federation(3))
    state = unpack(pack(after(method, engine, 1)))
    found = method.metrics(state)
    assert found["models"] == 3 and 0 < found["self_importance"] < 1 and found["free_riders"] == 0
    assert set(method.summary(state)["trust"]) == set(engine.clients)
    assert digest(method.download(state, "c00")) == state["stacked"]["c00"]


def test_a_client_of_one_class_takes_the_mean_of_all_models(task: Task) -> None:
    clients_data = federation(3)
    h = clients_data["c00"]
    one = ClientData(Batch.of(h.train.x[:20], torch.ones(20, dtype=torch.int64)), h.val, h.test)
    method, engine = Stacking(task), Loop(clients_data | {"c00": one})
    state = after(method, engine, 1)
    keep: Any = engine.keeps.get("c00")
    assert keep["meta"] == () and state["trust"]["c00"]["c01"] == pytest.approx(1 / 3)
    model = method.personal(method.download(state, "c00"), keep, data_of(one))
    assert torch.allclose(model(h.test.x).exp().sum(1), torch.ones(len(h.test.x)), atol=1e-4)


def data_of(client_data: ClientData) -> Data:
    train = client_data.train.take()
    return Data(
        train.x, train.y, torch.tensor(client_data.n), torch.tensor(seed_of(0, "c00")), client_data.val.take()
    )


def test_a_round_in_which_nobody_takes_part_changes_no_model(task: Task) -> None:
    method, engine = Stacking(task, trees=5), Loop(federation(3))
    state = after(method, engine, 1)
    again = play(engine, method, state, Turn(1, [], engine.clients, 5))
    assert again["trust"] == state["trust"]


def test_who_contributes_more_is_served_a_version_with_more_privacy_budget(task: Task) -> None:
    pytest.importorskip("opacus")
    clients_data = federation(3, 120)
    method, engine = Stacking(task, trees=5, public="dp-linear", epsilon=0.5, versions=3), Loop(clients_data)
    state = after(method, engine, 1)
    trust = {"c00": {"c01": 0.9, "c02": 0.1}, "c01": {"c02": 1.0}, "c02": {"c01": 1.0}}
    earned = {}
    for c in clients_data:
        served, _ = fetched(method.download(state | {"trust": trust}, c))
        earned[c] = {m.manifest.privacy.epsilon for m in served.values()}
    assert all(len(e) == 1 for e in earned.values())
    budget = {c: e.pop() or 0 for c, e in earned.items()}
    assert budget["c00"] == pytest.approx(0.5, rel=0.1) and budget["c01"] == pytest.approx(8, rel=0.1)
    assert accuracy(method, engine, state) > 0.3


def test_clients_publish_and_stack_side_by_side(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two clients waits in both verbs for the other one; one after another they would wait in vain."""
    from threading import Barrier

    from motet.engines.choose import choose
    from motet.engines.threads import Threads

    both, build, public = Barrier(2, timeout=60), Stacking.build, Stacking.public_models

    def meet(function: Any) -> Any:
        def met(*given: Any) -> Any:
            both.wait()
            return function(*given)

        return met

    clients = federation(2)
    method = Stacking(task, trees=2)
    choice = choose("auto", method.task, clients, 1, method=method)
    assert choice.name == "threads"
    monkeypatch.setattr(Stacking, "build", meet(build))
    monkeypatch.setattr(Stacking, "public_models", meet(public))
    engine = Threads(clients, workers=2)
    state = after(method, engine, 1)
    assert set(state["stacked"]) == set(engine.clients)


def test_what_stacks_are_compared_with_does_not_depend_on_the_reported_round(task: Task) -> None:
    engine = Loop(federation())
    method = Stacking(task, trees=3)
    state = after(method, engine, 2)
    found = [
        engine.evaluate(method, state, turn(engine, k), "test", ("alone", "pooled", "held-out"))[1]
        for k in (1, 1, 5)
    ]
    for side in ("alone", "pooled", "held-out"):
        losses = [f[side]["loss"].tolist() for f in found]
        assert losses[0] == losses[1] == losses[2]


def test_a_run_s_record_has_the_history_of_all_rounds_also_of_those_after_the_reported_one(
    task: Task,
) -> None:
    method = Stacking(task, trees=3, public_of=("c01: nothing",))
    states = [after(method, Loop(federation()), k) for k in (1, 4)]
    record = method.record(*states)
    assert len(record["history"]) == 4 and record["trust"] == states[0]["trust"]
    assert record["free_riders"] == ["c01"] and method.metrics(states[0])["free_riders"] == 1
