"""Masked sums between real processes over mutual TLS, whose sites and server are killed in the middle of rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.test_faults import TO_THE_END, Trouble
from living import living
from motet.deploy.demo import difference
from motet.deploy.site.ledger import read_ledger
from motet.runs.run import Run

ROUNDS, SITES = 60, ("a", "b", "c")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_masked_run_bears_a_killed_site_and_a_killed_server(tmp_path: Path) -> None:
    words = [TO_THE_END, "guard.masked=true"]
    with living(tmp_path / "care", SITES) as federation:
        for site in SITES:
            policy = 'masks = "required"\nsecret_orders = false\n'
            (federation.folder / site / "policy.toml").write_text(policy)
        federation.start("server", *SITES)
        orders = federation.order(ROUNDS, 3, 20.0, *words)
        federation.run(orders, ROUNDS, *words)
        trouble = Trouble(federation, orders, 0)
        for party in ("b", "server"):
            trouble.moment()
            trouble.harm(kill=[party])
        trouble.until(lambda: federation.report(orders).state == "done", "the end")
        found = Run(federation.run_folder(orders))
        same = federation.at_home(found, ROUNDS, TO_THE_END)  # plain means
        assert found.rounds["round"].tolist() == list(range(ROUNDS))
        assert difference(found, same) < 1e-3, federation.logs()
        sums = {x.sum_of for s in SITES for x in read_ledger(federation.folder / s / "kept")[0] if x.sum_of}
        assert sums == {"a,b,c"}
