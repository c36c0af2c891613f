"""Whose replies were to be summed in each masked ask of a run, on the disk before the sum is unmasked.

Sites let the same replies be summed once, or again with exactly the same others: two different sums would show what
they differ by. A server that was killed asks again, so it must remember whom it asked to unmask.
Knows labels and names. Does not know replies.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from motet.engines.letters import Label

FILE = "summed.jsonl"


class SummedSites(dict[Label, list[str]]):
    """The list of one run; a line is on the disk when it was set."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / FILE
        content = self.path.read_bytes() if self.path.exists() else b""
        for raw in content.split(b"\n"):
            try:
                number, ask, names = json.loads(raw)
            except ValueError:  # the last line may be cut off by a crash: then nothing was unmasked
                continue
            super().__setitem__((number, ask), names)
        self.whole = not content or content.endswith(b"\n")

    def __setitem__(self, label: Label, names: list[str]) -> None:
        if self.get(label) == names:
            return
        with self.path.open("ab") as file:
            file.write((b"" if self.whole else b"\n") + json.dumps([*label, names]).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.whole = True
        super().__setitem__(label, names)
