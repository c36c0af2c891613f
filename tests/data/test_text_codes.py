"""Texts of a table: how words get codes, what is learned from training rows alone, and a run end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import motet
from motet.data.federated import DataError
from motet.data.load import load
from motet.data.text_codes import hash_code, words_of

TOPICS = {
    "world": "president election minister war treaty border nations vote",
    "sports": "match goal season team coach final league player",
    "business": "market shares profit bank trade stocks price oil",
    "science": "space software internet researchers planet robot data chip",
}
NEUTRAL = ["the", "a", "of", "in", "on", "said", "new", "for", "with", "over", "after", "today"]


def news(folder: Path, rows: int = 240, name: str = "news.csv", **columns: Any) -> Path:
    """A table of the form of AG News: a class, a title and a text; three publishers."""
    rng, file = np.random.default_rng(0), folder / name
    topics = rng.choice(list(TOPICS), rows)
    texts = [
        " ".join(rng.permutation([*rng.choice(TOPICS[t].split(), 3), *rng.choice(NEUTRAL, 5)]))
        for t in topics
    ]
    publisher = [f"publisher-{i % 3}" for i in range(rows)]
    frame = pd.DataFrame({"topic": topics, "publisher": publisher, "text": texts}).assign(**columns)
    frame.to_csv(file, index=False) if file.suffix == ".csv" else frame.to_parquet(file, index=False)
    return file


def options(**more: Any) -> dict[str, Any]:
    return {"target": "topic", "client": "publisher", "text": "text", "text_length": 10} | more


@pytest.mark.parametrize("name", ["news.csv", "news.parquet"])
def test_words_of_training_rows_have_codes_by_their_number(tmp_path: Path, name: str) -> None:
    found = load(str(news(tmp_path, name=name)), options())
    words = found.reading["text"]["words"]
    assert (
        found.shape == (10,)
        and found.codes == len(words) + 2
        and set(words) <= {*NEUTRAL, *" ".join(TOPICS.values()).split()}
    )
    everything = np.concatenate([c.train.take().x.numpy() for c in found.clients_data.values()])
    rows_with = [(everything == i).any(1).sum() for i in range(2, found.codes)]
    assert rows_with == sorted(rows_with, reverse=True) and min(rows_with) >= 2
    assert everything.max() < found.codes and (everything[:, -2:] == 0).all()  # texts have eight words


def test_words_of_test_rows_and_of_a_single_text_have_no_code(tmp_path: Path) -> None:
    part = ["test" if i % 4 == 0 else "val" if i % 4 == 1 else "train" for i in range(240)]
    file = news(tmp_path, part=part)
    frame = pd.read_csv(file)
    frame.loc[frame.part == "test", "text"] += " onlytested"
    frame.loc[2, "text"] = "Confidential " + frame.loc[2, "text"]
    frame.to_csv(file, index=False)
    words = load(str(file), options(part="part")).reading["text"]["words"]
    assert "onlytested" not in words and "confidential" not in words


def test_hashed_codes_depend_on_the_word_alone(tmp_path: Path) -> None:
    found = load(str(news(tmp_path)), options(tokenizer="hash", vocabulary=50))
    assert "words" not in found.reading["text"] and found.codes == 50
    assert hash_code("goal", 50) == hash_code("goal", 50) and 2 <= hash_code("goal", 50) < 50
    pd.read_csv(tmp_path / "news.csv")[:60].to_csv(tmp_path / "few.csv", index=False)
    few = load(str(tmp_path / "few.csv"), options(tokenizer="hash", vocabulary=50))

    def rows(federated: Any) -> set[tuple[float, ...]]:
        own = federated.clients_data["publisher-0"]
        return {tuple(r) for part in (own.train, own.val, own.test) for r in part.take().x.tolist()}

    assert rows(few) < rows(found)  # other rows change no code


def test_words_are_lower_case_and_without_signs() -> None:
    assert words_of("Oil: UP 5%, says Reuters") == ["oil", "up", "5", "says", "reuters"]


def test_a_column_of_text_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="(?s)no column of text 'body'.*hint: "):
        load(str(news(tmp_path)), options(text="body"))


@pytest.mark.parametrize("column", ["topic", "publisher"])
def test_the_target_or_the_client_as_text_is_refused(tmp_path: Path, column: str) -> None:
    with pytest.raises(DataError, match=f"(?s)data.text is '{column}'.*says the .*hint: "):
        load(str(news(tmp_path)), options(text=column))


@pytest.mark.parametrize("tokenizer", ["words", "hash"])
def test_a_column_without_a_word_is_refused(tmp_path: Path, tokenizer: str) -> None:
    with pytest.raises(DataError, match="(?s)no row has a word in the column 'text'.*hint: "):
        load(str(news(tmp_path, text="?!")), options(tokenizer=tokenizer))


def test_a_table_of_texts_is_classified_end_to_end(tmp_path: Path) -> None:
    run = motet.run(
        data=options() | {"name": str(news(tmp_path))}, method={"name": "fedavg", "lr": 0.5}, rounds=12, seed=0,
        net={"name": "auto"}, engine="vmap", out=tmp_path / "run",
    )  # fmt: skip
    model = run.model("publisher-0")
    assert model.facts["net"]["name"] == "transformer" and model.facts["net"]["padding"] == 0
    texts = pd.DataFrame({"text": ["The coach said the final goal", "Bank shares and oil price today"]})
    assert model.predict(texts)["prediction"].tolist() == ["sports", "business"]
