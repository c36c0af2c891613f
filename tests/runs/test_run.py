"""Runs: folders that survive, results that come out the same, errors that lose nothing."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import motet
from motet.runs.compare_runs import differences
from motet.runs.recipe import read
from motet.runs.run import RunError, run, verify
from motet.runs.store import Store
from rewritten import rewritten

SMALL = ["data=wine", "data.clients=6", "data.unseen=0.2", "train.rounds=6"]


def small(folder: Path, *words: str) -> motet.Run:
    return run(read(words=[*SMALL, *words]), folder)


def same(a: Path, b: Path) -> list[str]:
    return differences(Store(a), Store(b))


def test_a_run_is_a_folder_with_everything_in_it(tmp_path: Path) -> None:
    done = small(tmp_path / "r", "method=finetune")
    there = {p.name for p in done.folder.iterdir()}
    assert {
        "recipe.toml",
        "run.sqlite",
        "models",
        "global.safetensors",
        "global.md",
        "scores.parquet",
    } <= there
    assert done.facts["status"] == "done"
    assert {"python", "torch", "motet"} <= set(done.facts["versions"])
    clients = set(done.clients.query("seen == 1")["client"])
    val = done.scores.query("part == 'val' and side != 'constant'")
    assert len(val) == 6 * 2 * len(clients)  # rounds, sides, clients
    test = done.test
    assert set(test["round"]) <= {done.facts["reported"], done.facts["reported"] + 1}
    assert set(test.query("side == 'personal'")["client"]) == clients
    assert set(test.query("side == 'arrival'")["client"]) == set(done.clients.query("seen == 0")["client"])
    assert len(list((done.folder / "models").glob("*.safetensors"))) == len(clients)
    assert len(list((done.folder / "models").glob("*.md"))) == len(clients)


def test_the_reported_round_is_the_best_on_validation(tmp_path: Path) -> None:
    done = small(tmp_path / "r")
    val = (
        done.scores.query("part == 'val' and side == 'personal'")
        .groupby("round")[["accuracy", "loss"]]
        .mean()
    )
    assert done.facts["reported"] == val[val["accuracy"] == val["accuracy"].max()]["loss"].idxmin()
    last = small(tmp_path / "last", "train.report=last")
    assert last.facts["reported"] == 5


def test_test_examples_choose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from motet.runs import build

    before = small(tmp_path / "a")
    build.forget_data()
    real = build.load

    def ruined(*args: Any, **kwargs: Any) -> Any:
        federated = real(*args, **kwargs)
        for client_data in federated.clients_data.values():
            client_data.test.y = (client_data.test.y + 1) % 3
        return federated

    monkeypatch.setattr(build, "load", ruined)
    after = small(tmp_path / "b")
    build.forget_data()
    assert before.facts["reported"] == after.facts["reported"]
    found = same(before.folder, after.folder)
    assert all(f.startswith("scores") for f in found) and found


def test_patience_stops_a_run_that_does_not_improve(tmp_path: Path) -> None:
    done = small(tmp_path / "r", "method.lr=0.000001", "train.rounds=50", "train.patience=3")
    assert len(done.rounds) == 4


def test_a_run_by_both_stops_when_neither_side_improves_and_says_since_when(tmp_path: Path) -> None:
    words = ["method.name=ditto", "method.lr=0.02", "train.rounds=60", "train.patience=4", "train.by=both"]
    done = small(tmp_path / "r", *words)
    val = done.scores.query("part == 'val' and side != 'constant'")
    means = val.groupby(["side", "round"])["accuracy"].mean().unstack("side")
    since = means.cummax().diff().gt(0).any(axis=1)  # rounds with a new peak of either side
    improved = int(max(since[since].index, default=0))
    assert done.facts["equilibrium"] == improved and len(done.rounds) == improved + 5
    scores = means.mean(axis=1)
    assert scores[done.facts["reported"]] == scores.max()


def test_a_cohort_is_a_share_or_a_number_and_changes_from_round_to_round(tmp_path: Path) -> None:
    done = small(tmp_path / "r", "train.cohort=2", "data.clients=8")
    trained = done.asks.query("verb == 'train'")
    who = trained.groupby("round")["client"].apply(frozenset)
    assert set(who.map(len)) == {2} and len(set(who)) > 1


def test_a_cohort_of_more_clients_than_there_are_is_said(tmp_path: Path) -> None:
    many, all_of_them = (small(tmp_path / c, f"train.cohort={c}", "train.rounds=1") for c in ("500", "1.0"))
    there = len(many.clients.query("seen == 1"))
    assert many.facts["remarks"] == [
        f"all {there} clients train in every round: train.cohort is 500, and there are no more"
    ]
    assert all_of_them.facts["remarks"] == []
    assert small(tmp_path / "pooled", "method=centralised", "train.cohort=500").facts["remarks"] == []


def test_bytes_are_counted_for_every_client_and_round(tmp_path: Path) -> None:
    done = small(tmp_path / "r")
    weights = (13 * 3 + 3) * 4  # wine: 13 features, 3 classes, float32
    trained, many = done.asks.query("verb == 'train'"), len(done.clients.query("seen == 1"))
    assert (trained["up"] >= weights).all() and (trained["up"] < weights + 400).all()
    assert len(trained) == 6 * many
    assert done.rounds["up"].sum() == trained["up"].sum()  # what training takes
    for way in (
        "up",
        "down",
    ):  # all that crosses the wire, scores included; the last row is the end of the run
        assert done.traffic[way].sum() == done.asks[way].sum() > trained[way].sum()
    assert sorted(set(done.traffic["round"])) == list(range(7)) and len(done.traffic) == 7 * many
    assert set(done.asks["verb"]) == {"train", "evaluate", "save_model"}


def test_regression_runs_too(tmp_path: Path) -> None:
    done = run(read(words=["data=diabetes", "data.clients=5", "train.rounds=5"]), tmp_path / "r")
    assert {"rmse", "mae", "r2"} <= set(done.test.columns)
    assert 20 < done.test.query("side == 'personal'")["rmse"].mean() < 120


def test_verify_finds_the_same_bits_and_notices_others(tmp_path: Path) -> None:
    done = small(tmp_path / "r", "method=local")
    assert verify(done.folder) == []
    with rewritten(done.folder) as db:
        db.execute("UPDATE scores SET accuracy = accuracy + 1e-9 WHERE part = 'test'")
    assert verify(done.folder)


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    done = small(tmp_path / "r")
    before = done.facts["created"], (done.folder / "run.sqlite").stat().st_mtime
    again = small(tmp_path / "r")
    assert (again.facts["created"], (again.folder / "run.sqlite").stat().st_mtime) == before


ADAMS_AND_RATES = (
    "method=fedper+fedopt", "method.optimiser=adamw", "method.steps=5", "method.schedule.kind=cosine",
    "method.schedule.warm_up=2",
)  # fmt: skip

STACKING = (
    "method=stacking",
    "method.trees=3",
    "train.patience=0",
    "train.cohort=1.0",
)  # each model is counted once


@pytest.mark.parametrize(
    "words", [(), ("engine.keep=disk",), ("engine.name=threads",), ADAMS_AND_RATES, STACKING], ids=str
)
def test_stopping_and_going_on_ends_with_the_same_bits(tmp_path: Path, words: tuple[str, ...]) -> None:
    from motet.runs.run import NoProgress, Stopped

    class Impatient(NoProgress):
        rounds = 0

        def should_stop(self) -> bool:
            self.rounds += 1
            return self.rounds > 2

    recipe = read(words=[*SMALL, "method=local", "train.cohort=3", *words])
    whole = run(recipe, tmp_path / "whole")
    for _ in range(2):
        with pytest.raises(Stopped):
            run(recipe, tmp_path / "pieces", Impatient())
    pieces = run(recipe, tmp_path / "pieces")
    assert same(whole.folder, pieces.folder) == []
    assert verify(pieces.folder) == []


# ---- real processes ----

COMMAND = [sys.executable, "-m", "motet.cli.main", "run", "--quiet"]
LONGER = [
    "data=synthetic", "data.clients=12", "data.samples=150", "net=mlp", "method=local", "method.epochs=3",
    "train.rounds=40", "train.cohort=0.5", "save.checkpoint=0", "save.models=all",
]  # fmt: skip


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    usual = [w for w in LONGER if w.partition("=")[0] not in {w.partition("=")[0] for w in words}]
    return subprocess.Popen(
        [*COMMAND, *usual, *words, "--out", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rounds_done(folder: Path) -> int:
    try:
        db = sqlite3.connect(f"file:{folder / 'run.sqlite'}?mode=ro", uri=True)
        (n,) = db.execute("SELECT COALESCE(MAX(round), -1) FROM rounds").fetchone()
        db.close()
        return int(n) + 1
    except sqlite3.OperationalError:
        return 0


def wait_until(condition: Any, process: subprocess.Popen[str]) -> None:
    """However long it takes: a busy machine is no failure. A process that ends ends the wait, too."""
    while not condition() and process.poll() is None:
        time.sleep(0.005)


def kill_and_go_on(folder: Path, kills: int, seed: int, *words: str) -> int:
    """Kill at random moments, each time after some progress; returns how many kills hit a living run."""
    draw = np.random.default_rng(seed)
    hit = 0
    for _ in range(kills):
        process = start(folder, *words)
        goal = rounds_done(folder) + int(draw.integers(0, 4))
        wait_until(lambda goal=goal: rounds_done(folder) >= goal, process)
        time.sleep(float(draw.uniform(0, 0.05)))
        process.kill()
        hit += process.wait() == -signal.SIGKILL
        process.communicate()
    process = start(folder, *words)
    _, err = process.communicate()
    assert process.returncode == 0, err
    return hit


@pytest.mark.parametrize("words", [(), ("engine.keep=disk",)], ids=["memory", "disk"])
def test_a_killed_run_goes_on_and_ends_with_the_same_bits(tmp_path: Path, words: tuple[str, ...]) -> None:
    whole = run(read(words=[*LONGER, *words]), tmp_path / "whole")
    assert kill_and_go_on(tmp_path / "killed", 2, 1, *words) == 2
    assert same(whole.folder, tmp_path / "killed") == []
    for model in (whole.folder / "models").glob("*.safetensors"):
        assert model.read_bytes() == (tmp_path / "killed" / "models" / model.name).read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("engine", ["vmap", "threads"])
def test_twenty_kills_change_no_bit(tmp_path: Path, engine: str) -> None:
    words = (f"engine.name={engine}", "train.rounds=80", "engine.keep=disk")
    whole = run(read(words=[*LONGER, *words]), tmp_path / "whole")
    hit = kill_and_go_on(tmp_path / "killed", 20, 2, *words)
    found = same(whole.folder, tmp_path / "killed")
    print(f"\n{engine}: {hit} of 20 kills hit a living run; differences: {found or 'none'}")
    assert hit >= 15 and found == []


def test_ctrl_c_stops_after_the_round_and_the_same_command_goes_on(tmp_path: Path) -> None:
    whole = run(read(words=LONGER), tmp_path / "whole")
    process = start(tmp_path / "r")
    wait_until(lambda: rounds_done(tmp_path / "r") >= 2, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130 and "stopping after this round" in err
    assert 2 <= rounds_done(tmp_path / "r") < 40
    process = start(tmp_path / "r")
    assert process.wait() == 0
    process.communicate()
    assert same(whole.folder, tmp_path / "r") == []


def test_a_second_process_may_not_write_the_same_run(tmp_path: Path) -> None:
    long = ("train.rounds=100000", "train.patience=0")  # it must not end before the second has started
    first = start(tmp_path / "r", *long)
    wait_until(lambda: rounds_done(tmp_path / "r") >= 1, first)
    second = start(tmp_path / "r", *long)
    _, err = second.communicate()
    assert second.returncode == 2 and "another process is writing" in err and "hint:" in err
    assert first.poll() is None
    first.kill()
    first.communicate()


def test_a_full_disk_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: both end in a write that the system refuses."""
    folder = tmp_path / "r"
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000));"
        "from motet.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [*LONGER, "engine.keep=disk", "--out", str(folder)]
    full = subprocess.run(
        [sys.executable, "-c", code, "run", "--quiet", *words], capture_output=True, text=True
    )
    assert full.returncode == 2, full.stderr
    assert "cannot write to" in full.stderr and "last checkpoint is intact" in full.stderr
    whole = run(read(words=[*LONGER, "engine.keep=disk"]), tmp_path / "whole")
    process = start(folder, "engine.keep=disk")
    assert process.wait() == 0
    process.communicate()
    assert same(whole.folder, folder) == []


