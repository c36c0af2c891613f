"""Kits: one party's folder, with what NVIDIA FLARE needs to run it.

A kit holds the party's key and certificate for mutual TLS, where the server is, and this party's rules. The rules
name the only four classes that a job may be built of, and forbid code that comes with a job. They are those of the
motet that is installed where the kit is used: nobody else's. Only the kit's owner may read it.
Knows folders and FLARE's settings. Does not know who signs certificates, nor data, methods or runs.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from motet.atomic import write_atomically
from motet.errors import MotetError, need

CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
SERVER_JOB = "motet.deploy.flare.server_entry.ServerJob"
SITE_JOB = "motet.deploy.flare.site_entry.SiteJob"
ALLOWED = (CONTROLLER, EXECUTOR, SERVER_JOB, SITE_JOB)
OWNER = "owner@motet.federation"  # who starts runs; FLARE wants the form of an address
ROLE = "project_admin"
REQUESTED = "requested"  # in a kit: a key whose certificate is not signed yet, and the request
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,30}")  # a FLARE site's name is also a Python attribute
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")  # a name in a certificate has 64 letters at most
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

    @property
    def startup(self) -> Path:
        """Where FLARE looks for certificates."""
        return self.folder / "startup"


def open_kit(folder: str | Path, role: str = "") -> Kit:
    """The kit in a folder; `role` says which one is wanted here: server or site."""
    path = Path(folder).expanduser().resolve()
    card = path / _CARD
    if not card.is_file():
        raise FederationError(f"{folder} is no kit: it has no {_CARD}\n{_hint_without_card(path)}")
    kit = Kit(path, **json.loads(card.read_text()))
    if role and role != ("server" if kit.is_server else "site"):
        right = "serve" if kit.is_server else "join"
        raise FederationError(
            f"{folder} is the kit of {kit.party}, and a {role}'s kit is wanted\nhint: motet federation {right}"
        )
    return kit


def _hint_without_card(path: Path) -> str:
    if (path / REQUESTED).is_dir():
        return f"hint: its request waits to be signed; then: motet federation accept {path} NAME.signed"
    return "hint: `motet federation request` and `accept` make one; `create` makes all of a demonstration"


def key_places(party: str) -> dict[str, tuple[str, str]]:
    """The key pairs of a party: whose, in which folder of the kit, and the name of its files."""
    if party == "server":
        return {"server": ("startup", "server"), "owner": ("owner/startup", "client")}
    return {party: ("startup", "client")}


def check_names(names: Sequence[str]) -> None:
    # a stack calls a client's own model "private"
    wrong = [s for s in names if not _NAME.fullmatch(s) or s in ("server", "authority", "owner", "private")]
    if wrong:
        raise FederationError(
            f"{', '.join(map(repr, wrong))} cannot be a name here; expected a letter, then letters, digits "
            "or _ (31 at most), and not server, owner, authority or private\nhint: --sites north,south,east"
        )
    if len(set(names)) < len(names):
        raise FederationError(f"names are {', '.join(names)}; expected different names\nhint: --sites a,b,c")


def check_host(host: str, names: Sequence[str], port: int = 1) -> None:
    if not _HOST.fullmatch(host) or host in names or not 1 <= port <= 65535:
        raise FederationError(
            f"{host!r}, port {port}, cannot be the server's address here; expected a host's name of letters, digits, "
            "dots and hyphens (64 at most) that is no site's name, because a site of this name would have the "
            "server's certificate\nhint: --server HOST"
        )


# ---- making ----


@contextlib.contextmanager
def empty_kits(name: str, host: str, port: int, sites: Sequence[str]) -> Iterator[dict[str, Path]]:
    """Folders as FLARE makes them for a server and sites, by party, without any key; gone after the block."""
    need("a kit of a federation", "flare", "nvflare")
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    server = {"name": host, "type": "server", "org": "server", "fed_learn_port": port, "admin_port": port}
    clients = [{"name": s, "type": "client", "org": s} for s in sites]
    owner = {"name": OWNER, "type": "admin", "org": "server", "role": ROLE}
    project = {"api_version": 3, "name": name, "participants": [server, *clients, owner]}
    builders = [WorkspaceBuilder(["master_template.yml"]), StaticFileBuilder(config_folder="config")]
    with tempfile.TemporaryDirectory() as scratch:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            done = Provisioner(scratch, builders).provision(prepare_project(project))
        if done.get("build_error") or not done.get("current_prod_dir"):
            raise FederationError(f"FLARE could not make the kits:\n{said.getvalue().strip()}")
        made = Path(done["current_prod_dir"])
        shutil.move(made / OWNER, made / host / "owner")
        yield {"server": made / host} | {s: made / s for s in sites}


def fill_kit(kit: Kit, made: Path) -> None:
    """Put what FLARE made into a kit's folder, with this party's rules and without FLARE's own ways to start it."""
    for file in [*made.rglob("*.sh"), *made.rglob("*.ipynb"), *made.rglob("readme.txt")]:
        file.unlink()
    shutil.copytree(made, kit.folder, dirs_exist_ok=True)
    write(kit.folder / _CARD, {k: v for k, v in asdict(kit).items() if k != "folder"})
    write_rules(kit)
    make_private(kit.folder)


def write_rules(kit: Kit) -> None:
    """Which classes, what the owner may do, how much is logged, how large messages may be; where jobs are kept."""
    local = kit.folder / "local"
    write(
        local / "resources.json", resources(kit, json.loads((local / "resources.json.default").read_text()))
    )
    rights = {"format_version": "1.0", "permissions": {ROLE: _RIGHTS}}
    write(local / "authorization.json", rights)
    log = json.loads((local / "log_config.json.default").read_text())
    log["loggers"]["root"] = {"level": "INFO", "handlers": ["logFileHandler", "errorFileHandler"]}
    write(local / "log_config.json", log)
    ways = {"allow_adhoc_conns": False, "backbone_conn_gen": 2, "streaming_max_blob_size": LARGEST}
    # Between a party's own processes: without a certificate of this party nobody on its machine gets through.
    inside = {"host": "localhost", "connection_security": "mtls"}
    write(local / "comm_config.json", ways | {"internal": {"scheme": "tcp", "resources": inside}})


def resources(kit: Kit, usual: dict[str, Any]) -> dict[str, Any]:
    usual["class_allow_list"] = list(ALLOWED)
    usual["class_list_enforcement_mode"] = "enforce"
    if not kit.is_server:
        usual["allow_log_streaming"] = False  # a site's log stays at the site
        usual["components"] = [c for c in usual["components"] if c["id"] != "site_log_streamer"]
        return usual
    usual["servers"][0]["heart_beat_timeout"] = _HEARTBEAT
    jobs = str(kit.folder / "jobs")  # in the kit, wherever that was put
    for component in usual["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = f"{jobs}/defined"
    usual["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = f"{jobs}/snapshots"
    return usual


# ---- files ----


def write(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(file, json.dumps(content, indent=2) + "\n", private=True)


def make_private(folder: Path) -> None:
    """For the owner alone: folders 0700, files 0600."""
    folder.chmod(0o700)
    for path, folders, files in os.walk(folder):
        for name in folders:
            _restrict(Path(path) / name, 0o700)
        for name in files:
            _restrict(Path(path) / name, 0o600)


def _restrict(path: Path, mode: int) -> None:
    """Links are left alone, and what vanishes meanwhile, say a file of a job that ends."""
    with contextlib.suppress(FileNotFoundError):
        if not path.is_symlink():
            path.chmod(mode)
