"""`On one machine` of docs/guides/federation.md, as a newcomer would do it: own CSV files, a server and three sites as
processes, over mutual TLS. Then what the guides on sites and evidence say comes afterwards."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare", reason="federations need the extra motet[flare]")
from motet.cli.main import main
from motet.deploy.demo import Parties, free_port

GUIDE = (Path(__file__).parents[2] / "docs/guides/federation.md").read_text()
SITES = ("north", "south", "west")


def commands() -> list[list[str]]:
    """The four commands, as words behind `motet`."""
    (block,) = re.findall(r"```text\n(motet federation create.*?)```", GUIDE, re.DOTALL)
    return [re.split(r"\s{2,}#", line)[0].split()[1:] for line in block.splitlines()]


def write_tables() -> None:
    draw = np.random.default_rng(0)
    for k, site in enumerate(SITES):
        x = draw.standard_normal((90 + 30 * k, 3))
        died = np.where(x.sum(1) + draw.standard_normal(len(x)) > 0, "yes", "no")
        frame = pd.DataFrame(
            {"age": 50 + 10 * x[:, 0], "pressure": 120 + 9 * x[:, 1], "crp": x[:, 2], "died": died}
        )
        frame.loc[::9, "crp"] = np.nan
        frame.to_csv(f"{site}.csv", index=False)


def do(*words: str) -> None:
    assert main(list(words)) == 0, " ".join(words)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_guide_on_one_machine_runs_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOTET_CONFIG", str(tmp_path / "config"))
    create, serve, join, order = commands()
    assert serve == ["federation", "serve", "care/server"] and join[:3] == [
        "federation",
        "join",
        "care/north",
    ]
    write_tables()
    (recipe,) = re.findall(r"```toml\n(seed.*?)```", GUIDE, re.DOTALL)
    Path("recipe.toml").write_text(recipe.replace("rounds = 20", "rounds = 2"))
    do(*create, "--port", str(free_port()))
    parties = Parties(Path("care"))
    try:
        parties.start("server", *serve[3:])
        for site in SITES:
            parties.start(site, *[w.replace("north", site) for w in join[3:]])
        do(*order, "--patience", "300")
        do("federation", "status", "care/server")
        do("federation", "stop", "care/server", "--all")
    finally:
        parties.end()
    look_back()


def look_back() -> None:
    """What the guides say of a run that is over: ledger, evidence, the site's model."""
    (run,) = (p for p in Path("care/server/runs").iterdir() if p.is_dir())
    do("show", str(run), "--clients")
    do("evidence", "care/server", "--run", run.name, "--to", "server.html")
    for site in SITES:
        do("federation", "ledger", f"care/{site}")
        do("evidence", f"care/{site}", "--run", run.name, "--to", f"{site}.html")
    do("evidence", "check", "server.html", *(f"{s}.html" for s in SITES))
    pd.read_csv("north.csv").drop(columns="died").head().to_csv("new.csv", index=False)
    do("predict", "--model", f"care/north/kept/models/{run.name}.safetensors", "new.csv")
