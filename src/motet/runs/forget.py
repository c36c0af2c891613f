"""Forgetting a client: the run is played again without it, from data that never had its rows.

    done = forget("runs/patients-fedavg-seed0-1a2b3c4d", "hospital-3")

The new run has the same recipe with one more name in `data.without`. It lies in a folder of its own and can be
interrupted and continued as any run. What the old recipe left open (learning rates, the network, the metric) is
chosen anew, because these choices saw the client's rows too. Nothing of the old run enters the new one.
Knows runs and recipes. Does not know how what it costs is measured (report/price.py).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from motet.data.files.array_cache import copies_of_client, home
from motet.data.in_memory import GIVEN
from motet.data.left_out import NoSuchClient
from motet.errors import RunError
from motet.runs.build import Resolved, resolve
from motet.runs.compare_runs import changed_files
from motet.runs.identity import changed_code, changed_outbox, changed_versions
from motet.runs.recipe import Recipe, Settings
from motet.runs.run import Run, delete_run, run
from motet.runs.run_folder import locked, writable
from motet.runs.store import FILE, Store
from motet.runs.trainer import Observer
from motet.text import unknown
from motet.trusted_code import Consent, require_trust

log = logging.getLogger("motet")


@dataclass(frozen=True)
class Forgotten:
    """What forgetting a client led to."""

    client: str
    before: Run
    after: Run
    remarks: list[str] = field(default_factory=list)  # what else differs between the two runs
    price: Mapping[str, Any] | None = None  # what it costs the others, as plain data; None: not measured


def forget(
    folder: str | Path,
    client: str,
    to: str | Path | None = None,
    observer: Observer | None = None,
    say: Callable[[str], None] = log.warning,
    trust: Consent = False,
) -> Forgotten:
    """Play a run again without a client, in a new folder beside it (or `to`); continue if that was begun.

    A run that is not finished can be forgotten too. Code that the folder names needs `trust`.
    """
    old, facts = checked_run(Path(folder), client)
    settings = settings_without(facts, client)
    require_trust(settings, folder, trust)
    resolved, more = resolved_without(settings)
    remarks = [*more, *other_reasons(facts, resolved)]
    for line in remarks:
        say(line)
    after = run(resolved, to, observer, base=old.folder.parent)
    remarks += check_absent(old, after, client)
    return Forgotten(client, old, after, remarks)


def checked_run(folder: Path, client: str) -> tuple[Run, dict[str, Any]]:
    """A run that is whole and that had the client, and its facts."""
    if not (folder / FILE).exists() and (inside := sorted(p.parent for p in folder.glob(f"*/{FILE}"))):
        raise RunError(
            f"{folder} holds {len(inside)} runs; a client is forgotten in one after another\n"
            f"hint: motet forget {inside[0]} {client}"
        )
    old = Run(folder)
    with closing(Store(folder)) as store:
        store.check()
        facts, names = store.facts(), [str(row[0]) for row in store.read("clients")]
    if "settings" not in facts:
        raise RunError(f"{folder} never began: nothing is in it that could be forgotten")
    if facts.get("federation"):
        raise RunError(rows_elsewhere(folder, facts, client))
    if client not in names:
        raise RunError(unknown("client", client, names))
    if names == [client]:
        raise RunError(f"{client} is the only client of {folder}: without it nothing is left to train on")
    return old, facts


def rows_elsewhere(folder: Path, facts: Mapping[str, Any], client: str) -> str:
    """What to do where the rows are at the sites of a federation."""
    left_out = [*facts["settings"]["data"].get("without", []), client]
    listed = ",".join(f'"{name}"' for name in left_out)
    return (
        f"{folder} was run by the sites of the federation {facts['federation']}, and their rows are there: only they "
        f"can play it again\nhint: order the run anew without {client}: motet federation run KIT "
        f"{folder / 'recipe.toml'} 'data.without=[{listed}]'; then delete this folder, and let the sites delete theirs"
    )


def settings_without(facts: Mapping[str, Any], client: str) -> Settings:
    """What was asked for, and the client left out. What the run chose itself is left open again."""
    settings: Settings = deepcopy(facts.get("asked") or facts["settings"])
    before = [c for c in settings["data"].get("without", []) if c != client]
    settings["data"] = settings["data"] | {"without": sorted([*before, client])}
    return settings


def resolved_without(settings: Settings) -> tuple[Resolved, list[str]]:
    """The run without the client, also where rows of those left out were deleted from the data already."""
    names, gone = list(settings["data"]["without"]), list[str]()
    while True:
        without = [c for c in names if c not in gone]
        try:
            found = resolve(Recipe(settings | {"data": settings["data"] | {"without": without}}))
        except NoSuchClient as e:
            if set(e.names) <= set(gone):
                raise
            gone += e.names
            continue
        return found, [f"the data have no rows of {c} any more: they are used as they are" for c in gone]


def other_reasons(facts: Mapping[str, Any], resolved: Resolved) -> list[str]:
    """What differs from the old run besides the client, and so moves scores too."""
    before = facts.get("identity_pieces")
    if not before or not facts.get("asked"):
        return ["the old run is of an earlier version: what it chose by itself, with the client, stays"]
    found = changed_code(before["code"], resolved.pieces["code"], facts.get("versions", {}))
    found += changed_outbox(before.get("outbox", {}), resolved.pieces.get("outbox", {}))
    return found + changed_versions(before, resolved.pieces)


def check_absent(old: Run, new: Run, client: str) -> list[str]:
    """Make sure that the new run is whole and lacks the client; whose rows are not those of the old run is said."""
    with closing(Store(old.folder)) as one, closing(Store(new.folder)) as two:
        two.check()
        before, after = ({str(r[0]): r[1:] for r in store.read("clients")} for store in (one, two))
        damaged = changed_files(new.folder, two.files())
        named = [t for t in ("scores", "traffic") if client in set(two.frame(t)["client"])]
    if client in after or named or damaged:
        raise RunError(
            f"{new.folder} is not without {client}: {'; '.join(damaged) or 'it is named in its tables'}\n"
            "hint: delete the folder and give the same command again"
        )
    other = sorted(c for c in before.keys() | after.keys() if c != client and before.get(c) != after.get(c))
    if not other:
        return []
    shown = ", ".join(other[:5]) + (f" and {len(other) - 5} more" if len(other) > 5 else "")
    return [f"the rows or the part in training of other clients are not as they were: {shown}"]


# ---- after it ----


def keep_price(done: Forgotten) -> None:
    """Write into the new run who was forgotten, and what it costs the others."""
    before = done.before.folder.name
    fact = {"client": done.client, "run": before, "price": done.price, "remarks": done.remarks}
    folder = done.after.folder
    with writable(folder), locked(folder), closing(Store(folder, writing=True)) as store:
        if store.facts().get("forgot") != fact:
            store.set_facts(forgot=fact)
            store.event("forgot", f"played again without {done.client}")
            store.commit()


def copies(done: Forgotten, delete: bool) -> list[str]:
    """What else on this machine holds a client that was forgotten, in words. `delete`: decoded copies of the user's own
    images are deleted, and decoded again if they are needed and the client is still among them."""
    client, name = done.client, str(done.after.facts["settings"]["data"]["name"])
    own, built_in = copies_of_client(client)
    found = []
    for folder in own:
        if delete:
            shutil.rmtree(folder)
        found.append(f"{'deleted: ' if delete else ''}{folder}: decoded images, {client}'s among them")
    found += [f"{folder}: a data set that is public; it has a client {client}" for folder in built_in]
    if name.startswith(GIVEN):
        found.append(
            f"{home() / 'given'}: {name} as it was given, {client} included; the new run reads it too"
        )
    if name.startswith("hf:"):
        found.append("the cache of the library datasets (HF_HOME): what it read, as it keeps it")
    for database in sorted(done.before.folder.parent.glob(f"*/{FILE}")):
        if database.parent != done.before.folder and client in held_by(database.parent, name):
            found.append(f"{database.parent}: another run of {name} with {client}; forget it there too")
    return found


def held_by(folder: Path, data: str) -> list[str]:
    """The clients of a run of these data; none where it is of others, or cannot be read."""
    try:
        with closing(Store(folder)) as store:
            same = store.facts().get("data") == data
            return [str(row[0]) for row in store.read("clients")] if same else []
    except RunError:
        return []


def delete_old(folder: Path) -> list[str]:
    """Delete what a run wrote; the files in its folder that others put there, which stay."""
    with locked(folder):
        delete_run(folder)
    (folder / "lock").unlink(missing_ok=True)
    for place in (folder / "models", folder):
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*")) if folder.exists() else []
