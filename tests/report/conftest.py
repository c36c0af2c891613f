"""Small runs with scores given by hand, for all tests of reports."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stored_runs import made

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(method, {client: personal score}, …): the folder of a finished run of three rounds."""
    return partial(made, tmp_path)


@pytest.fixture(scope="module")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """As `make`, for runs that all tests of a file share."""
    return partial(made, tmp_path_factory.mktemp("runs"))
