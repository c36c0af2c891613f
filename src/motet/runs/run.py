"""Starting, resuming, verifying and reading runs. A run is a folder.

Knows folders, locks and what can go wrong around a run. The training itself is in trainer.py.
"""

from __future__ import annotations

import html
import platform
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from motet.client.visit import VerbFailed, single_threaded
from motet.core import MethodUnfit, NoReply
from motet.data.federated import FederatedData
from motet.errors import RunError as RunError
from motet.errors import Stopped as Stopped
from motet.runs.build import Resolved, attackers_of, resolve
from motet.runs.finish import finish
from motet.runs.recipe import Recipe
from motet.runs.store import METRICS, Store
from motet.runs.trainer import Observer, Trainer

if TYPE_CHECKING:
    import pandas as pd

    from motet.runs.predict import Model


class NoProgress(Observer):
    """An observer that does nothing and never stops a run."""


class Run:
    """A run's folder, for reading.

    >>> import motet, numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = motet.run(method="finetune", data="wine", rounds=1, out=folder)
    ...     done.model("client-00").predict(np.zeros((2, 13))).shape  # a prediction and three probabilities
    (2, 4)
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        Store(self.folder).close()  # says so if the folder is no run

    @property
    def facts(self) -> dict[str, Any]:
        with closing(Store(self.folder)) as store:  # a new one each time: any thread may read
            return store.facts()

    def _table(self, name: str) -> pd.DataFrame:
        with closing(Store(self.folder)) as store:
            return store.frame(name)

    @property
    def scores(self) -> pd.DataFrame:
        """Every score of every client: round, part, side, client, n and the metrics."""
        return self._table("scores")

    @property
    def rounds(self) -> pd.DataFrame:
        return self._table("rounds")

    @property
    def clients(self) -> pd.DataFrame:
        return self._table("clients")

    @property
    def traffic(self) -> pd.DataFrame:
        return self._table("traffic")

    @property
    def events(self) -> pd.DataFrame:
        """What happened, in words: started, resumed, refused replies, notes of the method."""
        return self._table("events")

    @property
    def test(self) -> pd.DataFrame:
        """The reported test scores, one row per client and side."""
        frame = self.scores
        return frame[frame["part"] == "test"].drop(columns=["part"]).reset_index(drop=True)

    @property
    def summary(self) -> dict[str, Any]:
        """The run in numbers; each side's score is the mean of the clients' reported test scores."""
        f, members = self.facts, self.clients.query("seen == 1")["client"]
        rows = self.test[self.test["client"].isin(members)]
        means = {str(side): float(part[f["metric"]].mean()) for side, part in rows.groupby("side")}
        said = {k: f.get(k) for k in ("method", "data", "seed", "status", "metric", "reported", "seconds")}
        return said | {"rounds": len(self.rounds), "clients": len(members)} | means

    def model(self, client: str) -> Model:
        """A client's personal model, or `global`: an object with `predict`."""
        from motet.runs.export import model_file
        from motet.runs.predict import open_model

        return open_model(model_file(self.folder, client), trust=True)

    def predict(self, client: str, rows: Any) -> pd.DataFrame:
        """What a client's personal model says of new rows, a frame or an array as the data were."""
        return self.model(client).predict(rows)

    def __repr__(self) -> str:
        f = self.facts
        return f"Run({str(self.folder)!r}, {f.get('method')} on {f.get('data')}, {f.get('status')})"

    def _repr_html_(self) -> str:
        """The summary, for a notebook."""
        cells = ((html.escape(str(k)), html.escape(str(v))) for k, v in self.summary.items())
        return "<table>" + "".join(f"<tr><th>{k}</th><td>{v}</td></tr>" for k, v in cells) + "</table>"


