"""All runs, studies and federations that a dashboard shows: found in folders, listed, searched, and how they descend.

A run is called by a short name made of its folder's path, and found by that name in a list: no text of an address
ever becomes a path. What a list shows of a run is read again only when its database has changed.
Knows folders and facts. Does not know how anything is shown. Imports no torch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from motet.errors import MotetError
from motet.runs.store import Store
from motet.runs.store_file import FILE
from motet.runs.study_record import StudyRecord, read_studies
from motet.web.processes import can_see_processes, writer_of
from motet.web.run_reading import Stamp, first_line, plain_file, stamp_of

_DEEP = 2  # folders below the base in which runs are found
_LISTED = (
    "method", "data", "net", "seed", "split", "status", "metric", "better", "rounds", "created", "seconds",
    "failure", "reported", "federation", "population", "forgot",
)  # fmt: skip


@dataclass(frozen=True)
class RunEntry:
    """A run in a list."""

    name: str  # in addresses
    folder: Path
    facts: dict[str, Any]
    latest: int = 0  # rounds that are saved
    score: float | None = None  # the validation score of the best round so far, as it is
    scored_by: str = ""  # the metric that it is of: the run's, or the loss where no client has that
    weights: str = ""  # the file that its initial weights came from
    trouble: str = ""  # why it cannot be read
    writer: int | None = None  # the process that writes it now
    studies: tuple[str, ...] = ()  # names of the studies that it belongs to

    @property
    def state(self) -> str:
        """done, failed, running, stopped (it can go on), damaged, or unknown where the system does not say."""
        said = str(self.facts.get("status", ""))
        if self.trouble:
            return "damaged"
        if said in ("done", "failed"):
            return said
        if self.writer is not None:
            return "running"
        return "stopped" if can_see_processes() else "unknown"

    @property
    def title(self) -> str:
        if not self.facts.get("method"):
            return self.folder.name
        return f"{self.facts['method']} on {self.facts.get('data', '?')}"

    @property
    def created(self) -> float:
        found = self.facts.get("created")
        return float(found) if isinstance(found, int | float) else 0.0

    def matches(self, words: Sequence[str]) -> bool:
        """Whether each word occurs in its name, method, data, network, state or federation."""
        said = [self.facts.get(k) for k in ("method", "data", "net", "federation", "failure")]
        text = " ".join(
            str(t) for t in (self.name, self.state, *said, f"seed{self.facts.get('seed')}")
        ).lower()
        return all(word in text for word in words)


@dataclass(frozen=True)
class FederationEntry:
    """A party's folder (kit) of a federation."""

    name: str  # in addresses
    folder: Path
    federation: str
    party: str  # "server", or a site's name
    address: str = ""
    trouble: str = ""

    @property
    def is_server(self) -> bool:
        return self.party == "server"


