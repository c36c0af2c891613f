"""How many cores a process may use. Imports nothing heavy, so that a process that starts workers may ask."""

from __future__ import annotations

import os

CORES = "MOTET_CORES"  # in the environment: how many cores a process may use at most


def cores() -> int:
    """How many this process may use; workers of a study share them, and are told their part."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    part = os.environ.get(CORES, "")
    return min(there, int(part)) if part.isdecimal() and int(part) else there
