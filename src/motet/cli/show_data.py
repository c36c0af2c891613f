"""`motet data show`: what each client holds. Data go to stdout, messages to stderr.

Everything heavy is imported when the command is run.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from motet.cli.command import Add, add_trust, consent_of, say, split_words


def show_command(add: Add) -> None:
    """The words and options of the command."""
    p = add("show", do_show_data, "show every client's sizes, labels, skew and duplicate rows")
    p.add_argument("words", nargs="*", metavar="recipe.toml | data.name=value", help="as for run")
    p.add_argument(
        "--to", metavar="FILE", help="write a picture (.png, .svg), or a page with everything (.html)"
    )
    p.add_argument("--all", action="store_true", help="all clients, not only the first 30")
    p.add_argument("--json", action="store_true", help="every figure as JSON on stdout")
    add_trust(p, "the recipe")


def do_show_data(args: Any) -> None:
    from motet.data.survey import survey
    from motet.report import survey_html
    from motet.runs import recipe as recipes
    from motet.runs.build import federated_data

    if args.to:
        survey_html.check(Path(args.to))
    path, words = split_words(args.words)
    recipe = recipes.read(path, words, trust=consent_of(args))
    say("\n".join(recipe.digest().splitlines()[:2]) + "\n")
    found = asdict(survey(federated_data(recipe)))
    print(json.dumps(found) if args.json else text(found, args.all))
    given = shlex.join(args.words)
    more = f"\n       motet data show {given} --to survey.html"
    say("")
    if args.to:
        more = ""
        command = f"motet data show {given} --to {shlex.quote(Path(args.to).name)}"
        say(f"saved: {survey_html.save(found, Path(args.to), command)}")
    say(f"next:  motet compare {given}{more}")


def text(found: dict[str, Any], everyone: bool) -> str:
    """As wide as the terminal, or as our other tables where there is none."""
    from motet.report import survey_text
    from motet.report.terminal import width_here

    return survey_text.as_text(found, everyone, width_here())
