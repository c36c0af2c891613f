"""A party's FLARE process, whose TLS connections heed the list of revoked certificates.

    python -m motet.deploy.flare.party_process server -m KIT …     (what follows are FLARE's own arguments)

FLARE checks that a certificate is signed and not expired, when a connection begins. Here every TLS context also gets
the list, so that a revoked party is refused in the handshake, with a reason; and the server ends a connection whose
certificate was revoked, or expired, since. A newer list in the kit is noticed within a second.

Whoever reaches the port can open connections, and each takes a file. The process may have as many files as the system
lets it. If it runs out of them all the same, FLARE's thread that starts jobs may die, and the server would look as if
it was up: a process in which such a thread died ends, so that its service manager starts it again.
Knows FLARE's function that makes TLS contexts, and where its programs begin. Does not know jobs.
"""

from __future__ import annotations

import logging
import os
import resource
import runpy
import signal
import ssl
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

from motet.deploy.flare.authority import LIST
from motet.deploy.flare.credentials import (
    Peer,
    Unreachable,
    check_kit,
    check_server,
    list_of,
    read_peers,
    write_peers,
)
from motet.deploy.flare.kits import OWNER, FederationError, Kit, open_kit

_PROGRAMS = {
    "server": "nvflare.private.fed.app.server.server_train",
    "site": "nvflare.private.fed.app.client.client_train",
}
_AGAIN = 1.0  # seconds between looks at the list
_MINUTE = 60.0  # seconds between looks at this party's own certificates
_FILES = 1 << 20  # that a process may have open where the system sets no limit
ENDED = 70  # exit code of a process in which a thread of LASTING died: an error of software, by sysexits.h
# Where threads begin that last as long as the process: FLARE starts each once, and none again. Threads of connections,
# messages and jobs come and go, and may die of what others send.
LASTING = {
    ("nvflare.private.fed.app.deployer.server_deployer", "_start_job_runner"),
    ("nvflare.private.fed.server.job_runner", "_job_complete_process"),
    ("nvflare.private.fed.server.fed_server", "client_cleanup"),
    ("nvflare.private.fed.server.fed_server", "_check_regs"),
    ("nvflare.private.fed.client.fed_client_base", "run_heartbeat"),
    ("nvflare.fuel.f3.drivers.aio_context", "run_aio_loop"),
    ("motet.deploy.flare.party_process", "watch_own"),
}

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
    """End this process, with a word, when its own certificate has ended or was revoked: FLARE would try for ever. Say
    it once if the server refuses this site, which FLARE writes into its log alone: it may let it in again."""
    said: list[str] = []
    while True:
        try:
            lines = check_kit(kit)
        except OSError as e:  # of a process that has too many files open, say
            lines = [f"cannot look at this party's own certificates: {e}; it is tried again"]
        except FederationError as e:
            print(f"error: {e}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        try:
            if not kit.is_server:
                check_server(kit)
        except Unreachable:  # FLARE tries until it is there
            pass
        except (FederationError, OSError) as e:
            lines = [*lines, f"error: {e}"]
        for line in lines if lines != said else []:  # once a day, because a line counts the days
            print(line, file=sys.stderr, flush=True)
        said = lines
        time.sleep(seconds)


def bear_crowds() -> None:
    """Let this process, and those that it starts, have as many files open as the system lets them; and let it end, with
    a word, when one of the threads dies that it cannot be without."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = _FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < want:
        resource.setrlimit(resource.RLIMIT_NOFILE, (want, hard))
    usual = threading.excepthook

    def died(args: threading.ExceptHookArgs) -> None:
        frames = [frame for frame, _ in traceback.walk_tb(args.exc_traceback)]
        specs = [frame.f_globals.get("__spec__") for frame in frames]  # this file's __name__ is __main__
        begun = [(getattr(s, "name", ""), f.f_code.co_name) for s, f in zip(specs, frames, strict=True)]
        usual(args)
        if names := [function for module, function in begun if (module, function) in LASTING]:
            why = f"{type(args.exc_value).__name__}: {args.exc_value}"
            text = f"the thread {names[0]} died of {why}; this process ends, to be started again"
            print(f"error: {text}", file=sys.stderr, flush=True)
            logging.getLogger("motet.party").critical(text)
            os._exit(ENDED)

    threading.excepthook = died


def main() -> None:
    bear_crowds()
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
