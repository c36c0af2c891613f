"""Reading the user's files: CSV and Parquet, one table or a folder with one file per client.

Knows files, lines and column names. Does not know what the columns mean.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from motet.data.federated import DataError, refuse
from motet.text import nearest

if TYPE_CHECKING:
    import pandas as pd

_BLANK = ["", "nan", "NaN"]  # empty cells; "n/a" is text, and is reported as an error
_SHOWN = 5


FRAME = Path("frame")  # stands for the file of rows that were never in one


@dataclass
class SourceTable:
    """All rows of one or several files, and the file of each row."""

    frame: pd.DataFrame
    files: list[Path]
    sizes: list[int]

    @cached_property
    def starts(self) -> np.ndarray:
        return np.cumsum([0, *self.sizes])

    @property
    def file(self) -> np.ndarray:
        """The index of each row's file."""
        return np.repeat(np.arange(len(self.files)), self.sizes)

    def where(self, rows: np.ndarray) -> str:
        """Files, counts and the first line numbers: `a.csv (2: line 3, 7)`."""
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

    def samples(self, rows: np.ndarray, values: list[str]) -> str:
        """The first values that are wrong, each with its place: `'n/a' (a.csv line 3)`. Of a frame that was
        given as an object only the places are shown."""
        found = np.searchsorted(self.starts, rows[:_SHOWN], side="right") - 1
        parts = []
        for row, f, value in zip(rows, found, values, strict=False):
            word, at = _line_numbers(self.files[f], np.array([row - self.starts[f]]))
            place = f"{_shown_name(self.files[f])} {word} {at[0]}"
            parts.append(place if _is_object(self.files[f]) else f"{value!r} ({place})")
        return ", ".join(parts)


def _is_object(file: Path) -> bool:
    """Whether the rows were given as a Python object: its copy lies in the cache's folder `given`."""
    return file == FRAME or file.parent.name == "given"


def _shown_name(file: Path) -> str:
    return "the frame" if _is_object(file) else file.name


def read(path: Path) -> SourceTable:
    """The rows of a file, or of all files of a folder; all problems are raised at once."""
    import pandas as pd

    frames: dict[Path, pd.DataFrame] = {}
    problems = []
    for file in find(path):
        try:
            frames[file] = _read_one(file)
        except DataError as e:
            problems.append(str(e))
    wrong = differences({f.name: list(frame.columns) for f, frame in frames.items()}, "files")
    if wrong:
        wrong[-1] += "\nhint: all files of a folder need the same columns"
    refuse(problems + wrong)
    together, *rest = frames.values()
    if rest:
        together = pd.concat([f[together.columns] for f in frames.values()], ignore_index=True)
    return SourceTable(together, list(frames), [len(f) for f in frames.values()])


def find(path: Path) -> list[Path]:
    if path.is_file():
        if path.suffix not in (".csv", ".parquet"):
            raise DataError(f"{path} is not a .csv or .parquet file")
        return [path]
    if not path.is_dir():
        there = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        raise DataError(f"there is no file or folder {path}.\nhint: {nearest(path.name, there[:20])}")
    files = sorted(p for p in path.iterdir() if p.suffix in (".csv", ".parquet") and p.name[0] != ".")
    if not files:
        raise DataError(
            f"the folder {path} holds no .csv or .parquet file, and no images.\n"
            "hint: put in one file per client, or a folder of images for each class"
        )
    stems = [f.stem for f in files]
    if twice := sorted({s for s in stems if stems.count(s) > 1}):
        raise DataError(f"the folder {path} holds several files of one client: {', '.join(twice)}")
    return files


def differences(columns: Mapping[str, Sequence[str]], others: str) -> list[str]:
    """Which table lacks which columns that the `others` have."""
    every = list(dict.fromkeys(c for have in columns.values() for c in have))
    lacking = {name: [c for c in every if c not in have] for name, have in columns.items()}
    return [
        f"{name} lacks {', '.join(map(repr, some))}, which other {others} have"
        for name, some in lacking.items()
        if some
    ]


def _read_one(path: Path) -> pd.DataFrame:
    frame = _read_csv(path) if path.suffix == ".csv" else _read_parquet(path)
    frame.columns = [str(c).strip() for c in frame.columns]
    if twice := sorted(set(frame.columns[frame.columns.duplicated()])):
        raise DataError(f"{path.name} has several columns called {', '.join(twice)}")
    if len(frame) == 0:
        raise DataError(f"{path.name} has column names and no examples.\nhint: remove the file, or fill it")
    return frame


def _read_csv(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        separator, names = _header(path)
        if not names:
            raise DataError(f"{path.name} is empty; expected a line of column names and rows below it")
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise DataError(f"{path.name} has several columns called {', '.join(twice)}")
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(
                path,
                sep=separator,
                encoding="utf-8-sig",
                keep_default_na=False,
                na_values=_BLANK,
                index_col=False,
                low_memory=False,
                skipinitialspace=True,
            )
    except UnicodeDecodeError as e:
        raise DataError(f"{path.name} is not UTF-8 text (byte {e.start}).\nhint: save it as UTF-8") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning) as e:
        raise DataError(
            f"{path.name} has rows that do not fit its {len(names)} columns: {str(e).strip()}.\n"
            "hint: quote cells that contain the separator"
        ) from None


def _header(path: Path) -> tuple[str, list[str]]:
    """The separator (comma, semicolon or tab: the most frequent one in the first line) and the names."""
    with path.open(newline="", encoding="utf-8-sig") as f:
        first = next((line for line in f if line.strip()), "")
    separator = max(",;\t", key=first.count)
    return separator, [n.strip() for n in next(csv.reader([first], delimiter=separator), [])]


def _read_parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except (ValueError, OSError) as e:  # pyarrow's errors are among these
        raise DataError(f"{path.name} cannot be read as Parquet: {e}") from None


def _line_numbers(path: Path, rows: np.ndarray) -> tuple[str, list[int]]:
    """The lines of rows in a file, counted, since cells may contain line breaks and blank lines are skipped."""
    if path.suffix != ".csv":
        return "row", [int(r) + 1 for r in rows]
    starts, last, wanted = [], 0, int(max(rows, default=0)) + 1
    separator, _ = _header(path)
    with path.open(newline="", encoding="utf-8-sig") as f:
        reader = csv.reader(f, delimiter=separator)
        for cells in reader:
            if cells:
                starts.append(last + 1)
            last = reader.line_num
            if len(starts) > wanted:
                break
    return "line", [starts[r + 1] for r in rows]
