"""The public interface: what `import motet` offers, and ordinary Python objects as data, nets and methods."""

from __future__ import annotations

import copy
import inspect
import json
import re
import runpy
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

import motet
from motet import settings
from motet.cli.main import main
from motet.data.code_digest import digest
from motet.report import tables
from motet.report.read import read
from motet.runs.from_python import sections

SENTINEL = "741852963"  # a value in the data that no message may show
LOOP = {"name": "loop"}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))


def frame(n: int = 90) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age, site = rng.normal(50, 10, n), rng.choice(["east", "north", "west"], n)
    ill = np.where(age + 5 * (site == "west") > 52, "yes", "no")
    return pd.DataFrame({"age": age, "sex": rng.choice(["f", "m"], n), "site": site, "ill": ill})


def arrays(clients: int = 3, n: int = 24) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(clients, n, 4)).astype(np.float32)
    return {f"c{i}": (x[i], (x[i, :, 0] > 0).astype(int)) for i in range(clients)}


def run(**settings: Any) -> motet.Run:
    given = {"rounds": 1, "engine": LOOP, "unseen": 0.0} | settings
    return motet.run(**given)


def complaint(**settings: Any) -> str:
    with pytest.raises(motet.MotetError) as caught:
        run(**settings)
    return str(caught.value)


# ---- names ----


def test_every_public_name_is_there_and_is_listed() -> None:
    assert motet.__all__ == sorted(motet.__all__) and set(motet.__all__) <= set(dir(motet))
    assert all(getattr(motet, name) is not None for name in motet.__all__)
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        _ = motet.runn


def test_every_public_function_and_class_explains_itself() -> None:
    things = [getattr(motet, name) for name in motet.__all__]
    assert [
        t for t in things if (inspect.isclass(t) or inspect.isfunction(t)) and not inspect.getdoc(t)
    ] == []


def test_methods_are_attributes_by_their_class_and_explain_themselves() -> None:
    from motet.runs.recipe import method_class, method_names

    listed = dir(motet.methods)
    files = {name.replace("_", ""): name for name in method_names()}
    assert sorted(name.lower() for name in listed) == sorted(files)
    for name in listed:
        assert getattr(motet.methods, name) is method_class(files[name.lower()])
        assert not getattr(motet.methods, name).__doc__.startswith(f"{name}(task")
    with pytest.raises(AttributeError, match="no method Dito"):
        _ = motet.methods.Dito


# ---- data ----


def test_a_frame_is_data_and_gives_what_its_file_gives(tmp_path: Path) -> None:
    given = frame()
    given.to_parquet(tmp_path / "same.parquet")
    options = {"target": "ill", "client": "site", "method": "ditto", "lr": 0.1}
    one = run(data=given, **options)
    two = run(data=str(tmp_path / "same.parquet"), **options)
    assert one.facts["fingerprint"] == two.facts["fingerprint"]
    pd.testing.assert_frame_equal(one.scores, two.scores)
    assert motet.verify(one.folder) == []


def test_a_run_on_objects_is_found_again_and_verified_by_another_process() -> None:
    done = run(data=frame(), target="ill", client="site")
    assert run(data=frame().copy(), target="ill", client="site").folder == done.folder
    command = [sys.executable, "-m", "motet.cli.main", "verify", str(done.folder)]
    said = subprocess.run(command, capture_output=True, text=True)
    assert "bit for bit" in said.stdout, said.stderr


def test_data_that_changed_are_another_run() -> None:
    changed = frame()
    changed.loc[0, "age"] += 1e-9
    done = run(data=frame(), target="ill", client="site")
    assert run(data=changed, target="ill", client="site").folder != done.folder


def test_a_copy_that_was_deleted_is_said_and_comes_back(tmp_path: Path) -> None:
    done = run(data=frame(), target="ill")
    (kept,) = (tmp_path / "cache" / "given").glob("*.parquet")
    assert kept.stat().st_mode & 0o077 == 0  # rows of people: for the owner alone
    kept.unlink()
    with pytest.raises(motet.errors.DataError, match="give the same objects"):
        motet.verify(done.folder)
    run(data=frame(), target="ill")
    assert motet.verify(done.folder) == []


def test_frames_by_client_are_one_table_with_a_client_column() -> None:
    by_client = {str(k): part.drop(columns="site") for k, part in frame().groupby("site")}
    done = run(data=by_client, target="ill")
    assert done.clients["client"].tolist() == ["east", "north", "west"]
    pd.testing.assert_frame_equal(done.test, run(data=frame(), target="ill", client="site").test)


