"""The procedure of the stacking paper for one seed: private models, public models, and two kinds of stacks.

Cantu-Cervini 2024, "Personalized Federated Learning via Stacking", sections 3 and 4, as its code runs it:
each client i and repeat r divide the client's rows into Train, Meta and Test (60/20/20, stratified).
The baseline is a private forest of Train + Meta. "held-out" stacks a private forest of Train on Meta,
"pooled" stacks the baseline on Train + Meta, both together with everyone else's public forest; gains are
against the same baseline on the same Test rows.

The stacks are those of motet.stacking.build (a test compares the two). This file is faster for many clients and
repeats: a public model predicts all rows of a client once, whatever the repeats; where clients share few columns,
it predicts each distinct row once; the baseline is also the pooled stack's private model; with numba, forests are
grown by fast_forest.py, which grows the trees of scikit-learn.

Differs from the paper: `public` names the rows that public models are trained on. "all" is the paper's. Where
all clients hold the same rows (vertical), that includes everyone's Test rows with their labels; "untested"
leaves Test out, "unseen" leaves out Meta, too.

Knows tables and forests. Does not know data sets or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
from paper_models import of_family
from paper_partition import Array, Table

from motet.client import seed_of
from motet.stacking.families import forest
from motet.stacking.predictions import features, prediction
from motet.stacking.stack import StackSettings, meta_model, score

Places = tuple[Array, Array, Array]  # among a client's rows: Train, Meta, Test


@dataclass(frozen=True)
class How:
    """The settings of the procedure."""

    repeats: int = 5
    trees: int = 100
    public: tuple[str, ...] = ("all",)  # rows that public models are trained on: all, untested, unseen
    noise: tuple[float, ...] = (0.0,)  # epsilon: spread of the noise in published defaults, in deviations
    stacks: tuple[str, ...] = ("held", "pooled")
    one_noise: bool = False  # the same draws for all clients, as in the paper's code
    families: tuple[str, ...] = ("forest",)  # of public models; clients take turns (paper_models.py)
    fast: bool = True  # with numba, grow scikit-learn's trees by compiled code: the same trees

    def library(self) -> dict[str, str]:
        """What makes the forests, for those who compare results."""
        import sklearn

        found = {"forests": f"scikit-learn {sklearn.__version__}"}
        if self.fast and find_spec("numba"):
            import numba

            found |= {"grown by": f"fast_forest.py, numba {numba.__version__}"}
        return found


@dataclass
class Outcome:
    """Scores (clients, repeats), and how much client i trusts model j (clients, clients), rows sum to 1."""

    baseline: Array
    held: Array
    pooled: Array
    trust_held: Array
    trust_pooled: Array

    @classmethod
    def blank(cls, clients: int, repeats: int) -> Outcome:
        a, b, c = (np.full((clients, repeats), np.nan) for _ in range(3))
        return cls(a, b, c, np.zeros((clients, clients)), np.zeros((clients, clients)))

    def plain(self) -> dict[str, Any]:
        """As lists of numbers, each client's trust normalised."""
        found = {k: np.asarray(v) for k, v in vars(self).items()}
        for k in ("trust_held", "trust_pooled"):
            found[k] = found[k] / np.maximum(found[k].sum(1, keepdims=True), 1e-12)
        return {k: v.round(6).tolist() for k, v in found.items() if not np.isnan(v).all()}


@dataclass
class Private:
    """One client's two private models of a repeat, and their predictions for all of its rows."""

    places: Places
    models: dict[str, Any]  # "untested": of Train + Meta; "unseen": of Train
    predictions: dict[str, Array] = field(default_factory=dict)


def outcomes(table: Table, seed: int, how: How) -> dict[tuple[str, float], Outcome]:
    """Outcomes by (rows that public models are trained on, noise)."""
    found = {(p, e): Outcome.blank(len(table.names), how.repeats) for p in how.public for e in how.noise}
    of_all = "all" in how.public and others_predictions(table, public_models(table, seed, how), seed, how)
    for r in range(how.repeats):
        mine = [private(table, i, seed, r, how) for i in table.clients]
        for p in how.public:
            models = [m.models.get(p) for m in mine]
            predicted = of_all if p == "all" else others_predictions(table, models, seed, how)
            for e in how.noise:
                for i in table.clients:
                    stack(table, i, r, seed, mine[i], predicted[e][i], found[p, e], how)
    return found


def public_models(table: Table, seed: int, how: How) -> list[Any]:
    """Everyone's public model, of all its rows; families take turns."""
    found = []
    for i in table.clients:
        family = how.families[i % len(how.families)]
        if family == "forest":
            found.append(forest_of(table, i, table.rows[i], seed, how))
            continue
        x, y = table.x[table.rows[i]][:, table.holds[i]], table.y[table.rows[i]]
        low, high = (f(table.x[:, table.holds[i]], axis=0) for f in (np.min, np.max))
        found.append(of_family(family, seed, low, high).fit(x, y))
    return found


def forest_of(table: Table, i: int, places: Array, seed: int, how: How) -> Any:
    """A forest of some rows of the table, in the columns of client i."""
    y, model = table.y[places], new_forest(table, seed, how)
    if not hasattr(model, "fit_numbered"):
        return model.fit(table.x[places][:, table.holds[i]], y)
    from fast_forest import in_columns

    numbers = table.numbered if table.holds[i].all() else in_columns(table.numbered, table.holds[i])
    return model.fit_numbered(numbers, places, y)


def new_forest(table: Table, seed: int, how: How) -> Any:
    """An unfitted forest of scikit-learn, or its fast double where there is one: two classes, with numba."""
    if how.fast and table.classes == (0, 1) and find_spec("numba"):
        from fast_forest import FastForest

        return FastForest(how.trees, seed)
    return forest(table.kind, seed, how.trees)


