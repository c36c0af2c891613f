"""A site's policy: what its owner lets leave, read from a TOML file at the site.

    methods = ["fedavg", "fedper"]  # without this line: any that is installed
    learn = "average"
    reply_bytes = 2_000_000
    rounds = 200

Knows names, sizes and rounds. Does not know what is computed, nor who asks.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from motet.core import Count
from motet.engines.letters import Letter
from motet.errors import MotetError
from motet.settings import fields_of
from motet.text import unknown

Names = tuple[str, ...]


class RefusedByPolicy(MotetError):
    """Something that a site does not do, with the reason."""


class PolicyError(MotetError, ValueError):
    """A policy that cannot be read; all that is wrong with it at once."""


@dataclass(frozen=True)
class Need:
    """One thing that leaves a site: to which ask, how much the server learns, what it is."""

    verb: str
    learn: str  # average, collect, or "sums of scores"
    leaves: tuple[tuple[str, str, tuple[int, ...]], ...] = ()  # (name, type, shape) of all that leaves
    up: int = 0  # bytes of one reply; the largest that was seen
    down: int = 0  # bytes of what is sent to the site
    seen: bool = True  # in the rehearsal; if not, only the method's text says so


@dataclass(frozen=True)
class Policy:
    """What may leave a site; where names are listed, no names mean any that is installed."""

    methods: Names = ()  # methods that may run here
    verbs: Names = ()  # verbs that may run here, as train or fedavg.train
    learn: Literal["average", "collect"] = "average"  # may the server see single replies (collect), or means
    reply_bytes: Count = 64 << 20  # largest reply
    letter_bytes: Count = 256 << 20  # largest message that is read at all
    rounds: Count = 10_000  # rounds of training in all, over all runs
    scores: bool = True  # may sums of scores leave: how many right, how wrong, of how many
    counts: bool = True  # may numbers of rows leave; if not, every site weighs the same in a mean
    sums: bool = True  # may sums of columns leave, from which a federation's means and spreads are made
    trusted: Names = ()  # the site's own module:name that a recipe may name

    @classmethod
    def read(cls, path: Path) -> Policy:
        try:
            return cls.of(tomllib.loads(path.read_text()))
        except tomllib.TOMLDecodeError as e:
            raise PolicyError(f"{path} is not valid TOML: {e}") from e
        except FileNotFoundError:
            raise PolicyError(
                f"there is no policy {path}\nhint: an empty file is the default policy"
            ) from None
        except PolicyError as e:
            raise PolicyError(f"{path}: {e}") from None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Policy:
        known, wrong, chosen = fields_of(cls), [], dict[str, Any]()
        for name, value in values.items():
            if name not in known:
                wrong.append(unknown("setting of a policy", name, known))
                continue
            good, problem = known[name].check(value)
            chosen[name] = tuple(good) if isinstance(good, list) else good
            if problem:
                wrong.append(f"{name} {problem}")
        if wrong:
            raise PolicyError("\n".join(wrong))
        return cls(**chosen)

    def problems(self, letter: Letter, method: str) -> list[str]:
        """Why a letter may not be answered; nothing if it may."""
        wrong = self._of_method(method)
        if letter.job in ("evaluate", "evaluate_trained") and not self.scores:
            wrong.append("this site's policy lets no scores leave (scores = false)")
        if letter.job in ("verb", "evaluate_trained"):
            wrong += self._of_verb(method, letter.verb, "collect" if letter.learn == "all" else "average")
        return wrong

    def objections(self, method: str, needs: Sequence[Need], rounds: int, spent: int) -> list[str]:
        """Why a whole run may not begin; nothing if it may."""
        wrong = self._of_method(method)
        for need in needs:
            if need.verb != "evaluate":
                wrong += self._of_verb(method, need.verb, need.learn)
            if need.up > self.reply_bytes:
                wrong.append(self.too_large(need.verb, need.up))
        if spent + rounds > self.rounds:
            before = f" after {spent} of earlier runs" if spent else ""
            wrong.append(
                f"the run has {rounds} rounds{before}, and this site's policy has rounds = {self.rounds}"
            )
        return wrong

    def too_large(self, what: str, size: int) -> str:
        most = f"{self.reply_bytes:,}"
        return f"the reply to {what} has {size:,} bytes, and this site's policy has reply_bytes = {most}"

    def _of_method(self, method: str) -> list[str]:
        if not self.methods or method in self.methods:
            return []
        return [f"this site's policy has methods = {list(self.methods)}, and {method} is none of them"]

    def _of_verb(self, method: str, verb: str, learn: str) -> list[str]:
        wrong = []
        if self.verbs and not {verb, f"{method}.{verb}"} & set(self.verbs):
            wrong.append(f"this site's policy has verbs = {list(self.verbs)}, and {verb} is none of them")
        if learn == "collect" and self.learn != "collect":
            wrong.append(
                f"{method} asks for {verb} by `collect`, which shows the server this site's own reply, "
                'and this site\'s policy has learn = "average"'
            )
        return wrong
