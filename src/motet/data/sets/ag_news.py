"""AG News (Zhang et al. 2015): 127,600 titles and first lines of news in four classes, 7,600 of them for the test."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from motet.data.federated import PARTS, DataError, Pool, refuse
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.files.local_files import content, find
from motet.data.text_codes import TextSettings, text_pool

_PLACE = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
SOURCES = (
    Remote("train.csv", f"{_PLACE}train.csv", md5="b1a00f826fdfbd249f79597b59e1dc12"),
    Remote("test.csv", f"{_PLACE}test.csv", md5="d52ea96a97a2d943681189a97654912d"),
)
FOLDERS = ("ag_news", "ag_news_csv", "AG_NEWS")
ORIGIN = "AG News is train.csv and test.csv of the folder ag_news_csv, as Zhang et al. gave it"
CLASSES = ("world", "sports", "business", "science")


def decode(folder: Path) -> dict[str, np.ndarray]:
    """Texts one after another as bytes, and where each begins."""
    texts: list[str] = []
    y: list[int] = []
    part: list[int] = []
    for source, which in zip(SOURCES, ("", "server_test"), strict=True):
        path = find(folder, source.file)
        for row in csv.reader(io.StringIO(content(path, md5=source.md5).decode("utf8"), newline="")):
            if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                raise DataError(f"{path}, row {len(y) + 1}: expected a class from 1 to 4, a title and a text")
            texts.append(f"{row[1]} {row[2]}")
            y.append(int(row[0]) - 1)
            part.append(PARTS.index(which) if which else -1)
    raw = [text.encode() for text in texts]
    start = np.cumsum([0, *map(len, raw)]).astype(np.int64)
    text = np.frombuffer(b"".join(raw), np.uint8)
    return {"text": text, "start": start, "y": np.array(y, np.int64), "part": np.array(part, np.int8)}


def load(
    *,
    text_length: int = 64,  # words of a text that are read
    vocabulary: int = 8000,  # different words at most
    tokenizer: str = "words",  # words: most frequent ones of training rows | hash | a pretrained network's folder
    rows: int = 0,  # take so many training texts, evenly from the whole; 0 = all
) -> Pool:
    """Codes of words; the official test texts are the server's."""
    refuse([f"rows is {rows}; expected 0 or more"] if rows < 0 else [])
    found = arrays("ag_news")
    y, part = np.asarray(found["y"]), np.asarray(found["part"])
    at = np.arange(len(y))
    if rows:
        train = np.flatnonzero(part < 0)
        some = train[np.linspace(0, len(train) - 1, min(rows, len(train))).astype(np.int64)]
        at = np.concatenate([some, np.flatnonzero(part >= 0)])
    start = np.asarray(found["start"])
    texts = [found["text"][start[i] : start[i + 1]].tobytes().decode() for i in at]
    how = TextSettings("text", text_length, vocabulary, tokenizer)
    how.check(["text"])
    return text_pool(texts, how, Pool(np.zeros((0, 0)), y[at], "classes", CLASSES, part=part[at]))
