"""Sites read messy tables as a simulation does: the same columns and rows, to the bit where each fills its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import messy
import sites
from motet.data.federated import DataError, FederatedData
from motet.deploy.agreement.handshake import handshake
from motet.deploy.agreement.layout import Layout
from motet.deploy.agreement.schema import merge
from motet.deploy.flare.kits import FederationError
from motet.deploy.site.config import TableReading
from motet.deploy.site.join import reading_of
from motet.deploy.site.policy import Policy
from motet.deploy.site.service import SiteService
from motet.deploy.site.table import SiteTable
from motet.engines.letters import Reply
from motet.runs.build import federated_data
from motet.runs.recipe import read

FINE = Policy(least_rows=1, least_category=1)  # else rare values stay at sites, and a simulation knows more


def tables(folder: Path) -> Path:
    """Hospitals with missing cells, decimal commas, a column of one's own, and categories that only test rows have."""
    folder.mkdir(parents=True)
    for seed, site in enumerate(messy.SITES):
        frame = messy.patients(seed).astype({"age": float})
        frame["part"] = np.resize(["train", "val", "test", "train"], messy.ROWS)
        frame.loc[seed::5, "age"] = np.nan
        if seed:
            frame.loc[seed::7, "ward"] = np.nan
            frame["bmi"] = frame["crp"] + 20
        frame.loc[frame.index[frame["part"] == "test"][0], "ward"] = f"only at {site}"
        frame["patient_id"] = np.arange(messy.ROWS) + 100
        write = messy.text(separator=";", decimal=",") if seed == 1 else messy.plain
        write(folder / f"{site}.csv", frame)
    return folder


def agreed(folder: Path, base: Path, scale: str, **how: Any) -> tuple[dict[str, SiteService], Layout]:
    more = TableReading(part="part", **how.pop("more", {}))
    services: dict[str, SiteService] = {
        s: sites.OfferedSite(
            s, base / s, SiteTable(s, folder / f"{s}.csv", "outcome", more=more, **how), FINE, b"k" * 32
        )
        for s in messy.SITES
    }
    call = lambda letter: {s: Reply.read(d.answer(letter.pack())) for s, d in services.items()}  # noqa: E731
    return services, handshake(call, "r", "stacking", scale=scale)[1]


def simulated(folder: Path, *words: str) -> FederatedData:
    return federated_data(read(None, [f"data={folder}", "data.target=outcome", "data.part=part", *words]))


@pytest.mark.parametrize("scale", ["client", "none"])
@pytest.mark.parametrize(
    ("missing", "by"),
    [
        ("median", "auto"),
        ("most_frequent", "auto"),
        ("mean", "client"),
        ("indicator", "client"),
        ("mean", "auto"),
    ],
)
def test_sites_and_a_simulation_have_the_same_bits(tmp_path: Path, missing: str, by: str, scale: str) -> None:
    folder = tables(tmp_path / "tables")
    services, layout = agreed(folder, tmp_path, scale, missing=missing, more={"missing_by": by})
    words = [f"data.missing={missing}", f"data.missing_by={by}", f"data.scale={scale}"]
    loop = simulated(folder, *words)
    assert [c[0] for c in layout.columns] == [c.name for c in loop.columns]
    assert ("age is missing" in [c[0] for c in layout.columns]) == (missing == "indicator")
    assert not any("only at" in c[0] or "patient" in c[0] for c in layout.columns)
    for site, service in services.items():
        here, there = service.rows.of("r").clients_data[site], loop.clients_data[site]
        assert here.columns == there.columns
        for part in ("train", "val", "test"):
            a, b = getattr(here, part).take(), getattr(there, part).take()
            assert (a.x == b.x).all() and (a.y == b.y).all()


def test_with_the_federations_scale_both_agree_to_rounding(tmp_path: Path) -> None:
    folder = tables(tmp_path / "tables")
    services, _ = agreed(folder, tmp_path, "federation", missing="indicator")
    loop = simulated(folder, "data.missing=indicator")
    for site, service in services.items():
        a, b = (f.clients_data[site].train.take().x for f in (service.rows.of("r"), loop))
        assert (a - b).abs().max() < 1e-6


def test_categories_of_validation_and_test_rows_are_not_said(tmp_path: Path) -> None:
    folder = tables(tmp_path / "tables")
    source = SiteTable("east", folder / "east.csv", "outcome", missing="mean", least_category=1,
                       more=TableReading(part="part"))  # fmt: skip
    assert "only at" not in str(source.describe(FINE)) and "only at" not in str(source.own_layout("classes"))


def test_a_site_without_missing_cells_has_zeros_where_others_say_missing(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    for seed, site in enumerate(messy.SITES):
        frame = messy.patients(seed).assign(part="")
        frame.loc[:: 3 if seed else 100, "crp"] = np.nan if seed else 1.0
        messy.plain(folder / f"{site}.csv", frame)
    services, layout = agreed(folder, tmp_path, "client", missing="indicator")
    assert layout.columns[-1][0] == "crp is missing"
    east = services["east"].rows.of("r").clients_data["east"]
    assert east.train.take().x[:, -1].abs().max() == 0 and east.columns[-1].here


def test_the_federations_median_is_known_to_nobody() -> None:
    words = dict.fromkeys(["missing_values", "keep"], []) | {"drop_rows": False, "part": "", "dates": "days"}
    given = type("Given", (), words | {"missing": "median", "missing_by": "federation", "decimal": "auto"})
    given.day_first = "auto"  # type: ignore[attr-defined]
    with pytest.raises(FederationError, match="sites send sums, which give means"):
        reading_of(given)


def test_sites_whose_columns_differ_by_case_are_told(tmp_path: Path) -> None:
    described = {}
    for site, name in (("a", "age"), ("b", "Age")):
        messy.plain(tmp_path / f"{site}.csv", messy.patients(0).rename(columns={"age": name}))
        described[site] = SiteTable(site, tmp_path / f"{site}.csv", "outcome").describe()
    with pytest.raises(DataError, match="'Age' and 'age' may be one column"):
        merge(described, "fedavg").check()


def test_a_sites_faults_are_said_with_options_of_its_command(tmp_path: Path) -> None:
    messy.holes("NA")(tmp_path / "a.csv", messy.patients(0))
    with pytest.raises(DataError, match="--missing mean fills them") as e:
        SiteTable("a", tmp_path / "a.csv", "outcome").describe()
    assert "data.missing" not in str(e.value)


def test_settings_of_a_table_change_what_its_split_is_bound_to(tmp_path: Path) -> None:
    from motet.deploy.site.split import TableSplit

    messy.plain(tmp_path / "a.csv", messy.patients(0))
    first, other = (
        TableSplit(
            tmp_path, SiteTable("a", tmp_path / "a.csv", "outcome", more=more), Policy(), b"k"
        ).digest()
        for more in (TableReading(), TableReading(dates="parts"))
    )
    assert first != other
