"""A lying site as a real process over mutual TLS: one job with a reason, and never a chain of them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="federations need the extra motet[flare]")

import motet
from living import Living, difference, living, wait
from motet.deploy.server.run_files import JobReport, RunOrder
from motet.runs.run import Run

ROUNDS = 150  # seconds, in which the run command often asks who is there
TO_THE_END = "train.patience=0"
LIE = """

def _lie(self, letter, *more):
    return Reply({"train": "x"}).pack()


SiteService.use_layout = _lie
"""


def changed_motet(folder: Path) -> Path:
    """A copy of motet whose sites lie about their numbers of rows."""
    shutil.copytree(
        Path(motet.__file__).parent, folder / "motet", ignore=shutil.ignore_patterns("__pycache__")
    )
    service = folder / "motet" / "deploy" / "site" / "service.py"
    service.write_text(service.read_text() + LIE)
    return folder


def ended(federation: Living, order: RunOrder) -> JobReport:
    """How the run ended; its command has ended, too."""
    wait(lambda: federation.report(order).state in ("done", "failed"), 600, "the end", federation.logs)
    federation.parties.running["run"].wait(120)
    return federation.report(order)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_lying_process_is_one_job_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with living(tmp_path / "care", ("a", "b", "c")) as federation:
        federation.start("server", "a", "b")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(changed_motet(tmp_path / "changed")))
            federation.start("c")
        all_needed = federation.order(3, 3, 120.0)
        federation.run(all_needed, 3)
        report = ended(federation, all_needed)
        assert report.state == "failed" and "site c: its numbers of training" in report.why
        said = (federation.folder / "run.out").read_text()
        assert said.count(" with a, b, c") == 1 and "--min-sites is 3" in said, said
        two_needed = federation.order(ROUNDS, 2, 120.0, TO_THE_END)
        federation.run(two_needed, ROUNDS, TO_THE_END)
        report = ended(federation, two_needed)
        assert (report.state, set(report.excluded), report.present) == ("done", {"c"}, ["a", "b"])
        said = (federation.folder / "run.out").read_text()
        assert "c is excluded: its numbers of training" in said
        assert len(re.findall(r"job \w+ with", said)) == 2 and "taken in" not in said, "one job for each run"
        (federation.tables / "c.csv").unlink()
        far = Run(federation.run_folder(two_needed))
        assert difference(far, federation.at_home(far, ROUNDS, TO_THE_END)) == 0
