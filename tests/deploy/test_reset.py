"""A site whose kept state is damaged: nothing goes on from it, and its owner can let it begin anew."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from deploy.test_job import ROUNDS, SITES, Came, Letters, Town
from motet.cli.main import main
from motet.deploy.flare.all_kits import create
from motet.deploy.flare.kits import FederationError
from motet.deploy.server.run_files import note, read_report
from motet.deploy.site.reset import reset_runs
from motet.deploy.site.storage import EncryptedStateError, read_layout, site_key
from motet.engines.letters import Letter
from motet.runs.run import Run


def half_way(folder: Path) -> Town:
    """A run that stopped after its first round."""
    town = Town(folder)

    def post(letters: Letters) -> Came:
        if Letter.read(next(iter(letters.values()))).job == "verb":
            note(town.run, "stop")
        return town.post(letters)

    assert town.go(post).state == "stopped"
    (town.run / "stop").unlink()
    return town


def spoil(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def run_folder(town: Town, site: str) -> Path:
    (found,) = (town.folder / site / "runs").glob("*.run")
    return found


def test_a_site_with_a_damaged_state_can_begin_anew_and_the_record_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    town = half_way(tmp_path)
    rounds = read_report(town.run).round
    for file in run_folder(town, "b").glob("*.keep"):
        spoil(file)
    with caplog.at_level(logging.WARNING, "motet.site"):
        assert town.go().state == "short"  # all three sites are needed, and one cannot go on
    assert "cannot be decrypted" in caplog.text and "motet federation reset" in caplog.text
    assert len(Run(town.run).rounds) == rounds
    (line,) = reset_runs(town.folder / "b", site_key(town.folder / "b" / "key"))
    assert town.order.run in line and "this site begins anew" in line
    with caplog.at_level(logging.WARNING, "motet.site"):
        assert town.go().state == "done"
    assert "set aside by `motet federation reset`" in caplog.text
    found = Run(town.run)
    assert found.rounds["round"].tolist() == list(range(ROUNDS))
    said = found.events.query("kind == 'reset'")["text"].tolist()
    assert said == [f"site b began anew in round {rounds + 1}: its owner gave up what it kept"]
    assert set(found.test.query("side == 'personal'")["client"]) == set(SITES)
    assert list(run_folder(town, "b").glob("before-*/*.keep"))  # nothing was deleted


def test_a_reset_while_a_run_is_going_on_lets_the_site_begin_anew_in_it(tmp_path: Path) -> None:
    town, done = Town(tmp_path), list[str]()

    def post(letters: Letters) -> Came:
        letter = Letter.read(next(iter(letters.values())))
        if letter.job == "verb" and letter.round == 1 and not done:
            done.extend(reset_runs(town.folder / "b", site_key(town.folder / "b" / "key"), town.order.run))
        return town.post(letters)

    assert town.go(post).state == "done" and done
    found = Run(town.run)
    assert not found.events.query("kind == 'excluded'").size
    said = found.events.query("kind == 'reset'")["text"].tolist()
    assert said == ["site b began anew in round 2: its owner gave up what it kept"]
    assert set(found.test.query("side == 'personal'")["client"]) == set(SITES)


def test_only_damaged_runs_are_reset_unless_one_is_named(tmp_path: Path) -> None:
    town = half_way(tmp_path)
    place, key = town.folder / "a", site_key(town.folder / "a" / "key")
    assert "nothing is damaged" in reset_runs(place, key)[0]
    assert town.go().state == "done"
    with pytest.raises(FederationError, match="unknown run"):
        reset_runs(place, key, "another")
    assert "not damaged; this site begins anew" in reset_runs(place, key, town.order.run)[0]
    assert not list(run_folder(town, "a").glob("*.keep"))


def test_a_damaged_layout_at_a_site_is_named(tmp_path: Path) -> None:
    town = half_way(tmp_path)
    path = run_folder(town, "c") / "layout.motet"
    spoil(path)
    with pytest.raises(EncryptedStateError, match="layout.motet is damaged"):
        read_layout(path)
    assert town.go().state == "short"
    assert "layout.motet" in reset_runs(town.folder / "c", site_key(town.folder / "c" / "key"))[0]
    assert town.go().state == "done"


@pytest.mark.parametrize("name", ["layout.motet", "run.sqlite"])
def test_damage_at_the_server_ends_the_run_with_the_name_of_the_file(tmp_path: Path, name: str) -> None:
    town = half_way(tmp_path)
    spoil(town.run / name)
    if name == "run.sqlite":
        (town.run / name).write_bytes((town.run / name).read_bytes()[:5000])
    report = town.go()
    assert report.state == "failed" and f"{name} is damaged" in report.why and "hint:" in report.why


def test_the_command_resets_a_sites_kit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create("care", "localhost", ["a"], tmp_path / "care", 8002)
    kit = tmp_path / "care" / "a"
    assert main(["federation", "reset", str(kit)]) == 0
    assert "nothing is damaged" in capsys.readouterr().out
    assert main(["federation", "reset", str(kit), "--run", "r"]) == 2
    assert main(["federation", "reset", str(tmp_path / "care" / "server")]) == 2
