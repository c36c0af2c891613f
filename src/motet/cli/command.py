"""How commands are hung up: one way for the front door and for groups of commands behind it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

Add = Callable[[str, Callable[[Any], Any], str], argparse.ArgumentParser]
"""Adds a command: its name, what it does with the arguments, and what it is for."""


def adds_to(parser: argparse.ArgumentParser) -> Add:
    """What adds commands to a parser."""
    commands = parser.add_subparsers(title="commands", metavar="")

    def add(name: str, do: Callable[[Any], Any], text: str) -> argparse.ArgumentParser:
        p = commands.add_parser(name, help=text, description=text)
        p.set_defaults(do=do)
        p.add_argument("--trace", action="store_true", help="show where an error came from")
        return p

    return add


def group(add: Add, name: str, text: str) -> Add:
    """A command that only holds others, and lists them; what adds commands to it."""
    held = add(name, lambda args: held.print_help(), text)
    return adds_to(held)
