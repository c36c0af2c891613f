"""What all commands share: how they are added to the parser, and how they talk."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from motet.trusted_code import Consent

Add = Callable[[str, Callable[[Any], Any], str], argparse.ArgumentParser]
"""Adds a command: its name, what it does with the arguments, and what it is for."""


def say(text: str) -> None:
    """To stderr: stdout is for data."""
    print(text, file=sys.stderr, flush=True)


def add_trust(p: argparse.ArgumentParser, what: str) -> None:
    """The option `--trust`; `what` is the file or folder that may name code."""
    p.add_argument(
        "--trust",
        action="store_true",
        help=f"let code run that {what} names as module:name; without it you are asked about modules of the "
        "current folder, and all others are refused",
    )


def consent_of(args: Any) -> Consent:
    """Yes with --trust; else a person is asked where there is a question to ask."""
    return True if args.trust else ask_at_terminal


def ask_at_terminal(question: str) -> bool:
    """A plain yes or no; no where nobody can answer."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def split_words(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The recipe's path, if one was given, and the settings."""
    from motet.runs.recipe_text import RecipeError, check_given_once

    paths = [w for w in words if "=" not in w]
    if gone := [w for w in paths if is_method(w) and not Path(w).exists()]:
        raise RecipeError(
            f"there is no recipe {gone[0]}, and there is a method {gone[0]}\n"
            f"hint: --methods {gone[0]} to compare it, method={gone[0]} elsewhere"
        )
    if len(paths) > 1:
        raise RecipeError(
            f"more than one recipe: {', '.join(paths)}\nhint: settings are written section.name=value"
        )
    given = [w for w in words if "=" in w]
    check_given_once(given)
    return (paths[0] if paths else None), given


def is_method(word: str) -> bool:
    from motet.runs.recipe import method_names

    return word in method_names()


def listed(given: Sequence[Sequence[str]] | None, words: list[str], fits: Callable[[str], bool]) -> list[str]:
    """The values of an option that takes a list, with commas or spaces between them; given twice, both count. What
    follows them and does not fit is put back among the words: settings, and the path of a recipe."""
    found: list[str] = []
    for first, *rest in given or []:
        words += [word for word in rest if not fits(word)]
        found += [name for part in [first, *filter(fits, rest)] for name in names(part.replace(" ", ","))]
    return found


def is_number(word: str) -> bool:
    """Whether this is a seed or several: 0, 0-4 or 0,1."""
    return word[:1].isdigit() and "=" not in word


def names(text: str) -> list[str]:
    """An option's value with commas in it."""
    return [word.strip() for word in text.split(",") if word.strip()]


def print_summary(folder: Path, as_json: bool) -> None:
    """A run in numbers, on stdout."""
    from motet.report.read import read
    from motet.report.tables import summary
    from motet.report.terminal import summary_text

    found = summary(read([folder])[0])
    print(json.dumps({"folder": str(folder)} | found, default=str) if as_json else summary_text(found))


def adds_to(parser: argparse.ArgumentParser) -> Add:
    """A function that adds commands to this parser."""
    commands = parser.add_subparsers(title="commands", metavar="")

    def add(name: str, do: Callable[[Any], Any], text: str) -> argparse.ArgumentParser:
        p = commands.add_parser(name, help=text, description=text)
        p.set_defaults(do=do, parser=p)
        p.add_argument("--trace", action="store_true", help="show where an error came from")
        return p

    return add


def group(add: Add, name: str, text: str) -> Add:
    """A command that holds others, such as `motet data`; returns the function that adds them."""
    held = add(name, lambda args: held.print_help(), text)
    return adds_to(held)
