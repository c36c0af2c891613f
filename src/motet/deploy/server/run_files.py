"""Small files in a federated run's folder: what every job of the run needs to know, and how it goes.

`orders.json` is written before the first job. `job.json` is written by the current job and read by the process
that starts jobs and by `motet federation status`. `again` and `stop` are notes to the job, which reads them
between rounds. Knows files. Does not know FLARE, nor what a round is.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout
from msgspec import Struct
from msgspec.structs import replace

from motet.atomic import write_atomically
from motet.data.federated import DataError, FederatedData
from motet.data.partition import DataSettings
from motet.deploy.flare.kits import FederationError
from motet.runs import recipe as recipes
from motet.runs.client_privacy import not_at_sites
from motet.runs.recipe import Recipe, Settings
from motet.trusted_code import AT_SITES as AT_SITES
from motet.trusted_code import Consent, names_in

CHAIN_LOCK = "chain.lock"  # held by the process that starts jobs
JOB_LOCK = "lock"  # held by the job that writes the run
NOTES = ("again", "stop")  # end this job after the round and start another; end the run for now


def at_sites(
    features: str = "same",  # same: all sites need the same columns; common: take those all have; any
    server: str = "",  # a table at the server, in the sites' columns, for methods whose server scores models
    target: str = "",  # the column of that table that is predicted
) -> FederatedData:
    """The data of a federated run, which stay at its sites."""
    raise DataError(f"the rows of this run are at its sites\nhint: motet federation run, not data={AT_SITES}")


class RunOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """What every job of a run needs to know."""

    federation: str
    run: str  # its name, under which sites store what they keep
    settings: dict[str, Any]
    min_sites: int = 2  # a job starts with so many sites at least
    min_replies: int = 2  # a round counts with so many replies at least
    timeout: float = 600.0  # seconds that a site has to answer an ask
    trusted: list[str] = []  # code that may run in the run's jobs: what whoever ordered the run trusts

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.settings)

    def write(self, folder: Path) -> None:
        put(folder / "orders.json", self)

    @classmethod
    def read(cls, folder: Path) -> RunOrder:
        try:
            return msgspec.convert(json.loads((folder / "orders.json").read_text()), cls)
        except (ValueError, msgspec.ValidationError) as e:
            raise FederationError(
                f"{folder / 'orders.json'} cannot be read: {e}\nhint: start the same run again, which writes it"
            ) from e


class JobReport(Struct, frozen=True):
    """How a run goes, as its current job says."""

    state: str = ""  # starting, agreeing, running, again, short, stopped, done or failed; "" before the first
    why: str = ""  # of a job that ended early
    round: int = 0  # rounds that ended
    rounds: int = 0  # of the whole run
    present: list[str] = []  # sites that take part
    away: dict[str, str] = {}  # sites that do not, and why
    excluded: dict[str, str] = {}  # of those, sites that no later job takes in, and why
    scores: dict[str, float] = {}  # mean validation scores
    agreement: str = ""  # what sites hold, as a table for people
    refused: dict[str, str] = {}  # of sites that take part, what they refuse: to be scored, say
    waiting: list[str] = []  # sites that have not answered for some seconds, and give signs of life

    def write(self, folder: Path) -> None:
        put(folder / "job.json", self)


def read_report(folder: Path) -> JobReport:
    """The last report; an empty one before the first, or where it cannot be read."""
    try:
        return msgspec.convert(json.loads((folder / "job.json").read_text()), JobReport)
    except (FileNotFoundError, ValueError, msgspec.ValidationError):
        return JobReport()


def report_waiting(folder: Path, sites: list[str]) -> None:
    """Let people know for whom the current job waits."""
    if (report := read_report(folder)).waiting != sites:
        replace(report, waiting=sites).write(folder)


def make_order(
    federation: str,
    path: str | None,
    words: list[str],
    min_sites: int,
    min_replies: int,
    timeout: float,
    trust: Consent = False,
) -> RunOrder:
    """The order of a recipe; its data are at the sites, and its engine is flare."""
    if any(word.startswith(("data.weight=", "weight=")) for word in words):
        raise FederationError(
            "data.weight: rows cannot have weights between organisations yet; every row of a site counts alike\n"
            "hint: motet run … data.weight=COLUMN, where all rows are in one place"
        )
    # a recipe that a run wrote down names the engine that it had, which nobody can choose
    recipe = recipes.read(path, words, {"data": AT_SITES, "engine": {"name": "auto"}}, trust)
    check_for_sites(recipe)
    settings = recipe.settings
    if settings["data"]["server"]:
        settings["data"]["server"] = str(table_at_the_server(settings["data"]))
    settings["engine"] |= {"name": "flare", "chunk": 0, "compile": "no", "device": "cpu"}
    settings["save"] |= {"checkpoint": 0.0}  # no round that ended may be lost
    mark = sha256((recipe.identity() + federation).encode()).hexdigest()[:8]
    name = f"{recipe['method']['name']}-seed{recipe.seed}-{mark}"
    code = names_in(settings)  # all of it is trusted by now
    return RunOrder(federation, name, settings, min_sites, min_replies or min_sites, timeout, code)


def table_at_the_server(data: Settings) -> Path:
    path = Path(data["server"]).expanduser().resolve()
    if not path.exists():
        raise FederationError(f"data.server={data['server']}: there is no such table at the server")
    if not data["target"]:
        raise FederationError("data.server was given, and data.target was not\nhint: data.target=COLUMN")
    return path


def check_for_sites(recipe: Recipe) -> None:
    """Refuse what needs all clients' rows in one place."""
    if recipe["method"]["name"] == "centralised":
        raise FederationError(
            "centralised wants all rows in one place\nhint: method=fedavg, local, fedper, …"
        )
    if recipe.guard.attack != "none":
        raise FederationError(
            "guard.attack simulates attacks, and these sites are real\nhint: motet run guard.attack=…"
        )
    if recipe.privacy.ledger:
        raise FederationError(
            "privacy.ledger adds up runs of a simulation, and each site has a ledger of its own\n"
            "hint: leave it out; sites set epsilon in their policies"
        )
    if recipe.privacy.level == "client" and (why := not_at_sites(recipe.privacy, recipe.guard)):
        raise FederationError(why)
    if recipe.loss.loss == "cox":
        raise FederationError(
            "net.loss is cox, and times of survival cannot be learned between organisations yet\n"
            "hint: motet run … data.event=COLUMN, where all rows are in one place"
        )
    usual, data = DataSettings(), recipe["data"]
    named = ("split", "unseen", "server_test", "proxy")
    nobody = data.get("unseen") == 0  # as a run writes down that it held nobody out
    if odd := [k for k in named if data.get(k) != getattr(usual, k) and not (k == "unseen" and nobody)]:
        raise FederationError(
            f"data.{odd[0]} assigns rows to clients, and here every site has its own\n"
            "hint: of data, a federation knows val, test, scale, features, server and target"
        )


def put(file: Path, content: Struct) -> None:
    """A small file in one go. Python's JSON keeps infinite settings, which msgspec's does not."""
    write_atomically(file, json.dumps(msgspec.to_builtins(content), indent=2) + "\n")


def is_driven(folder: Path) -> bool:
    """Whether a process is at this run: one that starts its jobs, or a job itself."""
    return any((folder / name).exists() and is_held(folder / name) for name in (CHAIN_LOCK, JOB_LOCK))


def is_held(file: Path) -> bool:
    try:
        with FileLock(file, timeout=0):
            return False
    except Timeout:
        return True


def note(folder: Path, word: str) -> None:
    (folder / word).touch()


def read_note(folder: Path) -> str:
    """The note to the job, if there is one."""
    return next((w for w in NOTES[::-1] if (folder / w).exists()), "")


def clear_notes(folder: Path, *words: str) -> None:
    for word in words or NOTES:
        (folder / word).unlink(missing_ok=True)
