"""Kits: what each party of a federation is handed, once, on a channel that it trusts.

A kit is a folder made with NVIDIA FLARE's provisioning: certificates for mutual TLS, where the server is, and
this party's rules. The rules name the only four classes that a job may be built of, and forbid code that comes
with a job. The folder `authority` holds the key that signs kits: it stays with whoever created the federation.
Knows folders, certificates and FLARE's settings. Does not know data, methods or runs.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from motet.errors import MotetError

CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
CONDUCTOR = "motet.deploy.flare.server_entry.ServerJob"
RECEPTION = "motet.deploy.flare.site_entry.SiteJob"
ALLOWED = (CONTROLLER, EXECUTOR, CONDUCTOR, RECEPTION)
OWNER = "owner@motet.deploy"  # who starts runs; FLARE wants the form of an address
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,30}")  # a FLARE site's name is also a Python attribute
_CARD = "motet.json"
LARGEST = 257 << 20  # bytes of a message that FLARE takes at all; what is larger is refused from its header
_HEARTBEAT = 30  # seconds without a sign of life after which the server forgets a site
# What the owner's role may do at a server or a site. Nobody may bring code, or look around in a shell.
_RIGHTS = {
    "submit_job": "any",
    "manage_job": "any",
    "view": "any",
    "operate": "any",
    "download_job": "none",
    "clone_job": "none",
    "shell_commands": "none",
    "byoc": "none",
}


class FederationError(MotetError):
    """Something about a federation of organisations is not as it must be; says what would be right."""


@dataclass(frozen=True)
class Kit:
    """One party's folder, opened."""

    folder: Path
    federation: str
    party: str  # "server", or a site's name
    host: str
    port: int

    @property
    def is_server(self) -> bool:
        return self.party == "server"

    @property
    def owner(self) -> Path:
        """With the server's kit comes the one that starts runs."""
        return self.folder / "owner"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"


def open_kit(folder: str | Path, role: str = "") -> Kit:
    """The kit in a folder; `role` says which one is wanted here: server or site."""
    path = Path(folder).expanduser().resolve()
    card = path / _CARD
    if not card.is_file():
        raise FederationError(
            f"{folder} is no kit: it has no {_CARD}\nhint: `motet federation create` writes one for each party"
        )
    kit = Kit(path, **json.loads(card.read_text()))
    if role and role != ("server" if kit.is_server else "site"):
        right = "serve" if kit.is_server else "join"
        raise FederationError(
            f"{folder} is the kit of {kit.party}, and a {role}'s kit is wanted\nhint: motet federation {right}"
        )
    return kit


# ---- making ----


def create(name: str, server: str, sites: Sequence[str], to: Path, port: int = 8002) -> list[Path]:
    """Kits for the server and every site; a folder that holds a federation already is left alone."""
    check(name, sites)
    if (to / "authority").exists():
        raise FederationError(
            f"{to} holds a federation already\nhint: `motet federation add {to} --sites …` makes kits for "
            "newcomers; with another --to, or after deleting it, all kits are new and old ones are refused"
        )
    (to / "authority").mkdir(parents=True, mode=0o700)
    (to / "authority" / "plan.json").write_text(
        json.dumps({"name": name, "server": server, "port": port, "sites": []})
    )
    return add(to, sites)


def add(to: Path, sites: Sequence[str]) -> list[Path]:
    """Kits for parties that have none yet, signed by the same authority: kits handed out before stay good."""
    plan_file = to / "authority" / "plan.json"
    if not plan_file.is_file():
        raise FederationError(f"{to} holds no federation\nhint: motet federation create --to {to}")
    plan = json.loads(plan_file.read_text())
    check(plan["name"], sites)
    if known := sorted(set(sites) & set(plan["sites"])):
        raise FederationError(f"there are kits for {', '.join(known)} already\nhint: name newcomers only")
    plan["sites"] += list(sites)
    made = provision(plan, to / "authority")
    parties = {"server": plan["server"]} | {s: s for s in plan["sites"]}
    new = [p for p in parties if not (to / p).exists()]
    for party in new:
        shutil.move(made / parties[party], to / party)
        fill_kit(to / party, plan, party)
    if "server" in new:
        shutil.move(made / OWNER, to / "server" / "owner")
    plan_file.write_text(json.dumps(plan))
    return [to / party for party in new]


def check(name: str, sites: Sequence[str]) -> None:
    wrong = [s for s in (name, *sites) if not _NAME.fullmatch(s) or s in ("server", "authority", "owner")]
    if wrong:
        raise FederationError(
            f"{', '.join(map(repr, wrong))} cannot be a name here; expected a letter, then letters, digits "
            "or _ (31 at most), and not server, owner or authority\nhint: --sites north,south,east"
        )
    if not sites or len(set(sites)) < len(sites):
        raise FederationError(
            f"sites are {', '.join(sites) or 'none'}; expected different names\nhint: --sites a,b,c"
        )


def provision(plan: dict[str, Any], authority: Path) -> Path:
    """Let FLARE make all kits; the authority's key and the certificates so far are reused."""
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    port = {"fed_learn_port": plan["port"], "admin_port": plan["port"]}
    server = {"name": plan["server"], "type": "server", "org": "server"} | port
    clients = [{"name": s, "type": "client", "org": s} for s in plan["sites"]]
    owner = {"name": OWNER, "type": "admin", "org": "server", "role": "project_admin"}
    project = {"api_version": 3, "name": plan["name"], "participants": [server, *clients, owner]}
    builders = [
        WorkspaceBuilder(["master_template.yml"]),
        StaticFileBuilder(config_folder="config"),
        CertBuilder(),
        SignatureBuilder(),
    ]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        done = Provisioner(str(authority), builders).provision(prepare_project(project))
    if done.get("build_error") or not done.get("current_prod_dir"):
        raise FederationError(f"FLARE could not make the kits:\n{said.getvalue().strip()}")
    return Path(done["current_prod_dir"])


# ---- furnishing ----


def fill_kit(kit: Path, plan: dict[str, Any], party: str) -> None:
    """This party's rules: which classes, what the owner may do, how much is logged, how large messages may be."""
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    resources["class_allow_list"] = list(ALLOWED)
    resources["class_list_enforcement_mode"] = "enforce"
    if party == "server":
        resources["servers"][0]["heart_beat_timeout"] = _HEARTBEAT
    else:
        resources["allow_log_streaming"] = False  # a site's log stays at the site
        resources["components"] = [c for c in resources["components"] if c["id"] != "site_log_streamer"]
    write(local / "resources.json", resources)
    rights = {"format_version": "1.0", "permissions": {"project_admin": _RIGHTS}}
    write(local / "authorization.json", rights)
    log = json.loads((local / "log_config.json.default").read_text())
    log["loggers"]["root"] = {"level": "INFO", "handlers": ["logFileHandler", "errorFileHandler"]}
    write(local / "log_config.json", log)
    ways = {"allow_adhoc_conns": False, "backbone_conn_gen": 2, "streaming_max_blob_size": LARGEST}
    write(local / "comm_config.json", ways)
    card = Kit(kit, plan["name"], party, plan["server"], plan["port"])
    write(kit / _CARD, {k: v for k, v in asdict(card).items() if k != "folder"})


def write_paths(kit: Kit) -> None:
    """Where the server keeps its jobs: in its kit, wherever that was put."""
    file = kit.folder / "local" / "resources.json"
    resources = json.loads(file.read_text())
    jobs = str(kit.folder / "jobs")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = f"{jobs}/defined"
    storage = resources["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = f"{jobs}/snapshots"
    write(file, resources)


def write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n")
