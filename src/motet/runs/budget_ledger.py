"""A privacy budget over several runs of a simulation: a file in which runs add up what clients spent.

    motet run data=heart privacy.level=example privacy.epsilon=1 privacy.ledger=runs/privacy.jsonl \
      privacy.ledger_epsilon=3

A run is written down before it trains, with all steps that it may take, and is refused if a client would then have
spent too much. The same run once more gives the same bits, tells nothing new and counts once. Runs on another split of
the same data set may have the same rows at other clients: of these the client that spent most counts for everybody.
A line has the hash of the line before it, so that lines which were changed or left out are found.
Knows recipes, budgets and the file. Does not train.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from filelock import FileLock
from msgspec import DecodeError, Struct, ValidationError, to_builtins
from msgspec import json as wire

from motet.core import Client
from motet.data.load import names
from motet.errors import RunError
from motet.guard.accounting import NoisySteps, epsilon_of
from motet.runs.build import Resolved
from motet.runs.identity import whole
from motet.runs.recipe_text import RecipeError
from motet.runs.store import Store
from motet.runs.store_file import FILE


class SpentByRun(Struct, frozen=True):
    """One line: what a run may spend, client by client."""

    time: str
    run: str  # the hash of all that makes the run what it is
    data: str  # the data set's name; of a file or folder its whole path
    rows: str  # the fingerprint of its rows, as they are split among clients
    level: str
    clients: dict[str, NoisySteps]  # of whole clients one entry, "", for all of them
    previous: str  # sha256 of the line before


def charge(resolved: Resolved, folder: Path) -> None:
    """Write a run down before it trains; RecipeError if too little is left. A finished run is only read: what it spent
    is written down if it is not yet, and is too late to refuse."""
    settings, budget = resolved.recipe.privacy, resolved.budget
    if budget is None or not settings.ledger:
        return
    path, run = Path(settings.ledger).expanduser(), whole(resolved.pieces)
    facts = facts_in(folder)
    if facts.get("identity", run) != run:
        return  # the folder holds another run, and this one will be refused
    if path.is_dir():
        raise RecipeError(
            f"privacy.ledger is {path}, a folder\nhint: privacy.ledger={path / 'privacy.jsonl'}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(path.name + ".lock")):
        before, last = read_ledger(path)
        if any(line.run == run for line in before):
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        data = one_name(str(resolved.recipe["data"]["name"]))
        line = SpentByRun(now, run, data, resolved.fingerprint, settings.level, dict(budget.planned()), last)
        same = [x for x in before if one_name(x.data) == data]
        if other := next((x for x in same if x.level != settings.level), None):
            raise RecipeError(
                f"privacy.level is {settings.level}, and the ledger {path} has runs of level {other.level}: what they "
                "protect is not the same, and cannot be added up\nhint: another privacy.ledger"
            )
        if facts.get("status") != "done":
            check_left(path, same, line, settings.ledger_epsilon, budget.delta)
        append(path, line)


def one_name(data: str) -> str:
    """A data set's name; of a file or folder its whole path, however it was written. A set that motet knows by its name
    is that one, also where a folder is called so."""
    path = Path(data).expanduser()
    return str(path.resolve()) if data not in names() and path.exists() else data


def facts_in(folder: Path) -> dict[str, Any]:
    """Of the run that a folder holds; none where there is no run."""
    if not (folder / FILE).exists():
        return {}
    store = Store(folder)
    try:
        return store.facts()
    finally:
        store.close()


def check_left(path: Path, before: Sequence[SpentByRun], line: SpentByRun, most: float, delta: float) -> None:
    """Refuse a run with which a client would have spent more than `most`, if it is not 0."""
    if not most:
        return
    for client in sorted(line.clients):
        old = history(before, client, line.rows, delta)
        wanted = epsilon_of([*old, line.clients[client]], delta)
        if wanted > most * (1 + 1e-9):
            who = f"client {client}" if client else "every client"
            raise RecipeError(
                f"with this run {who} would have spent epsilon {wanted:.4g} (delta {delta:g}) over the runs in {path}, "
                f"{epsilon_of(old, delta):.4g} of it before, and privacy.ledger_epsilon is {most:g}\n"
                "hint: a smaller privacy.epsilon, fewer train.rounds, or other data"
            )


def history(before: Sequence[SpentByRun], client: Client, rows: str, delta: float) -> list[NoisySteps]:
    """What a client has spent; on another split any client may have had its rows."""
    return [
        line.clients[client]
        if line.rows == rows and client in line.clients
        else max(line.clients.values(), key=lambda steps: epsilon_of([steps], delta))
        for line in before
    ]


# ---- the file ----


def read_ledger(path: Path) -> tuple[list[SpentByRun], str]:
    """All lines, and the hash of the last; RunError where the chain is damaged."""
    lines, last = list[SpentByRun](), ""
    content = path.read_bytes() if path.exists() else b""
    for number, raw in enumerate(content.split(b"\n")[:-1], 1):
        try:
            line = wire.decode(raw, type=SpentByRun)
        except (DecodeError, ValidationError) as e:
            raise damaged(path, f"line {number} cannot be read: {e}") from e
        if line.previous != last:
            raise damaged(path, f"line {number} does not follow the line before it")
        lines.append(line)
        last = sha256(raw).hexdigest()
    if content and not content.endswith(b"\n"):
        raise damaged(path, "its last line is cut off")
    return lines, last


def damaged(path: Path, why: str) -> RunError:
    return RunError(
        f"the privacy ledger {path} is damaged: {why}\n"
        "hint: restore it from a copy; without it nobody knows what was spent"
    )


def append(path: Path, line: SpentByRun) -> None:
    """Add a line; it is on the disk when this returns."""
    raw = json.dumps(to_builtins(line)).encode("ascii") + b"\n"
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(opened, raw)
        os.fsync(opened)
    finally:
        os.close(opened)


def spent_over_runs(path: Path, data: str, delta: float) -> Mapping[Client, float]:
    """Epsilon of each client over all runs on a data set, at most; by its clients' names in the last run."""
    found = [line for line in read_ledger(path)[0] if one_name(line.data) == one_name(data)]
    if not found:
        return {}
    rows = found[-1].rows
    return {c: epsilon_of(history(found, c, rows, delta), delta) for c in found[-1].clients}
