"""What publishing costs, and how well strangers' answers agree: families of models on 4,664 rows of Census.

    python benchmarks/publish.py

RowHashes a table and writes benchmarks/results/publish.md: bytes, seconds of computing to convert a model and
those of skl2onnx for the same model, and the largest difference between the probabilities that a model gives
at home and those of its published form in the child process, over 10,000 other rows.
"""

from __future__ import annotations

import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import torch
import xgboost
from sklearn import ensemble, linear_model
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from motet.data.sets import census
from motet.published import defaults, predict, publish
from motet.published.convert import at_home, convert

HERE = Path(__file__).parent
ROWS, ASKED = 4664, 10_000
CLASSES = ("at most 50K", "more than 50K")


def models(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Fitted models; the network is not trained, which changes nothing here."""
    torch.manual_seed(0)
    found = {
        "random forest": ensemble.RandomForestClassifier(random_state=0),
        "extra trees": ensemble.ExtraTreesClassifier(random_state=0),
        "gradient boosting": ensemble.GradientBoostingClassifier(random_state=0),
        "histogram boosting": ensemble.HistGradientBoostingClassifier(random_state=0),
        "XGBoost": xgboost.XGBClassifier(n_jobs=1),
        "LightGBM": lightgbm.LGBMClassifier(n_jobs=1, verbose=-1),
        "logistic": make_pipeline(StandardScaler(), linear_model.LogisticRegression(max_iter=1000)),
    }
    fast = _intelex()
    if fast is not None:
        found["random forest of intelex"] = fast(random_state=0)
    fitted = {name: model.fit(x, y) for name, model in found.items()}
    net = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    return fitted | {"torch network": net}


def _intelex() -> Any:
    try:
        from sklearnex.ensemble import RandomForestClassifier
    except ImportError:
        return None
    return RandomForestClassifier


def other(model: Any, x: np.ndarray) -> str:
    """Seconds of skl2onnx, where the model is one of scikit-learn's."""
    from skl2onnx import to_onnx

    if not type(model).__module__.startswith("sklearn."):
        return ""
    began = time.process_time()
    try:
        to_onnx(model, x[:1], options={"zipmap": False}, target_opset={"": 18, "ai.onnx.ml": 3})
    except (ValueError, TypeError, RuntimeError):
        return "fails"
    return f"{time.process_time() - began:.2f}"


def row(name: str, model: Any, x: np.ndarray, asked: np.ndarray, names: list[str]) -> str:
    began = time.process_time()
    convert(model, x.shape[1], "classes", CLASSES)
    seconds = time.process_time() - began
    features = defaults(x, {n: "number" for n in names})
    made = publish(model, features, client="a", task="classes", classes=CLASSES, sample=x[:500])
    said, refused = predict([made], asked, names)
    assert not refused, refused
    off = np.abs(said["a"] - at_home(model, asked, "classes", CLASSES)).max()
    return f"| {name} | {made.manifest.size:,} | {seconds:.2f} | {other(model, x)} | {off:.1e} |"


def main() -> None:
    warnings.simplefilter("ignore")
    pool = census.load()
    x, y, names = np.asarray(pool.x), np.asarray(pool.y), [c.name for c in pool.columns]
    order = np.random.default_rng(0).permutation(len(x))
    own, asked = order[:ROWS], x[order[ROWS : ROWS + ASKED]]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE
    ).stdout
    lines = [
        "# Publishing models",
        "",
        f"Written by `python benchmarks/publish.py`, commit {commit.strip()}. Census, {ROWS:,} rows; seconds of "
        "computing, to be compared within this table only.",
        "",
        "| model | bytes | s to convert | s by skl2onnx | largest difference |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, model in models(x[own], y[own]).items():
        lines.append(row(name, model, x[own], asked, names))
        print(lines[-1], flush=True)
    (HERE / "results" / "publish.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
