"""Words that motet does not use any more. Each named several things, or nothing that a newcomer could guess.

docs/glossary.md has the words that stay. A new name is not held to a list: it must be the field's word.
"""

from __future__ import annotations

import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from motet.core import is_verb
from motet.runs.recipe import method_class, method_names

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "motet"

# As a whole identifier or a part of one (read_notes, AskTime), whatever the case.
RETIRED = """
told tell noted visited settle settled deal dealt deck hand furnish furniture judge exam examinee marks
tally blame portrait portraits bends overheard eye doubt prefer listens calm conduct conductor travel pulse
voices listen hear hugging holdings lookup office reception rehearse rehearsal rehearsed desk desks tread
marching pace ghosts room born jolt opening fade glance looks twins puppet mind newborn course shelf homes
jiggle practise practising
"""
IDENTIFIERS = set(RETIRED.split())
ALLOWED = {"by_hand", "LookupError", "ProcessLookupError"}  # written out by a person; Python's own
FOREIGN = {"np", "numpy", "torch"}  # what stands behind these is theirs: torch.eye
SETTINGS_AND_VERBS = IDENTIFIERS | {"look", "recall"}  # a site's owner approves verbs by name
FILES = IDENTIFIERS | {"units", "life", "orders", "keeps", "fold", "talk", "words"}

# Words of ours in sentences. Ordinary English that was also a word of ours stands here in the forms that it had.
PROSE = re.compile(
    r"""
    \b(?: exams? | examinees? | portraits? | overheard | ghosts? | furnish\w* | decks? | dealt | rehears\w+
      | judges? | judged | tally | newborn | puppets? | twins | s[eé]ance | holdings | feign\w* | at_hand
      | jolt | glances? | bends
      | desks | (?:site's|its|one|each|a)[ ]desk (?![ ]scale) | settled[ ]recipe | who[ ]listens )\b
    | ` (?: told | tell | noted | visited | general | settle | course | conduct | travel | pulse | calm | lookup
      | office | reception | desk | marks | blame | eye | doubt | prefer | listens | look | recall | fade
      | looks | mind | opening | home | shelf | keeps\.py | judge\.py | deal\.py | fold\.py | talk\.py ) \b
    """,
    re.VERBOSE | re.IGNORECASE,
)
OLD_NAMES = re.compile(r"seed_of\(|^RENAMED = ")  # words in seeds stay; recipes of earlier versions are read


def parts(name: str) -> set[str]:
    """
    >>> sorted(parts("_readNotes_ofSite"))
    ['notes', 'of', 'read', 'site']
    """
    return {p.lower() for p in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def names_in(text: str) -> Iterator[tuple[int, str]]:
    """Identifiers of ours with their lines."""
    before = ["", ""]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        foreign = before[1] == "." and before[0] in FOREIGN
        if token.type == tokenize.NAME and not foreign and token.string.strip("_") not in ALLOWED:
            yield token.start[0], token.string
        before = [before[1], token.string]


def sentences_in(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a document; of Python, its comments, docstrings, help texts and messages."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds and not OLD_NAMES.search(token.line):
            yield from enumerate(token.string.splitlines(), token.start[0])


def keys_in(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield key
            yield from keys_in(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from keys_in(value)


def documents() -> list[Path]:
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")]
    for folder in ("docs", "experiments", "benchmarks"):
        found += [p for s in ("*.md", "*.toml", "*.py") for p in (ROOT / folder).rglob(s)]
    mine = [p for p in found if ".envs" not in p.parts and p.name != "glossary.md"]
    return sorted([*mine, *SOURCE.rglob("*.py"), *SOURCE.rglob("*.html")])


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=relative)
def test_no_retired_word_names_anything(path: Path) -> None:
    assert not parts(path.stem) & FILES, f"{relative(path)}: name the file by what it holds"
    found = {f"line {n}: {name}" for n, name in names_in(path.read_text()) if parts(name) & IDENTIFIERS}
    assert not found, f"{relative(path)}: use the field's words"


@pytest.mark.parametrize("name", method_names())
def test_no_retired_word_is_a_setting_or_a_verb(name: str) -> None:
    cls = method_class(name)
    verbs = {v for v in dir(cls) if is_verb(getattr(cls, v))}
    found = {w for w in {f.name for f in fields(cls)} | verbs if parts(w) & SETTINGS_AND_VERBS}
    assert not found, f"{name}: a setting and a verb say what they do"


@pytest.mark.parametrize("path", documents(), ids=relative)
def test_no_retired_word_stands_in_a_sentence(path: Path) -> None:
    found = {f"line {n}: {m.group()}" for n, line in sentences_in(path) for m in PROSE.finditer(line)}
    assert not found, f"{relative(path)}: say it in the field's words"


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").rglob("*.toml")), ids=relative)
def test_no_retired_word_is_a_key_of_a_recipe(path: Path) -> None:
    keys = set(keys_in(tomllib.loads(path.read_text()))) - {"desk"}  # a scale: experiments that fit a desk
    assert not {k for k in keys if parts(k) & SETTINGS_AND_VERBS}


def test_the_check_finds_what_it_looks_for() -> None:
    text = "def settle_rows(x):\n    return torch.eye(3)\n"
    assert [n for n in names_in(text) if parts(n[1]) & IDENTIFIERS] == [(1, "settle_rows")]
    assert PROSE.search("a rehearsal among three") and PROSE.search("the site's desk answers")
    assert not PROSE.search("at desk scale") and not PROSE.search("`motet reproduce x --scale desk`")
