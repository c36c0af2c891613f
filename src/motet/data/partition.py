"""From a pool of rows to a federation: which client holds a row, and whether it is for training, validation or test.

Knows rows, clients and parts. Does not know where rows come from, nor how they are stored (build_clients.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from motet.client import seed_of
from motet.client.data import hashes
from motet.data import left_out, splits, targets
from motet.data.build_clients import Partition, lay_out
from motet.data.feature_shifts import shifted
from motet.data.federated import (
    LOCAL,
    PARTS,
    DataError,
    FederatedData,
    Pool,
    refuse,
)
from motet.data.learned_columns import with_learned_columns
from motet.data.splits import Assignment
from motet.data.splits.basic import ranked
from motet.data.table_settings import Names
from motet.data.text_codes import with_learned_words
from motet.settings import fields_of

Auto = Literal["auto"]
TRAIN, VAL, TEST, PROXY, SERVER_TEST = range(len(PARTS))


@dataclass(frozen=True)
class DataSettings:
    """Settings of every data set, besides its own and those of its split."""

    seed: int = 0  # draws the split: who holds which rows, and which are for validation and test
    split: str = "auto"  # natural (the data name the clients), dirichlet, …; auto: natural, else dirichlet
    features: float = 1.0  # share of the columns that each client holds; below 1, clients hold different ones
    unseen: float | Auto = "auto"  # share of clients held out; auto: 0 if the data name clients, else 0.1
    server_test: float = 0.0  # share of all rows for the server's test set, if the data have none
    proxy: float = 0.0  # share of the server's test set that becomes its proxy set, which methods may use
    val: float = 0.15  # share of each client's rows for validation
    test: float = 0.25  # share of each client's rows for the test
    scale: str = "auto"  # standardise tables by the training rows of: federation | client | none
    without: Names = ()  # clients to leave out, as if the data had never had them

    def problems(self) -> list[str]:
        wrong = []
        if self.scale not in (known := ("auto", "federation", "client", "none")):
            wrong.append(f"scale is {self.scale!r}; expected one of {', '.join(known)}")
        whole = {"unseen": "the clients", "server_test": "the rows", "proxy": "the server's test set"}
        for name, what in whole.items():
            if (got := getattr(self, name)) != "auto" and not 0 <= got < 1:
                wrong.append(f"{name} is {got}; expected a share of {what}, at least 0 and below 1")
        if not 0 < self.features <= 1:
            wrong.append(f"features is {self.features}; expected a share of the columns, above 0, at most 1")
        if not (self.val >= 0 and self.test >= 0 and self.val + self.test < 1):
            wrong.append(
                f"val is {self.val} and test is {self.test}; expected shares that leave some for training"
            )
        return wrong


def partition(name: str, pool: Pool, common: DataSettings, how: Mapping[str, Any]) -> FederatedData:
    """The data of every client, made from a pool of rows; `how` are the options of the split."""
    refuse(pool.problems() + common.problems())
    if pool.own_table and pool.kind == "classes" and is_natural(common, pool) and not common.without:
        # Scripts that divide images or arrays often give a client a class of its own: they are no person's table.
        who, names = ranked(np.asarray(pool.owner), pool.names)
        rows = np.bincount(who * len(pool.classes) + pool.y, minlength=len(names) * len(pool.classes))
        refuse(targets.classes_of_one(rows.reshape(len(names), -1), pool.classes, names))
    seed = common.seed
    part = left_out.marked(pool, part_numbers(pool), common.split, common.without)
    part = with_server_rows(part, common, seed)
    assignment = assign(pool, part, common.split, how, seed)
    pool = shifted(pool, assignment, common.split, how, seed)
    parts = cut(pool, assignment, part, common, seed)
    keep = np.bincount(assignment.who[parts == TRAIN], minlength=len(assignment.clients)) > 0
    if not keep.any():
        raise DataError("no client has a training row.\nhint: the data fix each row's part; none is 'train'")
    tested = (part == SERVER_TEST).any() or pool.server_test is not None
    if (
        common.val + common.test > 0
        and not tested
        and not np.isin(parts[keep[assignment.who]], (VAL, TEST)).any()
    ):
        raise DataError(nothing_to_test_on(pool, assignment, common))
    unseen = common.unseen  # auto: a party of somebody's own data is held out only if they say so
    unseen = (0.0 if is_natural(common, pool) else 0.1) if unseen == "auto" else unseen
    held = hold_out(assignment.clients, keep, unseen, seed)
    staying = left_out.staying(pool, assignment.clients, common.split, common.without)
    some = (keep & staying)[assignment.who]
    partition = Partition(
        assignment.row[some],
        assignment.who[some],
        parts[some],
        assignment.clients,
        keep,
        held,
        proxy=server_rows(pool, part == PROXY, assignment, held),
        server_test=server_rows(pool, part == SERVER_TEST, assignment, np.zeros_like(held)),
        columns=columns_held(pool, assignment.clients, common),
    ).only(staying)
    pool, partition = with_learned_columns(with_learned_words(pool, partition), partition)
    federated = lay_out(name, pool, partition, common.scale)
    federated.unseen_share = unseen
    federated.given_tests = bool((part == TEST).any() and not (part == -1).any())
    gone = np.setdiff1d(assignment.row[~staying[assignment.who]], partition.row)
    federated.notes = [
        *pool.notes,
        *remarks(pool, partition, int((part < LOCAL).sum()) - len(gone)),
        *given_parts(pool, assignment, part, common.val),
    ]
    if common.without:
        federated.notes.append(f"left out (data.without): {', '.join(common.without)}")
    return federated


def nothing_to_test_on(pool: Pool, assignment: Assignment, common: DataSettings) -> str:
    """What to say where no client has a validation or test row, so that nothing could be measured."""
    sizes = np.bincount(assignment.who, minlength=len(assignment.clients))
    many, column = f"{len(sizes):,} clients for {len(assignment.row):,} rows", pool.client_column
    if sizes.max() > 1:
        return (
            f"{many}: no client has a row for validation or test.\nhint: data.val is {common.val} and data.test "
            f"{common.test}, shares of each client's rows; larger ones, or fewer clients"
        )
    said = f"{many}: every client has one row, and none is left for validation or test"
    if not is_natural(common, pool):
        return f"{said}.\nhint: fewer clients: data.clients"
    asked = f"; is {column!r} the client?" if column else "."
    return (
        f"{said}{asked}\nhint: data.client names the column that says whose each row is; "
        "data.split=iid data.clients=10 draws clients"
    )


def part_numbers(pool: Pool) -> np.ndarray:
    """The part of each row as an index into PARTS; -1 is not decided yet; other numbers leave a row out."""
    part = pool.part
    if part is None:
        return np.full(len(pool.x), -1)
    if part.dtype.kind in "iu":
        return part
    if strange := sorted(set(np.unique(part.astype(str)).tolist()) - set(PARTS)):
        raise DataError(f"parts of rows are called {', '.join(strange)}; expected {', '.join(PARTS)}")
    order = np.argsort(PARTS)
    return order[np.searchsorted(np.array(PARTS)[order], part.astype(str))]


def with_server_rows(part: np.ndarray, common: DataSettings, seed: int) -> np.ndarray:
    """Parts, with the server's rows drawn: its test set from all rows, and its proxy set from its test set."""
    if common.server_test and not (part == SERVER_TEST).any():
        part = _drawn(part, part == -1, common.server_test, SERVER_TEST, seed)
    if common.proxy and not (part == PROXY).any():
        part = _drawn(part, part == SERVER_TEST, common.proxy, PROXY, seed)
    return part