class Squares(Dataset[Any]):
    """A Dataset that computes its examples."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.x[i]), int(self.y[i])


def test_arrays_tensors_and_datasets_by_client_are_the_same_data() -> None:
    pairs = arrays()
    forms = [
        pairs,
        {c: (torch.from_numpy(x), torch.from_numpy(y)) for c, (x, y) in pairs.items()},
        {c: (x.tolist(), y.tolist()) for c, (x, y) in pairs.items()},
        {c: Squares(x, y) for c, (x, y) in pairs.items()},
        {c: TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for c, (x, y) in pairs.items()},
    ]
    runs = [run(data=form) for form in forms]
    assert len({r.facts["fingerprint"] for r in runs}) == 1
    assert len({r.folder for r in runs}) == 1


def test_a_function_of_ones_own_still_is_data() -> None:
    done = run(data=lambda: arrays(2))
    assert done.clients["client"].tolist() == ["c0", "c1"]


# ---- nothing of the data in messages ----


def bad_cells() -> pd.DataFrame:
    return frame(4).assign(x=[{SENTINEL: 1}, None, None, None])


@pytest.mark.parametrize(
    "settings",
    [
        {"data": frame().assign(age=float(SENTINEL))},
        {"data": frame(), "target": pd.Series([SENTINEL])},
        {"data": frame(), "target": [SENTINEL] * 90},
        {"data": bad_cells(), "target": "ill"},
        {"data": [[float(SENTINEL)]]},
        {"data": np.full((3, 3), float(SENTINEL))},
        {"data": {"a": ([[SENTINEL, SENTINEL]], [0])}},
        {"data": {"a": ([[1.0], [float(SENTINEL), 2.0]], [0, 1])}},
        {"data": {"a": SENTINEL}},
        {"data": {"a": {"x": np.full(3, float(SENTINEL))}}},
        {"data": "wine", "rounds": pd.DataFrame({"a": [SENTINEL]})},
        {"data": "wine", "train": pd.DataFrame({"a": [SENTINEL]})},
        {"data": "wine", "seed": pd.Series([SENTINEL])},
        {"data": "wine", "method": pd.Series([SENTINEL])},
        {"data": "wine", "net": pd.Series([SENTINEL])},
        {"data": "wine", "method": {"name": "fedavg", "lr": pd.Series([SENTINEL])}},
        {"data": "wine", "engine": {"name": np.full(3, float(SENTINEL))}},
    ],
    ids=lambda settings: "-".join(settings) + f" {type(next(reversed(settings.values()))).__name__}",
)
def test_no_error_shows_values_of_the_data(settings: dict[str, Any]) -> None:
    assert SENTINEL not in complaint(**settings)


def test_what_is_no_data_is_named_by_its_type() -> None:
    assert complaint(data=np.zeros((3, 3))).startswith("data is a ndarray; expected a name or path, a frame")
    assert "target is a Series; it must be text" in complaint(data=frame(), target=frame()["ill"])
    assert "no target is named" in complaint(data=frame())


def test_a_loader_stands_for_its_dataset() -> None:
    pairs = {c: TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for c, (x, y) in arrays().items()}
    loaders = {c: DataLoader(d, batch_size=5, shuffle=c == "c1", drop_last=True) for c, d in pairs.items()}
    assert run(data=loaders, net="logistic").facts["data"] == run(data=pairs, net="logistic").facts["data"]


def stream() -> IterableDataset[Any]:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return zip(*arrays()["c0"], strict=True)

    return Stream()


def test_a_loader_of_a_stream_is_read_once() -> None:
    given = {c: DataLoader(stream(), batch_size=5) for c in "ab"}
    assert (
        run(data=given, net="logistic").facts["data"]
        == run(data={c: stream() for c in "ab"}, net="logistic").facts["data"]
    )


PAIRS = TensorDataset(torch.zeros(8, 3), torch.arange(8) % 2)
X, Y = torch.zeros(8, 3), torch.arange(8) % 2


@pytest.mark.parametrize(
    ("given", "said", "right"),
    [
        (DataLoader(PAIRS, sampler=WeightedRandomSampler([1.0] * 8, 4)), "rows by a WeightedRandomSampler", "Subset"),
        (DataLoader(PAIRS, collate_fn=list), "collate_fn of its own", "loader.dataset"),
        ({"train": (X, Y), "test": (X, Y)}, "a dict with train, test", "data.part"),
        ({"x": X, "y": Y}, "a dict with x, y", "(x, y)"),
        (((x, y) for x, y in PAIRS), "", ""),
        ([(x, y) for x, y in PAIRS], "a list of 8; expected a pair (x, y)", "torch Dataset"),
        (None, "a NoneType; expected", "DataLoader"),
        (X, "a Tensor whose items are no pairs (x, y)", "expected a pair of arrays"),
        (X.numpy(), "a ndarray whose items are no pairs (x, y)", "expected a pair of arrays"),
        ([X, Y, Y], "a list of 3; expected a pair (x, y)", "torch Dataset"),
        (3.5j, "a complex; expected", "DataLoader"),
    ],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_objects_that_are_no_data_are_refused_with_what_is(given: Any, said: str, right: str) -> None:
    if not said:
        assert run(data={"a": given, "b": (X, Y)}, net="logistic").facts["status"] == "done"
        return
    found = complaint(data={"a": given, "b": given})
    assert f"client a has {said}" in found or said in found
    assert right in found


def test_parts_are_no_clients() -> None:
    found = complaint(data={"train": (X, Y), "test": PAIRS})
    assert "data has the keys train and test; expected a key for each client" in found and "\nhint: " in found


# ---- keywords ----


@pytest.mark.parametrize(
    ("word", "right"),
    [
        ("round", "rounds"), ("learning_rate", "lr"), ("num_rounds", "rounds"), ("batch_size", "batch"),
        ("tarjet", "target"), ("metod", "method"), ("random_state", "seed"), ("model", "net"),
    ],
)  # fmt: skip
def test_a_misspelt_keyword_gets_the_right_word(word: str, right: str) -> None:
    said = complaint(**{"data": frame(), "target": "ill", word: 3})
    assert f"unknown keyword {word}\nhint: did you mean {right!r}?" in said


def test_what_can_be_said_is_listed_once_and_by_section() -> None:
    said = complaint(data="wine", zzzz=3)
    words = re.findall(r"\w+", said.partition("there are: ")[2])
    assert "of train: rounds" in said and words.count("seed") == 1
    twice = {w for w in words if words.count(w) > 1} - {"of", "train", "method", "data", "net"}
    assert not twice


def test_a_loss_that_is_an_object_of_torch_is_told_what_a_loss_may_be() -> None:
    said = complaint(data="wine", loss=nn.CrossEntropyLoss())
    assert (
        "loss is a CrossEntropyLoss; it must be text or a function\nhint: net.loss names motet's own" in said
    )


def test_a_list_of_one_is_hinted_at() -> None:
    assert "net.hidden is 64; it must be a list\nhint: net.hidden=[64]" in complaint(
        data="wine", net="mlp", hidden=64
    )


def test_settings_by_name_alone_go_where_they_belong() -> None:
    found = sections(None, {"data": "wine", "lr": 0.3, "rounds": 7, "clients": 4, "net": "mlp", "hidden": 5})
    assert found["method"] == {"lr": 0.3} and found["train"] == {"rounds": 7}
    assert found["data"] == {"name": "wine", "clients": 4} and found["net"] == {"name": "mlp", "hidden": 5}


def test_all_wrong_keywords_are_said_at_once() -> None:
    said = complaint(data="wine", round=3, learning_rate=2)
    assert "unknown keyword round" in said and "unknown keyword learning_rate" in said


def test_a_recipe_file_and_keywords_go_together(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('[data]\nname = "wine"\nclients = 5\n[train]\nrounds = 9\n')
    done = motet.run("r.toml", rounds=1, engine=LOOP)
    assert done.facts["data"] == "wine" and len(done.rounds) == 1


# ---- nets ----


class Small(nn.Module):
    """Built from (shape, outputs), with an option."""

    def __init__(self, shape: tuple[int, ...], outputs: int, width: int = 3) -> None:
        super().__init__()
        self.body = nn.Linear(shape[0], width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.body(x)))
        return out


class Fixed(nn.Module):
    """Built from nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(x)
        return out


