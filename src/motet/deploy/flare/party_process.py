"""A party's FLARE process, whose TLS connections heed the list of revoked certificates.

    python -m motet.deploy.flare.party_process server -m KIT …     (what follows are FLARE's own arguments)

FLARE checks that a certificate is signed and not expired, when a connection begins. Here every TLS context also gets
the list, so that a revoked party is refused in the handshake, with a reason; and the server ends a connection whose
certificate was revoked, or expired, since. A newer list in the kit is noticed within a second.
Knows FLARE's function that makes TLS contexts, and where its programs begin. Does not know jobs.
"""

from __future__ import annotations

import os
import runpy
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

from motet.deploy.flare.authority import LIST
from motet.deploy.flare.credentials import Peer, check_kit, list_of, read_peers, write_peers
from motet.deploy.flare.kits import OWNER, FederationError, Kit, open_kit

_PROGRAMS = {
    "server": "nvflare.private.fed.app.server.server_train",
    "site": "nvflare.private.fed.app.client.client_train",
}
_AGAIN = 1.0  # seconds between looks at the list
_MINUTE = 60.0  # seconds between looks at this party's own certificates

MakeContext = Callable[[dict[str, Any], bool], ssl.SSLContext | None]


class PeerCheck:
    """Refuses peers whose certificates are on the kit's list, now and when a newer list comes."""

    def __init__(self, kit: Kit) -> None:
        self.kit, self.file = kit, kit.startup / LIST
        self.gone = revoked_serials(kit)
        self.stamp, self.looked = self.file.stat().st_mtime_ns, time.monotonic()
        self.listening: list[ssl.SSLContext] = []
        self.peers = read_peers(kit)

    def checked(self, make: MakeContext) -> MakeContext:
        """FLARE's function, with the list in every context that it makes."""

        def made(params: dict[str, Any], ssl_server: bool) -> ssl.SSLContext | None:
            context = make(params, ssl_server)
            if context is not None:
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
                context.load_verify_locations(self.file)
            if context is not None and ssl_server:
                self.watch(context)
            return context

        return made

    def watch(self, context: ssl.SSLContext) -> None:
        """Look at the list before each handshake, and at each message of a connection that stays."""
        self.listening.append(context)
        context.sni_callback = lambda *_: self.refresh()
        context.sslobject_class = self.connection_class()

    def connection_class(self) -> type[ssl.SSLObject]:
        check = self

        class CheckedConnection(ssl.SSLObject):
            serial, ends = 0, inf  # of the peer's certificate; also of one whose session is resumed
            failure: ssl.SSLError | None = None

            def do_handshake(self) -> None:
                if self.failure:
                    raise self.failure
                try:
                    super().do_handshake()
                except ssl.SSLCertVerificationError as e:
                    # asyncio would close at once and drop OpenSSL's alert, which tells the other side why
                    self.failure = e
                    raise ssl.SSLWantReadError("the alert is to be sent") from e
                if peer := self.getpeercert():
                    self.serial, self.ends = int(str(peer["serialNumber"]), 16), cert_time(peer)
                    check.came(peer)

            def read(self, *given: Any) -> Any:
                check.require_good(self.serial, self.ends)
                return super().read(*given)

        return CheckedConnection

    def refresh(self) -> None:
        """Read the list again if the file changed; OpenSSL takes the newer one of two."""
        if time.monotonic() - self.looked < _AGAIN:
            return
        self.looked, stamp = time.monotonic(), self.file.stat().st_mtime_ns
        if stamp != self.stamp:
            self.gone, self.stamp = revoked_serials(self.kit), stamp
            for context in self.listening:
                context.load_verify_locations(self.file)

    def require_good(self, serial: int, ends: float) -> None:
        self.refresh()
        if serial in self.gone or time.time() > ends:
            raise ssl.SSLError("the certificate of this connection was revoked or expired")

    def came(self, peer: dict[str, Any]) -> None:
        """Write down which certificate a site showed, for `status` and for the start of a job."""
        if not self.kit.is_server or named(peer) == OWNER:
            return
        found = Peer(peer["serialNumber"], datetime.fromtimestamp(cert_time(peer), UTC).isoformat())
        if self.peers.get(named(peer)) != found:
            self.peers[named(peer)] = found
            write_peers(self.kit.folder, self.peers)


def revoked_serials(kit: Kit) -> set[int]:
    return {entry.serial for entry in list_of(kit).entries}


def cert_time(peer: dict[str, Any]) -> float:
    """When a certificate ends, in seconds since 1970."""
    return float(ssl.cert_time_to_seconds(peer["notAfter"]))


def named(peer: dict[str, Any]) -> str:
    return next((str(v) for rdn in peer["subject"] for k, v in rdn if k == "commonName"), "")


def watch_own(kit: Kit, seconds: float = _MINUTE) -> None:
    """End this process, with a word, when its own certificate has ended or was revoked: FLARE would try for ever."""
    said: list[str] = []
    while True:
        try:
            lines = check_kit(kit)
        except FederationError as e:
            print(f"error: {e}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        for line in lines if lines != said else []:  # once a day, because a line counts the days
            print(line, file=sys.stderr, flush=True)
        said = lines
        time.sleep(seconds)


def main() -> None:
    role, words = sys.argv[1], sys.argv[2:]
    kit = open_kit(Path(words[words.index("-m") + 1]), role)
    from nvflare.fuel.f3.drivers import net_utils

    if not callable(getattr(net_utils, "get_ssl_context", None)):
        raise FederationError("this version of nvflare makes its TLS contexts elsewhere\nhint: nvflare 2.9")
    net_utils.get_ssl_context = PeerCheck(kit).checked(net_utils.get_ssl_context)
    threading.Thread(target=watch_own, args=[kit], daemon=True).start()
    sys.argv = [_PROGRAMS[role], *words]
    runpy.run_module(_PROGRAMS[role], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    os.umask(0o077)
    main()
