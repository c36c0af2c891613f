"""What a client says of a model that it publishes, and the model's bytes beside it.

A manifest is read from JSON with every field checked, because it comes from a stranger. Knows names, numbers
and a checksum. Does not know ONNX: whether the bytes are what the manifest says is asked in check.py.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["number", "flag"]
TaskKind = Literal["classes", "numbers"]
_LONG = 200  # letters of a name
LONGEST = 16 << 20  # bytes of a manifest
_MANY = 100_000  # features or classes that a manifest may list at all
_T = TypeVar("_T")


class Refused(ValueError):
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
            raise Refused(who, f"its manifest is malformed: {e}") from e
        if client is not None and manifest.client != client:
            raise Refused(client, f"its manifest says that it is of {manifest.client!r}")
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
        """What `client` published, with its manifest, size and checksum checked; raises Refused."""
        who = client or "unknown"
        try:
            said, model = (_bytes(tree[k]) for k in ("manifest", "model"))
        except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as e:
            raise Refused(who, f"what it published is not a manifest and a model: {e!r}") from e
        return cls.checked(said, model, client)

    @classmethod
    def checked(cls, manifest: str | bytes, model: bytes, client: str | None = None) -> Published:
        """A manifest as JSON and the bytes it speaks of; raises Refused where they do not fit."""
        read = Manifest.from_json(manifest, client)
        same_bytes(read, model)
        return cls(read, model)


def same_bytes(manifest: Manifest, model: bytes) -> None:
    """Refuse a model that is not the one its manifest speaks of."""
    if len(model) != manifest.size:
        raise Refused(
            manifest.client, f"its model has {len(model)} bytes, and its manifest says {manifest.size}"
        )
    if hashlib.sha256(model).hexdigest() != manifest.sha256:
        raise Refused(manifest.client, "its model's sha256 is not the one in its manifest")


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
        **_fields(
            said,
            "manifest",
            {
                "client": _name,
                "task": _one_of("classes", "numbers"),
                "features": _list(_feature),
                "classes": _list(_name),
                "privacy": _privacy,
                "family": _text,
                "size": _whole,
                "sha256": _digest,
                "opset": _whole,
                "made_with": _text,
            },
        )
    )
    if twice := _doubled(m.names) or _doubled(m.classes):
        raise ValueError(f"it names {twice!r} twice")
    if not m.features:
        raise ValueError("it has no features")
    if m.task == "classes" and len(m.classes) < 2:
        raise ValueError(f"a model of classes has at least two, not {len(m.classes)}")
    if m.task == "numbers" and m.classes:
        raise ValueError("a model of numbers has no classes")
    return m


def _feature(said: Any) -> Feature:
    kinds = {"name": _name, "kind": _one_of("number", "flag"), "default": _default}
    return Feature(**_fields(said, "feature", kinds))


def _privacy(said: Any) -> Privacy:
    kinds = {"mechanism": _name, "epsilon": _maybe(_budget), "delta": _maybe(_chance), "note": _text}
    return Privacy(**_fields(said, "privacy", kinds))


def _fields(said: Any, what: str, kinds: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise ValueError(f"a {what} is an object with {', '.join(kinds)}")
    if said.keys() != kinds.keys():
        odd = sorted(said.keys() ^ kinds.keys())
        raise ValueError(f"a {what} has exactly the fields {', '.join(kinds)}; wrong or missing: {odd[:5]}")
    read = {}
    for k, kind in kinds.items():
        try:
            read[k] = kind(said[k])
        except ValueError as e:
            raise ValueError(f"{what}.{k}: {e}") from e
    return read


def _text(v: Any) -> str:
    if not isinstance(v, str) or len(v) > 5 * _LONG or not v.isprintable():
        raise ValueError(f"not a line of text with at most {5 * _LONG} letters")
    return v


def _name(v: Any) -> str:
    if not _text(v) or len(v) > _LONG:
        raise ValueError(f"not a name of 1 to {_LONG} letters")
    return str(v)


def _whole(v: Any) -> int:
    if not isinstance(v, int) or isinstance(v, bool) or not 0 <= v < 1 << 53:
        raise ValueError("not a whole number of at least 0")
    return v


def _number(v: Any) -> float:
    # A whole number of a thousand digits is JSON, and no float.
    if not isinstance(v, int | float) or isinstance(v, bool) or not abs(v) < 1e38:
        raise ValueError("not a finite number of 32 bits")
    return float(v)


def _default(v: Any) -> float:
    return math.nan if v is None else _number(v)


def _budget(v: Any) -> float:
    if _number(v) < 0:
        raise ValueError("less than 0")
    return float(v)


def _chance(v: Any) -> float:
    if not 0 <= _number(v) <= 1:
        raise ValueError("not between 0 and 1")
    return float(v)


def _digest(v: Any) -> str:
    if not isinstance(v, str) or not re.fullmatch("[0-9a-f]{64}", v):
        raise ValueError("not 64 hexadecimal digits")
    return v


def _one_of(*words: str) -> Callable[[Any], str]:
    def check(v: Any) -> str:
        if v not in words:
            raise ValueError(f"neither {' nor '.join(words)}")
        return str(v)

    return check


def _maybe(kind: Callable[[Any], float]) -> Callable[[Any], float | None]:
    return lambda v: None if v is None else kind(v)


def _list(kind: Callable[[Any], _T]) -> Callable[[Any], tuple[_T, ...]]:
    def check(v: Any) -> tuple[_T, ...]:
        if not isinstance(v, list) or len(v) > _MANY:
            raise ValueError(f"not a list of at most {_MANY}")
        return tuple(kind(one) for one in v)

    return check


def _doubled(names: tuple[str, ...]) -> str | None:
    seen: set[str] = set()
    return next((n for n in names if n in seen or seen.add(n)), None)  # type: ignore[func-returns-value]
