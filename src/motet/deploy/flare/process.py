"""Starting a party's FLARE process: the server, or a site.

The process that calls this becomes FLARE's, so that whoever started it (a person, systemd) has one process to
watch and to end. Knows FLARE's command lines. Does not import FLARE.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from motet.deploy.flare.kits import Kit, write_paths


def command(kit: Kit) -> list[str]:
    """What runs this party."""
    module, file, who = (
        ("server.server_train", "fed_server.json", ["org=server"])
        if kit.is_server
        else ("client.client_train", "fed_client.json", [f"uid={kit.party}", f"org={kit.party}"])
    )
    flare = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{module}"]
    place = ["-m", str(kit.folder), "-s", file]
    return [*flare, *place, "--set", "secure_train=true", "config_folder=config", *who]


def become(kit: Kit) -> NoReturn:
    """Go on as this party's FLARE process."""
    if kit.is_server:
        write_paths(kit)
    words = command(kit)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(words[0], words)
