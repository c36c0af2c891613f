"""The procedure of the stacking paper for one seed: private models, public models, and two kinds of stacks.

Cantu-Cervini 2024, "Personalized Federated Learning via Stacking", sections 3 and 4, as its code runs it:
each client i and repeat r cut the client's rows into Train, Meta and Test (60/20/20, stratified).
The baseline is a private forest on Train + Meta. "held-out" stacks a private forest of Train on Meta,
"pooled" stacks the baseline on Train + Meta, both together with everyone else's public forest; gains are
against the same baseline on the same Test rows.

What is fast about it: public models are asked once for all rows of a client, whatever the repeats; each
distinct row is asked once where clients share few columns; the baseline is the pooled stack's private model,
too; meta-forests are Intel's.

Differs from the paper: `public` says which rows public models are trained on. "all" is the paper's. Where
everyone holds the same rows (vertical), that includes everyone's Test rows with their labels; "untested"
leaves Test out, "unseen" leaves out Meta, too.

Knows tables and forests. Does not know data sets or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from paper_models import of_family
from paper_partition import Array, Table

from motet.client import seed_of
from motet.stacking.forests import forest, scores

Cut = tuple[Array, Array, Array]  # places among a client's rows: Train, Meta, Test
PUBLIC = ("all", "untested", "unseen")


@dataclass(frozen=True)
class How:
    """Everything that the procedure leaves open."""

    repeats: int = 5
    trees: int = 100
    public: tuple[str, ...] = ("all",)  # of PUBLIC: which rows public models may have seen
    noise: tuple[float, ...] = (0.0,)  # epsilon: spread of the noise in published defaults, in deviations
    stacks: tuple[str, ...] = ("held", "pooled")
    one_noise: bool = False  # the same draws for all clients, as the paper's code has it
    families: tuple[str, ...] = ("forest",)  # of public models, in turn (families.py)
    plain: bool = False  # scikit-learn's forests


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
    """One client's two private models of a repeat, and what they say about all of its rows."""

    cut: Cut
    models: dict[str, Any]  # "untested": of Train + Meta; "unseen": of Train
    says: dict[str, Array] = field(default_factory=dict)


def play(table: Table, seed: int, how: How) -> dict[tuple[str, float], Outcome]:
    """Outcomes by (which rows public models had seen, noise)."""
    found = {(p, e): Outcome.blank(len(table.names), how.repeats) for p in how.public for e in how.noise}
    told = {"all": opinions(table, published(table, seed, how), seed, how)} if "all" in how.public else {}
    for r in range(how.repeats):
        mine = [private(table, i, seed, r, how) for i in table.clients]
        for p in how.public:
            said = told.get(p) or opinions(table, [m.models[p] for m in mine], seed, how)
            for e in how.noise:
                for i in table.clients:
                    stack(table, i, r, seed, mine[i], said[e][i], found[p, e], how)
    return found


def published(table: Table, seed: int, how: How) -> list[Any]:
    """Everyone's public model, of all its rows; families take turns."""
    found = []
    for i in table.clients:
        x, y = table.x[table.rows[i]][:, table.holds[i]], table.y[table.rows[i]]
        family = how.families[i % len(how.families)]
        low, high = (f(table.x[:, table.holds[i]], axis=0) for f in (np.min, np.max))
        model = forest(table.kind, seed, how.trees, plain=how.plain)
        if family != "forest":
            model = of_family(family, seed, how.trees, low, high, plain=how.plain)
        found.append(model.fit(x, y))
    return found


def fitted(table: Table, i: int, places: Array, seed: int, how: How) -> Any:
    rows = table.rows[i][places]
    model = forest(table.kind, seed, how.trees, plain=how.plain)
    return model.fit(table.x[rows][:, table.holds[i]], table.y[rows])


