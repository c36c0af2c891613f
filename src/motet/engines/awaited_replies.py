"""Waiting for replies of processes elsewhere, which may work for minutes and may have died.

A process that works gives a sign of life when it is asked; one that was killed does not, although its organisation may
have started another one meanwhile, which knows nothing of the question. So whoever has not answered after some seconds
is asked for a sign, again and again, and is not waited for any longer without one.
Knows clients and clocks. Does not know letters, nor how anything is carried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from motet.core import Client

Signs = Callable[[list[Client]], set[Client]]
"""Asks clients for a sign of life; gives those who do not."""
Outcome = tuple[Client, bytes, str]  # (who, its reply, why there is none)
EVERY = 5.0  # seconds between two questions, and for an answer to one
_SILENT = 40.0  # seconds without a sign, several times asked for, after which a process is gone


def gather(
    next_outcome: Callable[[float], Outcome | None],
    clients: Collection[Client],
    silent: Signs,
    waiting: Callable[[list[Client]], None],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[dict[Client, bytes], dict[Client, str]]:
    """Replies of those who answer, and why the others do not. `next_outcome` waits so many seconds for one; `waiting`
    gets those for whom all this waits, then [] when it does not any more."""
    came: dict[Client, bytes] = {}
    failed: dict[Client, str] = {}
    last, asked, said = dict.fromkeys(clients, clock()), clock(), False
    while last:
        if outcome := next_outcome(max(asked + EVERY - clock(), 0.0)):
            client, reply, why = outcome
            if last.pop(client, None) is not None:
                came |= {} if why else {client: reply}
                failed |= {client: why} if why else {}
        if last and clock() >= asked + EVERY:
            waiting(sorted(last))
            said = True
            gone = without_sign(last, silent(sorted(last)), clock())
            failed |= gone
            last = {c: at for c, at in last.items() if c not in gone}
            asked = clock()
    if said:
        waiting([])
    return came, failed


def without_sign(last: dict[Client, float], silent: set[Client], now: float) -> dict[Client, str]:
    """Who is gone; `last`, when each gave its last sign, is brought up to date."""
    last |= dict.fromkeys(last.keys() - silent, now)
    text = "its process gave no sign of life for {:.0f} s"
    return {c: text.format(now - at) for c, at in last.items() if now - at >= _SILENT}