def test_a_net_is_a_class_with_options_a_function_or_a_class_without_arguments() -> None:
    a = run(data=arrays(), net=Small, width=5)
    b = run(data=arrays(), net=lambda shape, outputs: Small(shape, outputs, width=5))
    c = run(data=arrays(), net=Fixed)
    run(
        data=arrays(), seed=1, net=lambda shape, outputs: Small(
            shape, outputs))  # fmt: skip
    assert a.facts["settings"]["net"]["width"] == 5 and a.facts["net"].endswith(":Small")
    assert b.facts["net"].startswith("session:lambda-") and c.facts["net"].endswith(":Fixed")
    for done in (a, b, c):
        assert motet.verify(done.folder) == []


def test_a_module_is_a_net_that_starts_from_its_own_weights() -> None:
    net = nn.Sequential(nn.Linear(4, 2))
    with torch.no_grad():
        net[0].weight.zero_(), net[0].bias.copy_(torch.tensor([5.0, 0.0]))
    done = run(data=arrays(), net=net, lr=1e-12)
    p = done.predict("c0", arrays()["c0"][0])
    assert p["prediction"].tolist() == ["0"] * 24 and np.allclose(p["p(0)"], torch.sigmoid(torch.tensor(5.0)))
    assert motet.verify(done.folder) == []
    with torch.no_grad():
        net[0].bias.zero_()
    assert run(data=arrays(), net=net, lr=1e-12).folder != done.folder  # other weights, another run


