"""Saved models on new rows: columns by name, the same answers as in the run, and clear complaints."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from conftest import make_clients_data
from motet.cli.main import main
from motet.client import Task
from motet.core import Turn
from motet.data.federated import DataError
from motet.engines.loop import Loop
from motet.methods.stacking import Stacking
from motet.published import Published
from motet.runs import recipe as recipes
from motet.runs.build import resolve
from motet.runs.export import export
from motet.runs.find_methods import method_names
from motet.runs.finish import card, in_file
from motet.runs.model_files import write_weights
from motet.runs.predict import laid_out, open_model, predict, read_weights
from motet.runs.run import Run, RunError, run
from motet.runs.store import Store
from motet.runs.trainer import Trainer
from motet.runs.training_ranges import QuantileRange, TrainingRanges, outside, quantiles
from motet.trusted_code import UntrustedCode
from motet.wire import pack, unpack
from rounds import after, turn


def write_files(folder: Path, numbers: bool) -> Path:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for i, name in enumerate(("east", "west")):
        n = 40 + 10 * i
        f = pd.DataFrame(
            {"age": rng.normal(50, 10, n), "sex": rng.choice(["f", "m"], n), "ill": rng.random(n) < 0.5}
        )
        far = f["age"] / 10 + 3 * (f["sex"] == "m") + rng.normal(0, 1, n)
        f["y"] = far if numbers else np.where(far > 6.5, "yes", "no")
        f.to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.fixture(scope="module", params=["fedper", "fedrod", "finetune", "numbers"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run's folder, and the folder of its files."""
    base = tmp_path_factory.mktemp("predict")
    files = write_files(base / "files", request.param == "numbers")
    method = "fedavg" if request.param == "numbers" else request.param
    words = [
        f"data={files}",
        "data.target=y",
        "data.unseen=0",
        f"method={method}",
        "net=mlp",
        "train.rounds=3",
    ]
    return run(recipes.read(None, words), base / "run").folder, files


def own_scores(folder: Path, client: str) -> np.ndarray:
    """What the client's personal model of the run makes of all its rows, in some order."""
    store = Store(folder)
    trainer = Trainer(resolve(recipes.Recipe(store.facts()["settings"])), store)
    method, turn = trainer.method, trainer.turn(store.facts()["reported"])
    engine = trainer.choice.build(trainer.federated.clients_data, trainer.keeps)
    engine.visit(method, turn)
    view = method.download(unpack(store.state(turn.number)), client)
    own: Any = method.personal(view, engine.keep(client), engine.data(client))
    client_data = trainer.federated.clients_data[client]
    x = torch.cat([part.take().x for part in (client_data.train, client_data.val, client_data.test)])
    scores = own(x)
    if trainer.federated.kind == "numbers":
        return np.sort((scores * trainer.federated.scale + trainer.federated.offset).numpy())
    return np.sort(torch.softmax(scores.double(), -1)[:, 1].numpy())


def test_predictions_are_those_of_the_runs_own_model(trained: tuple[Path, Path]) -> None:
    folder, files = trained
    table, notes = predict(folder / "models" / "west.safetensors", files / "west.csv")
    got = table["p(yes)"] if "p(yes)" in table else table["prediction"]
    assert notes == [] and len(table) == 50
    assert np.abs(np.sort(got.to_numpy()) - own_scores(folder, "west")).max() < 1e-5


