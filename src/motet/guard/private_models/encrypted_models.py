"""A linear model that stays with its owner and answers encrypted rows, as files and as a model of a stack.

    kept = KeptModel.of(model, features, client="clinic", classes=("healthy", "ill"))    # the owner's
    kept.save("kept")                    # kept/clinic.linear, which never leaves, and clinic.json for others
    model = EncryptedModel(kept.manifest, kept.answer)    # the asker's; `kept.answer` stands for whatever carries bytes
    StackedClassifier({"clinic": model}).fit(frame, y)

Who learns what stands in encrypted.py: the owner learns how many rows are asked; the asker learns scores, and from one
row more than there are columns it can compute the weights. A stack asks for more rows than that: what is protected
from the asker then is nothing but the digits below the noise, and what is protected from the owner is every row.
Knows weights, manifests and messages as bytes. Does not know how bytes are carried.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from motet.atomic import write_atomically
from motet.errors import UsageError
from motet.guard.private_models.encrypted import Asker, Owner, most_rows
from motet.guard.private_models.encrypted_scaling import (
    in_units,
    middles_of,
    scaling_of,
    spreads_of,
    standardised,
    units_of,
)
from motet.published.manifest import Feature, Manifest, Privacy
from motet.published.pipelines import check_categories_differ, wanted_columns
from motet.published.publish import random_rows
from motet.published.text_columns import decoded, encoded, source_of, with_empty
from motet.published.yes_no import EMPTY

Array = np.ndarray[Any, Any]
Send = Callable[[bytes], bytes]  # a question to the owner, and its answer
_ROUGH = 1e-4  # largest difference of probabilities between a model and its linear form; relative for numbers
_LARGEST = 1 << 30  # bytes of a message
_NONE = hashlib.sha256(b"").hexdigest()
_Blob = Annotated[bytes, Meta(max_length=1 << 24)]
_Hash = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Rows = Annotated[int, Meta(ge=1, le=4096)]


class EncryptedQuestion(msgspec.Struct, forbid_unknown_fields=True):
    """Public keys, and encrypted columns in pieces of at most 4,096 rows."""

    keys: _Blob
    rows: list[_Rows]
    columns: list[list[_Blob]]
    model: _Hash


class EncryptedAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """Encrypted scores of each piece."""

    scores: list[list[_Blob]]
    rows: list[_Rows]
    model: _Hash
    key: _Hash  # of the asker


def read_message(raw: bytes, kind: type[Any]) -> dict[str, Any]:
    """A message that came from the other side; what is none is refused in words."""
    try:
        if len(raw) > _LARGEST:
            raise ValueError(f"it has {len(raw)} bytes, and at most {_LARGEST} are read")
        found: dict[str, Any] = msgspec.structs.asdict(msgspec.msgpack.decode(raw, type=kind))
    except (msgspec.DecodeError, ValueError) as e:
        raise UsageError(
            f"this is no {kind.__name__.removeprefix('Encrypted').lower()}: {e}\nhint: motet encrypted --help"
        ) from e
    return found


def identity_of(manifest: Manifest) -> str:
    """What names a kept model and its units, so that nothing is read in other ones."""
    return hashlib.sha256(manifest.to_json().encode()).hexdigest()


def scores_of(manifest: Manifest) -> int:
    """How many scores a row has: one for numbers and two classes, else one for each class."""
    return len(manifest.classes) if len(manifest.classes) > 2 else 1


# ---- the owner ----


@dataclass
class KeptModel:
    """Weights (outputs, columns) and bias of a linear model, how many rows were answered, and what others may know."""

    manifest: Manifest
    weights: Array
    bias: Array
    answered: int = 0
    rows: int | None = None  # that may be answered in all; None: half of those below what tells the weights
    flood: float = field(default=2.5e-4, repr=False)  # noise, as a share of what scores vary by

    @classmethod
    def of(
        cls,
        model: Any,
        features: Sequence[Feature],
        *,
        client: str,
        classes: Sequence[str] = (),
        rows: int | None = None,
    ) -> KeptModel:
        """The linear form of a fitted model: logistic, linear or ridge regression, also behind scalers and encoders."""
        task: Any = "classes" if classes else "numbers"
        manifest = Manifest(client, task, _with_empty(model, features), tuple(classes), sha256=_NONE)
        weights, bias = _linear_form(model, manifest)
        scaling = scaling_of(manifest.features, weights, bias, bool(classes))
        manifest = replace(manifest, scaling=scaling)
        made = cls(manifest, weights, bias, rows=rows)
        family = "linear model asked under encryption"
        claim, own = made._owner().privacy, getattr(model, "privacy", None)
        if own:  # the weights themselves are private
            claim = replace(own, mechanism=claim.mechanism, note=f"{claim.note}; weights by {own.mechanism}")
        made.manifest = replace(manifest, privacy=claim, family=family, made_with="motet")
        return made

    def answer(self, raw: bytes, rows: int | None = None) -> bytes:
        """Encrypted scores for a question's encrypted rows; counts the rows. `rows` is a limit for this call alone."""
        owner, question = self._owner(rows), read_message(raw, EncryptedQuestion)
        if question["model"] != (mine := identity_of(self.manifest)):
            raise UsageError(
                f"{self.manifest.client} does not answer: the question was made for another model, in other units\n"
                "hint: ask with the manifest that lies beside the model, CLIENT.json"
            )
        try:
            found = owner.answer(question)
        except (ValueError, RuntimeError) as e:  # TenSEAL's errors are RuntimeErrors
            raise UsageError(f"{self.manifest.client} does not answer: {e}") from e
        self.answered = owner.answered
        return msgspec.msgpack.encode(found | {"model": mine})

    @property
    def telling(self) -> int:
        """How many scores tell the weights: one for each column and one for the bias, less one for each column of text,
        as long as its cells are of known categories."""
        named = [f for f in self.manifest.features if not f.name.endswith(f"={EMPTY}")]
        texts = {f.name.partition("=")[0] for f in named if f.kind == "flag" and "=" in f.name}
        return len(named) + 1 - len(texts)

    @property
    def limit(self) -> int:
        """How many rows are answered in all."""
        return most_rows(self.telling) if self.rows is None else self.rows

    def _owner(self, rows: int | None = None) -> Owner:
        weights, bias = in_units(units_of(self.manifest), self.weights, self.bias)
        noise = self.flood * float(np.linalg.norm(weights, axis=1).max())
        most = self.limit if rows is None else rows
        owner = Owner(weights, bias, most, noise, telling=self.telling)
        owner.answered = self.answered
        return owner

    def save(self, folder: str | Path) -> Path:
        """CLIENT.linear for the owner alone, and CLIENT.json for those who ask."""
        to = Path(folder) / f"{self.manifest.client}.linear"
        to.parent.mkdir(parents=True, exist_ok=True)
        self.write(to)
        to.with_suffix(".json").write_text(self.manifest.to_json())
        return to

    def write(self, to: Path) -> None:
        """The owner's file, for its owner alone."""
        out = io.BytesIO()
        count = np.array([self.answered, -1 if self.rows is None else self.rows])
        np.savez(out, weights=self.weights, bias=self.bias, count=count, flood=self.flood,
                 manifest=np.frombuffer(self.manifest.to_json().encode(), np.uint8))  # fmt: skip
        write_atomically(to, out.getvalue(), private=True)

    @classmethod
    def load(cls, path: str | Path) -> KeptModel:
        try:
            with np.load(path, allow_pickle=False) as found:
                answered, rows = found["count"].tolist()
                manifest = Manifest.from_json(found["manifest"].tobytes())
                limit = None if rows < 0 else rows
                return cls(manifest, found["weights"], found["bias"], answered, limit, float(found["flood"]))
        except (OSError, ValueError, KeyError) as e:
            raise UsageError(
                f"{path} holds no kept model: {e}\nhint: motet.KeptModel.of(…).save(folder)"
            ) from e