def private(table: Table, i: int, seed: int, r: int, how: How) -> Private:
    cut = train, meta, _ = cut_rows(table.y[table.rows[i]], seed * 5 + r, table.kind == "classes")
    places = {"untested": np.concatenate([train, meta]), "unseen": train}
    models = {k: fitted(table, i, at, seed, how) for k, at in places.items()}
    x = table.x[table.rows[i]][:, table.holds[i]]
    return Private(cut, models, {k: scores(m, x, table.classes) for k, m in models.items()})


def cut_rows(y: Array, seed: int, stratified: bool = True) -> Cut:
    """Train, Meta and Test: 60, 20 and 20 of a hundred rows, with the classes' shares alike."""
    from sklearn.model_selection import train_test_split

    def halve(at: Array, share: float) -> Any:
        by = y[at] if stratified else None
        return train_test_split(at, test_size=share, stratify=by, random_state=seed)

    rest, test = halve(np.arange(len(y)), 0.2)
    train, meta = halve(rest, 0.25)
    return train, meta, test


def stack(
    table: Table, i: int, r: int, seed: int, mine: Private, said: Array, into: Outcome, how: How
) -> None:
    """Fit client i's two meta-models and write down how they score; `said` is (rows, clients, columns)."""
    y, (train, meta, test) = table.y[table.rows[i]], mine.cut
    both = np.concatenate([train, meta])
    into.baseline[i, r] = mark(table, y[test], decided(table, mine.says["untested"][test]))
    for name in how.stacks:
        own, rows = ("unseen", meta) if name == "held" else ("untested", both)
        marks, trust = getattr(into, name), getattr(into, f"trust_{name}")
        seen = said.copy()
        seen[:, i] = mine.says[own]
        flat = seen.reshape(len(seen), -1)
        model = forest(table.kind, seed, how.trees, plain=how.plain).fit(flat[rows], y[rows])
        marks[i, r] = mark(table, y[test], model.predict(flat[test]))
        trust[i] += model.feature_importances_.reshape(len(table.names), -1).sum(1)


def decided(table: Table, says: Array) -> Array:
    """Predictions from the columns that `scores` makes; two classes that tie are the first one's."""
    if not table.classes:
        return says[:, 0]
    return says[:, 0] > 0.5 if says.shape[1] == 1 else says.argmax(1)


def mark(table: Table, y: Array, guess: Array) -> float:
    """Balanced accuracy, or R squared."""
    if not table.classes:
        return float(1 - ((y - guess) ** 2).sum() / ((y - y.mean()) ** 2).sum())
    right = (y == guess).astype(float)
    truth = np.bincount(y, minlength=len(table.classes))
    hits = np.bincount(y, right, minlength=len(table.classes))
    return float((hits[truth > 0] / truth[truth > 0]).mean())


# ---- what models say about rows of others ----


def opinions(table: Table, models: Sequence[Any], seed: int, how: How) -> dict[float, list[Array]]:
    """By noise, for each client (rows, clients, columns): what every other one's model says about its rows."""
    width = max(len(table.classes), 2) - 1 if len(table.classes) <= 2 else len(table.classes)
    many = len(table.names)
    said = {e: [np.zeros((len(r), many, width), np.float32) for r in table.rows] for e in how.noise}
    fills = [defaults(table, j, seed, how.one_noise) for j in table.clients]
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
                said[e][i][:, j] = scores(models[j], rows, table.classes)[back]
    return said


def defaults(table: Table, j: int, seed: int, one_noise: bool) -> tuple[Array, Array]:
    """(columns,) twice: what client j publishes for missing values, and the noise of epsilon 1 in it.

    Medians of numbers, the commoner value of flags; a noise of a deviation times a normal draw.
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
    """Of some rows, places of those that differ in the shared columns, and for each row which one it is like."""
    if codes is None:
        return np.arange(len(rows)), np.arange(len(rows))
    code = np.zeros(len(rows), np.int64)
    for column in codes[rows][:, shared].T:
        code = code * (int(column.max(initial=0)) + 1) + column
        if code.max(initial=0) > 2**40:  # further columns could overflow: count anew
            code = np.unique(code, return_inverse=True)[1]
    _, first, back = np.unique(code, return_index=True, return_inverse=True)
    return first, back
