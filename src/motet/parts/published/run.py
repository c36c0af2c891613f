"""Predictions of strangers' models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from motet.parts.published.check import refuse
from motet.parts.published.limits import USUAL, Limits
from motet.parts.published.manifest import Manifest, Published, Refused


class Runner:
    """Where strangers' models run."""

    def __init__(self, limits: Limits = USUAL) -> None:
        self.limits = limits

    def predict(self, model: Published, x: np.ndarray) -> np.ndarray:
        import onnxruntime as ort

        session = ort.InferenceSession(model.model)
        return np.asarray(session.run(["y"], {"x": x})[0])


def predict(
    models: Sequence[Published],
    x: np.ndarray,
    names: Sequence[str],
    *,
    limits: Limits = USUAL,
    runner: Runner | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """What each client's model says of the rows of `x`, whose columns are `names`; and who was refused, and why."""
    runner = runner or Runner(limits)
    said: dict[str, np.ndarray] = {}
    refused: dict[str, str] = {}
    for m in models:
        try:
            refuse(m, limits)
            said[m.client] = runner.predict(m, columns(m.manifest, x, names))
        except Refused as e:
            refused[m.client] = str(e)
    return said, refused


def columns(manifest: Manifest, x: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The columns that a model reads, in its order; those that x lacks are the model's defaults."""
    at = {name: i for i, name in enumerate(names)}
    read = [
        x[:, at[f.name]] if f.name in at else np.full(len(x), f.default, np.float32)
        for f in manifest.features
    ]
    return np.ascontiguousarray(np.stack(read, 1), np.float32)
