"""`motet advise`: is it worth trying to federate, for whom, and with which methods? Data go to stdout.

Everything heavy is imported when the command is run.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from motet.cli.command import Add, add_trust, consent_of, say, split_words


def advise_command(add: Add) -> None:
    """The words and options of the command."""
    p = add("advise", do_advise, "say whether it is worth trying to federate, for whom, with which methods")
    p.add_argument("words", nargs="*", metavar="recipe.toml | data.name=value", help="as for run")
    p.add_argument(
        "--probe", action="store_true", help="train the methods for a few rounds, and score validation rows"
    )
    p.add_argument("--rounds", type=int, default=50, metavar="N", help="of the probe (default: 50)")
    p.add_argument("--all", action="store_true", help="all clients, not only the first 30")
    p.add_argument("--json", action="store_true", help="every figure as JSON on stdout")
    add_trust(p, "the recipe")


def do_advise(args: Any) -> None:
    from motet.advice import advise
    from motet.advice.advice_text import as_text
    from motet.errors import UsageError
    from motet.report.terminal import width_here
    from motet.runs import recipe as recipes

    if args.rounds < 1:
        raise UsageError(f"--rounds is {args.rounds}; expected a whole number, 1 or more")
    path, words = split_words(args.words)
    recipe = recipes.read(path, words, trust=consent_of(args))
    say("\n".join(recipe.digest().splitlines()[:2]) + "\n")
    found = advise(recipe, args.rounds if args.probe else 0, say)
    print(json.dumps(found.plain(), default=str) if args.json else as_text(found, width_here(), args.all))
    given, methods = shlex.join(args.words), ",".join(fit.method for fit in found.fits)
    probe = "" if args.probe else f"motet advise {given} --probe\n       "
    say(f"\nnext:  {probe}motet compare {given} --methods {methods}")
