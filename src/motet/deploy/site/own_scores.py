"""The scores of this site's own models, for its owner: they stay here, also where only sums of them leave.

Knows a file. Does not know letters, nor what leaves.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from motet.core import Tree
from motet.text import aligned

FOLDER = "scores"  # in the folder of what the site stores


def write_scores(kept: Path, run: str, round: int, part: str, scores: Tree) -> None:
    """Add the scores of one evaluation, by side; scores after training come by part."""
    (folder := kept / FOLDER).mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = b""
    for side, found in scores.items():
        numbers = {k: float(v) for k, v in found.items() if math.isfinite(float(v))}
        where = {"part": part, "side": side} if part else {"part": side, "side": "after_training"}
        lines += json.dumps({"round": round, **where, "scores": numbers}).encode() + b"\n"
    opened = os.open(folder / f"{quote(run, safe='')}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(opened, lines)
    finally:
        os.close(opened)


def read_scores(kept: Path, run: str) -> list[dict[str, Any]]:
    """The scores of a run, each once: the last line counts, and one that was cut off does not."""
    path = kept / FOLDER / f"{quote(run, safe='')}.jsonl"
    found: dict[tuple[int, str, str], dict[str, Any]] = {}
    for raw in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            line = json.loads(raw)
            found[line["round"], line["part"], line["side"]] = line
        except (ValueError, LookupError, TypeError):
            continue
    return [found[k] for k in sorted(found)]


def scored_runs(kept: Path) -> list[str]:
    """Runs of which there are scores, the one that was scored last at the end."""
    files = sorted((kept / FOLDER).glob("*.jsonl"), key=lambda p: p.stat().st_mtime)
    return [unquote(p.stem) for p in files]


def scores_text(run: str, rows: list[dict[str, Any]]) -> str:
    """A table for the owner: test rows, and validation rows of the last round that has some."""
    val = max((r["round"] for r in rows if r["part"] == "val"), default=-1)
    shown = [r for r in rows if r["part"] == "test" or r["round"] == val]
    names = sorted({k for r in shown for k in r["scores"]} - {"n", "pairs"})
    head = ("round", "rows", "model", "n", *names)
    lines = [
        (str(r["round"] + 1), r["part"], r["side"], *(_cell(r["scores"], k) for k in ("n", *names)))
        for r in shown
    ]
    table = aligned([head, *lines], right=[0, *range(3, len(head))])
    return "\n".join([f"scores of {run} at this site", *table])


def _cell(scores: Mapping[str, float], name: str) -> str:
    return f"{scores[name]:.4g}" if name in scores else "–"
