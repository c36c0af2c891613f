"""`motet completion`: a script that lets a shell complete commands and options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from motet.cli.command import Add

SHELLS = ("bash", "zsh", "tcsh", "fish")


def completion_command(add: Add, parser: Callable[[], argparse.ArgumentParser]) -> None:
    """`parser` makes the whole parser, which the script is made from."""
    p = add(
        "completion",
        lambda args: do_completion(args, parser),
        "print a script for your shell that completes commands",
    )
    p.add_argument(
        "shell",
        choices=SHELLS,
        help="for bash: motet completion bash > ~/.local/share/bash-completion/completions/motet",
    )


def do_completion(args: Any, parser: Callable[[], argparse.ArgumentParser]) -> None:
    from motet.errors import UsageError

    try:
        import shtab
    except ImportError as e:
        raise UsageError("shtab is not installed\nhint: pip install shtab") from e
    if args.shell not in shtab.SUPPORTED_SHELLS:
        raise UsageError(f"this shtab writes no script for {args.shell}\nhint: pip install --upgrade shtab")
    print(shtab.complete(parser(), args.shell))
