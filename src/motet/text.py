"""Text for people: hints about misspelt names, tables of aligned columns, and text of others made harmless.

Knows strings only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from unicodedata import combining, normalize

LISTED = 12  # classes that are always named, where people read of data
_MANY = 20  # more names than these are not listed beside the nearest one
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# Sequences that a terminal obeys: CSI (colours, cursor), OSC (titles, links) up to its end, and two-letter ones.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?|\x9b[0-?]*[ -/]*[@-~]"
)
# Words for no and yes, and for false and true, in small letters without accents. 0 and 1 mean the same beside them.
_LANGUAGES = """
no/yes false/true n/y f/t
nein/ja falsch/wahr n/j
nee/ja onwaar/waar n/j
nej/ja falsk/sand falskt/sant n/j
nei/ja usann/sann n/j
non/oui faux/vrai
no/si falso/vero falso/verdadero
nao/sim falso/verdadeiro
nu/da fals/adevarat
nie/tak falsz/prawda
ne/ano nie/ano nepravda/pravda
ne/da neistina/istina
ne/taip ne/ja
nem/igen hamis/igaz
ei/kylla epatosi/tosi ei/jah
hayir/evet yanlis/dogru
οχι/ναι ψευδησ/αληθησ
нет/да не/да ні/так ложь/истина
"""
_PAIRS = [[tuple(pair.split("/")) for pair in line.split()] for line in _LANGUAGES.strip().splitlines()]
_TRUTHS = {word: float(value) for pairs in _PAIRS for pair in pairs for value, word in enumerate(pair)}
# These words mean nothing else. Others do elsewhere: da and si are countries, nie is never, ano is a year.
_PLAIN_WORDS = "no yes false true nein ja nee nej nei oui non sim nao igen kylla hayir evet οχι ναι нет"
_PLAIN = set(_PLAIN_WORDS.split())
_OUI_NON, _O_N = (
    {"oui", "non"},
    {"o", "n"},
)  # the letter o says other, or zero, unless one of these words is there
_TRUTHS["o"] = 1.0
_DIGITS = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0}
_LETTERS = str.maketrans("łı", "li")  # accents that are no signs of their own


ALL_SITES = (
    "all sites"  # a client's name where only the mean over sites is known; no site has a space in its name
)


def _plain(text: str) -> str:
    """Small letters without accents."""
    letters = normalize("NFKD", text.strip().casefold())
    return "".join(c for c in letters if not combining(c)).translate(_LETTERS)


def truth(text: str) -> float | None:
    """0 or 1 for a word that stands where yes or no is expected; None for any other.

    >>> truth("Sí"), truth("NEIN"), truth("0"), truth("perhaps")
    (1.0, 0.0, 0.0, None)
    """
    word = _plain(text)
    return _TRUTHS.get(word, _DIGITS.get(word))


def truths(texts: Iterable[str]) -> list[float] | None:
    """0 or 1 for each text if all are truth values, in one language or in several: files differ. A word that means
    something else elsewhere, and a letter, counts beside its partner or a plain word of its language: a lone "f" is
    more often a sex, "nie" is never, and "NO", "DK", "DA" are no answers. Beside words, 0 and 1 are truth values too.

    >>> truths(["Yes", "no"]), truths(["f"]), truths(["f", "T"]), truths(["0", "1"])
    ([1.0, 0.0], None, [0.0, 1.0], None)
    >>> truths(["ja", "No", "SÍ", "1"]), truths(["nie", "nein", "ja"]), truths(["nie", "tak"])
    ([1.0, 0.0, 1.0, 1.0], None, [0.0, 1.0])
    """
    said = []
    for text in texts:
        said.append(_plain(text))
        if said[-1] not in _TRUTHS and said[-1] not in _DIGITS:
            return None
    words = {w for w in said if w not in _DIGITS}
    clear = set(_O_N) if words & _OUI_NON else set()
    for pairs in _PAIRS:
        own = {w for pair in pairs for w in pair}
        if words & own & _PLAIN or any(words >= {*pair} for pair in pairs):
            clear |= own
    if not words or not words <= clear:
        return None
    return [_TRUTHS.get(w, _DIGITS.get(w, 0.0)) for w in said]


def one_spelling(texts: Collection[str]) -> dict[str, str]:
    """`no` or `yes` for each of several texts that say truth in more than one way; nothing where they are one pair of
    words, or no truth values.

    >>> one_spelling(["ja", "no", "1"]), one_spelling(["ja", "nein"]), one_spelling(["ja", "perhaps"])
    ({'ja': 'yes', 'no': 'no', '1': 'yes'}, {}, {})
    """
    values = truths(texts)
    words = {_plain(t) for t in texts}
    one_pair = len(texts) == len(words) and any(words <= {*pair} for pairs in _PAIRS for pair in pairs)
    if values is None or one_pair:
        return {}
    return {t: "yes" if value else "no" for t, value in zip(texts, values, strict=True)}


def truths_among(texts: Collection[str]) -> dict[str, float]:
    """0 or 1 for those texts that say yes or no beside other values, where words for both do; otherwise nothing.
    Words count that mean nothing else, or beside their partner where one of their language does so. 0 and 1 count
    unless there are other numbers.

    >>> truths_among(["ja", "nein", "Yes", "1", "unknown"])
    {'ja': 1.0, 'nein': 0.0, 'Yes': 1.0, '1': 1.0}
    >>> truths_among(["no", "yes", "0", "2"]), truths_among(["NO", "DK", "1"]), truths_among(["F", "T", "x"])
    ({'no': 0.0, 'yes': 1.0}, {}, {})
    """
    words = {t: _plain(t) for t in texts}
    there = set(words.values())
    beside = [
        {*pair} for pairs in _PAIRS if there & _PLAIN & {w for pair in pairs for w in pair}
        for pair in pairs if there >= {*pair}
    ]  # fmt: skip
    if not any(pair & _PLAIN for pair in beside):
        return {}
    clear = (there & _PLAIN).union(*beside)
    if not any(_NUMBER.fullmatch(w) for w in there - set(_DIGITS)):
        clear |= set(_DIGITS)
    return {t: _TRUTHS.get(w, _DIGITS.get(w, 0.0)) for t, w in words.items() if w in clear}


def respelled(texts: Iterable[str], categories: Sequence[str]) -> dict[str, str]:
    """Texts that say yes or no in other words than the categories do, where two of these are yes and no.

    >>> respelled(["1", "N", "maybe", "yes"], ["no", "yes"]), respelled(["1"], ["f", "m"])
    ({'1': 'yes', 'N': 'no'}, {})
    >>> respelled(["oui", "1"], ["no", "unknown", "yes"]), respelled(["oui", "1"], ["2", "no", "yes"])
    ({'oui': 'yes', '1': 'yes'}, {'oui': 'yes'})
    """
    values = truths(categories)
    among = truths_among(categories) if values is None else dict(zip(categories, values, strict=True))
    if len(set(among.values())) < len(among):
        return {}
    known = {v: category for category, v in among.items()}
    codes = any(_NUMBER.fullmatch(c) for c in categories if c not in among)
    said = {t: truth(t) for t in texts if t not in categories and not (codes and t in _DIGITS)}
    return {t: known[v] for t, v in said.items() if v is not None and v in known}


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint: the known name that looks most like `word`, and all of them unless they are many.

    >>> nearest("wnie", ["digits", "wine"])
    "did you mean 'wine'? there are: digits, wine"
    """
    names = list(known)
    close = get_close_matches(word, names, 1, cutoff=0.5)
    there = "there are: " + ", ".join(names) if names else "there are none"
    if not close:
        return there
    return f"did you mean {close[0]!r}?" + (f" {there}" if len(names) <= _MANY else "")


