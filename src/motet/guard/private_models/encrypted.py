"""A linear model that scores rows without reading them: CKKS homomorphic encryption by TenSEAL.

    asker = Asker(); question = asker.ask(x)           # to the owner: public keys, encrypted columns
    answer = Owner(weights, bias).answer(question)     # to the asker: encrypted scores
    scores = asker.read(answer)

Who learns what:
- The owner learns how many rows and columns were sent, and nothing about the values in them.
- The asker learns the scores (before any sigmoid), with noise of size `flood`. The noise fills all slots of a
  ciphertext, because unused slots would reveal more about the weights than the scores do, and their imaginary parts
  too; slots beyond the announced rows are multiplied by 0. But scores are linear: from one row more than there are
  columns, anyone can compute the weights, up to the noise. So an owner answers at most `rows` rows in all. The default
  is half of what is below that number, because a slot has two parts and an asker that cheats hides a second row in
  the imaginary one. The limit is meant for askers who follow the protocol: one that cheats can also send rows of any
  size, against which the noise is small, and learns more from each score. With such askers, or more rows, treat the
  weights as published, and make them private themselves.
- An eavesdropper learns sizes.
- Askers must not send decrypted scores back to owners: CKKS's rounding errors reveal the key (Li and
  Micciancio 2021).

Both sides are assumed to follow the protocol. TenSEAL's parser reads the other side's bytes in this process: use it
with partners only. Knows weights and rows. Does not know how messages are sent.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from motet.errors import UsageError, need
from motet.published.manifest import Privacy

_DEGREE = 8192  # of the polynomials
_PLACES = _DEGREE // 2  # rows in one ciphertext
_BITS = [60, 40, 60]  # one multiplication; 160 of at most 218 bits for 128-bit security
_SCALE = 2.0**40
Message = dict[str, Any]  # plain data for the wire: bytes, numbers and lists of them


def _tenseal() -> Any:
    need("asking under encryption", "privacy", "tenseal")
    import tenseal

    return tenseal


class Asker:
    """Holds the secret key, and rows that nobody else reads."""

    def __init__(self, key: bytes = b"") -> None:
        """With a new secret key, or the one that `key` of another asker gave."""
        ts = _tenseal()
        try:
            self._keys = (
                ts.context_from(key)
                if key
                else ts.context(ts.SCHEME_TYPE.CKKS, _DEGREE, coeff_mod_bit_sizes=_BITS)
            )
        except (ValueError, RuntimeError) as e:
            raise UsageError(f"this is no key of an asker: {e}\nhint: motet encrypted ask makes one") from e
        self._keys.global_scale = _SCALE

    @property
    def key(self) -> bytes:
        """The secret key, to be stored where nobody else reads it."""
        parts: Any = {"save_galois_keys": False, "save_relin_keys": False}
        return bytes(self._keys.serialize(save_public_key=True, save_secret_key=True, **parts))

    def ask(self, x: np.ndarray) -> Message:
        """Rows as encrypted columns, 4,096 rows in each ciphertext."""
        pieces = [x[i : i + _PLACES] for i in range(0, len(x), _PLACES)]
        columns = [[self._column(piece[:, k]) for k in range(x.shape[1])] for piece in pieces]
        return {"keys": self._public(), "rows": [len(p) for p in pieces], "columns": columns}

    def _public(self) -> bytes:
        parts: Any = {"save_galois_keys": False, "save_relin_keys": False}
        return bytes(self._keys.serialize(save_public_key=True, save_secret_key=False, **parts))

    def _column(self, values: np.ndarray) -> bytes:
        ts = _tenseal()
        full = np.zeros(_PLACES)
        full[: len(values)] = values
        return bytes(ts.ckks_vector(self._keys, full.tolist()).serialize())

    def read(self, answer: Message) -> np.ndarray:
        """Scores (rows, outputs); another key would give numbers that mean nothing, and is refused."""
        if answer["key"] != fingerprint(self._public()):
            raise ValueError("it was made for another key")
        pieces = [
            np.array([self._decrypted(one)[:rows] for one in outputs]).T
            for outputs, rows in zip(answer["scores"], answer["rows"], strict=True)
        ]
        return np.concatenate(pieces)

    def _decrypted(self, raw: bytes) -> np.ndarray:
        seal, context = _seal(), self._keys.seal_context().data
        plain = seal.Plaintext()
        seal.Decryptor(context, self._keys.secret_key().data).decrypt(_loaded(raw, context), plain)
        return np.array(seal.CKKSEncoder(context).decode_double(plain))


def fingerprint(keys: bytes) -> str:
    """What names public keys."""
    return sha256(keys).hexdigest()


@dataclass
class Owner:
    """Holds weights (outputs, columns) and a bias (outputs,) that nobody else reads."""

    weights: np.ndarray
    bias: np.ndarray
    rows: int | None = None  # how many it answers in all; None: half of those below what tells the weights
    flood: float = 1e-3  # standard deviation of the noise in scores
    telling: int = 0  # how many scores tell the weights; 0: one more than columns
    answered: int = field(default=0, init=False)

    def answer(self, question: Message) -> Message:
        """Encrypted scores of encrypted rows."""
        ts = _tenseal()
        self._count(question)
        keys = ts.context_from(question["keys"])
        if keys.is_private():
            raise ValueError(
                "the question contains the asker's secret key\nhint: the asker must make a new one"
            )
        scores = [
            self._scores([ts.ckks_vector_from(keys, c) for c in columns], rows, keys.seal_context().data)
            for columns, rows in zip(question["columns"], question["rows"], strict=True)
        ]
        return {"scores": scores, "rows": question["rows"], "key": fingerprint(question["keys"])}

    def _count(self, question: Message) -> None:
        columns = np.shape(self.weights)[1]
        if any(len(c) != columns for c in question["columns"]):
            raise ValueError(f"the question has other columns than the {columns} of this model")
        telling = self.telling or columns + 1
        most = most_rows(telling) if self.rows is None else self.rows
        rows = sum(question["rows"])
        if self.answered + rows > most:
            raise ValueError(
                f"{rows} more rows than the {self.answered} answered are more than {most}, and scores of "
                f"{telling} rows reveal the weights\nhint: send fewer rows, or let the owner "
                "allow more: motet encrypted answer --rows, KeptModel.of(…, rows=…)"
            )
        self.answered += rows

    def _scores(self, columns: list[Any], rows: int, context: Any) -> list[bytes]:
        if any(c.size() != _PLACES for c in columns) or not 0 < rows <= _PLACES:
            raise ValueError(
                f"a column of the question has not {_PLACES} places, or {rows} rows do not fit in it"
            )
        used = np.arange(_PLACES) < rows
        chance = np.random.default_rng()  # from the machine: noise that can be repeated hides nothing
        out = []
        for w, b in zip(np.atleast_2d(self.weights), np.ravel(self.bias), strict=True):
            total = columns[0] * (w[0] * used).tolist()
            for column, one in zip(columns[1:], w[1:], strict=True):
                total += column * (one * used).tolist()
            noise = self.flood * (chance.normal(size=_PLACES) + 1j * chance.normal(size=_PLACES))
            out.append(_plus(total.ciphertext()[0], b * used + noise, context))
        return out

    @property
    def privacy(self) -> Privacy:
        return Privacy(
            "CKKS",
            note=f"asked under encryption, degree {_DEGREE}; the asker learns scores, {np.shape(self.weights)[1] + 1} "
            "of which reveal the weights; the owner learns no value",
        )


def most_rows(telling: int) -> int:
    """How many rows are answered if so many scores tell the weights and a cheating asker hides two rows in one."""
    return max((telling - 2) // 2, 0)


# ---- ciphertexts, by SEAL itself: TenSEAL's vectors are real, and their slots are complex ----


def _seal() -> Any:
    _tenseal()
    import tenseal.sealapi

    return tenseal.sealapi


def _plus(ciphertext: Any, values: np.ndarray, context: Any) -> bytes:
    """The ciphertext with complex values added to its slots."""
    seal, plain = _seal(), _seal().Plaintext()
    seal.CKKSEncoder(context).encode(values.tolist(), ciphertext.parms_id(), ciphertext.scale, plain)
    seal.Evaluator(context).add_plain_inplace(ciphertext, plain)
    with tempfile.TemporaryDirectory() as folder:  # SEAL reads and writes files alone
        ciphertext.save(str(path := Path(folder) / "score"))
        return path.read_bytes()


def _loaded(raw: bytes, context: Any) -> Any:
    found = _seal().Ciphertext(context)
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder) / "score").write_bytes(raw)
        found.load(context, str(path))
    return found
