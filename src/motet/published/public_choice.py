"""What a client chooses to publish: a family with its budget and columns, the model of its outbox, or nothing.

    PublicChoice.of("dp-linear epsilon=1 columns=age,bp")

A site's owner writes such words into its policy, a recipe into its settings. Knows words. Does not know rows, nor
how models are made.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from motet.errors import UsageError
from motet.published.manifest import Manifest
from motet.text import unknown

PRIVATE = ("dp-linear", "dp-network", "dp-boosting")  # families with a privacy budget
FAMILIES = ("forest", "boosting", "linear", *PRIVATE)
Family = Literal["forest", "boosting", "linear", "dp-linear", "dp-network", "dp-boosting"]
OUTBOX, NOTHING = "outbox", "nothing"
_STEP = 4  # each version of a private model has so many times the budget of the one before
_DEFAULTS = 0.1  # of the smallest budget: what the defaults of columns spend
_SETTINGS: dict[str, Callable[[str], Any]] = {
    "epsilon": float,
    "trees": int,
    "versions": int,
    "columns": lambda names: tuple(names.split(",")),
}


def _words(text: str) -> list[str]:
    """The words of a choice; what stands in double quotes is one word."""
    if text.count('"') % 2:
        raise UsageError(f"what is published is {text!r}; expected that every quotation mark is closed")
    reader = shlex.shlex(text, posix=True)
    reader.whitespace_split, reader.quotes, reader.escape, reader.commenters = True, '"', "", ""
    return list(reader)


@dataclass(frozen=True)
class PublicChoice:
    """A family and its settings; `epsilon` and `versions` are those of private families."""

    family: str = "forest"
    epsilon: float = 1.0
    trees: int = 100
    versions: int = 1
    columns: tuple[str, ...] = ()  # none: all that the client holds
    noise: float = 0.0  # in defaults of columns, in deviations

    @classmethod
    def of(cls, words: str, usual: PublicChoice | None = None) -> PublicChoice:
        """The choice that words say; what they do not say is as usual.

        >>> PublicChoice.of("dp-linear epsilon=0.5 columns=age,bp").columns
        ('age', 'bp')
        >>> PublicChoice.of('forest columns="age (years),bp"').columns
        ('age (years)', 'bp')
        """
        first, *rest = _words(words) or [""]
        if first == "encrypted":
            raise UsageError(
                "an encrypted model is not published: it stays with its owner, who answers encrypted rows, and a "
                "stack of a federation is scored without asking anybody\n"
                "hint: motet encrypted ask | answer | read, between two parties; or dp-linear, which is published"
            )
        if first not in (*FAMILIES, OUTBOX, NOTHING):
            raise UsageError(unknown("family to publish", first, [*FAMILIES, OUTBOX, NOTHING]))
        said: dict[str, Any] = {}
        for word in rest:
            name, _, value = word.partition("=")
            if name not in _SETTINGS:
                raise UsageError(
                    unknown("setting of what is published", name, _SETTINGS)
                    + (
                        '; names with spaces stand in quotes: columns="age (years),bp"'
                        if "columns=" in words
                        else ""
                    )
                )
            try:
                said[name] = _SETTINGS[name](value)
            except ValueError:
                raise UsageError(f"{name} of what is published is {value!r}; expected a number") from None
        return replace(usual or cls(), family=first, **said).checked()

    def checked(self) -> PublicChoice:
        if min(self.epsilon, self.trees, self.versions) <= 0:
            raise UsageError("epsilon, trees and versions of what is published are above 0")
        return self

    @property
    def is_private(self) -> bool:
        return self.family in PRIVATE

    @property
    def budgets(self) -> tuple[float, ...]:
        """The epsilon of each version, with the defaults of columns; () for families without a budget."""
        return tuple(self.epsilon * _STEP**k for k in range(self.versions)) if self.is_private else ()

    @property
    def for_defaults(self) -> float:
        """The part of every version's epsilon that the defaults spend, which all versions share."""
        return _DEFAULTS * self.epsilon

    @property
    def spent(self) -> float | None:
        """The epsilon of all that is published together; None without a budget.

        >>> round(PublicChoice("dp-linear", epsilon=1.0, versions=3).spent, 6)
        20.8
        """
        if not self.is_private:
            return None
        return sum(self.budgets) - (self.versions - 1) * self.for_defaults

    def held(self, names: Sequence[str]) -> list[str]:
        """The columns to publish of those that a client holds; a column of text stands for those made of it.

        >>> PublicChoice(columns=("sex",)).held(["age", "sex=f", "sex=m"])
        ['sex=f', 'sex=m']
        """
        by_choice = {c: [n for n in names if n == c or n.startswith(f"{c}=")] for c in self.columns}
        if lacking := [c for c, found in by_choice.items() if not found]:
            raise UsageError(unknown("column to publish", lacking[0], names))
        chosen = {n for found in by_choice.values() for n in found}
        return [n for n in names if n in chosen] if self.columns else list(names)


def in_words(manifest: Manifest) -> str:
    """What a published model is, for people.

    >>> from motet.published.manifest import Feature, Manifest
    >>> in_words(Manifest("a", "classes", (Feature("age"),), family="forest of 100 trees", size=6_300_000))
    'a forest of 100 trees on 1 column, epsilon –, 6.3 MB'
    """
    many, epsilon = len(manifest.features), manifest.privacy.epsilon
    budget = "–" if epsilon is None else rounded_up(epsilon)
    article = "an" if manifest.family[:1].lower() in "aeiou" else "a"
    columns = f"{many} column{'s' if many != 1 else ''}"
    return f"{article} {manifest.family or 'model'} on {columns}, epsilon {budget}, {size_in_words(manifest.size)}"


def rounded_up(epsilon: float) -> str:
    """A budget with two digits, never less than it is.

    >>> rounded_up(0.9981), rounded_up(10.4), rounded_up(0.5)
    ('1', '11', '0.5')
    """
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 1) if epsilon > 0 else 1.0
    return f"{math.ceil(epsilon / step - 1e-9) * step:.3g}"


def size_in_words(size: int) -> str:
    """
    >>> size_in_words(6_340_000), size_in_words(5_200), size_in_words(80)
    ('6.3 MB', '5.2 kB', '80 bytes')
    """
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1000:.1f} kB" if size < 1_000_000 else f"{size / 1e6:.1f} MB"
