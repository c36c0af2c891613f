"""Forgetting a client: the run without it is, to the bit, the run that never had it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import motet
from motet.cli.main import main
from motet.data.image_folders import load
from motet.errors import Damaged, RunError, Stopped
from motet.report import html
from motet.report.price import price, price_text
from motet.report.read import read as read_runs
from motet.runs.compare_runs import differences
from motet.runs.forget import forget
from motet.runs.recipe import method_names, read
from motet.runs.run import NoProgress, Run, run
from motet.runs.store import Store
from motet.runs.trainer import Trainer

TABLE = ["data.target=outcome", "data.client=hospital", "train.rounds=3", "data.val=0.25", "train.evaluate=1"]


def hospitals() -> pd.DataFrame:
    """Five hospitals; only `south` has the ward `x`, and its ages would move every mean."""
    draw = np.random.default_rng(0)
    names = np.repeat(["east", "mid", "north", "south", "west"], 24)
    frame = pd.DataFrame(
        {
            "hospital": names,
            "age": draw.normal(50, 9, len(names)).round(2),
            "ward": draw.choice(["a", "b"], len(names)),
            "outcome": draw.choice(["a", "b"], len(names)),
        }
    )
    south = frame["hospital"] == "south"
    frame.loc[south, "ward"], frame.loc[south, "age"] = "x", frame.loc[south, "age"] + 100
    frame["outcome"] = frame["outcome"].where((frame["age"] < 50) | south, "b")
    return frame.sample(frac=1, random_state=1)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    whole = hospitals()
    whole.to_csv("whole.csv", index=False)
    whole[whole["hospital"] != "south"].to_csv("rest.csv", index=False)
    return tmp_path


def played(table: str, *words: str, to: str = "") -> Run:
    return run(read(words=[f"data={table}", *TABLE, *words]), to or None)


def different(one: Run, two: Run) -> list[str]:
    with closing(Store(one.folder)) as a, closing(Store(two.folder)) as b:
        return differences(a, b)


MORE = {"fedperc": ["net=mlp"], "page": ["data.server_test=0.2", "data.proxy=0.5"]}
SHORT = ["fedavg", "fedperc", "page", "stacking"]  # means, groups, a server with rows, published models
METHODS = [
    *SHORT,
    *(pytest.param(m, marks=pytest.mark.long) for m in method_names() if m not in SHORT),
]


@pytest.mark.parametrize("method", METHODS)
def test_a_run_without_a_client_is_the_run_that_never_had_it(method: str, tables: Path) -> None:
    words = [f"method={method}", *MORE.get(method, ["net=mlp"] if method not in SHORT else [])]
    old = played("whole.csv", *words)
    done = forget(old.folder, "south")
    never = played("rest.csv", *words)
    assert different(done.after, never) == []
    # the server's rows are drawn from those of all clients: without south's, from others of the rest
    assert done.remarks == [] or "data.proxy=0.5" in words
    assert different(old, done.after) != []
    for name in ("method", "net", "train"):  # what was open was chosen without the client too
        assert done.after.facts["settings"][name] == never.facts["settings"][name]
    for file in (never.folder / "models").glob("*.safetensors"):
        one, two = (load_file(f) for f in (file, done.after.folder / "models" / file.name))
        assert one.keys() == two.keys()
        assert all(
            one[k].equal(two[k]) for k in one if one[k].dtype != torch.uint8
        )  # bytes may be of a checksum
    assert not (done.after.folder / "models" / "south.safetensors").exists()


def test_a_drawn_client_is_forgotten_and_the_others_keep_their_rows(tables: Path) -> None:
    old = run(read(words=["data=wine", "data.clients=6", "data.unseen=0.2", "train.rounds=2"]))
    before = old.clients.set_index("client")
    for client in ("client-0", before.index[before["seen"] == 0][0]):  # one that trained, one that never did
        done = forget(old.folder, client)
        after = done.after.clients.set_index("client")
        assert after.equals(before.drop(client)) and done.remarks == []


class StopAfter(NoProgress):
    """Stops a run after some rounds."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def on_round(self, trainer: Trainer, seconds: float) -> None:
        self.left -= 1

    def should_stop(self) -> bool:
        return self.left <= 0