def _drawn(part: np.ndarray, among: np.ndarray, share: float, to: int, seed: int) -> np.ndarray:
    rows = np.flatnonzero(among)
    key = hashes(torch.tensor(seed_of(seed, "server", to)), 0, torch.arange(len(rows))).numpy()
    part = part.copy()
    part[rows[np.argsort(key)[: math.floor(share * len(rows) + 0.5)]]] = to
    return part


def assign(pool: Pool, part: np.ndarray, split: str, how: Mapping[str, Any], seed: int) -> Assignment:
    """Which client gets which row."""
    if split == "auto":
        split = "dirichlet" if pool.owner is None else "natural"
    f = splits.source(split)
    rows, server_test = np.flatnonzero(part < LOCAL), np.flatnonzero(part == SERVER_TEST)
    owner = None if pool.owner is None else pool.owner[rows]
    all_rows = splits.Rows(rows, pool.y[rows], seed, owner, pool.names, server_test, pool.y[server_test])
    return f(all_rows, **{k: how[k] for k in fields_of(f) if k in how})


def server_rows(pool: Pool, mine: np.ndarray, assignment: Assignment, held: np.ndarray) -> np.ndarray:
    """The server's rows: those that no client got, and that do not come from a client that is held out."""
    rows: np.ndarray = np.setdiff1d(np.flatnonzero(mine), assignment.row)
    if pool.owner is None or not held.any() or not len(rows):
        return rows
    who, names = ranked(pool.owner[rows], pool.names)
    away = {c for c, h in zip(assignment.clients, held, strict=True) if h}
    staying = np.array([n not in away for n in names], bool)[who]
    return np.asarray(rows[staying])


