"""Turn a fitted model into a published one: ONNX, and a manifest that describes it.

Knows models and manifests. Does not know who will fetch them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from motet.errors import UsageError, need
from motet.published.convert import as_onnx, at_home, convert, keeps_rows, steps
from motet.published.manifest import (
    Feature,
    Manifest,
    ModelRefused,
    Privacy,
    Published,
    TaskKind,
)
from motet.published.pipelines import TellsEmptyCells, Values, wanted_columns
from motet.published.text_columns import (
    MISSING,
    MOST,
    decoded,
    encoded,
    in_32_bits,
    source_of,
    text_of,
    with_empty,
)
from motet.text import nearest

_ROUGH = 1e-4  # largest difference between a published model and the original; relative above 1


def publish(
    model: Any,
    features: Sequence[Feature],
    *,
    client: str,
    task: TaskKind,
    classes: Sequence[str] = (),
    privacy: Privacy | None = None,
    family: str = "",
    rows_may_leave: bool = False,
    sample: Any = None,
    maker: Any = None,
) -> Published:
    """The model, which reads `features` in this order, as ONNX with a manifest.

    `model` is a fitted classifier or regressor of scikit-learn, XGBoost or LightGBM, on arrays or on a data frame
    with these features; a torch network (rows to scores of classes, or to numbers); ONNX as bytes or the path of a
    file, of which `maker` is the model that it was made of, if that is there; or has a method `to_onnx()`.
    `classes` are the names of all classes; a model that saw only some of them gives the others probability 0.
    Models that contain training rows are refused unless `rows_may_leave`. Converters have faults, so the published
    model must predict the rows of `sample` as the original does (random rows without one); no row of it leaves.
    """
    need("a published model", "stacking", "onnx", "onnxruntime")
    _check_asked(model, client, task, rows_may_leave)
    values = _values(model, sample)
    features, (onnx_model, made_with) = _with_features(model, features, task, tuple(classes), values)
    raw = onnx_model.SerializeToString(deterministic=True)
    manifest = Manifest(
        *(client, task, tuple(features), tuple(classes), privacy or Privacy()),
        family=family or _family(model if maker is None else maker),
        size=len(raw),
        sha256=hashlib.sha256(raw).hexdigest(),
        opset=next(o.version for o in onnx_model.opset_import if o.domain in ("", "ai.onnx")),
        made_with=made_with,
    )
    made = _checked(Published(manifest, raw))
    _same(model if maker is None else maker, made, sample, values, given=maker is not None)
    return made


def _values(model: Any, sample: Any) -> Values:
    """What the columns of text hold for the text of a category: a sample knows, where categories are no strings."""
    texts = [n for n in wanted_columns(model) if hasattr(sample, "columns") and n in sample.columns]
    return {n: _by_text(sample[n].astype(object)) for n in texts}


def _by_text(column: Any) -> dict[str, Any]:
    """Values by their text, and what a missing one is, None or NaN."""
    missing = column[column.isna()]
    found = {text_of(v): v for v in column.dropna().unique()[: 10 * MOST]}
    return found | ({MISSING: missing.iloc[0]} if len(missing) else {})


def _family(model: Any) -> str:
    return "ONNX model" if as_onnx(model) is not None else type(steps(model)[-1]).__name__


def _check_asked(model: Any, client: str, task: str, rows_may_leave: bool) -> None:
    if not rows_may_leave:
        _check_rows_stay(model, client)
    if task not in get_args(TaskKind):
        near = nearest(task, get_args(TaskKind))
        raise UsageError(f"task is {task!r}; expected 'classes' or 'numbers'\nhint: {near}")


def _with_features(
    model: Any, features: Sequence[Feature], task: TaskKind, classes: tuple[str, ...], values: Values
) -> tuple[Sequence[Feature], tuple[Any, str]]:
    """The converted model with the features that it reads: flags of empty cells are added where it needs them."""
    try:
        return features, _converted(model, features, task, classes, values)
    except TellsEmptyCells as e:
        features = with_empty(features, e.columns)
        return features, _converted(model, features, task, classes, values)


def _converted(
    model: Any, features: Sequence[Feature], task: TaskKind, classes: tuple[str, ...], values: Values
) -> tuple[Any, str]:
    """Converters raise all kinds of errors for models that they do not know; people get one."""
    try:
        return convert(model, features, task, classes, values)
    except UsageError:
        raise
    except OSError as e:
        raise UsageError(f"the model's file cannot be read: {e.strerror or e}") from e
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        NameError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as e:
        why, _, hint = str(e).partition("\nhint: ")
        hint = hint or "publish a forest, boosting, a linear model, a network, or your own ONNX file"
        what = "file" if isinstance(model, bytes | str | Path) else _family(model)
        raise UsageError(
            f"a {what} cannot be converted to ONNX: {why.strip().splitlines()[0][:200] if why else type(e).__name__}"
            f"\nhint: {hint}"
        ) from e


def _check_rows_stay(model: Any, client: str) -> None:
    if kept := keeps_rows(model):
        raise UsageError(
            f"a published {kept} of client {client} would contain rows that it was trained on"
            "\nhint: publish another kind of model, or pass rows_may_leave=True if these rows may be read by all"
        )


def random_rows(manifest: Manifest, rows: int = 64) -> np.ndarray:
    """Random rows around the published defaults."""
    rng = np.random.default_rng(0)
    middle = np.nan_to_num(np.array([f.default for f in manifest.features], np.float32))
    x = middle + rng.normal(size=(rows, len(middle))) * (1 + np.abs(middle))
    flags = np.array([f.kind == "flag" for f in manifest.features])
    x = np.where(flags, x > middle, x)
    sources = [
        n.partition("=")[0] if kind and "=" in n else n for n, kind in zip(manifest.names, flags, strict=True)
    ]
    for source in {s for s in sources if sources.count(s) > 1}:  # a row is of one category
        places = [k for k, s in enumerate(sources) if s == source]
        x[:, places] = np.eye(len(places))[rng.integers(len(places), size=rows)]
    return np.asarray(x, np.float32)


def _compared(model: Any, made: Published, sample: Any, values: Values) -> tuple[Any, Any]:
    """The same rows as the original model and as the published one reads them; of a sample, those whose categories
    are all published, or missing."""
    names, wanted = made.manifest.names, wanted_columns(model)
    if hasattr(sample, "columns"):
        x = encoded(sample, names).astype(np.float32)
        at = {n: k for k, n in enumerate(names)}
        known = np.ones(len(x), bool)
        for column in [c for c in wanted if c not in at]:
            flags = [at[n] for n in names if source_of(n, wanted) == column]
            known &= x[:, flags].any(1) | sample[column].isna().to_numpy()
        return (in_32_bits(sample[wanted]) if wanted else x)[known], x[known]
    x = random_rows(made.manifest) if sample is None else np.asarray(sample).astype(np.float32)
    return (decoded(x, names, wanted, values) if wanted else x), x


def _same(model: Any, made: Published, sample: Any, values: Values, *, given: bool = False) -> None:
    """Refuse a published model that predicts otherwise than the model that it was made of, where that is there."""
    if as_onnx(model) is not None:
        return
    rows, x = _compared(model, made, sample, values)
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else onnxruntime reports the model to its maker
    import onnxruntime as ort

    session = ort.InferenceSession(made.model, providers=["CPUExecutionProvider"])
    away = session.run(None, {session.get_inputs()[0].name: x})[0]
    home = at_home(model, rows, made.manifest.task, made.manifest.classes)
    off = float(np.max(np.abs(away - home) / np.maximum(1, np.abs(home)), initial=0))
    if not off <= _ROUGH and given:
        raise UsageError(
            f"the ONNX file answers otherwise than the model given as maker: off by {off:.2g}"
            "\nhint: maker=… is the very model that the file was made of, with features in the same order"
        )
    if not off <= _ROUGH:
        raise UsageError(
            f"a published {made.manifest.family} would predict differently from the model: off by {off:.2g}"
            f"\nhint: {_why_different(model)}"
        )


def _why_different(model: Any) -> str:
    """XGBoost takes the zeros of sparse rows for missing values, and published models read rows that are not sparse."""
    *before, last = steps(model)
    inside = [m for part in before for m in (part, *part.get_params(deep=True).values())]
    sparse = any(getattr(m, "sparse_output_", False) or getattr(m, "sparse_output", False) for m in inside)
    if sparse and type(last).__module__.partition(".")[0] == "xgboost":
        return (
            "the encoder makes sparse rows, whose zeros XGBoost takes for missing values; fit it behind "
            "OneHotEncoder(sparse_output=False)"
        )
    return "a fault of the converter; publish another kind of model"


def _checked(made: Published) -> Published:
    """The model, if no receiver would refuse it."""
    from motet.published.model_check import refuse

    Manifest.from_json(made.manifest.to_json())
    try:
        refuse(made)
    except ModelRefused as e:
        zipped = "ZipMap" in e.reason
        hint = (
            "skl2onnx.to_onnx(…, options={'zipmap': False}) leaves it out"
            if zipped
            else "publish another kind of model"
        )
        article = "an" if made.manifest.family[:1] in "AEIO" else "a"
        raise UsageError(
            f"{article} {made.manifest.family} cannot be published: {e.reason}\nhint: {hint}"
        ) from e
    return made
