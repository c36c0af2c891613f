"""One client's world: examples, a task, and gradient descent. Safe under vmap; no engine in sight."""

from motet.client.data import (
    Batch,
    Column,
    Data,
    Examinee,
    Home,
    Shelf,
    seed_of,
)
from motet.client.descent import descend, pace, sgd
from motet.client.task import Task, marks, tally

__all__ = [
    "Batch",
    "Column",
    "Data",
    "Examinee",
    "Home",
    "Shelf",
    "Task",
    "descend",
    "marks",
    "pace",
    "seed_of",
    "sgd",
    "tally",
]
