"""A local folder that holds a pretrained network: config.json and .safetensors files.

Knows files. Does not know whose network it is.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from motet.nets.layers import NetError


def folder_of(folder: str, prefix: str) -> Path:
    """The folder, if it holds a network."""
    path = Path(folder).expanduser()
    if not (path / "config.json").is_file() or not list(path.glob("*.safetensors")):
        what = (
            "the folder does not exist"
            if not path.is_dir()
            else "it has no config.json or no .safetensors file"
        )
        raise NetError(
            f"there is no pretrained network in {folder}: {what}.\n"
            "hint: fetch it once, on a machine that may: hf download OWNER/NAME --local-dir FOLDER; then "
            f"net={prefix}FOLDER"
        )
    return path


def digest(path: Path) -> str:
    """sha256 of what a folder says of its network, weights included."""
    found = sha256()
    for file in sorted([path / "config.json", *path.glob("*.safetensors")]):
        found.update(file.name.encode() + sha256(file.read_bytes()).digest())
    return found.hexdigest()
