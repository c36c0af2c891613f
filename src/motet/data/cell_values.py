"""What the text of cells means: missing, a number in some spelling, a date; truth values are in motet.text.

A column is read by its different values, each of them once. Knows text. Does not know files, targets or clients.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

# Words for a cell without a value: those of pandas but "None", which is a category in many tables, and three signs.
MISSING = frozenset(
    ["", "NA", "na", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>", "NULL", "Null", "null", "NaN", "Nan", "nan"]
    + ["-NaN", "-nan", "1.#IND", "1.#QNAN", "-1.#IND", "-1.#QNAN", "?", "-", "."]
)  # fmt: skip
_NONE = frozenset(["None", "none", "NONE"])  # missing in a column of numbers, a category elsewhere
ORIGIN = "2000-01-01"  # days are counted from here, at every site alike

_COMMA = re.compile(r"[+-]?(\d+|[1-9]\d{0,2}(\.\d{3})+)?(,\d+)?([eE][+-]?\d+)?")  # 1.234,5
_POINT = re.compile(r"[+-]?(\d+|[1-9]\d{0,2}(,\d{3})+)?(\.\d*)?([eE][+-]?\d+)?")  # 1,234.5
_EITHER = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")  # 1,234: a thousand, or a little more than one
_GAPS = re.compile(r"(?<=\d)[\s\u00a0\u202f'’](?=\d{3}(?:\D|$))")  # between thousands: 1 234, 1'234
_MONTHS = ["january", "february", "march", "april", "may", "june", "july", "august", "september", "october"]
_MONTHS += ["november", "december"]
_MONTH = (
    "(?:sept|" + "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS) + r")\.?"
)  # Aug, Aug., August
_DATE = re.compile(
    r"(?:(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})"
    r"|(?P<dd>\d{1,2})\.(?P<dm>\d{1,2})\.(?P<dy>\d{4})"
    r"|(?P<a>\d{1,2})(?P<sign>[/-])(?P<b>\d{1,2})(?P=sign)(?P<ay>\d{4})"
    rf"|(?P<nd>\d{{1,2}})[-/. ]\s*(?P<nm>(?i:{_MONTH}))[-/. ]\s*(?P<ny>\d{{4}}))"  # 28-Aug-1978
    r"(?:[T ]\s*(?P<h>\d{1,2}):(?P<min>\d{2})(?::(?P<s>\d{2}(?:\.\d+)?))?(?:\s*(?:Z|UTC|[+-]\d{2}:?\d{2}))?)?"
)


_SHORT_NAMED_YEAR = re.compile(
    rf"(\d{{1,2}})[-/. ]\s*(?i:{_MONTH})[-/. ]\s*'?\d{{2}}(?:[T ]\s*\d{{1,2}}:\d{{2}}.*)?"
)
_SHORT_YEAR = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{2})(?:[T ]\s*\d{1,2}:\d{2}.*)?")  # 31.01.20


# ---- numbers ----


@dataclass(frozen=True)
class Numbers:
    """The numbers that texts are."""

    values: np.ndarray  # (texts,) float64; NaN where a text is no number
    decimal: str  # the sign that was found: "." or ","; "?": the texts fit both
    clear: bool  # whether texts speak for that sign, or it is only what is usual
    nothing: np.ndarray  # (texts,) words that are missing cells among numbers, and categories elsewhere


def numbers_of(texts: Sequence[str], decimal: str = "auto") -> Numbers:
    """Texts as numbers, with one decimal sign for all of them.

    >>> numbers_of(["1.234,5", "7"]).values.tolist(), numbers_of(["1,234.5"]).values.tolist()
    ([1234.5, 7.0], [1234.5])
    >>> numbers_of(["1,234"]).decimal, numbers_of(["1,234", "0,5"]).values.tolist()
    ('?', [1.234, 0.5])
    """
    plain = [_GAPS.sub("", t) for t in texts]
    said = decimal if decimal != "auto" else decimal_sign(plain)
    sign = said or "."
    values = np.array([_number(t, "." if sign == "?" else sign) for t in plain], np.float64)
    if sign == "?":
        values[[bool(_EITHER.fullmatch(t)) for t in plain]] = np.nan
    return Numbers(values, sign, said in (".", ","), np.array([t in _NONE for t in texts], bool))


def decimal_sign(texts: Sequence[str]) -> str:
    """The sign with which more texts are numbers; "?" if each comma could be one of thousands, or if as many texts
    speak for one sign as for the other; "" if no text speaks for any.

    >>> decimal_sign(["0,123", "1,456"]), decimal_sign(["1,234", "0.5"]), decimal_sign(["0,5", "0.5"])
    (',', '.', '?')
    >>> decimal_sign(["1.234", "7"]), decimal_sign(["1.234.567"])
    ('', ',')
    """
    signed = [t for t in texts if "," in t or "." in t]
    fits = [
        (bool(_COMMA.fullmatch(t)), bool(_POINT.fullmatch(t))) for t in signed
    ]  # 1.234 and 1,234 fit both
    comma, point = fits.count((True, False)), fits.count((False, True))
    if comma != point:
        return "," if comma > point else "."
    return "?" if comma or any(_EITHER.fullmatch(t) for t in signed) else ""


def _number(text: str, decimal: str) -> float:
    """NaN for what is no number; infinities are numbers, and are refused by name later."""
    if decimal == "," and _COMMA.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    elif decimal == "." and "," in text and _POINT.fullmatch(text):
        text = text.replace(",", "")
    try:
        return float("nan" if "_" in text else text)
    except ValueError:
        return float("nan")


# ---- dates ----


@dataclass(frozen=True)
class Dates:
    """The dates that texts are."""

    values: pd.Series  # (texts,) datetime64; NaT where a text is no date
    ambiguous: bool  # day and month could be either way round
    day_first: bool | None  # which way round they were taken to be; None: their order is not in question


def has_short_year(text: str) -> bool:
    """Whether a text is a date whose year has two digits, so that its century is not known.

    >>> [has_short_year(t) for t in ("31.01.20", "1/31/20 10:30", "20-12-31", "31.01.2020", "12-34-56")]
    [True, True, True, False, False]
    >>> [has_short_year(t) for t in ("28-Aug-78", "3 may 20", "28-Aug-1978", "45-Aug-78", "12-abc-78")]
    [True, True, False, False, False]
    """
    if by_name := _SHORT_NAMED_YEAR.fullmatch(text):
        return 0 < int(by_name[1]) <= 31
    found = _SHORT_YEAR.fullmatch(text)
    if not found:
        return False
    a, b, c = (int(found[k]) for k in (1, 3, 4))
    return any(0 < day <= 31 and 0 < month <= 12 for day, month in ((a, b), (b, a), (c, b)))


def dates_of(texts: Sequence[str], day_first: bool | str = "auto") -> Dates:
    """2020-01-31, 31.01.2020, 31-Jan-2020, or 31/01/2020 and 01/31/2020; a time may follow, without its zone.

    >>> dates_of(["28-Aug-1978", "1 September 2020"]).values.dt.strftime("%Y-%m-%d").tolist()
    ['1978-08-28', '2020-09-01']
    """
    import pandas as pd

    found = pd.Series(list(texts), dtype=object).str.extract(f"^{_DATE.pattern}$")
    a, b = (found[k].astype(float) for k in "ab")
    either = bool(a.notna().any())
    first = bool((a > 12).any()) if day_first == "auto" else bool(day_first)
    unclear = either and day_first == "auto" and not ((a > 12).any() or (b > 12).any())
    day, month = (a, b) if first else (b, a)
    parts = {
        "year": found["y"].fillna(found["dy"]).fillna(found["ay"]).fillna(found["ny"]),
        "month": found["m"]
        .fillna(found["dm"])
        .astype(float)
        .fillna(month)
        .fillna(_named_months(found["nm"])),
        "day": found["d"].fillna(found["dd"]).fillna(found["nd"]).astype(float).fillna(day),
    }
    times = {"hour": found["h"], "minute": found["min"], "second": found["s"]}
    whole = {k: v.astype(float) for k, v in parts.items()} | {
        k: v.astype(float).fillna(0) for k, v in times.items()
    }
    return Dates(pd.to_datetime(pd.DataFrame(whole), errors="coerce"), unclear, first if either else None)


def _named_months(names: pd.Series) -> pd.Series:
    """1 for Jan, 12 for December; NaN where no month is named."""
    return names.str[:3].str.lower().map({name[:3]: k + 1.0 for k, name in enumerate(_MONTHS)})


def days_of(when: pd.Series) -> np.ndarray:
    """(rows,) days since the origin, with fractions for times; NaN where there is no date."""
    import pandas as pd

    return np.asarray((when - pd.Timestamp(ORIGIN)) / pd.Timedelta(days=1), np.float64)


def calendar_parts(when: pd.Series) -> dict[str, np.ndarray]:
    """Year, month, weekday (Monday is 0), and the hour where some date has a time."""
    at = when.dt
    found = {"year": at.year, "month": at.month, "weekday": at.weekday}
    if ((at.hour > 0) | (at.minute > 0)).any():
        found["hour"] = at.hour
    return {k: v.to_numpy(np.float64, na_value=np.nan) for k, v in found.items()}