def test_forgetting_goes_on_where_it_was_interrupted(tables: Path) -> None:
    old = played("whole.csv")
    with pytest.raises(Stopped):
        forget(old.folder, "south", observer=StopAfter(1))
    done = forget(old.folder, "south")
    assert "resumed" in set(done.after.events["kind"])
    assert different(done.after, played("rest.csv")) == []


KILLED = """
import os, signal, sys
from motet.runs.forget import forget
from motet.runs.run import NoProgress

class Kill(NoProgress):
    def on_round(self, trainer, seconds):
        if trainer.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)

forget(sys.argv[1], "south", observer=Kill())
"""


def test_a_kill_while_forgetting_loses_nothing(tables: Path) -> None:
    old = played("whole.csv", "save.checkpoint=0")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", KILLED, str(old.folder)], env=env)
    assert ended.returncode == -signal.SIGKILL
    done = forget(old.folder, "south")
    assert "resumed" in set(done.after.events["kind"])
    assert different(done.after, played("rest.csv", "save.checkpoint=0")) == []


def test_two_clients_can_be_forgotten_one_after_the_other(tables: Path) -> None:
    first = forget(played("whole.csv").folder, "south")
    second = forget(first.after.folder, "east")
    frame = hospitals()
    frame[~frame["hospital"].isin(["south", "east"])].to_csv("two.csv", index=False)
    assert different(second.after, played("two.csv")) == []


def test_rows_that_are_deleted_already_are_no_obstacle(tables: Path) -> None:
    old = played("whole.csv")
    Path("whole.csv").write_bytes(Path("rest.csv").read_bytes())
    from motet.runs.build import forget_data

    forget_data()
    done = forget(old.folder, "south")
    assert different(done.after, played("rest.csv")) == []
    assert done.remarks == ["the data have no rows of south any more: they are used as they are"]


def test_rows_of_a_client_that_was_forgotten_before_may_be_deleted(tables: Path) -> None:
    first = forget(played("whole.csv").folder, "south")
    Path("whole.csv").write_bytes(Path("rest.csv").read_bytes())
    from motet.runs.build import forget_data

    forget_data()
    second = forget(first.after.folder, "east")
    assert second.after.clients["client"].tolist() == ["mid", "north", "west"]


