"""The benchmark's workloads: their settings, and the arrays that every side trains on.

Knows numpy and files. Knows nothing of torch, of networks or of sides.
The data are synthetic and learnable: every class has a template, an example is its class's template
plus noise, and every client sees its own mixture of classes. They are drawn from a seed, written once
as .npy files, and read by all sides, so no side can have easier data than another.

    python benchmarks/workloads.py --work W1 --data benchmarks/.data
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

VERSION = 3  # raise it when the drawing of data changes: files of another version are drawn again
CHUNK = 500  # clients drawn at a time, so that drawing W4-10000 stays small in memory


@dataclass(frozen=True)
class Work:
    """One workload: who trains on what, with which steps."""

    name: str
    net: str  # "linear", "cnn" or "resnet18", built by sides/nets.py
    clients: int
    train: int  # examples per client
    test: int
    shape: tuple[int, ...]  # of one example
    classes: int
    noise: float  # standard deviation; a template's pixels have standard deviation 1
    wrong: float  # share of labels drawn blindly, so that no side can reach 1.0
    alpha: float  # of the Dirichlet that draws a client's mixture of classes: small is uneven
    batch: int
    epochs: int
    lr: float
    rounds: int
    skip: int  # first rounds that the reported median leaves out
    seed: int = 0

    @property
    def steps(self) -> int:
        """SGD steps of one client in one round; the last batch of an epoch may be short."""
        return self.epochs * -(-self.train // self.batch)


W1 = Work(
    "W1", "linear", clients=100, train=210, test=90, shape=(30,), classes=30, noise=2.0, wrong=0.0, alpha=0.5,
    batch=10, epochs=5, lr=0.1, rounds=20, skip=5,
)  # fmt: skip
W2 = Work(
    "W2", "cnn", clients=20, train=600, test=100, shape=(1, 28, 28), classes=10, noise=1.5, wrong=0.1, alpha=0.5,
    batch=32, epochs=1, lr=0.05, rounds=5, skip=1,
)  # fmt: skip
W3 = Work(
    "W3", "resnet18", clients=10, train=200, test=50, shape=(3, 32, 32), classes=10, noise=0.5, wrong=0.1, alpha=100,
    batch=64, epochs=1, lr=0.001, rounds=2, skip=1,
)  # fmt: skip
GROWTH = [replace(W1, name=f"W4-{n}", clients=n, rounds=3, skip=1) for n in (100, 1_000, 10_000)]

WORKS: dict[str, Work] = {w.name: w for w in (W1, W2, W3, *GROWTH)}
# What the command line calls a work: W4 is three of them.
FAMILIES: dict[str, list[str]] = {"W1": ["W1"], "W2": ["W2"], "W3": ["W3"], "W4": [w.name for w in GROWTH]}


class Arrays(NamedTuple):
    """All clients' examples, stacked: (clients, examples, *shape) and (clients, examples)."""

    train_x: np.ndarray  # float32
    train_y: np.ndarray  # int64
    test_x: np.ndarray
    test_y: np.ndarray


def templates(work: Work, rng: np.random.Generator) -> np.ndarray:
    """One pattern per class, (classes, *shape). Images get a colour and 4x4 patches, which survive convolution."""
    if len(work.shape) == 1:
        return rng.standard_normal((work.classes, *work.shape)).astype(np.float32)
    channels, height, width = work.shape
    coarse = rng.standard_normal((work.classes, channels, height // 4, width // 4)).astype(np.float32)
    colour = rng.standard_normal((work.classes, channels, 1, 1)).astype(np.float32)
    return coarse.repeat(4, axis=2).repeat(4, axis=3) + (colour if channels > 1 else 0)


def draw(
    work: Work, count: int, pattern: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Examples of `count` clients, each with its own mixture of classes."""
    each = work.train + work.test
    mixture = rng.dirichlet(np.full(work.classes, work.alpha), size=count)  # (count, classes)
    y = np.stack([rng.choice(work.classes, size=each, p=p) for p in mixture])
    x = rng.standard_normal((count, each, *work.shape), dtype=np.float32)
    x *= work.noise
    x += pattern[y]
    blind = rng.random((count, each)) < work.wrong
    y[blind] = rng.integers(work.classes, size=blind.sum())
    return x, y.astype(np.int64)


def chunks(work: Work) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """All clients' examples, a chunk of clients at a time."""
    rng = np.random.default_rng(work.seed)
    pattern = templates(work, rng)
    for first in range(0, work.clients, CHUNK):
        rows = slice(first, min(first + CHUNK, work.clients))
        yield rows, *draw(work, rows.stop - first, pattern, rng)


def files(work: Work, folder: Path) -> dict[str, Path]:
    return {part: folder / work.name / f"{part}.npy" for part in Arrays._fields}


def recipe(work: Work) -> str:
    """What the drawn data depend on; steps and rounds do not matter here."""
    kept = ("clients", "train", "test", "shape", "classes", "noise", "wrong", "alpha", "seed")
    settings = {key: value for key, value in asdict(work).items() if key in kept}
    return json.dumps({"version": VERSION, **settings})


def generate(work: Work, folder: Path) -> None:
    """Write the arrays of `work`, unless they are there already."""
    stamp = folder / work.name / "recipe.json"
    if stamp.exists() and stamp.read_text() == recipe(work):
        return
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    write(work, files(work, folder))
    stamp.write_text(recipe(work))  # last, so that a killed drawing is drawn again


def write(work: Work, paths: dict[str, Path]) -> None:
    def opened(part: str, examples: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        size = (work.clients, examples, *shape)
        return np.lib.format.open_memmap(paths[part], mode="w+", dtype=dtype, shape=size)

    train_x, test_x = (
        opened("train_x", work.train, work.shape, "f4"),
        opened("test_x", work.test, work.shape, "f4"),
    )
    train_y, test_y = opened("train_y", work.train, (), "i8"), opened("test_y", work.test, (), "i8")
    for rows, x, y in chunks(work):
        train_x[rows], test_x[rows] = x[:, : work.train], x[:, work.train :]
        train_y[rows], test_y[rows] = y[:, : work.train], y[:, work.train :]


def load(work: Work, folder: Path, mmap: bool = False) -> Arrays:
    """The arrays of `work`; with `mmap` they are read from disk when touched."""
    missing = [str(path) for path in files(work, folder).values() if not path.exists()]
    if missing:
        raise FileNotFoundError(
            f"no data for {work.name}: {missing[0]} is missing\n"
            f"hint: python benchmarks/workloads.py --work {work.name} --data {folder}"
        )
    return Arrays(*(np.load(path, mmap_mode="r" if mmap else None) for path in files(work, folder).values()))


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the benchmark's data.")
    parser.add_argument("--work", default=",".join(FAMILIES), help="W1, W2, W3, W4 or a single W4-1000")
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / ".data")
    asked = parser.parse_args()
    for family in asked.work.split(","):
        for name in FAMILIES.get(family, [family]):
            generate(WORKS[name], asked.data)
            print(asked.data / name)


if __name__ == "__main__":
    main()