def _linear_form(model: Any, manifest: Manifest) -> tuple[Array, Array]:
    """Weights and bias, found by asking the model around its defaults; refused where random rows disagree."""
    middle, spread = middles_of(manifest.features), spreads_of(manifest.features)
    moves = _moves(manifest, middle, spread, wanted_columns(model))
    base = _scores(model, middle[None], manifest)[0]
    gained = _scores(model, middle + moves, manifest) - base
    _check_text(gained, manifest, wanted_columns(model))
    weights = np.linalg.lstsq(moves / spread, gained, rcond=None)[0].T / spread
    bias = base - weights @ middle
    rows = _rows_around(manifest, middle, spread)
    expected, found = _predicted(model, rows, manifest), _answers(rows @ weights.T + bias, manifest)
    large = 1.0 if manifest.classes else float(np.abs(expected).max()) or 1.0
    off = float(np.max(np.abs(found - expected))) / large
    if not off <= _ROUGH:
        raise UsageError(
            f"a {type(model).__name__} is not linear: a linear form of it is off by {off:.2g}\n"
            "hint: logistic, linear or ridge regression can be asked under encryption, also in a pipeline"
        )
    return weights, bias


def _with_empty(model: Any, features: Sequence[Feature]) -> tuple[Feature, ...]:
    """The features, with flags of empty cells where the model answers both these and unknown categories."""
    found, wanted, names = tuple(features), wanted_columns(model), {f.name for f in features}
    for column in [c for c in wanted if c not in names and any(source_of(n, wanted) == c for n in names)]:
        more = with_empty(found, [column])
        tried = Manifest("", "numbers", more, sha256=_NONE)
        rows = np.nan_to_num(np.array([[f.default for f in more]] * 2))
        rows[:, [source_of(f.name, wanted) == column for f in more]] = 0
        rows[1, -1] = 1
        with contextlib.suppress(ValueError, TypeError):  # it refuses one of them
            model.predict(_rows_for(model, rows, tried))
            found = more
    return found


