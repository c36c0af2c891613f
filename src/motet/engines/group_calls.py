"""Letters carried by NVIDIA FLARE's Collab group calls: the one place where an engine knows FLARE.

Knows FLARE. Does not know what is in a letter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from motet.core import Client
from motet.engines.awaited_replies import EVERY, Outcome, gather
from motet.engines.flare import Post, TooFew

log = logging.getLogger("motet.server")


def group_calls(timeout: float, waiting: Callable[[list[Client]], None] = lambda clients: None) -> Post:
    """Letters carried by FLARE, from within a running job; every site has `timeout` seconds to answer, as long as its
    process is there. `waiting` is told whom it waits for, if that takes some seconds."""
    from nvflare.collab import collab

    def post(letters: Mapping[Client, bytes]) -> tuple[dict[Client, bytes], dict[Client, str]]:
        groups: dict[bytes, list[Client]] = {}
        for client, letter in letters.items():
            groups.setdefault(letter, []).append(client)
        outcomes: SimpleQueue[Outcome] = SimpleQueue()
        for letter, who in groups.items():
            call = collab.get_clients(who)(blocking=False, timeout=timeout).answer(letter)
            Thread(target=put_outcomes, args=(call, outcomes), daemon=True).start()
        came, failed = gather(partial(next_outcome, outcomes), letters, silent_sites, waiting)
        if collab.is_aborted:
            raise TooFew(f"FLARE ended the job, because a site's worker died or the server stops; {failed}")
        return came, failed

    return post


def put_outcomes(call: Any, outcomes: SimpleQueue[Outcome]) -> None:
    """What a group call brings, as it comes."""
    for site, reply in call:
        outcomes.put((site, reply, ""))
    for site, error in call.failures.items():
        outcomes.put((site, b"", str(error.cause) or "no answer"))


def next_outcome(outcomes: SimpleQueue[Outcome], seconds: float) -> Outcome | None:
    try:
        return outcomes.get(timeout=seconds)
    except Empty:
        return None


def silent_sites(sites: list[Client]) -> set[Client]:
    """Which of the sites have no process in this job that answers at once."""
    from nvflare.collab import collab

    if collab.is_aborted:
        return set()
    try:
        call = collab.get_clients(sites)(timeout=EVERY).alive()
    except Exception:  # whatever FLARE raises: the question could not be put, which says nothing of the sites
        log.exception("no signs of life could be asked for")
        return set()
    return set(call.failures)
