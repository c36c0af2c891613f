"""Pipelines as ONNX, step by step: columns of text, column transformers, scalers, and any predictor behind them.

A column of text has few categories, so whatever a transformer makes of it (one-hot, ordinal, target encoding, a
pipeline of these) is a table: the transformer is asked for every category once, and the answers stand in the graph.
What it makes of an unknown category is the row for rows without a flag; empty cells have a flag where they differ.
Knows fitted transformers and graphs. Does not know predictors: convert.py does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from motet.errors import need
from motet.published.framed_models import of_arrays
from motet.published.graph import OPSET, OPSET_ML
from motet.published.joined_graphs import JoinedGraph
from motet.published.manifest import Feature
from motet.published.text_columns import MISSING, UNKNOWN, source_of
from motet.published.yes_no import EMPTY

Convert = Callable[
    [Any, int], tuple[Any, str]
]  # a predictor and its columns, as ONNX and what it was made with
Values = Mapping[str, Mapping[str, Any]]  # what columns hold for the texts of categories
_HINT = "hint: make_pipeline(ColumnTransformer([('text', OneHotEncoder(), [{!r}])], remainder='passthrough'), model)"


def wanted_columns(model: Any) -> list[str]:
    """The columns of the data frame that a model was fitted on, but for those that its first step drops; none of an
    array."""
    every = fitted_columns(model)
    first: Any = next((part for _, part in getattr(model, "steps", ())), None)
    if not every or type(first).__name__ != "ColumnTransformer":
        return every
    read = {n for _, t, columns in first.transformers_ if t != "drop" for n in _named(columns, every)}
    return [n for n in every if n in read]


def fitted_columns(model: Any) -> list[str]:
    return [str(n) for n in getattr(model, "feature_names_in_", ())]


def by_steps(model: Any, names: Sequence[str]) -> bool:
    """Whether a model is converted here: a pipeline, or one whose columns are not the features in their order."""
    wanted = wanted_columns(model)
    return len(getattr(model, "steps", ())) > 1 or bool(wanted and wanted != list(names))


def pipeline_to_onnx(
    model: Any, features: Sequence[Feature], values: Values, convert: Convert
) -> tuple[Any, str]:
    """The fitted model, which reads these features, as ONNX whose output is that of its predictor."""
    names = [f.name for f in features]
    graph = JoinedGraph(len(features))
    columns = Columns(graph, features, fitted_columns(model) or names, values, wanted_columns(model) or names)
    steps = [part for _, part in getattr(model, "steps", [("", model)]) if part not in (None, "passthrough")]
    *before, predictor = steps
    at, width = columns.transformed(before[0], columns.wanted) if before else columns.numbers(columns.wanted)
    if columns.unflagged:
        raise TellsEmptyCells(columns.unflagged)
    for step in before[1:]:
        at, width = converted_step(graph, step, at, width)
    made, used = convert(predictor, width)
    return graph.finished(
        graph.model(made, at), made.graph.output[0].type.tensor_type.shape.dim[1].dim_value
    ), used


def _named(columns: Any, names: Sequence[str]) -> list[str]:
    """The names of columns that a column transformer knows by names or places."""
    if isinstance(columns, str):
        return [columns]
    if isinstance(columns, slice):
        return list(names[columns])
    if len(columns) and isinstance(columns[0], bool | np.bool_):
        columns = np.flatnonzero(columns).tolist()
    return [c if isinstance(c, str) else names[int(c)] for c in columns]


class TellsEmptyCells(Exception):
    """A model answers empty cells of these columns of text otherwise than unknown categories: they need a flag."""

    def __init__(self, columns: Sequence[str]) -> None:
        super().__init__(*columns)
        self.columns = tuple(dict.fromkeys(columns))


class Columns:
    """The columns of a data frame inside a graph whose input has features: numbers, and flags of categories."""

    def __init__(
        self,
        graph: JoinedGraph,
        features: Sequence[Feature],
        wanted: Sequence[str],
        values: Values,
        read: Sequence[str],
    ) -> None:
        self.graph, self.features, self.wanted, self.values = graph, features, list(wanted), values
        self.at = {f.name: k for k, f in enumerate(features)}
        self.unflagged: list[str] = []  # columns whose empty cells need a flag
        self.flags: dict[str, list[int]] = {c: [] for c in wanted if c not in self.at}
        for k, f in enumerate(features):
            if (source := source_of(f.name, self.flags)) is not None:
                self.flags[source].append(k)
        if lacking := [c for c, flags in self.flags.items() if not flags and c in read]:
            raise ValueError(
                f"it reads the column {lacking[0]!r}, which is not among the features"
                f"\nhint: feature_defaults(frame, kinds) with every column that the model reads: {list(read)}"
            )

    def numbers(self, names: Sequence[str]) -> tuple[str, int]:
        if texts := [n for n in names if n in self.flags]:
            raise ValueError(
                f"it takes the text of column {texts[0]!r} by itself, and no step before it makes numbers of it\n"
                + _HINT.format(texts[0])
            )
        return self.graph.take("x", [self.at[n] for n in names]), len(names)

    def transformed(self, step: Any, names: Sequence[str]) -> tuple[str, int]:
        """What a transformer makes of these columns: the name of the tensor, and its width."""
        if type(step).__name__ == "ColumnTransformer":
            found = [(_of_one(t, cols), _named(cols, names)) for _, t, cols in step.transformers_]
            parts = [self.transformed(t, some) for t, some in found if some and t != "drop"]
            made = [name for name, _ in parts]
            at = self.graph.node("Concat", made, axis=1) if len(parts) > 1 else made[0]
            return at, sum(width for _, width in parts)
        if _passes(step):
            return self.numbers(names)
        if not any(n in self.flags for n in names):
            at, width = self.numbers(names)
            return converted_step(self.graph, step, at, width)
        if numbers := [n for n in names if n not in self.flags]:
            raise ValueError(
                f"its {type(step).__name__} reads the number {numbers[0]!r} together with text"
                f"\nhint: declare it as {{{numbers[0]!r}: 'category'}}, or give numbers a transformer of their own"
            )
        return self.tabled(step, names)

    def tabled(self, step: Any, names: Sequence[str]) -> tuple[str, int]:
        """A transformer of text as a table: base + flags @ table, asked category by category."""
        base = {n: self._value(n, self._usual(n)) for n in names}
        usual = _asked(step, [base])[0]
        flags = [k for n in names for k in self.flags[n]]
        rows, start = np.zeros((len(flags), len(usual))), usual.copy()
        for n in names:
            none = self._of_none(step, base, n, usual)
            start += none - usual
            known = _asked(step, [base | {n: self._value(n, k)} for k in self.flags[n]])
            check_categories_differ(n, known[[not self._is_empty(k) for k in self.flags[n]]])
            rows[[flags.index(k) for k in self.flags[n]]] = known - none
        z = self.graph.node("MatMul", [self.graph.take("x", flags), self.graph.constant(np.nan_to_num(rows))])
        made = self.graph.node("Add", [z, self.graph.constant(start)])
        for k, row in zip(flags, rows, strict=True):
            made = self._with_gaps(made, k, np.isnan(row))
        return made, len(usual)

    def _with_gaps(self, at: str, flag: int, gaps: np.ndarray[Any, Any]) -> str:
        """No value in the columns `gaps` of rows that have this flag: an encoder passes an empty cell on."""
        if not gaps.any():
            return at
        one = self.graph.take("x", [flag])
        where = self.graph.node("Greater", [self.graph.node("Mul", [one, self.graph.constant([gaps])]),
                                            self.graph.constant(0.5)])  # fmt: skip
        return self.graph.node("Where", [where, self.graph.constant(np.nan), at])

    def _of_none(
        self, step: Any, base: Mapping[str, Any], column: str, usual: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """What a transformer makes of rows without a flag: of an unknown category, if it knows what to do, else of an
        empty cell, else of the usual category. Notes that empty cells need a flag, where they have none and differ."""
        empty = _answer(step, [{**base, column: v} for v in (self._empty(column), None)])
        unknown = _answer(step, [{**base, column: UNKNOWN}])
        unknown = None if unknown is None or np.isnan(unknown).any() else unknown
        if unknown is None:
            unknown = usual if empty is None or np.isnan(empty).any() else empty
        flagged = any(self._is_empty(k) for k in self.flags[column])
        if empty is not None and not flagged and not np.array_equal(empty, unknown):
            self.unflagged.append(column)
        return unknown

    def _is_empty(self, flag: int) -> bool:
        return self.features[flag].name.endswith(f"={EMPTY}")

    def _empty(self, column: str) -> Any:
        return self.values.get(column, {}).get(MISSING, np.nan)

    def _usual(self, column: str) -> int:
        """The place of the flag of a column's most frequent category."""
        return max(self.flags[column], key=lambda k: self.features[k].default)

    def _value(self, column: str, flag: int) -> Any:
        text = self.features[flag].name[len(column) + 1 :]
        if text == EMPTY:
            return self._empty(column)
        return self.values.get(column, {}).get(text, text)


