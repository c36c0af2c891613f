"""Peers that are no packages: a folder with their sources, which an environment variable names.

Knows paths and git. Nothing of these projects is kept here; a side calls their classes where the folder is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def source(variable: str, below: str = "") -> dict[str, str]:
    """Make the checkout that `variable` names importable; its commit, for the table of versions."""
    folder = Path(os.environ[variable])
    sys.path.insert(0, str(folder / below))
    return {variable.removeprefix("MOTET_").lower(): commit(folder)}


def commit(folder: Path) -> str:
    asked = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    ran = subprocess.run(asked, capture_output=True, text=True)
    return ran.stdout.strip() if ran.returncode == 0 else "unknown commit"