def run(
    recipe: Recipe | Resolved,
    folder: str | Path | None = None,
    observer: Observer | None = None,
    base: str | Path = "runs",
) -> Run:
    """Run a recipe in a folder (by default one named after it), or continue the run that the folder holds."""
    resolved = recipe if isinstance(recipe, Resolved) else resolve(recipe)
    folder = Path(folder) if folder else folder_for(resolved, base)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder), writable(folder), single_threaded():
        store = Store(folder, writing=True)
        try:
            begin(resolved, store, folder)
            if store.facts()["status"] != "done":
                train(resolved, store, folder, observer or NoProgress())
        finally:
            store.close()
    return Run(folder)


def begin(resolved: Resolved, store: Store, folder: Path) -> None:
    """Write down what this run is, or check that it is the one that the folder holds."""
    facts, recipe = store.facts(), resolved.recipe
    if "identity" in facts:
        if facts["identity"] != recipe.identity():
            raise RunError(f"{folder} holds another run.\nhint: choose another folder, or delete this one")
        check_data(resolved, facts)
        if facts["status"] != "done":
            store.set_facts(status="running", failure="")
            store.event("resumed", "continued from the last checkpoint")
            store.commit()
        return
    federated, why = resolved.federated, resolved.choice.why
    rows = client_rows(federated.clients_data, True) + client_rows(federated.unseen, False)
    command = f"motet run {folder / 'recipe.toml'}"
    write_down(recipe, federated, resolved.fingerprint, why, rows, store, folder, command)
    begin_guard(recipe, store, resolved.training.clients_data)
    store.commit()


def write_down(
    recipe: Recipe,
    federated: FederatedData,
    fingerprint: str,
    why: str,
    clients: list[tuple[Any, ...]],
    store: Store,
    folder: Path,
    command: str,
) -> None:
    """What this run is, of what, with whom; the caller commits."""
    text = recipe.toml(command)
    store.clients(clients)
    store.set_facts(
        identity=recipe.identity(), fingerprint=fingerprint, recipe=text,
        settings=recipe.settings, method=recipe["method"]["name"], data=recipe["data"]["name"],
        net=recipe["net"]["name"], seed=recipe.seed, kind=federated.kind, classes=list(federated.classes),
        metric="accuracy" if federated.kind == "classes" else "rmse",
        better=1 if federated.kind == "classes" else -1, rounds=recipe.train.rounds,
        engine=recipe.engine.name, engine_why=why, versions=versions(), notes=federated.notes,
        status="running", failure="", created=time.time(),
    )  # fmt: skip
    store.event("started", why)
    (folder / "recipe.toml").write_text(text)


def begin_guard(recipe: Recipe, store: Store, clients: Iterable[str]) -> None:
    """Write down what the server learns beyond what the method asks for, and who attacks."""
    attackers, learns = attackers_of(recipe, clients), recipe.guard.learns
    store.set_facts(guard=recipe.guard.mean, learns=learns, attack=recipe.guard.attack, attackers=attackers)
    if learns:
        store.event("learns", learns)
    if attackers:
        store.event("attack", f"attack {recipe.guard.attack} by {', '.join(attackers)}")


def check_data(resolved: Resolved, facts: Mapping[str, Any]) -> None:
    if resolved.fingerprint != facts["fingerprint"]:
        raise RunError(
            f"the data {resolved.recipe['data']['name']}, or weights to start from, changed since this run started.\n"
            "hint: bring the old ones back, or start a new run with --out"
        )


def train(resolved: Resolved, store: Store, folder: Path, observer: Observer) -> None:
    facts = store.facts()  # what a run saves, and on how many threads, is as it was at its first start
    trainer = Trainer(replace(resolved, recipe=Recipe(facts["settings"])), store)
    with interruptible(observer) as stopping:
        try:
            trainer.run(stopping)
            if not trainer.over():
                store.event("stopped", f"after round {trainer.number}")
                store.commit()
                raise Stopped(f"stopped after round {trainer.number + 1} of {facts['rounds']}")
            store.set_facts(seconds=float(store.frame("rounds")["seconds"].sum()))
            finish(trainer, folder)
        except (VerbFailed, NoReply, MethodUnfit) as e:
            store.set_facts(status="failed", failure=str(e))
            store.event("failed", str(e))
            trainer.give_up_round()
            store.commit()
            raise RunError(str(e)) from e


