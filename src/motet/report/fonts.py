"""Fonts for names in any script: which fonts of this machine have the characters of a text.

In SVG text stays text, and the reader's machine finds the fonts: STACK names families for many scripts. PDF and
PNG hold drawn letters, so a font must be here. Knows matplotlib's list of fonts, and no figures.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIRST = "DejaVu Sans"  # comes with matplotlib
STACK = (
    "'DejaVu Sans', Verdana, 'Noto Sans', 'Segoe UI', Helvetica, Arial, 'Noto Sans CJK SC', 'Noto Sans CJK JP', "
    "'Hiragino Sans', 'PingFang SC', 'Microsoft YaHei', 'Yu Gothic', 'Malgun Gothic', 'WenQuanYi Micro Hei', "
    "'Noto Sans Arabic', 'Noto Naskh Arabic', 'Geeza Pro', 'Noto Sans Devanagari', 'Noto Sans Thai', "
    "'Noto Color Emoji', sans-serif"
)


def use_fonts_that_have(figure: Figure) -> list[str]:
    """Give each text of a drawn figure the fonts that it needs; the scripts that no font here has."""
    from matplotlib.text import Text

    lacking: set[str] = set()
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        needed = frozenset(text.get_text()) - _charset(_path(FIRST)) - {"\n"}
        if needed:
            families, left = _families(needed)
            text.set_fontfamily([FIRST, *families])
            lacking |= left
    return sorted({_script(c) for c in lacking})


@contextmanager
def no_warnings_of_glyphs() -> Iterator[None]:
    """matplotlib warns of every character that its first font lacks, also where no letter is drawn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        warnings.filterwarnings("ignore", message=r"Matplotlib currently does not support")
        yield


def _families(needed: frozenset[str]) -> tuple[list[str], set[str]]:
    """Families that together have these characters, the most useful first, and what none of them has."""
    left, families = set(needed), []
    for name, path in _installed():
        if found := left & _charset(path):
            families.append(name)
            left -= found
        if not left:
            break
    return families, left


@lru_cache
def _installed() -> list[tuple[str, str]]:
    """Upright fonts of this machine by name; a family of many styles once."""
    from matplotlib.font_manager import fontManager

    plain = [f for f in fontManager.ttflist if f.style == "normal" and str(f.weight) in ("400", "normal")]
    found = {f.name: f.fname for f in sorted(plain, key=lambda f: (f.name, f.fname), reverse=True)}
    return sorted((name, path) for name, path in found.items() if not name.startswith("Last Resort"))


def _path(family: str) -> str:
    from matplotlib.font_manager import findfont

    return str(findfont(family))


@lru_cache(maxsize=512)
def _charset(path: str) -> frozenset[str]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):  # a file that is no font any more
        return frozenset()


def _script(character: str) -> str:
    """The first word of a character's name says its script: CJK, HANGUL, DEVANAGARI."""
    return unicodedata.name(character, "UNKNOWN").split(" ")[0].split("-")[0]


def sentence(scripts: Iterable[str]) -> str:
    """What to say where no font of this machine has a script; nothing if there is none."""
    named = ", ".join(scripts)
    return (
        f"no font of this machine has the script {named}: boxes stand for these letters\n"
        "hint: --format svg keeps text as text, or install a font, for example fonts-noto-cjk"
        if named
        else ""
    )
