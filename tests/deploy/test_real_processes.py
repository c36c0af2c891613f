"""Everything together between real processes over mutual TLS: the demo, and methods of each kind.

tests/deploy/test_simulator.py plays every method by the same group calls in FLARE's simulator.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="federations need the extra motet[flare]")

from living import living, server_has, table, wait
from motet.deploy.demo import demo, difference
from motet.runs.recipe import method_names
from motet.runs.run import Run


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_demo_comes_out_as_on_the_loop_engine(tmp_path: Path) -> None:
    said = demo(tmp_path / "care", [], print)
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
    policy.write_text('learn = "collect"\nnoise = 0.0\nsecret_orders = false\n')  # as on the loop
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
            wait(
                lambda o=orders: federation.report(o).state in ("done", "failed"),
                600,
                name,
                federation.logs,
            )
            far = Run(federation.run_folder(orders))
            with server_has(own, far.folder):
                found[name] = difference(far, federation.at_home(far, 2, *words))
    assert {name: gap for name, gap in found.items() if gap > 1e-6} == {}
