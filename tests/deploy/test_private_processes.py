"""Private training between real processes over mutual TLS: ledgers are written, and budgets are never given back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="federations need the extra motet[flare]")
pytest.importorskip("opacus", reason="budgets need the extra motet[dp]")

from deploy.test_faults import TO_THE_END, Trouble
from living import Living, living
from motet.cli.main import main
from motet.deploy.server.run_files import RunOrder
from motet.deploy.site.ledger import LedgerLine, read_ledger
from motet.guard.accounting import NoisySteps, epsilon_of
from motet.runs.run import Run

ROUNDS, SITES, DELTA = 12, ("a", "b", "c"), 1e-3
NOISE = "privacy.noise_multiplier=2"
BUDGETS = {
    "a": 5.8,
    "b": 4.6,
    "c": 4.6,
}  # enough for 14 rounds and not for 24; a has fewer rows than the others
POLICY = f'masks = "required"\nprivate = "required"\ndelta = {DELTA}\n'


def lines(federation: Living, site: str, run: str = "") -> list[LedgerLine]:
    found, damage = read_ledger(federation.folder / site / "kept")
    assert damage == []
    return [line for line in found if run in ("", line.run)]


def private(federation: Living, site: str, run: str = "") -> list[NoisySteps]:
    """What a site's ledger counts: steps behind replies that left for the first time."""
    taken = [x for x in lines(federation, site, run) if x.steps and not x.clause and not x.again]
    return [NoisySteps(x.noise, x.rate, x.steps) for x in taken]


def spent(federation: Living, site: str) -> float:
    return epsilon_of(private(federation, site), DELTA)


def began(federation: Living, rounds: int, *more: str) -> RunOrder:
    words = [TO_THE_END, "guard.masked=true", "privacy.level=example", NOISE, *more]
    order = federation.order(rounds, 3, 20.0, *words)
    federation.run(order, rounds, *words)
    return order


def refused_everywhere(federation: Living, order: RunOrder, trouble: Trouble) -> None:
    """A run that would overspend: every site refuses its offer, and nothing of it leaves."""
    before = {s: private(federation, s) for s in SITES}

    def all_refused() -> bool:
        offers = {s: [x for x in lines(federation, s, order.run) if x.job == "offer"] for s in SITES}
        return all(found and found[-1].clause == "privacy" for found in offers.values())

    trouble.until(all_refused, "every site refuses the run")
    federation.parties.running["run"].kill()
    federation.parties.running["run"].wait()
    for site in SITES:
        assert not [x for x in lines(federation, site, order.run) if x.job == "verb" and not x.clause]
        assert private(federation, site) == before[site]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_budget_outlives_killed_processes_and_runs_that_are_deleted(tmp_path: Path) -> None:
    with living(tmp_path / "care", SITES) as federation:
        for site in SITES:
            (federation.folder / site / "policy.toml").write_text(f"{POLICY}epsilon = {BUDGETS[site]}\n")
        federation.start("server", *SITES)
        first = began(federation, ROUNDS)
        trouble = Trouble(federation, first, 0)
        trouble.until(lambda: trouble.round() >= 3, "round 3")
        trouble.harm(kill=["b", "server"])
        trouble.until(lambda: federation.report(first).state == "done", "the end")
        found = Run(federation.run_folder(first))
        assert found.rounds["round"].tolist() == list(range(ROUNDS))
        for site in SITES:  # a line may stand for a reply that a kill kept from leaving
            assert ROUNDS <= len(private(federation, site)) <= ROUNDS + 1
            assert spent(federation, site) <= BUDGETS[site]
            assert all(x.noise == 2.0 for x in private(federation, site))

        longer = began(federation, ROUNDS, "seed=1")  # the same once more costs more than is left
        refused_everywhere(federation, longer, Trouble(federation, longer, 0))

        for site in SITES:  # as if the run were installed anew: nothing of it is left, but the ledger
            federation.kill(site)
            shutil.rmtree(federation.folder / site / "kept" / "runs")
        federation.start(*SITES)
        again = began(federation, ROUNDS, "seed=2")
        refused_everywhere(federation, again, Trouble(federation, again, 0))

        short = began(federation, 1, "seed=3")
        Trouble(federation, short, 0).until(
            lambda: federation.report(short).state == "done", "a run within what is left"
        )
        for site in SITES:
            assert len(private(federation, site, short.run)) == 1 and spent(federation, site) <= BUDGETS[site]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_whole_sites_share_the_noise_of_masked_sums_between_real_processes(tmp_path: Path) -> None:
    whole = ["privacy.level=client", "privacy.noise=clients", "guard.clip=1", NOISE]
    with living(tmp_path / "care", SITES) as federation:
        for site in SITES:
            (federation.folder / site / "policy.toml").write_text(f"{POLICY}epsilon = 20.0\n")
        federation.start("server", *SITES)
        order = began(federation, 4, *whole)
        Trouble(federation, order, 0).until(
            lambda: federation.report(order).state in ("done", "failed"), "the end"
        )
        assert federation.report(order).state == "done", federation.logs()
        for site in SITES:  # one row may turn an update round: half of the noise counts
            assert private(federation, site) == [NoisySteps(1.0, 1.0, 1)] * 4
        out = federation.folder / "a.evidence.html"
        assert main(["evidence", str(federation.folder / "a"), "--run", order.run, "--to", str(out)]) == 0
        said = out.read_text()
        assert "4 replies that were privately trained" in said and "masked sums of 3 sites or more" in said
