"""How long an ask takes, measured with a clock that the test moves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from motet.core import Ask, average
from motet.engines.loop import Loop
from motet.engines.wrappers.counted import Counted
from motet.methods.swarm import Swarm
from rounds import TWO, one_number, turn

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from ask_time import ask_time


def test_tries_are_proposed_from_the_time_that_asks_take() -> None:
    now = [0.0]

    class Far(Counted):
        """An engine whose messages take a fifth of a second, and a millisecond for each particle."""

        def ask(self, ask: Any) -> Any:
            now[0] += 0.2 + 0.001 * ask.send["theta"].shape[1]
            return super().ask(ask)

    here, method = Far(Loop(TWO)), Swarm(one_number())
    here.begin(method, turn(here, 0))

    def ask(particles: int) -> Ask:
        sent = {"theta": torch.zeros(1, particles, 1).double()}
        return average(method.loss_of_particles, here.clients, send=sent)

    found = ask_time(here, ask, clock=lambda: now[0])
    assert (found.wait, found.each) == (pytest.approx(0.2), pytest.approx(0.001))
    assert found.tries(particles=20) == 10 and found.tries(particles=1000) == 1