def columns_held(pool: Pool, clients: tuple[str, ...], common: DataSettings) -> np.ndarray | None:
    """(clients, columns) which columns each client holds: those that the data give it, and of these a share."""
    chosen = columns_of(pool, clients, common.features, common.seed)
    if pool.held is None:
        return chosen
    if not set(clients) <= set(pool.names):
        if pool.fill:
            return chosen  # rows are mixed, and what is absent counts as missing
        raise DataError(
            "clients hold different columns, and this split mixes their rows.\n"
            "hint: data.split=natural; or leave out the columns that not all hold: data.drop"
        )
    given: np.ndarray = pool.held[[pool.names.index(c) for c in clients]]
    return given if chosen is None else given & chosen


def columns_of(pool: Pool, clients: tuple[str, ...], features: float, seed: int) -> np.ndarray | None:
    """(clients, columns) which columns each client holds; all flags of one category, or none."""
    if features == 1:
        return None
    if not pool.columns:
        raise DataError(f"features is {features}, and these examples have no columns to divide")
    group = [c.group or c.name for c in pool.columns]
    known = sorted(set(group))
    many = max(int(features * len(known)), 1)
    chosen = [sorted(known, key=lambda g: seed_of(seed, "columns", c, g))[:many] for c in clients]
    return np.array([[g in mine for g in group] for mine in map(set, chosen)])


def is_natural(common: DataSettings, pool: Pool) -> bool:
    """Whether the clients are those that the data name."""
    return pool.owner is not None and common.split in ("auto", "natural")


def hold_out(clients: tuple[str, ...], keep: np.ndarray, unseen: float, seed: int) -> np.ndarray:
    """Which clients never take part in training: those with the smallest hashes."""
    order = sorted(np.flatnonzero(keep), key=lambda i: seed_of(seed, "unseen", clients[i]))
    held = np.zeros(len(clients), bool)
    held[order[: math.floor(unseen * len(order) + 1e-9)]] = True
    return held


def cut(pool: Pool, assignment: Assignment, part: np.ndarray, common: DataSettings, seed: int) -> np.ndarray:
    """The part of each assigned row: what the data or the split say, or a stratified draw.

    If no row is marked as a validation row, some of those marked for training become validation rows.
    """
    part_of = given_by(assignment, part)
    given = part_of == TRAIN if draws_val(pool, part_of) else np.zeros(len(part_of), bool)
    if not (given | (part_of == -1)).any():
        return part_of
    if assignment.same:  # all clients hold the same rows: decide for the first one
        once = len(assignment.row) // len(assignment.clients)
        first = Assignment(assignment.row[:once], assignment.who[:once], assignment.clients[:1])
        return np.tile(cut(pool, first, part, common, seed), len(assignment.clients))
    tested = np.bincount(assignment.who[part_of == TEST], minlength=len(assignment.clients)) > 0
    part_of = part_of.copy()
    for some, test in ((part_of == -1, np.where(tested, 0, common.test)), (given, np.zeros(len(tested)))):
        if some.any():
            rows = Assignment(assignment.row[some], assignment.who[some], assignment.clients)
            part_of[some] = stratified(pool, rows, test, common.val, seed)
    return part_of


def given_by(assignment: Assignment, part: np.ndarray) -> np.ndarray:
    """The part of each assigned row as the split says, else as the data say; -1: neither does."""
    said = part[assignment.row]
    return said if assignment.part is None else np.where(assignment.part == -1, said, assignment.part)


