"""Everything together between real processes over mutual TLS: the demo, and methods of each kind.

tests/deploy/test_simulator.py plays every method by the same group calls in FLARE's simulator.
"""

from __future__ import annotations

import re
import resource
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

pytest.importorskip("nvflare", reason="federations need the extra motet[flare]")

from living import Living, living, server_has, table, wait
from motet.cli.main import main
from motet.deploy.demo import demo, difference
from motet.deploy.flare.party_process import ENDED
from motet.deploy.server.status import read_status
from motet.runs.recipe import method_names
from motet.runs.run import Run


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("masked", [False, True])
def test_the_demo_comes_out_as_on_the_loop_engine(masked: bool, tmp_path: Path) -> None:
    said = demo(tmp_path / "care", [], print, masked)
    gaps = [float(v) for v in re.findall(r"loop engine (\S+)", said)]
    assert gaps and max(gaps) <= 1e-6


KINDS = ["fedper", "page", "stacking"]  # means, replies collected and a table at the server, solo verbs


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(KINDS, id="one of each kind"),
        pytest.param(sorted({*method_names()} - {*KINDS}), id="all others", marks=pytest.mark.long),
    ],
)
def test_methods_between_real_processes_are_as_on_the_loop_engine(names: list[str], tmp_path: Path) -> None:
    found = {}
    policy = tmp_path / "policy.toml"
    policy.write_text(
        'learn = "collect"\nnoise = 0.0\nsecret_orders = false\nleast_rows = 5\nlargest_share = 1.0\n'
    )  # as on the loop, whose last batch of 33 rows has one
    table(7).to_csv(own := tmp_path / "own.csv", index=False)  # what page's server scores models on
    with living(tmp_path / "care") as federation:
        federation.start("server")
        federation.start(*federation.sites, policy=policy)
        for name in names:
            if name == "centralised":  # it wants all rows in one place
                continue
            words = (f"method.name={name}",)
            page = name.startswith("page")
            given = (*words, f"data.server={own}", "data.target=y") if page else words
            orders = federation.order(2, 2, 120.0, *given)
            federation.run(orders, 2, *given)
            if name == names[0]:
                command_lines_hold_no_token(federation)
            wait(
                lambda o=orders: federation.report(o).state in ("done", "failed"),
                600,
                name,
                federation.logs,
            )
            far = Run(federation.run_folder(orders))
            with server_has(own, far.folder):
                found[name] = difference(far, federation.at_home(far, 2, *words))
        evidence_of_all_parties_agrees(federation, far.folder)
        nobody_gets_in_without_a_certificate(federation)
        what_processes_made_is_for_their_owner_alone(federation)
    assert {name: gap for name, gap in found.items() if gap > 1e-6} == {}


def evidence_of_all_parties_agrees(federation: Living, run: Path) -> None:
    """Of the last run: each party writes evidence with its own kit, and the server has what left the sites."""
    files = [federation.folder / f"{party}.evidence.html" for party in ("server", *federation.sites)]
    assert main(["evidence", str(run), "--to", str(files[0])]) == 0
    for site, file in zip(federation.sites, files[1:], strict=True):
        assert main(["evidence", str(federation.folder / site), "--run", run.name, "--to", str(file)]) == 0
        assert main(["evidence", "check", str(file), str(federation.folder / site)]) == 0
    assert main(["evidence", "check", *map(str, files)]) == 0


def greeting(name: str) -> bytes:
    """FLARE's first frame of a connection (HELLO)."""
    import msgpack
    from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
    from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

    payload = msgpack.packb({HandshakeKeys.ENDPOINT_NAME: name, HandshakeKeys.TIMESTAMP: 0.0})
    frame = bytearray(PREFIX_LEN) + payload
    Prefix(len(frame), 0, Types.HELLO, 0, 0, 0, 1, 1).to_buffer(frame, 0)
    return bytes(frame)


