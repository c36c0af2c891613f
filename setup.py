"""The wheel also carries experiments/, so that `motet reproduce` works without the repository."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

EXPERIMENTS = "motet/reproductions/experiments"  # a folder of its own, because its parent is put on the path


class WithExperiments(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            to = Path(self.build_lib) / EXPERIMENTS
            shutil.rmtree(to, ignore_errors=True)
            shutil.copytree("experiments", to, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))


setup(cmdclass={"build_py": WithExperiments})
