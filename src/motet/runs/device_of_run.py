"""On which device a run was made, where it goes on or is run again on another one.

The kind of device (cpu, cuda, mps) is part of what a run is: results of two kinds differ by rounding. Two devices of
one kind may differ by rounding too, but a run may go on from one to the other, and its events say so.
Knows facts of runs and devices by name. Does not run anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from motet.engines.device_names import full_name, how_many
from motet.errors import RunError
from motet.runs.recipe import Recipe


def other_device(device: str, facts: Mapping[str, Any]) -> str:
    """Where a run goes on, if that is another device of the same kind than the one where it began."""
    before, now = facts.get("device", "cpu"), full_name(device)
    return "" if before == now else f" on {now}; it began on {before}, and rounding may differ"


def check_device(folder: Path, facts: Mapping[str, Any]) -> None:
    """Refuse to verify a run on a machine that lacks its kind of device: bits of another kind differ."""
    kind = Recipe(facts["settings"]).device_kind
    if kind == "cpu" or how_many(kind):
        return
    raise RunError(
        f"{folder} was run on {facts.get('device', kind)}, and this machine has no {kind}. On another kind of device "
        "results differ by rounding, so that bits cannot be compared.\n"
        f"hint: verify it on such a machine; or run it here, motet run {folder}/recipe.toml engine.device=cpu "
        "--out OTHER, and compare the scores"
    )
