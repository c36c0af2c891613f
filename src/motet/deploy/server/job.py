"""One job of a federated run, at the server: agree on a layout, go on from the checkpoint, end at a boundary.

The run's folder is an ordinary one. A job ends when the run is done, when it cannot go on, when too few sites
answer, or when a note in the folder says so; rounds that ended are in the checkpoint, and the next job goes on
from there.
Knows runs, the handshake and the flare engine. Does not know FLARE: letters go through `post`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from filelock import FileLock
from msgspec.structs import replace

from motet.atomic import write_atomically
from motet.client.metrics import MetricFailed
from motet.client.visit import VerbFailed, single_threaded
from motet.core import MethodUnfit, NoReply
from motet.data.federated import DataError, FederatedData
from motet.deploy.agreement.handshake import handshake, trees_of
from motet.deploy.agreement.layout import Layout
from motet.deploy.agreement.schema import Agreement
from motet.deploy.flare.kits import FederationError
from motet.deploy.server.run_files import JobReport, RunOrder, clear_notes, read_note
from motet.deploy.site.table import SiteTable
from motet.engines.expected_replies import ExpectedReplies
from motet.engines.flare import Flare, Post, TooFew
from motet.engines.letters import Letter, Reply
from motet.nets import NetError
from motet.runs.build import build, completed
from motet.runs.choose_metric import chosen_metric
from motet.runs.divergence import Diverged
from motet.runs.finish import finish
from motet.runs.identity import changes, pieces_of
from motet.runs.recipe import Recipe, RecipeError
from motet.runs.run import write_down
from motet.runs.store import Store
from motet.runs.trainer import Trainer
from motet.wire import WireError, pack, unpack

_LAYOUT = "layout.motet"
_FATAL = (
    FederationError, DataError, RecipeError, NetError, VerbFailed, NoReply, MethodUnfit, MetricFailed, Diverged,
)  # fmt: skip
_PATIENCE = 30  # seconds that a job waits for the one before it to let go of the folder


@dataclass
class JobObserver:
    """Reports after every round, and reads the notes to the job."""

    folder: Path
    engine: Flare
    store: Store
    known: dict[str, str] = field(default_factory=dict)  # who was away at the last report
    last: JobReport = field(default_factory=JobReport)

    def on_start(self, trainer: Trainer) -> None:
        self.last = replace(self.last, rounds=trainer.recipe.train.rounds)
        self.report(trainer, "running")

    def on_round(self, trainer: Trainer, seconds: float) -> None:
        self.report(trainer, "running")

    def should_stop(self) -> bool:
        return bool(read_note(self.folder))

    def agreed(self, agreement: Agreement) -> None:
        """Let people see what sites hold, also where it does not fit."""
        self.last = replace(self.last, agreement=agreement.text())
        self.report(None, "agreeing")

    def report(self, trainer: Trainer | None, state: str, why: str = "") -> None:
        away = self.engine.away
        for site in away.keys() - self.known.keys():
            self.store.event("absent", f"site {site}: {away[site]}")
        self.known = dict(away)
        if trainer:
            self.last = replace(self.last, round=max(trainer.number + 1, 0), scores=dict(trainer.latest))
        present = sorted(self.engine.present)
        self.last = replace(self.last, state=state, why=why, present=present, away=self.known)
        self.last.write(self.folder)


def run_job(folder: Path, post: Post, present: Sequence[str], slow_post: Post | None = None) -> None:
    """Go on with the run in `folder`, with the sites that are there. `slow_post` carries the letters before
    training, whose answers may take longer: sites read their tables, and try the method in a dry run."""
    order = RunOrder.read(folder)
    with FileLock(folder / "lock", timeout=_PATIENCE), single_threaded():
        clear_notes(folder, "again")
        store = Store(folder, writing=True)
        engine = Flare(present, post, order.run, present=present, min_replies=order.min_replies)
        observer = JobObserver(folder, engine, store)
        try:
            with failures_reported(observer):
                run_rounds(order, folder, store, engine, observer, slow_post or post)
        finally:
            store.commit()
            store.close()


def run_rounds(
    order: RunOrder, folder: Path, store: Store, engine: Flare, observer: JobObserver, slow_post: Post
) -> None:
    observer.report(None, "agreeing")
    recipe, layout = agree(order, folder, store, AllSites(engine, slow_post), observer)
    engine.recipe = sites_recipe(recipe)
    engine.clients = all_clients(store, engine)
    trainer = Trainer(build(recipe, data_at_the_server(order, recipe, layout)), store, engine)
    engine.expect = ExpectedReplies(trainer.task, (len(layout.columns),), layout.table)
    try:
        trainer.run(observer)
    except (TooFew, *_FATAL):
        store.forget_unsaved()  # of the round that was interrupted, its scores included; all others are saved
        raise
    if not trainer.over():
        why = read_note(folder)
        store.event("paused", f"after round {trainer.number}: {why}")
        observer.report(trainer, "stopped" if why == "stop" else "again")
        return
    store.set_facts(seconds=float(store.frame("rounds")["seconds"].sum()))
    finish(trainer, folder)
    observer.report(trainer, "done")


def data_at_the_server(order: RunOrder, recipe: Recipe, layout: Layout) -> FederatedData:
    """No site's rows; the server's own, if it has a table, are its proxy set."""
    found, data = layout.federation(order.federation), recipe["data"]
    if not data["server"]:
        return found
    return dataclasses.replace(
        found,
        proxy=SiteTable("server", Path(data["server"]), data["target"], least_category=1).whole(layout),
    )


@contextmanager
def failures_reported(observer: JobObserver) -> Iterator[None]:
    """How a job ends that cannot go on: with too few sites it may be tried again, else the run has failed."""
    try:
        yield
    except TooFew as e:
        observer.store.event("short", str(e))
        observer.report(None, "short", str(e))
    except _FATAL as e:
        observer.store.set_facts(status="failed", failure=str(e))
        observer.store.event("failed", str(e))
        observer.report(None, "failed", str(e))


# ---- agreeing ----


def agree(
    order: RunOrder, folder: Path, store: Store, sites: AllSites, observer: JobObserver
) -> tuple[Recipe, Layout]:
    """The resolved recipe and the layout: as the folder has them, or from a handshake with all sites there."""
    if "identity" in (facts := store.facts()):
        recipe, packed = Recipe(facts["settings"]), (folder / _LAYOUT).read_bytes()
        layout = Layout.of(unpack(packed))
        for line in changes(facts, recipe, pieces_of(recipe, sha256(packed).hexdigest())):
            store.event("note", f"the run goes on, and is not as it began: {line}")
        sites.admit(Letter("layout", order.run, send=layout.tree()))
        sites.admit(offer(order.run, recipe))
        store.set_facts(status="running", failure="")
        return recipe, layout
    recipe, data = order.recipe, order.recipe["data"]
    agreement, layout = handshake(
        sites, order.run, recipe["method"]["name"], seed=data["seed"], scale=data["scale"], val=data["val"],
        test=data["test"], features=data["features"], on_agreement=observer.agreed,
    )  # fmt: skip
    rows = [client_row(site, reply.tree) for site, reply in sites.last.items()]
    federated = layout.federation(order.federation)
    federated.notes = [*agreement.notes]
    counts, given = agreement.class_counts(), with_sites_split(recipe, layout)
    recipe = completed(given, federated, counts)
    trees_of(sites(offer(order.run, recipe)))
    packed = pack(layout.tree())
    write_atomically(folder / _LAYOUT, packed)
    why = f"clients are the sites of the federation {order.federation}"
    pieces, again = pieces_of(recipe, sha256(packed).hexdigest()), "motet federation run KIT recipe.toml"
    write_down(recipe, federated, pieces, why, rows, store, folder, again)
    store.set_facts(data=order.federation, guard=recipe.guard.mean, learns=recipe.guard.learns)
    store.set_facts(attack="none", attackers=[], federation=order.federation)
    store.set_facts(metric_why=chosen_metric(given, federated, counts)[1])
    store.commit()
    return recipe, layout


def with_sites_split(recipe: Recipe, layout: Layout) -> Recipe:
    """The recipe as it is played: with the split that all sites have, where it is one."""
    splits = {split[:3] for split in layout.splits.values()}
    if len(splits) != 1:
        return recipe
    own = dict(zip(("val", "test", "seed"), splits.pop(), strict=True))
    return dataclasses.replace(recipe, settings=recipe.settings | {"data": recipe["data"] | own})


def sites_recipe(recipe: Recipe) -> dict[str, Any]:
    """What letters hold of a recipe; a user's own metric is computed at sites, motet's others need no name."""
    held = {"method": recipe["method"], "net": recipe["net"], "seed": recipe.seed}
    own = ":" in recipe.train.metric
    return held | ({"train": {"metric": recipe.train.metric}} if own else {})


def offer(run: str, recipe: Recipe) -> Letter:
    return Letter("offer", run, recipe=sites_recipe(recipe), send={"rounds": recipe.train.rounds})


class AllSites:
    """One letter to all sites that are there; all must answer before anything trains."""

    def __init__(self, engine: Flare, post: Post) -> None:
        self.engine, self.post = engine, post
        self.last: dict[str, Reply] = {}

    def __call__(self, letter: Letter) -> Mapping[str, Reply]:
        came, failed = self.post({s: letter.pack() for s in sorted(self.engine.present)})
        for site, why in failed.items():
            self.engine.lose(site, why)
        if failed:
            raise TooFew("; ".join(f"site {s} did not answer: {why}" for s, why in failed.items()))
        try:
            self.last = {s: Reply.read(came[s], self.engine.limit) for s in sorted(came)}
        except WireError as e:
            raise FederationError(f"a site's reply cannot be read: {e}") from e
        return self.last

    def admit(self, letter: Letter) -> None:
        """As a call, in a run that has begun: who refuses stays out, and the others go on."""
        for site, reply in self(letter).items():
            if reply.refusal:
                self.engine.lose(site, f"refused: {reply.refusal}")


def client_row(site: str, counts: Any) -> tuple[Any, ...]:
    """What the store knows of a site: its numbers of rows, as far as its policy lets them leave."""
    rows = counts if isinstance(counts, dict) else {}
    return site, 1, *(int(rows.get(part, 0)) for part in ("train", "val", "test")), {}


def all_clients(store: Store, engine: Flare) -> list[str]:
    """Everybody who ever was in this run, and newcomers."""
    known = [c for (c,) in store.db.execute("SELECT client FROM clients")]
    if new := sorted(engine.present - set(known)):
        store.clients([client_row(s, {}) for s in new])
        store.event("joined", f"newcomers: {', '.join(new)}")
    return sorted({*known, *new})
