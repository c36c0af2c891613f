"""Starting a party's FLARE process: the server, or a site.

The process that calls this becomes FLARE's, so that whoever started it (a person, systemd) has one process to
watch and to end. It and its children make files for their owner alone. Everybody on the machine sees command lines:
they name the kit, the job and a port of this machine, which answers nobody without this party's certificate. FLARE
2.9 offers no other way for these; it hands tokens and their signatures over in the environment, which only the owner
reads. The token of the server's job is the job's number; its signature is not to be seen.
Knows FLARE's command lines. Does not import FLARE.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from motet.deploy.flare.credentials import Unreachable, check_kit, check_server
from motet.deploy.flare.kits import Kit, make_private, write_rules
from motet.errors import need
from motet.trusted_code import own_command


def command(kit: Kit) -> list[str]:
    """What runs this party."""
    role, file, who = (
        ("server", "fed_server.json", ["org=server"])
        if kit.is_server
        else ("site", "fed_client.json", [f"uid={kit.party}", f"org={kit.party}"])
    )
    flare = ["-m", str(kit.folder), "-s", file, "--set", "secure_train=true", "config_folder=config", *who]
    return own_command("motet.deploy.flare.party_process", role, *flare)


def check_before(kit: Kit, say: Callable[[str], None]) -> None:
    """Raises at once what FLARE would not say: certificates that are not good, a server that does not take us."""
    need("a party of a federation", "flare", "nvflare", "Crypto")
    for line in check_kit(kit):
        say(line)
    if kit.is_server:
        return
    try:
        for line in check_server(kit):
            say(line)
    except Unreachable as e:
        say(f"{e}; it is tried until it does")


def become(kit: Kit) -> NoReturn:
    """Go on as this party's FLARE process."""
    os.umask(0o077)
    write_rules(kit)
    make_private(kit.folder)
    words = command(kit)
    sys.stdout.flush()
    sys.stderr.flush()
    # the current folder is on the path of no process of FLARE; what a policy trusts is found there all the same
    os.execve(words[0], words, {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"})
