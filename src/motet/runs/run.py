"""Starting, resuming, verifying and reading runs. A run is a folder.

Knows folders, locks and what can go wrong around a run. The training itself is in trainer.py.
"""

from __future__ import annotations

import html
import logging
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.atomic import write_atomically
from motet.client.metrics import MetricFailed
from motet.client.visit import MethodFailed, single_threaded
from motet.core import MethodUnfit, NoReply
from motet.data import copied_rows
from motet.data.federated import FederatedData
from motet.engines.device_names import full_name
from motet.engines.driver import own_failures
from motet.errors import RunError as RunError
from motet.errors import Stopped as Stopped
from motet.guard.masks.refused import MaskRefused
from motet.runs.budget_ledger import charge
from motet.runs.build import Resolved, Who, as_asked, attackers_of, forget_data, resolve, scored_of
from motet.runs.choose_metric import metric_facts
from motet.runs.client_columns import client_rows
from motet.runs.cluster import on_cluster
from motet.runs.compare_runs import changed_files, differences
from motet.runs.device_of_run import check_device, other_device
from motet.runs.divergence import Diverged
from motet.runs.finish import finish, variants_in, written_files
from motet.runs.identity import Pieces, changes, code_record, whole
from motet.runs.keep_place import page_size
from motet.runs.rates import open_rates
from motet.runs.recipe import Recipe
from motet.runs.run_folder import locked, writable
from motet.runs.store import FILE, Store
from motet.runs.trainer import Observer, Trainer
from motet.runs.versions import versions
from motet.text import ALL_SITES, round_name
from motet.trusted_code import Consent, require_trust

if TYPE_CHECKING:
    import pandas as pd

    from motet.runs.predict import Model

log = logging.getLogger("motet")
_LISTED = 1000  # attackers that an event names


class NoProgress(Observer):
    """An observer that does nothing and never stops a run."""


class Run:
    """A run's folder, for reading.

    >>> import motet, numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = motet.run(method="finetune", data="wine", rounds=1, out=folder)
    ...     done.model("client-00").predict(np.zeros((2, 13))).shape  # a prediction and three probabilities
    (2, 4)

    `was_read` says that the folder already held this run, finished, and that it was not run again. A model may need
    code that the folder names, say a network of your own: `trust` lets it run. Everything else is only read.
    """

    def __init__(self, folder: str | Path, was_read: bool = False, *, trust: bool = False) -> None:
        self.folder, self.was_read, self.trust = Path(folder), was_read, trust
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
        """Bytes of every client and round, up and down, scores included. Round -1 is before the first; the number after
        the last stands for the end of the run. `rounds` has what training takes."""
        return self._table("traffic")

    @property
    def asks(self) -> pd.DataFrame:
        """The same, by verb or job and by what the server learns of it."""
        return self._table("asks")

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
        rows = self.test[self.test["client"].isin([*members, ALL_SITES])]
        means = {str(side): float(part[f["metric"]].mean()) for side, part in rows.groupby("side")}
        said = {k: f.get(k) for k in ("method", "data", "seed", "status", "metric", "reported", "seconds")}
        many = {"clients": f["population"], "scored": len(members)} if f.get("population") else {}
        rates = {"rates": last[-1]["rates"]} if (last := f.get("halvings")) else {}  # where they were halved
        return said | {"rounds": len(self.rounds), "clients": len(members)} | many | rates | means

    @property
    def contributions(self) -> dict[str, Any]:
        """Who contributes what to whom, with centralities, history, and who is named for what: as `motet.contributions`
        measured it, else as the method (stacking) recorded it; {} where there is neither."""
        facts = self.facts
        record = facts.get("contributions") or facts.get("record") or {}
        return dict(record) if record.get("trust") else {}

    @property
    def variants(self) -> pd.DataFrame:
        """Of a stacking run: what each client's private model alone, its held-out and its pooled stack, and the one
        that it uses ("personal") score on its validation and test rows; choose by validation rows."""
        return variants_in(self.scores, self.facts.get("reported"))

    def model(self, client: str) -> Model:
        """A client's personal model, or `global`: an object with `predict`."""
        from motet.runs.export import model_file
        from motet.runs.predict import open_model

        return open_model(model_file(self.folder, client), trust=self.trust)

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
    fresh: bool = False,
) -> Run:
    """Run a recipe in a folder (by default one named after it), or continue the run that the folder holds.

    A finished run is read and not run again; `fresh` deletes what the folder holds and runs anew.
    """
    resolved = recipe if isinstance(recipe, Resolved) else resolve(recipe)
    folder = Path(folder) if folder else folder_for(resolved, base)
    with on_cluster(resolved, folder, fresh) as resolved, writable(folder), locked(folder), single_threaded():
        if fresh:
            delete_run(folder)
        charge(resolved, folder)
        kept = (resolved.recipe.engine.keep, resolved.method, resolved.training.clients_data)
        store = Store(folder, writing=True, page=page_size(*kept, resolved.recipe.guard.compresses))
        try:
            begin(resolved, store, folder)
            if not (done := store.facts()["status"] == "done"):
                train(resolved, store, folder, observer or NoProgress())
        finally:
            store.close()
    return Run(folder, was_read=done)


