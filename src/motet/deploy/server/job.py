"""One job of a federated run, at the server: agree on a layout, go on from the checkpoint, end at a boundary.

The run's folder is an ordinary one. A job ends when the run is done, when it cannot go on, when too few sites
answer, or when a note in the folder says so; rounds that ended are in the checkpoint, and the next job goes on
from there. However a job ends, its report says why: a failure that another job would only repeat ends the run.
Knows runs, the handshake and the flare engine. Does not know FLARE: letters go through `post`.
"""

from __future__ import annotations

import dataclasses
import logging
import sqlite3
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
from motet.client.visit import MethodFailed, single_threaded
from motet.core import MethodUnfit, NoReply, Tree
from motet.data.federated import DataError, FederatedData
from motet.deploy.agreement.handshake import check_publishers, handshake, trees_of
from motet.deploy.agreement.layout import Layout
from motet.deploy.agreement.refusals import LASTING, explained
from motet.deploy.agreement.schema import Agreement
from motet.deploy.agreement.site_replies import (
    UnusableReplies,
    agreed,
    checked_description,
    each_site,
    part_rows,
)
from motet.deploy.flare.kits import FederationError
from motet.deploy.server.all_sites import AllSites
from motet.deploy.server.handshake_sums import recall, remember, sums_of, write_hidden
from motet.deploy.server.offers import asked_of_sites, masks_of, offer, sites_recipe
from motet.deploy.server.received import ReceivedReplies
from motet.deploy.server.run_files import (
    JOB_LOCK,
    JobReport,
    RunOrder,
    clear_notes,
    read_note,
    read_report,
)
from motet.deploy.server.summed import SummedSites
from motet.deploy.site.table import SiteTable
from motet.engines.expected_replies import ExpectedReplies
from motet.engines.flare import Flare, Post, TooFew
from motet.engines.letters import Letter
from motet.engines.loop import AllRefused
from motet.errors import Damaged, MotetError
from motet.nets import NetError
from motet.runs.build import build, completed
from motet.runs.choose_loss import check_loss
from motet.runs.choose_metric import chosen_metric
from motet.runs.divergence import Diverged
from motet.runs.finish import finish
from motet.runs.identity import changes, pieces_of
from motet.runs.rates import open_rates
from motet.runs.recipe import Recipe, RecipeError, method_class
from motet.runs.run import write_down
from motet.runs.store import Store
from motet.runs.trainer import Trainer
from motet.settings import AUTO
from motet.text import printable, round_name
from motet.trusted_code import trust_names
from motet.wire import WireError, pack, unpack

log = logging.getLogger("motet.server")
_LAYOUT = "layout.motet"
_FATAL = (
    Damaged, FederationError, DataError, RecipeError, NetError, MethodFailed, NoReply, MethodUnfit, MetricFailed,
    Diverged,
)  # fmt: skip
_LINES, _WIDE = 200, 200  # of a text that sites have a part in, as it is shown
_PATIENCE = 30  # seconds that a job waits for the one before it to let go of the folder


@dataclass
class JobObserver:
    """Reports after every round, and reads the notes to the job."""

    folder: Path
    engine: Flare
    store: Store
    known: dict[str, str] = field(default_factory=dict)  # who was away at the last report
    refusals: dict[str, str] = field(default_factory=dict)  # that are written down
    last: JobReport = field(default_factory=JobReport)

    def __post_init__(self) -> None:
        self.last = JobReport(excluded=dict(self.engine.excluded))

    def on_start(self, trainer: Trainer) -> None:
        self.last = replace(self.last, rounds=trainer.recipe.train.rounds)
        self.report(trainer, "running")

    def on_round(self, trainer: Trainer, seconds: float) -> None:
        self.report(trainer, "running")

    def should_stop(self) -> bool:
        return bool(read_note(self.folder))

    def agreed(self, agreement: Agreement) -> None:
        """Let people see what sites hold, also where it does not fit."""
        self.last = replace(self.last, agreement=shown(agreement.text()))
        self.report(None, "agreeing")

    def report(self, trainer: Trainer | None, state: str, why: str = "") -> None:
        away, excluded, refusals = self.engine.away, self.engine.excluded, self.engine.refusals
        for site in sorted(excluded.keys() - self.last.excluded.keys()):
            self.store.event("excluded", f"site {site}: {excluded[site]}")
        for site, refusal in refusals.items():
            if self.refusals.get(site) != refusal:
                self.store.event("refused", f"site {site}: {refusal}")
        for site in sorted(away.keys() - self.known.keys() - excluded.keys()):
            if away[site] != refusals.get(site):
                self.store.event("absent", f"site {site}: {away[site]}")
        self.refusals, self.known = dict(refusals), dict(away)
        for site, number in self.engine.anew.items():
            self.store.event(
                "reset", f"site {site} began anew in {round_name(number)}: its owner gave up what it kept"
            )
        self.engine.anew.clear()
        if trainer:
            self.last = replace(self.last, round=max(trainer.number + 1, 0), scores=dict(trainer.latest))
        present = sorted(self.engine.present)
        why, excluded = shown(why), dict(excluded)
        kept_back = {s: refusal for s, refusal in refusals.items() if s in present and s not in away}
        self.last = replace(
            self.last,
            state=state,
            why=why,
            present=present,
            away=self.known,
            excluded=excluded,
            refused=kept_back,
        )
        self.last.write(self.folder)


