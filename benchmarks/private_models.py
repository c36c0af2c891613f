"""What privacy costs a published model, and what an attacker can tell from it: Census, 4,664 rows a client.

    python benchmarks/private_models.py [--seeds 5] [--budgets 0.5,1,2,4,8]

RowHashes a table and writes benchmarks/results/private_models.md. Every model is published as ONNX and asked in
the child process, as strangers would; the encrypted one is asked under encryption. Balanced accuracy is on
10,000 rows that no model and no choice of settings has seen: the private models' default settings were chosen
on the first 14,664 rows of the same permutation, which take no part here. The attack (parts/private_models/
membership.py) tells a client's rows from as many others by the published model's losses; 0.5 is guessing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from motet.data.sets import census
from motet.guard.private_models.dp_boosting import DPBoostingClassifier
from motet.guard.private_models.dp_network import DPLogistic, DPNetwork
from motet.guard.private_models.encrypted import Asker, Owner
from motet.guard.private_models.membership import attack, log_losses, most
from motet.guard.private_models.ranges import bounds_of
from motet.published import Privacy, defaults, predict, publish

HERE = Path(__file__).parent
ROWS, TESTED, CHOSEN = 4664, 10_000, 14_664
# From the survey's documentation, not from the rows.
BOUNDS = {
    "age": (17, 90),
    "education-num": (1, 16),
    "capital-gain": (0, 100_000),
    "capital-loss": (0, 5_000),
    "hours-per-week": (1, 99),
}
CLASSES = ("at most 50K", "more than 50K")
HIDDEN = 32


@dataclass(frozen=True)
class Split:
    """A client's rows, as many rows from elsewhere, and rows to test on."""

    own: np.ndarray
    others: np.ndarray
    tested: np.ndarray


def split(rows: int, seed: int) -> Split:
    order = np.random.default_rng(0).permutation(rows)
    tested, left = order[CHOSEN : CHOSEN + TESTED], order[CHOSEN + TESTED :]
    left = np.random.default_rng(seed).permutation(left)
    return Split(left[:ROWS], left[ROWS : 2 * ROWS], tested)


def makers(bounds: np.ndarray, budgets: list[float]) -> dict[tuple[str, float | None], Callable[[int], Any]]:
    """Models by family and budget."""
    found: dict[tuple[str, float | None], Callable[[int], Any]] = {
        ("random forest", None): lambda s: RandomForestClassifier(random_state=s),
        ("boosting", None): lambda s: HistGradientBoostingClassifier(random_state=s),
        ("logistic", None): lambda s: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        ("mlp", None): lambda s: make_pipeline(
            StandardScaler(), MLPClassifier((HIDDEN,), early_stopping=True, random_state=s)
        ),
    }
    for e in budgets:
        more = {"epsilon": e, "bounds": bounds}
        found["logistic", e] = lambda s, m=more: DPLogistic(**m, random_state=s)
        found["mlp", e] = lambda s, m=more: DPNetwork((HIDDEN,), **m, random_state=s)
        found["boosting", e] = lambda s, m=more: DPBoostingClassifier(**m, random_state=s)
    return found


def measure(
    model: Any, x: np.ndarray, y: np.ndarray, names: list[str], s: Split
) -> tuple[float, float, float]:
    """Balanced accuracy, and the attack's AUC and advantage, of what was published."""
    features = defaults(x[s.own], {n: "number" if n in BOUNDS else "flag" for n in names})
    privacy = getattr(model, "privacy", Privacy())
    made = publish(
        model, features, client="a", task="classes", classes=CLASSES, privacy=privacy, sample=x[s.own[:500]]
    )

    def said(rows: np.ndarray) -> np.ndarray:
        answers, refused = predict([made], x[rows], names)
        assert not refused, refused
        return answers["a"]

    told = attack(*(log_losses(said(r), y[r]) for r in (s.own, s.others)))
    return balanced_accuracy_score(y[s.tested], said(s.tested)[:, 1] > 0.5), told.auc, told.advantage


def encrypted(model: Any, x: np.ndarray, y: np.ndarray, s: Split) -> float:
    """Balanced accuracy of the plain logistic regression, asked under encryption about 4,096 rows."""
    scaler, linear = model[0], model[-1]
    rows, asker = s.tested[:4096], Asker()
    weights = linear.coef_ / scaler.scale_
    owner = Owner(weights, linear.intercept_ - weights @ scaler.mean_, rows=len(rows))
    scores = asker.read(owner.answer(asker.ask(x[rows])))[:, 0]
    plain = balanced_accuracy_score(y[rows], model.predict(x[rows]))
    return balanced_accuracy_score(y[rows], scores > 0) - plain


def table(seeds: int, budgets: list[float]) -> list[str]:
    pool = census.load()
    x, y, names = np.asarray(pool.x), np.asarray(pool.y), [c.name for c in pool.columns]
    found: dict[tuple[str, float | None], list[tuple[float, float, float]]] = {}
    changed = []
    for seed in range(1, seeds + 1):
        s = split(len(x), seed)
        for key, make in makers(bounds_of(names, BOUNDS), budgets).items():
            model = make(seed).fit(x[s.own], y[s.own])
            found.setdefault(key, []).append(measure(model, x, y, names, s))
            if key == ("logistic", None):
                changed.append(encrypted(model, x, y, s))
            print(seed, *key, *(f"{v:.4f}" for v in found[key][-1]), file=sys.stderr)
    rows = [row(key, np.array(v), np.array(found[key[0], None])) for key, v in found.items()]
    said = f"Asked under encryption, logistic regression's balanced accuracy changes by {max(changed, key=abs):+.4f}"
    return [*rows, "", f"{said} at most (4,096 rows a seed)."]


def row(key: tuple[str, float | None], v: np.ndarray, plain: np.ndarray) -> str:
    family, epsilon = key
    accuracy = f"{v[:, 0].mean():.4f} ± {v[:, 0].std():.4f}"
    price = "" if epsilon is None else f"{(v[:, 0] - plain[:, 0]).mean():+.4f}"
    bound = "" if epsilon is None else f"{most(epsilon, 1e-5):.3f}"
    budget = "none" if epsilon is None else f"{epsilon:g}"
    return f"| {family} | {budget} | {accuracy} | {price} | {v[:, 1].mean():.3f} | {v[:, 2].mean():.3f} | {bound} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budgets", default="0.5,1,2,4,8", help="epsilons, with commas")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE
    ).stdout
    words = f"--seeds {asked.seeds} --budgets {asked.budgets}"
    head = [
        "# What privacy costs a published model",
        "",
        f"Written by `python benchmarks/private_models.py {words}`, commit {commit.strip()}. Census, {ROWS:,} rows a "
        "client, delta 1e-5; mean over seeds, ± standard deviation.",
        "",
        "| family | epsilon | balanced accuracy | price | attack's AUC | attack's advantage | bound of any attack's |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    text = "\n".join([*head, *table(asked.seeds, [float(b) for b in asked.budgets.split(",")])]) + "\n"
    print(text)
    (HERE / "results" / "private_models.md").write_text(text)


if __name__ == "__main__":
    main()
