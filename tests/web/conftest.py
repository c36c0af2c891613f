"""A dashboard over small runs, without a socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from motet.web.app import application
from motet.web.dashboard import Dashboard
from motet.web.run_index import RunIndex
from motet.web.security import Access
from stored_runs import made

EVIL = "<script>alert(1)</script>"
NAMES = {"a": 0.6, "b": 0.7, "client-10": 0.8, "client-9": 0.5, f"../{EVIL}": 0.9}
WORD = "the-token-of-the-tests"


@pytest.fixture(scope="package")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that no test changes."""
    base = tmp_path_factory.mktemp("dashboard") / "runs"
    base.mkdir()
    made(base, "fedavg", NAMES, shared={n: v - 0.1 for n, v in NAMES.items()}, created=1.0)
    trust = {"a": {"b": 0.7, "a": 0.3}, "b": {"a": 0.4}}
    made(base, "stacking", dict.fromkeys(NAMES, 0.75), created=2.0,
         record={"trust": trust, "centralities": {"in_strength": {"a": 0.6, "b": 0.4}}})  # fmt: skip
    weights = {"net": {"weights": "runs/fedavg-0/global.safetensors"}}
    made(base, "ditto", NAMES, seed=3, created=3.0, settings=weights, data=EVIL)
    made(base, "local", NAMES, created=4.0, status="running", rounds=9)
    (base / "notes.txt").write_text("no run")
    return base


@pytest.fixture(scope="package")
def board(base: Path) -> Iterator[Dashboard]:
    found = Dashboard(RunIndex(base), Access(frozenset({"localhost"}), token=WORD))
    yield found
    found.close()


@pytest.fixture
def page(board: Dashboard) -> TestClient:
    """A browser that has not signed in."""
    return TestClient(application(board, warm=False), base_url="http://localhost", follow_redirects=False)


@pytest.fixture
def owner(page: TestClient) -> TestClient:
    """A browser that has signed in."""
    answer = page.post("/sign-in", data={"token": WORD}, headers={"Origin": "http://localhost"})
    assert answer.status_code == 303
    return page
