"""Code that a recipe names, between organisations: a site imports what its policy trusts, a server what was said."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="federations need the extra motet[flare]")

from motet import trusted_code
from motet.cli.main import main
from motet.deploy.flare.all_kits import create
from motet.deploy.server.run_files import RunOrder, make_order
from motet.errors import UntrustedCode
from motet.trusted_code import AT_SITES

METHOD = """
from pathlib import Path
from motet.methods.fedavg import FedAvg
Path("imported").touch()
class Mine(FedAvg):
    pass
"""


@pytest.fixture(autouse=True)
def nothing_is_trusted_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trusted_code, "_trusted", {AT_SITES})
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "theirs.py").write_text(METHOD)
    (tmp_path / "recipe.toml").write_text('[method]\nname = "theirs:Mine"\n[train]\nrounds = 3\n')
    yield
    sys.modules.pop("theirs", None)


def dry_run(tmp_path: Path, *more: str) -> int:
    if not (tmp_path / "care").exists():
        create("care", "localhost", ["a"], tmp_path / "care", 18003)
    rows = [f"{20 + i % 40},{i % 7},{'old' if i % 40 > 20 else 'young'}" for i in range(120)]
    (tmp_path / "rows.csv").write_text("\n".join(["age,ward,ill", *rows]) + "\n")
    return main(["federation", "join", "care/a", "--data", "rows.csv", "--target", "ill", "--dry-run", *more])


def test_a_dry_run_imports_nothing_that_the_policy_does_not_trust(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "timed.toml").write_text(
        '[data]\nname = "timeit:main"\nargs = ["-s", "open(\'written\', \'w\')"]\n'
    )
    for more in (["--recipe", "recipe.toml"], ["--method", "theirs:Mine"]):
        assert dry_run(tmp_path, *more) == 2
        err = capsys.readouterr().err
        assert "names code that is not motet's" in err and "policy does not trust it" in err
    assert (
        dry_run(tmp_path, "--recipe", "timed.toml") == 2
    )  # a site's data are its own, whatever a recipe names
    assert "unknown setting data.args" in capsys.readouterr().err
    assert not (tmp_path / "imported").exists() and not (tmp_path / "written").exists()


def test_a_dry_run_imports_what_the_policy_trusts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "policy.toml").write_text('trusted = ["theirs:Mine"]\n')
    assert dry_run(tmp_path, "--recipe", "recipe.toml", "--policy", "policy.toml") == 0
    assert "what would leave a with theirs:Mine, in 3 rounds" in capsys.readouterr().out


def test_an_order_carries_what_may_run_to_the_jobs_of_the_server(tmp_path: Path) -> None:
    order = ("care", "recipe.toml", list[str](), 2, 0, 60.0)
    with pytest.raises(UntrustedCode, match="theirs:Mine"):
        make_order(*order)
    assert not (tmp_path / "imported").exists()
    made = make_order(*order, trust=True)
    made.write(tmp_path)
    assert set(RunOrder.read(tmp_path).trusted) == {"theirs:Mine", AT_SITES}