def check_categories_differ(column: str, answers: np.ndarray[Any, Any]) -> None:
    """Refuse a column whose categories all get the same answers: the model knows them by other values than their text,
    say whole numbers."""
    if len(answers) > 1 and (answers == answers[0]).all():
        raise ValueError(
            f"it answers the same for all categories of {column!r}: it does not know their text\n"
            f"hint: sample=frame shows how the column holds them; or fit the model on frame[{column!r}].astype(str)"
        )


class _OfOneColumn:
    """A transformer that was given one column by itself, and not a table of one."""

    def __init__(self, step: Any) -> None:
        self.step = step

    def transform(self, frame: Any) -> Any:
        return self.step.transform(frame.iloc[:, 0])


def _of_one(step: Any, columns: Any) -> Any:
    return _OfOneColumn(step) if isinstance(columns, str) and not isinstance(step, str) else step


def _answer(step: Any, rows: Sequence[Mapping[str, Any]]) -> np.ndarray[Any, Any] | None:
    """What a transformer makes of the first of these rows that it does not refuse."""
    for row in rows:
        try:
            found: np.ndarray[Any, Any] = _asked(step, [row])[0]
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        return found
    return None


def _asked(step: Any, rows: Sequence[Mapping[str, Any]]) -> np.ndarray[Any, Any]:
    """A transformer's answers (rows, columns) for rows of text."""
    import pandas as pd

    frame = pd.DataFrame(list(rows)).astype(object)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of categories that it does not know
        found = step.transform(frame)
    return np.asarray(found.toarray() if hasattr(found, "toarray") else found, float).reshape(len(rows), -1)


