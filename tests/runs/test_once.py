"""A comparison resolves each recipe, builds each network and reads each store once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import motet
from motet import nets
from motet.report import read as reading
from motet.runs import build, jobs, run

WORDS: dict[str, Any] = {"data": {"name": "wine", "clients": 4}, "rounds": 2, "save": {"models": "none"}}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of these functions is called."""
    counts: Counter[str] = Counter()
    places: list[tuple[Any, str]] = [
        (jobs, "resolve"), (run, "resolve"), (build, "completed_with_task"), (build, "task_of"),
        (build, "method_of"), (build, "load"), (nets, "build"), (reading, "_read"),
    ]  # fmt: skip
    for module, name in places:
        real = getattr(module, name)

        def counted(*args: Any, _real: Any = real, _name: str = name, **more: Any) -> Any:
            counts[_name] += 1
            return _real(*args, **more)

        monkeypatch.setattr(module, name, counted)
    return counts


def test_a_comparison_does_everything_once_for_each_run(tmp_path: Path, calls: Counter[str]) -> None:
    found = motet.compare(["local", "fedavg"], base=tmp_path, **WORDS)
    assert calls == {
        "resolve": 2,
        "completed_with_task": 2,
        "task_of": 2,
        "method_of": 2,
        "build": 2,
        "load": 1,
    }
    assert len(found.table) == 3 and len(found.by_client) == 4
    assert found.report().exists()
    assert calls["_read"] == 2


def test_a_run_and_its_verification_resolve_and_build_once_each(tmp_path: Path, calls: Counter[str]) -> None:
    motet.run(method="fedavg", out=tmp_path / "r", **WORDS)
    assert calls["resolve"] == calls["build"] == calls["load"] == 1
    motet.verify(tmp_path / "r")
    assert calls["resolve"] == calls["build"] == calls["load"] == 2
