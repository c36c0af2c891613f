"""How many files of motet one ask needs on the loop and on the vmap engine, as docs/architecture.md says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import motet
from motet.client import Batch, ClientData, Task
from motet.core import Turn
from motet.engines.driver import play
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.methods.fedavg import FedAvg

HOME = str(Path(motet.__file__).parent) + "/"
PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()


def files_of_an_ask(engine: Loop) -> set[str]:
    """Files whose functions run in a round of FedAvg, for a network with dropout."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))
    method = FedAvg(Task(net, "classes", 2), lr=0.1)
    found: set[str] = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            found.add(frame.f_code.co_filename.removeprefix(HOME))

    sys.setprofile(watch)
    try:
        play(engine, method, method.task.w0, Turn(0, ["a", "b"], ["a", "b"], 1))
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize(("kind", "sentence"), [(Loop, "The loop needs"), (Vmap, "The vmap engine needs")])
def test_an_ask_needs_as_many_files_as_the_page_says(kind: type[Loop], sentence: str) -> None:
    x = torch.eye(3)
    rows = Batch.of(x, torch.tensor([0, 1, 0]))
    clients = {name: ClientData(rows, rows, rows) for name in "ab"}
    said = re.search(rf"{sentence} (\d+) files", PAGE)
    assert said is not None
    assert len(found := files_of_an_ask(kind(clients))) == int(said[1]), sorted(found)
