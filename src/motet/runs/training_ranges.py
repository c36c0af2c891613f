"""Between which values the training rows of a saved model lie, and which new rows and predictions lie elsewhere.

A model's file keeps two quantiles of each numeric column and of the outcome, never the smallest and largest cell:
these are single people's. Beyond each quantile lie a hundredth of the rows and at least five; of fewer than 40 rows
none are kept. A client's own model has those of its own rows alone, and the global model those of all clients' rows
where they are in one place. Where training is private there are none: no budget counts them.
Knows rows and quantiles. Does not know files or networks.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from scipy import special

from motet.client.population import some_of
from motet.data.federated import FederatedData
from motet.text import in_markdown

_SHARE = 0.01  # of the rows lies beyond each quantile,
_BEYOND = 5  # and at least so many rows
_LEAST = 8 * _BEYOND  # of fewer rows, quantiles lie too far inside to say anything of a single value
_CHANCE = 1e-4  # more rows than expected are mentioned if chance does so this rarely, in a whole table
_FAR = 3.0  # half widths of a range from its middle: beyond, one row is mentioned
_AWAY = 1.5  # half widths: beyond, rows are mentioned where they are clearly more than a hundredth
_SLACK = 1e-4  # of a range: cells of training rows were rounded when they were standardised
_LISTED = 10  # notes of columns that are given one by one


class QuantileRange(msgspec.Struct, array_like=True):
    """Two quantiles of so many rows."""

    low: float
    high: float
    rows: int

    @property
    def share(self) -> float:
        return max(_SHARE, _BEYOND / max(self.rows, 1))

    def away(self, values: np.ndarray) -> np.ndarray:
        """How far values lie from the middle, in half widths of a range that leaves out a hundredth at each end; below
        the middle negative. Narrower ranges are taken for the middle of a bell curve. Skewed positive values are a
        bell curve on the log scale rather, so that there the scale counts on which a value lies nearer.

        >>> QuantileRange(-10.0, 10.0, 500).away(np.array([-20.0, 15.0])).tolist()
        [-2.0, 1.5]
        >>> QuantileRange(1.0, 100.0, 500).away(np.array([1000.0])).round(6).tolist()
        [2.0]
        """
        found = self.half_widths(values, self.low, self.high)
        if self.low <= 0:
            return found
        logs = np.log(np.maximum(values, np.finfo(float).tiny))
        other = self.half_widths(logs, np.log(self.low), np.log(self.high))
        nearer = np.where(abs(found) < abs(other), found, other)
        return np.asarray(np.where(found * other > 0, nearer, 0.0))

    def half_widths(self, values: np.ndarray, low: float, high: float) -> np.ndarray:
        half = (high - low) / 2 * special.ndtri(_SHARE) / special.ndtri(self.share)
        return np.asarray((values - (low + high) / 2) / half)

    def __str__(self) -> str:
        return f"{in_words(self.low)} to {in_words(self.high)}"


class TrainingRanges(msgspec.Struct, omit_defaults=True):
    """What a model's file says of its training rows."""

    columns: dict[str, QuantileRange] = {}
    outcome: QuantileRange | None = None
    none: str = ""  # why there are none

    @classmethod
    def of(cls, f: FederatedData, client: str, private: bool) -> TrainingRanges:
        """Of a client's training rows, or of all clients' for the global model, whose client is ""."""
        if private:
            return cls(none="no privacy budget counts them")
        if not f.columns and f.kind != "numbers":
            return cls(none="it takes no columns of numbers, and predicts no number")
        if not f.clients_data:
            return cls(none="training rows are with the clients")
        some = {client: f.clients_data[client]} if client else dict(some_of(f.clients_data))
        if (rows := sum(d.n for d in some.values())) < _LEAST:
            return cls(none=f"quantiles of {rows} training rows show single ones")
        found = cls()
        tables = {c: d.train.take().x.double().numpy() for c, d in some.items()} if f.columns else {}
        for j, column in enumerate(f.columns):
            parts = [np.zeros(0)]
            for c, d in some.items():
                if column.kind == "number" and (not d.columns or d.columns[j].here):
                    ruler, x = f.rulers.get(c), tables[c][:, j]
                    parts.append(x * ruler.spread[j] + ruler.middle[j] if ruler else x)
            if own := quantiles(np.concatenate(parts)):
                found.columns[column.name] = own
        if f.kind == "numbers":
            y = np.concatenate([d.train.y.double().numpy() for d in some.values()])
            found.outcome = quantiles(y * f.scale + f.offset)
        return found

    def remarks(self, columns: list[str], rows: np.ndarray, predicted: np.ndarray | None) -> list[str]:
        """What a person should know of rows, in a model's columns, and of the numbers predicted for them."""
        known = [(j, name) for j, name in enumerate(columns) if name in self.columns]
        chance = _CHANCE / max(len(known), 1)
        found = [line for j, name in known for line in outside(name, self.columns[name], rows[:, j], chance)]
        if len(found) > _LISTED:
            found[_LISTED:] = [f"{len(found) - _LISTED} more such notes on columns"]
        if predicted is None or (r := self.outcome) is None:
            return found
        distance = np.abs(r.half_widths(predicted, r.low, r.high))
        if many := int((distance > _FAR).sum()):
            furthest = in_words(predicted[distance.argmax()])
            said = f"{many} of {len(predicted)} predictions lie far outside of the outcomes of training ({r})"
            found.append(f"{said}; the furthest is {furthest}")
        return found

    def card(self) -> str:
        """The line of a model's card."""
        if self.none:
            return f"- The ranges of its training rows are not in the file: {self.none}."
        parts = [f"{in_markdown(name)} {r}" for name, r in self.columns.items()]
        parts += [f"the outcome {self.outcome}"] if self.outcome else []
        return f"- Most of its training rows lie between (quantiles, under `ranges`): {'; '.join(parts)}."