def run_job(folder: Path, post: Post, present: Sequence[str], slow_post: Post | None = None) -> None:
    """Go on with the run in `folder`, with the sites that are there. `slow_post` carries the letters before
    training, whose answers may take longer: sites read their tables, and try the method in a dry run."""
    order = RunOrder.read(folder)
    trust_names(order.trusted)
    with FileLock(folder / JOB_LOCK, timeout=_PATIENCE), single_threaded():
        clear_notes(folder, "again")
        try:
            store = Store(folder, writing=True)
        except Damaged as e:
            JobReport("failed", str(e)).write(folder)
            return
        excluded = read_report(folder).excluded
        there = [s for s in present if s not in excluded]
        engine = Flare(
            there, carried(post), order.run, min_replies=order.min_replies, explain=explained, lasting=LASTING
        )
        engine.excluded, engine.received = dict(excluded), ReceivedReplies(folder).write
        engine.summed = SummedSites(folder)
        observer = JobObserver(folder, engine, store)
        try:
            with failures_reported(observer):
                run_rounds(order, folder, store, engine, observer, carried(slow_post or post))
        finally:
            store.commit()
            store.close()


def carried(post: Post) -> Post:
    """Letters that cannot be carried at all are no site's fault, and can be tried again."""

    def carry(letters: Mapping[str, bytes]) -> tuple[dict[str, bytes], dict[str, str]]:
        try:
            return post(letters)
        except MotetError:
            raise
        except Exception as e:  # whatever the carrier raises
            raise TooFew(f"letters could not be carried: {type(e).__name__}: {e}") from e

    return carry


def run_rounds(
    order: RunOrder, folder: Path, store: Store, engine: Flare, observer: JobObserver, slow_post: Post
) -> None:
    observer.report(None, "agreeing")
    sites = AllSites(engine, slow_post, order.min_sites)
    engine.masks = masks_of(order.recipe)
    recipe, layout = agree(order, folder, store, sites, observer)
    engine.recipe = sites_recipe(recipe)
    engine.clients = all_clients(store, engine)
    trainer = Trainer(build(recipe, data_at_the_server(order, recipe, layout)), store, engine)
    store.set_facts(remarks=trainer.method.remarks(), **asked_of_sites(recipe))
    engine.expect = ExpectedReplies(trainer.task, (len(layout.columns),), layout.table)
    try:
        trainer.run(observer)
    except Exception as e:
        store.forget_unsaved()  # of the round that was interrupted, its scores included; all others are saved
        if isinstance(e, AllRefused | Diverged) and (smaller := halved_rates(order.recipe, recipe)):
            raise type(e)(f"{e}\n{smaller}") from e
        raise
    if not trainer.over():
        why = read_note(folder)
        store.event("paused", f"after {round_name(trainer.number)}: {why}")
        observer.report(trainer, "stopped" if why == "stop" else "again")
        return
    store.set_facts(seconds=float(store.frame("rounds")["seconds"].sum()))
    finish(trainer, folder)
    write_hidden(engine, store)
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
    """How a job ends that cannot go on. What the next job may find better ends this one alone: too few sites, or
    this machine's own trouble with files. Everything else would only be repeated, so the run has failed."""
    try:
        yield
    except TooFew as e:
        end(observer, "short" if observer.engine.enough_left() else "failed", str(e))
    except _FATAL as e:
        end(observer, "failed", str(e))
    except (OSError, sqlite3.Error, MemoryError) as e:
        log.exception("the server cannot go on")
        end(observer, "short", f"trouble at the server: {type(e).__name__}: {e}")
    except Exception as e:  # whatever replies or our own errors led to must not be tried again and again
        log.exception("the run ends")
        end(
            observer, "failed", f"an error of motet's, or replies that it cannot use: {type(e).__name__}: {e}"
        )


