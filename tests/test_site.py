"""The documentation site: every link leads somewhere, and MkDocs builds it without a warning."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
site = runpy.run_path(str(ROOT / "docs" / "assemble.py"))


def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    assert site["assemble"](tmp_path / "build" / "docs") == []
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for name in ("src", "docs"):
        os.symlink(ROOT / name, tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=tmp_path,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "build/site/index.html").read_text()
    assert 'src="http' not in page and "fonts.googleapis" not in page
    assert "is the accuracy of each client" in page


def test_links_are_turned_to_the_site_and_code_is_left_alone(tmp_path: Path) -> None:
    text = "[a](guides/studies.md#tuning) `[b](x.md)` [code](../src/motet/core.py) [gone](nothing.md)"
    lost: list[str] = []
    found = site["with_links"]("docs/papers.md", text, site["pages"](), tmp_path, ROOT, lost)
    assert found == "[a](guides/studies.md#tuning) `[b](x.md)` code gone"
    assert lost == ["docs/papers.md: nothing.md"]
    home = site["with_links"]("README.md", "[m](docs/guides/methods.md)", site["pages"](), tmp_path, ROOT, [])
    assert home == "[m](guides/methods.md)"
