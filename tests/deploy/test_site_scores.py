"""What a server knows of sites' classes, and what a dry run says of scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from motet.deploy.agreement.schema import Agreement, merge
from motet.deploy.site.dry_run import dry_run, dry_text
from motet.deploy.site.policy import Policy
from motet.deploy.site.table import SiteTable
from motet.runs.recipe import read


def test_a_server_knows_of_a_rare_class_from_the_sites_counts(tmp_path: Path) -> None:
    assert described(tmp_path, rare=30).class_counts() == {"no": 140, "yes": 60}
    assert described(tmp_path, rare=3).class_counts() == {"no": 180, "yes": 2}, "rounded"
    quiet = {s: d | {"counts": {}} for s, d in descriptions(tmp_path, rare=3).items()}
    assert merge(quiet, "fedavg").class_counts() == {}


def test_a_dry_run_names_the_metrics_that_leave(tmp_path: Path) -> None:
    descriptions(tmp_path, rare=30)
    report = dry_run(SiteTable("a", tmp_path / "a.csv", "y"), Policy(), read(words=["method=fedavg"]))
    (need,) = [n for n in report.needs if n.verb == "evaluate"]
    names = {name for name, _, shape in need.leaves if shape == ()}
    assert len(names) == len(need.leaves), "single numbers alone"
    assert {"personal.n", "personal.auc", "global.loss", "constant.accuracy"} <= names
    assert "this site's scores" in dry_text(report)


def descriptions(folder: Path, rare: int) -> dict[str, dict[str, object]]:
    """What two sites of 100 rows say of their tables."""
    for site in "ab":
        frame = pd.DataFrame({"x": np.linspace(0, 1, 100), "y": ["yes"] * rare + ["no"] * (100 - rare)})
        frame.to_csv(folder / f"{site}.csv", index=False)
    return {s: SiteTable(s, folder / f"{s}.csv", "y", least_category=1).describe() for s in "ab"}


def described(folder: Path, rare: int) -> Agreement:
    return merge(descriptions(folder, rare), "fedavg")
