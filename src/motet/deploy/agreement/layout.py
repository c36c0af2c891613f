"""The common layout of a federation's tables: which columns in which order, which classes, which scale.

It is what sites agree on before anything trains, and plain data: it goes over the wire and into a file. How a
site's rows are divided into training, validation and test rows is the site's own decision; the layout repeats it.
Knows columns and statistics. Does not know any site's rows.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from msgspec import Meta, Struct
from msgspec.structs import asdict, replace
from torch import Tensor

from motet.client import Column
from motet.client.losses import Kind
from motet.core import Tree
from motet.data.federated import FederatedData, Scaler
from motet.wire import WireError, record

_TINY = 1e-9  # a column whose spread is smaller than this share of its mean is constant


Share = Annotated[float, Meta(ge=0, lt=1)]
Scale = Literal["federation", "client", "none"]


class Split(NamedTuple):
    """How a site divides its rows: chosen at the site, once for a table, never by a letter."""

    val: Share = 0.15
    test: Share = 0.25
    seed: Annotated[int, Meta(ge=0, lt=1 << 53)] = 0
    scale: Literal["auto", "federation", "client", "none"] = "auto"  # auto: as the first run asks

    @property
    def fine(self) -> bool:
        return min(self.val, self.test) >= 0 and self.val + self.test < 1

    def __str__(self) -> str:
        return f"val {self.val:g}, test {self.test:g}, seed {self.seed}"


class Layout(Struct, frozen=True):
    """How every site lays its rows out. Statistics are of training rows; () where sites use their own."""

    columns: tuple[tuple[str, Literal["number", "flag"], str], ...]  # (name, kind, one-hot encoded from)
    kind: Kind
    classes: tuple[str, ...]  # () for numbers
    scale: Scale = "federation"  # whose rows standardise numbers
    splits: dict[str, Split] = {}  # each site's own; a site that came later is not in it
    means: Any = ()  # (columns,) what fills empty cells
    middle: Any = ()  # (columns,)
    spread: Any = ()
    target: tuple[float, float] = (0.0, 1.0)  # middle and spread of numbers that are predicted

    def tree(self) -> Tree:
        return asdict(self)

    @classmethod
    def of(cls, tree: Tree) -> Layout:
        """The layout that a tree holds; anything else is a WireError."""
        layout = record(tree, cls, "layout")
        for name in ("means", "middle", "spread"):
            v = getattr(layout, name)
            fine = isinstance(v, Tensor) and v.shape == (len(layout.columns),) and bool(v.isfinite().all())
            if not fine and v != ():
                raise WireError(f"the layout's {name} must be a finite number for each column")
        if not layout.target[1] > 0:
            raise WireError("the layout's target must have a middle and a spread above 0")
        if len({name for name, _, _ in layout.columns}) < len(layout.columns):
            raise WireError("the layout names a column twice")
        if not all(split.fine for split in layout.splits.values()):
            raise WireError("shares of validation and test rows must leave some for training")
        if isinstance(layout.spread, Tensor) and not bool((layout.spread > 0).all()):
            raise WireError("the layout's spreads must be above 0")
        return layout

    @property
    def table(self) -> tuple[Column, ...]:
        return tuple(Column(*c) for c in self.columns)

    @property
    def numbers(self) -> np.ndarray:
        """Which columns are numbers, which alone are standardised."""
        return np.array([kind == "number" for _, kind, _ in self.columns], bool)

    @property
    def scaler(self) -> Scaler:
        return Scaler(self.middle.numpy(), self.spread.numpy())

    @property
    def wants_sums(self) -> bool:
        """Whether sums of sites' columns are needed before the layout is whole."""
        return self.scale == "federation" or self.kind == "numbers"

    def federation(self, name: str, clients_data: Any = None) -> FederatedData:
        """What a server knows of the data; at a site, with the one client whose rows are there."""
        offset, scale = self.target
        return FederatedData(
            name=name, clients_data=clients_data or {}, unseen={}, kind=self.kind, classes=self.classes,
            outputs=len(self.classes) if self.kind == "classes" else 1,
            columns=self.table, shape=(len(self.columns),), scale=scale, offset=offset,
        )  # fmt: skip

    # ---- statistics from sums of sites; the target's column comes last where numbers are predicted ----

    def with_means(self, many: np.ndarray, total: np.ndarray) -> Layout:
        """From how many cells each column has and their sums."""
        mean = total / np.maximum(many, 1)
        d = len(self.columns)
        target = (float(mean[d]), 1.0) if self.kind == "numbers" else (0.0, 1.0)
        return replace(self, means=torch.from_numpy(mean[:d].copy()), target=target)

    def with_spread(self, rows: np.ndarray, squares: np.ndarray) -> Layout:
        """From how many rows each column has and the sums of squared distances to the means."""
        d = len(self.columns)
        mean = np.append(self.means.numpy(), self.target[0])[: len(rows)]
        spread = np.sqrt(squares / np.maximum(rows, 1))
        spread = np.where(spread > _TINY * np.maximum(abs(mean), _TINY), spread, 1.0)
        target = (self.target[0], float(spread[d])) if self.kind == "numbers" else self.target
        if self.scale != "federation":
            return replace(self, target=target)
        middle, wide = np.where(self.numbers, mean[:d], 0.0), np.where(self.numbers, spread[:d], 1.0)
        return replace(self, middle=torch.from_numpy(middle), spread=torch.from_numpy(wide), target=target)
