"""Partitioners of flwr-datasets as data: by their interface, and the package itself where it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import motet
from motet.data import in_memory, load
from motet.data.federated import DataError

datasets = pytest.importorskip("datasets", reason="the library `datasets` is not installed")


class EveryThird:
    """A stand-in with the interface of flwr_datasets.partitioner.Partitioner."""

    def __init__(self, rows: Any) -> None:
        self.dataset = rows

    @property
    def num_partitions(self) -> int:
        return 3

    def load_partition(self, partition_id: int) -> Any:
        return self.dataset.select(range(partition_id, len(self.dataset), 3))


class Federated:
    """A stand-in with the interface of flwr_datasets.FederatedDataset."""

    def __init__(self, **partitioners: Any) -> None:
        self.partitioners = partitioners

    def load_partition(self, partition_id: int, split: str | None = None) -> Any:
        (only,) = self.partitioners.values()
        return only.load_partition(partition_id)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))


def table(many: int = 60) -> Any:
    label = [i // 5 % 2 for i in range(many)]
    columns = {
        "age": [i + 40 * y for i, y in enumerate(label)],
        "dose": [0.5 * i for i in range(many)],
        "label": label,
    }
    named = datasets.ClassLabel(names=["well", "ill"])
    kinds = {"age": datasets.Value("int64"), "dose": datasets.Value("float64"), "label": named}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


def pictures(many: int = 12, grey: bool = False) -> Any:
    from PIL import Image

    shape = (4, 5) if grey else (4, 5, 3)
    draw = np.random.default_rng(0)
    images = [Image.fromarray(draw.integers(0, 256, shape, np.uint8)) for _ in range(many)]
    named = datasets.ClassLabel(names=["zebra", "ant"])
    kinds = datasets.Features({"image": datasets.Image(), "label": named})
    return datasets.Dataset.from_dict(
        {"image": images, "label": [i % 2 for i in range(many)]}, features=kinds
    )


@pytest.mark.parametrize("wrap", [EveryThird, lambda rows: Federated(train=EveryThird(rows))])
def test_each_partition_is_a_client_with_its_rows(wrap: Any) -> None:
    section = in_memory.keep(wrap(table()))
    found = load.load(section["name"], {"target": "label", "client": section["client"], "scale": "none"})
    assert sorted(found.clients_data) == ["0", "1", "2"] and found.classes == ("ill", "well")
    held = found.clients_data["1"]
    doses = sorted(v for part in (held.train, held.val, held.test) for v in part.take().x[:, 1].tolist())
    assert doses == pytest.approx([0.5 * i for i in range(1, 60, 3)])


@pytest.mark.parametrize(("grey", "shape"), [(False, (3, 4, 5)), (True, (1, 4, 5))])
def test_images_come_with_channels_first_and_classes_by_name(grey: bool, shape: tuple[int, ...]) -> None:
    parts = in_memory.partitions_of(EveryThird(pictures(grey=grey)))
    x, y = parts["2"]
    assert x.shape == (4, *shape) and 0 <= x.min() < x.max() <= 1 and y.tolist() == ["zebra", "ant"] * 2


def test_a_run_trains_on_partitions(tmp_path: Path) -> None:
    run = motet.run(
        method="fedavg", data=EveryThird(table()), target="label", rounds=1, out=tmp_path / "runs"
    )
    assert run.scores["client"].nunique() == 3


def test_partitioners_that_cannot_be_read_say_what_is_missing() -> None:
    both = Federated(train=EveryThird(table()), test=EveryThird(table()))
    with pytest.raises(DataError, match=r"no number of partitions.\nhint: give one partitioner"):
        in_memory.keep(both)
    twice = pictures().add_column("second", [0] * 12).cast_column("second", datasets.ClassLabel(names=["a"]))
    with pytest.raises(DataError, match="1 columns of images and 2 of classes; expected one of each"):
        in_memory.keep(EveryThird(twice))


@pytest.mark.skipif(
    importlib.util.find_spec("flwr_datasets") is None, reason="flwr-datasets is not installed"
)
def test_the_packages_own_partitioners_are_read() -> None:
    from flwr_datasets.partitioner import DirichletPartitioner, NaturalIdPartitioner

    drawn = DirichletPartitioner(4, partition_by="label", alpha=1.0, min_partition_size=2, seed=0)
    drawn.dataset = table()
    assert sum(map(len, in_memory.partitions_of(drawn).values())) == 60
    natural = NaturalIdPartitioner(partition_by="label")
    natural.dataset = table()
    assert [set(f["label"]) for f in in_memory.partitions_of(natural).values()] in (
        [{"well"}, {"ill"}],
        [{"ill"}, {"well"}],
    )