def end(observer: JobObserver, state: str, why: str) -> None:
    """Write down why a job ends; `short` can be tried again."""
    observer.store.event(state, shown(why))
    if state == "failed":
        observer.store.set_facts(status="failed", failure=shown(why))
    observer.report(None, state, why)


def shown(text: str) -> str:
    """A text that sites have a part in, for files and terminals."""
    lines = printable(text, _LINES * _WIDE, lines=True).split("\n")
    return "\n".join(printable(line, _WIDE * 5) for line in lines[:_LINES])


# ---- agreeing ----


def agree(
    order: RunOrder, folder: Path, store: Store, sites: AllSites, observer: JobObserver
) -> tuple[Recipe, Layout]:
    """The resolved recipe and the layout: as the folder has them, or from a handshake with all sites there. It begins
    anew without sites whose replies cannot be used."""
    if "identity" in (facts := store.facts()):
        return go_on(order, folder, store, sites, facts)
    while True:
        try:
            return agree_anew(order, folder, store, sites, observer)
        except UnusableReplies as e:
            sites.exclude(e)


def go_on(
    order: RunOrder, folder: Path, store: Store, sites: AllSites, facts: dict[str, Any]
) -> tuple[Recipe, Layout]:
    """What the folder has; sites that come now must have the same."""
    recipe, packed = Recipe(facts["settings"]), (folder / _LAYOUT).read_bytes()
    check_layout(folder / _LAYOUT, packed, facts)
    layout = Layout.of(unpack(packed))
    for line in changes(facts, recipe, pieces_of(recipe, sha256(packed).hexdigest())):
        store.event("note", f"the run goes on, and is not as it began: {line}")
    known = rows_in(store)
    sites.admit(Letter("describe", order.run), checked_description, sites.engine.present - known.keys())

    def keep(site: str, tree: Tree) -> None:
        said = part_rows(tree)
        before = known.get(site, said)  # what was agreed on when it came counts, also if it says none now
        if said and before and before != said:
            raise WireError(f"it has {said} rows now, and had {before} when it came")
        agree_on(sites.engine, site, before)

    sites.admit(Letter("layout", order.run, send=layout.tree()), keep)
    new = sites.engine.present - known.keys()
    recall(sites.engine, store, facts, new, sums_of(sites, order.run, sites.engine.masks))
    sites.admit(offer(order.run, recipe, {*known, *sites.engine.present}), agreed)
    store.set_facts(status="running", failure="")
    return recipe, layout


