"""Predictions of untrusted models, computed in a child process with limits.

The child is started once and serves many models. A model that it refuses, or that ends it, stalls it or fills its
memory, is refused with a message that names the client; the others go on in a new child. Works on Linux, whose
limits it uses. Knows rows, columns and manifests; this process itself never parses an untrusted model.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from queue import LifoQueue
from typing import Any

import numpy as np

from motet.published.child_process import Child
from motet.published.limits import USUAL, Limits
from motet.published.manifest import Feature, Manifest, ModelRefused, Published, same_bytes
from motet.published.model_check import sized
from motet.published.pipe import Ended, Late
from motet.published.text_columns import as_models_read
from motet.published.yes_no import linked_columns

_MOST = 8  # children at once
_MEMORY = 1000  # refused models that are remembered
_ROUGH = 1e-3  # how far probabilities may be from 0 to 1, and their sum from 1


def predict(
    models: Sequence[Published],
    x: Any,
    names: Sequence[str] = (),
    *,
    limits: Limits = USUAL,
    runner: Runner | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Each client's predictions for the rows of `x`, whose columns are `names`; and why some were refused. `x` may be
    a data frame: its columns of text become flags `column=category`.

    Predictions are probabilities (rows, classes) or numbers (rows, 1). Columns that a model does not read are left
    out, and those that it reads and `x` lacks are filled with its published defaults.
    """
    if hasattr(x, "columns"):
        x, names = as_models_read(x, [n for m in models for n in m.manifest.names])
    if runner is None:
        with borrowed(limits) as own:
            return predict(models, x, names, limits=limits, runner=own)
    found: dict[str, np.ndarray] = {}
    refused: dict[str, str] = {}
    for m in models:
        try:
            if m.client in found:
                raise ModelRefused(m.client, "it published two models")
            found[m.client] = runner.predict(m, columns(m.manifest, x, names))
        except ModelRefused as e:
            refused[m.client] = str(e)
    return found, refused


def columns(manifest: Manifest, x: np.ndarray, names: Sequence[str], dtype: Any = np.float32) -> np.ndarray:
    """The columns that a model reads, in its order; those that x lacks are the model's defaults."""
    if x.ndim != 2 or x.shape[1] != len(names):
        raise ValueError(f"x has the shape {x.shape}, and {len(names)} columns have names")
    x, names = linked_columns(manifest.features, x, names)
    places, fills = places_and_fills(manifest.features, names)
    rest = np.broadcast_to(np.array(fills, dtype), (len(x), len(fills)))
    return np.concatenate([np.asarray(x, dtype), rest], axis=1)[:, places]


def places_and_fills(features: Sequence[Feature], names: Sequence[str]) -> tuple[list[int], list[float]]:
    """Where each feature stands among columns `names` and the fills behind them. A column that lacks is filled with
    the default; a category of a column whose other categories are there is 0: these rows are of another category.

    >>> places_and_fills([Feature("age", default=40.0), Feature("sex=x", "flag", 1.0)], ["sex=f"])
    ([1, 2], [40.0, 0.0])
    """
    at = {name: i for i, name in enumerate(names)}
    there = {n.partition("=")[0] for n in names if "=" in n}
    places: list[int] = []
    fills: list[float] = []
    for f in features:
        places.append(at.get(f.name, len(names) + len(fills)))
        if f.name not in at:
            source, sign, _ = f.name.partition("=")
            other = f.kind == "flag" and sign and source in there
            fills.append(0.0 if other else f.default)
    return places, fills


@cache
def runners(limits: Limits) -> LifoQueue[Runner]:
    """The runners of this process with these limits, as many as it has cores. Clients that work side by side have a
    child each; one after another they have the same."""
    found: LifoQueue[Runner] = LifoQueue()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    for _ in range(min(cores, _MOST)):
        found.put(Runner(limits))
    return found


@contextlib.contextmanager
def borrowed(limits: Limits) -> Iterator[Runner]:
    """A runner that nobody else uses meanwhile."""
    idle = runners(limits)
    runner = idle.get()
    try:
        yield runner
    finally:
        idle.put(runner)


class _BadAnswers(ModelRefused):
    """A model answered these rows with something that is no prediction."""


class _Died(Exception):
    """The child ended or sent a malformed answer."""


