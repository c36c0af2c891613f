"""Versions of motet and of what it computes with, found without importing them.

Knows installed packages and motet's own files. Imports nothing heavy: every machine of a cluster is asked for these.
"""

from __future__ import annotations

import platform
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_NO_RESULT = ("cli", "report", "deploy", "evidence")  # rooms of motet that change no result
_SOURCE = (".py", ".h")  # compiled steps are made of a header in C++
OF_MODELS = ("scikit-learn", "onnxruntime", "skl2onnx")  # what makes a stack
Facts = dict[str, str]


@cache
def versions() -> dict[str, str]:
    def of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    names = ("motet", "torch", "numpy", "pandas", *OF_MODELS)
    return {"python": platform.python_version(), "machine": platform.machine()} | {n: of(n) for n in names}


@cache
def source_digest() -> str:
    """Of motet's own source, as far as it can change a result; read once in a process."""
    root, found = Path(__file__).parents[1], sha256()
    for file in sorted(f for f in root.rglob("*") if f.suffix in _SOURCE):
        place = file.relative_to(root)
        if place.parts[0] not in _NO_RESULT:
            found.update(f"{place.as_posix()} {sha256(file.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def facts_here() -> Facts:
    """What must be the same on all machines of a cluster, so that results are."""
    found = versions()
    names = {k: found[k] for k in ("python", "torch", "numpy")}
    return {"motet": f"{found['motet']} (source {source_digest()[:12]})"} | names
