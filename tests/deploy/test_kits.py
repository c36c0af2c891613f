"""Kits: who gets what, what they allow, and what is refused before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="federations need the extra motet[flare]")

from motet.cli.main import main
from motet.deploy.flare.all_kits import add, create
from motet.deploy.flare.job_folder import write_job
from motet.deploy.flare.kits import ALLOWED, FederationError, open_kit
from motet.deploy.server.run_files import AT_SITES, RunOrder, clear_notes, make_order, note, read_note
from motet.runs import recipe as recipes
from motet.runs.recipe import RecipeError


@pytest.fixture(scope="module")
def care(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kits") / "care"
    create("care", "localhost", ["a", "b"], folder, 18002)
    return folder


def test_every_party_gets_its_own_key_and_nobody_gets_the_authoritys(care: Path) -> None:
    keys = {p: (care / p / "startup" / "client.key").read_bytes() for p in ("a", "b")}
    assert keys["a"] != keys["b"]
    root = (care / "authority" / "root.key").read_bytes()
    for party in ("server", "a", "b"):
        assert not [p for p in (care / party).rglob("*") if p.is_file() and root in p.read_bytes()]
    assert (care / "authority").stat().st_mode & 0o077 == 0


def test_a_kit_allows_four_classes_and_forbids_code_that_comes_with_a_job(care: Path) -> None:
    for party in ("server", "a", "b"):
        local = care / party / "local"
        resources = json.loads((local / "resources.json").read_text())
        assert resources["class_allow_list"] == list(ALLOWED)
        assert resources["class_list_enforcement_mode"] == "enforce"
        rights = json.loads((local / "authorization.json").read_text())["permissions"]
        assert list(rights) == ["project_admin"]
        assert rights["project_admin"]["byoc"] == rights["project_admin"]["shell_commands"] == "none"


def test_a_job_is_made_of_the_four_classes_and_holds_no_code(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", "r", ["a", "b"], {"folder": "x"}, {})
    assert {p.suffix for p in job.rglob("*") if p.is_file()} == {".json"}
    text = "".join(p.read_text() for p in job.rglob("*.json"))
    assert all(name in text for name in ALLOWED)


def test_newcomers_get_kits_of_the_same_authority_and_old_kits_stay_as_they_are(tmp_path: Path) -> None:
    care = tmp_path / "care"
    create("care", "localhost", ["a"], care, 18002)
    before = (care / "a" / "startup" / "client.crt").read_bytes()
    assert add(care, ["b"]) == [care / "b"]
    assert (care / "a" / "startup" / "client.crt").read_bytes() == before
    roots = {(care / p / "startup" / "rootCA.pem").read_bytes() for p in ("server", "a", "b")}
    assert len(roots) == 1
    with pytest.raises(FederationError, match="kits for b already"):
        add(care, ["b"])


@pytest.mark.parametrize(
    ("sites", "word"),
    [
        (["a", "a"], "different names"),
        (["north-1"], "north-1"),
        (["server"], "server"),
        (["private"], "private"),
    ],
)
def test_names_that_cannot_be_are_refused(sites: list[str], word: str, tmp_path: Path) -> None:
    with pytest.raises(FederationError, match=word):
        create("care", "localhost", sites, tmp_path / "care")
    assert not (tmp_path / "care").exists()


def test_a_folder_that_holds_a_federation_is_left_alone(care: Path) -> None:
    with pytest.raises(FederationError, match="holds a federation already"):
        create("care", "localhost", ["a"], care)


def test_a_folder_without_a_kit_or_with_the_wrong_one_is_refused(care: Path, tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="is no kit"):
        open_kit(tmp_path)
    with pytest.raises(FederationError, match="kit of a, and a server's kit is wanted"):
        open_kit(care / "a", "server")


def test_the_command_line_says_what_is_wrong_without_a_trace(
    care: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["federation", "join", str(care / "a")]) == 2
    assert "has not said where its data are" in capsys.readouterr().err
    assert main(["federation", "serve", str(care / "b")]) == 2
    assert "hint: motet federation join" in capsys.readouterr().err


# ---- orders ----


def test_orders_are_a_recipe_whose_data_are_at_the_sites() -> None:
    orders = make_order("care", None, ["method.name=ditto", "data.val=0.3"], 2, 0, 60.0)
    assert orders.settings["data"]["name"] == AT_SITES and orders.settings["data"]["val"] == 0.3
    assert orders.settings["engine"]["name"] == "flare"
    assert orders.min_replies == 2
    same = make_order("care", None, ["data.val=0.3", "method.name=ditto"], 3, 0, 60.0)
    assert same.run == orders.run  # so that the same command goes on with the same run
    assert make_order("other", None, ["data.val=0.3", "method.name=ditto"], 3, 0, 60.0).run != orders.run


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("method.name=centralised", "all rows in one place"),
        ("guard.attack=flip", "simulates attacks"),
        ("data.unseen=0.5", "every site has its own"),
    ],
)
def test_what_needs_all_rows_in_one_place_is_refused(word: str, reason: str) -> None:
    with pytest.raises(FederationError, match=reason):
        make_order("care", None, [word], 2, 0, 60.0)


def test_a_recipe_of_a_federation_does_not_run_without_its_sites() -> None:
    from motet.runs.run import run

    with pytest.raises((RecipeError, ValueError), match="motet federation run"):
        run(recipes.read(more={"data": {"name": AT_SITES}}))


def test_notes_reach_a_job_once(tmp_path: Path) -> None:
    note(tmp_path, "again")
    assert read_note(tmp_path) == "again"
    note(tmp_path, "stop")
    assert read_note(tmp_path) == "stop"
    clear_notes(tmp_path)
    assert read_note(tmp_path) == ""


def test_an_order_survives_its_file_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    order = make_order("care", None, ["method.name=ditto", "method.clip=inf"], 2, 0, 60.0)
    order.write(tmp_path)
    assert RunOrder.read(tmp_path) == order
    (tmp_path / "orders.json").write_text('{"federation": 3}')
    with pytest.raises(FederationError, match=r"orders\.json cannot be read: Expected `str`, got `int`"):
        RunOrder.read(tmp_path)
