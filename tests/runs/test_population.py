"""Very many clients: the same results as with few, a sample that is scored, and nothing that lists everyone.

`many` lets five clients count as very many, so that small runs take the same way as a million clients.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import motet
from motet.client import population
from motet.client.population import NumberedNames, Population
from motet.data import client_views, copied_rows
from motet.data.federated import DataError, Pool
from motet.data.load import load
from motet.data.sets import synthetic
from motet.engines import meter
from motet.errors import Damaged
from motet.report.read import read as read_runs
from motet.report.tables import summary
from motet.runs import build, keep_place
from motet.runs.cluster import largest_shard
from motet.runs.compare_runs import differences
from motet.runs.recipe import read
from motet.runs.run import NoProgress, Stopped, run
from motet.runs.store import Store
from two_nodes import two_nodes

WORDS = ["data=wine", "data.clients=6", "data.unseen=0", "train.rounds=4", "method=ditto", "method.lr=0.05"]


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (population, client_views, build, meter, keep_place, synthetic):
        monkeypatch.setattr(module, "MANY", 5)


@pytest.fixture(autouse=True)
def _fresh_data() -> None:
    build.forget_data()


def ran(folder: Path, *words: str) -> motet.Run:
    build.forget_data()
    return run(read(words=[*WORDS, *words]), folder)


class StopAfter(NoProgress):
    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def on_round(self, trainer: object, seconds: float) -> None:
        self.left -= 1

    def should_stop(self) -> bool:
        return self.left <= 0


@pytest.mark.parametrize(
    "words", [[], ["method=fedavg"], ["engine.name=loop"], ["data.scale=client"]], ids=str
)
def test_a_population_gives_the_bits_of_a_dict(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ran(tmp_path / "few", *words)
    for module in (population, client_views, build, meter, keep_place):
        monkeypatch.setattr(module, "MANY", 5)
    much = ran(tmp_path / "many", "train.evaluate_clients=6", *words)
    assert isinstance(build.federated_data(read(words=[*WORDS, *words])).clients_data, Population)
    tables = [d for d in differences(Store(few.folder), Store(much.folder)) if not d.startswith("traffic")]
    assert tables == []
    pd.testing.assert_frame_equal(few.traffic, much.traffic)
    pd.testing.assert_frame_equal(few.asks, much.asks)
    assert few.rounds[["cohort", "up", "down"]].equals(much.rounds[["cohort", "up", "down"]])


@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("inner", ["vmap", "loop"])
def test_a_population_on_a_cluster_is_everybody_on_it(
    inner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_nodes().fill()
    words = ["engine.name=ray", "engine.actors=1", f"engine.inner={inner}", "train.rounds=2"]
    few = ran(tmp_path / "few", *words)
    for module in (population, client_views, build, meter, keep_place):
        monkeypatch.setattr(module, "MANY", 5)
    much = ran(tmp_path / "many", "train.evaluate_clients=6", *words)
    found = differences(Store(few.folder), Store(much.folder))
    assert [d for d in found if not d.startswith("traffic")] == []


def test_scoring_everyone_by_number_is_scoring_everyone(tmp_path: Path) -> None:
    all_of_them, by_number = ran(tmp_path / "a"), ran(tmp_path / "b", "train.evaluate_clients=6")
    assert differences(Store(all_of_them.folder), Store(by_number.folder)) == []
    assert "population" not in by_number.facts


def test_a_sample_is_scored_the_same_in_every_round_and_nothing_else_changes(tmp_path: Path) -> None:
    words = ["train.report=last", "train.evaluate=1"]
    everyone, some = ran(tmp_path / "a", *words), ran(tmp_path / "b", "train.evaluate_clients=3", *words)
    who = set(some.clients["client"])
    assert len(who) == 3 and some.facts["population"] == 6 and some.facts["scored"] == 3
    assert all(set(part["client"]) == who for _, part in some.scores.groupby(["round", "part", "side"]))
    expected = everyone.scores[everyone.scores["client"].isin(who)].reset_index(drop=True)
    pd.testing.assert_frame_equal(some.scores, expected)
    assert {p.stem for p in (some.folder / "models").glob("*.safetensors")} <= who
    found = summary(read_runs([some.folder])[0])
    assert found["sample"]["clients"] == 6 and found["sample"]["personal"]["low"] <= found["personal"]
    assert any(note.startswith("Scored over 3 of 6 clients") for note in found["notes"])


@pytest.mark.parametrize("fewest", [5, 100], ids=["very many", "few"])
def test_every_client_is_as_likely_to_be_drawn(fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "MANY", fewest)
    names, draws = NumberedNames(8), 800
    drawn = Counter(c for seed in range(draws) for c in build.drawn(names, 3, seed, "scored"))
    expected, spread = draws * 3 / 8, (draws * 3 / 8 * 5 / 8) ** 0.5
    assert sum(drawn.values()) == 3 * draws
    assert all(abs(drawn[c] - expected) < 4 * spread for c in names)


def test_a_population_that_is_stopped_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: None
) -> None:
    words = ["train.cohort=3", "train.evaluate_clients=4", "save.checkpoint=0"]
    whole = ran(tmp_path / "whole", *words)
    for rounds in (1, 2):
        build.forget_data()
        with pytest.raises(Stopped):
            run(read(words=[*WORDS, *words]), tmp_path / "parts", StopAfter(rounds))
    parts = ran(tmp_path / "parts", *words)
    assert differences(Store(whole.folder), Store(parts.folder)) == []
    Store(parts.folder).check()


def test_rows_that_are_drawn_when_needed_are_those_of_the_pool(many: None) -> None:
    drawn, pool = load("synthetic", {"clients": 12}), synthetic.page(0, 12, 30, 30, 375, 1.0)
    assert isinstance(drawn.clients_data, Population) and len(drawn.clients_data) == 12
    held = drawn.clients_data["client-07"]
    for number, part in enumerate((held.train, held.val, held.test)):
        rows = (pool.owner == 7) & (pool.part == number)
        assert torch.equal(part.x, torch.from_numpy(pool.x[rows]))
        assert torch.equal(part.y, torch.from_numpy(pool.y[rows]))


def test_what_is_known_from_counts_of_rows_draws_nobody(many: None, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    one = synthetic.one_of_page
    monkeypatch.setattr(synthetic, "one_of_page", lambda *a: drawn.append(a[-1]) or one(*a))
    federated = load("synthetic", {"clients": 12})
    monkeypatch.setattr(copied_rows, "_MOST_VALUES", 12 * 210 * 30 - 1)
    assert copied_rows.remarks(federated) == [] and drawn == []
    assert largest_shard(federated.clients_data, 5) == 5 * 300 * (30 * 4 + 16) and drawn == [0]


def test_settings_that_would_divide_rows_anew_are_refused(many: None) -> None:
    with pytest.raises(DataError, match="data.val = 0.3"):
        load("synthetic", {"clients": 12, "val": 0.3})


def test_memory_mapped_rows_are_not_copied(tmp_path: Path, many: None) -> None:
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (60, 2))
    x[:] = np.arange(120).reshape(60, 2)
    part = np.tile([0, 0, 0, 0, 1, 2], 10)
    pool = Pool(x, np.arange(60) % 2, "classes", ("no", "yes"), owner=np.arange(60) // 6, part=part,
                names=tuple(NumberedNames(10)), scaling="none")  # fmt: skip
    from motet.data.partition import DataSettings, partition

    found = partition("mapped", pool, DataSettings(), {})
    held = found.clients_data["client-3"]
    x[18, 0] = -1.0  # its first row
    assert isinstance(found.clients_data, Population) and float(held.train.x[0, 0]) == -1.0
    assert found.fingerprint() != partition("mapped", pool, DataSettings(), {}).fingerprint()


def test_clients_of_other_names_are_other_data(many: None) -> None:
    """Orders of rows are drawn by the names of clients: with others, the same rows give another result."""
    from motet.data.partition import DataSettings, partition

    def fingerprint(prefix: str) -> str:
        x, part = np.arange(120, dtype=np.float32).reshape(60, 2), np.tile([0, 0, 0, 0, 1, 2], 10)
        pool = Pool(x, np.arange(60) % 2, "classes", ("no", "yes"), owner=np.arange(60) // 6, part=part,
                    names=tuple(NumberedNames(10, prefix)))  # fmt: skip
        found = partition("named", pool, DataSettings(), {})
        assert isinstance(found.clients_data, Population)
        return found.fingerprint()

    assert fingerprint("client-") == fingerprint("client-") != fingerprint("site-")


def test_states_go_to_the_disk_where_they_would_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = build.resolve(read(words=WORDS))
    clients = found.federated.clients_data
    need = 2 * 6 * keep_place.kept_bytes(found.method, clients)
    monkeypatch.setattr(keep_place, "memory", lambda: 4 * need - 1)
    assert keep_place.keeps_on_disk("auto", found.method, clients)
    assert not keep_place.keeps_on_disk("memory", found.method, clients)
    monkeypatch.setattr(keep_place, "memory", lambda: 4 * need)
    assert not keep_place.keeps_on_disk("auto", found.method, clients)


def test_what_compression_leaves_at_very_many_clients_goes_to_the_disk(tmp_path: Path, many: None) -> None:
    """FedAvg's clients keep nothing of their own, and what did not leave of each update all the same."""
    words = ["method=fedavg", "train.evaluate_clients=6", "save.checkpoint=1000"]
    kept: list[list[bool]] = []

    class Watching(NoProgress):
        def on_round(self, trainer: Any, seconds: float) -> None:
            kept.append([trainer.keeps.on_disk, trainer.keeps.nothing])

    for guard in ([], ["guard.top=0.5"]):
        build.forget_data()
        run(read(words=[*WORDS, *words, *guard, "train.rounds=1"]), tmp_path / str(len(guard)), Watching())
    assert kept == [[False, True], [True, False]]


