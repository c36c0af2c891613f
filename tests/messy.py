"""Folders of CSVs with the faults that people's tables have: one hospital's rows, written in many ways.

python tests/messy.py FOLDER    writes all of them, to look at
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

ROWS = 60
SITES = ("east", "north", "west")


def patients(seed: int, rows: int = ROWS) -> pd.DataFrame:
    """Clean rows: numbers, a truth value, a category, a date, and what is predicted."""
    draw = np.random.default_rng(seed)
    days = pd.Timestamp("2019-01-01") + pd.to_timedelta(draw.integers(0, 700, rows), "D")
    frame = pd.DataFrame(
        {
            "age": draw.integers(20, 90, rows),
            "crp": draw.gamma(2, 5, rows).round(2),
            "smoker": draw.choice(["yes", "no"], rows),
            "ward": draw.choice(["Süd", "Ost", "Mitte"], rows),
            "admitted": days.strftime("%Y-%m-%d"),
        }
    )
    frame["outcome"] = np.where(frame["crp"] + draw.normal(0, 3, rows) > 9, "died", "alive")
    return frame


Write = Callable[[Path, pd.DataFrame], None]


def plain(path: Path, frame: pd.DataFrame) -> None:
    frame.to_csv(path, index=False)


def text(encoding: str = "utf-8", separator: str = ",", decimal: str = ".", index: bool = False) -> Write:
    return lambda path, frame: frame.to_csv(
        path, index=index, encoding=encoding, sep=separator, decimal=decimal
    )


def lines(change: Callable[[list[str]], list[str]]) -> Write:
    """The plain lines, changed."""

    def write(path: Path, frame: pd.DataFrame) -> None:
        plain(path, frame)
        path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")

    return write


def cells(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Write:
    return lambda path, frame: plain(path, change(frame))


def holes(word: str) -> Write:
    """Every seventh crp is a word for nothing."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.astype({"crp": object})
        frame.loc[::7, "crp"] = word
        return frame

    return cells(change)


def spelled(form: str) -> Write:
    return cells(lambda f: f.assign(admitted=pd.to_datetime(f["admitted"]).dt.strftime(form)))


