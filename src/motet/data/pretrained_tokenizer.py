"""The tokenizer of a pretrained network, from its folder (tokenizer.json).

Alone imports tokenizers. Knows texts and codes. Does not know the network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from motet.data.federated import DataError
from motet.errors import need


class PretrainedTokenizer:
    """Turns texts into the codes that a pretrained network was trained with."""

    def __init__(self, folder: str) -> None:
        path = Path(folder).expanduser()
        if not (path / "tokenizer.json").is_file():
            raise DataError(
                f"data.tokenizer is {folder!r}; expected words, hash, or a folder that holds a tokenizer.json.\n"
                "hint: the folder of net=hf:FOLDER usually has one"
            )
        need("the tokenizer of a pretrained network", "hf", "tokenizers", error=DataError)
        from tokenizers import Tokenizer

        self.inner = Tokenizer.from_file(str(path / "tokenizer.json"))
        config = path / "config.json"
        said = json.loads(config.read_text()) if config.is_file() else {}
        self.padding = int(said.get("pad_token_id") or 0)
        self.size = int(self.inner.get_vocab_size())

    def rows(self, texts: Sequence[str], length: int) -> np.ndarray:
        """(texts, length) codes, cut or padded."""
        self.inner.no_padding()
        self.inner.enable_truncation(length)
        x = np.full((len(texts), length), self.padding, np.float32)
        for row, found in zip(x, self.inner.encode_batch(list(texts)), strict=True):
            row[: len(found.ids)] = found.ids
        return x
