"""The text of a CSV file: its encoding, its separator, its names of columns, and its cells as pandas reads them.

Knows bytes, lines and names. Does not know what cells mean (cell_values.py), nor several files (table_files.py).
No error shows a cell.
"""

from __future__ import annotations

import codecs
import csv
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from motet.data.cell_values import MISSING
from motet.data.federated import DataError

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = ",;\t|"
_EXCEL = re.compile(r"sep=(.)\s*", re.IGNORECASE)  # a first line by which Excel knows the separator
_BYTE_ORDER = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


@dataclass(frozen=True)
class CsvForm:
    """How a file is written."""

    encoding: str
    separator: str
    names: list[str]  # of the columns, each once
    nameless: list[str]  # those that have no name in the file, and are called `column 3`
    skipped: int  # lines before the names
    notes: list[str]


def encoding_of(path: Path) -> str:
    """UTF-8 or UTF-16 if the bytes are such text, else Western European: cp1252, or Latin-1 where cp1252 has no letter.

    Every file can be read as Latin-1, so a file in another encoding of one byte a letter gives wrong letters.
    """
    content = path.read_bytes()
    marked = next((name for mark, name in _BYTE_ORDER.items() if content.startswith(mark)), "")
    wide = _without_mark(content)
    for name in [marked] if marked else [*wide, "utf-8", "cp1252"]:
        try:
            content.decode(name)
        except UnicodeDecodeError:
            continue
        return name
    return "latin-1"


def _without_mark(content: bytes) -> list[str]:
    """UTF-16 without a mark: every second byte of Western text is zero."""
    zeros = np.frombuffer(content[:1000], np.uint8) == 0
    if zeros[1::2].mean() > 0.5 if len(zeros) > 1 else False:
        return ["utf-16-le"]
    return ["utf-16-be"] if len(zeros) > 1 and zeros[::2].mean() > 0.5 else []


def form_of(path: Path) -> CsvForm:
    """How the file is written; a DataError if it has no names, or two columns of one name."""
    encoding = encoding_of(path)
    with path.open(newline="", encoding=encoding) as f:
        lines = enumerate(f)
        at, first = next(((i, line) for i, line in lines if line.strip()), (0, ""))
        if said := _EXCEL.fullmatch(first.strip("\r\n")):
            at, first = next(((i, line) for i, line in lines if line.strip()), (0, ""))
    separator = said[1] if said else separator_of(first)
    with path.open(newline="", encoding=encoding) as f:
        for _ in range(at):
            next(f)
        with _readable(path):
            given = next(csv.reader(f, delimiter=separator), [])
    given = [n.strip() for n in given]
    check_names(path, given)
    names = [n or f"column {i}" for i, n in enumerate(given, 1)]
    nameless = [n for n, said in zip(names, given, strict=True) if not said]
    western = encoding in ("cp1252", "latin-1")
    notes = [f"{path.name} is not UTF-8: read as Western European text ({encoding})"] * western
    return CsvForm(encoding, separator, names, nameless, at, notes)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """A cell of more letters than Python's reader takes is no cell: a quote is missing, or this is no table."""
    try:
        yield
    except csv.Error as e:
        raise DataError(
            f"{path.name} cannot be read as CSV: {e}\nhint: look for a quote that is never closed, or a binary file"
        ) from None


def separator_of(line: str) -> str:
    """The most frequent one outside of quotes.

    >>> separator_of('"a,b,c";d;e')
    ';'
    """
    bare = re.sub(r'"[^"]*"', "", line)
    return max(SEPARATORS, key=bare.count)


def check_names(path: Path, given: list[str]) -> None:
    if not any(given):
        raise EmptyFile(f"{path.name} is empty; expected a line of column names and rows below it")
    if twice := sorted(n for n, many in Counter(filter(None, given)).items() if many > 1):
        raise DataError(
            f"{path.name} has several columns called {', '.join(map(repr, twice))}.\n"
            "hint: give each a name of its own in the file's first line"
        )


