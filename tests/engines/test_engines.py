"""Engines: which is chosen and why, memory that stays bounded, keeps that can be gone back to."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from motet.client import Batch, ClientData, Task
from motet.client.visit import MethodFailed
from motet.core import NoReply, Turn, average, collect, verb
from motet.engines.choose import Choice, choose
from motet.engines.client_state import ClientStates
from motet.engines.cores import CORES, cores
from motet.engines.driver import play, start, training
from motet.engines.loop import Loop, VerbFailed, all_finite
from motet.engines.mean import RunningMean
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap, pad_all
from motet.engines.wrappers.counted import Counted
from motet.errors import UsageError
from motet.methods.fedavg import FedAvg
from motet.methods.knnper import KNNPer
from motet.methods.local import Local
from motet.vec import Vec
from motet.wire import size


def turn(engine: Any, number: int = 0) -> Turn:
    return Turn(number, engine.clients, engine.clients, 7)


def test_auto_picks_by_the_network_and_says_why(task: Task, clients_data: dict[str, ClientData]) -> None:
    dense = choose("auto", task, clients_data, steps=lambda _: 10)
    assert dense.name == "vmap" and "dense network" in dense.why and "too few" in dense.why
    conv = Task(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)), "classes", 2)
    assert choose("auto", conv, clients_data, steps=lambda _: 10).name == "threads"
    one = {"c00": clients_data["c00"]}
    assert choose("auto", task, one, steps=lambda _: 10).name == "loop"


@pytest.mark.parametrize("name", ["auto", "ray"])
def test_wide_dense_networks_run_one_client_per_thread(
    clients_data: dict[str, ClientData], name: str
) -> None:
    def chosen(hidden: int) -> tuple[str, str]:
        net = nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.Linear(hidden, 3))
        found = choose(name, Task(net, "classes", 3), clients_data, steps=lambda _: 10)
        return found.inner or found.name, found.why

    assert chosen(256)[0] == "vmap"
    engine, why = chosen(512)
    assert engine == "threads" and "a dense network of 267,779 weights" in why
    assert choose("vmap", wide_task(), clients_data, steps=lambda _: 10).name == "vmap"  # as asked for
    assert choose("auto", wide_task(), {"c00": clients_data["c00"]}, steps=lambda _: 10).name == "loop"


def wide_task() -> Task:
    return Task(nn.Sequential(nn.Linear(6, 40_000), nn.Linear(40_000, 3)), "classes", 3)


def test_methods_of_ordinary_python_run_on_threads(task: Task, clients_data: dict[str, ClientData]) -> None:
    from motet.methods.fedavg import FedAvg
    from motet.methods.stacking import Stacking

    chosen = [
        choose("auto", task, clients_data, steps=lambda _: 10, method=m(task)) for m in (Stacking, FedAvg)
    ]
    assert [c.name for c in chosen] == ["threads", "vmap"] and "ordinary Python" in chosen[0].why


def test_long_runs_are_compiled_if_there_is_a_compiler(
    task: Task, clients_data: dict[str, ClientData], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose("vmap", task, clients_data, steps=lambda _: 10**6).compiled
    assert not choose("vmap", task, clients_data, steps=lambda _: 10**6, compiled="no").compiled
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    without = choose("vmap", task, clients_data, steps=lambda _: 10**6)
    assert not without.compiled and "no C++ compiler" in without.why


def test_a_client_at_a_time_is_compiled_sooner_than_all_together(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    one_by_one = choose("vmap", task, clients_data, steps=lambda _: 6000)
    assert one_by_one.compiled and "all steps of a client as one call" in one_by_one.why
    assert not choose("vmap", task, clients_data, steps=lambda _: 4000).compiled
    features = len(next(iter(clients_data.values())).train.take().x[0])
    wide = torch.nn.Sequential(torch.nn.Linear(features, 40_000), torch.nn.Linear(40_000, task.outputs))
    large = Task(wide, "classes", task.outputs)
    together = choose("vmap", large, clients_data, steps=lambda _: 6000)
    assert not together.compiled and "do not fit into a core's cache" in together.why
    assert choose("vmap", large, clients_data, steps=lambda _: 60_000).compiled


def test_a_chunk_holds_as_many_clients_as_memory_allows(clients_data: dict[str, ClientData]) -> None:
    big = Task(nn.Linear(6, 2_000_000), "classes", 2_000_000)
    assert choose("vmap", big, clients_data, steps=lambda _: 1).chunk == 1


def test_a_mean_is_weighted_and_keeps_its_type() -> None:
    fold = RunningMean()
    fold.add({"a": torch.tensor([1.0, 2.0]), "b": 3}, 1.0)
    fold.add({"a": torch.tensor([4.0, 5.0]), "b": 6}, 2.0)
    mean = fold.mean()
    assert mean["a"].tolist() == [3.0, 4.0] and mean["a"].dtype == torch.float32
    assert float(mean["b"]) == 5.0


def test_replies_of_different_shape_cannot_be_averaged() -> None:
    fold = RunningMean()
    fold.add({"a": torch.zeros(1)}, 1.0)
    with pytest.raises(TypeError, match="differ in shape"):
        fold.add({"b": torch.zeros(1)}, 1.0)


class Odd(FedAvg):
    """Asks what must not be asked, or fails."""

    what: str = "no verb"

    def round(self, w: Any, turn: Turn) -> Any:
        return (yield average(getattr(self, self.what.replace(" ", "_")), turn.cohort, send=w))

    def no_verb(self, w: Any, keep: Any, data: Any) -> Any:
        return w, keep

    @verb(solo=True)
    def breaks(self, w: Any, keep: Any, data: Any) -> Any:
        raise ValueError("something is off")

    @verb
    def infinite(self, w: Any, keep: Any, data: Any) -> Any:
        return w * torch.where(data.n == 20, torch.inf, 1.0), keep

    def join(self, data: Any) -> Any:
        return (torch.zeros(()),)

    @verb
    def counts(self, w: Any, keep: Any, data: Any) -> Any:
        """Counts its calls; after the first one, client c05 has nothing sensible to say."""
        (times,) = keep
        return w * torch.where((data.n == 20) & (times > 0), torch.nan, 1.0), (times + 1,)


@pytest.mark.parametrize("engine", [Loop, Vmap, Threads])
def test_only_verbs_run_at_clients(engine: Any, task: Task, clients_data: dict[str, ClientData]) -> None:
    e = engine(clients_data)
    with pytest.raises(MethodFailed, match="not a verb"):
        play(e, Odd(task), start(e, Odd(task), turn(e, -1)), turn(e))


@pytest.mark.parametrize("engine", [Loop, Vmap, Threads])
def test_a_failure_names_client_verb_and_round(
    engine: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    e = engine(clients_data)
    with pytest.raises(VerbFailed, match="client c00, verb breaks, round 4: something is off"):
        play(e, Odd(task, what="breaks"), task.w0, turn(e, 3))


@pytest.mark.parametrize("engine", [Loop, Vmap, partial(Vmap, chunk=1), Threads])
def test_a_reply_that_is_not_finite_is_left_out_and_its_client_named(
    engine: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    e, method = engine(clients_data), Odd(task, what="infinite")
    state = play(e, method, task.w0, turn(e))
    assert e.refused == [("c05", "infinite", 0)]
    assert all(torch.allclose(state[k], v) for k, v in task.w0.items())
    e.begin(method, turn(e))
    assert set(e.ask(collect(method.infinite, e.clients, task.w0))) == set(clients_data) - {"c05"}


@pytest.mark.parametrize("engine", [Loop, Vmap, Threads])
def test_a_client_whose_reply_is_left_out_keeps_what_it_had(
    engine: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    e, method = engine(clients_data), Odd(task, what="counts")
    for number in range(3):
        play(e, method, task.w0, turn(e, number))
    assert {c: float(e.keeps.get(c)[0]) for c in ("c04", "c05")} == {"c04": 3, "c05": 1}
    assert [number for _, _, number in e.refused] == [1, 2]


@pytest.mark.parametrize("engine", [Loop, Vmap, Threads])
@pytest.mark.parametrize("how", [average, collect])
def test_where_no_reply_is_finite_training_diverged(
    engine: Any, how: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    e, method = engine({"c05": clients_data["c05"]}), Odd(task)
    e.begin(method, turn(e))
    said = r"(?s)verb infinite, round 1: none of 1 replies is finite, c05's among them \(lr=0.1\).*hint:"
    with pytest.raises(VerbFailed, match=said):
        e.ask(how(method.infinite, e.clients, task.w0))


def test_large_numbers_are_finite_though_their_sum_is_not() -> None:
    assert all_finite({"a": torch.tensor([3e38, 3e38])})
    assert not all_finite({"a": torch.tensor([3e38, torch.inf])}) and not all_finite([float("nan")])


def test_an_empty_cohort_is_an_error(task: Task, clients_data: dict[str, ClientData]) -> None:
    e = Loop(clients_data)
    with pytest.raises(NoReply, match="nobody answered"):
        play(e, FedAvg(task), task.w0, Turn(0, [], e.clients, 1))


def test_bytes_are_those_of_the_wire(task: Task, clients_data: dict[str, ClientData]) -> None:
    e = Counted(Vmap(clients_data))
    play(e, FedAvg(task), task.w0, turn(e))
    assert set(e.take().values()) == {(size(task.w0), size(task.w0))}
    assert e.take() == {}
    e.begin(FedAvg(task), turn(e))
    e.ask(collect(FedAvg(task).train, ["c01"], each={"c01": task.w0}))
    assert e.take() == {"c01": (size(task.w0), size(task.w0))}


@pytest.mark.parametrize("on_disk", [False, True])
def test_keeps_can_be_gone_back_to(on_disk: bool) -> None:
    keeps = ClientStates(on_disk=on_disk)
    for number in range(5):
        keeps.begin(number)
        if number != 3:
            keeps.put("a", {"v": torch.tensor(float(number))})
        if number == 1:
            keeps.mark_best()
    assert keeps.get("a")["v"] == 4 and keeps.get("a", 3)["v"] == 2 and keeps.get("a", 1)["v"] == 1
    assert keeps.get("b") is None
    keeps.rewind(3)
    assert keeps.get("a")["v"] == 2


@pytest.mark.parametrize("on_disk", [False, True])
def test_old_versions_are_forgotten(on_disk: bool) -> None:
    keeps = ClientStates(on_disk=on_disk)
    for number in range(30):
        keeps.begin(number)
        keeps.put("a", {"v": torch.zeros(3)})
        keeps.write(number)
    (rows,) = keeps.database.execute("SELECT COUNT(*) FROM keeps").fetchone()
    assert rows <= 3 and len(keeps.versions.get("a", {})) <= 3


def test_what_a_client_keeps_does_not_hold_on_to_its_neighbours(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    """A row of a stack would keep the whole stack in memory."""
    e = Vmap(clients_data)
    play(e, Local(task), (), turn(e))
    keep: Vec = e.keeps.get("c03")
    assert all(v.untyped_storage().nbytes() == v.numel() * 4 for v in keep.values())


def test_stacked_examples_are_remembered_up_to_a_limit(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    e = Vmap(clients_data, chunk=4)
    e.free = 3000
    play(e, FedAvg(task), task.w0, turn(e))
    assert 0 <= e.free < 3000 and len(e.stacks) < 3


class Logarithms(nn.Module):
    """For positive features only: it is not finite where one is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(x.log())
        return out