def _rows_around(manifest: Manifest, middle: Array, spread: Array) -> Array:
    """Random rows: flags as `random_rows` has them, numbers a few spreads from their middles."""
    flags = np.array([f.kind == "flag" for f in manifest.features])
    drawn = middle + spread * np.random.default_rng(0).normal(size=(64, len(middle)))
    return np.where(flags, random_rows(manifest), drawn)


def _check_text(gained: Array, manifest: Manifest, wanted: Sequence[str]) -> None:
    """Refuse a column of text that changes no score, whatever its category."""
    for column in [c for c in wanted if c not in manifest.names]:
        flags = [
            k
            for k, n in enumerate(manifest.names)
            if source_of(n, wanted) == column and not n.endswith(f"={EMPTY}")
        ]
        try:
            check_categories_differ(column, gained[flags])
        except ValueError as e:
            raise UsageError(str(e).replace("sample=frame shows how the column holds them; or ", "")) from e


def _moves(manifest: Manifest, middle: Array, spread: Array, wanted: Sequence[str]) -> Array:
    """(steps, features): a step along each feature; of a column of text, from its usual category to another, to an
    empty cell and to an unknown one."""
    flags = np.array([f.kind == "flag" for f in manifest.features])
    moves = np.diag(np.where(flags & (middle == 1.0), -1.0, spread))
    for column in [c for c in wanted if c not in manifest.names]:
        places = [k for k, n in enumerate(manifest.names) if source_of(n, wanted) == column]
        if not places:
            raise UsageError(
                f"the model reads the column {column!r}, which is not among the features\n"
                "hint: feature_defaults(frame, kinds) with every column that the model reads"
            )
        usual = max(places, key=lambda k: middle[k])
        moves[usual] = 0.0
        for k in places:
            moves[k, usual] -= float(k != usual)
        if (
            f"{column}={EMPTY}" in manifest.names
        ):  # from the usual category to an unknown one, which has no flag
            moves = np.vstack([moves, -np.eye(len(middle))[usual]])
    return moves


