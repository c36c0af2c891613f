"""How long an ask takes: the seconds of an ask without work, and the seconds of each particle.

A method must not read a clock, or two runs of one recipe would differ. So the time is measured here, once, before a
run, and the number of tries that follows from it is a setting of the recipe.
Knows asks and a clock. Does not know what is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from motet.core import Ask, Engine


@dataclass(frozen=True)
class AskTime:
    """Seconds."""

    wait: float  # of an ask without work
    each: float  # of each particle in an ask

    def tries(self, particles: int, most: int = 64) -> int:
        """How many candidates each particle should try in a message, so that half of the time is work.

        >>> AskTime(wait=0.2, each=0.001).tries(particles=20)
        10
        """
        return max(1, min(most, round(self.wait / max(self.each * particles, 1e-12))))


def ask_time(
    engine: Engine,
    ask: Callable[[int], Ask],
    many: int = 256,
    times: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> AskTime:
    """Times of an ask for one particle and for `many`; `ask(n)` makes one for n. Call `engine.begin` before."""

    def taken(size: int) -> float:
        question, seconds = ask(size), []
        for _ in range(times):
            began = clock()
            engine.ask(question)
            seconds.append(clock() - began)
        return median(seconds)

    taken(1)  # the first ask also lets clients join
    one, lots = taken(1), taken(many)
    each = max(0.0, (lots - one) / (many - 1))
    return AskTime(max(0.0, one - each), each)
