"""Nobody gets in without a kit of this federation and this provisioning, nor who was disabled."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="federations need the extra motet[flare]")

from living import Living, living, wait
from motet.cli.main import main
from motet.deploy.flare.admin import AdminSession, Unreachable
from motet.deploy.flare.all_kits import create
from motet.deploy.flare.credentials import unfit_sites


def knock(federation: Living, kit: Path | None) -> bytes:
    """What the server says to somebody with the certificate of a kit, or with none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if kit:
        context.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    place = (federation.kit.host, federation.kit.port)
    with socket.create_connection(place, 30) as plain, context.wrap_socket(plain) as line:
        line.sendall(b"GET / HTTP/1.1\r\nHost: care\r\n\r\n")
        return line.recv(64)


def listening(federation: Living) -> bool:
    with socket.socket() as s:
        return s.connect_ex((federation.kit.host, federation.kit.port)) == 0


def asked(federation: Living, what: Callable[[AdminSession], Any]) -> Any:
    """The server's answer to its owner; a busy machine may need more than one call."""
    found: list[Any] = []

    def reached() -> bool:
        try:
            line = AdminSession(federation.kit)
            found.append(what(line))
            line.close()
        except Unreachable:
            return False
        return True

    wait(reached, 300, "the server's answer to its owner", federation.logs)
    return found[0]


@pytest.mark.timeout(1200)
def test_only_this_provisionings_kits_get_in_and_a_disabled_site_does_not(tmp_path: Path) -> None:
    create("care", "localhost", ["a"], tmp_path / "earlier", 8002)
    create("other", "localhost", ["a"], tmp_path / "other", 8002)
    with living(tmp_path / "care", ("a", "b", "c")) as federation:
        federation.start("server")
        wait(lambda: listening(federation), 300, "the server", federation.logs)
        assert knock(federation, federation.folder / "a").startswith(b"HTTP/1.1")
        for stranger in (None, tmp_path / "earlier" / "a", tmp_path / "other" / "a"):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                assert knock(federation, stranger) == b""
                raise ConnectionError("closed without a word")
        # A site whose kit was made before everybody's kits were made anew, with its own name and all.
        for part in ("client.crt", "client.key", "rootCA.pem"):
            shutil.copyfile(
                tmp_path / "earlier" / "a" / "startup" / part, federation.folder / "b" / "startup" / part
            )
        federation.start("a", "b", "c")
        wait(lambda: "a" in asked(federation, AdminSession.registered), 300, "site a", federation.logs)
        asked(federation, lambda line: line.disable("a"))
        federation.kill("a")
        federation.start("a")
        assert (
            federation.parties.running["a"].wait(300) != 0
        )  # its process ends, and says that it was refused
        assert "disabled" in (federation.folder / "server" / "log.txt").read_text()
        wait(lambda: asked(federation, AdminSession.alive) == {"c"}, 300, "neither a nor b", federation.logs)
        revoked_while_it_is_there(federation, "c")


def revoked_while_it_is_there(federation: Living, site: str) -> None:
    """The server ends the connection; the site started again says why it cannot join, and ends."""
    assert main(["federation", "revoke", str(federation.folder), site]) == 0
    wait(lambda: site in unfit_sites(federation.kit), 30, "the new list", federation.logs)
    wait(
        lambda: not asked(federation, AdminSession.alive), 300, "the revoked site to be gone", federation.logs
    )
    federation.kill(site)
    federation.start(site)
    assert federation.parties.running[site].wait(300) == 2
    said = (federation.folder / f"{site}.out").read_text()
    assert f"refuses the certificate of {site}: it was revoked" in said
