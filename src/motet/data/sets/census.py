"""Census income (UCI adult): 46,643 persons of four regions, 65 features; who earns more than 50,000 dollars.

Prepared as Cantu-Cervini 2024 (stacking) does. Rows of adult.test with an unknown value go; in
adult.data an unknown workclass or occupation ('?') stays and is a word of its own. Persons who were
born outside of the four regions, or at an unknown place, go. fnlwgt, a weight of the sample, is no feature.
Differs from the paper: rows are in the order of the files, not shuffled.

Knows the files and the regions. Does not know how rows are divided among clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from motet.data.federated import Pool
from motet.data.files import frames
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.files.local_files import content, find

if TYPE_CHECKING:
    import pandas as pd

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
SOURCES = (
    Remote(
        "adult.data",
        f"{_UCI}/adult.data",
        3_974_305,
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    ),
    Remote(
        "adult.test",
        f"{_UCI}/adult.test",
        2_003_153,
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    ),
)
FOLDERS = ("census", "adult")
ORIGIN = "UCI's data set Adult (archive.ics.uci.edu/dataset/2/adult): the files adult.data and adult.test"

_NAMES = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
]
_NUMBERS = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
_WORDS = ("workclass", "education", "marital-status", "occupation", "relationship", "race", "sex")
_REGIONS = {
    "US": "United-States Outlying-US(Guam-USVI-etc)",
    "Latin America": "Mexico Puerto-Rico El-Salvador Cuba Jamaica Dominican-Republic Guatemala Columbia Haiti "
    "Nicaragua Peru Ecuador Honduras",
    "Asia": "Philippines India China Vietnam Japan Taiwan Hong Thailand Laos Cambodia",
    "Europe": "Germany Italy Poland Portugal Greece France Hungary England Scotland Ireland",
}


def load() -> Pool:
    """A table of 5 numbers and 60 flags; the clients are the regions where people were born."""
    found = arrays("census")
    return pool(found, found.digest)


def pool(found: Mapping[str, np.ndarray], digest: str = "") -> Pool:
    return Pool(
        found["x"],
        found["y"],
        "classes",
        ("at most 50K", "more than 50K"),
        frames.columns(frames.as_texts(found["columns"])),
        found["owner"],
        tuple(_REGIONS),
        digest=digest,
    )


def decode(folder: Path) -> dict[str, np.ndarray]:
    """x (rows, 65), y, owner and the names of the columns."""
    import pandas as pd

    taught, tested = (_read(find(folder, s.file), s.sha256) for s in SOURCES)
    # The paper's source has unknown values as missing in the test half only.
    people = pd.concat([taught, tested[(tested != "?").all(axis=1)]], ignore_index=True)
    region_of = {c: i for i, those in enumerate(_REGIONS.values()) for c in those.split()}
    region = people["native-country"].map(region_of)
    people, region = people[region.notna()], region.dropna()
    table = pd.concat([people[list(_NUMBERS)], *(frames.one_hot(people[w]) for w in _WORDS)], axis=1)
    found = {
        "x": np.ascontiguousarray(table, np.float32),
        "y": people["income"].str.startswith(">").to_numpy(np.int64),
        "owner": region.to_numpy(np.int64),
        "columns": frames.as_bytes(table.columns),
    }
    frames.expect(folder, "rows and columns", found["x"].shape, (46_643, 65))
    return found


def _read(path: Path, sha256: str) -> pd.DataFrame:
    import pandas as pd

    # The first line of adult.test is a comment.
    raw = BytesIO(content(path, sha256=sha256))
    return pd.read_csv(raw, names=_NAMES, comment="|", skipinitialspace=True, keep_default_na=False)
