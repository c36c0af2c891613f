"""Single clients of a simulation publish what they choose: another family, a model of their own, or nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("onnxruntime")

from sklearn.ensemble import ExtraTreesClassifier

from conftest import make_clients_data
from motet.client import Batch, Task
from motet.engines.loop import Loop
from motet.errors import UsageError
from motet.methods.stacking import Stacking
from motet.published import Feature, defaults, publish
from motet.published.folder import save
from motet.published.outbox import Terms
from motet.runs.identity import changes, pieces_of, whole
from motet.runs.recipe import read
from motet.runs.run import run
from motet.stacking.client_choices import wishes
from rounds import after

NAMES = [f"x{k}" for k in range(6)]


def published(method: Stacking, engine: Loop) -> dict[str, str]:
    found = method.summary(after(method, engine, 1))["published"]
    return {c: p["what"].partition(" on ")[0] for c, p in found.items()}


def test_families_mix_in_one_simulation(task: Task) -> None:
    choices = ("c00: forest trees=3", "c01: linear columns=x0,x3", "c02: nothing")
    method = Stacking(task, trees=5, public="boosting", public_of=choices)
    what = published(method, Loop(make_clients_data([60] * 4)))
    assert what["c00"] == "a forest of 3 trees" and what["c01"] == "a linear model"
    assert what["c02"] == "nothing" and what["c03"] == "a boosting of 5 rounds"


@pytest.mark.parametrize("library", ["xgboost", "lightgbm", "torch", "sklearn"])
def test_a_client_publishes_the_model_of_its_own_that_lies_in_the_outbox(
    task: Task, tmp_path: Path, library: str
) -> None:
    own = pytest.importorskip(library)
    clients_data = make_clients_data([80] * 3)
    rows = clients_data["c01"].train.take()
    if library == "torch":
        model: Any = own.nn.Sequential(own.nn.Linear(6, 8), own.nn.ReLU(), own.nn.Linear(8, 3))
    else:
        model = {"xgboost": "XGBClassifier", "lightgbm": "LGBMClassifier"}.get(library, "")
        model = getattr(own, model)(n_estimators=3) if model else forest()
        model.fit(rows.x.numpy(), rows.y.numpy())
    about: Any = {"client": "c01", "task": "classes", "classes": ("0", "1", "2")}
    save(publish(model, [Feature(n) for n in NAMES], **about), tmp_path)
    method, engine = Stacking(task, trees=5, outbox=str(tmp_path)), Loop(clients_data)
    what = published(method, engine)
    assert what["c01"].endswith(f" {type(model).__name__}") and what["c00"] == "a forest of 5 trees"


def forest() -> Any:
    from sklearn.ensemble import ExtraTreesClassifier

    return ExtraTreesClassifier(4, random_state=0)


@pytest.mark.parametrize("line", ["c00 linear", "c00: outbox", "c00: trees"])
def test_a_choice_that_cannot_be_read_is_refused_with_a_hint(line: str) -> None:
    with pytest.raises(UsageError, match="hint: "):
        wishes([line], "", ["c00"])


def test_a_choice_for_a_client_that_is_not_there_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    words = ["data=wine", "data.clients=3", "method=stacking", "train.rounds=1"]
    with pytest.raises(
        UsageError, match="method.public_of: unknown client cleint-1(.|\n)*did you mean 'client-1'"
    ):
        run(read(words=[*words, 'method.public_of=["cleint-1: dp-linear"]']), tmp_path / "r")
    assert not (tmp_path / "r").exists()
    left = ["method.trees=2", 'data.without=["client-1"]', 'method.public_of=["client-1: nothing"]']
    assert len(run(read(words=[*words, *left]), tmp_path / "r").clients) == 2


def test_a_damaged_model_in_the_outbox_is_named(tmp_path: Path) -> None:
    (tmp_path / "c00.onnx").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="client c00: its manifest cannot be read"):
        wishes([], str(tmp_path), ["c00", "c01"])


def test_a_model_with_other_labels_is_refused_in_words_and_the_others_are_stacked(
    task: Task, tmp_path: Path
) -> None:
    clients_data = make_clients_data([60] * 3)
    rows = clients_data["c01"].train.take()
    labels = [("low", "mid", "high")[k] for k in rows.y.tolist()]
    about: Any = {"client": "c01", "task": "classes", "classes": ("low", "mid", "high")}
    save(publish(forest().fit(rows.x.numpy(), labels), [Feature(n) for n in NAMES], **about), tmp_path)
    method = Stacking(task, trees=5, outbox=str(tmp_path))
    state = after(method, Loop(clients_data), 1)
    assert "predicts the classes ['low', 'mid', 'high'], none of which is ours" in state["refused"]["c01"]
    assert "c02" in state["trust"]["c00"] and "c01" not in state["trust"]["c00"]


def test_auto_chooses_the_private_model_alone_where_others_publish_noise(task: Task) -> None:
    g = torch.Generator().manual_seed(0)
    clients_data = make_clients_data([60, 200, 200])
    for c in ("c01", "c02"):
        rows = clients_data[c].train.take()
        noise = torch.randint(0, 3, (len(rows.y),), generator=g)
        clients_data[c] = replace(clients_data[c], train=Batch.of(rows.x, noise))
    own = clients_data["c00"]
    clients_data["c00"] = replace(own, val=own.test)  # more rows to choose by
    engine = Loop(clients_data)
    state = after(Stacking(task, trees=10, variant="auto"), engine, 1)
    kept: Any = engine.keeps.get("c00")
    assert kept["whom"] == {} and kept["meta"] == ()
    assert state["trust"]["c00"] == {"c00": 1.0, "c01": 0.0, "c02": 0.0}


def test_a_client_that_is_served_nothing_keeps_what_it_found_out_before(task: Task) -> None:
    method = Stacking(task, trees=5, threshold=1.0)
    once = after(method, Loop(make_clients_data([60] * 4)), 1)
    later = after(method, Loop(make_clients_data([60] * 4)), 4)
    out = [c for c in once["trust"] if not method.download(once, c)]
    assert out and len(out) < 4
    assert all(later["trust"][c] == once["trust"][c] for c in out)
    assert any(later["history"][-1].values())


def test_a_pickle_a_stranger_s_model_or_no_folder_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder(.|\n)*hint: motet.save_published"):
        wishes([], str(tmp_path / "nowhere"), ["c00"])
    (tmp_path / "c00.pkl").write_bytes(b"\x80\x04")
    with pytest.raises(UsageError, match="is a pickle(.|\n)*hint: "):
        wishes([], str(tmp_path), ["c00"])
    (tmp_path / "c00.pkl").rename(tmp_path / "c0.onnx")
    with pytest.raises(UsageError, match="unknown client c0(.|\n)*did you mean 'c00'"):
        wishes([], str(tmp_path), ["c00"], {"c00": Terms({})})


def test_a_model_of_the_table_itself_is_published_from_the_outbox_of_a_simulation(tmp_path: Path) -> None:
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    frame = hospital_rows()
    frame.to_csv(tmp_path / "people.csv", index=False)
    text = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["job"]), remainder="passthrough")
    mine = frame[frame["site"] == "north"]
    model = make_pipeline(text, forest()).fit(mine[["age", "job"]], mine["outcome"])
    features = defaults(mine, {"age": "number", "job": "category"})
    about: Any = {"client": "north", "task": "classes", "classes": ("ill", "well"), "sample": mine}
    save(publish(model, features, **about), tmp_path / "outbox")
    words = ["method=stacking", "method.trees=5", f"method.outbox={tmp_path / 'outbox'}", "train.rounds=1"]
    words += [f"data={tmp_path / 'people.csv'}", "data.target=outcome", "data.client=site"]
    done = run(read(words=words), tmp_path / "r")
    found = done.contributions
    assert found["refused"] == {} and found["published"]["north"]["what"].startswith(
        "an ExtraTreesClassifier"
    )
    assert found["trust"]["south"]["north"] > 0.02 and "north" not in found["named"]


def test_a_model_that_changed_in_the_outbox_is_another_run(tmp_path: Path) -> None:
    def put(seed: int) -> None:
        x, y = np.random.default_rng(seed).normal(size=(60, 13)), np.arange(60) % 3
        model = ExtraTreesClassifier(3, random_state=seed).fit(x, y)
        about: Any = {"client": "client-1", "task": "classes", "classes": ("0", "1", "2")}
        save(publish(model, [Feature(f"x{k}") for k in range(13)], **about), tmp_path / "outbox")

    recipe = read(words=["data=wine", "method=stacking", f"method.outbox={tmp_path / 'outbox'}"])
    put(0)
    first = pieces_of(recipe)
    facts = {"identity_pieces": first, "settings": recipe.settings}
    assert changes(facts, recipe, pieces_of(recipe)) == []
    put(1)
    now = pieces_of(recipe)
    assert whole(now) != whole(first)
    assert changes(facts, recipe, now) == [f"outbox: client-1.{kind} changed" for kind in ("json", "onnx")]
    (tmp_path / "outbox" / "client-1.onnx").unlink()
    assert "outbox: client-1.onnx is gone" in changes(facts, recipe, pieces_of(recipe))


def test_a_client_called_as_one_s_own_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    frame = hospital_rows().replace({"site": {"west": "private"}})
    frame.to_csv(tmp_path / "people.csv", index=False)
    words = [f"data={tmp_path / 'people.csv'}", "data.target=outcome", "data.client=site", "train.rounds=1"]
    with pytest.raises(UsageError, match="a client is called 'private'(.|\n)*hint: rename"):
        run(read(words=[*words, "method=stacking"]), tmp_path / "r")
    assert not (tmp_path / "r").exists()
    assert run(read(words=[*words, "method=local"]), tmp_path / "l").facts["status"] == "done"


def hospital_rows() -> Any:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {"site": np.repeat(["north", "south", "west"], 120), "age": rng.integers(18, 90, 360)}
    )
    rows["job"] = rng.choice(["clerk", "nurse", "baker"], 360)
    rows["outcome"] = np.where((rows["age"] > 50) ^ (rows["job"] == "nurse"), "ill", "well")
    return rows
