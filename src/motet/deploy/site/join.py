"""Before a site joins: where its data are is written down, and what would leave is shown.

A dry run shows the same and changes nothing: neither the policy nor anything else of a site that may be running.
Knows a site's kit and table. Does not know FLARE.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.atomic import write_atomically
from motet.deploy.flare.kits import FederationError, Kit, open_kit

if TYPE_CHECKING:
    from motet.deploy.site.dry_run import DryRunReport
    from motet.deploy.site.policy import Policy
    from motet.deploy.site.split import TableSplit
    from motet.deploy.site.table import SiteTable
    from motet.deploy.site.table_reading import TableReading


def prepare(given: Any, say: Callable[[str], None]) -> Kit:
    """The kit, ready to join with; `given` are the words of the command line."""
    kit = open_kit(given.kit, "site")
    changes = given.data or given.policy or given.new_split or split_words(given)
    from motet.deploy.site.config import KEPT, POLICY, has_source, read_policy, write_source
    from motet.deploy.site.split import begin_anew

    if not changes and has_source(kit):
        read_policy(kit)  # one that is lost or damaged is said now
        return kit  # nothing changed since it was last shown
    policy, source = policy_of(given, kit), source_of(given, kit)
    if given.new_split:
        say(begin_anew(kit.folder / KEPT) or "the table's rows are divided anew with the next run")
    say(shown(given, tried(given, kit, source, policy)))
    split_of(
        kit, source, policy
    ).said()  # the owner learns now, and not the server later, if it is another one
    if given.policy:
        write_atomically(kit.folder / POLICY, Path(given.policy).read_text(), private=True)
    write_source(kit, source)
    return kit


def dry_join(given: Any) -> bool:
    """Print what would leave, and whether a run would be within the policy."""
    kit = open_kit(given.kit, "site")
    policy, source = policy_of(given, kit), source_of(given, kit)
    report = tried(given, kit, source, policy)
    if why := split_of(kit, source, policy).objection(given.new_split):
        report = replace(report, objections=[why, *report.objections])
    print(shown(given, report))
    return not report.objections


def policy_of(given: Any, kit: Kit) -> Policy:
    """The policy that the command line names, or the kit's."""
    from motet.deploy.site.config import read_policy
    from motet.deploy.site.policy import Policy

    return Policy.read(Path(given.policy)) if given.policy else read_policy(kit)


def split_of(kit: Kit, source: SiteTable, policy: Policy) -> TableSplit:
    """How the table's rows are divided, or would be; a site that has no key yet has divided none."""
    from motet.deploy.site.config import KEPT
    from motet.deploy.site.split import TableSplit
    from motet.deploy.site.storage import site_key

    key = kit.folder / "key"
    return TableSplit(kit.folder / KEPT, source, policy, site_key(key) if key.exists() else b"")


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
    if given.weight:
        raise FederationError(
            "--weight: rows cannot have weights between organisations yet: a row that counts much would show in what "
            f"leaves\nhint: leave the column out: --drop {given.weight}; every row then counts alike"
        )
    if not given.target:
        raise FederationError("--data was given, and --target was not\nhint: --target COLUMN")
    how = (tuple(given.drop), given.missing, given.kind, split)
    return SiteTable(kit.party, Path(given.data), given.target, *how, more=reading_of(given))


def reading_of(given: Any) -> TableReading:
    """What the command line says of how the table is read."""
    from motet.deploy.site.table_reading import TableReading

    words = {f.name: getattr(given, f.name) for f in fields(TableReading)}
    order = {"auto": "auto", "true": True, "false": False}[given.day_first]
    if words["missing_by"] == "federation" and given.missing in ("median", "most_frequent"):
        raise FederationError(
            f"the federation's {given.missing} is not known to anybody: sites send sums, which give means\n"
            "hint: --missing-by client, or --missing mean"
        )
    return TableReading.of(words | {"day_first": order})


def split_words(given: Any) -> dict[str, Any]:
    """What the command line says of the split; what it does not say stays as it was."""
    found = {name: getattr(given, name) for name in ("val", "test", "seed", "scale")}
    return {name: v for name, v in found.items() if v is not None}


def tried(given: Any, kit: Kit, source: SiteTable, policy: Policy) -> DryRunReport:
    """What would leave this site, verb by verb, after what left in earlier runs."""
    from motet.deploy.site.config import KEPT
    from motet.deploy.site.dry_run import dry_run
    from motet.deploy.site.ledger import Ledger
    from motet.deploy.site.policy import recipe_to_try
    from motet.deploy.site.publications import OUTBOX_FOLDER
    from motet.deploy.site.training_budget import spent

    ledger, recipe = Ledger(kit.folder / KEPT), recipe_to_try(policy, given.recipe, given.method)
    budget, outbox = spent(policy, ledger) if policy.epsilon else 0.0, kit.folder / OUTBOX_FOLDER
    return dry_run(source, policy, recipe, ledger.spent_by_others(""), budget, outbox, ledger)


def shown(given: Any, report: DryRunReport) -> str:
    from motet.deploy.site.dry_run import dry_text

    return json.dumps(asdict(report)) if given.json else dry_text(report) + "\n"