def quantiles(values: np.ndarray) -> QuantileRange | None:
    """None of a few values, or of values that do not differ."""
    if len(values) < _LEAST:
        return None
    share = max(_SHARE, _BEYOND / len(values))
    low, high = map(float, np.quantile(values, [share, 1 - share]))
    return QuantileRange(low, high, len(values)) if low < high else None


def outside(name: str, r: QuantileRange, values: np.ndarray, chance: float = _CHANCE) -> Iterator[str]:
    """A note for each side on which values lie far away, or more of them than chance puts there."""
    values = values[~np.isnan(values)]
    n, away = len(values), r.away(values)
    low = ("below", r.share, r.low, "smallest", r.low - values, -away)
    high = ("above", 1 - r.share, r.high, "largest", values - r.high, away)
    # the quantile is of finitely many rows itself: how many new rows lie beyond it is beta-binomial
    beyond, within = r.rows * r.share + 1, r.rows * (1 - r.share) + 1
    for where, share, bound, furthest, distance, side in (low, high):
        if not (many := int((distance > _SLACK * (r.high - r.low)).sum())):
            continue
        quantile = f"the {100 * share:.3g} % quantile of training ({in_words(bound)})"
        value = in_words(values[distance.argmax()])
        k = np.arange(many, n + 1)
        logs = special.betaln(k + beyond, n - k + within) - special.betaln(1 + k, 1 + n - k)
        by_chance = np.exp(logs - special.betaln(beyond, within) - np.log1p(n)).sum()
        apart, far = int((side > _AWAY).sum()), int((side > _FAR).sum())
        if by_chance < chance or (apart and special.bdtrc(apart - 1, n, _SHARE) < chance):
            yield f"column {name!r}: {many} of {n} rows lie {where} {quantile}; the {furthest} is {value}"
        elif far == 1:
            yield f"column {name!r}: 1 of {n} rows lies far {where} {quantile}: {value}"
        elif far:
            yield f"column {name!r}: {far} of {n} rows lie far {where} {quantile}; the {furthest} is {value}"


def in_words(value: float) -> str:
    """
    >>> in_words(78.96), in_words(5000.0), in_words(0.00123456)
    ('78.96', '5,000', '0.001235')
    """
    return f"{value:,.4g}"
