"""Reading the user's files: CSV and Parquet, one table or a folder with one file per client.

Knows files, lines and column names, and makes numbers of text that is a number in its file's spelling. Does not know
what the columns mean.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from motet.data.csv_text import EmptyFile, line_numbers, read_csv, row_numbers
from motet.data.federated import DataError, refuse
from motet.data.files.local_files import memory, regular
from motet.data.tidy_cells import HowWritten, tidy
from motet.text import nearest

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 5

FRAME = Path("frame")  # stands for the file of rows that were never in one


@dataclass
class SourceTable:
    """All rows of one or several files, and the file of each row."""

    frame: pd.DataFrame = field(repr=False)  # rows are nobody's business in a message
    files: list[Path]
    sizes: list[int]  # rows in each file
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unclear: dict[str, list[str]] = field(
        default_factory=dict
    )  # columns of 1,234: files whose sign is not known
    sign: str = ""  # the decimal sign of files with commas in numbers; "": there are none, or they differ
    kept: np.ndarray | None = None  # (rows,) numbers of the rows among all rows of the files; None: all
    blank: dict[Path, np.ndarray] = field(
        default_factory=dict
    )  # of CSV files: (rows read,) which have no cell

    @cached_property
    def starts(self) -> np.ndarray:
        return np.cumsum([0, *self.sizes])

    @property
    def file(self) -> np.ndarray:
        """The index of each row's file."""
        every = np.repeat(np.arange(len(self.files)), self.sizes)
        return every if self.kept is None else every[self.kept]

    def only(self, rows: np.ndarray) -> SourceTable:
        """Some of the rows (rows,) bool; they keep their places in the files."""
        if rows.all():
            return self
        kept = np.flatnonzero(rows) if self.kept is None else self.kept[rows]
        return replace(self, frame=self.frame[rows].reset_index(drop=True), kept=kept)

    def rows_in_files(self) -> pd.DataFrame:
        """`row`: each row's number in its file, from 1 below the names; and `file`, where there are several."""
        import pandas as pd

        numbers = [self._numbers(f, many) for f, many in zip(self.files, self.sizes, strict=True)]
        every = np.concatenate(numbers)
        found = pd.DataFrame({"row": every if self.kept is None else every[self.kept]})
        if len(self.files) > 1:
            found.insert(0, "file", [self.files[i].name for i in self.file])
        return found

    def _numbers(self, file: Path, many: int) -> np.ndarray:
        """Rows of Parquet files and frames are all there; in CSV files some have no cell."""
        read = row_numbers(file) if is_csv(file) else np.arange(1, many + 1)
        blank = self.blank.get(file, np.zeros(len(read), bool))
        if len(blank) != len(read) or len(read) - blank.sum() != many:
            self.notes.append(
                f"{file.name}: rows are numbered as they were read, without those that have no cell"
            )
            return np.arange(1, many + 1)
        return np.asarray(read[~blank])

    def where(self, rows: np.ndarray) -> str:
        """Files, counts and the first line numbers: `a.csv (2: line 3, 7)`."""
        rows = rows if self.kept is None else self.kept[rows]
        found = np.searchsorted(self.starts, rows, side="right") - 1
        parts = []
        for f in np.unique(found)[:_SHOWN]:
            inside = rows[found == f] - self.starts[f]
            word, at = _line_numbers(self.files[f], inside[:_SHOWN])
            more = ", ..." if len(inside) > _SHOWN else ""
            parts.append(
                f"{_shown_name(self.files[f])} ({len(inside)}: {word} {', '.join(map(str, at))}{more})"
            )
        rest = len(np.unique(found)) - _SHOWN
        return ", ".join(parts) + (f" and {rest} more files" if rest > 0 else "")


def _shown_name(file: Path) -> str:
    """Rows that were given as a Python object lie in the cache's folder `given`."""
    return "the frame" if file == FRAME or file.parent.name == "given" else file.name


def read(
    path: Path,
    decimal: str = "auto",
    missing_values: Sequence[str] = (),
    *,
    texts: Collection[str] = (),
    likely: str = "",
) -> SourceTable:
    """The rows of a file, or of all files of a folder, with the columns of all of them. What cannot be read is among
    the table's problems, so that all faults are said at once; a folder's files without rows are left out.

    The columns `texts` hold no numbers: 01 and 1 are two names. The decimal sign is `likely` where cells do not tell.
    """
    import pandas as pd

    how = HowWritten(decimal, tuple(missing_values), likely=likely, texts=frozenset(map(bare_name, texts)))
    read_files: dict[Path, FileRows] = {}
    problems, empty = [], []
    for file in find(path):
        try:
            read_files[file] = _read_one(regular(file), how)
        except EmptyFile as e:
            empty.append(str(e))
        except DataError as e:
            problems.append(str(e))
    if not read_files:
        refuse(problems + empty)
    notes = [f"{said.splitlines()[0].split(';')[0].rstrip('.')}: left out" for said in empty]
    notes += [n for found in read_files.values() for n in found.notes]
    frames = _alike({f: found.frame for f, found in read_files.items()}, notes)
    together, *rest = frames.values()
    if rest:
        together = pd.concat(_of_one_kind(list(frames.values())), ignore_index=True)
    sizes = [len(f) for f in frames.values()]
    signs = {found.sign for found in read_files.values() if found.sign}
    sign = signs.pop() if len(signs) == 1 else ""
    blank = {file: found.blank for file, found in read_files.items() if found.blank is not None}
    unclear = _unclear(read_files)
    return SourceTable(together, list(frames), sizes, notes, problems, unclear, sign, blank=blank)


