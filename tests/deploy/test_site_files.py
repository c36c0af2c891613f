"""A site's own files: a policy that is lost, settings that nobody wrote, and who may read what is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from motet.cli.main import main
from motet.deploy.flare.all_kits import create
from motet.deploy.flare.kits import FederationError, Kit, open_kit
from motet.deploy.site.config import open_service, write_source
from motet.deploy.site.policy import Policy, PolicyError
from motet.deploy.site.table import SiteTable
from patients import asked, layout_of, patients


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    folder = tmp_path_factory.mktemp("care")
    create("care", "localhost", ["a", "b"], folder / "kits", 8002)
    patients().to_csv(folder / "a.csv", index=False)
    kit = open_kit(folder / "kits" / "a", "site")
    write_source(kit, SiteTable("a", folder / "a.csv", "ill"))
    return kit


def test_a_site_that_joined_has_a_policy(joined: Kit) -> None:
    file = joined.folder / "policy.toml"
    assert Policy.read(file) == Policy(masks="required", scores="masked", counts="masked", sums="masked")
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("how", ["deleted", "a link to nowhere", "a folder"])
def test_a_policy_that_is_lost_is_an_error_and_not_the_default(joined: Kit, how: str, tmp_path: Path) -> None:
    file = joined.folder / "policy.toml"
    file.unlink()
    if how == "a link to nowhere":
        file.symlink_to(tmp_path / "not mounted" / "policy.toml")
    if how == "a folder":
        file.mkdir()
    try:
        with pytest.raises(PolicyError, match="policy") as e:
            open_service(joined.folder)
        assert "hint:" in str(e.value)
    finally:
        file.rmdir() if how == "a folder" else file.unlink(missing_ok=True)
        file.write_text("")


def test_a_policy_that_is_a_folder_is_said_in_words(
    joined: Kit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["federation", "join", str(joined.folder), "--policy", str(tmp_path), "--dry-run"]) != 0
    said = capsys.readouterr().err
    assert "cannot be read: Is a directory" in said and "hint: a policy is a TOML file" in said


@pytest.mark.parametrize(
    "line", ["rate = 1e300", "noise = inf", "loss_bound = inf", "rounds = 999999999999999999"]
)
def test_numbers_without_bounds_are_no_policy(tmp_path: Path, line: str) -> None:
    (tmp_path / "p.toml").write_text(line)
    with pytest.raises(PolicyError, match="up to 1e\\+15"):
        Policy.read(tmp_path / "p.toml")


@pytest.mark.parametrize(
    "change",
    [{"missing": "x"}, {"kind": "x"}, {"split": [0.5, 0.6]}, {"split": ["a", 1, 2, "auto"]}, {"target": ["a"]},
     {"least_category": "many"}, {"x": 1}],
)  # fmt: skip
def test_settings_that_joining_never_writes_are_refused(joined: Kit, change: dict[str, Any]) -> None:
    file = joined.folder / "data.json"
    good = file.read_text()
    file.write_text(json.dumps(json.loads(good) | change))
    try:
        with pytest.raises(FederationError, match="writes it anew"):
            open_service(joined.folder)
    finally:
        file.write_text(good)


def test_what_is_kept_is_for_the_owner_alone(joined: Kit) -> None:
    (joined.folder / "policy.toml").write_text("")  # sums may leave in the clear
    service = open_service(joined.folder)
    assert not asked(service, "layout", layout_of(service).tree()).refusal
    found = [joined.folder / "kept", *(joined.folder / "kept").rglob("*")]
    assert len(found) > 5 and [p for p in found if p.stat().st_mode & 0o077] == []
