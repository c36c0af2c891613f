"""A survey of clients' data as a file: a picture (.png, .svg), or a page with picture, text and table (.html).

The page is self-contained: it loads nothing. Knows the figures of a survey. Does not know how they were counted.
"""

from __future__ import annotations

from pathlib import Path

from motet.errors import UsageError
from motet.report import survey_text
from motet.report.html import SCRIPT, policy, template
from motet.report.survey_figure import caption, png_of, svg_of
from motet.report.survey_text import Plain
from motet.report.survival_figures import survey_caption, survey_svg

SUFFIXES = (".png", ".svg", ".html")


def check(to: Path) -> None:
    """Refuse a file that we cannot write, before anything is counted."""
    if to.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"{to} ends in {to.suffix or 'nothing'}; expected {', '.join(SUFFIXES)}\n"
            f"hint: --to {to.with_suffix('.html')} writes a page with the picture and the table"
        )


def save(survey: Plain, to: Path, command: str = "") -> Path:
    """Write a picture or a page, by the file's suffix; the page shows `command` as the way to make it again."""
    check(to)
    to.parent.mkdir(parents=True, exist_ok=True)
    match to.suffix.lower():
        case ".png":
            to.write_bytes(png_of(survey))
        case ".svg":
            to.write_text(svg_of(survey), encoding="utf-8")
        case _:
            to.write_text(page(survey, command), encoding="utf-8")
    return to


def page(survey: Plain, command: str = "") -> str:
    """The whole page as text."""
    cells = survey_text.columns(survey)
    text: str = template("survey.html").render(
        title=f"Who holds what: {survey['name']}", policy=policy(), script=SCRIPT, command=command,
        picture=svg_of(survey), caption=caption(survey), curves=survey_svg(survey),
        curves_caption=survey_caption(survey), facts=survey_text.facts(survey), notes=survey["notes"],
        headings=list(cells), left=survey_text.LEFT, apart=survey_text.APART, about=survey_text.of_clients(survey),
        rows=[[cell(client) for cell in cells.values()] for client in survey_text.ordered(survey)],
    )  # fmt: skip
    return text
