"""Breast cancer, TCGA-BRCA as in FLamby (Ogier du Terrail et al. 2022): how long 1,088 patients of six regions live.

39 features: the age, and flags of origin, stage, diagnosis and treatment, prepared by Andreux et al. 2020 from the
clinical table of Liu et al. 2018. The clients are the regions of the hospitals. The target is the time in days until
death was seen, or minus the time until a patient was last seen alive (targets.survival_target). FLamby fixes the
rows for training and test. It uses the age in years as it is: data.scale = "none"; by default it is standardised.

Open-access data of the GDC: its users' policy forbids attempts to identify patients (gdc.cancer.gov/about-gdc).
Knows FLamby's files. Does not know losses of survival.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from motet.data.federated import PARTS, Pool
from motet.data.files import frames
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.files.local_files import content, find, reading
from motet.data.targets import survival_target

if TYPE_CHECKING:
    import pandas as pd

_COMMIT = "edacf54d5211520583b0133d55ac39b6fda8324b"
_FLAMBY = f"https://raw.githubusercontent.com/owkin/FLamby/{_COMMIT}/flamby/datasets/fed_tcga_brca"
SOURCES = (
    Remote(
        "brca.csv",
        f"{_FLAMBY}/brca.csv",
        113_184,
        "07cb53423f7d579d33cfdbf2cba57b2aee75318b85866c68ce39a75b1f1ba020",
    ),
    Remote(
        "train_test_split.csv",
        f"{_FLAMBY}/dataset_creation_scripts/train_test_split.csv",
        28_946,
        "1249c6543a4060ff0fdaf8510fc37017755836db6c9fc5e6af96057c36510990",
    ),
)
FOLDERS = ("tcga_brca", "fed_tcga_brca")
ORIGIN = "Fed-TCGA-BRCA of FLamby (github.com/owkin/FLamby): its files brca.csv and train_test_split.csv"

REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")  # by FLamby's number
_NUMBERS = ("age_at_index",)
_KIND: Any = "survival"


def load() -> Pool:
    """A table of one number and 38 flags, and times with events; the clients are regions."""
    found = arrays("tcga_brca")
    return pool(found, found.digest)


def pool(found: Mapping[str, np.ndarray], digest: str = "") -> Pool:
    names = frames.as_texts(found["columns"])
    columns = frames.columns(names, set(names) - set(_NUMBERS))
    y = survival_target(found["time"], found["event"])
    return Pool(found["x"], y, _KIND, (), columns, found["owner"], REGIONS, found["part"], digest=digest)


def decode(folder: Path) -> dict[str, np.ndarray]:
    """x (1088, 39), time, event, owner and part of the patients that FLamby uses, in the order of brca.csv."""
    patients, split = (_read(find(folder, s.file), s.sha256) for s in SOURCES)
    fold = split.set_index("pid")["fold2"].reindex(patients["pid"])  # train_0 to test_5; eight have none
    patients, fold = patients[fold.notna().to_numpy()], fold.dropna().str.partition("_")
    table = patients.drop(columns=["pid", "E", "T"])
    frames.expect(folder, "rows and columns", table.shape, (1_088, 39))
    return {
        "x": np.ascontiguousarray(table, np.float32),
        "time": patients["T"].to_numpy(np.float64),
        "event": patients["E"].to_numpy(np.int64),
        "owner": fold[2].to_numpy(np.int64),
        "part": fold[0].map(PARTS.index).to_numpy(np.int64),
        "columns": frames.as_bytes(table.columns),
    }


def _read(path: Path, sha256: str) -> pd.DataFrame:
    import pandas as pd

    raw = BytesIO(content(path, sha256=sha256))
    with reading(path):
        return pd.read_csv(raw)
