"""Everything together between real processes over mutual TLS: the demo, and every method."""

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


@pytest.mark.timeout(3600)
def test_every_method_between_real_processes_is_as_on_the_loop_engine(tmp_path: Path) -> None:
    found = {}
    policy = tmp_path / "policy.toml"
    policy.write_text('learn = "collect"\n')
    table(7).to_csv(own := tmp_path / "own.csv", index=False)  # what page's server scores models on
    with living(tmp_path / "care") as federation:
        federation.start("server")
        federation.start(*federation.sites, policy=policy)
        for name in method_names():
            if name == "centralised":  # it wants all rows in one place
                continue
            words = (f"method.name={name}",)
            told = (*words, f"data.server={own}", "data.target=y") if name.startswith("page") else words
            orders = federation.orders(2, 2, 120.0, *told)
            federation.drive(orders, 2, *told)
            wait(
                lambda o=orders: federation.told(o).get("state") in ("done", "failed"),
                600,
                name,
                federation.logs,
            )
            far = Run(federation.run_folder(orders))
            with server_has(own, far.folder):
                found[name] = difference(far, federation.at_home(2, *words))
    assert {name: gap for name, gap in found.items() if gap > 1e-6} == {}
