"""The command line. Data go to stdout, messages to stderr.

Everything heavy is imported when a command needs it, so that `motet --help` answers at once.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from motet import __version__
from motet.cli.advise_command import advise_command
from motet.cli.audit_command import audit_command
from motet.cli.bench_command import bench_command
from motet.cli.command import Add, add_trust, adds_to, consent_of, print_summary, say, split_words
from motet.cli.compare_command import compare_command
from motet.cli.completion_command import completion_command
from motet.cli.contributions_command import contributions_command
from motet.cli.data_commands import data_commands
from motet.cli.encrypted_commands import encrypted_commands
from motet.cli.evidence_command import evidence_command
from motet.cli.federation_commands import federation_commands
from motet.cli.forget_command import forget_command
from motet.cli.predict_command import predict_command
from motet.cli.report_commands import report_commands
from motet.cli.reproduce_command import reproduce_command
from motet.cli.track_command import track_command
from motet.cli.ui_command import ui_command
from motet.errors import MotetError, Stopped

EPILOG = """
try:
  motet compare data=digits                  which method serves which client best
  motet run method=finetune data=digits      one method
  motet recipe > my.toml                     a recipe with every value explained
  motet run my.toml method.lr=0.05 seed=3    a recipe with two values changed
  motet run data=patients.csv data.target=outcome data.client=hospital
"""


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    if not hasattr(args, "do"):
        parser().print_help()
        return 0
    try:
        return int(args.do(args) or 0)
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        say("interrupted; the last checkpoint is intact, and the same command continues from it")
        return 130
    except Stopped as e:
        say(f"{e}; the same command continues from there")
        return 130
    except (MotetError, OSError) as e:  # anything else is a bug, and shows where it happened
        if args.trace:
            raise
        say(f"error: {e}")
        return 2


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Arguments, with settings before, between or behind the options: argparse alone refuses the last two."""
    args, rest = parser().parse_known_args(argv)
    words = [a for a in rest if not a.startswith("-")] if hasattr(args, "words") else []
    if len(words) < len(rest):
        strange = [a for a in rest if a not in words]
        hint = (
            f"\nhint: {without_dashes(strange[0], list(argv or sys.argv[1:]))}"
            if hasattr(args, "words")
            else ""
        )
        args.parser.error(f"unrecognized arguments: {' '.join(strange)}{hint}")
    if words:
        args.words = [*args.words, *words]
    return args


def without_dashes(option: str, argv: Sequence[str]) -> str:
    """How a setting is written that was given as an option: `--rounds 5` is `rounds=5`."""
    from motet.runs.recipe import known_settings, sections_of

    name, equals, value = option.lstrip("-").partition("=")
    behind = argv[argv.index(option) + 1 :][:1]
    value = value if equals else "".join(behind) if behind and not behind[0].startswith("-") else "…"
    section, dot, inner = name.partition(".")
    known = known_settings({})
    if dot and inner in known.get(section, {}):
        return f"{name}={value}"
    if places := sections_of(name, known):
        return ", or ".join([f"{name}={value}", *(f"{place}.{name}={value}" for place in places)])
    return "settings are written without dashes, say rounds=5"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="motet",
        description="Personalised federated learning: a model for every client, trained by all of them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"motet {__version__}")
    top.set_defaults(trace=False)
    add = adds_to(top)
    running(add)
    reading(add)
    advise_command(add)
    report_commands(add)
    ui_command(add)
    track_command(add)
    evidence_command(add)
    data_commands(add)
    reproduce_command(add)
    bench_command(add)
    predict_command(add)
    encrypted_commands(add)
    federation_commands(add)
    completion_command(add, parser)
    return top


WORDS = "recipe.toml | section.name=value"


def running(add: Add) -> None:
    """The commands that train."""
    p = add("run", do_run, "run one method, or continue a run that was stopped")
    p.add_argument("words", nargs="*", metavar=WORDS, help="see `motet recipe`")
    p.add_argument(
        "--out",
        metavar="FOLDER",
        help="the run's folder (default: runs/DATA-METHOD-seedN-…)",
    )
    p.add_argument("--fresh", action="store_true", help="run anew; what the run's folder holds is deleted")
    p.add_argument("--json", action="store_true", help="the summary as JSON on stdout")
    p.add_argument("--quiet", action="store_true", help="no progress")
    add_trust(p, "the recipe")

    compare_command(add)
    forget_command(add)
    contributions_command(add)
    audit_command(add)

    p = add("verify", do_verify, "run a finished run again, and compare all results bit by bit")
    p.add_argument("run", help="a run's folder")
    add_trust(p, "the run's folder")