def unknown(what: str, said: str, known: Iterable[str], word: str | None = None) -> str:
    """
    >>> unknown("method", "fedavgg", ["fedavg", "ditto"])
    "unknown method fedavgg\\nhint: did you mean 'fedavg'? there are: ditto, fedavg"
    """
    return f"unknown {what} {said}\nhint: {nearest(word or said, sorted(known))}"


def duration(seconds: float) -> str:
    """
    >>> duration(75), duration(4000)
    ('75 s', '67 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """A line for each row, with columns of equal width; those in `right` are flush right.

    >>> aligned([["name", "rows"], ["a", "10"]], right=[1])
    ['name  rows', 'a       10']
    """
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = (
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, wide, strict=True))
        )
        return "  ".join(cells).rstrip()

    return [line(row) for row in rows]


def in_markdown(text: str) -> str:
    """Text that is shown as it is: nothing in it becomes a link, a tag, a table or a new line.

    >>> print(in_markdown("[x](http://a) <b> | a_b"))
    \\[x\\](http://a) &lt;b> \\| a\\_b
    """
    text = re.sub(r"[\s\x00-\x1f\x7f]+", " ", text.replace("&", "&amp;").replace("<", "&lt;"))
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", text)


def round_name(number: int) -> str:
    """A round's name for people, who count from 1. Stores and Python count from 0, and -1 is before the first round.

    >>> round_name(0), round_name(12), round_name(-1)
    ('round 1', 'round 13', 'before round 1')
    """
    return f"round {number + 1}" if number >= 0 else "before round 1"


def in_cell(value: object) -> object:
    """A cell of a CSV file. A spreadsheet would run some text as a formula; an apostrophe before it keeps it text.

    >>> in_cell("=HYPERLINK(1)"), in_cell("-1.5"), in_cell("@x"), in_cell("age"), in_cell(-2.0)
    ("'=HYPERLINK(1)", '-1.5', "'@x", 'age', -2.0)
    """
    runs = (
        isinstance(value, str) and value != "-" and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    )
    return f"'{value}" if runs and not _NUMBER.fullmatch(str(value)) else value


def function_name(spec: str) -> str:
    """A function's own name, of `module:function` or of one that a script or notebook defined; other words stay.

    >>> function_name("losses:one_minus_auc"), function_name("session:hits-1a2b3c4d"), function_name("rmse")
    ('one_minus_auc', 'hits', 'rmse')
    """
    module, _, name = spec.rpartition(":")
    return printable((name.rpartition("-")[0] or name) if module else spec, 60)


def printable(text: str, most: int = 300, *, lines: bool = False) -> str:
    r"""Text that somebody else wrote, for files and terminals: without sequences that a terminal obeys and letters
    that nobody sees, in one line unless `lines`, and cut.

    >>> printable("\x1b[31mdisk\x1b[0m full\nnow"), printable("abcdef", 4)
    ('disk full now', 'abc…')
    """
    plain = _ESCAPES.sub("", text[: 20 * most])
    seen = "".join(
        c if c.isprintable() or (lines and c == "\n") else " " if c.isspace() else "" for c in plain
    )
    return seen if len(seen) <= most else seen[: most - 1] + "…"
