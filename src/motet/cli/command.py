"""What all commands share: how they are added to the parser, and how they talk."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

Add = Callable[[str, Callable[[Any], Any], str], argparse.ArgumentParser]
"""Adds a command: its name, what it does with the arguments, and what it is for."""


def say(text: str) -> None:
    """To stderr: stdout is for data."""
    print(text, file=sys.stderr, flush=True)


def adds_to(parser: argparse.ArgumentParser) -> Add:
    """A function that adds commands to this parser."""
    commands = parser.add_subparsers(title="commands", metavar="")

    def add(name: str, do: Callable[[Any], Any], text: str) -> argparse.ArgumentParser:
        p = commands.add_parser(name, help=text, description=text)
        p.set_defaults(do=do)
        p.add_argument("--trace", action="store_true", help="show where an error came from")
        return p

    return add


def group(add: Add, name: str, text: str) -> Add:
    """A command that holds others, such as `motet data`; returns the function that adds them."""
    held = add(name, lambda args: held.print_help(), text)
    return adds_to(held)