def reading(add: Add) -> None:
    """The commands that show what there is."""
    p = add("show", do_show, "show the results of a run")
    p.add_argument("run", help="a run's folder")
    p.add_argument("--clients", action="store_true", help="every client's scores")
    p.add_argument("--graphml", action="store_true", help="who contributes to whom, as GraphML")
    p.add_argument("--json", action="store_true", help="as JSON")

    p = add("export", do_export, "write a client's personal model to a file")
    p.add_argument("run", help="a run's folder")
    p.add_argument("client", help="a client's name, or `global` for the global model")
    p.add_argument(
        "--format", choices=("safetensors", "onnx"), help="default: as --to says, else safetensors"
    )
    p.add_argument("--to", metavar="FILE", help="default: CLIENT.FORMAT")
    add_trust(p, "the run's folder")

    p = add("recipe", do_recipe, "print a recipe with every value explained")
    p.add_argument("words", nargs="*", metavar=WORDS)
    add_trust(p, "the recipe")

    add("list", do_list, "list methods, data sets and networks")


# ---- commands ----


def do_run(args: Any) -> None:
    from motet.cli.progress import Progress
    from motet.runs import recipe as recipes
    from motet.runs.run import run

    path, words = split_words(args.words)
    recipe = recipes.read(path, words, trust=consent_of(args))
    with Progress(quiet=args.quiet) as progress:
        done = run(recipe, args.out, progress.observer(recipe), fresh=args.fresh)
    folder = done.folder
    print_summary(folder, args.json)
    said = (
        f"read from {folder}, not run again (--fresh runs it anew)" if done.was_read else f"saved: {folder}"
    )
    say(f"\n{said}\nnext:  motet show {folder} --clients\n       motet verify {folder}")


def do_show(args: Any) -> None:
    from motet.report import tables, terminal
    from motet.report.contributions import contributions_of, contributions_text
    from motet.report.read import read
    from motet.report.sample import extremes_text
    from motet.report.stack_variants import variants_of, variants_text

    found = read([Path(args.run)])
    variants = variants_of(found[0])
    if args.clients:
        frame = tables.by_client(found)
        sampled = bool(found[0].facts.get("population"))  # too many clients to list
        own = (
            extremes_text(frame, found[0].metric, found[0].better)
            if sampled
            else terminal.clients_text(frame, found[0].metric)
        )
        text = [own, *variants_text(variants, clients=True)]
        print(frame.to_json(orient="records") if args.json else "\n".join(text))
        return
    contributions = contributions_of(found[0].facts)
    summary = tables.summary(found[0]) | {"variants": variants, "contributions": contributions}
    if args.graphml:
        print(graphml_of(contributions, args.run))
        return
    width = shutil.get_terminal_size().columns
    lines = [
        terminal.summary_text(summary),
        *variants_text(variants),
        *contributions_text(contributions, width),
    ]
    whole = summary | {"versions": found[0].facts.get("versions") or {}}
    print(json.dumps(whole, default=str) if args.json else "\n".join(lines))


def graphml_of(found: dict[str, Any] | None, run: str) -> str:
    """Who relies on whom, for programs that draw graphs."""
    from motet.errors import UsageError
    from motet.stacking.contribution import to_graphml

    if not found:
        raise UsageError(f"{run} recorded no contributions\nhint: motet contributions {run} measures them")
    return to_graphml(found["trust"])


def do_verify(args: Any) -> int:
    from motet.cli.progress import Progress
    from motet.runs.run import Run, verify
    from motet.trusted_code import require_trust

    # asked before a display takes over the terminal
    require_trust(Run(args.run).facts.get("settings"), args.run, consent_of(args))
    with Progress() as progress:
        differences = verify(args.run, progress.observer(None), say)
    if differences:
        print("\n".join(differences))
        say(f"{args.run} gives other results when it is run again")
        return 1
    print(f"{args.run}: every checkpoint, kept tree and score is the same, bit for bit")
    return 0


def do_export(args: Any) -> None:
    from motet.runs.export import export

    to = Path(args.to) if args.to else None
    form = args.format or ("onnx" if to and to.suffix == ".onnx" else "safetensors")
    print(export(Path(args.run), args.client, form, to, consent_of(args)))


def do_recipe(args: Any) -> None:
    from motet.runs import recipe as recipes

    path, words = split_words(args.words)
    print(recipes.read(path, words, trust=consent_of(args)).toml(), end="")


def do_list(args: Any) -> None:
    from motet import nets
    from motet.data import load
    from motet.runs import recipe as recipes

    for title, names in (("methods", recipes.method_names()), ("data", load.names()), ("nets", nets.names())):
        print(f"{title}: {', '.join(names)}")


if __name__ == "__main__":
    sys.exit(main())