# ---- what can go wrong ----


def test_data_that_changed_are_noticed(tmp_path: Path) -> None:
    from motet.runs import build
    from motet.runs.run import NoProgress, Stopped

    class AtOnce(NoProgress):
        def should_stop(self) -> bool:
            return True

    csv = tmp_path / "d.csv"
    rows = ["x,y,who"] + [f"{i % 7},{'a' if i % 3 else 'b'},{'p' if i % 2 else 'q'}" for i in range(60)]
    csv.write_text("\n".join(rows))
    recipe = read(
        words=[f"data={csv}", "data.target=y", "data.client=who", "train.rounds=3", "method.lr=0.1"]
    )
    with pytest.raises(Stopped):
        run(recipe, tmp_path / "r", AtOnce())
    csv.write_text("\n".join([*rows[:-1], "99,a,p"]))
    build.forget_data()
    with pytest.raises(RunError, match="(?s)data: the rows of .*changed.*hint:"):
        run(recipe, tmp_path / "r")


def test_an_edited_file_makes_a_new_run_instead_of_an_old_answer(tmp_path: Path) -> None:
    from motet.runs import build

    csv = tmp_path / "d.csv"
    rows = ["x,y,who"] + [f"{i % 7},{'a' if i % 3 else 'b'},{'p' if i % 2 else 'q'}" for i in range(60)]
    csv.write_text("\n".join(rows))
    recipe = read(
        words=[f"data={csv}", "data.target=y", "data.client=who", "train.rounds=2", "method.lr=0.1"]
    )
    first = run(recipe, base=tmp_path)
    assert run(recipe, base=tmp_path).folder == first.folder
    csv.write_text("\n".join([*rows[:-1], "99,a,p"]))
    build.forget_data()
    assert run(recipe, base=tmp_path).folder != first.folder
    with pytest.raises(RunError, match="data: the rows of .* changed"):
        run(recipe, first.folder)