def test_a_net_that_cannot_be_built_says_what_is_expected() -> None:
    assert "expected two arguments, (shape, outputs), or none" in complaint(data=arrays(), net=nn.Bilinear)
    assert "cannot be built from (shape, outputs) = ((4,), 2)" in complaint(data=arrays(), net=nn.Linear)
    assert "net is a dict" in complaint(data=arrays(), net={"name": {}})


# ---- methods ----


def make_method(pull: float) -> type[motet.Method]:
    class Mine(motet.methods.FedAvg):  # type: ignore[name-defined,misc]
        """FedAvg with smaller steps."""

        share: motet.Share = 0.5  # of the learning rate

        @motet.verb
        def train(self, w: Any, keep: Any, data: Any) -> Any:
            return motet.descend(self.task.loss, w, data, lr=self.lr * self.share * pull), keep

    return Mine


def test_a_method_defined_here_runs_is_compared_and_verified() -> None:
    mine = make_method(1.0)
    done = run(data="wine", method=mine, share=0.25)
    assert done.facts["method"].startswith("session:Mine-") and motet.verify(done.folder) == []
    found = motet.compare([mine, "finetune"], data="wine", rounds=1, engine=LOOP, share=0.25)
    assert len(found.table) == 4 and any(m.startswith("session:Mine-") for m in found.table["method"])


def test_code_that_changed_is_another_run_and_the_same_code_is_the_same() -> None:
    names = [run(data="wine", method=make_method(pull)).facts["method"] for pull in (1.0, 1.0, 2.0)]
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (partial(int, base=2), partial(int, base=3)),
        (lambda: 1, lambda: 2),
        (np.arange(3), np.arange(4)),
        (torch.zeros(2), torch.ones(2)),
        ({"a": [1, 2]}, {"a": [1, 3]}),
        (Path("a"), Path("b")),
        (pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [2]})),
        (nn.Linear(1, 1), nn.Linear(1, 2)),
        (nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh())),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_a_digest_is_the_same_for_the_same_and_differs_for_another(one: Any, other: Any) -> None:
    digests = [digest(x) for x in (one, copy.deepcopy(one), other)]
    assert digests[0] == digests[1] != digests[2]


def test_a_global_that_code_uses_is_part_of_its_digest() -> None:
    def with_global(value: float) -> Any:
        known: dict[str, Any] = {"pull": value, "unused": object()}
        exec("def f():\n    return [pull for _ in range(2)]", known)
        return known["f"]

    digests = [digest(with_global(v)) for v in (1.0, 1.0, 2.0)]
    assert digests[0] == digests[1] != digests[2]


def test_motets_own_classes_are_methods_by_their_name() -> None:
    assert run(data="wine", method=motet.methods.Ditto).facts["method"] == "ditto"
    assert "inherits from motet.Method" in complaint(data="wine", method=dict)


def test_a_process_that_lacks_code_of_a_notebook_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run(data="wine", method=make_method(1.0))
    monkeypatch.setattr(settings, "known_here", {})  # as in a new process
    assert main(["verify", str(done.folder)]) == 2
    err = capsys.readouterr().err
    assert "error: Mine was defined in a notebook or script" in err and "hint: run the code that" in err