def draws_val(pool: Pool, part_of: np.ndarray) -> bool:
    """Whether validation rows are drawn from the rows that the data mark for training."""
    return not pool.all_train and not (part_of == VAL).any()


def stratified(pool: Pool, some: Assignment, test: np.ndarray, val: float, seed: int) -> np.ndarray:
    """Parts with about the same shares of classes in each part of a client; `test` is a share for each client."""
    who, clients = some.who, some.clients
    seeds = torch.tensor([seed_of(seed, "cut", c) for c in clients])
    place = ranks(who, np.arange(len(who)))
    key = hashes(seeds[torch.from_numpy(who)], 0, torch.from_numpy(place)).numpy()
    label = {"classes": pool.y, "survival": (pool.y > 0).astype(np.int64)}.get(pool.kind)
    stratum = who * max(len(pool.classes), 2) + (0 if label is None else label[some.row])
    # Rows of one class are spaced evenly on (0, 1); the highest are for the test, the next ones for validation.
    # The only row of a class is in the middle, among the training rows.
    height = (ranks(stratum, key) + 0.5) / np.bincount(stratum)[stratum]
    place = ranks(who, key, -height)
    size = np.bincount(who, minlength=len(clients))
    tests = np.minimum(np.floor(size * test + 0.5), np.maximum(size - 1, 0))
    vals = np.minimum(np.floor(size * val + 0.5), np.maximum(size - 1 - tests, 0))
    return np.select([place < tests[who], place < (tests + vals)[who]], [TEST, VAL], TRAIN)


def ranks(group: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """Each row's rank within its group, in the order of the keys (the last key counts most).

    >>> ranks(np.array([0, 1, 0]), np.array([9, 5, 2])).tolist()
    [1, 0, 0]
    """
    order = np.lexsort((*keys, group))
    sizes = np.bincount(group)
    place = np.empty(len(group), np.int64)
    place[order] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return place


def given_parts(pool: Pool, assignment: Assignment, part: np.ndarray, val: float) -> list[str]:
    """A note on rows whose part the data fix."""
    counts = np.bincount(part[(part >= 0) & (part < LOCAL)], minlength=LOCAL)
    if not counts.any():
        return []
    many = ", ".join(f"{n:,} {name}" for n, name in zip(counts, PARTS, strict=False) if n)
    drawn = counts[TRAIN] and val > 0 and draws_val(pool, given_by(assignment, part))
    more = "; validation rows are drawn from the training rows (val)" if drawn else ""
    return [f"the data say which rows are for what, in every split: {many}{more}"]


def remarks(pool: Pool, partition: Partition, rows: int) -> list[str]:
    """Notes on clients: dropped, held out, without validation or test rows, or of one class."""
    who, clients = partition.who, len(partition.clients)
    sizes = np.bincount(who * LOCAL + partition.part, minlength=clients * LOCAL).reshape(clients, LOCAL)
    some = partition.keep & (sizes.sum(1) > 0)
    found = [
        ("dropped, because they have no training rows", ~partition.keep),
        ("held out of training", partition.held),
        ("without validation rows", some & (sizes[:, VAL] == 0)),
        ("without test rows", some & (sizes[:, TEST] == 0)),
    ]
    if pool.kind == "classes":
        seen = np.zeros((clients, len(pool.classes)), bool)
        seen[who, pool.y[partition.row]] = True
        found.append(("with rows of one class only", some & (seen.sum(1) == 1)))
    if pool.kind == "survival":
        events = np.bincount(who, pool.y[partition.row] > 0, clients)
        found.append(("without any event", some & (events == 0)))
    nobody = {
        "without validation rows": "no client has validation rows: the last round is reported, and no method is chosen",
        "without test rows": "no client has test rows: nothing says how good the models are",
    }
    notes = [
        nobody[what] if what in nobody and (which == some).all() else _note(what, partition.clients, which)
        for what, which in found
        if which.any()
    ]
    unused = rows - len(np.unique(partition.row))
    return [*notes, f"{unused:,} of {rows:,} rows are with no client"] if unused > 0 else notes


def _note(what: str, clients: tuple[str, ...], which: np.ndarray) -> str:
    at = np.flatnonzero(which)
    more = f" and {len(at) - 5} more" if len(at) > 5 else ""
    return f"{len(at)} of {len(clients)} clients {what}: {', '.join(clients[i] for i in at[:5])}{more}"
