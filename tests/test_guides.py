"""The guides' code: it imports from motet alone, and the Python guide runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def inside(code: str) -> list[str]:
    """Lines that import from within the package."""
    return re.findall(r"^\s*(?:from motet\.\S+ import .*|import motet\..*)$", code, re.MULTILINE)


def is_file_of_the_package(page: Path, code: str) -> bool:
    """CONTRIBUTING shows whole files that go into the package; they begin with a docstring."""
    return page.name == "CONTRIBUTING.md" and code.startswith('"""')


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_users_code_imports_from_motet_alone(page: Path) -> None:
    own = [code for code in blocks(page) if not is_file_of_the_package(page, code)]
    assert [line for code in own for line in inside(code)] == []


def test_an_import_from_within_is_seen() -> None:
    assert inside("import motet\nfrom motet.core import verb\n  import motet.vec") == [
        "from motet.core import verb",
        "  import motet.vec",
    ]


def test_the_python_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))
    known: dict[str, Any] = {"__name__": "__main__"}
    for code in blocks(ROOT / "docs" / "guides" / "python.md"):
        exec(compile(code, "guide", "exec", dont_inherit=True), known)
    said = capsys.readouterr().out
    assert "fedavg: round 2 of 2, {'" in said and "did you mean lr?" in said
    assert list(known["model"].predict(known["patients"].head())) == ["prediction", "p(no)", "p(yes)"]
    assert set(known["run"].summary) >= {"personal", "global", "rounds"}
