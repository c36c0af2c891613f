"""A FLARE job: two classes of FLARE's, two of motet's, all of them installed at every party; no code is sent.

Knows the form of a job's folder. Does not know who submits it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from motet.deploy.flare.authority import LIST
from motet.deploy.flare.kits import CONTROLLER, EXECUTOR, SERVER_JOB, SITE_JOB, Kit, write

_SYNC = 60  # seconds in which all sites of a job must have said that they are there


def write_job(
    folder: Path,
    name: str,
    sites: Sequence[str],
    server: Mapping[str, Any],
    site: Mapping[str, Any],
    classes: tuple[str, str] = (SERVER_JOB, SITE_JOB),
) -> Path:
    """A job's folder; `server` and `site` are what the two classes of motet's are made with."""
    lead, host = classes
    meta = {
        "name": name,
        "resource_spec": {},
        "min_clients": len(sites),
        "mandatory_clients": list(sites),
        "deploy_map": {"server": ["server"], "site": list(sites)},
    }
    controller = {"server_obj_id": "lead", "sync_task_timeout": _SYNC}
    at_server = {
        "format_version": 2,
        "workflows": [{"id": "controller", "path": CONTROLLER, "args": controller}],
        "components": [{"id": "lead", "path": lead, "args": dict(server)}],
    }
    executor = {"path": EXECUTOR, "args": {"client_obj_id": "host"}}
    at_site = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": executor}],
        "components": [{"id": "host", "path": host, "args": dict(site)}],
    }
    write(folder / "meta.json", meta)
    write(folder / "server" / "config" / "config_fed_server.json", at_server)
    write(folder / "site" / "config" / "config_fed_client.json", at_site)
    return folder


def site_settings(kit: Kit) -> dict[str, str]:
    """What a site learns from the server as a job starts: its version, and the newest list of revoked certificates."""
    return {"version": version("motet"), "revoked": (kit.startup / LIST).read_text()}
