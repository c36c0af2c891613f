"""A federation of real processes for tests: kits, a server, sites, the run command; and ways to hurt them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

from motet.deploy.agreement.layout import Layout
from motet.deploy.demo import Parties, difference, free_port
from motet.deploy.flare.all_kits import create
from motet.deploy.flare.kits import Kit, open_kit
from motet.deploy.server.run_files import JobReport, RunOrder, make_order, read_report
from motet.deploy.site.table import SiteTable
from motet.runs import build
from motet.runs import recipe as recipes
from motet.runs.run import Run, run
from motet.wire import unpack

WORDS = ["method.name=fedper", "net.name=mlp", "net.hidden=[8]", "data.val=0.2", "train.patience=0"]


def usual(rounds: int, given: Sequence[str]) -> list[str]:
    """Settings of these tests that are not given otherwise."""
    named = {word.partition("=")[0] for word in given}
    return [w for w in (*WORDS, f"train.rounds={rounds}") if w.partition("=")[0] not in named]


SPLIT = ["--val", "0.2"]  # the sites' own, so that runs at home are the same


class Living:
    """Two or more sites on loopback. Whatever was started is ended with the `with` block."""

    def __init__(self, folder: Path, sites: Sequence[str] = ("a", "b")) -> None:
        self.folder, self.sites = folder, tuple(sites)
        create("care", "localhost", self.sites, folder, free_port())
        self.kit: Kit = open_kit(folder / "server")
        self.parties = Parties(folder)
        self.tables = folder / "tables"
        self.tables.mkdir()
        for i, site in enumerate(self.sites):
            table(i).to_csv(self.tables / f"{site}.csv", index=False)
            (folder / site / "policy.toml").write_text("secret_orders = false\n")  # as on the loop engine

    def start(self, *who: str, policy: Path | None = None) -> None:
        more = ["--policy", str(policy)] if policy else []
        for party in who:
            again = party == "server" or party in self.parties.running
            table = self.tables / f"{party}.csv"
            self.parties.start(
                party, *([] if again else ["--data", str(table), "--target", "y", *SPLIT, *more])
            )

    def processes(self, party: str) -> list[psutil.Process]:
        """A party's process and its children."""
        try:
            parent = psutil.Process(self.parties.running[party].pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def ports(self, party: str) -> list[int]:
        """Where a party's processes listen on this machine."""
        found = [c for p in self.processes(party) for c in p.net_connections("tcp") if c.status == "LISTEN"]
        return sorted({c.laddr.port for c in found})

    def signal(self, party: str, what: signal.Signals) -> None:
        for p in self.processes(party):
            p.send_signal(what)

    def kill(self, party: str) -> None:
        """As if its machine lost power."""
        self.signal(party, signal.SIGKILL)
        self.parties.running[party].wait()

    def order(self, rounds: int, min_sites: int, timeout: float, *words: str) -> RunOrder:
        given = [*usual(rounds, words), *words]
        return make_order("care", None, given, min_sites, 0, timeout)

    def run(self, order: RunOrder, rounds: int, *words: str) -> None:
        """`motet federation run`, in a process of its own."""
        options = ["--min-sites", str(order.min_sites), "--timeout", str(order.timeout)]
        given = [*usual(rounds, words), *words]
        command = [
            sys.executable,
            "-m",
            "motet.cli.main",
            "federation",
            "run",
            str(self.kit.folder),
            *given,
            *options,
        ]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        with (self.folder / "run.out").open("ab") as out:
            self.parties.running["run"] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True
            )

    def run_folder(self, order: RunOrder) -> Path:
        return self.kit.runs / order.run

    def report(self, order: RunOrder) -> JobReport:
        return read_report(self.run_folder(order))

    def at_home(self, far: Run, rounds: int, *words: str) -> Run:
        """The same run as `far` on the loop engine, with the learning rate that the server chose."""
        chosen = {"method": far.facts["settings"]["method"]}
        data = [f"data.name={self.tables}", "data.target=y", "data.unseen=0", "engine.name=loop"]
        given = [*usual(rounds, words), *words, *data]
        return run(recipes.read(None, given, chosen), base=self.folder / "at-home")

    def logs(self) -> str:
        """What everybody said last, for a test that failed."""
        files = [*self.folder.glob("*.out"), *self.folder.glob("*/error_log.txt")]
        return "\n".join(f"== {f.relative_to(self.folder)}\n{f.read_text()[-1500:]}" for f in files)


class Line:
    """The network between a site and the server: bytes pass, or they hang in it while it is cut."""

    def __init__(self, port: int) -> None:
        self.whole = threading.Event()
        self.whole.set()
        line = self

        class Call(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection(("localhost", port)) as far:
                    back = threading.Thread(target=line.carry, args=(far, self.request), daemon=True)
                    back.start()
                    line.carry(self.request, far)
                    back.join()

        self.server = socketserver.ThreadingTCPServer(("localhost", 0), Call)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    def carry(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while some := near.recv(1 << 16):
                self.whole.wait()
                far.sendall(some)
        with contextlib.suppress(OSError):
            far.shutdown(socket.SHUT_WR)

    def lay(self, kit: Path) -> None:
        """Let the site of this kit reach the server through here."""
        file = kit / "startup" / "fed_client.json"
        settings = json.loads(file.read_text())
        settings["servers"][0]["service"]["target"] = f"localhost:{self.port}"
        file.write_text(json.dumps(settings))


def table(number: int, rows: int = 60) -> pd.DataFrame:
    draw = np.random.default_rng(number)
    x = draw.normal(size=(rows + 10 * number, 4))
    y = np.where(
        x @ np.array([1.0, -1.0, 0.5 * number, 0.2]) + 0.3 * draw.normal(size=len(x)) > 0, "yes", "no"
    )
    return pd.DataFrame(x, columns=["p", "q", "r", "s"]).assign(y=y)


@contextlib.contextmanager
def server_has(table: Path, far: Path) -> Iterator[None]:
    """Runs on this machine get the proxy set that the server of the federated run `far` has from a table."""
    layout = Layout.of(unpack((far / "layout.motet").read_bytes()))
    proxy, load = SiteTable("server", table, "y", least_category=1).whole(layout), build.load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "load", lambda *given: replace(load(*given), proxy=proxy))
        yield


@contextlib.contextmanager
def living(folder: Path, sites: Sequence[str] = ("a", "b")) -> Iterator[Living]:
    found = Living(folder, sites)
    try:
        yield found
    finally:
        for party in list(found.parties.running):
            for p in found.processes(party):
                p.kill()
        for process in found.parties.running.values():
            process.wait()


def wait(until: Callable[[], Any], seconds: float, what: str, logs: Callable[[], str]) -> None:
    """Poll; a test that waits in vain says for what, and what everybody said."""
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, f"waited {seconds} s for: {what}\n{logs()}"
        time.sleep(0.05)


__all__ = ["Living", "difference", "living", "wait"]