def log_if_read(done: Run) -> Run:
    """For Python, where nothing is printed."""
    if done.was_read:
        log.warning("read from %s, not run again (fresh=True runs it anew)", done.folder)
    return done


def delete_run(folder: Path) -> None:
    """Delete what a run wrote, and nothing else; the caller holds the folder's lock. The database goes first: a
    kill in between leaves files that the next run overwrites, and no run that looks finished."""
    if not (folder / FILE).exists():
        return
    try:
        clients = Run(folder).clients["client"].tolist()
    except RunError:  # it cannot be read; all the more reason to run anew
        clients = []
    for end in ("-shm", "-wal", ""):
        (folder / f"{FILE}{end}").unlink(missing_ok=True)
    for file in written_files(folder, clients):
        file.unlink(missing_ok=True)


def begin(resolved: Resolved, store: Store, folder: Path) -> None:
    """Write down what this run is, or check that it is the one that the folder holds."""
    facts, recipe = store.facts(), resolved.recipe
    if "identity" in facts:
        check_same(resolved, facts, folder)
        if facts["status"] != "done":
            store.set_facts(status="running", failure="")
            if open_rates(type(resolved.method), resolved.asked.get("method", {})):
                store.set_facts(asked=resolved.asked)  # of a run whose rates somebody had typed
            store.event(
                "resumed", f"continued from the last checkpoint{other_device(resolved.choice.device, facts)}"
            )
            store.commit()
        return
    federated, why = resolved.federated, resolved.choice.why
    scored = [scored_of(recipe, clients) for clients in (federated.clients_data, federated.unseen)]
    rows = client_rows(federated.clients_data, True, scored[0])
    rows += client_rows(federated.unseen, False, scored[1])
    command = f"motet run {folder / 'recipe.toml'}"
    write_down(recipe, federated, resolved.pieces, why, rows, store, folder, command)
    begin_guard(recipe, store, resolved.training.clients_data)
    store.set_facts(
        metric_why=resolved.metric_why, asked=resolved.asked, weighted=federated.weighted,
        device=full_name(resolved.choice.device),
    )  # fmt: skip
    if note := resolved.task.frozen_note():
        store.set_facts(notes=[*federated.notes, note])
    if len(scored[0]) < len(federated.clients_data):
        store.set_facts(population=len(federated.clients_data), scored=len(scored[0]))
    store.commit()


def write_down(
    recipe: Recipe,
    federated: FederatedData,
    pieces: Pieces,
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
        identity=whole(pieces), identity_pieces=pieces, fingerprint=pieces["data"], recipe=text,
        settings=recipe.settings, method=recipe["method"]["name"], data=recipe["data"]["name"],
        net=recipe["net"]["name"], seed=recipe.seed, split=recipe["data"]["seed"],
        natural=federated.natural, given_tests=federated.given_tests, kind=federated.kind,
        classes=list(federated.classes),
        rounds=recipe.train.rounds, metric_why="", **metric_facts(recipe),
        engine=recipe.engine.name, engine_why=why, versions=versions(), notes=federated.notes,
        code=code_record(recipe, pieces["code"]),
        status="running", failure="", created=time.time(),
    )  # fmt: skip
    store.event("started", why)
    write_atomically(folder / "recipe.toml", text)  # in the place of a link, and not through it


