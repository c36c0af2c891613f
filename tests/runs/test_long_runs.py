"""Memory of a run does not grow with its rounds: tables are written in pieces, and no round stays in memory."""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from motet.runs import store as stores
from motet.runs.finish import TABLES, write_table
from motet.runs.recipe import read
from motet.runs.run import NoProgress, run
from motet.runs.store import Store
from motet.runs.trainer import Trainer

CLIENTS = [f"client-{i:02}" for i in range(20)]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PIECE", 100)


def filled(folder: Path, rounds: int) -> Store:
    """A database of a run in which every client is scored in every round; the last one has a metric of its own."""
    folder.mkdir()
    store = Store(folder, writing=True)
    for number in range(rounds):
        numbers = {"accuracy": np.arange(20) / 20 + number}
        last = {"auc": np.ones(20)} if number == rounds - 1 else {}
        store.scored(number, "val", "personal", CLIENTS, [10] * 20, numbers | last)
        store.crossed(number, {c: (1, number) for c in CLIENTS})
        store.ended(number, 0.5, 20, 20, 20)
    store.commit()
    return store


def test_pieces_are_the_frame_and_a_file_of_them_reads_the_same(tmp_path: Path) -> None:
    filled(tmp_path / "run", 12).close()
    with closing(Store(tmp_path / "run")) as store:
        for table in TABLES:
            frame = store.frame(table)
            write_table(store.pieces(table), tmp_path / "t.parquet")
            pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), frame)
        scores = store.frame("scores")
        assert len(list(store.pieces("scores"))) == 3 and len(scores) == 240
    assert list(scores) == ["round", "part", "side", "client", "n", "accuracy", "auc"]
    assert scores["auc"].notna().sum() == 20 and scores["accuracy"].iloc[25] == 1 + 5 / 20


def test_writing_tables_takes_no_more_memory_for_more_rounds(tmp_path: Path) -> None:
    def peak(rounds: int) -> int:
        with closing(filled(tmp_path / str(rounds), rounds)) as store:
            tracemalloc.start()
            for table in TABLES:
                write_table(store.pieces(table), tmp_path / "t.parquet")
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        return most

    peak(9)  # imports, and what libraries remember of a first call
    few, many = peak(10), peak(200)
    assert many - few < 100_000  # the 3,800 more scores are 19 columns each: 1 MB as objects of Python


class Held(NoProgress):
    """Counts what Python holds, and the rows that wait to be written, after some rounds."""

    def __init__(self, *rounds: int) -> None:
        self.rounds, self.objects, self.rows = rounds, list[int](), list[int]()

    def on_round(self, trainer: Trainer, seconds: float) -> None:
        self.rows.append(sum(map(len, trainer.store.rows.values())))
        if trainer.number in self.rounds:
            gc.collect()
            self.objects.append(len(gc.get_objects()))


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_a_round_leaves_nothing_in_memory(method: str, tmp_path: Path) -> None:
    words = ["data=wine", "data.clients=4", "train.rounds=45", "train.patience=0", "train.evaluate=1"]
    held = Held(15, 25, 35, 44)
    words += [f"method={method}", "train.report=last", "save.checkpoint=1000"]
    done = run(read(words=words), tmp_path / "r", held)
    growths = [after - before for before, after in pairwise(held.objects)]
    assert (
        min(growths) < 9
    )  # not one object for each round; a cache may grow between two looks, not between all
    each = held.rows[0]
    assert each > 10 and max(held.rows) <= 100 + each  # of more than 450 rows
    assert set(done.scores["round"]) == set(range(45)) and len(done.rounds) == 45
