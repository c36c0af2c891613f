"""Before a site joins: where its data are is written down, and what would leave is shown.

Knows a site's kit and table. Does not know FLARE.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.atomic import write_atomically
from motet.deploy.flare.kits import FederationError, Kit, open_kit

if TYPE_CHECKING:
    from motet.deploy.site.table import SiteTable


def prepare(given: Any, say: Callable[[str], None]) -> Kit:
    """The kit, ready to join with; `given` are the words of the command line."""
    kit = open_kit(given.kit, "site")
    changes = given.data or given.policy or given.dry_run or given.new_split or split_words(given)
    from motet.deploy.site.config import KEPT, POLICY, has_source, read_policy, write_source

    if not changes and has_source(kit):
        read_policy(kit)  # one that is lost or damaged is said now
        return kit  # nothing changed since it was last shown
    from motet.deploy.site.policy import Policy
    from motet.deploy.site.split import begin_anew

    if given.policy:
        Policy.read(Path(given.policy))  # one that cannot be read does not replace the one before
        write_atomically(kit.folder / POLICY, Path(given.policy).read_bytes(), private=True)
    source = source_of(given, kit)
    if given.new_split and not given.dry_run:
        say(begin_anew(kit.folder / KEPT) or "the table's rows are divided anew with the next run")
    show(given, kit, source, print if given.dry_run else say)
    check_split(given, kit, source, say)
    if not (given.dry_run and has_source(kit)):  # a dry run changes nothing that runs go by
        write_source(kit, source)
    return kit


def check_split(given: Any, kit: Kit, source: SiteTable, say: Callable[[str], None]) -> None:
    """Let the owner know now, and not the server later, that the table's rows were divided in another way."""
    from motet.deploy.site.config import KEPT, read_policy
    from motet.deploy.site.policy import RefusedByPolicy
    from motet.deploy.site.split import TableSplit
    from motet.deploy.site.storage import site_key

    try:
        TableSplit(kit.folder / KEPT, source, read_policy(kit), site_key(kit.folder / "key")).said()
    except RefusedByPolicy as e:
        if not given.dry_run:
            raise
        say(f"a run would be refused: {e}")


def source_of(given: Any, kit: Kit) -> SiteTable:
    """The table that the command line names, or the one before, with what is said of its split."""
    from motet.deploy.agreement.layout import Split
    from motet.deploy.site.config import has_source, read_source
    from motet.deploy.site.table import SiteTable

    try:
        before = None if given.data and not has_source(kit) else read_source(kit)
    except FederationError:
        if not given.data:
            raise
        before = None  # damaged, and said anew
    split = (before.split if before else Split())._replace(**split_words(given))
    if not split.fine:
        raise FederationError(f"the split {split} leaves no rows for training\nhint: --val 0.15 --test 0.25")
    if before and not given.data:
        return replace(before, split=split)
    if not given.target:
        raise FederationError("--data was given, and --target was not\nhint: --target COLUMN")
    how = (tuple(given.drop), given.missing, given.kind, split)
    return SiteTable(kit.party, Path(given.data), given.target, *how)


def split_words(given: Any) -> dict[str, Any]:
    """What the command line says of the split; what it does not say stays as it was."""
    found = {name: getattr(given, name) for name in ("val", "test", "seed", "scale")}
    return {name: v for name, v in found.items() if v is not None}


def show(given: Any, kit: Kit, source: SiteTable, say: Callable[[str], None]) -> None:
    """What would leave this site, verb by verb."""
    from motet.deploy.site.config import read_policy
    from motet.deploy.site.dry_run import dry_run, dry_text
    from motet.deploy.site.policy import recipe_to_try

    policy = read_policy(kit)
    report = dry_run(source, policy, recipe_to_try(policy, given.recipe, given.method))
    say(json.dumps(asdict(report)) if given.json else dry_text(report) + "\n")
