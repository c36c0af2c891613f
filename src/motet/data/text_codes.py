"""Texts as rows of codes: words are numbered, and a text is the numbers of its first words.

Code 0 stands for no word and 1 for a word without a number. `words` numbers the words of the
training rows, the most frequent first; words in fewer than two training rows have none, so that no word of a
single text is in a model. `hash` numbers nothing: the code is a hash of the word, so that nothing is learned from
anybody's rows, and two words may share a code. A folder of a pretrained network has a tokenizer of its own.
Knows texts and codes. Does not know networks, nor whose rows they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np

from motet.data.build_clients import TRAIN, Partition
from motet.data.federated import DataError, Pool
from motet.data.pretrained_tokenizer import PretrainedTokenizer
from motet.data.table_files import SourceTable
from motet.text import nearest

NO_WORD, OTHER_WORD, FIRST = 0, 1, 2
_LEAST = 2  # training rows that a word must be in
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class TextSettings:
    """How texts of one column become codes."""

    column: str
    length: int = 64  # words of a text that are read
    vocabulary: int = 4000  # codes, those for no word and for other words included
    tokenizer: str = "words"  # or "hash", or a folder with the tokenizer.json of a pretrained network

    def check(self, there: Sequence[str]) -> None:
        if self.column not in there:
            raise DataError(
                f"there is no column of text {self.column!r}.\nhint: {nearest(self.column, list(there))}"
            )
        if self.length < 1 or self.vocabulary < FIRST + 1:
            raise DataError(
                f"texts of {self.length} words with {self.vocabulary} codes cannot be read; expected at least 1 and "
                f"{FIRST + 1}.\nhint: data.text_length=64 data.vocabulary=4000"
            )


def words_of(text: str) -> list[str]:
    """The words of a text, without capitals and signs.

    >>> words_of("It's 5 o'clock.")
    ['it', 's', '5', 'o', 'clock']
    """
    return _WORD.findall(text.casefold())


@lru_cache(maxsize=1 << 18)
def hash_code(word: str, vocabulary: int) -> int:
    """The code of a word that depends on the word alone."""
    number = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "big")
    return FIRST + number % (vocabulary - FIRST)


def rows_of_codes(texts: Iterable[str], length: int, code: Any) -> np.ndarray:
    """(texts, length) the codes of the first words; `code` gives the code of a word."""
    found = [[code(w) for w in words_of(t)[:length]] for t in texts]
    x = np.full((len(found), length), NO_WORD, np.float32)  # whole numbers: float32 holds them up to 2**24
    for row, codes in zip(x, found, strict=True):
        row[: len(codes)] = codes
    return x


def text_pool(texts: Sequence[str], how: TextSettings, pool: Pool) -> Pool:
    """The pool with codes of texts as its examples. Words get their final numbers once training rows are known."""
    reading = pool.reading | {
        "text": {"column": how.column, "length": how.length, "vocabulary": how.vocabulary}
    }
    if not any(words_of(text) for text in texts):
        raise DataError(
            f"no row has a word in the column {how.column!r}.\nhint: data.text names a column of texts"
        )
    if how.tokenizer not in ("words", "hash"):
        reader = PretrainedTokenizer(how.tokenizer)
        reading["text"] |= {"tokenizer": how.tokenizer}
        x = reader.rows(texts, how.length)
        return replace(pool, x=x, codes=reader.size, scaling="none", reading=reading)
    if how.tokenizer == "hash":
        x = rows_of_codes(texts, how.length, lambda w: hash_code(w, how.vocabulary))
        return replace(pool, x=x, codes=how.vocabulary, scaling="none", reading=reading)
    numbers: dict[str, int] = {}
    x = rows_of_codes(texts, how.length, lambda w: numbers.setdefault(w, FIRST + len(numbers)))
    return replace(pool, x=x, codes=how.vocabulary, scaling="none", reading=reading, words=tuple(numbers))


def with_learned_words(pool: Pool, partition: Partition) -> Pool:
    """The pool with numbers for the words of training rows alone, the most frequent first."""
    if not pool.words:
        return pool
    learned = (partition.part == TRAIN) & ~partition.held[partition.who]
    seen = np.zeros(FIRST + len(pool.words), np.int64)  # training rows that each word is in
    for row in pool.x[np.unique(partition.row[learned])].astype(np.int64):
        seen[np.unique(row)] += 1
    kept = [i for i in range(FIRST, len(seen)) if seen[i] >= _LEAST]
    kept = sorted(kept, key=lambda i: (-seen[i], pool.words[i - FIRST]))[: pool.codes - FIRST]
    if not kept:
        raise DataError(
            f"no word is in {_LEAST} training rows.\nhint: give more texts, or data.tokenizer=hash"
        )
    final = np.full(len(seen), OTHER_WORD, np.float32)
    final[NO_WORD] = NO_WORD
    final[kept] = np.arange(FIRST, FIRST + len(kept))
    words = [pool.words[i - FIRST] for i in kept]
    note = f"{len(words)} words of training rows have a code, of {len(pool.words)} in all texts; the others share one"
    x = final[pool.x.astype(np.int64)]
    text = pool.reading["text"] | {"words": words}
    return replace(
        pool,
        x=x,
        codes=FIRST + len(words),
        words=(),
        reading=pool.reading | {"text": text},
        notes=[*pool.notes, note],
    )


# ---- new texts for a trained model ----


@dataclass
class NewTexts:
    """New rows of a table for a model of texts; `reading` is what the model says of its training texts."""

    table: SourceTable
    reading: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)

    def values(self) -> np.ndarray:
        """(rows, length) codes."""
        frame, name = self.table.frame, str(self.reading["column"])
        TextSettings(name).check(list(frame.columns))
        if (empty := frame[name].isna()).any():
            self.notes.append(f"{int(empty.sum())} texts are empty")
        texts = frame[name].fillna("").map(str).tolist()
        if "tokenizer" in self.reading:
            return PretrainedTokenizer(self.reading["tokenizer"]).rows(texts, int(self.reading["length"]))
        if "words" not in self.reading:
            many = int(self.reading["vocabulary"])
            return rows_of_codes(texts, int(self.reading["length"]), lambda w: hash_code(w, many))
        known = {w: FIRST + i for i, w in enumerate(self.reading["words"])}
        return rows_of_codes(texts, int(self.reading["length"]), lambda w: known.get(w, OTHER_WORD))
