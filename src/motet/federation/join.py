"""Before a site joins: where its data are is written down, and what would leave is shown.

Knows a site's kit and table. Does not know FLARE.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from motet.federation.kits import FederationError, Kit, open_kit
from motet.federation.site import POLICY, read_policy, read_source, write_source
from motet.federation.source import Source


def prepare(told: Any, say: Callable[[str], None]) -> Kit:
    """The kit, ready to join with; `told` is what the command line said."""
    kit = open_kit(told.kit, "site")
    if told.policy:
        shutil.copyfile(told.policy, kit.folder / POLICY)
    if told.data:
        if not told.target:
            raise FederationError(
                "--data was given, and --target was not\nhint: --target COLUMN, what is predicted"
            )
        drop = tuple(told.drop)
        write_source(kit, Source(kit.party, Path(told.data), told.target, drop, told.missing, told.kind))
    source = read_source(kit)
    source.describe(counts=False)  # a table that cannot be read is refused here, before anybody waits for it
    say(leaving(source, kit, told.method))
    return kit


def leaving(source: Source, kit: Kit, method: str) -> str:
    """What would leave this site, verb by verb."""
    try:
        from motet.federation.dry_run import dry_run, dry_text
    except ImportError:
        return ""
    return dry_text(dry_run(source, read_policy(kit), method))