class EmptyFile(DataError):
    """A file without rows: left out where others have some."""


@dataclass(frozen=True)
class CsvRows:
    """The cells of a file, and how it separates them."""

    frame: pd.DataFrame
    separator: str
    notes: list[str]


def read_csv(path: Path, as_text: Callable[[str], bool]) -> CsvRows:
    """The rows of a file; `as_text`: of which columns cells stay as they are written."""
    form = form_of(path)
    try:
        frame = _cells(path, form, form.names, as_text)
    except _misfits() as e:
        frame = _with_trailing_separator(path, form, as_text, e)
    empty = [n for n in form.nameless if frame[n].isna().all()]
    notes, left = list(form.notes), [n for n in form.nameless if n not in empty]
    if left:
        notes.append(f"{path.name} has columns without a name, called {', '.join(map(repr, left))} here")
    return CsvRows(frame.drop(columns=empty), form.separator, notes)


def _cells(path: Path, form: CsvForm, names: list[str], as_text: Callable[[str], bool]) -> pd.DataFrame:
    import pandas as pd

    how: dict[str, Any] = {"dtype": {n: str for n in names if as_text(n)}, "low_memory": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return pd.read_csv(
            path, sep=form.separator, encoding=form.encoding, names=names, header=0, skiprows=form.skipped,
            keep_default_na=False, na_values=sorted(MISSING), index_col=False, skipinitialspace=True, **how,
        )  # fmt: skip


def _misfits() -> tuple[type[Exception], ...]:
    import pandas as pd

    return pd.errors.ParserError, pd.errors.ParserWarning


def _with_trailing_separator(
    path: Path, form: CsvForm, as_text: Callable[[str], bool], first: Exception
) -> pd.DataFrame:
    """Rows may end with a separator that the names do not have: a last column without cells."""
    try:
        frame = _cells(path, form, [*form.names, ""], as_text)
        if frame[""].isna().all():
            return frame.drop(columns="")
    except _misfits() as e:
        first = e
    where = re.search(r"line \d+", str(first))
    raise DataError(
        f"{path.name} has rows that do not fit its {len(form.names)} columns"
        f"{f', the first in {where[0]}' if where else ''}.\n"
        "hint: quote cells that contain the separator"
    ) from None


@dataclass(frozen=True)
class Record:
    """What lies between two ends of rows, below the names."""

    first: int  # its first line, from 1
    last: int  # its last one: cells may contain line breaks
    number: int  # its own, from 1
    cells: list[str]
    is_row: bool  # whether pandas makes a row of it: empty lines are none


def line_numbers(path: Path, rows: np.ndarray) -> list[int]:
    """The lines of rows in a file, counted: cells may contain line breaks, and rows without a cell are left out."""
    wanted = int(max(rows, default=0)) + 1
    some = (r.first for r in records(path) if any(c.strip() not in MISSING for c in r.cells))
    lines = list(islice(some, wanted))
    return [lines[r] for r in rows]


def row_numbers(path: Path) -> np.ndarray:
    """Numbers of the rows as pandas reads them, from 1 below the names; empty lines are no rows, and are counted."""
    return np.array([r.number for r in records(path) if r.is_row])


def records(path: Path) -> Iterator[Record]:
    """Everything below the names."""
    form = form_of(path)
    last, number, text = 0, -1, list[str]()
    with path.open(newline="", encoding=form.encoding) as f, _readable(path):
        reader = csv.reader(_kept_lines(f, text), delimiter=form.separator, skipinitialspace=True)
        for cells in reader:
            first, last = last + 1, reader.line_num
            is_row = form.separator in text[0] or bool("".join(text).strip())
            text.clear()
            if last <= form.skipped:
                continue
            number += 1  # 0: the names
            if number:
                yield Record(first, last, number, cells, is_row)


def _kept_lines(lines: Iterable[str], into: list[str]) -> Iterator[str]:
    for line in lines:
        into.append(line)
        yield line
