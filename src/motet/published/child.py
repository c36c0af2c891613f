"""The process in which untrusted models are parsed, checked and run: one thread, little memory, no files.

It reads requests from its standard input and answers on its standard output until that is closed. Before
the first model it gives up what it does not need: more memory than the limit, opening any file or socket,
writing to files, core dumps. Each request may compute for `cpu` seconds, then the kernel ends the process.

A model could use a fault in the parser or the runtime to run its own code here. Until the process ends, that
code would see the rows that this process gets, and could change the predictions of other models.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections import OrderedDict
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as faults

from motet.published.graph import assemble
from motet.published.limits import Limits
from motet.published.manifest import Manifest, ModelRefused, Published
from motet.published.model_check import refuse
from motet.published.pipe import Ended, Pipe

_OF_RUNTIME = [v for v in vars(faults).values() if isinstance(v, type) and issubclass(v, Exception)]
_FAULTS: tuple[type[Exception], ...] = (*_OF_RUNTIME, MemoryError, RuntimeError, ValueError, TypeError)
Answer = tuple[dict[str, Any], bytes]


class Models:
    """Loaded models, the least recently used ones dropped where there are too many."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.loaded: OrderedDict[str, tuple[Any, Manifest]] = OrderedDict()

    def load(self, key: str, model: Published) -> Answer:
        refuse(model, self.limits)
        self.loaded[key] = self._with_memory(lambda: _session(model.model)), model.manifest
        while len(self.loaded) > 1 and sum(m.size for _, m in self.loaded.values()) > self.limits.sessions:
            self.loaded.popitem(last=False)
        return {"ok": True}, b""

    def run(self, key: str, x: np.ndarray) -> Answer:
        if key not in self.loaded:
            return {"unknown": True}, b""
        self.loaded.move_to_end(key)
        session, manifest = self.loaded[key]
        name = session.get_inputs()[0].name
        (y,) = self._with_memory(lambda: session.run(None, {name: x}))
        if not isinstance(y, np.ndarray) or y.dtype != np.float32:
            raise ModelRefused(manifest.client, "its model does not answer with numbers of 32 bits")
        if y.shape != (len(x), manifest.outputs):
            raise ModelRefused(
                manifest.client,
                f"its model answers {len(x)} rows with the shape {list(y.shape)[:8]}, "
                f"and {manifest.outputs} columns were declared",
            )
        return {"ok": True}, y.tobytes()

    def _with_memory(self, work: Any) -> Any:
        """Do the work; if memory runs out, drop all loaded models and try once more."""
        try:
            return work()
        except _FAULTS as e:
            if not self.loaded or not _out_of_memory(e):
                raise
        self.loaded.clear()
        gc.collect()
        return work()


def _out_of_memory(e: Exception) -> bool:
    return isinstance(e, MemoryError) or any(w in str(e) for w in ("bad_alloc", "Failed to allocate"))


def _session(model: bytes) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # fewer ways to fail
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False  # memory is given back at once
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def answer(models: Models, header: dict[str, Any], body: bytes) -> Answer:
    """The answer to one request; a refusal is an answer, too."""
    _allow(models.limits.cpu)
    try:
        if header["do"] == "load":
            return models.load(header["key"], Published(Manifest.from_json(header["manifest"]), body))
        return models.run(header["key"], np.frombuffer(body, np.float32).reshape(header["shape"]))
    except ModelRefused as e:
        return {"refused": e.reason}, b""
    except MemoryError:
        return {"refused": "its model needs more memory than the limit"}, b""
    except _FAULTS as e:
        more = "needs more memory than the limit" if _out_of_memory(e) else "does not run"
        return {"refused": f"its model {more}: {str(e).strip()[:200]}"}, b""


def _allow(seconds: float) -> None:
    """Allow so many seconds of computing from now on; then the kernel ends this process."""
    used = time.process_time()
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used + seconds) + 1, hard))


def _lock(limits: Limits, descriptors: int) -> None:
    """Set the kernel's limits to what a model needs at most."""
    with open("/proc/self/statm") as f:
        has = int(f.read().split()[0]) * resource.getpagesize()
    for what, most in (
        (resource.RLIMIT_AS, has + limits.memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, descriptors),
    ):
        resource.setrlimit(what, (most, most))


def _warm_up() -> None:
    """Load what Python and the runtime load late, while files may still be opened."""
    model = assemble([], [], features=1, columns=1, last="x")
    onnx.checker.check_model(model)
    onnx.shape_inference.infer_shapes(model, data_prop=True)
    _session(model.SerializeToString()).run(None, {"x": np.zeros((1, 1), np.float32)})


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not mix with answers
    pipe = Pipe(0, answers)
    header, _ = pipe.receive(0)
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in header.items()}
    limits = Limits(**given)
    _warm_up()
    _lock(limits, answers + 1)
    models = Models(limits)
    pipe.send({"ready": True})
    while True:
        try:
            request = pipe.receive(1 << 32)
        except Ended:
            return
        pipe.send(*answer(models, *request))


if __name__ == "__main__":
    main()
