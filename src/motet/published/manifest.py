"""What a client says of a model that it publishes, and the model's bytes beside it.

A manifest is read from JSON with every field checked, because it comes from a stranger. Knows names, numbers
and a checksum. Does not know ONNX: whether the bytes are what the manifest says is asked in check.py.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from motet.errors import MotetError
from motet.published import fields

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["number", "flag"]
TaskKind = Literal["classes", "numbers"]
_LONG = 200  # letters of a name
LONGEST = 16 << 20  # bytes of a manifest


class ModelRefused(MotetError, ValueError):
    """A model or manifest that is not used; the message names the client it came from."""

    def __init__(self, client: str, reason: str) -> None:
        super().__init__(f"client {client}: {reason}")
        self.client, self.reason = client, reason


@dataclass(frozen=True)
class Feature:
    """A column that a model reads."""

    name: str
    kind: Kind = "number"
    default: float = 0.0  # stands where an asker lacks the column; nan where the model knows missing values


@dataclass(frozen=True)
class Privacy:
    """What the publisher claims about its model. Nobody else can check it."""

    mechanism: str = "none"
    epsilon: float | None = None
    delta: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Manifest:
    """What a published model reads, answers and claims."""

    client: str
    task: TaskKind
    features: tuple[Feature, ...]
    classes: tuple[str, ...] = ()  # names of the columns of probabilities; none for numbers
    privacy: Privacy = field(default_factory=Privacy)
    family: str = ""
    size: int = 0  # bytes of the model
    sha256: str = ""
    opset: int = 0  # of ai.onnx
    made_with: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.features)

    @property
    def outputs(self) -> int:
        return len(self.classes) or 1

    def to_json(self) -> str:
        said = asdict(self)
        for f in said["features"]:
            f["default"] = None if math.isnan(f["default"]) else f["default"]
        return json.dumps(said, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes, client: str | None = None) -> Manifest:
        """The manifest that `text` is; `client` is who sent it, where that is known."""
        who = client or "unknown"
        try:
            if len(text) > LONGEST:
                raise ValueError(f"it has {len(text)} bytes, and at most {LONGEST} are read")
            said = json.loads(text, parse_constant=_no_constant)
            if client is None and isinstance(said, dict):
                who = str(said.get("client", who))[:_LONG]
            manifest = _manifest(said)
        except (ValueError, RecursionError) as e:
            raise ModelRefused(who, f"its manifest is malformed: {e}") from e
        if client is not None and manifest.client != client:
            raise ModelRefused(client, f"its manifest says that it is of {manifest.client!r}")
        return manifest


@dataclass(frozen=True)
class Published:
    """A model that left its client: ONNX, and what the client says of it."""

    manifest: Manifest
    model: bytes

    @property
    def client(self) -> str:
        return self.manifest.client

    def tree(self) -> dict[str, Tensor]:
        """Plain data for the wire and the store."""
        return {"manifest": _tensor(self.manifest.to_json().encode()), "model": _tensor(self.model)}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Tensor], client: str | None = None) -> Published:
        """What `client` published, with its manifest, size and checksum checked; raises ModelRefused."""
        who = client or "unknown"
        try:
            said, model = (_bytes(tree[k]) for k in ("manifest", "model"))
        except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as e:
            raise ModelRefused(who, f"what it published is not a manifest and a model: {e!r}") from e
        return cls.checked(said, model, client)

    @classmethod
    def checked(cls, manifest: str | bytes, model: bytes, client: str | None = None) -> Published:
        """A manifest as JSON and the bytes it speaks of; raises ModelRefused where they do not fit."""
        read = Manifest.from_json(manifest, client)
        same_bytes(read, model)
        return cls(read, model)


def same_bytes(manifest: Manifest, model: bytes) -> None:
    """Refuse a model that is not the one its manifest speaks of."""
    if len(model) != manifest.size:
        raise ModelRefused(
            manifest.client, f"its model has {len(model)} bytes, and its manifest says {manifest.size}"
        )
    if hashlib.sha256(model).hexdigest() != manifest.sha256:
        raise ModelRefused(manifest.client, "its model's sha256 is not the one in its manifest")


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def _tensor(b: bytes) -> Tensor:
    import torch

    return torch.frombuffer(bytearray(b), dtype=torch.uint8) if b else torch.zeros(0, dtype=torch.uint8)


def _bytes(t: Tensor) -> bytes:
    import torch

    if t.dtype != torch.uint8 or t.ndim != 1:
        raise ValueError(f"a tensor of {t.dtype} and shape {tuple(t.shape)}, not a row of uint8")
    return t.numpy().tobytes()


# What each field of a manifest may be.


def _manifest(said: Any) -> Manifest:
    m = Manifest(
        **fields.record(
            said,
            "manifest",
            {
                "client": fields.name,
                "task": fields.one_of("classes", "numbers"),
                "features": fields.list_of(_feature),
                "classes": fields.list_of(fields.name),
                "privacy": _privacy,
                "family": fields.text,
                "size": fields.whole,
                "sha256": fields.digest,
                "opset": fields.whole,
                "made_with": fields.text,
            },
        )
    )
    if twice := fields.doubled(m.names) or fields.doubled(m.classes):
        raise ValueError(f"it names {twice!r} twice")
    if not m.features:
        raise ValueError("it has no features")
    if m.task == "classes" and len(m.classes) < 2:
        raise ValueError(f"a model of classes has at least two, not {len(m.classes)}")
    if m.task == "numbers" and m.classes:
        raise ValueError("a model of numbers has no classes")
    return m


def _feature(said: Any) -> Feature:
    kinds = {"name": fields.name, "kind": fields.one_of("number", "flag"), "default": fields.default}
    return Feature(**fields.record(said, "feature", kinds))


def _privacy(said: Any) -> Privacy:
    kinds = {
        "mechanism": fields.name,
        "epsilon": fields.maybe(fields.budget),
        "delta": fields.maybe(fields.chance),
        "note": fields.text,
    }
    return Privacy(**fields.record(said, "privacy", kinds))
