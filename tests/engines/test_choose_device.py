"""Which device and engine are chosen, what is refused before anything runs, and which steps `auto` counts."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal
from torch import nn

import pretended_device
from motet.cli.main import main
from motet.client import ClientData, Task, descent
from motet.engines import device_names
from motet.engines.choose import choose
from motet.engines.device_names import device_named
from motet.engines.memory_needs import step_bytes
from motet.errors import RunError, UsageError
from motet.methods.fedavg import FedAvg
from motet.methods.stacking import Stacking
from motet.report.read import read as read_runs
from motet.report.tables import summary
from motet.report.terminal import summary_text
from motet.runs.bench_device import WORKLOADS, Workload, measure
from motet.runs.build import batched_steps, resolve
from motet.runs.device_of_run import check_device, other_device
from motet.runs.identity import changes
from motet.runs.recipe import Recipe, RecipeError, read
from motet.runs.run import Run, run, verify

Clients = dict[str, ClientData]
THERE = partial(choose, "auto", steps=lambda _: 10, device="pretended")
WORDS = ["data=wine", "train.rounds=2", "method.lr=0.1", "save.models=none"]


@pytest.mark.parametrize("name", ["gpu", "cuda", "cuda:7", "mps", "meta", "pretended:5", "cpu:0", ""])
def test_a_device_that_is_not_there_is_refused_with_a_hint(name: str) -> None:
    with pytest.raises(UsageError, match="engine.device is") as e:
        device_named(name)
    assert "\nhint: " in str(e.value)


def test_a_run_on_a_device_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="finds no such device here"):
        run(read(None, [*WORDS, "engine.device=cuda"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_batch_takes_no_more_memory_than_the_largest_client(task: Task, clients_data: Clients) -> None:
    largest = max(c.n for c in clients_data.values())
    batches = (1, largest, 10**6)  # the first call copies the network
    needs = [step_bytes(task, clients_data, batch) for batch in batches]
    assert needs[1] == needs[2]


def test_auto_is_the_cpu_where_there_is_nothing_else(task: Task, clients_data: Clients) -> None:
    assert choose("auto", task, clients_data, lambda _: 10, device="auto").device == "cpu"


def test_auto_is_an_accelerator_where_there_is_one(
    task: Task, clients_data: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_names, "how_many", lambda kind: int(kind == "xpu"))
    assert device_names.best_there() == "xpu"


def test_small_networks_are_stacked_on_a_device_and_large_steps_run_in_threads(clients_data: Clients) -> None:
    conv = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    small = Task(conv, "classes", 3)
    large = Task(nn.Sequential(nn.Linear(6, 100_000), nn.ReLU(), nn.Linear(100_000, 3)), "classes", 3)
    assert THERE(task=small, clients_data=clients_data).name == "vmap"
    chosen = THERE(task=large, clients_data=clients_data, method=FedAvg(large, batch=64))
    assert chosen.name == "threads" and "work enough" in chosen.why and chosen.device == "pretended"
    assert not chosen.compiled


def test_ordinary_python_runs_on_the_cpu_whatever_device_is_asked_for(
    task: Task, clients_data: Clients
) -> None:
    assert THERE(task=task, clients_data=clients_data, method=Stacking(task)).device == "cpu"


def test_a_chunk_follows_from_the_devices_memory(
    task: Task, clients_data: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = []
    for size in (1 << 30, 1 << 18):
        monkeypatch.setattr(pretended_device.backend, "memory", (size, size))
        chunks.append(THERE(task=task, clients_data=clients_data).chunk)
    assert chunks[0] == 1024 > chunks[1] >= 1


def test_too_little_memory_is_refused_with_a_hint(
    task: Task, clients_data: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretended_device.backend, "memory", (1000, 1 << 30))
    with pytest.raises(UsageError, match="one client needs about .*\nhint: engine.device=cpu"):
        choose("loop", task, clients_data, lambda _: 10, device="pretended")
    monkeypatch.setattr(pretended_device.backend, "memory", (1 << 16, 1 << 30))
    with pytest.raises(UsageError, match="clients at once need about .*\nhint: engine.chunk="):
        choose("vmap", task, clients_data, lambda _: 10, chunk=12, device="pretended")


# ---- what a run is ----


def test_the_kind_of_device_is_part_of_what_a_run_is_and_its_number_is_not() -> None:
    def identity(device: str) -> str:
        return read(None, [*WORDS, f"engine.device={device}"]).identity()

    assert identity("cuda") == identity("cuda:1") != identity("cpu") != identity("mps")


def test_runs_without_a_device_in_their_recipe_are_runs_on_the_cpu() -> None:
    recipe = read(None, WORDS)
    earlier = {k: dict(v) if isinstance(v, dict) else v for k, v in recipe.settings.items()}
    del earlier["engine"]["device"]
    assert Recipe(earlier).identity() == recipe.identity()


def test_another_kind_of_device_is_another_run_and_the_reason_is_said(tmp_path: Path) -> None:
    done = run(read(None, WORDS), tmp_path)
    resolved = resolve(read(None, WORDS))
    other = {**resolved.recipe.settings, "engine": {**resolved.recipe["engine"], "device": "cuda"}}
    pieces = resolved.pieces | {"settings": Recipe(other).identity()}
    assert changes(done.facts, Recipe(other), pieces) == ['settings: engine.device is "cuda", and was "cpu"']
    assert done.facts["device"] == "cpu" and verify(tmp_path) == []


def test_a_run_of_a_device_that_is_not_here_can_be_read_and_not_verified(tmp_path: Path) -> None:
    facts = Run(run(read(None, WORDS), tmp_path).folder).facts
    settings = {**facts["settings"], "engine": {**facts["settings"]["engine"], "device": "cuda:1"}}
    with pytest.raises(RunError, match="was run on cuda \\(some card\\), and this machine has no cuda") as e:
        check_device(tmp_path, {"settings": settings, "device": "cuda (some card)"})
    assert "hint: verify it on such a machine" in str(e.value)


def test_a_run_that_goes_on_on_another_card_says_so() -> None:
    assert other_device("cpu", {}) == ""
    assert "it began on cuda (A)" in other_device("cpu", {"device": "cuda (A)"})


def test_a_whole_run_on_another_device_has_the_scores_of_the_cpu_up_to_rounding(tmp_path: Path) -> None:
    words = [*WORDS, "method=ditto", "engine.name=loop", "train.rounds=2"]
    there, here = (
        run(read(None, [*words, f"engine.device={d}"]), tmp_path / d) for d in ("pretended", "cpu")
    )
    assert_frame_equal(there.scores, here.scores, check_exact=False, rtol=0, atol=1e-6)
    assert there.facts["device"] == "pretended"
    assert verify(there.folder) == []
    assert " s on pretended, 2 rounds" in summary_text(summary(read_runs([there.folder])[0]))
    assert run(read(None, [*words, "engine.device=pretended"]), there.folder).was_read
    with pytest.raises(RunError, match="engine.device"):
        run(read(None, [*words, "engine.device=cpu"]), there.folder)


# ---- compiling ----


@pytest.mark.parametrize(
    ("said", "meant"), [("true", "yes"), ("false", "no"), ("yes", "yes"), ("auto", "auto")]
)
def test_compile_takes_true_and_false(said: str, meant: str) -> None:
    assert read(None, [f"engine.compile={said}"]).engine.compile == meant


def test_compile_takes_nothing_else() -> None:
    with pytest.raises(RecipeError, match="one of auto, yes, no"):
        read(None, ["engine.compile=1"])


def test_auto_counts_the_steps_of_the_cohorts_that_are_drawn() -> None:
    words = ["data=digits", "data.clients=40", "data.alpha=0.1", "train.rounds=30", "method.batch=4"]
    words += ["method.lr=0.1", "method.epochs=1"]
    all_take_part, few = (resolve(read(None, [*words, f"train.cohort={c}"])) for c in (1.0, 2))
    sizes = sorted(h.n for h in few.training.clients_data.values())
    largest = 30 * -(-sizes[-1] // 4)  # steps of a run in which the largest client takes part in every round
    assert batched_steps(all_take_part, 128) == largest
    assert batched_steps(few, 128) < largest / 2
    one_by_one = sum(-(-n // 4) for n in sizes) * 30
    assert batched_steps(all_take_part, 1) == one_by_one


# ---- motet bench device ----


def test_bench_device_times_the_cpu_where_there_is_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "device", "--rounds", "1", "--json"]) == 0
    said = capsys.readouterr()
    timed = json.loads(said.out)
    assert {(t["device"], t["engine"]) for t in timed} == {("cpu", "vmap"), ("cpu", "threads")}
    assert "finds no GPU" in said.err and all(t["seconds"] > 0 for t in timed)
    best = [max(t["ratio"] for t in timed if t["workload"] == w.name) for w in WORKLOADS]
    assert best == [1.0, 1.0]  # ratios are to the fastest on the CPU


def test_bench_device_times_a_device_beside_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descent.Traced, "__call__", lambda traced, *values: traced.f(*values))
    small = Workload("tiny", "logistic", (3,), 2, 4, 2)
    timed = measure("pretended", 1, lambda _: None, (small,))
    assert [(t.device, t.engine) for t in timed] == [
        (d, e) for d in ("cpu", "pretended") for e in ("vmap", "threads")
    ]


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--device", "cuda"], ["--device", "typo"]])
def test_bench_device_refuses_what_it_cannot_time(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "device", *words]) == 2
    assert capsys.readouterr().err.startswith("error: ")