def positive(held: ClientData) -> ClientData:
    rows = {name: getattr(held, name).take() for name in ("train", "val", "test")}
    return replace(held, **{name: replace(b, x=b.x.abs() + 0.1) for name, b in rows.items()})


@pytest.mark.parametrize("compiled", [False, True])
def test_padding_is_no_row_that_a_network_was_not_made_for(
    compiled: bool, clients_data: dict[str, ClientData]
) -> None:
    """A network of logarithms has no finite output for rows of zeros, and so no finite slope."""
    data = {c: positive(held) for c, held in clients_data.items()}
    torch.manual_seed(1)
    method = FedAvg(Task(Logarithms(), "classes", 3))
    found = []
    for engine in (Loop(data), Vmap(data, chunk=5, compiled=compiled)):
        w = play(engine, method, method.task.w0, turn(engine))
        scores = [v for _, tree in engine.predictions(w, "val", ("global",)) for v in tree["global"]]
        assert all(torch.isfinite(v).all() for v in scores)
        found.append(w)
    for name, there in found[0].items():
        assert torch.allclose(there, found[1][name], atol=1e-5)


def test_batches_are_padded_with_rows_of_their_own(clients_data: dict[str, ClientData]) -> None:
    """An empty one has none, and takes another's; where nobody has any, those that are to spare."""
    rows = clients_data["c03"].train.take()
    some = [Batch.of(rows.x[at], rows.y[at]) for at in (slice(3), slice(3, 4), slice(0))]
    padded = pad_all(some)
    assert padded.live.sum(1).tolist() == [3, 1, 0]
    assert torch.equal(padded.x[1], rows.x[3].expand(3, -1)) and padded.y[1].tolist() == [int(rows.y[3])] * 3
    assert torch.equal(padded.x[2], rows.x[0].expand(3, -1))
    spared = pad_all(some[2:], spare=rows)
    assert torch.equal(spared.x[0, 0], rows.x[0]) and not spared.live.any()


