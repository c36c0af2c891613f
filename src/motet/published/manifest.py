"""What a client says of a model that it publishes, and the model's bytes beside it.

A manifest is read from JSON with every field checked, because it comes from a stranger. Knows names, numbers
and a checksum. Does not know ONNX: model_check.py asks whether the bytes are what the manifest says.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from motet.checksums import BLANK, FIELD, is_whole, with_checksum
from motet.errors import MotetError

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
    default: float = 0.0  # used where a client lacks the column; nan where the model knows missing values
    spread: float | None = field(
        default=None, compare=False, repr=False
    )  # of numbers; stays with the owner but for kept models


@dataclass(frozen=True)
class Privacy:
    """What the publisher claims about its model. Nobody else can check it."""

    mechanism: str = "none"
    epsilon: float | None = None
    delta: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Scaling:
    """Of a model that is asked under encryption: middle and spread of each feature, and those of its answers."""

    middle: tuple[float, ...]
    spread: tuple[float, ...]
    target: tuple[float, float]


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
    scaling: Scaling | None = None  # only of models that are asked under encryption

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.features)

    @property
    def outputs(self) -> int:
        return len(self.classes) or 1

    def to_json(self) -> str:
        said = {FIELD: BLANK} | asdict(self)
        for f in said["features"]:
            del f["spread"]
            f["default"] = None if math.isnan(f["default"]) else f["default"]
        if self.scaling is None:
            del said["scaling"]
        return with_checksum(json.dumps(said, allow_nan=False).encode()).decode()

    @classmethod
    def from_json(cls, text: str | bytes, client: str | None = None) -> Manifest:
        """The manifest that `text` is; `client` is who sent it, where that is known."""
        who = client or "unknown"
        try:
            if len(text) > LONGEST:
                raise ValueError(f"it has {len(text)} bytes, and at most {LONGEST} are read")
            manifest = msgspec.json.decode(text, type=_Manifest).checked()
            if is_whole(text if isinstance(text, bytes) else text.encode()) is False:
                raise ValueError("its checksum does not match: it was damaged or changed")
        except msgspec.DecodeError as e:
            raise ModelRefused(who, f"its manifest is malformed: {_explained(e)}") from e
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
        manifest = Manifest.from_json(said, client)
        same_bytes(manifest, model)
        return cls(manifest, model)


def same_bytes(manifest: Manifest, model: bytes) -> None:
    """Refuse a model that is not the one its manifest speaks of."""
    if len(model) != manifest.size:
        raise ModelRefused(
            manifest.client, f"its model has {len(model)} bytes, and its manifest says {manifest.size}"
        )
    if hashlib.sha256(model).hexdigest() != manifest.sha256:
        raise ModelRefused(manifest.client, "its model's sha256 is not the one in its manifest")


def _tensor(b: bytes) -> Tensor:
    import torch

    return torch.frombuffer(bytearray(b), dtype=torch.uint8) if b else torch.zeros(0, dtype=torch.uint8)


def _bytes(t: Tensor) -> bytes:
    import torch

    if t.dtype != torch.uint8 or t.ndim != 1:
        raise ValueError(f"a tensor of {t.dtype} and shape {tuple(t.shape)}, not a row of uint8")
    return t.numpy().tobytes()


# What each field of a stranger's manifest may be; all of them must be there, but for the checksum, and no others.

_Text = Annotated[str, Meta(max_length=1000)]
_Name = Annotated[str, Meta(min_length=1, max_length=_LONG)]
_Whole = Annotated[int, Meta(ge=0, lt=1 << 53)]
_Float32 = Annotated[float, Meta(gt=-1e38, lt=1e38)]
_MANY = 100_000  # features or classes
_RIGHT = {
    "task": "classes or numbers",
    "kind": "number or flag",
    "name": f"a name of 1 to {_LONG} letters",
    "client": f"a name of 1 to {_LONG} letters",
    "size": "a whole number of at least 0",
    "opset": "a whole number of at least 0",
    "sha256": "64 hexadecimal digits",
    "default": "a finite number of 32 bits, or null",
    "epsilon": "a number of at least 0, or null",
    "delta": "a number between 0 and 1, or null",
}


class _Feature(Struct, forbid_unknown_fields=True):
    name: _Name
    kind: Kind
    default: _Float32 | None  # null: the model knows missing values


class _Privacy(Struct, forbid_unknown_fields=True):
    mechanism: _Name
    epsilon: Annotated[float, Meta(ge=0, lt=1e38)] | None
    delta: Annotated[float, Meta(ge=0, le=1)] | None
    note: _Text


_Positive = Annotated[float, Meta(gt=0, lt=1e38)]


class _Scaling(Struct, forbid_unknown_fields=True):
    middle: list[_Float32]
    spread: list[_Positive]
    target: tuple[_Float32, _Positive]

    def checked(self, features: int) -> Scaling:
        if not len(self.middle) == len(self.spread) == features:
            raise ValueError(f"it scales {len(self.middle)} and {len(self.spread)} of {features} features")
        return Scaling(tuple(self.middle), tuple(self.spread), self.target)


class _Manifest(Struct, forbid_unknown_fields=True):
    client: _Name
    task: TaskKind
    features: Annotated[list[_Feature], Meta(max_length=_MANY)]
    classes: Annotated[list[_Name], Meta(max_length=_MANY)]
    privacy: _Privacy
    family: _Text
    size: _Whole
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    opset: _Whole
    made_with: _Text
    checksum: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = (
        ""  # of the manifest; earlier ones have none
    )
    scaling: _Scaling | None = None

    def checked(self) -> Manifest:
        """The manifest, if its fields also fit each other."""
        names, p = [f.name for f in self.features], self.privacy
        lines = [self.client, self.family, self.made_with, p.mechanism, p.note, *names, *self.classes]
        if odd := [v for v in lines if not v.isprintable()]:
            raise ValueError(f"{odd[0]!r:.80} is not a line of text")
        if twice := _doubled(names) or _doubled(self.classes):
            raise ValueError(f"it names {twice!r} twice")
        if not self.features:
            raise ValueError("it has no features")
        if self.task == "classes" and len(self.classes) < 2:
            raise ValueError(f"a model of classes has at least two, not {len(self.classes)}")
        if self.task == "numbers" and self.classes:
            raise ValueError("a model of numbers has no classes")
        features = tuple(
            Feature(f.name, f.kind, math.nan if f.default is None else f.default) for f in self.features
        )
        privacy = Privacy(p.mechanism, p.epsilon, p.delta, p.note)
        scaling = self.scaling.checked(len(features)) if self.scaling else None
        rest = (self.family, self.size, self.sha256, self.opset, self.made_with, scaling)
        return Manifest(self.client, self.task, features, tuple(self.classes), privacy, *rest)


def _explained(e: msgspec.DecodeError) -> str:
    """Which field is wrong, why, and what would be right."""
    why, _, where = str(e).partition(" - at `$")
    where = where.strip("`.")
    right = _RIGHT.get(where.rpartition(".")[2], "")
    return f"{where + ': ' if where else ''}{why}{'; expected ' + right if right else ''}"


def _doubled(names: list[str]) -> str | None:
    return next((n for n, many in Counter(names).items() if many > 1), None)