class Runner:
    """A child process in which untrusted models run; started when first needed, safe for threads."""

    def __init__(self, limits: Limits = USUAL) -> None:
        self.limits = limits
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._refused: dict[str, str] = {}  # models that need not be tried again

    def predict(self, model: Published, x: np.ndarray) -> np.ndarray:
        """The model's predictions for rows of its own columns; raises ModelRefused."""
        sized(model.manifest, self.limits)
        same_bytes(model.manifest, model.model)
        key = hashlib.sha256(model.manifest.to_json().encode()).hexdigest()
        with self._lock:
            if key in self._refused:
                raise ModelRefused(model.client, self._refused[key])
            try:
                return self._batches(key, model, np.ascontiguousarray(x, np.float32))
            except _BadAnswers:
                raise  # these rows were the reason, perhaps: other rows are tried again
            except ModelRefused as e:
                self._refused = dict([*self._refused.items(), (key, e.reason)][-_MEMORY:])
                raise

    def close(self) -> None:
        with self._lock:
            self._end()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _batches(self, key: str, model: Published, x: np.ndarray) -> np.ndarray:
        """All predictions. If the child ends, an earlier model may be the cause, so a new child is tried once."""
        with contextlib.suppress(_Died):
            return self._answers(key, model, x)
        try:
            return self._answers(key, model, x)
        except _Died as e:
            raise ModelRefused(model.client, f"its model ended the process that ran it ({e})") from e

    def _answers(self, key: str, model: Published, x: np.ndarray) -> np.ndarray:
        y = np.empty((len(x), model.manifest.outputs), np.float32)
        for start in range(0, len(x), self.limits.batch):
            rows = slice(start, start + self.limits.batch)
            y[rows] = self._batch(key, model, x[rows])
        return y

    def _batch(self, key: str, model: Published, x: np.ndarray) -> np.ndarray:
        request = {"do": "run", "key": key, "shape": x.shape}
        expected = 4 * len(x) * model.manifest.outputs  # bytes
        header, body = self._request(model, request, x, expected)
        if "unknown" in header:
            manifest = model.manifest.to_json()
            self._request(model, {"do": "load", "key": key, "manifest": manifest}, model.model, 0)
            _, body = self._request(model, request, x, expected)
        return _valid(model.manifest, np.frombuffer(body, np.float32).reshape(len(x), -1))

    def _request(
        self, model: Published, request: dict[str, Any], body: Any, expected: int
    ) -> tuple[dict[str, Any], bytes]:
        raw = memoryview(body).cast("B") if len(body) else b""
        child = self._running()
        try:
            header, answer = child.request(request, raw, expected, self.limits.wall)
        except Late as e:
            self._end()
            raise ModelRefused(model.client, f"its model did not answer within {self.limits.wall:g} s") from e
        except Ended as e:
            code = self._end()
            if code == -signal.SIGXCPU:
                reason = f"its model computed for more than {self.limits.cpu:g} s on a batch"
                raise ModelRefused(model.client, reason) from e
            raise _Died(f"{e}, code {code}") from e
        if "refused" in header:
            raise ModelRefused(model.client, str(header["refused"]))
        if "ok" in header and len(answer) != expected:
            self._end()
            raise _Died(f"it answered with {len(answer)} bytes instead of {expected}")
        return header, answer

    def _running(self) -> Child:
        if self._child is None or not self._child.ours():
            self._child = Child(self.limits)
        return self._child

    def _end(self) -> int:
        child, self._child = self._child, None
        return child.end() if child else 0


def _valid(manifest: Manifest, y: np.ndarray) -> np.ndarray:
    """The predictions, if they are probabilities or finite numbers; raises ModelRefused otherwise."""
    if not np.isfinite(y).all():
        raise _BadAnswers(
            manifest.client, "its model's answers are not all finite; do the rows have empty cells?"
        )
    if manifest.task == "numbers":
        return y
    far = max(0.0, -float(y.min(initial=0)), float(np.abs(y.sum(1) - 1).max(initial=0)))
    if far > _ROUGH:
        raise _BadAnswers(
            manifest.client, f"its model's answers are no probabilities: they are off by {far:.3g}"
        )
    return np.asarray(np.clip(y, 0, 1))