def test_a_method_of_a_script_runs_in_its_script_and_goes_on_there(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import motet\n"
        "class Mine(motet.methods.FedAvg):\n"
        "    pull: motet.Positive = 0.5  # of nothing\n"
        "done = motet.run(method=Mine, data='wine', rounds=1, pull=0.7, engine={'name': 'loop'})\n"
        "same = motet.verify(done.folder) == []\n"
    )
    first, second = (runpy.run_path("script.py", run_name="__main__") for _ in range(2))
    assert first["Mine"].__module__ == "__main__" and first["Mine"] is not second["Mine"]
    assert first["same"] and first["done"].folder == second["done"].folder


# ---- runs ----


def test_two_runs_in_two_threads_give_what_they_give_alone() -> None:
    def settings(seed: int) -> dict[str, Any]:
        return {"data": "wine", "seed": seed, "rounds": 2, "net": "mlp", "engine": {"name": "vmap"}}

    done: dict[int, motet.Run] = {}

    def work(seed: int) -> None:
        done[seed] = motet.run(**settings(seed), out=f"threads-{seed}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for seed in (0, 1):
        alone = motet.run(**settings(seed), out=f"alone-{seed}")
        assert done[seed].scores.drop(columns="seconds", errors="ignore").equals(alone.scores)


def test_on_round_is_called_after_every_round_with_the_scores_so_far() -> None:
    ended: list[motet.RoundEnd] = []
    done = run(data="wine", method="finetune", rounds=3, on_round=ended.append)
    assert [(r.method, r.round, r.rounds) for r in ended] == [("finetune", i, 3) for i in range(3)]
    val = (
        done.scores.query("part == 'val' and round == 2 and side != 'constant'")
        .groupby("side")["accuracy"]
        .mean()
    )
    assert ended[-1].scores == pytest.approx(val.to_dict())
    assert sum(r.seconds for r in ended) == pytest.approx(done.facts["seconds"])


def test_an_exception_in_on_round_ends_the_call_and_the_same_call_goes_on() -> None:
    def stop(r: motet.RoundEnd) -> None:
        if r.round == 1:
            raise RuntimeError("enough")

    settings: dict[str, Any] = {"data": "wine", "rounds": 3, "save": {"checkpoint": 0}}
    with pytest.raises(RuntimeError, match="enough"):
        run(**settings, on_round=stop)
    rest: list[int] = []
    run(**settings, on_round=lambda r: rest.append(r.round))
    assert rest == [2]


def test_progress_goes_to_stderr_and_only_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    run(data="wine", seed=1)
    assert capsys.readouterr() == ("", "")
    run(data="wine", seed=2, progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "fedavg: 20 clients, 1 rounds" in err


def test_a_runs_summary_is_what_the_report_says() -> None:
    done = motet.run(method="ditto", data="wine", rounds=2, engine=LOOP)  # with unseen clients
    report = tables.summary(read([done.folder])[0])
    for key in ("personal", "global", "clients", "rounds", "seed", "method", "metric", "reported"):
        assert done.summary[key] == pytest.approx(report[key]) if key != "method" else report[key]
    json.dumps(done.summary)


def test_a_runs_models_predict_frames_and_arrays() -> None:
    table = run(data=frame(), target="ill", client="site", method="finetune", rounds=3)
    model = table.model("west")
    said = model.predict(frame().drop(columns=["ill", "site"]))
    assert list(said) == ["prediction", "p(no)", "p(yes)"] and len(said) == 90
    assert said.equals(table.predict("west", frame())) and "client west" in repr(model)
    plain = run(data=arrays())
    assert len(plain.predict("global", arrays()["c1"][0])) == 24
    with pytest.raises(motet.errors.DataError, match=r"have the shape \(3,\); this model expects \(4,\)"):
        plain.predict("c1", np.zeros((2, 3)))
    with pytest.raises(motet.errors.RunError, match="did you mean 'west'"):
        table.model("wst")


def test_data_show_who_holds_what_in_a_notebook_and_names_are_text() -> None:
    from motet.data.load import load

    found = load("wine", {"clients": 3})
    shown = replace(found, name="<script>")._repr_html_()
    assert "<script>" not in shown and "client-0" in shown and "<th>test</th>" in shown
