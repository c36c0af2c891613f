"""Runs by other losses: what they choose, say, keep and predict; and what is refused before anything is written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import mean_poisson_deviance

import motet
from motet.cli.main import main
from motet.core import MethodUnfit
from motet.runs.choose_loss import balanced
from motet.runs.choose_metric import auto_metric
from motet.runs.export import export
from motet.runs.predict import predict
from motet.runs.recipe import Recipe, RecipeError, method_names, read
from motet.runs.run import run, verify
from motet.survival import concordance
from survivors import survivors, table
from survivors import words as survival_words

WINE = ["data=wine", "data.clients=3", "data.unseen=0", "train.rounds=2", "engine.name=loop"]


def visits(folder: Path) -> list[str]:
    """Counts of visits at three sites."""
    draw = np.random.default_rng(3)
    x = draw.normal(size=(150, 2)).round(3)
    frame = pd.DataFrame({"u": x[:, 0], "v": x[:, 1], "site": np.repeat(["a", "b", "c"], 50)})
    frame["visits"] = draw.poisson(np.exp(1.5 + 0.6 * x[:, 0]))
    frame.to_csv(folder / "visits.csv", index=False)
    named = [f"data={folder / 'visits.csv'}", "data.target=visits", "data.client=site", "data.kind=numbers"]
    return [*named, "data.unseen=0", "train.rounds=3", "engine.name=loop"]


# ---- what a run is made of ----


def test_what_is_left_open_is_what_fits_the_targets_and_is_the_same_run_as_before() -> None:
    recipe = read(words=WINE)
    named = read(words=[*WINE, "net.loss=cross_entropy"])
    assert recipe.identity() == named.identity() != read(words=[*WINE, "net.loss=focal"]).identity()
    earlier: dict[str, Any] = {k: v for k, v in recipe["net"].items() if k in ("name", "weights")}
    assert Recipe(recipe.settings | {"net": earlier}).identity() == recipe.identity()


def test_the_metric_is_what_the_loss_is_for() -> None:
    assert [auto_metric("numbers", {}, k)[0] for k in ("auto", "absolute", "quantile", "poisson", "m:f")] == [
        "rmse", "mae", "pinball", "deviance", "loss"]  # fmt: skip
    assert auto_metric("survival", {})[0] == "cindex"
    assert auto_metric("classes", {"a": 5, "b": 5}, "focal")[0] == "accuracy"


def test_balanced_classes_weigh_the_same_together() -> None:
    counts = {"a": 60, "b": 30, "c": 10}
    weights = balanced(counts)
    assert [w * n for w, n in zip(weights, counts.values(), strict=True)] == pytest.approx(
        [100 / 3] * 3, rel=1e-3
    )
    with pytest.raises(RecipeError, match="nothing is known"):
        balanced({})


def test_a_run_writes_the_numbers_of_its_class_weights_down(tmp_path: Path) -> None:
    done = run(read(words=[*WINE, "net.loss=focal", "net.class_weights=balanced"]), tmp_path / "r")
    weights = done.facts["settings"]["net"]["class_weights"]
    assert len(weights) == 3 and min(weights) < 1 < max(weights)
    assert not verify(done.folder)


REFUSED = [
    (["net.loss=poisson"], "the targets are classes, which it does not fit"),
    (["net.loss=cox"], "data.kind=survival with data.event"),
    (["net.loss=focall"], "did you mean 'focal'"),
    (["net.class_weights=[1, 2]"], "2 numbers, and there are 3 classes"),
    (["net.class_weights=equal"], "none, balanced, or a number for each class"),
    (["net.loss=focal", "net.gamma=-1"], "net.gamma"),
    (["net.loss=quantile", "net.quantile=1"], "above 0 and below 1"),
    (["train.metric=pinball"], "only fits models of the loss quantile"),
    (["method=fedrod", "net.class_weights=balanced"], "balances classes itself"),
    (["method=stacking", "net.loss=focal"], "fitted by losses of their own"),
    (["method=swarm", "method.loss=one_vs_all", "net.loss=focal"], "would train nothing"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[" ".join(w) for w, _ in REFUSED])
def test_what_does_not_fit_is_refused_with_words(tmp_path: Path, words: list[str], said: str) -> None:
    with pytest.raises((RecipeError, MethodUnfit)) as caught:
        run(read(words=[*WINE, *words]), tmp_path / "r")
    assert said in str(caught.value) and not (tmp_path / "r" / "run.sqlite").exists()


def test_counts_below_zero_are_refused(tmp_path: Path) -> None:
    words = visits(tmp_path)
    frame = pd.read_csv(tmp_path / "visits.csv")
    frame.loc[3, "visits"] = -1
    frame.to_csv(tmp_path / "visits.csv", index=False)
    with pytest.raises(RecipeError, match=r"1 of 3 clients have targets below 0\nhint: net.loss=squared"):
        run(read(words=[*words, "net.loss=poisson"]), tmp_path / "r")


# ---- predictions ----


@pytest.mark.parametrize("loss", ["poisson", "quantile", "absolute"])
def test_scores_predictions_and_motet_predict_agree_in_the_targets_unit(tmp_path: Path, loss: str) -> None:
    more = ["net.quantile=0.8"] if loss == "quantile" else []
    done = run(read(words=[*visits(tmp_path), f"net.loss={loss}", *more]), tmp_path / "r")
    rows = pd.read_parquet(tmp_path / "r" / "predictions.parquet").query(
        "side == 'personal' and client == 'a'"
    )
    test = done.test.query("side == 'personal' and client == 'a'").iloc[0]
    y, value = rows["target"].to_numpy(), rows["value"].to_numpy()
    assert np.allclose(y, np.round(y), atol=1e-4)
    assert test["mae"] == pytest.approx(np.abs(y - value).mean(), rel=1e-3)
    if loss == "poisson":
        assert (value > 0).all()
        assert test["deviance"] == pytest.approx(mean_poisson_deviance(np.round(y), value), rel=1e-3)
    model = tmp_path / "r" / "models" / "a.safetensors"
    found, _ = predict(model, tmp_path / "visits.csv")
    portable = export(tmp_path / "r", "a", "onnx", tmp_path / "a.onnx")
    assert np.allclose(found, predict(portable, tmp_path / "visits.csv")[0], rtol=1e-4)
    miss = np.abs(value[:, None] - found["prediction"].to_numpy()).min(1)
    assert (miss < 1e-4).all(), "each prediction of the run is one of these"
    said = {"poisson": "a rate", "quantile": "the 0.8 quantile", "absolute": "the median"}[loss]
    assert said in model.with_suffix(".md").read_text()


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("fedrod", r"^method fedrod and net.class_weights: its generic head balances"),
        ("swarm", r"so that net.class_weights would train nothing"),
    ],
)
def test_a_method_that_takes_no_class_weights_names_them(method: str, said: str, tmp_path: Path) -> None:
    more = ["method.loss=one_vs_all"] if method == "swarm" else []
    words = [*WINE, f"method={method}", "net.class_weights=balanced", *more]
    with pytest.raises(RecipeError, match=said):
        run(read(words=words), tmp_path / "r")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["net.quantile=0.9"], r"net.quantile is 0.9, and net.loss is auto.*\nhint: net.loss=quantile"),
        (["net.loss=focal", "net.quantile=0.9"], "net.loss is focal: only quantile has it"),
        (["net.gamma=1"], r"net.gamma is 1, and net.loss is auto.*\nhint: net.loss=focal"),
    ],
)
def test_a_setting_of_a_loss_that_is_not_used_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        read(words=[*WINE, *words])
    read(words=[*WINE, "net.gamma=2.0", "net.quantile=0.5"])  # as recipes with all defaults have them
    read(words=[*WINE, "net.loss=focal", "net.gamma=1"])


@pytest.mark.parametrize("engine", ["loop", "threads", "vmap"])
def test_times_that_single_precision_holds_equal_keep_their_order(engine: str, tmp_path: Path) -> None:
    """Seconds since 1970: only the order of times counts, so a run on later times is the same run."""
    scores, targets, frame = [], [], survivors()
    for later in (0.0, 1.7e9):
        folder = tmp_path / f"{later:g}"
        folder.mkdir()
        path = table(folder, frame.assign(days=frame["days"] + later))
        words = [*survival_words(path), "train.rounds=3", f"engine.name={engine}"]
        done = run(read(words=words), folder / "r")
        scores.append(done.scores[["client", "part", "side", "cindex", "loss"]])
        targets.append(pd.read_parquet(folder / "r" / "predictions.parquet")["target"].abs() - later)
    pd.testing.assert_frame_equal(*scores)
    assert np.abs(targets[0] - targets[1]).max() < 1e-4


def test_a_model_of_survival_gives_the_log_risk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path)
    done = run(read(words=[*survival_words(path), "train.rounds=8"]), tmp_path / "r")
    facts = done.facts
    assert (facts["kind"], facts["metric"], facts["better"]) == ("survival", "cindex", 1)
    assert facts["settings"]["net"] | {"loss": "cox"} == facts["settings"]["net"]
    rows = pd.read_parquet(tmp_path / "r" / "predictions.parquet").query(
        "side == 'personal' and client == 'north'"
    )
    score = done.test.query("side == 'personal' and client == 'north'")["cindex"].iloc[0]
    assert score == pytest.approx(concordance(rows["target"].to_numpy(), rows["value"].to_numpy()))
    assert (done.test.query("side == 'constant'")["cindex"].dropna() == 0.5).all()
    assert main(["predict", str(path), "--model", str(tmp_path / "r" / "models" / "north.safetensors")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "row,log_risk" and len(out) == 1 + len(survivors())
    assert "logarithm of a relative risk" in (tmp_path / "r" / "models" / "north.md").read_text()
    assert done.test.query("side == 'personal'")["cindex"].mean() > 0.6


def test_few_events_choose_the_round_by_the_loss(tmp_path: Path) -> None:
    """Nobody has a pair of validation rows that can be compared."""
    frame = survivors()
    frame["died"] = (frame.groupby("hospital").cumcount() < 1).astype(int)
    done = run(read(words=[*survival_words(table(tmp_path, frame)), "data.val=0.05"]), tmp_path / "r")
    assert done.facts["round_by"] == "loss" and done.facts["metric"] == "cindex"


def test_python_gives_times_and_events_and_a_loss_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))
    frames = dict(tuple(survivors().groupby("hospital")))
    data = {
        k: (f[["age", "dose"]].to_numpy(), (f["days"].to_numpy(), f["died"].to_numpy()))
        for k, f in frames.items()
    }
    how: dict[str, Any] = {"rounds": 2, "unseen": 0, "engine": {"name": "loop"}}
    assert motet.run(data=data, **how).facts["metric"] == "cindex"
    own = motet.run(data="diabetes", clients=3, loss=huber, **how)
    assert own.facts["metric"] == "loss" and own.facts["code"][0]["name"].endswith("huber")
    assert np.isfinite(own.model("client-0").predict(np.zeros((2, 10)))).all().all()


def huber(z: Any, y: Any) -> Any:
    miss = (z - y).abs()
    return (miss.clamp(max=1) ** 2) / 2 + (miss - 1).clamp(min=0)


# ---- code of one's own ----


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("return ((z - y) ** 2).mean()", "returned ()"),
        ("return (z - y) ** 2 / y.sum()", "depend on other rows"),
        ("return (z.detach() - y) ** 2", "no gradient flows through"),
        ("return (z - y) / 0", "not finite"),
        ("return z[7]", "IndexError"),
    ],
)
def test_a_loss_that_gives_rows_no_losses_of_their_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    name = f"own_loss_{sum(map(ord, text))}"
    (tmp_path / f"{name}.py").write_text(f"def loss(z, y):\n    {text}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["data=diabetes", "data.clients=3", f"net.loss={name}:loss", "train.rounds=1"]
    with pytest.raises(RecipeError) as caught:
        run(read(words=words), tmp_path / "r")
    assert said in str(caught.value) and "hint: function(outputs, targets)" in str(caught.value)


def test_a_recipe_that_names_a_strangers_loss_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("stranger_loss.py").write_text("raise SystemExit('imported')\n")
    Path("recipe.toml").write_text('[data]\nname = "wine"\n[net]\nloss = "stranger_loss:loss"\n')
    assert main(["run", "recipe.toml", "--quiet"]) == 2 and "stranger_loss" not in sys.modules


# ---- every method ----


@pytest.mark.long
@pytest.mark.parametrize("method", [m for m in method_names() if m != "stacking"])
@pytest.mark.parametrize("loss", ["poisson", "quantile", "cox", "focal"])
def test_every_method_trains_by_every_kind_of_loss(tmp_path: Path, method: str, loss: str) -> None:
    data = {"cox": survival_words(table(tmp_path)), "focal": WINE}.get(loss) or visits(tmp_path)
    words = [
        *data,
        f"method={method}",
        f"net.loss={loss}",
        "net.name=mlp",
        "train.rounds=2",
        "data.server_test=0.2",  # one of the methods scores models at the server
        "data.proxy=0.5",
    ]
    done = run(read(words=words), tmp_path / "r")
    assert np.isfinite(done.test.query("side == 'personal'")["loss"]).all()