@dataclass
class RunIndex:
    """What lies in a folder of runs, and in kits."""

    base: Path
    kits: Sequence[Path] = ()
    read: dict[Path, tuple[Stamp, RunEntry]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def runs(self) -> list[RunEntry]:
        """All runs, the newest first."""
        member = {folder: s.name for s in self.studies() for folder in s.folders}
        found = [self.entry(name, folder, member) for name, folder in self.places()]
        return sorted(found, key=lambda e: (-e.created, e.name))

    def run(self, name: str) -> RunEntry | None:
        """The run of this name, None if there is none."""
        folder = dict(self.places()).get(name)
        if folder is None:
            return None
        member = {f: s.name for s in self.studies() for f in s.folders}
        return self.entry(name, folder, member)

    def places(self) -> Iterator[tuple[str, Path]]:
        """Names and folders of all runs; a kit's runs carry the federation's name."""
        for folder in run_folders_in(self.base, _DEEP):
            yield folder.relative_to(self.base).as_posix().replace("/", "~"), folder
        for kit in self.federations():
            for folder in run_folders_in(kit.folder / "runs", 1):
                yield f"{kit.name}~{folder.name}", folder

    def entry(self, name: str, folder: Path, member: dict[str, str]) -> RunEntry:
        stamp = stamp_of(folder)
        with self.lock:
            known = self.read.get(folder)
        if not known or known[0] != stamp:
            known = stamp, read_entry(name, folder)
            with self.lock:
                self.read[folder] = known
        studies = tuple(sorted({member[folder.name]} if folder.name in member else ()))
        return replace(known[1], name=name, writer=writer_of(folder / "lock"), studies=studies)

    def studies(self) -> list[StudyRecord]:
        return read_studies(self.base)

    def study(self, name: str) -> StudyRecord | None:
        return next((s for s in self.studies() if s.name == name), None)

    def federations(self) -> list[FederationEntry]:
        found = [kit_entry(kit) for kit in self.kits]
        return [replace(e, name=f"{e.name}-{i}") if any(o.name == e.name for o in found[:i]) else e
                for i, e in enumerate(found)]  # fmt: skip

    def federation(self, name: str) -> FederationEntry | None:
        return next((f for f in self.federations() if f.name == name), None)


def run_folders_in(base: Path, deep: int) -> list[Path]:
    """Folders with a database; links are not followed, so that nothing outside of the base is shown."""
    found = []
    with suppress(OSError):
        for place in sorted(base.iterdir()):
            if place.name.startswith(".") or place.is_symlink() or not place.is_dir():
                continue
            if plain_file(place / FILE, place):
                found.append(place)
            elif deep > 1 and not (place / FILE).exists():
                found += run_folders_in(place, deep - 1)
    return found


def read_entry(name: str, folder: Path) -> RunEntry:
    try:
        with closing(Store(folder)) as store:
            facts, saved = store.facts(), store.saved()
    except (MotetError, OSError, ValueError, TypeError) as e:
        return RunEntry(name, folder, dict.fromkeys(_LISTED), trouble=first_line(e))
    latest, _, kept = saved or (-1, None, None)
    metric = str(facts.get("metric") or "")
    by = str(facts.get("round_by") or metric)
    sign = int(facts.get("better") or 1) if by == metric else -1  # what is kept is larger where it is better
    score = None if kept is None else sign * kept
    settings = facts.get("settings")
    net = settings.get("net") if isinstance(settings, dict) else None
    weights = str(net.get("weights") or "") if isinstance(net, dict) else ""
    return RunEntry(name, folder, {k: facts.get(k) for k in _LISTED}, latest + 1, score, by, weights)


def kit_entry(kit: Path) -> FederationEntry:
    """A kit says whose it is in one small file."""
    try:
        card = json.loads((kit / "motet.json").read_text())
        federation, party = str(card["federation"]), str(card["party"])
        address = f"{card['host']}:{card['port']}"
    except (OSError, ValueError, LookupError, TypeError) as e:
        return FederationEntry(kit.name, kit, kit.name, "", trouble=f"{kit} is no kit: {first_line(e)}")
    return FederationEntry(f"{federation}~{party}", kit, federation, party, address)


# ---- lineage ----


@dataclass(frozen=True)
class Relation:
    """How a run is related to something else."""

    how: str
    title: str
    address: str = ""  # "" where it is not shown here


def lineage(entry: RunEntry, runs: Sequence[RunEntry]) -> list[Relation]:
    """Where a run comes from and what came of it: studies, initial weights, clients forgotten."""
    found = [Relation("belongs to the study", s, f"/studies/{s}") for s in entry.studies]
    if entry.weights:
        source = source_of(entry.weights, runs)
        address = f"/runs/{source.name}" if source else ""
        found.append(Relation("begins with weights of", source.title if source else entry.weights, address))
    gone = entry.facts.get("forgot")
    if isinstance(gone, dict):
        before = next((r for r in runs if r.folder.name == gone.get("run")), None)
        title = f"{gone.get('run')} without {gone.get('client')}"
        found.append(Relation("played again:", title, f"/runs/{before.name}" if before else ""))
    for other in runs:
        if other.weights and other.name != entry.name and source_of(other.weights, [entry]):
            found.append(Relation("its weights began", other.title, f"/runs/{other.name}"))
        forgot = other.facts.get("forgot")
        if isinstance(forgot, dict) and forgot.get("run") == entry.folder.name:
            title = f"the run without {forgot.get('client')}"
            found.append(Relation("was played again as", title, f"/runs/{other.name}"))
    return found


def source_of(weights: str, runs: Sequence[RunEntry]) -> RunEntry | None:
    """The run in whose folder a file of weights lies."""
    parts = Path(weights).parts
    return next((r for r in runs if r.folder.name in parts[:-1]), None)
