"""A small federation that all tests share: twelve clients of different sizes, of two kinds that disagree."""

from __future__ import annotations

import logging
from functools import cache, partial

import pytest
import torch

from motet.client import Batch, ClientData, Task
from motet.runs.recipe import RecipeError, method_class
from motet.trusted_code import trust_names

FEATURES, CLASSES = 6, 3

collect_ignore = ["pretended_device.py"]  # it registers a device, once in a process; it has no doctests


def examples(kind: int, many: int, generator: torch.Generator) -> Batch:
    centres = torch.linspace(-1.5, 1.5, CLASSES * FEATURES).reshape(CLASSES, FEATURES).roll(kind, 0)
    y = torch.randint(0, CLASSES, (many,), generator=generator)
    return Batch.of(centres[y] + torch.randn(many, FEATURES, generator=generator), y)


def make_clients_data(sizes: list[int], seed: int = 0) -> dict[str, ClientData]:
    g = torch.Generator().manual_seed(seed)
    return {
        f"c{i:02}": ClientData(examples(i % 2, n, g), examples(i % 2, 6, g), examples(i % 2, 9, g))
        for i, n in enumerate(sizes)
    }


torch.set_num_threads(1)  # small tensors want one
twelve_clients = cache(partial(make_clients_data, [5 + 3 * i for i in range(12)]))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--method",
        action="append",
        default=[],
        metavar="NAME",
        help="tests/contract: this method alone (a name of motet list methods, or module:Class); repeatable",
    )


def pytest_configure(config: pytest.Config) -> None:
    for name in config.getoption("method"):
        trust_names([name])
        try:
            method_class(name.partition(" ")[0])
        except RecipeError as e:
            raise pytest.UsageError(f"--method {name}: {e}") from None


@pytest.fixture
def clients_data() -> dict[str, ClientData]:
    return dict(twelve_clients())


@pytest.fixture(scope="session")
def task() -> Task:
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.Tanh(), torch.nn.Linear(8, CLASSES))
    return Task(net, "classes", CLASSES)


@pytest.fixture(autouse=True)
def logs_are_heard() -> None:
    """FLARE's set-up of logging, in a test before, silences loggers that are there already."""
    logging.root.setLevel(logging.WARNING)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "motet" and isinstance(logger, logging.Logger):
            logger.disabled = False
