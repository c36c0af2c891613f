"""Tables that scikit-learn holds, tables that lie in MOTET_DATA, and tables that are made: a frame for each.

Every table has a column `target`, and a column `client` where the rows have owners.
Knows where the rows come from. Does not train anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets

Frame = pd.DataFrame
_SAMPLE = 8_000  # rows of the largest tables
_ADULT = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital",
    "occupation",
    "relationship",
    "race",
    "sex",
    "gain",
    "loss",
    "hours",
    "country",
    "income",
]


def divided(frame: Frame, clients: int, seed: int = 0) -> Frame:
    """Rows divided among clients of unequal sizes."""
    rng = np.random.default_rng(seed)
    sizes = rng.dirichlet(np.full(clients, 3.0))
    return frame.assign(client=[f"c{i:02d}" for i in rng.choice(clients, len(frame), p=sizes)])


# ---- with scikit-learn ----


def diabetes() -> Frame:
    return divided(datasets.load_diabetes(as_frame=True).frame, 10)


def wine() -> Frame:
    return divided(datasets.load_wine(as_frame=True).frame.replace({"target": {0: "a", 1: "b", 2: "c"}}), 4)


def breast_cancer() -> Frame:
    frame = datasets.load_breast_cancer(as_frame=True).frame
    return divided(frame.replace({"target": {0: "malignant", 1: "benign"}}), 8)


# ---- in MOTET_DATA ----


def folder() -> Path:
    return Path(os.environ["MOTET_DATA"])


def boston() -> Frame:
    """By RAD, how well highways are reached: nine natural clients."""
    frame = pd.read_csv(folder() / "boston" / "boston_housing.csv.gz")
    return frame.rename(columns={"MEDV": "target", "RAD": "client"}).astype({"client": str})


def school() -> Frame:
    """Marks of pupils of 139 schools."""
    from scipy.io import loadmat

    mat = loadmat(folder() / "school" / "school.mat")
    parts = []
    for i, (x, y) in enumerate(zip(mat["X"].ravel(), mat["Y"].ravel(), strict=True)):
        some = pd.DataFrame(np.asarray(x)).add_prefix("x")
        parts.append(some.assign(target=np.asarray(y, float).ravel(), client=f"school-{i:03d}"))
    frame = pd.concat(parts)
    return frame.drop(columns=[c for c in frame if frame[c].nunique() < 2])


def adult() -> Frame:
    """Some of the rows without missing cells."""
    frame = pd.read_csv(folder() / "adult" / "adult.data.gz", names=_ADULT, skipinitialspace=True)
    whole = frame[~frame.eq("?").any(axis=1)]
    return whole.sample(_SAMPLE, random_state=0).reset_index(drop=True)


def census() -> Frame:
    """Whether the income is above 50 K, by occupation."""
    return adult().rename(columns={"income": "target", "occupation": "client"}).drop(columns="education")


def hours() -> Frame:
    """Hours worked in a week, by occupation."""
    return adult().rename(columns={"hours": "target", "occupation": "client"}).drop(columns="education")


def ages() -> Frame:
    """Age, by workclass."""
    return adult().rename(columns={"age": "target", "workclass": "client"}).drop(columns="education")


def covertype() -> Frame:
    """Seven kinds of forest, some of the rows, by wilderness area."""
    with np.load(folder() / "covertype" / "covtype.npz") as file:
        frame = pd.DataFrame({k: file[k] for k in file.files})
    some = frame.sample(_SAMPLE, random_state=0).reset_index(drop=True)
    names = {"Cover_Type": "target", "Wilderness_Area": "client"}
    return (
        some.rename(columns=names)
        .astype({"target": str, "client": str, "Soil_Type": str})
        .replace({"target": {str(i): f"kind-{i}" for i in range(1, 8)}})
    )


# ---- made ----


def regression(
    clients: int, rows: int, columns: int, seed: int, *, shift: float = 0.3, noise: float = 0.5,
    mixed: int = 0, unit: float = 1000.0, tails: float = 0.0,
) -> Frame:  # fmt: skip
    """Linear targets of size `unit`; `mixed` columns of all are mixtures of the others; clients differ by `shift`."""
    rng = np.random.default_rng(seed)
    n, base = clients * rows, columns - mixed
    x = rng.standard_t(tails, (n, base)) if tails else rng.normal(size=(n, base))
    if mixed:
        x = np.concatenate(
            [x, x @ rng.normal(size=(base, mixed)) / base**0.5 + 0.05 * rng.normal(size=(n, mixed))], 1
        )
    who = np.repeat(np.arange(clients), rows)
    w = rng.normal(size=columns) / columns**0.5
    own = shift * rng.normal(size=(clients, columns)) / columns**0.5
    y = (x * (w + own[who])).sum(1) + shift * rng.normal(size=clients)[who] + noise * rng.normal(size=n)
    frame = pd.DataFrame(x * rng.lognormal(0, 2, columns)).add_prefix("x")
    return frame.assign(target=unit * (y + 3), client=[f"c{i:02d}" for i in who])


def wide() -> Frame:
    """200 columns, 180 of them mixtures of 20; 12 clients of 30 rows; targets in thousands."""
    return regression(12, 30, 200, 1, mixed=180)


def wide_independent() -> Frame:
    """200 columns that are independent, 20 clients of 30 rows."""
    return regression(20, 30, 200, 2)


def hundred_columns() -> Frame:
    return regression(30, 60, 100, 3, mixed=50)


def target_outliers() -> Frame:
    """42 clients, 19 columns; one target in a hundred is twenty times as far off as others."""
    frame = regression(42, 60, 19, 4, mixed=6)
    rng = np.random.default_rng(4)
    far = rng.random(len(frame)) < 0.01
    return frame.assign(target=frame["target"] + far * rng.normal(0, 20_000, len(frame)))


def heavy_tails() -> Frame:
    """Columns with Student's distribution of 2.5 degrees of freedom."""
    return regression(15, 50, 20, 5, tails=2.5)


