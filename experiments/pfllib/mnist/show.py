"""Accuracy over all test images beside PFLlib's own code, seed by seed.

pfllib.json has what PFLlib prints as "Averaged Test Accuracy" when the last round begins; README.md says how it
was run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from motet.runs.run import Run
from motet.text import aligned

PFLLIB = json.loads((Path(__file__).parent / "pfllib.json").read_text())


def show(done: list[Any], table: dict[str, Any], out: Path) -> list[str]:
    rows = [("method", "seed", "motet", "PFLlib", "difference")]
    for one in (d for d in done if not d.failure):
        row, seed = one.planned.row, str(one.planned.seed)
        mine, theirs = of_images(one.folder), PFLLIB.get(row, {}).get(seed)
        if theirs is not None:
            rows.append((row, seed, f"{mine:.2f}", f"{theirs:.2f}", f"{mine - theirs:+.2f}"))
    return ["accuracy over all test images, in percent", *aligned(rows, right=[1, 2, 3, 4])]


def of_images(folder: Path) -> float:
    """Right predictions of clients' own models, of all test images."""
    test = Run(folder).test.query("side == 'personal'")
    return 100 * float((test["accuracy"] * test["n"]).sum() / test["n"].sum())
