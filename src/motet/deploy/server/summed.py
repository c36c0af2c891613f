"""Whose replies were to be summed in each masked ask of a run, on the disk before the sum is unmasked.

Sites let the same replies be summed once, or again with exactly the same others: two different sums would show what
they differ by. A server that was killed asks again, so it must remember whom it asked to unmask, and with what
largest weight.
Knows labels and names. Does not know replies.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from motet.engines.flare import Summed
from motet.engines.letters import Label

FILE = "summed.jsonl"


class SummedSites(dict[Label, Summed]):
    """The list of one run; a line is on the disk when it was set."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / FILE
        content = self.path.read_bytes() if self.path.exists() else b""
        for raw in content.split(b"\n"):
            try:
                number, ask, names, unit = json.loads(raw)
            except ValueError:  # the last line may be cut off by a crash: then nothing was unmasked
                continue
            super().__setitem__((number, ask), (names, unit))
        self.whole = not content or content.endswith(b"\n")

    def __setitem__(self, label: Label, summed: Summed) -> None:
        if self.get(label) == summed:
            return
        with self.path.open("ab") as file:
            file.write((b"" if self.whole else b"\n") + json.dumps([*label, *summed]).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.whole = True
        super().__setitem__(label, summed)