def client_rows(clients_data: Mapping[str, Any], seen: bool) -> list[tuple[Any, ...]]:
    return [(c, int(seen), h.n, len(h.val), len(h.test), labels(h)) for c, h in clients_data.items()]


def labels(client_data: Any) -> dict[str, int]:
    """How many training examples of each class; nothing for numbers."""
    if client_data.train.y.is_floating_point():
        return {}
    found, counts = client_data.train.y.unique(return_counts=True)
    return {str(k): int(n) for k, n in zip(found.tolist(), counts.tolist(), strict=True)}


def versions() -> dict[str, str]:
    def of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    names = ("motet", "torch", "numpy", "scikit-learn", "pandas")
    return {"python": platform.python_version(), "machine": platform.machine()} | {n: of(n) for n in names}


# ---- around a run ----


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / "lock", timeout=0)
    try:
        with lock:
            yield
    except Timeout as e:
        raise RunError(
            f"another process is writing {folder}.\nhint: wait for it, or choose another folder"
        ) from e


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Says so if the disk is full; the last checkpoint is whole in any case."""
    try:
        yield
    except (OSError, sqlite3.OperationalError, sqlite3.DatabaseError) as e:
        if isinstance(e, FileNotFoundError):
            raise
        raise RunError(
            f"cannot write to {folder}: {e}.\n"
            "The last checkpoint is intact.\nhint: free some space, then give the same command to continue"
        ) from e


class StopOnSignal:
    """An observer that also stops on Ctrl-C: once after the round, twice at once."""

    def __init__(self, observer: Observer) -> None:
        self.observer, self.asked = observer, False

    def on_start(self, trainer: Trainer) -> None:
        self.observer.on_start(trainer)

    def on_round(self, trainer: Trainer, seconds: float) -> None:
        self.observer.on_round(trainer, seconds)

    def should_stop(self) -> bool:
        return self.asked or bool(self.observer.should_stop())

    def interrupt(self, *_: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("\nstopping after this round; once more: at once, back to the last checkpoint", file=sys.stderr)


@contextmanager
def interruptible(observer: Observer) -> Iterator[StopOnSignal]:
    stopping = StopOnSignal(observer)
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = {s: signal.signal(s, stopping.interrupt) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


# ---- verifying ----


def verify(folder: str | Path, observer: Observer | None = None) -> list[str]:
    """Run it again and compare: what differs, nothing if all bits are the same."""
    old = Run(folder)
    if old.facts["status"] != "done":
        raise RunError(
            f"{folder} is not done, it is {old.facts['status']}; only a run that ended can be verified"
        )
    given = Recipe(old.facts["settings"])
    with tempfile.TemporaryDirectory() as again:
        new = run(given, again, observer)
        with closing(Store(old.folder)) as before, closing(Store(new.folder)) as after:
            return differences(before, after)


def differences(old: Store, new: Store) -> list[str]:
    found = []
    scores = "round, part, REPLACE(side, 'local', 'after_training'), client, n, " + ", ".join(METRICS)
    special = {"keeps": "client, round, tree", "scores": scores}
    for table in ("states", "checkpoint", "keeps", "scores", "traffic", "clients"):
        columns = special.get(table, "*")
        rows = [set(s.db.execute(f"SELECT {columns} FROM {table}")) for s in (old, new)]
        if many := len(rows[0] ^ rows[1]):
            found.append(f"{table}: {many} rows differ")
    return found


def folder_for(resolved: Resolved, base: str | Path = "runs") -> Path:
    """The same for the same resolved recipe on the same data, and for no other."""
    recipe = resolved.recipe
    data = Path(recipe["data"]["name"].replace(":", "-")).stem
    mark = sha256((recipe.identity() + resolved.fingerprint).encode()).hexdigest()[:8]
    return Path(base) / f"{data}-{recipe['method']['name'].replace(':', '-')}-seed{recipe.seed}-{mark}"