def begin_guard(recipe: Recipe, store: Store, clients: Who) -> None:
    """Write down what the server learns beyond what the method asks for, and who attacks."""
    attackers, learns = list(attackers_of(recipe, clients)), recipe.guard.learns
    store.set_facts(guard=recipe.guard.mean, learns=learns, attack=recipe.guard.attack, attackers=attackers)
    if learns:
        store.event("learns", learns)
    if attackers:
        more = f" and {len(attackers) - _LISTED:,} more" if len(attackers) > _LISTED else ""
        store.event("attack", f"attack {recipe.guard.attack} by {', '.join(attackers[:_LISTED])}{more}")


def check_same(resolved: Resolved, facts: Mapping[str, Any], folder: Path) -> None:
    """Refuse to read or continue a run that something else made, and say what differs."""
    if found := changes(facts, resolved.recipe, resolved.pieces):
        listed = "\n".join(f"- {line}" for line in found)
        raise RunError(
            f"{folder} holds another run:\n{listed}\n"
            "hint: choose another folder with --out, or delete this run and run anew with --fresh (in Python: "
            "out=…, fresh=True)"
        )


def train(resolved: Resolved, store: Store, folder: Path, observer: Observer) -> None:
    facts = store.facts()  # what a run saves, and on how many threads, is as it was at its first start
    trainer = Trainer(replace(resolved, recipe=Recipe(facts["settings"])), store)
    remarks = [*trainer.method.remarks(), *copied_rows.remarks(trainer.federated)]
    cohort, there = resolved.recipe.train.cohort, len(resolved.training.clients_data)
    if cohort > max(there, 1) and not resolved.pooled:
        remarks.append(
            f"all {there:,} clients train in every round: train.cohort is {cohort:,.0f}, and there are no more"
        )
    store.set_facts(remarks=remarks)
    with interruptible(observer) as stopping:
        try:
            trainer.run(stopping)
            if not trainer.over():
                store.event("stopped", f"after {round_name(trainer.number)}")
                store.commit()
                raise Stopped(f"stopped after {round_name(trainer.number)} of {facts['rounds']}")
            store.set_facts(seconds=float(store.frame("rounds")["seconds"].sum()))
            with own_failures(trainer.number):
                finish(trainer, folder)
        except (MethodFailed, NoReply, MethodUnfit, MetricFailed, MaskRefused, Diverged) as e:
            store.set_facts(status="failed", failure=str(e))
            store.event("failed", str(e))
            trainer.give_up_round()
            store.commit()
            forget_data()  # what failed may have changed rows, and the next run in this process takes the same ones
            raise RunError(str(e)) from e


# ---- around a run ----


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


def verify(
    folder: str | Path,
    observer: Observer | None = None,
    say: Callable[[str], None] = log.warning,
    trust: Consent = False,
) -> list[str]:
    """Run it again and compare: what differs, nothing if all bits are the same. Other code, data or versions
    than those that made the run are said first. Code that the folder names needs `trust`."""
    old = Run(folder)
    with closing(Store(old.folder)) as store:
        store.check()
        changed = changed_files(old.folder, store.files())
    if old.facts["status"] != "done":
        raise RunError(
            f"{folder} is not done, it is {old.facts['status']}; only a run that ended can be verified"
        )
    if federation := old.facts.get("federation"):
        raise RunError(
            f"{folder} was run between the sites of {federation}, whose rows and personal models are with them "
            f"(KIT/kept/models/{old.folder.resolve().name}.safetensors): it cannot be run again here.\n"
            "hint: at each site, `motet federation ledger KIT` shows what left, and checks it"
        )
    require_trust(old.facts["settings"], folder, trust)
    check_device(old.folder, old.facts)
    resolved = as_asked(resolve(Recipe(old.facts["settings"])), old.facts)
    for line in changes(old.facts, resolved.recipe, resolved.pieces):
        say(f"{folder}: {line}")
    if elsewhere := other_device(resolved.choice.device, old.facts):
        say(f"{folder}: it is run again{elsewhere}")
    with tempfile.TemporaryDirectory() as again:
        new = run(resolved, again, observer)
        with closing(Store(old.folder)) as before, closing(Store(new.folder)) as after:
            return changed + differences(before, after)


def folder_for(resolved: Resolved, base: str | Path = "runs") -> Path:
    """The same for the same settings, data, code and versions, and for no other."""
    recipe, mark = resolved.recipe, whole(resolved.pieces)[:8]
    data = Path(recipe["data"]["name"].replace(":", "-")).stem
    return Path(base) / f"{data}-{recipe['method']['name'].replace(':', '-')}-seed{recipe.seed}-{mark}"
