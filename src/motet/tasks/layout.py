"""How homes hold their rows: gathered in one block, filled, scaled, and seen through views.

Knows arrays and statistics. Does not know how it was decided whose a row is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from motet.local import Batch, Column, Home
from motet.tasks.federation import LOCAL, PARTS, DataError, Federation, Pool, Rows, Ruler

_TRAIN, _PROXY, _EXAM = (PARTS.index(p) for p in ("train", "proxy", "exam"))


@dataclass(frozen=True)
class Dealt:
    """Which client and which part each row of a pool belongs to."""

    who: np.ndarray  # (rows,) the number of its client
    part: np.ndarray  # (rows,) the number of its part
    clients: tuple[str, ...]
    keep: np.ndarray  # (clients,) has training rows
    held: np.ndarray  # (clients,) takes no part in training


@dataclass(frozen=True)
class Block:
    """All rows that clients hold, sorted by client and part, and the server's."""

    x: np.ndarray
    y: np.ndarray
    counts: np.ndarray  # (clients, 3) rows in each part
    learned: np.ndarray  # (rows,) training rows of clients that take part: what statistics are made of
    proxy: Rows | None
    exam: Rows | None

    def with_x(self, f: Callable[[np.ndarray], np.ndarray], x: np.ndarray | None = None) -> Block:
        """All examples changed by f; the clients' ones given as x if they are changed otherwise."""
        proxy, exam = (r and (f(r[0]), r[1]) for r in (self.proxy, self.exam))
        return replace(self, x=f(self.x) if x is None else x, proxy=proxy, exam=exam)

    def with_y(self, f: Callable[[np.ndarray], np.ndarray]) -> Block:
        proxy, exam = (r and (r[0], f(r[1])) for r in (self.proxy, self.exam))
        return replace(self, y=f(self.y), proxy=proxy, exam=exam)


def lay_out(name: str, pool: Pool, dealt: Dealt, scale: str) -> Federation:
    """A federation whose homes are views of one tensor."""
    block, rulers = standardise(gather(pool, dealt), usable(scale, pool), pool)
    ruler = Ruler(np.zeros(()), np.ones(()))
    if pool.kind == "numbers":
        ruler = Ruler.of(block.y[block.learned])
        block = block.with_y(ruler.apply)
    homes = furnish(block, pool.columns)
    proxy, exam = (r and Batch.of(tensor(r[0]), tensor(r[1])) for r in (block.proxy, block.exam))
    return Federation(
        name=name,
        homes={c: homes[i] for i, c in enumerate(dealt.clients) if dealt.keep[i] and not dealt.held[i]},
        unseen={c: homes[i] for i, c in enumerate(dealt.clients) if dealt.held[i]},
        kind=pool.kind,
        outputs=len(pool.classes) if pool.kind == "classes" else 1,
        classes=pool.classes,
        columns=pool.columns,
        shape=tuple(block.x.shape[1:]),
        scale=float(ruler.spread),
        offset=float(ruler.middle),
        proxy=proxy,
        exam=exam,
        rulers=dict(zip(dealt.clients, rulers, strict=True)) if rulers else {},
    )


def gather(pool: Pool, dealt: Dealt) -> Block:
    """The rows in their final order; nothing is copied if they already stand in it."""
    who, part = dealt.who, dealt.part
    at = np.flatnonzero(part < LOCAL)
    key = who[at] * LOCAL + part[at]
    if (key[1:] < key[:-1]).any():
        at = at[np.argsort(key, kind="stable")]
    counts = np.bincount(key, minlength=LOCAL * len(dealt.clients)).reshape(-1, LOCAL)
    taught = (part == _TRAIN) & ~dealt.held[who]
    proxy = _join(_some(pool, (part == _PROXY) & ~dealt.held[who]), pool.proxy)
    exam = _join(_some(pool, part == _EXAM), pool.exam)
    return Block(take(pool.x, at), take(pool.y, at), counts, take(taught, at), proxy, exam)


def take(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Some rows: a view if they are the first ones in order."""
    return values[: len(at)] if (at == np.arange(len(at))).all() else values[at]


def _some(pool: Pool, which: np.ndarray) -> Rows | None:
    return (pool.x[which], pool.y[which]) if which.any() else None


def _join(a: Rows | None, b: Rows | None) -> Rows | None:
    if a is None or b is None:
        return a or b
    return np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]])


def usable(scale: str, pool: Pool) -> str:
    """The scaling that is meant; only rows of a table can be scaled by column."""
    table = pool.x.ndim == 2
    if scale == "auto":
        return pool.scaling if table else "none"
    if scale != "none" and not table:
        raise DataError(
            f"scale = {scale!r} is for tables; one of these examples has shape {pool.x.shape[1:]}.\n"
            'hint: say scale = "none"'
        )
    return scale


def standardise(block: Block, scale: str, pool: Pool) -> tuple[Block, list[Ruler]]:
    """Fill what is missing with training means, then bring number columns to mean 0 and spread 1.

    Returns what each client's numbers were standardised with, nothing if they were not.
    """
    if pool.fill:
        block = filled(block)
    if scale == "none":
        return block, []
    ruler = Ruler.of(block.x[block.learned], pool.columns)
    if scale == "federation":
        return block.with_x(ruler.apply), [ruler] * len(block.counts)
    x, rulers = by_client(block, pool.columns, ruler)
    return block.with_x(ruler.apply, x), rulers


def filled(block: Block) -> Block:
    rows = block.x[block.learned]
    there = ~np.isnan(rows)
    mean = np.where(there, rows, 0).sum(0) / np.maximum(there.sum(0), 1)
    return block.with_x(lambda x: np.where(np.isnan(x), mean, x))


def by_client(block: Block, columns: tuple[Column, ...], everyones: Ruler) -> tuple[np.ndarray, list[Ruler]]:
    """Every client's rows, standardised with its own training rows, and what they were standardised with."""
    x, start = np.empty(block.x.shape, np.float32), 0
    rulers = []
    for train, val, test in block.counts.tolist():
        end = start + train + val + test
        rulers.append(Ruler.of(block.x[start : start + train], columns) if train else everyones)
        x[start:end] = rulers[-1].apply(block.x[start:end])
        start = end
    return x, rulers


def tensor(values: np.ndarray) -> Tensor:
    """float32 or int64, in one piece, that torch may write to."""
    kind = np.float32 if values.dtype.kind == "f" else np.int64
    return torch.from_numpy(np.require(values, kind, ["C", "W"]))


def furnish(block: Block, columns: tuple[Column, ...]) -> list[Home]:
    """Every client's home: views of one tensor of examples, one of targets, one of ones."""
    sizes = block.counts.reshape(-1).tolist()
    ones = torch.ones(max(sizes))
    live = {n: ones[:n] for n in set(sizes)}
    xs, ys = torch.split(tensor(block.x), sizes), torch.split(tensor(block.y), sizes)
    batches = [Batch(x, y, live[n]) for x, y, n in zip(xs, ys, sizes, strict=True)]
    return [Home(*three, columns) for three in zip(batches[::3], batches[1::3], batches[2::3], strict=True)]