def _unclear(files: Mapping[Path, FileRows]) -> dict[str, list[str]]:
    """Columns whose decimal sign is not known, and in which files."""
    unclear: dict[str, list[str]] = {}
    for file, found in files.items():
        for column in found.unclear:
            unclear.setdefault(column, []).append(file.name)
    return unclear


def find(path: Path) -> list[Path]:
    if not path.is_dir() and (path.exists() or path.is_symlink()):
        if path.suffix.lower() not in (".csv", ".parquet"):
            raise DataError(f"{path} is not a .csv or .parquet file")
        return [path]
    if not path.is_dir():
        there = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        raise DataError(f"there is no file or folder {path}.\nhint: {nearest(path.name, there[:20])}")
    files = sorted(p for p in path.iterdir() if p.suffix.lower() in (".csv", ".parquet") and p.name[0] != ".")
    if not files:
        raise DataError(
            f"the folder {path} holds no .csv or .parquet file, and no images.\n"
            "hint: put in one file per client, or a folder of images for each class"
        )
    stems = [f.stem for f in files]
    if twice := sorted({s for s in stems if stems.count(s) > 1}):
        raise DataError(f"the folder {path} holds several files of one client: {', '.join(twice)}")
    return files


# ---- columns of several files ----


def _alike(frames: Mapping[Path, pd.DataFrame], notes: list[str]) -> dict[Path, pd.DataFrame]:
    """Frames in which a column has one name; spellings that differ in case, spaces and underscores are one."""
    spelling: dict[str, str] = {}
    for frame in frames.values():
        for name in frame.columns:
            spelling.setdefault(bare_name(name), name)
    found = {}
    for file, frame in frames.items():
        bare = [bare_name(c) for c in frame.columns]
        other = {
            c: spelling[b]
            for c, b in zip(frame.columns, bare, strict=True)
            if spelling[b] != c and bare.count(b) == 1
        }
        notes += [f"{_shown_name(file)} writes {a!r} for {b!r}: read as one column" for a, b in other.items()]
        found[file] = frame.rename(columns=other)
    return found


def bare_name(name: str) -> str:
    """
    >>> bare_name("Blood_Pressure") == bare_name("blood  pressure")
    True
    """
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def _of_one_kind(frames: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """Truth values become objects where another file has something else, so that none becomes a number."""
    import pandas as pd

    kinds: dict[str, set[bool]] = {}
    for frame in frames:
        for c in frame.columns:
            kinds.setdefault(c, set()).add(pd.api.types.is_bool_dtype(frame[c]))
    every = len(frames)
    mixed = [c for c, k in kinds.items() if True in k and (len(k) > 1 or sum(c in f for f in frames) < every)]
    return [f.astype({c: object for c in mixed if c in f}) for f in frames]


# ---- one file ----


@dataclass
class FileRows:
    """The rows of one file."""

    frame: pd.DataFrame
    notes: list[str]
    unclear: list[str]  # columns whose decimal sign is not known
    sign: str  # the decimal sign that was found
    blank: np.ndarray | None = None  # (rows read,) which have no cell and were left out; None: none


def _read_one(path: Path, how: HowWritten) -> FileRows:
    """The rows of a file; `how.texts` are bare names."""
    as_written = None
    if is_csv(path):
        found = read_csv(path, lambda name: bare_name(name) in how.texts)
        frame, notes, how = found.frame, found.notes, replace(how, semicolons=found.separator == ";")
        as_written = partial(_as_written, path)
    else:
        frame, notes, how = _read_parquet(path), [], replace(how, untyped=False)
    frame.columns = [str(c).strip() for c in frame.columns]
    if twice := sorted(set(frame.columns[frame.columns.duplicated()])):
        raise DataError(f"{path.name} has several columns called {', '.join(map(repr, twice))}")
    texts = frozenset(c for c in frame.columns if bare_name(c) in how.texts)
    tidied = tidy(frame, replace(how, texts=texts), as_written)
    frame, blank = tidied.frame, None
    if is_csv(path) and (empty := frame.isna().all(axis=1)).any():
        frame, blank = frame[~empty].reset_index(drop=True), empty.to_numpy()
    if len(frame) == 0:
        raise EmptyFile(f"{path.name} has column names and no examples.\nhint: remove the file, or fill it")
    return FileRows(frame, notes, tidied.unclear, tidied.sign, blank)


def _as_written(path: Path, columns: list[str]) -> pd.DataFrame:
    """The same rows, with the text of these columns."""
    return read_csv(path, lambda name: name in columns).frame


def is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def _read_parquet(path: Path) -> pd.DataFrame:
    import pandas as pd
    import pyarrow.parquet as pq

    try:
        facts = pq.read_metadata(path.absolute())
        if facts.num_rows * facts.num_columns > memory():
            raise DataError(
                f"{path.name} has {facts.num_rows:,} rows of {facts.num_columns} columns, more than this machine's "
                f"memory ({memory():,} bytes) can hold.\nhint: take fewer rows"
            )
        return pd.read_parquet(path.absolute())  # x:y/z would be taken for an address
    except DataError:
        raise
    except (ValueError, OSError):  # pyarrow's errors are among these; they may show a part of the file
        raise DataError(f"{path.name} cannot be read as Parquet") from None


def _line_numbers(path: Path, rows: np.ndarray) -> tuple[str, list[int]]:
    if not is_csv(path):
        return "row", [int(r) + 1 for r in rows]
    return "line", line_numbers(path, rows)
