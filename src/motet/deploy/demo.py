"""A whole federation on one machine: kits, a server and three sites in processes of their own, mutual TLS on
loopback, a run with each method, and the same runs on the loop engine beside them.

Everything goes through the commands that people use. Knows commands and folders. Does not import FLARE.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from motet.deploy.flare.admin import AdminSession, Unreachable
from motet.deploy.flare.all_kits import create
from motet.deploy.flare.kits import Kit, open_kit
from motet.deploy.server.job_chain import run_federated
from motet.deploy.server.run_files import make_order
from motet.runs import recipe as recipes
from motet.runs.mean_scores import BY_PAIRS
from motet.runs.run import Run, run
from motet.runs.store import METRICS
from motet.trusted_code import own_command

SITES = ("north", "south", "west")
METHODS = ("fedper", "stacking")
POLICY = """\
learn = "collect"       # the server may see each site's replies: stacking sends a public model, which is no mean
reply_bytes = 4_000_000 # and none that is larger
rounds = 100            # of training, in all runs together
noise = 0.0             # none on losses and sketches, and
secret_orders = false   # rows in the order of the run's seed, so that runs are those of the loop engine to the bit
"""
MASKED = """\
masks = "required"      # what is averaged leaves masked
scores = "masked"       # so do scores: the server learns their mean over sites
counts = "masked"       # numbers of rows
sums = "masked"         # and sums of columns
noise = 0.0             # none on losses and sketches, and
secret_orders = false   # rows in the order of the run's seed, so that runs are those of the loop engine
"""
WORDS = ["train.rounds=5", "net.name=mlp", "net.hidden=[16]", "data.val=0.2"]
Say = Callable[[str], None]


class Parties:
    """Processes of a federation that this process started, and ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, party: str, *words: str) -> None:
        """`motet federation serve` or `join`, in a session of its own."""
        what = "serve" if party == "server" else "join"
        command = own_command("motet.cli.main", "federation", what, str(self.folder / party), *words)
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{party}.out").open("ab") as out:
            self.running[party] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True
            )

    def end(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def demo(folder: Path | None, methods: Sequence[str], say: Say, masked: bool = False) -> str:
    """The demo's table: each method's scores between organisations, and how far they are from the loop's. `masked`:
    the server learns means and sums over sites alone."""
    with tempfile.TemporaryDirectory() as scratch:
        place = folder or Path(scratch) / "care"
        place.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        kit = open_federation(place)
        tables = write_tables(place / "tables")
        parties = Parties(place)
        try:
            say(f"kits in {place}; starting the server and {len(SITES)} sites over mutual TLS")
            parties.start("server")
            (policy := place / "policy.toml").write_text(MASKED if masked else POLICY)
            for site in SITES:
                data = ["--data", str(tables / f"{site}.csv"), "--target", "diagnosis", "--val", "0.2"]
                parties.start(site, *data, "--policy", str(policy))
            usual = METHODS[:1] if masked else METHODS
            lines = [compared(kit, m, tables, place, say, masked) for m in methods or usual]
        finally:
            end(kit, parties)
        took = time.monotonic() - began
        return "\n".join([*lines, f"{took:.0f} s in all"])


def open_federation(place: Path, port: int = 0) -> Kit:
    create("care", "localhost", SITES, place, port or free_port())
    return open_kit(place / "server")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return int(s.getsockname()[1])


def write_tables(folder: Path) -> Path:
    """Biopsies of the breast cancer set of scikit-learn, divided among three clinics of different sizes."""
    from sklearn.datasets import load_breast_cancer

    folder.mkdir(parents=True, exist_ok=True)
    frame = load_breast_cancer(as_frame=True).frame
    frame["diagnosis"] = np.where(frame.pop("target") == 1, "benign", "malignant")
    edges = [0, 100, 280, len(frame)]
    for site, first, last in zip(SITES, edges, edges[1:], strict=False):
        frame.iloc[first:last].to_csv(folder / f"{site}.csv", index=False)
    return folder


def compared(kit: Kit, method: str, tables: Path, place: Path, say: Say, masked: bool = False) -> str:
    """One method between the sites and on the loop engine; the largest difference of any score."""
    words = [*WORDS, f"method.name={method}", f"guard.masked={str(masked).lower()}"]
    folder = run_federated(
        kit, make_order(kit.federation, None, words, len(SITES), 0, 120.0), say, patience=120
    )
    at_home = [f"data.name={tables}", "data.target=diagnosis", "data.unseen=0", "engine.name=loop"]
    far = Run(folder)
    chosen = {"method": far.facts["settings"]["method"]}  # with the learning rate that the server chose
    same = run(recipes.read(None, [*words, *at_home, "guard.masked=false"], chosen), place / f"loop-{method}")
    return f"{method}: {scored(far)}; largest difference from the loop engine {difference(far, same):.1e}"


def scored(found: Run) -> str:
    test = found.test[found.test["side"] == "personal"]
    return ", ".join(f"{c} {a:.3f}" for c, a in zip(test["client"], test["accuracy"], strict=True))


def difference(a: Run, b: Run) -> float:
    """Of all scores of all rounds, both sides; of means over sites where only these are known."""
    if a.facts.get("hides_scores"):
        return mean_difference(a, b)
    keys = ["round", "part", "side", "client"]
    both = a.scores.merge(b.scores, on=keys, suffixes=("", "_"))
    if len(both) != len(a.scores) or len(both) != len(b.scores):
        return float("inf")
    metrics = [m for m in METRICS if m in both and f"{m}_" in both]
    # what is none in both, say the AUC of one class, is the same in both
    return float(np.abs(np.stack([both[m].fillna(-1) - both[f"{m}_"].fillna(-1) for m in metrics])).max())


def mean_difference(hidden: Run, shown: Run) -> float:
    """Of the means over sites, in which every site counts the same; metrics of pairs of rows count so on test rows."""
    keys = ["round", "part", "side"]
    metrics = [m for m in METRICS if m in hidden.scores and m in shown.scores and m not in BY_PAIRS]
    means = shown.scores.groupby(keys)[metrics].mean()
    found = hidden.scores.set_index(keys)[metrics]
    if len(means) != len(found):
        return float("inf")
    return float(np.abs((means - found).to_numpy()).max())


def end(kit: Kit, parties: Parties) -> None:
    """Shut down in good order, then make sure."""
    try:
        # A session that stays open has threads that would keep this process alive.
        with suppress(Unreachable), closing(AdminSession(kit)) as admin:
            admin.shut_down()
            time.sleep(1.0)
    finally:
        parties.end()