def test_scores_after_training_of_models_that_are_made_client_by_client_agree_on_engines(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    method, losses = KNNPer(task), []
    for engine in (Loop(clients_data), Vmap(clients_data)):
        clients, found = engine.evaluate_trained(
            method, training(method, task.w0, turn(engine)), turn(engine)
        )
        losses.append(dict(zip(clients, found["test"]["loss"].tolist(), strict=True)))
    assert losses[0] == pytest.approx(losses[1], abs=1e-4) and set(losses[0]) == set(clients_data)


def test_workers_of_a_study_are_told_their_part_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv(CORES, raising=False)
    assert cores() == 8
    monkeypatch.setenv(CORES, "2")
    assert cores() == 2
    monkeypatch.setenv(CORES, "64")
    assert cores() == 8


def test_compiled_steps_that_were_asked_for_are_refused_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, clients_data: Any
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UsageError, match=r"needs a C\+\+ compiler"):
        Choice("vmap", 5, True).build(clients_data)


def test_threads_give_warning_filters_back(task: Task, clients_data: dict[str, ClientData]) -> None:
    class Careless(Local):
        @verb(solo=True)
        def clear(self, sent: Any, keep: Any, data: Any) -> Any:
            warnings.resetwarnings()
            return torch.zeros(()), keep

    engine, method = Threads(clients_data, workers=2), Careless(task)
    before = list(warnings.filters)
    engine.begin(method, turn(engine))
    assert before and len(engine.ask(collect(method.clear, engine.clients))) == len(clients_data)
    assert list(warnings.filters) == before


