"""Where tests find real data: the folder that the environment variable MOTET_DATA names."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture(scope="session")
def folder() -> Callable[[ModuleType], Path]:
    """A data set's folder; a test that needs it is skipped where it is not there."""

    def find(module: ModuleType) -> Path:
        if not (root := os.environ.get("MOTET_DATA")):
            pytest.skip("MOTET_DATA does not name a folder of real data")
        there = [Path(root) / name for name in module.FOLDERS if (Path(root) / name).is_dir()]
        if not there:
            pytest.skip(f"MOTET_DATA has no folder {' or '.join(module.FOLDERS)}")
        return there[0]

    return find


@pytest.fixture(scope="session")
def decoded(folder: Callable[[ModuleType], Path]) -> Callable[[ModuleType], dict[str, np.ndarray]]:
    """A data set's arrays, decoded once for all tests."""
    return cache(lambda module: module.decode(folder(module)))
