"""What people of a federation read: messages name the true cause, and hints are what they can type."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from motet.cli.main import main
from motet.data.federated import DataError
from motet.deploy.agreement.schema import merge
from motet.deploy.flare.admin import AdminSession, unscheduled
from motet.deploy.flare.all_kits import create
from motet.deploy.flare.kits import Kit, open_kit
from motet.deploy.server import job_chain
from motet.deploy.server.job_chain import JobChain
from motet.deploy.server.run_files import JobReport, RunOrder
from motet.deploy.server.status import status_text
from motet.deploy.site.policy import Policy, PolicyError
from motet.deploy.site.table import SiteTable

# ---- classes ----


def described(folder: Path, **classes: str) -> dict[str, object]:
    for site, names in classes.items():
        rows = [{"x": float(i), "y": names.split()[i % len(names.split())]} for i in range(60)]
        pd.DataFrame(rows).to_csv(folder / f"{site}.csv", index=False)
    return {s: SiteTable(s, folder / f"{s}.csv", "y").describe() for s in classes}


def test_a_site_that_names_classes_otherwise_is_refused_with_names_and_a_hint(tmp_path: Path) -> None:
    found = merge(described(tmp_path, a="0 1", b="0 1", west="dead alive"), "fedavg")
    with pytest.raises(DataError, match="no class of west is a class of any other site") as e:
        found.check()
    said = str(e.value)
    assert "west has alive, dead; the other sites have 0, 1" in said and "--new-split" in said
    assert found.problems[0].partition("\n")[0] in found.text()
    both = merge(described(tmp_path, a="0 1", b="dead alive"), "fedavg")
    assert (
        "no class of a, b is a class of any other site: site a has 0, 1; site b has alive, dead"
        in both.text()
    )


def test_a_site_that_shares_some_classes_takes_part_with_a_note(tmp_path: Path) -> None:
    found = merge(described(tmp_path, a="0 1", b="1 2"), "fedavg").check()
    assert found.notes == ["site a has no rows of class 2", "site b has no rows of class 0"]


# ---- who takes part ----


def test_a_site_that_keeps_its_scores_is_not_said_to_be_away(tmp_path: Path) -> None:
    create("care", "localhost", ["west"], tmp_path / "care", 18004)
    said: list[str] = []
    order = RunOrder("care", "r", {})
    chain = JobChain(open_kit(tmp_path / "care" / "server"), order, tmp_path, said.append, 1.0)
    why = "its policy lets no scores leave (scores)"
    chain.show(JobReport("running", present=["west"], refused={"west": why}, round=3, rounds=9))
    chain.show(JobReport("running", present=["west"], refused={"west": why}, round=3, rounds=9))
    assert said == [f"west takes part, and refuses something: {why}", "round 3 of 9"]
    chain.next_line = 0.0
    chain.show(
        JobReport("running", present=["west"], refused={"west": why}, waiting=["west"], round=3, rounds=9)
    )
    assert said[-1] == "round 3 of 9: waiting for west"


def test_status_says_for_whom_a_run_waits(tmp_path: Path) -> None:
    from msgspec.structs import asdict

    found = {"federation": "care", "server": "h:1", "up": True, "sites": {}}
    runs = {
        state: asdict(JobReport(state, round=3, rounds=9, waiting=["west"])) for state in ("running", "done")
    }
    text = status_text(found | {"runs": runs})
    assert text.count("waiting for west") == 1


# ---- hints that can be typed ----


def test_hints_on_a_sites_table_are_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create("care", "localhost", ["a"], tmp_path / "care", 18005)
    pd.DataFrame({"x": [1.0, None] * 30, "z": [None] * 60, "y": ["a", "b"] * 30}).to_csv(
        tmp_path / "a.csv", index=False
    )
    join = [
        "federation",
        "join",
        str(tmp_path / "care" / "a"),
        "--data",
        str(tmp_path / "a.csv"),
        "--target",
        "y",
    ]
    assert main([*join, "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "--drop x" in said and "--missing mean fills them" in said
    assert main([*join, "--dry-run", "--drop", "z", "--missing", "mean"]) == 0


def test_files_that_are_not_there_are_named_with_who_writes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create("care", "localhost", ["a"], tmp_path / "care", 18006)
    assert main(["federation", "sign", str(tmp_path / "care"), "west.request"]) == 2
    assert "west.request cannot be read: No such file" in (said := capsys.readouterr().err)
    assert "hint: `motet federation request NAME`" in said
    assert main(["federation", "accept", str(tmp_path / "west"), "west.signed"]) == 2
    assert "hint: `motet federation sign`" in capsys.readouterr().err


def test_after_a_revocation_the_hints_lead_to_a_new_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create("care", "localhost", ["a"], tmp_path / "care", 18007)
    care = str(tmp_path / "care")
    assert main(["federation", "revoke", care, "a"]) == 0
    assert main(["federation", "renew", care, "a"]) == 2
    assert "request a --to KIT, then sign --replace" in capsys.readouterr().err


def test_a_policy_with_a_method_that_does_not_exist_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(PolicyError, match="unknown method fedavgg\nhint: did you mean 'fedavg'"):
        Policy.of({"methods": ["fedavgg"]})
    assert Policy.of({"methods": ["fedavg", "theirs:Mine"]}).methods == ("fedavg", "theirs:Mine")


class BusySession:
    """FLARE's own session with a server that has a job and does not begin with it."""

    def __init__(self, statuses: list[str], seconds: float = 75.0) -> None:
        self.statuses, self.came = statuses, datetime.now(UTC) - timedelta(seconds=seconds)

    def get_job_status(self, job: str) -> str:
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def list_jobs(self) -> list[dict[str, str]]:
        came = self.came.isoformat()
        return [
            {"job_id": f"{i}2345678-9", "status": s, "submit_time": came} for i, s in enumerate(self.statuses)
        ]

    def abort_job(self, job: str) -> None:
        raise AssertionError("nothing is to be aborted")


