"""What a party's process bears of those who fill it with connections, and what it says when it cannot go on.

Each test has a process of its own, with a lowered limit of open files. `test_real_processes.py` has a whole server.
"""

from __future__ import annotations

import importlib
import inspect
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="federations need the extra motet[flare]")

from deploy.test_tls_checks import Care, reissue
from motet.deploy.demo import free_port
from motet.deploy.flare.all_kits import create
from motet.deploy.flare.party_process import ENDED, LASTING

LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"


@pytest.fixture(scope="module")
def care(tmp_path_factory: pytest.TempPathFactory) -> Care:
    folder = tmp_path_factory.mktemp("care") / "care"
    create("care", "localhost", ["west"], folder, free_port())
    return Care(folder)


@contextmanager
def child(program: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def test_a_partys_process_takes_more_connections_than_its_soft_limit_of_files() -> None:
    program = """
import socket
from motet.deploy.flare.party_process import bear_crowds
bear_crowds()
server = socket.create_server(("localhost", 0), backlog=200)
both = [(socket.create_connection(server.getsockname()), server.accept()[0]) for _ in range(200)]
print(len(both))
"""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(soft=128, hard=1024) + program],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "200\n", done.stderr


def test_a_watch_that_cannot_open_its_files_says_so_and_goes_on(care: Care, tmp_path: Path) -> None:
    here = Care(shutil.copytree(care.server.folder.parent, tmp_path / "care"))
    program = """
import os, sys, threading
from pathlib import Path
from motet.deploy.flare.kits import open_kit
from motet.deploy.flare.party_process import watch_own
kit, taken = open_kit(Path(PLACE)), []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
threading.Thread(target=watch_own, args=[kit, 0.05], daemon=True).start()
sys.stdin.readline()
for file in taken:
    os.close(file)
sys.stdin.readline()
""".replace("PLACE", repr(str(here.west.folder)))
    with child(LIMITED.format(soft=64, hard=64) + program) as running:
        assert running.stdin and running.stderr
        said = running.stderr.readline()
        assert "Too many open files" in said and "tried again" in said
        reissue(here, "west", datetime.now(UTC) - timedelta(days=20), 10)
        running.stdin.write("\n")
        running.stdin.flush()
        assert running.wait(60) == -signal.SIGTERM
        assert "error: the certificate of west expired on" in running.stderr.read()


DIES = """
import runpy, threading
from motet.deploy.flare.party_process import bear_crowds
from nvflare.private.fed.app.deployer.server_deployer import ServerDeployer
bear_crowds()
watch = runpy.run_module("motet.deploy.flare.party_process", run_name="as a program")["watch_own"]
class Runner:
    def run(self, context):
        raise OSError(24, "Too many open files")
def other():
    raise OSError(24, "Too many open files")
THREAD
print("went on")
"""


@pytest.mark.parametrize(
    ("thread", "code", "out"),
    [
        ("threading.Thread(target=ServerDeployer._start_job_runner, args=[None, Runner(), None])", 70, ""),
        ("threading.Thread(target=watch, args=[None])", 70, ""),
        ("threading.Thread(target=other)", 0, "went on\n"),
    ],
)
def test_a_process_ends_when_a_thread_dies_that_the_federation_cannot_be_without(
    thread: str, code: int, out: str
) -> None:
    """And goes on when one dies that served a single connection, say."""
    program = DIES.replace("THREAD", f"one = {thread}; one.start(); one.join()")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (code, out), done.stderr
    assert ENDED == 70 and ("Too many open files" in done.stderr or "watch" in thread)
    assert ("this process ends, to be started again" in done.stderr) == bool(code)


def test_threads_without_which_a_party_cannot_be_are_functions_of_this_flare() -> None:
    for module, function in LASTING:
        found = importlib.import_module(module)
        kinds = [found, *(v for _, v in inspect.getmembers(found, inspect.isclass))]
        assert any(callable(getattr(kind, function, None)) for kind in kinds), (module, function)


@pytest.mark.parametrize("party", ["server", "site"])
def test_services_have_room_for_connections_and_are_started_again(party: str) -> None:
    unit = (Path(__file__).parents[2] / "packaging" / f"motet-{party}.service").read_text().splitlines()
    assert "LimitNOFILE=65536" in unit and "Restart=on-failure" in unit
