"""The table of methods as a file for a paper or a program: LaTeX, CSV or Markdown.

LaTeX and Markdown have the columns that a terminal shows; CSV has every column in full precision. Knows the
frame that a comparison makes. Does not know runs.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.atomic import write_atomically
from motet.errors import UsageError
from motet.report.terminal import ABSENT, SCORES, Cell, score, star_note, unit
from motet.text import in_cell, in_markdown

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".tex", ".csv", ".md")
PAGE = ".html"  # the report, which is made elsewhere
SPECIAL = {  # a bracket or a star behind a line's end would belong to it
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''", "[": "{[}", "*": "{*}",
}  # fmt: skip
SIGNS = {"±": r"$\pm$", "−": "$-$", "–": "--", "—": "---", "…": r"\ldots{}", "≈": r"$\approx$", "≤": r"$\le$"}


def check(path: Path, *, page: bool = False) -> None:
    """Refuse a file that we cannot write, before anything is run."""
    known = (*SUFFIXES, PAGE) if page else SUFFIXES
    if path.suffix.lower() not in known:
        raise UsageError(
            f"{path} ends in {path.suffix or 'nothing'}; expected {', '.join(known)}\n"
            f"hint: {path.with_suffix('.tex')} is a table for LaTeX, .csv is for programs, .md for a README"
        )


def write_table(table: pd.DataFrame, path: Path) -> Path:
    """Write the table in the form that the file's name asks for."""
    check(path)
    make = {".tex": as_latex, ".csv": as_csv, ".md": as_markdown}[path.suffix.lower()]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, make(table))
    return path


def columns_of(table: pd.DataFrame) -> dict[str, Cell]:
    """The columns that people read: as in a terminal, without those that no row has a value for."""
    rows, metric = table.to_dict("records"), table.attrs["metric"]
    found = {k: cell for k, cell in SCORES.items() if k != "best for"}  # chosen on test rows
    found["global, server's test set"] = lambda row, metric: score(row["server_test"], metric)
    return {k: cell for k, cell in found.items() if any(cell(row, metric) != ABSENT for row in rows)}


def name_of(row: Any) -> str:
    """A row's name for people."""
    return str(row.get("name") or (f"{row['method']}, {row['role']}" if row["role"] else row["method"]))


def _cells(table: pd.DataFrame) -> list[list[str]]:
    """A heading, then a row for each method."""
    columns, metric = columns_of(table), table.attrs["metric"]
    rows = [
        [name_of(row), *(cell(row, metric) for cell in columns.values())] for row in table.to_dict("records")
    ]
    return [["method", *columns], *rows]


def typeset(cell: str) -> str:
    """A dash for what is absent, a minus for a minus."""
    return "–" if cell == ABSENT else re.sub(r"(?<![\w.])-(?=\d)", "−", cell)


# ---- CSV ----


def as_csv(table: pd.DataFrame) -> str:
    """Every column, numbers as exact as they are."""
    text: str = safe_cells(table).to_csv(index=False, lineterminator="\n")
    return text


def safe_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with nothing in its cells and headings that a spreadsheet would run."""
    found = frame.copy()
    for column in frame.select_dtypes(exclude="number"):
        found[column] = frame[column].map(in_cell)
    return found.rename(columns=in_cell)


# ---- Markdown ----


def as_markdown(table: pd.DataFrame) -> str:
    head, *rows = [[in_markdown(typeset(c)) for c in row] for row in _cells(table)]
    lines = ["| " + " | ".join(r) + " |" for r in (head, ["---"] * len(head), *rows)]
    notes = " ".join(in_markdown(note) for note in _notes(table))
    return "\n".join([*lines, *(["", notes] if notes else [])]) + "\n"


def _notes(table: pd.DataFrame) -> list[str]:
    """What must be known of the intervals, where no verdict stands beside the table."""
    return [note for note in (star_note(table), table.attrs["one_training"]) if note]


# ---- HTML ----


def as_html(table: pd.DataFrame) -> str:
    """A plain table for a notebook, all text escaped."""
    left, right = "text-align: left", "text-align: right; font-variant-numeric: tabular-nums"
    head, *rows = [[html.escape(typeset(c)) for c in row] for row in _cells(table)]
    lines = [
        "<tr>"
        + "".join(f'<{tag} style="{right if i else left}">{c}</{tag}>' for i, c in enumerate(row))
        + "</tr>"
        for tag, row in [("th", head), *(("td", row) for row in rows)]
    ]
    caption = html.escape(f"test {unit(table.attrs['metric'])}")
    note = f"<p>{html.escape(star_note(table))}</p>" if star_note(table) else ""
    return f'<table><caption style="{left}">{caption}</caption>{"".join(lines)}</table>{note}'


# ---- LaTeX ----


def as_latex(table: pd.DataFrame) -> str:
    """A `tabular` with booktabs' lines; what cannot be told apart from the best is not set bold."""
    head, *rows = [[in_latex(typeset(c)) for c in row] for row in _cells(table)]
    for place in _bold(table):
        rows[place] = [rf"\textbf{{{cell}}}" if i < 2 else cell for i, cell in enumerate(rows[place])]
    return "\n".join([
        f"% needs \\usepackage{{booktabs}}; {_comment(table)}",
        *_engine(head, rows),
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule",
        *_line(head), r"\midrule", *(text for row in rows for text in _line(row)), r"\bottomrule", r"\end{tabular}",
        *(f"% {note}" for note in _notes(table)),
    ]) + "\n"  # fmt: skip


def _line(cells: Sequence[str]) -> list[str]:
    return [" & ".join(cells) + r" \\"]


def _comment(table: pd.DataFrame) -> str:
    """What the numbers are; nothing in a comment may end its line."""
    better = "larger" if table.attrs["better"] > 0 else "smaller"
    text = f"data {table.attrs.get('data')}, test {unit(table.attrs['metric'])}, {better} is better"
    return re.sub(r"\s+", " ", text)


def _bold(table: pd.DataFrame) -> list[int]:
    """Rows to set off: the best one, if the table says that it can be told apart from the next."""
    if "distinct" not in table:
        return []
    return [i for i, yes in enumerate(table["distinct"]) if yes]


def _engine(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """pdflatex knows Latin letters only."""
    letters = "".join(c for row in (head, *rows) for c in row)
    if all(ord(c) < 0x250 for c in letters):
        return []
    return ["% names need xelatex or lualatex, and a font that has their letters"]


def in_latex(text: str) -> str:
    """
    >>> print(in_latex("50 % ± a_b {x}"))
    50 \\% $\\pm$ a\\_b \\{x\\}
    """
    safe = "".join(SPECIAL.get(c) or SIGNS.get(c) or c for c in text)
    return re.sub(r"[\s\x00-\x1f\x7f]+", " ", safe)
