"""A site's configuration: its data, its policy and its key, all of which stay in or beside its kit.

`motet federation join` writes down where the data are; every job makes the site's service from that.
Knows a kit's files. Does not know FLARE.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from motet.deploy.agreement.layout import Split
from motet.deploy.flare.kits import FederationError, Kit, open_kit, write
from motet.deploy.site.policy import Policy
from motet.deploy.site.service import SiteService
from motet.deploy.site.storage import site_key
from motet.deploy.site.table import SiteTable, TableReading

_DATA = "data.json"
POLICY = "policy.toml"
KEPT = "kept"  # the folder of what the site stores


def write_source(kit: Kit, source: SiteTable) -> None:
    """Which table this site learns from; only the site's own processes read it."""
    write(kit.folder / _DATA, asdict(source) | {"path": str(Path(source.path).expanduser().resolve())})


def has_source(kit: Kit) -> bool:
    return (kit.folder / _DATA).is_file()


def read_source(kit: Kit) -> SiteTable:
    file = kit.folder / _DATA
    if not has_source(kit):
        raise FederationError(
            f"{kit.party} has not said where its data are\nhint: motet federation join {kit.folder} --data …"
        )
    try:
        given = json.loads(file.read_text())
        split, more = Split(*given.get("split", ())), TableReading.of(given.get("more", {}))
        return SiteTable(
            **given
            | {"path": Path(given["path"]), "drop": tuple(given["drop"]), "split": split, "more": more}
        )
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        raise FederationError(
            f"{file} cannot be read: {e}\nhint: motet federation join {kit.folder} --data … writes it anew"
        ) from e


def read_policy(kit: Kit) -> Policy:
    """What the site's owner lets leave; the default policy where the kit has no file for it."""
    file = kit.folder / POLICY
    return Policy.read(file) if file.is_file() else Policy()


def open_service(folder: Path) -> SiteService:
    kit = open_kit(folder, "site")
    key = site_key(kit.folder / "key")
    return SiteService(kit.party, kit.folder / KEPT, read_source(kit), read_policy(kit), key)