def private(table: Table, i: int, seed: int, r: int, how: How) -> Private:
    y, x = table.y[table.rows[i]], table.x[table.rows[i]][:, table.holds[i]]
    places = train, meta, test = divide_rows(y, seed * 5 + r, table.kind == "classes")
    taught = {"untested": np.concatenate([train, meta]), "unseen": train}
    asked = {"untested": np.arange(len(y)), "unseen": np.concatenate([meta, test])}
    models = {k: forest_of(table, i, table.rows[i][at], seed, how) for k, at in taught.items()}
    found = {k: outputs(m, x[asked[k]], table.classes) for k, m in models.items()}
    unseen = np.full_like(found["untested"], np.nan)  # nobody asks for what it says about its own Train rows
    unseen[asked["unseen"]] = found["unseen"]
    return Private(places, models, found | {"unseen": unseen})


def divide_rows(y: Array, seed: int, stratified: bool = True) -> Places:
    """Train, Meta and Test: 60, 20 and 20 of a hundred rows, with the classes' shares alike."""
    from sklearn.model_selection import train_test_split

    def halves(at: Array, share: float) -> Any:
        by = y[at] if stratified else None
        return train_test_split(at, test_size=share, stratify=by, random_state=seed)

    rest, test = halves(np.arange(len(y)), 0.2)
    train, meta = halves(rest, 0.25)
    return train, meta, test


def stack(
    table: Table, i: int, r: int, seed: int, mine: Private, predicted: Array, into: Outcome, how: How
) -> None:
    """Fit client i's two meta-models and enter their scores; `predicted` is (rows, clients, columns)."""
    y, (train, meta, test) = table.y[table.rows[i]], mine.places
    classes, models = bool(table.classes), table.names
    best = labels(table, mine.predictions["untested"][test])
    into.baseline[i, r] = score(y[test], best, classes=classes)
    settings = StackSettings(meta=new_forest(table, seed, how))
    for name in how.stacks:
        own, rows = ("unseen", meta) if name == "held" else ("untested", np.concatenate([train, meta]))
        every = predicted.copy()
        every[:, i] = mine.predictions[own]
        z = every.reshape(len(every), -1)
        top, shares = meta_model(settings, z[rows], y[rows], models, table.kind, seed)
        getattr(into, name)[i, r] = score(y[test], top.predict(z[test]), classes=classes)
        getattr(into, f"trust_{name}")[i] += list(shares.values())


def labels(table: Table, output: Array) -> Array:
    """Predicted classes or numbers; of two classes with equal probability the first."""
    if not table.classes:
        return output[:, 0]
    return output[:, 0] > 0.5 if output.shape[1] == 1 else output.argmax(1)


# ---- predictions for the rows of others ----


def outputs(model: Any, x: Array, classes: Sequence[int]) -> Array:
    """(rows, columns) float32: a model's columns among the meta-model's features."""
    return features([np.asarray(prediction(model, x, None, classes), np.float32)])


def others_predictions(table: Table, models: Sequence[Any], seed: int, how: How) -> dict[float, list[Array]]:
    """By noise, for each client (rows, clients, columns): predictions of all other clients' models for its rows."""
    width = 1 if len(table.classes) <= 2 else len(table.classes)
    many = len(table.names)
    found = {e: [np.zeros((len(r), many, width), np.float32) for r in table.rows] for e in how.noise}
    fills = [fill_values(table, j, seed, how.one_noise) for j in table.clients]
    codes = None if table.holds.all() else codes_of(table.x)
    for i in table.clients:
        x = table.x[table.rows[i]]
        for j in table.clients:
            if i == j:
                continue
            first, back = distinct(codes, table.rows[i], table.holds[i] & table.holds[j])
            for e in how.noise:
                fill = fills[j][0] + e * fills[j][1]
                rows = np.where(table.holds[i], x[first], fill)[:, table.holds[j]].astype(np.float32)
                found[e][i][:, j] = outputs(models[j], rows, table.classes)[back]
    return found


def fill_values(table: Table, j: int, seed: int, one_noise: bool) -> tuple[Array, Array]:
    """(columns,) twice: the defaults that client j publishes for missing values, and their noise of epsilon 1.

    Medians of numbers, the more frequent value of flags; the noise is a deviation times a normal draw.
    """
    x = table.x[table.rows[j]]
    rng = np.random.Generator(np.random.PCG64(seed_of(seed, "defaults", 0 if one_noise else j)))
    middle = np.median(x, axis=0)
    spread = x.std(axis=0, ddof=1) * rng.standard_normal(x.shape[1])
    return np.where(table.numbers, middle, x.mean(0) > 0.5), np.where(table.numbers, spread, 0.0)


def codes_of(x: Array) -> Array:
    """Values of each column as whole numbers from 0 on."""
    return np.stack([np.unique(column, return_inverse=True)[1] for column in x.T], axis=1)


def distinct(codes: Array | None, rows: Array, shared: Array) -> tuple[Array, Array]:
    """Of some rows, places of those that differ in the shared columns, and for each row the one that it equals."""
    if codes is None:
        return np.arange(len(rows)), np.arange(len(rows))
    code = np.zeros(len(rows), np.int64)
    for column in codes[rows][:, shared].T:
        code = code * (int(column.max(initial=0)) + 1) + column
        if code.max(initial=0) > 2**40:  # further columns could overflow: number the codes anew
            code = np.unique(code, return_inverse=True)[1]
    _, first, back = np.unique(code, return_index=True, return_inverse=True)
    return first, back
