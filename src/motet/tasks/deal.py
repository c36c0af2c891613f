"""From a pool of rows to a federation: deal, hold out, cut.

Knows whose each row is and what it is for. Does not know where rows come from, nor how homes hold them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from motet.local import seed_of
from motet.local.data import hashes
from motet.tasks import splits
from motet.tasks.federation import LOCAL, PARTS, DataError, Federation, Pool, refuse
from motet.tasks.layout import Dealt, lay_out


@dataclass(frozen=True)
class Common:
    """Options that every source of data understands."""

    clients: int = 20  # how many clients the rows are dealt to (split iid or dirichlet)
    split: str = "auto"  # natural (as the data name clients) | dirichlet | iid; auto: natural or dirichlet
    alpha: float = 0.5  # dirichlet: the smaller, the more clients differ in their classes
    unseen: float = 0.1  # share of the clients that are held out of training altogether
    val: float = 0.15  # share of each client's rows that choices are made on
    test: float = 0.25  # share of each client's rows that only the final score sees
    scale: str = "auto"  # whose training rows standardise a table: federation | client | none

    def problems(self) -> list[str]:
        wrong = []
        if self.split not in (known := ("auto", "natural", "dirichlet", "iid")):
            wrong.append(f"split is {self.split!r}; expected one of {', '.join(known)}")
        if self.scale not in (known := ("auto", "federation", "client", "none")):
            wrong.append(f"scale is {self.scale!r}; expected one of {', '.join(known)}")
        if not 0 <= self.unseen < 1:
            wrong.append(f"unseen is {self.unseen}; expected a share of the clients, at least 0 and below 1")
        if not (self.val >= 0 and self.test >= 0 and self.val + self.test < 1):
            wrong.append(
                f"val is {self.val} and test is {self.test}; expected shares that leave some for training"
            )
        return wrong


def deal(name: str, pool: Pool, common: Common, seed: int) -> Federation:
    """Every client's home, made from a pool of rows."""
    refuse(pool.problems() + common.problems())
    who, clients = share(pool, common, seed)
    part = cut(pool, who, clients, common, seed)
    keep = np.bincount(who[part == PARTS.index("train")], minlength=len(clients)) > 0
    if not keep.any():
        raise DataError("no client has a training row.\nhint: the data fix each row's part; none is 'train'")
    part = part if keep.all() else np.where(keep[who], part, len(PARTS))  # a part that nobody reads
    dealt = Dealt(who, part, clients, keep, hold_out(clients, keep, common.unseen, seed))
    federation = lay_out(name, pool, dealt, common.scale)
    federation.notes = [*pool.notes, *remarks(pool, dealt)]
    return federation


def share(pool: Pool, common: Common, seed: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """The number of each row's client, and the clients' names in order."""
    split = common.split
    if split == "auto":
        split = "dirichlet" if pool.owner is None else "natural"
    if split == "natural":
        if pool.owner is None:
            raise DataError(
                "split is 'natural', and the data do not say which client a row belongs to.\n"
                'hint: name the column of clients (client = "..."), or use split = "dirichlet" or "iid"'
            )
        return splits.natural(pool.owner, pool.names)
    clients = splits.names(max(common.clients, 1))
    if split == "iid":
        return splits.iid(pool.y, common.clients, seed), clients
    return splits.dirichlet(pool.y, common.clients, common.alpha, seed), clients


def hold_out(clients: tuple[str, ...], keep: np.ndarray, unseen: float, seed: int) -> np.ndarray:
    """Which clients take no part in training: those with the smallest hashes."""
    order = sorted(np.flatnonzero(keep), key=lambda i: seed_of(seed, "unseen", clients[i]))
    held = np.zeros(len(clients), bool)
    held[order[: math.floor(unseen * len(order) + 1e-9)]] = True
    return held


def cut(pool: Pool, who: np.ndarray, clients: tuple[str, ...], common: Common, seed: int) -> np.ndarray:
    """The part of each row, as a number of PARTS: what the data say, or a stratified draw."""
    if pool.part is not None:
        return _numbered(pool.part)
    seeds = torch.tensor([seed_of(seed, "cut", c) for c in clients])
    place = ranks(who, np.arange(len(who)))
    key = hashes(seeds[torch.from_numpy(who)], 0, torch.from_numpy(place)).numpy()
    stratum = who * max(len(pool.classes), 1) + (pool.y if pool.kind == "classes" else 0)
    # Rows of one class stand evenly spaced on (0, 1); what stands highest is tested on. A class that
    # has a single row stands in the middle, where training rows are.
    stand = (ranks(stratum, key) + 0.5) / np.bincount(stratum)[stratum]
    place = ranks(who, key, -stand)
    size = np.bincount(who, minlength=len(clients))
    test = np.minimum(np.floor(size * common.test + 0.5), np.maximum(size - 1, 0))
    val = np.minimum(np.floor(size * common.val + 0.5), np.maximum(size - 1 - test, 0))
    return np.select([place < test[who], place < (test + val)[who]], [2, 1], 0)


def ranks(group: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """Each row's place within its group, in the order of the keys (the last one counts most).

    >>> ranks(np.array([0, 1, 0]), np.array([9, 5, 2])).tolist()
    [1, 0, 0]
    """
    order = np.lexsort((*keys, group))
    sizes = np.bincount(group)
    place = np.empty(len(group), np.int64)
    place[order] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return place


def _numbered(part: np.ndarray) -> np.ndarray:
    if part.dtype.kind in "iu" and part.min() >= 0 and part.max() < len(PARTS):
        return part
    if strange := sorted(set(np.unique(part.astype(str)).tolist()) - set(PARTS)):
        raise DataError(f"parts of rows are called {', '.join(strange)}; expected {', '.join(PARTS)}")
    order = np.argsort(PARTS)
    return order[np.searchsorted(np.array(PARTS)[order], part.astype(str))]


def remarks(pool: Pool, dealt: Dealt) -> list[str]:
    """What a person should know of the clients: dropped, held out, tiny or of one class."""
    local = dealt.part < LOCAL
    who, clients = dealt.who[local], len(dealt.clients)
    sizes = np.bincount(who * LOCAL + dealt.part[local], minlength=clients * LOCAL).reshape(clients, LOCAL)
    some = dealt.keep & (sizes.sum(1) > 0)
    found = [
        ("dropped, because they have no training rows", ~dealt.keep),
        ("held out of training", dealt.held),
        ("without validation rows", some & (sizes[:, 1] == 0)),
        ("without test rows", some & (sizes[:, 2] == 0)),
    ]
    if pool.kind == "classes":
        seen = np.zeros((clients, len(pool.classes)), bool)
        seen[who, pool.y[local]] = True
        found.append(("with rows of one class only", some & (seen.sum(1) == 1)))
    return [_note(what, dealt.clients, which) for what, which in found if which.any()]


def _note(what: str, clients: tuple[str, ...], which: np.ndarray) -> str:
    at = np.flatnonzero(which)
    more = f" and {len(at) - 5} more" if len(at) > 5 else ""
    return f"{len(at)} of {len(clients)} clients {what}: {', '.join(clients[i] for i in at[:5])}{more}"