def agree_anew(
    order: RunOrder, folder: Path, store: Store, sites: AllSites, observer: JobObserver
) -> tuple[Recipe, Layout]:
    """From a handshake with all sites that are there."""
    recipe, data = order.recipe, order.recipe["data"]
    agreement, layout = handshake(
        sites, order.run, recipe["method"]["name"], seed=data["seed"], scale=data["scale"], val=data["val"],
        test=data["test"], features=data["features"], robust=recipe.guard.mean != "mean",
        on_agreement=observer.agreed, summed=sums_of(sites, order.run, sites.engine.masks),
    )  # fmt: skip
    rows = [client_row(site, parts) for site, parts in agreement.part_rows.items()]
    federated = layout.federation(order.federation)
    federated.notes = [*agreement.notes]
    counts, given = agreement.class_counts(), with_sites_split(recipe, layout)
    recipe = completed(given, federated, counts)
    found = build(recipe, federated)
    check_loss(found.task, found.method, {})
    if chosen := chosen_without_rows(given, recipe):
        agreement.notes.append(chosen)
        federated.notes.append(chosen)
        observer.agreed(agreement)
    replies = sites(offer(order.run, recipe, sites.engine.present))
    check_publishers(replies)
    each_site(trees_of(replies), agreed)
    for site, parts in agreement.part_rows.items():
        agree_on(sites.engine, site, parts)
    remember(sites.engine, store, agreement)
    packed = pack(layout.tree())
    write_atomically(folder / _LAYOUT, packed)
    why = f"clients are the sites of the federation {order.federation}"
    pieces, again = pieces_of(recipe, sha256(packed).hexdigest()), "motet federation run KIT recipe.toml"
    write_down(recipe, federated, pieces, why, rows, store, folder, again)
    guard = {"guard": recipe.guard.mean, "learns": recipe.guard.learns, "attack": "none", "attackers": []}
    store.set_facts(data=order.federation, federation=order.federation, **guard)
    store.set_facts(metric_why=chosen_metric(given, federated, counts)[1])
    store.commit()
    return recipe, layout


def chosen_without_rows(given: Recipe, whole: Recipe) -> str:
    """What a server sets that holds no rows, where `motet run` would look at them."""
    open_ = [
        k for k, v in given["method"].items() if v == AUTO and isinstance(whole["method"][k], int | float)
    ]
    if not open_:
        return ""
    words = " ".join(f"method.{k}={whole['method'][k]:g}" for k in open_)
    return f"left open and chosen without rows: {words}; say the same to `motet run` for the same numbers"


def halved_rates(given: Recipe, whole: Recipe) -> str:
    """What to try where a rate that the server chose diverged. A simulation halves it and goes on; sites approved this
    rate and no other, and a round that is done again with another one would be a new question."""
    rates = open_rates(method_class(given["method"]["name"]), given["method"])
    words = " ".join(f"method.{k}={whole['method'][k] / 2:g}" for k in rates)
    return (
        f"hint: sites approved the rate, so it is not halved in this run; start one with {words}"
        if words
        else ""
    )


def with_sites_split(recipe: Recipe, layout: Layout) -> Recipe:
    """The recipe as it is played: with the split that all sites have, where it is one."""
    splits = {split[:3] for split in layout.splits.values()}
    if len(splits) != 1:
        return recipe
    own = dict(zip(("val", "test", "seed"), splits.pop(), strict=True))
    return dataclasses.replace(recipe, settings=recipe.settings | {"data": recipe["data"] | own})


def check_layout(path: Path, packed: bytes, facts: Mapping[str, Any]) -> None:
    """Refuse a layout that is not the one that the run began with."""
    if sha256(packed).hexdigest() != facts["fingerprint"]:
        raise Damaged(
            f"{path} is damaged: its checksum does not match.\n"
            "hint: restore it from a copy, or delete the run's folder and run anew"
        )


def agree_on(engine: Flare, site: str, parts: Mapping[str, int]) -> None:
    """From now on these are the site's numbers of rows; one that says none weighs 1."""
    engine.rows[site] = dict(parts) if parts else {"train": 1}
    (engine.uncounted.discard if parts else engine.uncounted.add)(site)


def client_row(site: str, parts: Mapping[str, int]) -> tuple[Any, ...]:
    """What the store knows of a site: its numbers of rows, as far as its policy lets them leave."""
    return site, 1, *(parts.get(part, 0) for part in ("train", "val", "test")), {}


def rows_in(store: Store) -> dict[str, dict[str, int]]:
    """Numbers of rows of everybody who ever was in this run; {} of sites that say none."""
    found = store.db.execute("SELECT client, train, val, test FROM clients")
    return {c: {"train": n, "val": v, "test": t} if n else {} for c, n, v, t in found}


def all_clients(store: Store, engine: Flare) -> list[str]:
    """Everybody who ever was in this run, and newcomers."""
    known = rows_in(store)
    if new := sorted(engine.present - known.keys()):
        parts = {s: {} if s in engine.uncounted else engine.rows[s] for s in new}
        store.clients([client_row(s, parts[s]) for s in new])
        store.event("joined", f"newcomers: {', '.join(new)}")
    return sorted({*known, *new})
