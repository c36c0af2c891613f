"""Text for people: hints about misspelt names, tables of aligned columns, and text of others made harmless.

Knows strings only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches

_MANY = 20  # more names than these are not listed beside the nearest one
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# Sequences that a terminal obeys: CSI (colours, cursor), OSC (titles, links) up to its end, and two-letter ones.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?|\x9b[0-?]*[ -/]*[@-~]"
)
# Words for no and yes, in pairs; beside them the digits mean the same.
TRUTH_PAIRS = (("false", "true"), ("no", "yes"), ("f", "t"), ("n", "y"))
TRUTHS = {word: float(value) for pair in TRUTH_PAIRS for value, word in enumerate(pair)}
_DIGITS = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0}


ALL_SITES = (
    "all sites"  # a client's name where only the mean over sites is known; no site has a space in its name
)


def truths(texts: Iterable[str]) -> list[float] | None:
    """0 or 1 for each text if all are truth values, of one pair or of several: files differ. Of single letters alone
    both of a pair must be there: a lone "f" is more often a sex. Beside words, 0 and 1 are truth values too.

    >>> truths(["Yes", "no"]), truths(["f"]), truths(["f", "T"]), truths(["0", "1"])
    ([1.0, 0.0], None, [0.0, 1.0], None)
    """
    found = [t.casefold() for t in texts]
    there = set(found)
    clear = any(len(word) > 1 for word in there & TRUTHS.keys()) or any(there >= set(p) for p in TRUTH_PAIRS)
    if not clear or not there <= TRUTHS.keys() | _DIGITS.keys():
        return None
    return [(TRUTHS | _DIGITS)[t] for t in found]


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
