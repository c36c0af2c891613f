"""A site's ledger: what left it, line by line, for its owner to read and for its policy to count.

A line is written before the reply leaves, so that nothing leaves unwritten; after a crash a line may stand
for a reply that never left. Tab-separated: time, run, round, ask, job, verb, learn, bytes.
Knows lines. Does not know what was in a reply.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from motet.engines.letters import Letter

_LEARN = {"mean": "average", "all": "collect"}


class Ledger:
    """Written to its end only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []
        self.rounds = {(w[1], w[2]) for w in lines if len(w) == 8 and w[4] == "verb"}

    def room(self, letter: Letter, limit: int) -> bool:
        """Whether a letter belongs to a round that is counted already, or there is room for one more."""
        return (letter.run, str(letter.round)) in self.rounds or len(self.rounds) < limit

    def write(self, letter: Letter, size: int) -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        run = letter.run.replace("\t", " ").replace("\n", " ")
        words = (when, run, letter.round, letter.number, letter.job, letter.verb, _LEARN[letter.learn], size)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write("\t".join(map(str, words)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if letter.job == "verb":
            self.rounds.add((run, str(letter.round)))
