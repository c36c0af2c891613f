"""All kits of a federation made in one place, to try things out on one machine.

The keys of all parties are made here, each in its party's kit. Organisations make their own keys instead: see
key_requests.py. The steps are the same: a request, a signature, an answer that is accepted.
Knows both sides of signing. Does not know FLARE.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from motet.deploy.flare.authority import DAYS, ROOT_DAYS, Authority, found_authority, open_authority
from motet.deploy.flare.key_requests import accept, make_request
from motet.deploy.flare.kits import FederationError, check_host, check_names


def create(
    name: str, server: str, sites: Sequence[str], to: Path, port: int = 8002,
    days: int = DAYS, root_days: int = ROOT_DAYS, server_kit: bool = True,
) -> list[Path]:  # fmt: skip
    """A new authority, and kits for the server and for every site named here, whose keys this machine makes."""
    check_names([name])
    check_names(sites)
    check_host(server, sites)
    parties = ["server"] * server_kit + [*sites]
    return make_kits(found_authority(name, server, to, port, root_days), parties, days)


def add(to: Path, sites: Sequence[str], days: int = DAYS) -> list[Path]:
    """Kits for sites that have none yet, whose keys this machine makes; kits from before stay good."""
    found = open_authority(to)
    check_names(sites)
    check_host(found.plan.server, sites)
    if known := sorted(set(sites) & set(found.plan.sites)):
        raise FederationError(f"there are kits for {', '.join(known)} already\nhint: name newcomers only")
    return make_kits(found, sites, days)


def make_kits(authority: Authority, parties: Sequence[str], days: int) -> list[Path]:
    made = [authority.folder / party for party in parties]
    for party, folder in zip(parties, made, strict=True):
        accept(folder, authority.sign(make_request(party, folder).read_bytes(), days))
    return made