def test_another_runs_folder_is_not_overwritten(tmp_path: Path) -> None:
    small(tmp_path / "r")
    with pytest.raises(RunError, match="holds another run"):
        small(tmp_path / "r", "seed=1")


def test_training_that_diverges_says_who_what_and_when(tmp_path: Path) -> None:
    words = ["data=diabetes", "data.clients=5", "method.lr=1e12", "train.rounds=40"]
    with pytest.raises(
        RunError, match=r"(?s)verb train, round \d+: none of 5 replies is finite, client-\d+'s .*lr=.*hint:"
    ):
        run(read(words=words), tmp_path / "r")
    assert Store(tmp_path / "r").facts()["status"] == "failed"


def test_a_folder_that_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a run"):
        motet.Run(tmp_path)


# ---- comparing ----


def test_a_comparison_reuses_what_is_done_and_shows_what_failed(tmp_path: Path) -> None:
    how: dict[str, Any] = {"data": {"name": "wine", "clients": 5}, "rounds": 3, "base": tmp_path}
    first = motet.compare(["finetune"], **how)
    times = {f: (f / "run.sqlite").stat().st_mtime for f in first.folders}
    second = motet.compare(["finetune", "centralised"], **how)
    assert all((f / "run.sqlite").stat().st_mtime == t for f, t in times.items())
    assert set(second.table["method"]) == {"finetune", "centralised", "local", "majority class"}
    assert set(first.folders) < set(second.folders)