def _passes(step: Any) -> bool:
    return step == "passthrough" or (type(step).__name__ == "FunctionTransformer" and step.func is None)


# ---- steps on numbers ----


def converted_step(graph: JoinedGraph, step: Any, at: str, width: int) -> tuple[str, int]:
    """A transformer of numbers behind `at`; scalers in 64 bits, because trees behind them compare with thresholds."""
    if _passes(step):
        return at, width
    if hasattr(step, "steps"):
        for _, part in step.steps:
            at, width = converted_step(graph, part, at, width)
        return at, width
    if (affine := _affine(step)) is not None:
        return _scaled(graph, at, *affine), width
    need("a step of a pipeline as ONNX", "stacking", "skl2onnx")
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    made = to_onnx(
        of_arrays(step),
        initial_types=[("x", FloatTensorType([None, width]))],
        target_opset={"": OPSET, "ai.onnx.ml": OPSET_ML},
    )
    out = _asked_width(step, width)
    return graph.node("Cast", [graph.model(made, at)], to=1), out


def _asked_width(step: Any, width: int) -> int:
    """How many columns a transformer makes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = of_arrays(step).transform(np.zeros((1, width)))
    return int(found.shape[1])


def _affine(step: Any) -> tuple[Any, Any] | None:
    """(x - middle) / spread of a scaler; None for other transformers."""
    name, ones = type(step).__name__, np.ones(getattr(step, "n_features_in_", 1))
    if name == "StandardScaler":
        middle = 0 * ones if step.mean_ is None or not step.with_mean else step.mean_
        return middle, ones if step.scale_ is None else step.scale_
    if name == "MinMaxScaler" and not step.clip:
        return -step.min_ / step.scale_, 1 / step.scale_
    if name == "RobustScaler" and not step.unit_variance:
        return (step.center_ if step.with_centering else 0 * ones), (
            step.scale_ if step.with_scaling else ones
        )
    return None


def _scaled(graph: JoinedGraph, at: str, middle: Any, spread: Any) -> str:
    wide = graph.node("Cast", [at], to=11)  # TensorProto.DOUBLE
    off = graph.node("Sub", [wide, graph.constant(middle, np.float64)])
    return graph.node("Cast", [graph.node("Div", [off, graph.constant(spread, np.float64)])], to=1)