def _rows_for(model: Any, x: Array, manifest: Manifest) -> Any:
    wanted = wanted_columns(model)
    return decoded(x, manifest.names, wanted) if wanted else x


def _scores(model: Any, x: Array, manifest: Manifest) -> Array:
    """(rows, outputs): log odds of the second of two classes, a score for each of more, or numbers."""
    rows = _rows_for(model, x, manifest)
    if not manifest.classes:
        return np.asarray(model.predict(rows), float).reshape(len(x), -1)
    if hasattr(model, "decision_function"):
        return np.asarray(model.decision_function(rows), float).reshape(len(x), -1)
    logs: Array = np.log(np.maximum(np.asarray(model.predict_proba(rows), float), 1e-300))
    odds: Array = logs - logs[:, :1]
    return odds[:, 1:] if odds.shape[1] == 2 else odds


def _predicted(model: Any, x: Array, manifest: Manifest) -> Array:
    rows = _rows_for(model, x, manifest)
    found = model.predict_proba(rows) if manifest.classes else model.predict(rows)
    return np.asarray(found, float).reshape(len(x), -1)


def _answers(scores: Array, manifest: Manifest) -> Array:
    """Probabilities (rows, classes) of scores, or numbers (rows, 1)."""
    if not manifest.classes:
        return scores
    full = np.concatenate([np.zeros((len(scores), 1)), scores], 1) if scores.shape[1] == 1 else scores
    powers = np.exp(full - full.max(1, keepdims=True))
    found: Array = powers / powers.sum(1, keepdims=True)
    return found


# ---- the asker ----


class EncryptedModel:
    """A model of another party that is asked under encryption; it predicts as fitted models do."""

    def __init__(self, manifest: Manifest, send: Send | None = None, key: bytes = b"") -> None:
        self.manifest, self.send, self.asker = manifest, send, Asker(key)
        self.classes_ = np.array(manifest.classes)
        self.feature_names_in_ = np.array(manifest.names, dtype=object)

    def question(self, x: Any) -> bytes:
        """Rows in the order of the manifest's features, encrypted; of a data frame, the columns of these names."""
        rows = np.asarray(encoded(x, self.manifest.names), np.float64)
        asked = self.asker.ask(standardised(self.manifest, rows)) | {"model": identity_of(self.manifest)}
        return msgspec.msgpack.encode(asked)

    def read(self, answer: bytes) -> Array:
        """Probabilities, or numbers (rows, 1)."""
        message = read_message(answer, EncryptedAnswer)
        if message["model"] != identity_of(self.manifest):
            raise UsageError(
                f"the answer is of another model than the manifest of {self.manifest.client}\n"
                "hint: --of names the manifest that the question was made with"
            )
        try:
            offset, unit = units_of(self.manifest).target
            scores = self.asker.read(message)
            if scores.shape[1] != (many := scores_of(self.manifest)):
                raise ValueError(f"it has {scores.shape[1]} scores for each row, and this model has {many}")
            return _answers(scores * unit + offset, self.manifest)
        except (ValueError, RuntimeError) as e:
            raise UsageError(f"the answer cannot be read: {e}\nhint: read it with the key that asked") from e

    def predict_proba(self, x: Any) -> Array:
        if self.send is None:
            raise UsageError("nobody answers this model\nhint: EncryptedModel(manifest, send)")
        return self.read(self.send(self.question(x)))

    def predict(self, x: Any) -> Array:
        found = self.predict_proba(x)
        return np.asarray(self.classes_[found.argmax(1)] if len(self.classes_) else found[:, 0])


def public_manifest(path: str | Path) -> Manifest:
    """The manifest of a kept model, as its owner gave it away."""
    try:
        found = Manifest.from_json(Path(path).read_bytes())
    except OSError as e:
        raise UsageError(f"{path} cannot be read: {e.strerror}\nhint: the owner's CLIENT.json") from e
    if found.privacy.mechanism != Privacy("CKKS").mechanism:
        raise UsageError(
            f"the model of {found.client} is a published one, and is not asked under encryption\n"
            "hint: motet.predict_published runs it here"
        )
    return found