def test_the_api_reads_data_anew_at_every_call(tmp_path: Path) -> None:
    csv = tmp_path / "d.csv"
    rows = ["x,y,who"] + [f"{i % 7},{'a' if i % 3 else 'b'},{'p' if i % 2 else 'q'}" for i in range(60)]
    how: dict[str, Any] = {"data": {"name": str(csv), "target": "y", "client": "who"}, "rounds": 1}
    csv.write_text("\n".join(rows))
    before = motet.run(**how, out=tmp_path / "a")
    csv.write_text("\n".join(rows[:40]))
    after = motet.run(**how, out=tmp_path / "b")
    assert before.facts["fingerprint"] != after.facts["fingerprint"]


def test_the_api_gives_data_frames(tmp_path: Path) -> None:
    done = motet.run(method="fedavg", data={"name": "wine", "clients": 5}, rounds=2, out=tmp_path / "r")
    assert {"client", "side", "accuracy", "balanced", "loss"} <= set(done.test.columns)
    assert "wine" in repr(done)


def own_data() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(3, 40, 2)).astype(np.float32)
    return {name: (x[i], (x[i].sum(1) > 0).astype(int)) for i, name in enumerate(("north", "south", "west"))}


def test_the_api_takes_functions_and_classes_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from motet.methods.fedavg import FedAvg

    module = type(sys)("my_things")
    module.own_data, module.Mine = own_data, type("Mine", (FedAvg,), {"__module__": "my_things"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_things", module)
    monkeypatch.setattr(own_data, "__module__", "my_things")
    done = motet.run(data=own_data, method=module.Mine, rounds=3, out=tmp_path / "r")  # type: ignore[attr-defined]
    assert set(done.test["client"]) == {"north", "south", "west"}
    assert done.facts["method"] == "my_things:Mine"


def test_the_command_line_speaks_json(tmp_path: Path) -> None:
    folder = str(tmp_path / "r")
    out = subprocess.run(
        [*COMMAND, *SMALL, "--out", folder, "--json"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert json.loads(out.stdout)["folder"] == folder


@pytest.mark.parametrize("engine", ["loop", "vmap", "threads"])
def test_local_scores_are_those_of_the_very_models_that_left(tmp_path, engine):
    """With one client, what leaves is what the server has afterwards; with Local, it is what stays."""
    for method, side in (("fedavg", "global"), ("local", "personal"), ("scaffold", "global")):
        settings = {"data": {"name": "digits", "clients": 1, "unseen": 0.0}, "engine": engine, "rounds": 3}
        run = motet.run(method=method, after_training=True, out=tmp_path / method, **settings)
        for part in ("val", "test"):
            rows = run.scores[run.scores["part"] == part].set_index(["round", "side"])["loss"]
            local = rows.xs("after_training", level="side")
            assert len(local) == (3 if part == "val" else 1)
            other = rows.xs(side, level="side")[local.index]
            assert local.tolist() == pytest.approx(other.tolist(), rel=1e-5)


def test_scoring_local_models_changes_nothing_else(tmp_path):
    settings = {"data": {"name": "digits", "clients": 4}, "rounds": 3, "method": "ditto"}
    plain = motet.run(out=tmp_path / "a", **settings)
    more = motet.run(out=tmp_path / "b", after_training=True, **settings)
    rest = more.scores[more.scores["side"] != "after_training"].reset_index(drop=True)
    assert rest.equals(plain.scores)
    assert set(more.test["side"]) == set(plain.test["side"]) | {"after_training"}


def test_models_of_two_parts_are_saved_with_both(tmp_path):
    from safetensors.torch import load_file

    run = motet.run(method="fedrod", data={"name": "wine", "clients": 3}, rounds=1, out=tmp_path)
    saved = load_file(next((run.folder / "models").glob("*.safetensors")))
    assert set(saved) == {"0.head.weight", "0.head.bias", "1.head.weight", "1.head.bias"}


def test_a_method_that_does_not_suit_the_network_says_so_and_others_go_on(tmp_path):
    with pytest.raises(RunError, match="this network is all head.\nhint"):
        motet.run(method="fedrecon", data="wine", rounds=1, out=tmp_path / "r")
    table = motet.compare(["fedrecon"], data="wine", rounds=2, base=tmp_path).table
    assert "all head" in table.set_index("method").loc["fedrecon", "trouble"]


def test_a_run_that_shares_nothing_says_so_before_it_begins_and_in_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from motet.cli.main import main
    from motet.report.read import read as read_runs

    words = ["data=wine", "method=fedper", "net=logistic", "train.rounds=2"]
    assert main(["run", *words, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err
    assert "note: fedper keeps the last layer at the clients" in said and "hint: net=mlp" in said
    (note,) = read_runs([tmp_path / "run"])[0].notes
    assert note.startswith("Fedper keeps the last layer") and "training alone" in note


def test_a_folder_with_a_colon_in_its_name_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries take x:y/z for an address."""
    monkeypatch.chdir(tmp_path)
    done = small(Path("cpu:0"), "train.rounds=1")
    assert done.facts["status"] == "done" and (tmp_path / "cpu:0" / "predictions.parquet").exists()


@pytest.mark.parametrize("place", ["recipe.toml", "clients.parquet", "models", "models/client-00.md", "."])
def test_a_run_writes_through_no_link_that_lies_in_its_folder(place: str, tmp_path: Path) -> None:
    """The folder may be somebody else's."""
    (mine := tmp_path / "mine").mkdir()
    (mine / "file").write_text("precious")
    (link := tmp_path / "theirs" / "run" / place).parent.mkdir(parents=True)
    link.symlink_to(mine if place in ("models", ".") else mine / "file")
    with pytest.raises(RunError, match="is a link"):
        motet.run(method="local", data="wine", rounds=1, out=tmp_path / "theirs" / "run")
    assert [(f.name, f.read_text()) for f in mine.iterdir()] == [("file", "precious")]


@pytest.mark.parametrize("name", ["recipe.toml", "clients.parquet", "predictions.parquet", "scores.parquet"])
def test_a_file_that_has_another_name_as_well_is_replaced(name: str, tmp_path: Path) -> None:
    (mine := tmp_path / "mine").write_text("precious")
    (folder := tmp_path / "theirs").mkdir()
    (folder / name).hardlink_to(mine)
    motet.run(method="local", data="wine", rounds=1, out=folder)
    assert mine.read_text() == "precious" and (folder / name).stat().st_size > len("precious")


def test_a_study_writes_through_no_link_that_lies_in_its_folder(tmp_path: Path) -> None:
    words = {"data": "wine", "rounds": 1}
    (mine := tmp_path / "mine").write_text("precious")
    name = motet.compare(["local"], **words, jobs=1, splits=0, base=tmp_path / "first").report().name
    (theirs := tmp_path / "theirs").mkdir()
    (theirs / name).symlink_to(mine)
    motet.compare(["local"], **words, jobs=1, splits=0, base=theirs).report()
    assert mine.read_text() == "precious" and (theirs / name).read_text().startswith("<!")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "studies").symlink_to(elsewhere)
    with pytest.raises(RunError, match="is a link"):
        motet.compare(["local"], **words, jobs=1, splits=0, base=tmp_path / "others")
    assert [*elsewhere.iterdir()] == []
