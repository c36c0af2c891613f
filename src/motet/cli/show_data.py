"""`motet data show`: who holds what in a federation. Data go to stdout, talk goes to stderr.

Everything heavy is imported when the command is run.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from motet.cli.command import Add, say


def show_command(add: Add) -> None:
    """The words and options of the command."""
    p = add("show", do_show_data, "who holds what: every client's sizes, labels, skew and equal rows")
    p.add_argument("words", nargs="*", metavar="recipe.toml | data.name=value | seed=N", help="as for run")
    p.add_argument("--to", metavar="FILE", help="a picture (.png, .svg), or a page with all of it (.html)")
    p.add_argument("--all", action="store_true", help="all clients, not only the first 30")
    p.add_argument("--json", action="store_true", help="every figure as JSON on stdout")


def do_show_data(args: Any) -> None:
    from motet.cli.main import split_words
    from motet.data.survey import survey
    from motet.report import survey_html as federation_page
    from motet.runs import recipe as recipes
    from motet.runs.build import federated_data

    if args.to:
        federation_page.check(Path(args.to))
    path, words = split_words(args.words)
    recipe = recipes.read(path, words)
    say("\n".join(recipe.digest().splitlines()[:2]) + "\n")
    found = survey(federated_data(recipe)).plain()
    print(json.dumps(found) if args.json else text(found, args.all))
    given = shlex.join(args.words)
    more = f"\n       motet data show {given} --to federation.html"
    say("")
    if args.to:
        more = ""
        command = f"motet data show {given} --to {shlex.quote(Path(args.to).name)}"
        say(f"saved: {federation_page.save(found, Path(args.to), command)}")
    say(f"next:  motet compare {given}{more}")


def text(found: dict[str, Any], everyone: bool) -> str:
    """As wide as the terminal; as our other tables are where nobody looks on."""
    import shutil

    from motet.report import survey_text as federation_words
    from motet.report import text as words

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else words.WIDTH
    return federation_words.as_text(found, everyone, max(width, 60))