def greeted(port: int, name: str) -> bytes:
    """What comes back to somebody on this machine who has no file of any kit, and speaks in the clear to a port that
    `ps` shows, as a job's process would. Which user it is makes no difference to a port."""
    with socket.create_connection(("localhost", port), 60) as line:
        line.sendall(greeting(name))
        try:
            return line.recv(64)
        except ConnectionError:
            return b""


def test_a_greeting_in_the_clear_is_answered_where_connections_are_in_the_clear() -> None:
    """So that a missing answer below says something."""
    from nvflare.fuel.f3.communicator import Communicator
    from nvflare.fuel.f3.endpoint import Endpoint
    from nvflare.fuel.f3.sfm.constants import Types

    communicator = Communicator(Endpoint("a"))
    communicator.start()
    _, url, _ = communicator.start_listener("tcp", {"secure": False, "host": "localhost"})
    port, came = int(url.rpartition(":")[2]), b""

    def ready() -> bool:
        nonlocal came
        try:
            came = greeted(port, "a.stranger")
        except ConnectionError:
            return False
        return True

    wait(ready, 60, "the listener", str)
    communicator.stop()
    assert came[6] == Types.READY


def command_lines_hold_no_token(federation: Living) -> None:
    """Everybody on the machine reads command lines; the environment of a process only its owner."""
    parties = ("server", *federation.sites)

    def jobs() -> list[psutil.Process]:
        started = [p for party in parties for p in federation.processes(party)[1:]]
        return [p for p in started if "-n" in p.cmdline()]  # not their children, nor what is still starting

    wait(lambda: len(jobs()) >= len(parties), 300, "a job's processes", federation.logs)
    tokens = {v for p in jobs() for k, v in p.environ().items() if k.startswith("NVFLARE_JOB_")}
    lines_of_jobs = [p.cmdline() for p in jobs()]
    # the server's job has its own number for a token, which is worth nothing without the signature beside it
    tokens -= {line[line.index("-n") + 1] for line in lines_of_jobs}
    lines = " ".join(word for party in parties for p in federation.processes(party) for word in p.cmdline())
    assert tokens and not [t for t in tokens if t in lines]


def nobody_gets_in_without_a_certificate(federation: Living) -> None:
    for party in ("server", *federation.sites):
        ports = federation.ports(party)
        assert len(ports) > (party == "server"), f"{party} has no port for its own processes"
        for port in ports:
            came = greeted(port, f"{party}.stranger")
            # nothing, a TLS alert, or a web server's complaint; never FLARE's answer
            assert not came or came[0] == 0x15 or came.startswith(b"HTTP/"), (party, port, came)


def what_processes_made_is_for_their_owner_alone(federation: Living) -> None:
    for party in ("server", *federation.sites):
        kit = federation.folder / party
        assert stat.S_IMODE(kit.stat().st_mode) == 0o700
        open_to_others = [p for p in kit.rglob("*") if not p.is_symlink() and p.stat().st_mode & 0o077]
        assert not open_to_others


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_server_whose_files_are_taken_by_connections_ends_and_goes_on_when_it_is_started_again(
    tmp_path: Path,
) -> None:
    """Without certificates. A service manager would start it; here the test does."""
    with living(tmp_path / "care") as federation:
        federation.start("server", *federation.sites)

        def there() -> set[str]:
            return {s for s, found in read_status(federation.kit)["sites"].items() if found["there"]}

        wait(lambda: there() == set(federation.sites), 300, "all sites", federation.logs)
        server = federation.parties.running["server"]
        psutil.Process(server.pid).rlimit(resource.RLIMIT_NOFILE, (128, 128))
        place = ("localhost", federation.kit.port)
        with ExitStack() as held:
            for _ in range(200):
                held.enter_context(socket.create_connection(place, 30))
            wait(lambda: server.poll() is not None, 300, "the server's end", federation.logs)
        assert server.returncode == ENDED, federation.logs()
        federation.start("server")
        orders = federation.order(2, 2, 120.0)
        federation.run(orders, 2)
        wait(lambda: federation.report(orders).state in ("done", "failed"), 600, "a run", federation.logs)
        assert federation.report(orders).state == "done", federation.logs()