def test_columns_are_found_by_name_and_others_are_left_alone(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, files = trained
    model = folder / "models" / "west.safetensors"
    frame = pd.read_csv(files / "west.csv").head(9)
    frame.assign(name="x")[["name", "sex", "ill", "age"]].to_csv(tmp_path / "new.csv", index=False)
    table, _ = predict(model, tmp_path / "new.csv")
    pd.testing.assert_frame_equal(table, predict(model, files / "west.csv")[0].head(9), rtol=1e-5)


def test_a_model_that_is_more_than_weights_is_a_file_of_trees(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, files = trained
    facts, trees = read_weights(folder / "models" / "west.safetensors")
    (tmp_path / "m.motet").write_bytes(pack({"facts": json.dumps(facts), "trees": tuple(trees)}))
    one, two = (
        predict(m, files / "west.csv")[0]
        for m in (tmp_path / "m.motet", folder / "models" / "west.safetensors")
    )
    assert one.equals(two)
    (tmp_path / "m.motet").write_bytes(b"no")
    with pytest.raises(RunError, match="is no model"):
        predict(tmp_path / "m.motet", files / "west.csv")


def test_an_onnx_file_says_the_same(trained: tuple[Path, Path], tmp_path: Path) -> None:
    folder, files = trained
    if "fedper" not in (folder / "recipe.toml").read_text().split("[method]")[1][:40]:
        pytest.skip("one method is enough")
    path = export(folder, "west", "onnx", tmp_path / "west.onnx")
    a, b = (predict(m, files / "west.csv")[0] for m in (path, folder / "models" / "west.safetensors"))
    assert (a["prediction"] == b["prediction"]).all() and (a["p(yes)"] - b["p(yes)"]).abs().max() < 1e-5


def test_the_command_writes_csv(trained: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder, files = trained
    model = str(folder / "models" / "east.safetensors")
    assert main(["predict", "--model", model, str(files / "east.csv")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("row,prediction") and len(out) == 41
    assert main(["predict", "--model", model, str(files / "east.csv"), "--to", str(folder / "p.csv")]) == 0
    assert (folder / "p.csv").read_text().splitlines() == out


def test_the_name_of_a_class_is_no_formula_in_csv_and_no_link_in_a_card(
    trained: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts, (weights,) = read_weights(trained[0] / "models" / "east.safetensors")
    if facts["kind"] == "numbers":
        pytest.skip("it has no classes")
    names = ['=HYPERLINK("http://x", "y")', "+1"]
    facts |= {"classes": names, "client": "[a](http://x)\n# b", "columns": ["=1+1", "<b>", "a|b"]}
    text = card(facts)
    assert "\\[a\\](http://x) # b\n" in text and "&lt;b>" in text and "a\\|b" in text
    assert [line for line in text.splitlines() if line.startswith("#")] == [text.splitlines()[0]]
    columns = {"columns": read_weights(trained[0] / "models" / "east.safetensors")[0]["columns"]}
    write_weights(tmp_path / "m.safetensors", dict(weights), facts | columns)
    assert main(["predict", "--model", str(tmp_path / "m.safetensors"), str(trained[1] / "east.csv")]) == 0
    cells = set(pd.read_csv(io.StringIO(capsys.readouterr().out), dtype=str)["prediction"])
    assert cells <= {"'" + names[0], "+1"}  # a number is no formula


# ---- every method ----

COMBINED = ["fedper+fedopt", "fedper+ifca", "fedper+cfl", "fedper+fedperc", "scaffold+dapfl", "feddyn+page"]
# the servers of page and dapfl have examples of their own
WINES = ["data=wine", "data.clients=3", "data.unseen=0", "data.server_test=0.2", "data.proxy=0.5", "net=mlp"]


def of_wines(method: str, folder: Path) -> tuple[Run, dict[str, pd.DataFrame]]:
    """A run, and the test rows of each client as its files had them."""
    words = [*WINES, "net.hidden=[8]", "train.rounds=2", f"method={method}"]
    resolved = resolve(recipes.read(None, words))
    f = resolved.federated
    names = [c.name for c in f.columns]
    tests = {
        c: pd.DataFrame(d.test.take().x.numpy() * f.rulers[c].spread + f.rulers[c].middle, columns=names)
        for c, d in f.clients_data.items()
    }
    return run(resolved, folder), tests


def as_in_the_run(done: Run, client: str, table: pd.DataFrame) -> None:
    """Hold the predictions of a file to those that the run kept of the same rows."""
    kept = pd.read_parquet(done.folder / "predictions.parquet").query(
        "side == 'personal' and client == @client"
    )
    chances = kept.filter(regex=r"^p\d").to_numpy()
    got = table.filter(like="p(")
    assert chances.shape == got.shape and len(got) > 5
    assert np.abs(got.to_numpy() - chances).max() < 1e-5
    classes = np.array([name[2:-1] for name in got])
    assert table["prediction"].astype(str).tolist() == classes[chances.argmax(1)].tolist()


@pytest.mark.parametrize("method", [*method_names(), *COMBINED])
def test_the_saved_models_of_every_method_predict_as_in_the_run(method: str, tmp_path: Path) -> None:
    done, tests = of_wines(method, tmp_path)
    for client, rows in tests.items():
        as_in_the_run(done, client, done.model(client).predict(rows))


@pytest.mark.parametrize("method", ["fedavg", "fedper", "stacking", "swarm", "fedrod", "gpfl"])
def test_the_command_predicts_with_the_models_of_every_kind(method: str, tmp_path: Path) -> None:
    done, tests = of_wines(method, tmp_path / "run")
    shared = not list((tmp_path / "run" / "models").glob("*.safetensors"))
    assert shared == (method in ("fedavg", "swarm"))  # equal ones are in global.safetensors alone
    for client, rows in tests.items():
        rows.to_csv(tmp_path / "new.csv", index=False)
        model, to = done.folder / "models" / f"{client}.safetensors", tmp_path / "out.csv"
        assert main(["predict", "--model", str(model), str(tmp_path / "new.csv"), "--to", str(to)]) == 0
        as_in_the_run(done, client, pd.read_csv(to))
        if shared:
            assert main(["predict", "--model", str(done.folder / "global.safetensors"),
                         str(tmp_path / "new.csv"), "--to", str(to)]) == 0  # fmt: skip
            as_in_the_run(done, client, pd.read_csv(to))


# ---- rows that lie elsewhere than those of training ----


def of_numbers(folder: Path, *words: str) -> tuple[Path, Path]:
    """A run whose target is a number, and the folder of its files."""
    files = write_files(folder / "files", True)
    given = [f"data={files}", "data.target=y", "data.unseen=0", "net=linear", "train.rounds=2", *words]
    return run(recipes.read(None, given), folder / "run").folder, files


def train_rows(folder: Path, client: str) -> pd.DataFrame:
    """The ages and outcomes of a client's training rows, as its file has them."""
    f = resolve(recipes.Recipe(Run(folder).facts["settings"])).federated
    age, rows, ruler = (
        [c.name for c in f.columns].index("age"),
        f.clients_data[client].train.take(),
        f.rulers[client],
    )
    x = rows.x[:, age].double().numpy() * ruler.spread[age] + ruler.middle[age]
    return pd.DataFrame({"age": x, "y": rows.y.double().numpy() * f.scale + f.offset})


def kept_ranges(folder: Path, model: str) -> dict[str, Any]:
    return dict(read_weights(folder / model)[0]["ranges"])


def with_ages(files: Path, to: Path, ages: list[float]) -> Path:
    frame = pd.read_csv(files / "west.csv")
    frame.loc[: len(ages) - 1, "age"] = ages
    frame.to_csv(to, index=False)
    return to


def test_rows_and_predictions_far_from_those_of_training_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder, files = of_numbers(tmp_path, "data.test=0.1", "data.val=0.05")
    model = folder / "models" / "west.safetensors"
    assert predict(model, files / "west.csv")[1] == []
    new = with_ages(files, tmp_path / "new.csv", [5000, 4000])
    assert main(["predict", "--model", str(model), str(new)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "column 'age': 2 of 50 rows lie far above the " in said
    assert "quantile of training (" in said and "the largest is 5,000" in said and "below" not in said
    assert "2 of 50 predictions lie far outside of the outcomes of training (" in said
    Run(folder).predict("west", pd.read_csv(new).drop(columns="y"))
    assert sum("the largest is 5,000" in line for line in caplog.messages) == 1


def test_a_range_keeps_at_least_five_rows_beyond_each_end_and_no_cell_of_others(tmp_path: Path) -> None:
    folder, _ = of_numbers(tmp_path, "data.test=0.05", "data.val=0.05", "method=fedavg")
    rows = {client: train_rows(folder, client) for client in ("east", "west")}
    rows[""] = pd.concat(rows.values())
    assert len(rows["east"]) < 40 < len(rows["west"])
    for client, own in {"west": rows["west"], "": rows[""]}.items():
        path = export(folder, client or "global", "safetensors", tmp_path / f"{client}.safetensors")
        found = kept_ranges(tmp_path, path.name)
        for name, (low, high, many) in {**found["columns"], "y": found["outcome"]}.items():
            assert many == len(own)
            assert [low, high] == pytest.approx(np.quantile(own[name], [5 / many, 1 - 5 / many]), rel=1e-5)
            assert (own[name] < low).sum() == 5 == (own[name] > high).sum()
        assert set(found["columns"]) == {"age"}  # flags have no range
    few = export(folder, "east", "safetensors", tmp_path / "east.safetensors")  # its weights lie with others'
    assert set(kept_ranges(tmp_path, few.name)) == {"none"}
    assert "are not in the file: quantiles of 3" in (folder / "models" / "east.md").read_text()
    assert "age" in next(
        line for line in (folder / "models" / "west.md").read_text().splitlines() if "`ranges`" in line
    )


def test_private_training_and_a_server_without_rows_keep_no_ranges(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    private = ("privacy.level=example", "privacy.noise_multiplier=1", "method.batch=8", "method=fedavg")
    folder, _ = of_numbers(tmp_path, *private)
    assert kept_ranges(folder, "global.safetensors") == {"none": "no privacy budget counts them"}
    f = resolve(recipes.Recipe(Run(folder).facts["settings"])).federated
    assert TrainingRanges.of(replace(f, clients_data={}), "", False).none


def test_models_of_earlier_versions_have_no_ranges_and_damaged_ones_are_refused(
    tmp_path: Path,
) -> None:
    folder, files = of_numbers(tmp_path, "method=fedper")
    facts, (weights,) = read_weights(folder / "models" / "west.safetensors")
    new = with_ages(files, tmp_path / "new.csv", [5000])
    path = tmp_path / "m.safetensors"
    write_weights(path, dict(weights), {k: v for k, v in facts.items() if k != "ranges"})
    assert predict(path, new)[1] == []
    write_weights(path, dict(weights), facts | {"ranges": {"columns": {"age": [1, "x", 3]}}})
    with pytest.raises(RunError, match="ranges of its training rows cannot be read"):
        predict(path, new)


def test_more_rows_beyond_a_quantile_than_chance_puts_there_are_named() -> None:
    ranges = TrainingRanges({"a": QuantileRange(0.0, 10.0, 500)})  # five rows lie beyond each end

    def said(of: int) -> list[str]:
        rows = np.full((200, 1), 5.0)
        rows[:of] = 11
        return ranges.remarks(["a"], rows, None)

    # scipy.stats.betabinom.sf(13 - 1, 200, 6, 496) is 1.2e-4, and a row more is below 1e-4; two are expected
    assert said(4) == [] and said(13) == []
    assert said(14) == [
        "column 'a': 14 of 200 rows lie above the 99 % quantile of training (10); the largest is 11"
    ]


def test_ordinary_new_rows_of_any_shape_are_silent_however_many() -> None:
    rng = np.random.default_rng(0)
    draws = {
        "log-normal": lambda n: rng.lognormal(0, 0.8, n),
        "normal": lambda n: rng.normal(60, 10, n),
        "around 0": lambda n: rng.normal(0, 1, n),
        "uniform": lambda n: rng.random(n),
    }
    for shape, draw in draws.items():
        for trained in (40, 160, 1000):
            for n in (40, 160, 1000):
                files = [(quantiles(draw(trained)), draw(n)) for _ in range(50)]
                notes = [line for r, rows in files if r for line in outside("lab", r, rows)]
                assert len(notes) <= 1, (shape, trained, n, notes)


def test_one_row_far_away_is_named_by_its_value_and_many_by_their_number() -> None:
    ages, lab = QuantileRange(47.0, 79.0, 96), QuantileRange(0.25, 4.0, 96)
    rows = np.full(160, 60.0)
    rows[0] = 5000
    assert list(outside("age", ages, rows)) == [
        "column 'age': 1 of 160 rows lies far above the 94.8 % quantile of training (79): 5,000"
    ]
    rows[:23] = 119  # not far by the log scale, and 23 of them are no chance
    assert list(outside("age", ages, rows)) == [
        "column 'age': 23 of 160 rows lie above the 94.8 % quantile of training (79); the largest is 119"
    ]
    rows[:23] = -30
    assert "23 of 160 rows lie below" in next(outside("age", ages, rows))
    ordinary = np.ones(160)
    ordinary[0] = 11.0  # far on the plain scale alone
    assert list(outside("lab", lab, ordinary)) == []
    ordinary[0] = 1000.0
    assert "1 of 160 rows lies far above" in next(outside("lab", lab, ordinary))


def test_more_columns_are_no_more_alarms() -> None:
    ranges = TrainingRanges({f"c{j}": QuantileRange(0.0, 10.0, 500) for j in range(20)})
    rows = np.full((200, 20), 5.0)
    rows[:14, 0] = 11  # in a table of one column, chance does this less than one time in 10,000
    assert ranges.remarks(list(ranges.columns), rows, None) == []


# ---- what can be wrong ----


def complaint(trained: tuple[Path, Path], frame: pd.DataFrame, tmp_path: Path, **how: Any) -> str:
    frame.to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(DataError) as e:
        predict(trained[0] / "models" / "east.safetensors", tmp_path / "new.csv", **how)
    return str(e.value)


def test_missing_columns_wrong_cells_and_gaps_are_reported_together(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    frame = pd.read_csv(trained[1] / "east.csv").head(3).astype({"ill": object})
    frame.loc[0, "ill"] = "perhaps"
    frame.loc[1, "sex"] = np.nan
    said = complaint(trained, frame.rename(columns={"age": "ages"}), tmp_path)
    assert "there is no column 'age'" in said and "did you mean 'ages'" in said
    assert "column 'ill' said yes or no in training, and 1 values are neither: new.csv (1: line 2)" in said
    assert "perhaps" not in said
    assert "column 'sex' has 1 empty cells: new.csv (1: line 3)" in said


@pytest.mark.parametrize("trained", ["fedper"], indirect=True)
def test_a_column_of_yes_and_no_takes_no_other_number(trained: tuple[Path, Path], tmp_path: Path) -> None:
    path, files = trained[0] / "models" / "east.safetensors", pd.read_csv(trained[1] / "east.csv")
    right = predict(path, trained[1] / "east.csv")[0].head(4).drop(columns="row")
    wrong = "column 'ill' said yes or no in training, and {} values are neither: {}"
    for given, lines in (
        ([1, 2, 1, 2], (2, "3, 5")),
        ([0, 1, 0, 5000], (1, "5")),
        (["ja", "7", 0, 1], (1, "3")),
    ):
        said = complaint(trained, files.head(4).assign(ill=pd.Series(given, dtype=object)), tmp_path)
        assert (
            wrong.format(lines[0], f"new.csv ({lines[0]}: line {lines[1]})") in said
            and "hint: write 0" in said
        )
        assert "5,000" not in said and "5000" not in said
    model = open_model(path)
    frame = files.head(4).assign(ill=[1, 2, 0, 1])
    with pytest.raises(DataError, match="column 'ill' said yes or no in training, and 1 values are neither"):
        model.predict(frame)
    named = {
        "ill": frame["ill"],
        "age": frame["age"],
        "sex=f": frame["sex"] == "f",
        "sex=m": frame["sex"] == "m",
    }
    rows = np.column_stack([named[c] for c in model.columns]).astype(float)
    with pytest.raises(DataError, match="column 'ill' said yes or no in training, and 1 values are neither"):
        model.predict(rows)
    words = np.where(files["ill"].head(4), "oui", "non")
    pd.testing.assert_frame_equal(model.predict(files.head(4).assign(ill=words)), right)


def test_gaps_can_be_filled_and_values_that_nobody_saw_are_reported(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    frame = pd.read_csv(trained[1] / "east.csv").head(3)
    frame.loc[0, "age"], frame.loc[1, "sex"] = np.nan, "x"
    frame.to_csv(tmp_path / "new.csv", index=False)
    table, notes = predict(trained[0] / "models" / "east.safetensors", tmp_path / "new.csv", missing="mean")
    assert len(table) == 3 and table.notna().all().all()
    assert any("1 values that the model never saw, in 1 rows" in n for n in notes) and any(
        "empty cells of 'age'" in n for n in notes
    )


def test_files_that_are_no_models_are_refused(trained: tuple[Path, Path], tmp_path: Path) -> None:
    from safetensors.torch import save_file

    new = trained[1] / "east.csv"
    with pytest.raises(RunError, match="there is no model"):
        predict(tmp_path / "none.safetensors", new)
    with pytest.raises(RunError, match="is no model"):
        predict(new, new)
    save_file({"w": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(RunError, match="was not written by motet"):
        predict(tmp_path / "w.safetensors", new)


def test_a_models_file_makes_nobody_import_anything(trained: tuple[Path, Path], tmp_path: Path) -> None:
    from safetensors import safe_open

    with safe_open(str(export(trained[0], "east", "safetensors", tmp_path / "east")), "pt") as file:
        facts = json.loads(file.metadata()["motet"])
        weights = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    facts["net"] = {"name": "os:system"}
    write_weights(tmp_path / "m.safetensors", weights, facts)
    with pytest.raises(UntrustedCode, match="names code that is not motet's: os:system"):
        predict(tmp_path / "m.safetensors", trained[1] / "east.csv")
    facts |= {"net": {"name": "mlp"}, "method": {"name": "swarm", "loss": "os:system"}, "call": "check"}
    write_weights(tmp_path / "n.safetensors", weights, facts)
    with pytest.raises(UntrustedCode, match="os:system"):
        predict(tmp_path / "n.safetensors", trained[1] / "east.csv")
    facts |= {"method": {"name": "fedrod"}, "call": "__class__"}
    write_weights(tmp_path / "o.safetensors", weights, facts)
    with pytest.raises(RunError, match="there is no such function"):
        predict(tmp_path / "o.safetensors", trained[1] / "east.csv")


# ---- stacks ----


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("words", [[], ["method.threshold=2.0", "train.rounds=2"]])
def test_a_saved_stack_predicts_as_in_the_run(numbers: bool, words: list[str], tmp_path: Path) -> None:
    files = write_files(tmp_path / "files", numbers)
    given = [f"data={files}", "data.target=y", "data.unseen=0", "method=stacking", "train.rounds=1", *words]
    folder = run(recipes.read(None, given), tmp_path / "run").folder
    table, _ = predict(folder / "models" / "west.safetensors", files / "west.csv")
    got = table["prediction" if numbers else "p(yes)"].to_numpy()
    assert np.abs(np.sort(got) - own_scores(folder, "west")).max() < 1e-5


class Broken(Loop):
    """c01 publishes bytes that are no model."""

    def perform(self, verb: Any, client: str, sent: Any, keep: Any, data: Any) -> Any:
        reply, kept = super().perform(verb, client, sent, keep, data)
        if client == "c01" and getattr(verb, "__name__", "") == "publish":
            raw, model = b"\x07" * 50, Published.from_tree(reply[0])
            claims = replace(model.manifest, size=50, sha256=hashlib.sha256(raw).hexdigest())
            reply = [Published(claims, raw).tree()]
        return reply, kept


def saved_and_read(engine: Loop, method: Stacking, state: Any, now: Turn, path: Path) -> tuple[Any, Any]:
    """c00's predictions for some rows: by its own predictor, and by the saved one."""
    engine.visit(method, now)
    tree = dict(engine.personal_models(method, state, now))["c00"]
    tensors, layout = in_file(tree)
    write_weights(path, tensors, layout)
    facts, (read,) = read_weights(path)
    x = engine.data("c00").all.x
    return method.answer(*tree, x), method.answer(*laid_out(path, facts["layout"], read), x)


def test_a_saved_stack_without_the_model_that_was_refused_predicts_the_same(
    task: Task, tmp_path: Path
) -> None:
    method, engine = Stacking(task), Broken(make_clients_data([60] * 3))
    state = after(method, engine, 1)
    assert "c01" in state["refused"]
    before, now = saved_and_read(engine, method, state, turn(engine, 0), tmp_path / "m.safetensors")
    assert torch.equal(before, now)


def test_a_stack_that_an_earlier_version_saved_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write_files(tmp_path / "files", False)
    given = [f"data={files}", "data.target=y", "data.unseen=0", "method=stacking", "train.rounds=1"]
    model = run(recipes.read(None, given), tmp_path / "run").folder / "models" / "west.safetensors"
    facts, (tensors,) = read_weights(model)
    earlier = {k.removeprefix("0."): v for k, v in tensors.items()}
    write_weights(model, earlier, {k: v for k, v in facts.items() if k != "layout"})
    assert main(["predict", "--model", str(model), str(files / "west.csv")]) == 2
    said = capsys.readouterr().err
    assert "'private'" in said and "hint: motet run … --fresh" in said and "Traceback" not in said


def test_a_layout_that_does_not_fit_its_tensors_is_no_model() -> None:
    with pytest.raises(RunError, match="layout does not fit"):
        laid_out(Path("m"), {"list": [{"tensor": "none"}]}, {})
