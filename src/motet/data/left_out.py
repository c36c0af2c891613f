"""Clients that are left out of the data, as if they had never been there (`data.without`).

Where the data name their clients, the rows of a client that is left out are gone before anything is learned from
rows: scaling, categories, classes, the server's rows. Files of tables are copied without these rows and then read
like any others, so that whatever is found out about a column is found out without them. Where a split draws the
clients, all others keep the rows that they were given, their parts, and whether they are held out.
Knows names, rows and files of tables. Does not know what columns mean.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from motet.data import targets
from motet.data.csv_text import encoding_of, records
from motet.data.federated import PARTS, DataError, Pool
from motet.data.splits.basic import ranked
from motet.data.table_files import SourceTable, find, is_csv, read
from motet.text import nearest

NATURAL = ("auto", "natural")  # splits in which clients are those that the data name, if they name any
_LEFT_OUT = len(PARTS)  # the part of a row that nobody gets


class NoSuchClient(DataError):
    """Clients to be left out that the data do not have."""

    def __init__(self, text: str, names: Collection[str] = ()) -> None:
        super().__init__(text)
        self.names = tuple(names)


def check_known(names: Collection[str], known: Collection[str]) -> None:
    if unknown := [n for n in names if n not in known]:
        raise NoSuchClient(
            f"data.without names {unknown[0]!r}, and the data have no such client\n"
            f"hint: {nearest(unknown[0], sorted(known))}",
            unknown,
        )


def check_some_left(names: Collection[str], known: Collection[str]) -> None:
    if set(known) <= set(names):
        raise DataError(
            f"data.without leaves out every client: {', '.join(sorted(known))}\nhint: leave fewer out"
        )


# ---- pools ----


def names_clients(pool: Pool, split: str) -> bool:
    """Whether the clients are those that the data name."""
    return pool.owner is not None and split in NATURAL


def marked(pool: Pool, part: np.ndarray, split: str, without: Collection[str]) -> np.ndarray:
    """Parts of rows, with the rows of clients that the data name and that are left out given to nobody."""
    names = [n for n in without if n not in pool.left_out]
    if not names or pool.owner is None or not names_clients(pool, split):
        return part
    who, known = ranked(pool.owner, pool.names)
    check_known(names, known)
    check_some_left(names, known)
    gone = np.isin(who, [known.index(n) for n in names])
    return np.where(gone, _LEFT_OUT, part)


def staying(pool: Pool, clients: Sequence[str], split: str, without: Collection[str]) -> np.ndarray:
    """(clients,) which of the assigned clients are not left out."""
    if without and not names_clients(pool, split):
        check_known(without, clients)
        check_some_left(without, clients)
    return np.array([c not in without for c in clients], bool)


# ---- files ----


@contextmanager
def smaller_files(path: Path, client: str, without: Sequence[str]) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """A file or folder of tables that holds no row of these clients, and whom it lacks: nobody if the files do not
    name clients. What is not changed is linked; the copies are this user's alone, and gone after the block."""
    by_file = path.is_dir() and not client
    table = read(path, texts=[client]) if without and client else None
    if not without or not (by_file or (table and client in table.frame.columns)):
        yield path, ()
        return
    with tempfile.TemporaryDirectory() as scratch:
        # messages show no cell of data that were given as objects, which lie in a folder of this name
        place = Path(scratch) / (path.parent.name if path.parent.name == "given" else "tables")
        place.mkdir()
        if table is None:
            link_other_files(path, place, without)
        else:
            copy_other_rows(path, place, table, client, without)
        yield place if path.is_dir() else place / path.name, tuple(without)


def link_other_files(path: Path, place: Path, without: Sequence[str]) -> None:
    files = {file.stem: file for file in find(path)}
    check_known(without, files)
    check_some_left(without, files)
    for name, file in files.items():
        if name not in without:
            os.symlink(file.resolve(), place / file.name)


def copy_other_rows(path: Path, place: Path, table: SourceTable, client: str, without: Sequence[str]) -> None:
    owner = table.frame[client].map(targets.name_of, na_action="ignore").astype(str).to_numpy()
    check_known(without, set(owner))
    check_some_left(without, set(owner))
    gone = dict(zip(table.files, np.split(np.isin(owner, without), table.starts[1:-1]), strict=True))
    for file in find(path):
        out = gone.get(file, np.zeros(0, bool))
        if not out.any():
            os.symlink(file.resolve(), place / file.name)
        elif not out.all():
            copy_without(file, place / file.name, with_blank_rows(out, table.blank.get(file)))


def with_blank_rows(out: np.ndarray, blank: np.ndarray | None) -> np.ndarray:
    """(rows of a file,) which are to go: those without a cell, which are nobody's, stay.

    >>> with_blank_rows(np.array([True, False]), np.array([False, True, False])).tolist()
    [True, False, False]
    """
    if blank is None:
        return out
    every = np.zeros(len(blank), bool)
    every[~blank] = out
    return every


def copy_without(file: Path, to: Path, out: np.ndarray) -> None:
    """Copy a table but for some rows."""
    if is_csv(file):
        to.write_bytes(csv_without(file, out))
        return
    import pandas as pd

    left = pd.read_parquet(file.absolute()).loc[~out].reset_index(drop=True)
    left.to_parquet(to.absolute())


def csv_without(file: Path, out: np.ndarray) -> bytes:
    """The bytes of a CSV file without some of the rows that pandas reads, which are counted below the names."""
    rows = [r for r in records(file) if r.is_row]
    if len(rows) != len(out):
        raise DataError(
            f"{file.name} has {len(rows)} lines of rows, and {len(out)} were read: which are whose is not clear"
        )
    gone = {i for row, away in zip(rows, out, strict=True) if away for i in range(row.first, row.last + 1)}
    encoding = encoding_of(file)
    with file.open(newline="", encoding=encoding) as lines:
        return "".join(line for i, line in enumerate(lines, 1) if i not in gone).encode(encoding)
