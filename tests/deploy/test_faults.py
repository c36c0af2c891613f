"""Real processes over mutual TLS, killed and frozen at random moments: no round is lost or counted twice.

All sites must answer for a round to count, so that attendance is full and the run must end as an undisturbed
one does, which is as on the loop engine.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="federations need the extra motet[flare]")

from living import Line, Living, difference, living, wait
from motet.cli.main import main
from motet.deploy.server.run_files import RunOrder
from motet.runs.run import Run
from motet.runs.store import Store

ROUNDS = 100  # enough for every moment to fall inside the run; a round takes some hundredths of a second
TO_THE_END = "train.patience=0"  # also where scores do not rise any more


class Trouble:
    """Does one kind of harm at a time, and waits until rounds go on."""

    def __init__(self, federation: Living, orders: RunOrder, seed: int) -> None:
        self.federation, self.orders, self.draw = federation, orders, random.Random(seed)

    def round(self) -> int:
        return int(self.federation.report(self.orders).round)

    def moment(self) -> None:
        """Some rounds from now, anywhere within a round."""
        goal = self.round() + self.draw.randint(2, 6)
        self.until(lambda: self.round() >= goal, f"round {goal}")
        signal.sigtimedwait([], self.draw.uniform(0, 0.1))  # a moment's pause

    def until(self, what: object, words: str) -> None:
        assert callable(what)
        wait(what, 600, words, self.federation.logs)

    def kill_site(self) -> None:
        self.harm(kill=[self.draw.choice(self.federation.sites)])

    def kill_server(self) -> None:
        self.harm(kill=["server"])

    def freeze_site(self) -> None:
        self.harm(freeze=[self.draw.choice(self.federation.sites)])

    def miss_one_then_kill_the_rest(self) -> None:
        one, other = self.draw.sample(self.federation.sites, 2)
        self.harm(freeze=[other], wait=True, kill=["server", one])

    def kill_server_and_site_freeze_the_other(self) -> None:
        one, other = self.draw.sample(self.federation.sites, 2)
        self.harm(freeze=[other], wait=False, kill=["server", one])

    def harm(self, freeze: Sequence[str] = (), wait: bool = True, kill: Sequence[str] = ()) -> None:
        """First freeze, and wait until somebody is missed; then kill; then let everybody come back."""
        for site in freeze:
            self.federation.signal(site, signal.SIGSTOP)
        if freeze and wait:
            self.until(lambda: self.federation.report(self.orders).state == "short", "a site is missed")
        for party in kill:
            self.federation.kill(party)
        self.federation.start(*kill)
        for site in freeze:
            self.federation.signal(site, signal.SIGCONT)


def survive(folder: Path, seed: int, kinds: list[str], rounds: int = ROUNDS) -> None:
    with living(folder) as federation:
        federation.start("server", *federation.sites)
        orders = federation.order(rounds, 2, 6.0, TO_THE_END)
        federation.run(orders, rounds, TO_THE_END)
        trouble = Trouble(federation, orders, seed)
        for kind in kinds:
            trouble.moment()
            getattr(trouble, kind)()
        trouble.until(lambda: federation.report(orders).state == "done", "the end")
        found = Run(federation.run_folder(orders))
        same = federation.at_home(found, rounds, TO_THE_END)
        assert found.rounds["round"].tolist() == list(range(rounds))
        assert difference(found, same) == 0, federation.logs()
        states = [Store(run.folder).state(rounds - 1) for run in (found, same)]
        assert states[0] == states[1]


@pytest.mark.timeout(1800)
def test_a_run_bears_a_killed_site_a_killed_server_and_a_frozen_site(tmp_path: Path) -> None:
    """All at once, because each recovery starts a job, and a job starts a process for each party."""
    survive(tmp_path / "care", 0, ["kill_server_and_site_freeze_the_other"])


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_run_bears_two_kills_of_sites_two_of_the_server_and_two_frozen_sites(tmp_path: Path) -> None:
    survive(tmp_path / "care", 0, ["miss_one_then_kill_the_rest", "kill_server_and_site_freeze_the_other"])


@pytest.mark.long
@pytest.mark.timeout(36000)
@pytest.mark.parametrize("kind", ["kill_site", "kill_server", "freeze_site"])
def test_twenty_of_each_kind(kind: str, tmp_path: Path) -> None:
    survive(tmp_path / "care", 1, 20 * [kind], rounds=600)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_site_that_ends_and_joins_again_does_not_hold_a_run_up_for_the_usual_timeout(
    how: signal.Signals, tmp_path: Path
) -> None:
    """The site registers anew, and its old worker, which the server asked, never answers."""
    with living(tmp_path / "care") as federation:
        federation.start("server", *federation.sites)
        orders = federation.order(9_000, 2, 600.0, TO_THE_END)
        federation.run(orders, 9_000, TO_THE_END)
        trouble = Trouble(federation, orders, 0)
        trouble.moment()
        federation.signal("a", how)
        federation.parties.running["a"].wait()
        trouble.until(lambda: federation.report(orders).waiting == ["a"], "people are told")
        federation.start("a")
        stood, began = trouble.round(), time.monotonic()
        trouble.until(lambda: trouble.round() > stood, "rounds go on")
        assert time.monotonic() - began < 180, federation.logs()
        assert "waiting for a" in (federation.folder / "run.out").read_text()


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seconds", [3, 60])  # before and after the site is missed
def test_a_network_that_is_cut_for_a_while_costs_no_round(seconds: int, tmp_path: Path) -> None:
    with living(tmp_path / "care") as federation:
        line = Line(federation.kit.port)
        line.lay(federation.folder / "a")
        federation.start("server", *federation.sites)
        orders = federation.order(ROUNDS, 2, 6.0, TO_THE_END)
        federation.run(orders, ROUNDS, TO_THE_END)
        trouble = Trouble(federation, orders, 0)
        trouble.moment()
        line.whole.clear()
        time.sleep(seconds)
        stood = trouble.round()
        line.whole.set()
        trouble.until(lambda: federation.report(orders).state == "done", "the end")
        found = Run(federation.run_folder(orders))
        assert stood < ROUNDS - 1 and found.rounds["round"].tolist() == list(range(ROUNDS))
        assert difference(found, federation.at_home(found, ROUNDS, TO_THE_END)) == 0, federation.logs()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_newcomer_and_a_lost_site_that_returns_are_taken_in_while_the_others_go_on(tmp_path: Path) -> None:
    """Here a round counts with two of three sites."""
    with living(tmp_path / "care", ("a", "b", "c")) as federation:
        federation.start("server", "a", "b")
        orders = federation.order(9_000, 2, 6.0, TO_THE_END)
        federation.run(orders, 9_000, TO_THE_END)
        trouble = Trouble(federation, orders, 0)

        def present(*sites: str) -> bool:
            report = federation.report(orders)
            return report.state == "running" and set(sites) <= set(report.present)

        trouble.until(lambda: trouble.round() >= 3, "round 3")
        federation.start("c")
        trouble.until(lambda: present("a", "b", "c"), "the newcomer")
        federation.kill("a")
        trouble.until(lambda: federation.report(orders).away.get("a"), "a is missed")
        went_on = trouble.round()
        trouble.until(lambda: trouble.round() > went_on, "the others go on")
        federation.start("a")
        trouble.until(lambda: present("a", "b", "c"), "a is back")
        federation.processes("b")[-1].kill()  # b's worker alone: FLARE ends the job
        trouble.until(lambda: not present(), "the job ends")
        trouble.until(lambda: present("a", "b", "c"), "everybody is back")
        assert main(["federation", "stop", str(federation.kit.folder)]) == 0
        assert federation.parties.running["run"].wait(300) == 130  # stopped; the same command goes on
        rounds = Run(federation.run_folder(orders)).rounds["round"].tolist()
        assert rounds == list(range(len(rounds)))
