"""A site's policy: what its owner lets leave.

Knows verbs' names, sizes and rounds. Does not know what is computed, nor who asks.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from motet.engines.letters import Letter


class Refused(Exception):
    """Something that a site does not do, with the reason."""


@dataclass(frozen=True)
class Policy:
    """What may leave a site; `()` where names are listed means any that is installed."""

    methods: tuple[str, ...] = ()  # methods that may run here
    verbs: tuple[str, ...] = ()  # verbs that may run here, as `train` or `fedavg.train`
    learn: str = "average"  # average: the server sees means only | collect: it may see single replies
    reply_bytes: int = 64 << 20  # largest reply
    letter_bytes: int = 256 << 20  # largest message that is read at all
    rounds: int = 10_000  # rounds of training in all, over all runs
    scores: bool = True  # whether sums of scores (how many right, how wrong) may leave
    counts: bool = True  # whether numbers of examples may leave; if not, every site weighs the same in a mean
    trusted: tuple[str, ...] = ()  # the site's own `module:name`s that a recipe may name

    @classmethod
    def read(cls, path: Path) -> Policy:
        return cls.of(tomllib.loads(path.read_text()))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Policy:
        known = {f.name: f for f in fields(cls)}
        chosen: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known
        }
        return cls(**chosen)

    def problems(self, letter: Letter, method: str) -> list[str]:
        """Why a letter may not be answered; nothing if it may."""
        wrong = []
        if self.methods and method not in self.methods:
            wrong.append(f"this site's policy has no method {method}; it has {', '.join(self.methods)}")
        if letter.job in ("judge", "rehearsal") and not self.scores:
            wrong.append("this site's policy lets no scores leave")
        if letter.job not in ("verb", "rehearsal"):
            return wrong
        if self.verbs and not {letter.verb, f"{method}.{letter.verb}"} & set(self.verbs):
            wrong.append(f"this site's policy has no verb {letter.verb}; it has {', '.join(self.verbs)}")
        if letter.learn == "all" and self.learn != "collect":
            wrong.append(
                f"verb {letter.verb} is asked by `collect`, which shows the server this site's own reply, "
                'and this site\'s policy has learn = "average"'
            )
        return wrong
