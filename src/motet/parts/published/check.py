"""What is asked of a stranger's model before it runs. Knows ONNX; does not run anything."""

from __future__ import annotations

from motet.parts.published.limits import USUAL, Limits
from motet.parts.published.manifest import Published, same_bytes


def refuse(model: Published, limits: Limits = USUAL) -> None:
    """Raise Refused for a model that must not run."""
    same_bytes(model.manifest, model.model)
