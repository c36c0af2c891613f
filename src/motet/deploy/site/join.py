"""Before a site joins: where its data are is written down, and what would leave is shown.

Knows a site's kit and table. Does not know FLARE.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from motet.deploy.flare.kits import FederationError, Kit, open_kit


def prepare(given: Any, say: Callable[[str], None]) -> Kit:
    """The kit, ready to join with; `given` are the words of the command line."""
    kit = open_kit(given.kit, "site")
    if (
        not (given.data or given.policy or given.dry_run or given.new_split)
        and (kit.folder / "data.json").exists()
    ):
        return kit  # nothing changed since it was last shown
    from motet.deploy.agreement.layout import Split
    from motet.deploy.site.config import KEPT, POLICY, write_source
    from motet.deploy.site.policy import Policy
    from motet.deploy.site.split import begin_anew
    from motet.deploy.site.table import SiteTable

    if given.policy:
        Policy.read(Path(given.policy))  # one that cannot be read does not replace the one before
        shutil.copyfile(given.policy, kit.folder / POLICY)
    if given.data:
        if not given.target:
            raise FederationError("--data was given, and --target was not\nhint: --target COLUMN")
        drop, split = tuple(given.drop), Split(given.val, given.test, given.seed, given.scale)
        if not split.fine:
            raise FederationError(
                f"the split {split} leaves no rows for training\nhint: --val 0.15 --test 0.25"
            )
        how = (drop, given.missing, given.kind, split)
        write_source(kit, SiteTable(kit.party, Path(given.data), given.target, *how))
    if given.new_split and not given.dry_run:
        begin_anew(kit.folder / KEPT)
    show(given, kit, print if given.dry_run else say)
    return kit


def show(given: Any, kit: Kit, say: Callable[[str], None]) -> None:
    """What would leave this site, verb by verb."""
    from motet.deploy.site.config import read_policy, read_source
    from motet.deploy.site.dry_run import dry_run, dry_text
    from motet.runs.recipe import read

    recipe = read(given.recipe, [f"method={given.method}"] if given.method else [])
    report = dry_run(read_source(kit), read_policy(kit), recipe)
    say(json.dumps(asdict(report)) if given.json else dry_text(report) + "\n")