def test_large_states_on_disk_make_large_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = build.resolve(read(words=WORDS))
    given = found.method, found.training.clients_data
    assert keep_place.page_size("disk", *given) == 4096
    monkeypatch.setattr(keep_place, "_LARGE", keep_place.kept_bytes(*given))
    assert keep_place.page_size("memory", *given) == 4096
    for page in (keep_place.page_size("disk", *given), 4096):  # what a file has, it keeps
        with closing(Store(tmp_path, writing=True, page=page)) as store:
            assert store.db.execute("PRAGMA page_size").fetchone() == (65536,)


def test_a_database_whose_states_had_one_checksum_is_read_and_goes_on(tmp_path: Path) -> None:
    from motet.checksums import rows_checksum

    whole = ran(tmp_path / "whole", "save.checkpoint=0")
    with pytest.raises(Stopped):
        run(read(words=[*WORDS, "save.checkpoint=0"]), tmp_path / "old", StopAfter(2))
    with sqlite3.connect(tmp_path / "old" / "run.sqlite") as db:
        rows = db.execute("SELECT client, round, checksum FROM keeps ORDER BY client, round").fetchall()
        db.execute("DELETE FROM checks WHERE part = 'keeps'")
        db.execute("INSERT INTO checks VALUES ('keeps', 0, ?)", (rows_checksum(rows),))
        db.execute("PRAGMA user_version = 1")
    Store(tmp_path / "old").check()
    done = ran(tmp_path / "old", "save.checkpoint=0")
    assert differences(Store(whole.folder), Store(done.folder)) == []
    with sqlite3.connect(tmp_path / "old" / "run.sqlite") as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
        db.execute("DELETE FROM keeps WHERE client = 'client-2'")
    with pytest.raises(Damaged, match="what clients keep since round"):
        Store(tmp_path / "old").check()


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_clients_that_no_cohort_had_are_counted_in_a_note(place: str, tmp_path: Path) -> None:
    """Ditto's own models of such clients are untrained, and a mean over them says little of the method."""
    few = ran(tmp_path / "few", "train.cohort=2", "train.rounds=1", f"engine.keep={place}")
    assert few.facts["untrained"] == [4, 6]
    notes = read_runs([few.folder])[0].notes
    assert any(
        note.startswith("4 of 6 scored clients had not trained by the reported round") for note in notes
    )


def test_a_model_that_all_clients_share_is_trained_for_everyone(tmp_path: Path) -> None:
    words = ["method=fedavg", "train.cohort=2", "train.rounds=1", "guard.bits=8"]
    assert ran(tmp_path, *words).facts["untrained"] == []
