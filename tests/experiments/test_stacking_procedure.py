"""The paper's procedure on small tables: rows, leaks, predictions for others' rows, and equality with `build`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from motet.client import Column
from motet.data.federated import Pool
from motet.errors import RunError
from motet.published import defaults
from motet.stacking.predictions import predictions
from motet.stacking.stack import StackRows, StackSettings, build, score

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "stacking"))
import cells
from paper_partition import Table, alike, columns, divide
from paper_procedure import (
    How,
    codes_of,
    distinct,
    divide_rows,
    fill_values,
    labels,
    others_predictions,
    outcomes,
    public_models,
)


def pool(rows: int = 600, kind: str = "classes", seed: int = 0) -> Pool:
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=(rows, 4)), rng.integers(0, 2, (rows, 2))]).astype(np.float32)
    z = x[:, 0] + 0.5 * x[:, 1] - x[:, 4] + 0.3 * rng.normal(size=rows)
    names = [
        Column("a"),
        Column("b"),
        Column("c"),
        Column("d"),
        Column("e=x", "flag", "e"),
        Column("e=y", "flag", "e"),
    ]
    if kind == "numbers":
        return Pool(x, z.astype(np.float32), "numbers", columns=tuple(names))
    return Pool(x, (z > 0).astype(np.int64), "classes", ("no", "yes"), tuple(names))


def shared_out(share: float = 1.0, split: str = "quantity_skew", **options: Any) -> Table:
    return divide(pool(), split, 1, share, clients=3, **options)


FAST = {"repeats": 2, "trees": 5}


def test_train_meta_and_test_are_60_20_and_20_of_a_hundred_rows_with_classes_alike() -> None:
    y = np.repeat([0, 1], [300, 100])
    train, meta, test = divide_rows(y, 7)
    assert (len(train), len(meta), len(test)) == (240, 80, 80)
    assert sorted(np.concatenate([train, meta, test])) == list(range(400))
    assert y[meta].mean() == y[test].mean() == 0.25


def test_gains_are_against_one_baseline_and_trust_sums_to_one() -> None:
    (outcome,) = outcomes(shared_out(beta=1.0), 1, How(**FAST)).values()
    found = {k: np.array(v) for k, v in outcome.plain().items()}
    assert found["baseline"].shape == found["held"].shape == found["pooled"].shape == (3, 2)
    assert np.allclose(found["trust_held"].sum(1), 1) and np.allclose(found["trust_pooled"].sum(1), 1)
    assert found["baseline"].mean() > 0.75


def test_the_same_seed_gives_the_same_outcome() -> None:
    a, b = (outcomes(shared_out(beta=0.5), 3, How(**FAST))["all", 0.0].plain() for _ in range(2))
    assert a == b


def client_first(table: Table, i: int) -> Table:
    order = [i, *(j for j in table.clients if j != i)]
    names, rows = (tuple(v[j] for j in order) for v in (table.names, table.rows))
    return replace(table, names=names, rows=rows, holds=table.holds[order])


@pytest.mark.parametrize("kind", ["classes", "numbers"])
@pytest.mark.parametrize("name", ["held", "pooled"])
def test_the_fast_procedure_gives_the_scores_and_importances_of_build(kind: str, name: str) -> None:
    whole = divide(pool(kind=kind), "iid", 1, clients=3)
    for table in [client_first(whole, i) for i in whole.clients]:  # build puts the private model first
        outcome = outcomes(table, 1, How(repeats=1, trees=5))["all", 0.0]
        x, y = table.x[table.rows[0]], table.y[table.rows[0]]
        train, meta, test = divide_rows(y, 5, bool(table.classes))
        both = np.concatenate([train, meta])
        public = public_models(table, 1, How(**FAST))[1:]
        shown, _ = predictions(dict(zip(table.names[1:], public, strict=True)), x, None, table.classes)
        rows = StackRows(x, y, dict.fromkeys("abcdef", "number"), table.classes)
        places = (train, meta) if name == "held" else (both, both)
        stack = build(StackSettings(trees=5, rounded=False), rows, shown, 1, places=places)  # the paper's
        p = stack.predict(x[test], None, {k: v[test] for k, v in shown.items()})
        best = p.argmax(1) if table.classes else p[:, 0]
        assert getattr(outcome, name)[0, 0] == pytest.approx(
            score(y[test], best, classes=bool(table.classes))
        )
        assert getattr(outcome, f"trust_{name}")[0] == pytest.approx(list(stack.importances.values()))


def test_numbers_are_stacked_too() -> None:
    table = divide(pool(kind="numbers"), "iid", 1, clients=3)
    (outcome,) = outcomes(table, 1, How(**FAST)).values()
    assert (outcome.baseline > 0.5).all() and (outcome.held > 0.5).all()


def test_in_a_vertical_federation_public_models_that_saw_the_test_rows_look_better_than_they_are() -> None:
    table = divide(pool(rows=900), "vertical", 2, 0.6, clients=4)
    found = outcomes(table, 2, How(repeats=2, trees=20, public=("all", "untested", "unseen")))
    leaked, clean = (float(found[p, 0.0].held.mean()) for p in ("all", "untested"))
    assert leaked > clean + 0.01
    assert np.array_equal(found["all", 0.0].baseline, found["unseen", 0.0].baseline)


def test_predictions_for_others_are_the_models_own_with_missing_columns_at_its_defaults() -> None:
    table = shared_out(0.6, beta=1.0)
    how = How(**FAST, noise=(0.0, 2.0))
    models = public_models(table, 1, how)
    found = others_predictions(table, models, 1, how)
    middle, noise = fill_values(table, 2, 1, one_noise=False)
    for e in how.noise:
        x = np.where(table.holds[0], table.x[table.rows[0]], middle + e * noise).astype(np.float32)
        assert np.allclose(found[e][0][:, 2, 0], models[2].predict_proba(x[:, table.holds[2]])[:, 1])
    assert (found[0.0][0][:, 0] == 0).all()  # a client's own public model does not predict its rows


def test_missing_columns_get_the_defaults_of_published_models_and_only_numbers_are_noisy() -> None:
    table = shared_out(beta=1.0)
    middle, noise = fill_values(table, 0, 5, one_noise=True)
    x = table.x[table.rows[0]]
    kinds = {str(k): "number" if number else "flag" for k, number in enumerate(table.numbers)}
    assert middle == pytest.approx([f.default for f in defaults(x, kinds)])  # those of published models
    assert set(middle[4:]) <= {0.0, 1.0} and (noise[4:] == 0).all() and (noise[:4] != 0).all()


def test_the_noise_of_all_clients_is_one_draw_only_as_published() -> None:
    table = divide(pool(), "vertical", 1, clients=3)
    as_published = [fill_values(table, j, 5, one_noise=True)[1] for j in table.clients]
    clean = [fill_values(table, j, 5, one_noise=False)[1] for j in table.clients]
    assert np.array_equal(as_published[0], as_published[1]) and not np.array_equal(clean[0], clean[1])


def test_distinct_rows_are_found_and_put_back() -> None:
    x = np.array([[1, 5, 0], [2, 6, 0], [1, 7, 0], [1, 5, 1], [9, 9, 9]], np.float32)
    first, back = distinct(codes_of(x), np.arange(4), np.array([True, False, True]))
    assert len(first) == 3
    assert np.array_equal(x[:4][first][back][:, [0, 2]], x[:4, [0, 2]])


def test_of_two_classes_with_equal_probability_the_first_is_predicted() -> None:
    table = shared_out(beta=1.0)
    assert labels(table, np.array([[0.5], [0.51]])).tolist() == [False, True]


def test_flags_of_one_category_go_together_and_each_client_gets_its_share_of_columns() -> None:
    holds = columns(pool(), 20, 0.5, 3)
    assert (holds[:, 4] == holds[:, 5]).all()
    assert ((holds * [1, 1, 1, 1, 0.5, 0.5]).sum(1) == 2).all()  # int(0.5 * 5)
    assert len(np.unique(holds, axis=0)) > 3


def test_jaccard_counts_a_category_once() -> None:
    holds = np.array([[1, 0, 1, 1], [1, 1, 0, 0]], bool)
    assert alike(holds, np.array([1, 1, 0.5, 0.5]))[0, 1] == pytest.approx(1 / 3)


def test_a_cell_is_computed_once_and_read_afterwards(tmp_path: Path) -> None:
    cell = cells.Cell("wine", "iid", 1, {}, {"clients": 2}, 1.0, FAST)
    lines: list[str] = []
    (first,) = cells.perform([cell], tmp_path, 1, lines.append)
    assert len(lines) == 1 and first["clients"]["rows"] == [89, 89]
    kept = tmp_path / cell.file
    kept.write_text(json.dumps(first | {"notes": ["read, not computed"]}))
    (again,) = cells.perform([cell], tmp_path, 1, lines.append)
    assert again["notes"] == ["read, not computed"] and len(lines) == 1


def test_a_cell_that_fails_gives_the_reason(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there is no data set"):
        cells.perform([cells.Cell("nothing", "iid", 1)], tmp_path, 1)
