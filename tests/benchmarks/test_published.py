"""The published workloads have the sizes that were published, and the arithmetic of a thousand machines is right."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import growth_pictures
import published_data
import thousand_machines
from motet.data.federated import PARTS


def test_flutes_clients_have_few_digits_and_unequal_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOTET_DATA", raising=False)
    pool = published_data.flute()
    assert pool.owner is not None and pool.part is not None
    sizes = np.bincount(pool.owner)
    assert len(sizes) == 1000 and abs(sizes.mean() - 70) < 1 and 1 < sizes.std() / sizes.mean() < 2
    digits = [len(np.unique(pool.y[pool.owner == client])) for client in range(900)]
    assert np.mean(np.array(digits) <= 2) > 0.9  # the last clients take what is left
    scored = np.bincount(pool.owner[pool.part == PARTS.index("val")], minlength=1000)
    assert scored.min() >= 1 and abs(scored.sum() / len(pool.y) - 0.1) < 0.02


def test_fedjaxs_clients_have_emnists_sizes() -> None:
    pool = published_data.fedjax(clients=50)
    assert pool.owner is not None
    sizes = np.bincount(pool.owner)
    assert len(sizes) == 50 and abs(sizes.mean() - 220) < 2 and pool.x.shape[1:] == (1, 28, 28)
    assert len(pool.classes) == 62


COSTS = [  # a message of 0.001 MB, and one of 1 MB
    {"megabytes": 0.001, "fold_reply": 1.0, "fold_sum": 1.0, "read": 2.0},
    {"megabytes": 1.0, "fold_reply": 0.0004, "fold_sum": 0.0001, "read": 0.0002},
]


def test_a_server_waits_for_its_network_with_a_large_model() -> None:
    """1,000 machines and 1 MB: 1 GB down and 2 GB of sums up at 1.25 GB a second."""
    wait = thousand_machines.server(250_000, COSTS, "sums")
    assert (wait["send"], wait["receive"]) == (pytest.approx(0.8), pytest.approx(1.6))
    assert wait["fold"] == pytest.approx(1000 * (0.001 + 2 * 0.0001)) and wait["first"] == "receive"
    assert wait["held"] == 2e9


def test_a_server_waits_for_messages_with_a_small_model() -> None:
    """A letter of 4 bytes costs what the smallest does: 2 ms to read, 1 ms to fold."""
    wait = thousand_machines.server(1, COSTS, "letters")
    assert wait["first"] == "read" and wait["read"] == pytest.approx(2.0, rel=1e-3)
    assert wait["receive"] == wait["send"] == pytest.approx(3.2e-6)


def test_the_same_numbers_give_the_same_pictures(tmp_path: Path) -> None:
    shutil.copy(Path(growth_pictures.__file__).parent / "results" / "W4.json", tmp_path)
    point = {"processor_ms": 2.0, "peak_mib": 400, "folder_mib": 0.5, "first_ms": 9.0, "load_before": 0.1}
    machine = {"cpu": "one", "cores": 2, "memory_gib": 1.0, "python": "3", "torch": "2"}
    told = {"machine": machine, "code": "abc", "written_by": "growth.py"}
    curve = {**told, "points": [{"size": 10, **point}, {"size": 100, **point, "processor_ms": 20.0}]}
    (tmp_path / "growth.json").write_text(json.dumps({"curves": {"rounds": curve, "actors": curve}}))
    made = growth_pictures.draw(tmp_path)
    assert [path.name for path in made] == [
        "growth-rounds.svg", "growth-actors.svg", "growth-clients.svg", "growth.md",
    ]  # fmt: skip
    first = [path.read_bytes() for path in made]
    assert [path.read_bytes() for path in growth_pictures.draw(tmp_path)] == first