# ---- a batch that is larger than any client ----


class Widths(FedAvg):
    """Writes down how many rows its steps have, padding included."""

    def train(self, w: Any, keep: Any, data: Any) -> Any:
        return self.descend(self.seen, w, data), keep

    train = verb(train)

    def seen(self, u: Vec, batch: Batch) -> torch.Tensor:
        WIDTHS.append(len(batch))
        return self.task.loss(u, batch)


WIDTHS: list[int] = []


@pytest.mark.parametrize("length", [{"epochs": 2}, {"steps": 3}], ids=str)
@pytest.mark.parametrize(
    "engine",
    [Loop, Threads, Vmap, partial(Vmap, chunk=5), partial(Vmap, compiled=True)],
    ids=["loop", "threads", "vmap", "vmap in chunks", "compiled"],
)
def test_a_batch_of_all_rows_is_no_larger_than_the_largest_client_needs(
    task: Task, clients_data: dict[str, ClientData], engine: Any, length: dict[str, int]
) -> None:
    largest = max(c.n for c in clients_data.values())
    WIDTHS.clear()
    whole = trained(engine(clients_data), Widths(task, batch=100_000, **length))
    assert WIDTHS and max(WIDTHS) < 2 * max(largest, 16)  # as laid out: in powers of two
    exact = trained(engine(clients_data), Widths(task, batch=largest, **length))
    assert float((whole - exact).sq()) < 1e-10


def trained(engine: Any, method: FedAvg) -> Any:
    return play(engine, method, start(engine, method, turn(engine, -1)), turn(engine))
