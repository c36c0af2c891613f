"""One client's world: examples, a task, and gradient descent. Safe under vmap; no engine in sight."""

from motet.client.data import (
    Batch,
    ClientData,
    ClientTest,
    Column,
    Data,
    LazyRows,
    seed_of,
)
from motet.client.descent import compiled_steps, descend
from motet.client.descent_rule import sgd
from motet.client.task import Task, predicted, slices

__all__ = [
    "Batch",
    "Column",
    "Data",
    "ClientTest",
    "ClientData",
    "LazyRows",
    "Task",
    "descend",
    "compiled_steps",
    "seed_of",
    "sgd",
    "predicted",
    "slices",
]
