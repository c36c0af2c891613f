"""motet with its defaults against scikit-learn's linear models, on tables: the ratio of errors.

    python benchmarks/against_sklearn.py                  # tables that need no files
    python benchmarks/against_sklearn.py school census    # by name; MOTET_DATA holds the files of some

Nothing but data, target and client is given. A regression's error is the mean over clients of the RMSE on test
rows. Ridge regression is fitted to each client's training rows alone, and to all training rows; the better of
the two counts. Its strength is cross-validated on training rows. The best federated method is chosen by validation
rows. Classes are compared with logistic regression by log-loss, and by AUC (its AUC divided by motet's).
Knows both sides and how they are compared. Does not know how tables are made.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.metrics import log_loss, roc_auc_score

from made_tables import CLASSES, ELSEWHERE, NUMBERS, Frame
from motet.runs import from_python, recipe
from motet.runs.build import Resolved, resolve
from motet.runs.run import run

STANDARD = ("local", "fedavg", "fedprox", "ditto", "finetune")
FEDERATED = STANDARD[1:]
_STRENGTHS = np.logspace(-2, 4, 13)


def resolved(frame: Frame, method: str, seed: int, words: dict[str, Any]) -> Resolved:
    """A seed draws the split as well."""
    data = {"name": frame, "seed": seed}
    given = {"data": data, "target": "target", "client": "client", "method": method, "seed": seed}
    return resolve(recipe.check(from_python.sections(None, given | words)))


# ---- scikit-learn ----


def arrays(batch: Any) -> tuple[np.ndarray, np.ndarray]:
    return batch.x.double().numpy(), batch.y.numpy()


def linear_errors(found: Resolved) -> dict[str, float]:
    """The mean error over clients of the better linear model: of each client alone, or of all rows."""
    clients, kind = found.federated.clients_data, found.federated.kind
    train = {c: arrays(d.train) for c, d in clients.items()}
    pooled = tuple(np.concatenate(part) for part in zip(*train.values(), strict=True))
    fit = fitted_ridge if kind == "numbers" else fitted_logistic
    of_all, sides = fit(*pooled), []
    for own in (False, True):
        rows = [
            errors(fit(*train[c]) if own else of_all, *arrays(d.test), found)
            for c, d in clients.items()
            if len(d.test)
        ]
        sides.append(pd.DataFrame(rows).mean().to_dict())
    return {k: (max if k == "AUC" else min)(s[k] for s in sides) for k in sides[0]}


def fitted_ridge(x: np.ndarray, y: np.ndarray) -> Any:
    return RidgeCV(_STRENGTHS).fit(x, y)


def fitted_logistic(x: np.ndarray, y: np.ndarray) -> Any:
    """Classes that occur fewer than three times cannot be cross-validated; one class alone is a constant."""
    counts = np.unique(y, return_counts=True)[1]
    if len(counts) < 2:
        return Constant(int(y[0]))
    from sklearn.linear_model import LogisticRegression

    if counts.min() < 3:
        return LogisticRegression(max_iter=2000).fit(x, y)
    return LogisticRegressionCV(
        Cs=7, cv=3, scoring="neg_log_loss", max_iter=2000, l1_ratios=(0,), use_legacy_attributes=False
    ).fit(x, y)


class Constant:
    """Always the same class."""

    def __init__(self, which: int) -> None:
        self.classes_ = np.array([which])

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return np.ones((len(x), 1))


def errors(model: Any, x: np.ndarray, y: np.ndarray, found: Resolved) -> dict[str, float]:
    if found.federated.kind == "numbers":
        return {"rmse": found.task.scale * float(np.sqrt(np.mean((model.predict(x) - y) ** 2)))}
    p = np.zeros((len(x), found.task.outputs))
    p[:, model.classes_] = model.predict_proba(x)
    return class_errors(p, y)


def class_errors(p: np.ndarray, y: np.ndarray) -> dict[str, float]:
    p = np.clip(p, 1e-7, 1)
    p /= p.sum(1, keepdims=True)
    return {"log-loss": log_loss(y, p, labels=np.arange(p.shape[1])), "AUC": auc(p, y)}


def auc(p: np.ndarray, y: np.ndarray) -> float:
    """Mean over classes of one against the rest; nan where the rows hold one class."""
    held = [k for k in range(p.shape[1]) if 0 < (y == k).sum() < len(y)]
    return float(np.mean([roc_auc_score(y == k, p[:, k]) for k in held])) if held else float("nan")


# ---- motet ----


def trained(found: Resolved, folder: str) -> tuple[float, dict[str, float], int]:
    """The validation score (higher is better), the test errors, and the reported round."""
    done = run(found, folder)
    scores, reported = done.scores, int(done.facts["reported"])
    own = scores[(scores["side"] == "personal") & scores["client"].isin(found.federated.clients_data)]
    val = own[(own["part"] == "val") & (own["round"] == reported)]
    test = own[own["part"] == "test"]
    if found.federated.kind == "numbers":
        return -float(val["rmse"].mean()), {"rmse": float(test["rmse"].mean())}, reported
    errors = {"log-loss": float(test["loss"].mean()), "AUC": float(test["auc"].mean())}
    return -float(val["loss"].mean()), errors, reported


def ratios(
    frame: Frame, seed: int, methods: Sequence[str] = STANDARD, words: dict[str, Any] | None = None
) -> pd.DataFrame:
    """One row per method: validation score, errors on test rows and their ratio to the linear model's."""
    rows, linear = [], None
    for method in methods:
        found = resolved(frame, method, seed, words or {})
        linear = linear or linear_errors(found)
        with tempfile.TemporaryDirectory() as folder:
            try:
                val, test, reported = trained(found, folder)
            except ValueError as e:
                rows.append({"method": method, "failed": str(e)})
                continue
        ratio = {f"{k} ratio": linear[k] / v if k == "AUC" else v / linear[k] for k, v in test.items()}
        rate = found.recipe["method"].get("lr", float("nan"))
        rows.append({"method": method, "lr": rate, "val": val, "round": reported} | test | ratio)
    return pd.DataFrame(rows)


def best(table: pd.DataFrame) -> pd.Series[Any]:
    """The federated method that is best on validation rows."""
    some = table[table["method"].isin(FEDERATED)]
    return some.loc[some["val"].idxmax()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--all", action="store_true", help="print every method, not only the best one")
    parser.add_argument("--set", action="append", default=[], help="a setting of motet, name=value")
    given = parser.parse_args()
    words: dict[str, Any] = {
        k: float(v) if "." in v else int(v) for k, v in (w.split("=") for w in given.set)
    }
    every = NUMBERS | CLASSES
    for name in given.tables or [n for n in every if n not in ELSEWHERE]:
        for seed in range(given.seeds):
            table = ratios(every[name](), seed, words=words)
            shown = table if given.all else best(table).to_frame().T
            print(f"{name} seed {seed}\n{shown.to_string(index=False)}", flush=True)


if __name__ == "__main__":
    main()