def session(kit: Kit, statuses: list[str]) -> AdminSession:
    made = AdminSession.__new__(AdminSession)  # without a server to log in at
    made.kit, made.session = kit, BusySession(statuses)
    return made


def test_run_says_when_the_server_does_not_begin_with_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create("care", "localhost", ["west"], tmp_path / "care", 18005)
    kit, said = open_kit(tmp_path / "care" / "server"), list[str]()
    monkeypatch.setattr(job_chain, "UNSCHEDULED", 0.0)
    chain = JobChain(kit, RunOrder("care", "r", {}), tmp_path, said.append, 1.0)
    JobReport("starting").write(tmp_path)
    chain.follow(session(kit, ["SUBMITTED", "SUBMITTED", "FINISHED:COMPLETED"]), "02345678-9")
    assert said[0].startswith("the server has job 02345678 for 75 s and has not begun with it")
    assert "log.txt" in said[0] and sum("has not begun" in line for line in said) == 1


def test_status_does_not_say_up_alone_of_a_server_that_begins_with_no_job(tmp_path: Path) -> None:
    create("care", "localhost", ["west"], tmp_path / "care", 18006)
    kit = open_kit(tmp_path / "care" / "server")
    assert session(kit, ["SUBMITTED", "RUNNING"]).not_begun() == {}  # it is busy with another
    ((job, seconds),) = session(kit, ["SUBMITTED", "FINISHED:COMPLETED"]).not_begun().items()
    assert job == "02345678-9" and seconds >= 75
    late = [unscheduled(job, seconds, kit.folder / "log.txt")]
    found = {"federation": "care", "server": "h:1", "up": True, "sites": {}, "runs": {}, "late": late}
    text = status_text(found).splitlines()
    assert text[0] == "care at h:1: up, and it begins with no job" and "job 02345678" in text[1]