def weigh(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows with weights, as surveys have them."""
    return frame.assign(weight=1 + 0.25 * (frame["age"] % 7))


def weighing(first: object, fault: str = "", settings: tuple[str, ...] = (), note: str = "") -> Mess:
    """All hospitals have weights, and the first row of the last one has another one."""
    change = cells(lambda f: f.assign(weight=[first, *f["weight"][1:]]))
    return Mess(change, settings, fault, note, ("data.weight=weight",), weigh)


@dataclass(frozen=True)
class Mess:
    """One way to write the last hospital's file, and what should come of it."""

    write: Write
    settings: tuple[str, ...] = ()  # with which a run comes of it
    fault: str = ""  # what is said without them; "": a run comes of it as it is
    note: str = ""  # what a run says of it
    always: tuple[str, ...] = ()  # settings without which it is no mess
    everywhere: Callable[[pd.DataFrame], pd.DataFrame] = lambda frame: frame  # what all hospitals' files have


MESSES = {
    "clean": Mess(plain),
    "semicolons and decimal commas": Mess(text(separator=";", decimal=",")),
    "tabs": Mess(text(separator="\t")),
    "bars": Mess(text(separator="|")),
    "a mark of UTF-8": Mess(text("utf-8-sig")),
    "UTF-16": Mess(text("utf-16")),
    "cp1252": Mess(text("cp1252"), note="is not UTF-8"),
    "an index without a name": Mess(text(index=True), note="looks like an id"),
    "spaces around cells": Mess(lines(lambda all_: [f"  {x.replace(',', ' , ')} " for x in all_])),
    "quoted cells": Mess(
        lines(lambda all_: [",".join(f'"{c}"' for c in x.split(",")) for x in all_])
    ),
    "blank lines": Mess(lines(lambda all_: [y for x in all_ for y in (x, "", ",,,,,")])),
    "separators at the end": Mess(lines(lambda all_: [x + "," for x in all_])),
    "separators at the end of rows": Mess(lines(lambda all_: [all_[0], *(x + "," for x in all_[1:])])),
    "a line for Excel": Mess(lines(lambda all_: ["sep=,", *all_])),
    "two columns of one name": Mess(
        lines(lambda all_: [all_[0].replace("crp", "age"), *all_[1:]]), fault="several columns called 'age'"
    ),
    "rows that do not fit": Mess(lines(lambda all_: [*all_, "1,2,3,4,5,6,7,8"]), fault="do not fit its 6"),
    "no rows": Mess(lines(lambda all_: all_[:1]), note="has column names and no examples: left out"),
    "no bytes": Mess(lambda path, frame: path.write_bytes(b"") and None, note="is empty: left out"),
    "other case and spaces in names": Mess(
        cells(lambda f: f.rename(columns={"age": " Age", "crp": "CRP "})), note="writes 'Age' for 'age'"
    ),
    "a column less": Mess(cells(lambda f: f.drop(columns="crp")), note="does not hold the column 'crp'"),
    "a column more": Mess(cells(lambda f: f.assign(bmi=f["age"] / 3)), note="do not hold the column 'bmi'"),
    "a column without cells": Mess(
        cells(lambda f: f.assign(crp=np.nan)), note="does not hold the column 'crp'"
    ),
    "thousands that are clear": Mess(
        cells(lambda f: f.assign(age=[f"{v:,.1f}" for v in f["age"] * 1e5]))
    ),
    "thousands that are not clear": Mess(
        cells(lambda f: f.assign(age=[f"{v + 1},000" for v in f["age"]], crp=f["crp"].round().astype(int))),
        ("data.decimal=point",),
        fault="thousands, or decimals?",
    ),
    "ids": Mess(cells(lambda f: f.assign(patient_id=range(100, 100 + len(f)))), note="looks like an id"),
    "names": Mess(cells(lambda f: f.assign(who=[f"Ms {i}" for i in range(len(f))])), note="looks like an id"),
    "a category of its own": Mess(cells(lambda f: f.assign(ward=["Nord", *f["ward"][1:]]))),
    "another spelling of truth": Mess(
        cells(lambda f: f.assign(smoker=f["smoker"].str.upper())),
    ),
    "a constant": Mess(cells(lambda f: f.assign(age=40))),
    "rows without a target": Mess(
        cells(lambda f: f.assign(outcome=["", *f["outcome"][1:]])), ("data.drop_rows=true",),
        fault="the target 'outcome' has 1 missing values",
    ),
    "infinite numbers": Mess(
        cells(lambda f: f.assign(crp=[np.inf, *f["crp"][1:]])),
        ("data.missing_values=inf", "data.missing=mean"), fault="holds infinite values",
    ),
    "words among numbers": Mess(
        holes("not done"), ('data.missing_values=["not done"]', "data.missing=median"),
        fault="is mostly numbers, and 9 of its values are not",
    ),
    "words among dates": Mess(
        cells(lambda f: f.assign(admitted=["soon", *f["admitted"][1:]])), ("data.drop=admitted",),
        fault="is mostly dates, and 1 of its values are not",
    ),
    "a number for nothing": Mess(holes("-999"), ("data.missing_values=-999", "data.missing=mean")),
    "dates with years of two digits": Mess(
        spelled("%d.%m.%y"), ("data.drop=admitted",), fault="so that their century is not known, in 60 rows"
    ),
    "dates with month names and years of two digits": Mess(
        spelled("%d-%b-%y"), ("data.drop=admitted",), fault="so that their century is not known, in 60 rows"
    ),
    "dates with month names": Mess(spelled("%d-%b-%Y")),
    "dates with points": Mess(spelled("%d.%m.%Y")),
    "dates of America": Mess(spelled("%m/%d/%Y %H:%M")),
    "dates with times": Mess(spelled("%Y-%m-%dT%H:%M:%S")),
    "parts": Mess(
        cells(lambda f: f.assign(part=np.resize(["Train", "train", "TEST", "validation"], len(f)))),
        ("data.part=part",),
    ),
} | {
    f"missing as {word!r}": Mess(holes(word), ("data.missing=indicator",), fault="has 9 missing values")
    for word in ("", "NA", "N/A", "null", "?", "-", ".", "None")
} | {
    "codes of digits and of letters": Mess(
        cells(lambda f: f.assign(code=np.resize(["A", "01", "B"], len(f)))), ("data.categories=code",),
        fault="is mostly numbers, and 40 of its values are not",
        everywhere=lambda f: f.assign(code=np.resize(["01", "1", "10"], len(f))),
    ),
    "truth in several ways": Mess(
        cells(lambda f: f.assign(outcome=f["outcome"].map({"yes": "Y", "no": "n"}))),
        note="writes yes and no in several ways: read as two classes",
        everywhere=lambda f: f.assign(outcome=np.where(f["outcome"] == "died", "yes", "no")),
    ),
    "truth and 0 and 1": Mess(
        cells(lambda f: f.assign(outcome=f["outcome"].map({"yes": 1, "no": 0}))),
        note="writes yes and no in several ways: read as two classes",
        everywhere=lambda f: f.assign(outcome=np.where(f["outcome"] == "died", "yes", "no")),
    ),
    "weights": weighing(2, note="rows count by 'weight'"),
    "a weight of 0": weighing(0, note="1 rows with a weight of 0 are left out"),
    "a negative weight": weighing(
        -1, "is negative in 1 rows", ("data.missing_values=-1", "data.drop_rows=true"),
        "1 rows without a weight are left out",
    ),
    "a missing weight": weighing("", "is missing in 1 rows", ("data.drop_rows=true",)),
    "an infinite weight": weighing(
        "inf", "is infinite in 1 rows", ("data.missing_values=inf", "data.drop_rows=true")
    ),
    "a word for a weight": weighing(
        "heavy", "is no number in 1 rows", ("data.missing_values=heavy", "data.drop_rows=true")
    ),
    "weights of 0 everywhere": Mess(
        cells(lambda f: f.assign(weight=0)), (), "", "so that nothing is left, at west", ("data.weight=weight",), weigh
    ),
}  # fmt: skip


def write_folder(folder: Path, mess: Mess) -> Path:
    """Two clean hospitals and one with the mess."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, site in enumerate(SITES):
        (mess.write if site == SITES[-1] else plain)(folder / f"{site}.csv", mess.everywhere(patients(seed)))
    return folder


if __name__ == "__main__":
    for name, one in MESSES.items():
        write_folder(Path(sys.argv[1]) / name.replace(" ", "-").replace("/", ""), one)
