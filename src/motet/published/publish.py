"""A fitted model, made ready for strangers: ONNX, and a manifest that says what it is.

Knows models and manifests. Does not know who will fetch them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from motet.errors import UsageError
from motet.published.convert import at_home, convert, keeps_rows, steps
from motet.published.manifest import (
    Feature,
    Manifest,
    ModelRefused,
    Privacy,
    Published,
    TaskKind,
)

_ROUGH = 1e-4  # how far a published model may be from the one at home, in numbers above 1 relative


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
    sample: np.ndarray | None = None,
) -> Published:
    """`model`, which reads `features` in this order, as its client hands it out.

    `model` is a fitted classifier or regressor of scikit-learn, XGBoost or LightGBM, a torch network (rows to
    scores of classes, or to numbers), or has a method `to_onnx()`. `classes` are the names of all classes; a
    model that saw only some of them gives the others probability 0. Models that contain training rows are
    refused unless `rows_may_leave`. What is published is asked about the rows of `sample` (invented ones where
    there are none) and must answer as the model does, because converters have faults; no row of it leaves.
    """
    if not rows_may_leave:
        _check_rows_stay(model, client)
    onnx_model, made_with = convert(model, len(features), task, tuple(classes))
    raw = onnx_model.SerializeToString(deterministic=True)
    manifest = Manifest(
        client=client,
        task=task,
        features=tuple(features),
        classes=tuple(classes),
        privacy=privacy or Privacy(),
        family=family or type(steps(model)[-1]).__name__,
        size=len(raw),
        sha256=hashlib.sha256(raw).hexdigest(),
        opset=next(o.version for o in onnx_model.opset_import if o.domain in ("", "ai.onnx")),
        made_with=made_with,
    )
    made = _acceptable(Published(manifest, raw))
    _same(model, made, invented(manifest) if sample is None else np.asarray(sample, np.float32))
    return made


def _check_rows_stay(model: Any, client: str) -> None:
    if kept := keeps_rows(model):
        raise UsageError(
            f"a published {kept} of client {client} would contain rows that it was trained on"
            "\nhint: publish another kind of model, or pass rows_may_leave=True if these rows may be read by all"
        )


def invented(manifest: Manifest, rows: int = 64) -> np.ndarray:
    """Rows around the published defaults."""
    rng = np.random.default_rng(0)
    middle = np.nan_to_num(np.array([f.default for f in manifest.features], np.float32))
    x = middle + rng.normal(size=(rows, len(middle))) * (1 + np.abs(middle))
    flags = np.array([f.kind == "flag" for f in manifest.features])
    return np.asarray(np.where(flags, x > middle, x), np.float32)


def _same(model: Any, made: Published, x: np.ndarray) -> None:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it would report the model to onnxruntime's maker
    import onnxruntime as ort

    session = ort.InferenceSession(made.model, providers=["CPUExecutionProvider"])
    away = session.run(None, {session.get_inputs()[0].name: x})[0]
    home = at_home(model, x, made.manifest.task, made.manifest.classes)
    off = float(np.max(np.abs(away - home) / np.maximum(1, np.abs(home)), initial=0))
    if not off <= _ROUGH:
        raise UsageError(
            f"a published {made.manifest.family} would answer otherwise than the model: off by {off:.2g}"
            "\nhint: a fault of the converter; publish another kind of model"
        )


def _acceptable(made: Published) -> Published:
    """What others would refuse is not published."""
    from motet.published.model_check import refuse

    Manifest.from_json(made.manifest.to_json())
    try:
        refuse(made)
    except ModelRefused as e:
        raise UsageError(
            f"a {made.manifest.family} cannot be published: {e.reason}\nhint: publish another kind of model"
        ) from e
    return made
