"""The environments of the sides: which python runs which script, made on first use under .envs/.

Knows venv and pip, with pip's own configuration. torch is pinned and installed first, because the peers'
own requirements would pull another build. plain and motet run with the python that runs bench.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

ENVS = Path(__file__).parent / ".envs"
TORCH = "torch==2.13.0"
PACKAGES: dict[str, list[str]] = {
    "flwr": ["flwr[simulation]==1.41.*"],
    "pfl": ["pfl==0.6.*"],
    # what the sources import; the sources themselves are the person's own checkout
    "pfllib": ["h5py", "scikit-learn", "matplotlib"],
    "flbench": [
        "torchvision==0.28.*",
        "hydra-core",
        "ray==2.55.*",
        "rich",
        "pandas",
        "scikit-learn",
        "nvidia-ml-py",
    ],
}


class CannotInstall(RuntimeError):
    """pip failed; the message is its last line."""


def python(env: str) -> str:
    """The interpreter of an environment, "" being our own; installs it if it is not there yet."""
    if not env:
        return sys.executable
    client_data, wanted = ENVS / env, [TORCH, "numpy", *PACKAGES[env]]
    done = client_data / "installed.json"
    if not done.exists() or json.loads(done.read_text()) != wanted:
        install(client_data, env)
        done.write_text(json.dumps(wanted))  # last, so that a broken install is tried again
    return str(client_data / "bin" / "python")


def install(client_data: Path, env: str) -> None:
    print(f"installing {env} into {client_data}", file=sys.stderr)
    venv.create(client_data, with_pip=True)
    for packages in ([TORCH, "numpy"], [TORCH, *PACKAGES[env]]):
        pip(client_data, packages)


def pip(client_data: Path, packages: list[str]) -> None:
    command = [str(client_data / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        said = [row for row in ran.stderr.splitlines() if row.startswith("ERROR")] or ["pip failed"]
        raise CannotInstall(f"cannot install {' '.join(packages)}: {said[-1]}")
