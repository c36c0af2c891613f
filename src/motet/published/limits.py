"""Limits on the resources that an untrusted model may use. Knows numbers only."""

from __future__ import annotations

from dataclasses import dataclass

MB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits that are checked before a model runs, and limits that end the process in which it runs."""

    size: int = 256 * MB  # bytes of a model; a forest of 4,664 rows of Census has 7 MB
    features: int = 10_000  # columns of its input
    classes: int = 1_000  # columns of its output
    nodes: int = 20_000  # operators in its graph
    opset: tuple[int, int] = (7, 24)  # of ai.onnx
    opset_ml: tuple[int, int] = (1, 5)  # of ai.onnx.ml
    cells: int = 50_000_000  # numbers in any one tensor while it runs
    memory: int = 2048 * MB  # bytes that a child may use beyond those it has before the first model
    cpu: float = 20.0  # seconds of computing in a batch
    wall: float = 120.0  # seconds of waiting for a batch
    batch: int = 8192  # rows in a batch
    sessions: int = 64 * MB  # bytes of models that a child keeps loaded; loaded, trees take 15 times as much


USUAL = Limits()