def odd_columns() -> Frame:
    """A constant column, one-hot columns, a column that is almost always zero, and clients of 12 to 600 rows."""
    rng = np.random.default_rng(6)
    frame = regression(10, 200, 8, 6)
    frame = frame.assign(
        still=1.0,
        rare=(rng.random(len(frame)) < 0.005) * 100.0,
        town=rng.choice(list("abcdefgh"), len(frame)),
    )
    frame["target"] += frame["town"].map({t: 300.0 * i for i, t in enumerate("abcdefgh")})
    sizes = rng.dirichlet(np.full(9, 0.6)) * 0.98 + 0.02 / 9
    return frame.assign(client=[f"c{i}" for i in rng.choice(9, len(frame), p=sizes / sizes.sum())])


def different_clients() -> Frame:
    """Clients whose weights have little in common, and targets in thousands."""
    return regression(10, 100, 15, 7, shift=1.5)


def few_rows() -> Frame:
    """60 clients of 15 rows."""
    return regression(60, 15, 10, 8)


def feature_outliers() -> Frame:
    """One cell in a thousand is a hundred times too large."""
    frame = regression(12, 80, 12, 9)
    rng = np.random.default_rng(9)
    columns = [c for c in frame if c.startswith("x")]
    far = rng.random((len(frame), len(columns))) < 0.001
    frame[columns] = frame[columns].to_numpy() * np.where(far, 100.0, 1.0)
    return frame


def rare_outcome() -> Frame:
    """Six clients of 300 rows, and about one row in twenty is positive."""
    rng = np.random.default_rng(10)
    x = rng.normal(size=(1800, 12))
    p = 1 / (1 + np.exp(-(x[:, :4].sum(1) * 0.9 - 4)))
    y = np.where(rng.random(1800) < p, "died", "alive")
    return pd.DataFrame(x).add_prefix("x").assign(target=y, client=[f"h{i}" for i in np.arange(1800) % 6])


NUMBERS: dict[str, Callable[[], Frame]] = {
    f.__name__: f
    for f in (
        diabetes, wide, wide_independent, hundred_columns, target_outliers, heavy_tails, odd_columns,
        different_clients, few_rows, feature_outliers, boston, school, hours, ages,
    )
}  # fmt: skip
CLASSES: dict[str, Callable[[], Frame]] = {
    f.__name__: f for f in (wine, breast_cancer, rare_outcome, census, covertype)
}
ELSEWHERE = ("boston", "school", "hours", "ages", "census", "covertype")  # these lie in MOTET_DATA