def test_a_run_that_is_not_finished_can_be_forgotten_too(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = read(words=["data=whole.csv", *TABLE])
    with pytest.raises(Stopped):
        run(recipe, "r", StopAfter(1))
    assert main(["forget", "r", "south", "--quiet", "--out", "new"]) == 0
    assert "not finished" in capsys.readouterr().err
    assert different(Run("new"), played("rest.csv")) == []


# ---- what cannot be ----


def test_a_client_that_never_was_there_is_refused_with_the_nearest_name(tables: Path) -> None:
    with pytest.raises(RunError, match=r"unknown client sout\nhint: did you mean 'south'"):
        forget(played("whole.csv").folder, "sout")


def test_of_two_clients_one_is_left_and_the_last_one_stays(tables: Path) -> None:
    frame = hospitals()
    frame[frame["hospital"].isin(["west", "east"])].to_csv("two.csv", index=False)
    done = forget(played("two.csv").folder, "west")
    assert done.after.clients["client"].tolist() == ["east"]
    with pytest.raises(RunError, match="east is the only client"):
        forget(done.after.folder, "east")


def test_a_damaged_run_is_not_forgotten_from(tables: Path) -> None:
    old = played("whole.csv", to="r")
    import sqlite3

    with closing(sqlite3.connect(old.folder / "run.sqlite")) as db:
        db.execute("UPDATE clients SET train = train + 1 WHERE client = 'south'")
        db.commit()
    with pytest.raises(Damaged):
        forget(old.folder, "south")


def test_a_folder_of_runs_is_named_with_the_first_of_them(tables: Path) -> None:
    old = played("whole.csv")
    with pytest.raises(RunError, match=f"hint: motet forget {old.folder} south"):
        forget(old.folder.parent, "south")


def test_a_run_of_a_federation_says_how_its_sites_play_it_again(tables: Path) -> None:
    old = played("whole.csv", to="r")
    with closing(Store(old.folder, writing=True)) as store:
        store.set_facts(federation="care")
        store.commit()
    with pytest.raises(RunError, match=r"federation run KIT r/recipe.toml 'data.without=\[\"south\"\]'"):
        forget(old.folder, "south")


# ---- what it costs, and what remains ----


def test_the_price_is_each_others_score_without_the_client_less_that_with_it(tables: Path) -> None:
    done = forget(played("whole.csv", "train.metric=accuracy").folder, "south")
    before, after = read_runs([done.before.folder, done.after.folder])
    found = price(before, after)
    scores = [r.of("personal") for r in (before, after)]
    assert [r["client"] for r in found["clients"]] == ["east", "mid", "north", "west"]
    for row in found["clients"]:
        one, two = (float(s[row["client"]]) for s in scores)
        assert (row["before"], row["after"], row["gain"]) == (
            one,
            two,
            pytest.approx((two - one) * after.better),
        )
    assert found["mean"]["gain"] == pytest.approx(np.mean([r["gain"] for r in found["clients"]]))
    text = price_text("south", found)
    assert all(len(line) <= 80 for line in text.splitlines()) and "mean change of the others" in text


def test_the_price_goes_by_one_metric_also_where_the_new_run_chose_another(tables: Path) -> None:
    done = forget(played("whole.csv", "train.metric=accuracy").folder, "south")
    same = price(*read_runs([done.before.folder, done.after.folder]))
    with closing(Store(done.after.folder, writing=True)) as store:
        store.set_facts(metric="loss", better=-1)
        store.commit()
    found = price(*read_runs([done.before.folder, done.after.folder]))
    assert found["clients"] == same["clients"] and found["metric"] == "accuracy"
    assert "goes by loss" in price_text("south", found)


def command(*words: str) -> int:
    return main(["forget", *words, "--quiet"])


def test_the_command_shows_the_price_and_says_what_remains(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = played("whole.csv")
    assert command(str(old.folder), "south", "--out", "new") == 0
    out, err = capsys.readouterr()
    assert (
        "with it" in out
        and "holds south's model" in " ".join(err.split())
        and (old.folder / "run.sqlite").exists()
    )
    fact = Run("new").facts["forgot"]
    assert fact["client"] == "south" and fact["run"] == old.folder.name
    page = html.render(read_runs([Path("new")]))
    assert "south was forgotten" in page and "mean change of the others" in page
    assert different(Run("new"), played("rest.csv")) == []


def test_the_old_run_is_deleted_when_asked_and_what_others_put_there_stays(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = played("whole.csv", to="one"), played("whole.csv", to="two")
    (second.folder / "notes.txt").write_text("mine")
    assert command("one", "south", "--delete-old", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["client"] == "south" and len(said["price"]["clients"]) == 4
    assert not first.folder.exists() and Run(said["folder"]).facts["forgot"]["price"] == said["price"]
    assert command("two", "south", "--delete-old", "--out", "three") == 0
    assert [p.name for p in second.folder.iterdir()] == ["notes.txt"]


def test_names_of_strangers_are_only_text_in_the_report(tables: Path) -> None:
    frame = hospitals().replace({"hospital": {"south": "<b>south</b>", "east": "<i>&"}})
    frame.to_csv("odd.csv", index=False)
    old = played("odd.csv")
    assert command(str(old.folder), "<b>south</b>", "--out", "new") == 0
    page = html.render(read_runs([Path("new")]))
    assert (
        "&lt;b&gt;south&lt;/b&gt; was forgotten" in page and "<b>south</b>" not in page and "<i>&" not in page
    )


def test_leaving_nobody_out_is_the_same_run_as_before(tables: Path) -> None:
    plain, said = (read(words=["data=whole.csv", *TABLE, *more]) for more in ([], ["data.without=[]"]))
    older: dict[str, Any] = {k: v for k, v in plain["data"].items() if k != "without"}
    from motet.runs.recipe import Recipe

    assert plain.identity() == said.identity() == Recipe(plain.settings | {"data": older}).identity()


# ---- from Python, and where nothing changes ----


def test_python_forgets_as_the_command_does(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import motet

    old = run(read(None, ["data=whole.csv", *TABLE, "method=fedavg"]), "old")
    assert main(["forget", "old", "south", "--out", "by-command", "--json", "--quiet"]) == 0
    said = json.loads(capsys.readouterr().out)
    done = motet.forget(old.folder, "south", out="by-python", delete_old=True)
    assert said["price"] == done.price and done.client == "south"
    with closing(Store(Path("by-command"))) as one, closing(Store(done.after.folder)) as two:
        assert differences(one, two) == [] and one.facts()["forgot"] == two.facts()["forgot"]
    assert not Path("old").exists()


def test_nothing_is_unsure_where_nothing_changed() -> None:
    row = {"client": "a", "test": 9, "before": 0.5, "after": 0.5, "gain": 0.0, "low": 0.0, "high": 0.0}
    rows = [row | {"outcome": "same"}, row | {"client": "b", "outcome": "same"}]
    found = {"metric": "accuracy", "better": 1, "note": "", "mean": row, "global": None, "clients": rows}
    said = price_text("south", found)
    assert "(0.0 to 0.0)" not in said and said.splitlines()[3].split() == ["a", "9", "50.0", "50.0", "none"]
    assert said.splitlines()[-1] == "mean change of the others: none, because no other client's score changed"


def test_it_is_said_which_way_a_change_is_better() -> None:
    gain = {"gain": 0.0164, "low": 0.01, "high": 0.02}
    rows = [{"client": "a", "test": 9, "before": 1.23, "after": 1.21, "outcome": "better"} | gain]
    found = {"metric": "rmse", "better": -1, "note": "", "mean": gain, "global": None, "clients": rows}
    said = price_text("south", found)
    assert "+0.0164" in said and said.splitlines()[-1] == "a positive change is better: less RMSE"


# ---- copies in the cache ----


def images(folder: Path, clients: str) -> dict[str, list[bytes]]:
    """A folder of images by client and class, and each client's images as bytes."""
    rng, found = np.random.default_rng(0), {}
    for client in clients:
        pixels = rng.integers(0, 255, (16, 4, 4, 3)).astype(np.uint8)
        for i, image in enumerate(pixels):
            place = folder / client / ("cat", "dog")[i % 2]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{i}.png")
        found[client] = [image.tobytes() for image in pixels]
    return found


def in_cache(cache: Path, rows: list[bytes]) -> int:
    """How many of the rows lie in a file of the cache."""
    files = [p.read_bytes() for p in cache.rglob("*") if p.is_file()]
    return sum(any(row in content for content in files) for row in rows)


@pytest.mark.parametrize("delete", [True, False])
def test_images_of_a_forgotten_client_are_deleted_from_the_cache_or_named(
    delete: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("MOTET_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    rows = images(tmp_path / "pets", "abcd")
    before = os.umask(0)
    try:
        for seed in (0, 1):
            words = [
                "data=pets",
                f"seed={seed}",
                "net=linear",
                "method=fedavg",
                "train.rounds=1",
                "data.val=0.2",
            ]
            run(read(words=words), f"runs/{seed}")
    finally:
        os.umask(before)
    open_to_others = [p for p in cache.rglob("*") if p.is_dir() and p.stat().st_mode & 0o077]
    assert open_to_others == [] and in_cache(cache, rows["b"]) == 16
    assert main(["forget", "runs/0", "b", "--quiet", *(["--delete-old"] if delete else [])]) == 0
    said = capsys.readouterr().err
    assert in_cache(cache, rows["b"]) == (0 if delete else 16)
    assert f"- {'deleted: ' if delete else ''}{cache / 'decoded' / 'folder_pets'}" in said
    assert "runs/1: another run of pets with b; forget it there too" in said


def test_a_cache_that_was_open_to_others_is_closed_when_it_is_next_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))
    images(tmp_path / "pets", "ab")
    load(str(tmp_path / "pets"))
    (base := tmp_path / "cache" / "decoded").chmod(0o755)
    load(str(tmp_path / "pets"))
    assert base.stat().st_mode & 0o777 == 0o700


def test_data_given_as_objects_are_named_after_forgetting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))
    words = {"target": "outcome", "client": "hospital", "method": "fedavg", "rounds": 1}
    motet.run(data=hospitals(), out=tmp_path / "one", **words)
    assert main(["forget", str(tmp_path / "one"), "south", "--quiet", "--delete-old"]) == 0
    assert f"{tmp_path / 'cache' / 'given'}: given:table-" in capsys.readouterr().err
