"""L&T vehicle loans (Kaggle): loans of the largest branches, 38 features; which ones default.

Prepared as Cantu-Cervini 2024 (stacking) does: 21 of 41 columns go (ids, bureau accounts and amounts);
ages of accounts in years; the borrower's age when the loan was paid out; employment and the bureau's
description as flags (an unknown employment is 0 in both); the branch is the client, not a feature.
"Missing Features" is the number of zeros in a row, counted before words become flags.
Differs from the paper: it counts the target too, which reveals the target; here zeros are counted
among the features only. as_published = true counts as the paper does.

Knows the file. Does not know how rows are divided among clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from motet.data.federated import DataError, Pool
from motet.data.files import frames
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.files.local_files import content, find, reading

if TYPE_CHECKING:
    import pandas as pd

SOURCES: tuple[Remote, ...] = ()  # Kaggle needs a login
FOLDERS = ("vehicle_loan", "lt_vehicle_loan")
ORIGIN = (
    "Kaggle's data set mamtadhaker/lt-vehicle-loan-default-prediction, which wants a login: the file "
    "train.csv; or 50,000 rows of it as lt_vehicle_loan_50k.csv"
)

_ROWS = {"train.csv": 233_154, "lt_vehicle_loan_50k.csv": 50_000}
_FLAGS = tuple(f"{word}.flag" for word in ("Aadhar", "PAN", "VoterID", "Driving", "Passport"))
_AGES = ("AVERAGE.ACCT.AGE", "CREDIT.HISTORY.LENGTH")  # "1yrs 7mon"
_COUNTS = ("NEW.ACCTS.IN.LAST.SIX.MONTHS", "DELINQUENT.ACCTS.IN.LAST.SIX.MONTHS", "NO.OF.INQUIRIES")
_PLAIN = ("asset.cost", "ltv", "manufacturer.id", *_FLAGS, "PERFORM.CNS.SCORE", *_COUNTS)
_WORDS = ("Employment.Type", "PERFORM.CNS.SCORE.DESCRIPTION")
_DATES = ("Date.of.Birth", "DisbursalDate")  # day-month-year
_ZEROS = "Missing Features"
_LAST_YOUNG = 25  # years 00 to 25 are of this century


def load(
    *,
    branches: int = 12,  # the largest branches; 12 are those that have more than 5,000 loans; 0: all
    as_published: bool = False,  # count the target among the zeros of "Missing Features", which reveals it
) -> Pool:
    """A table of numbers and flags; the clients are branches."""
    return pool(arrays("vehicle_loan"), branches, as_published)


def pool(found: Mapping[str, np.ndarray], branches: int = 12, as_published: bool = False) -> Pool:
    ids, sizes = np.unique(found["branch"], return_counts=True)
    if not 0 <= branches <= len(ids):
        raise DataError(f"branches is {branches}; expected at most {len(ids)}, or 0 for all")
    chosen = np.sort(ids[np.argsort(-sizes, kind="stable")[: branches or len(ids)]])
    here = np.isin(found["branch"], chosen)
    names = frames.as_texts(found["columns"])
    x, y = found["x"][here], found["y"][here]
    notes = _notes(len(found["y"]), names, as_published)
    if as_published:
        x[:, names.index(_ZEROS)] += y == 0
    owner = np.searchsorted(chosen, found["branch"][here])
    width = len(str(chosen[-1]))
    clients = tuple(f"branch-{i:0{width}}" for i in chosen.tolist())
    columns = frames.columns(names, _FLAGS)
    return Pool(x, y, "classes", ("repaid", "default"), columns, owner, clients, notes=notes)


def _notes(rows: int, names: tuple[str, ...], as_published: bool) -> list[str]:
    notes = []
    if rows < (whole := _ROWS["train.csv"]):
        levels = sum(name.startswith(f"{_WORDS[1]}=") for name in names)
        notes.append(
            f"the file is partial: {rows} of {whole} loans, {levels} of the 20 descriptions of the bureau; "
            "figures are not comparable with published ones"
        )
    if as_published:
        notes.append(f'"{_ZEROS}" counts the target too and gives it away, as published (as_published)')
    return notes


def decode(folder: Path) -> dict[str, np.ndarray]:
    """x (rows, 38), y and branch of all loans, and the names of the columns."""
    import pandas as pd

    path = find(folder, *_ROWS)
    loans = _read(path)
    birth, paid = (_year(loans[name]) for name in _DATES)
    age = (paid - birth).rename("Age")
    table = pd.concat([loans[list(_PLAIN)], *(_years(loans[name]) for name in _AGES), age], axis=1)
    table[_ZEROS] = (table == 0).sum(axis=1)
    table = pd.concat([table, *(frames.one_hot(loans[name]) for name in _WORDS)], axis=1)
    gaps = [name for name in table.columns if table[name].isna().any()]
    frames.expect(path, "columns with unreadable or missing values", gaps, [])
    return {
        "x": np.ascontiguousarray(table, np.float32),
        "y": loans["loan.default"].to_numpy(np.int64),
        "branch": loans["branch.id"].to_numpy(np.int64),
        "columns": frames.as_bytes(table.columns),
    }


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    with reading(path):
        loans = pd.read_csv(BytesIO(content(path)))
    loans.columns = loans.columns.str.replace("_", ".")
    needed = (*_PLAIN, *_AGES, *_WORDS, *_DATES, "branch.id", "loan.default")
    frames.expect(path, "columns that are not there", [n for n in needed if n not in loans], [])
    frames.expect(path, "rows", len(loans), _ROWS[path.name.removesuffix(".gz")])
    frames.expect(path, "targets", sorted(loans["loan.default"].unique().tolist()), [0, 1])
    return loans


def _year(dates: pd.Series) -> pd.Series:
    """01-01-84 and 01-01-1984 are of 1984."""
    year = dates.str.extract(r"(\d+)$")[0].astype(float)
    return year.where(year >= 100, year + np.where(year <= _LAST_YOUNG, 2000, 1900))


def _years(ages: pd.Series) -> pd.Series:
    """1yrs 6mon is 1.5."""
    parts = ages.str.extract(r"(\d+)yrs +(\d+)mon").astype(float)
    return (parts[0] + parts[1] / 12).rename(ages.name)
