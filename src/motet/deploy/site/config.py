"""A site's configuration: its data, its policy and its key, all of which stay in or beside its kit.

`motet federation join` writes down where the data are; every job makes the site's service from that.
Knows a kit's files. Does not know FLARE.
"""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import msgspec

from motet.atomic import write_atomically
from motet.client.losses import Kind
from motet.data.table_settings import Missing
from motet.deploy.agreement.layout import Split
from motet.deploy.flare.kits import FederationError, Kit, open_kit, write
from motet.deploy.site.policy import Policy, PolicyError
from motet.deploy.site.service import SiteService
from motet.deploy.site.site_identity import certified_identity
from motet.deploy.site.storage import site_key
from motet.deploy.site.table import SiteTable
from motet.deploy.site.table_reading import TableReading

_DATA = "data.json"
POLICY = "policy.toml"
_DEFAULT = """\
# What may leave this site. What is not here is as by default, which a dry run shows.
masks = "required"  # what is averaged leaves masked; two sites cannot mask, and write "allowed"
scores = "masked"   # scores leave in masked sums alone: the server learns their mean; true: this site's own leave
counts = "masked"   # so do numbers of rows; true: this site's own leave
sums = "masked"     # and sums of columns; true: this site's own leave
"""
KEPT = "kept"  # the folder of what the site stores


def write_source(kit: Kit, source: SiteTable) -> None:
    """Which table this site learns from; only the site's own processes read it. A site that joined has a policy, so
    that one which is lost later is noticed."""
    if not os.path.lexists(kit.folder / POLICY):
        write_atomically(kit.folder / POLICY, _DEFAULT, private=True)
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
        split = msgspec.convert(given.get("split", ()), Split)
        more, drop = TableReading.of(given.get("more", {})), tuple(given["drop"])
        source = SiteTable(
            **given | {"path": Path(given["path"]), "drop": drop, "split": split, "more": more}
        )
        check_source(source)
        return source
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        raise FederationError(
            f"{file} cannot be read: {e}\nhint: motet federation join {kit.folder} --data … writes it anew"
        ) from e


def check_source(source: SiteTable) -> None:
    """Refuse what `motet federation join` would not have written."""
    if not source.split.fine:
        raise ValueError(f"the split {source.split} leaves no rows for training")
    if source.missing not in get_args(Missing):
        raise ValueError(f"missing is {source.missing!r}, and must be one of {', '.join(get_args(Missing))}")
    if source.kind not in ("auto", *get_args(Kind)):
        raise ValueError(f"kind is {source.kind!r}, and must be auto, classes or numbers")
    texts = (source.site, source.target, *source.drop)
    if not all(isinstance(v, str) for v in texts) or type(source.least_category) is not int:
        raise ValueError("names of columns must be text")


def read_policy(kit: Kit) -> Policy:
    """What the site's owner lets leave; before the site has joined what it will join with, and never later."""
    file = kit.folder / POLICY
    if os.path.lexists(file):
        return Policy.read(file)
    if has_source(kit):
        raise PolicyError(
            f"this site's policy {file} is missing: nobody knows what its owner lets leave.\n"
            f"hint: restore it, or write one anew: motet federation join {kit.folder} --policy FILE; "
            "an empty file is the default policy"
        )
    return Policy.of(tomllib.loads(_DEFAULT))


def open_service(folder: Path) -> SiteService:
    kit = open_kit(folder, "site")
    key = site_key(kit.folder / "key")
    identity = certified_identity(kit.startup)
    return SiteService(kit.party, kit.folder / KEPT, read_source(kit), read_policy(kit), key, identity)
