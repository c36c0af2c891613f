"""What a federated run is told to do, and what it tells: small files in the run's folder.

`orders.json` is written once, before the first job. `job.json` is written by the job at hand and read by the
driver and by `motet federation status`. `again` and `stop` are notes from the driver to the job, which looks for
them between rounds. Knows files. Does not know FLARE, nor what a round is.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from motet.data.federated import DataError, FederatedData
from motet.data.partition import Common
from motet.deploy.flare.kits import FederationError
from motet.files import write_atomically
from motet.runs import recipe as recipes
from motet.runs.recipe import Recipe, Settings

AT_SITES = "motet.deploy.server.run_files:at_sites"
NOTES = ("again", "stop")  # end this job after the round and start another; end the run for now


def at_sites(
    features: str = "same",  # same: all sites need the same columns; common: take those all have; any
    server: str = "",  # a table at the server, in the sites' columns, for methods whose server scores models
    target: str = "",  # the column of that table that is predicted
) -> FederatedData:
    """The data of a federated run, which are where they are."""
    raise DataError(f"the rows of this run are at its sites\nhint: motet federation run, not data={AT_SITES}")


@dataclass(frozen=True)
class RunOrder:
    """What every job of a run is told."""

    federation: str
    run: str  # its name, which sites file what they keep under
    settings: Settings
    min_sites: int = 2  # a job starts with so many sites at least
    min_replies: int = 2  # a round counts with so many replies at least
    timeout: float = 600.0  # seconds that a site has to answer an ask

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.settings)

    def write(self, folder: Path) -> None:
        put(folder / "orders.json", asdict(self))

    @classmethod
    def read(cls, folder: Path) -> RunOrder:
        return cls(**json.loads((folder / "orders.json").read_text()))


def read_orders(
    federation: str, path: str | None, words: list[str], min_sites: int, min_replies: int, timeout: float
) -> RunOrder:
    """RunOrder from a recipe; its data are at the sites, and its engine is flare."""
    given: Settings = {}
    if path is not None:
        recipes.merge(given, recipes.parse_file(Path(path)))
    for word in words:
        recipes.merge(given, recipes.parse_word(word))
    data = given.get("data") if isinstance(given.get("data"), dict) else {}
    given["data"] = {**(data or {}), "name": AT_SITES}
    recipe = recipes.check(given)
    refuse_strange(recipe)
    settings = recipe.settings
    if settings["data"]["server"]:
        settings["data"]["server"] = str(table_at_the_server(settings["data"]))
    settings["engine"] |= {"name": "flare", "chunk": 0, "compile": "no"}
    settings["save"] |= {"checkpoint": 0.0}  # no round that ended may be lost
    mark = sha256((recipe.identity() + federation).encode()).hexdigest()[:8]
    name = f"{recipe['method']['name']}-seed{recipe.seed}-{mark}"
    return RunOrder(federation, name, settings, min_sites, min_replies or min_sites, timeout)


def table_at_the_server(data: Settings) -> Path:
    path = Path(data["server"]).expanduser().resolve()
    if not path.exists():
        raise FederationError(f"data.server={data['server']}: there is no such table at the server")
    if not data["target"]:
        raise FederationError("data.server was given, and data.target was not\nhint: data.target=COLUMN")
    return path


def refuse_strange(recipe: Recipe) -> None:
    """What makes sense only where all clients' rows are at hand."""
    if recipe["method"]["name"] == "centralised":
        raise FederationError(
            "centralised wants all rows in one place\nhint: method=fedavg, local, fedper, …"
        )
    if recipe.guard.attack != "none":
        raise FederationError(
            "guard.attack rehearses attacks in a simulation\nhint: motet run guard.attack=…"
        )
    usual, data = Common(), recipe["data"]
    named = ("split", "features", "unseen", "server_test", "proxy")
    if odd := [k for k in named if k != "features" and data.get(k) != getattr(usual, k)]:
        raise FederationError(
            f"data.{odd[0]} deals rows to clients, and here every site brings its own\n"
            "hint: of data, a federation knows val, test, scale, features, server and target"
        )


def put(file: Path, content: Any) -> None:
    """A small file in one go."""
    write_atomically(file, json.dumps(content, indent=2) + "\n")


def note(folder: Path, word: str) -> None:
    (folder / word).touch()


def read_note(folder: Path) -> str:
    """The driver's note, if there is one."""
    return next((w for w in NOTES[::-1] if (folder / w).exists()), "")


def clear_notes(folder: Path, *words: str) -> None:
    for word in words or NOTES:
        (folder / word).unlink(missing_ok=True)


def report(folder: Path, **facts: Any) -> None:
    """What the job at hand wants known: its state, who is there, who is not and why, the round."""
    put(folder / "job.json", facts)


def read_report(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "job.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found
