"""The commands `motet federation ...`: serving, joining, running between organisations.

Everything heavy is imported when a command needs it, so that `motet --help` answers at once.
"""

from __future__ import annotations

import json
import os
from argparse import SUPPRESS
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from motet.cli.command import Add, add_trust, consent_of, group, names, print_summary, say, split_words
from motet.cli.key_commands import key_commands

KIT = "the server's kit, which also holds the owner's certificate"


def federation_commands(add: Add) -> None:
    """Add the group of commands."""
    within = for_the_owner_alone(group(add, "federation", "organisations: keys, serve, join, run"))
    key_commands(within)
    parties(within)
    runs(within)


def for_the_owner_alone(add: Add) -> Add:
    """Commands whose files, and those of the processes that they start, only their owner may read."""

    def private(do: Callable[[Any], Any], args: Any) -> Any:
        before = os.umask(0o077)
        try:
            return do(args)
        finally:
            os.umask(before)

    return lambda name, do, text: add(name, partial(private, do), text)


def parties(within: Add) -> None:
    p = within("serve", do_serve, "be the server")
    p.add_argument("kit", help="the server's kit")

    p = within("join", do_join, "be a site: the data stay here")
    p.add_argument("kit", help="this site's kit")
    p.add_argument("--data", metavar="FILE", help="a .csv or .parquet file (default: as at the last start)")
    p.add_argument("--target", metavar="COLUMN", help="the column to predict")
    p.add_argument("--drop", type=names, default=[], metavar="A,B,…", help="columns that are not used")
    kinds = ("auto", "classes", "numbers")
    p.add_argument("--kind", choices=kinds, default="auto", help="what the target holds")
    table_arguments(p)
    split_arguments(p)
    p.add_argument("--policy", metavar="FILE", help="a TOML file: what may leave this site")
    p.add_argument("--recipe", metavar="FILE", help="the recipe of the dry run (default: fedavg)")
    p.add_argument("--method", help="a method instead of the recipe's")
    p.add_argument("--json", action="store_true", help="the dry run as JSON")
    p.add_argument(
        "--dry-run", action="store_true", help="print what would leave; change nothing (code 1: refused)"
    )

    p = within("ledger", do_ledger, "what left this site, who asked, and what was refused")
    p.add_argument("kit", help="this site's kit")
    p.add_argument("--json", action="store_true", help="as JSON")

    p = within("scores", do_scores, "the scores of this site's own models, which may be seen here alone")
    p.add_argument("kit", help="this site's kit")
    p.add_argument("--run", default="", metavar="NAME", help="of this run (default: the one scored last)")
    p.add_argument("--json", action="store_true", help="as JSON, all rounds")

    p = within("reset", do_reset, "begin anew at a site, in runs whose kept state there is damaged")
    p.add_argument("kit", help="this site's kit")
    p.add_argument("--run", default="", metavar="NAME", help="in this run, damaged or not")

    p = within("disable", do_disable, "keep a site out; its certificate is not revoked")
    p.add_argument("kit", help=KIT)
    p.add_argument("site")
    p.add_argument("--undo", action="store_true", help="let it in again")


def table_arguments(p: Any) -> None:
    """How a site's table is read: the settings of a table in a recipe (data.missing and so on)."""
    empty = ("refuse", "mean", "median", "most_frequent", "indicator")
    p.add_argument("--missing", choices=empty, default="refuse", help="what to do with empty cells")
    p.add_argument(
        "--missing-by", choices=("auto", "federation", "client"), default="auto", help="whose rows fill them"
    )
    p.add_argument("--missing-values", type=names, default=[], metavar="A,B,…", help="words for nothing")
    p.add_argument("--keep", type=names, default=[], metavar="A,B,…", help="columns that are no ids")
    p.add_argument("--drop-rows", action="store_true", help="leave out rows without a target")
    p.add_argument("--part", default="", metavar="COLUMN", help="the column that says train, val or test")
    p.add_argument(
        "--dates", choices=("days", "parts", "leave_out"), default="days", help="what dates become"
    )
    p.add_argument("--day-first", choices=("auto", "true", "false"), default="auto", help="in 01/02/2020")
    p.add_argument("--decimal", choices=("auto", "comma", "point"), default="auto", help="in numbers")
    p.add_argument("--weight", default="", help=SUPPRESS)  # refused, with the reason


def split_arguments(p: Any) -> None:
    """How a site divides its rows, which nobody else decides. What is not said stays as at the last start."""
    share: Any = {"type": float, "metavar": "SHARE"}
    p.add_argument("--val", help="share of validation rows (at first: 0.15)", **share)
    p.add_argument("--test", help="share of test rows (at first: 0.25)", **share)
    p.add_argument("--seed", type=int, metavar="N", help="draws these rows (at first: 0)")
    scales = ("auto", "federation", "client", "none")
    p.add_argument(
        "--scale", choices=scales, help="whose rows scale numbers (at first: auto, as the first run asks)"
    )
    p.add_argument("--new-split", action="store_true", help="forget how the table's rows were divided before")


def runs(within: Add) -> None:
    p = within("run", do_run, "run a recipe with the sites that are there, or go on with it")
    p.add_argument("kit", help=KIT)
    p.add_argument("words", nargs="*", metavar="recipe.toml | section.name=value", help="see `motet recipe`")
    number: Any = {"type": int, "metavar": "N"}
    seconds: Any = {"type": float, "metavar": "S"}
    p.add_argument("--min-sites", default=2, help="sites that a job needs to start (default: 2)", **number)
    p.add_argument(
        "--min-replies", default=0, help="replies that a round needs (default: as sites)", **number
    )
    p.add_argument("--timeout", default=600.0, help="seconds for a site's answer (default: 600)", **seconds)
    p.add_argument("--patience", default=inf, help="seconds to wait for server and sites", **seconds)
    p.add_argument("--json", action="store_true", help="the summary as JSON on stdout")
    add_trust(p, "the recipe")

    p = within("status", do_status, "who is there, and how runs go")
    p.add_argument("kit", help=KIT)
    p.add_argument("--json", action="store_true", help="as JSON")

    p = within("stop", do_stop, "stop the run after its round; the same `run` goes on with it")
    p.add_argument("kit", help=KIT)
    p.add_argument("--all", action="store_true", help="and shut the server and all sites down")

    p = within(
        "demo", do_demo, "all of it on this machine, which makes all private keys: server and three sites"
    )
    p.add_argument("--folder", metavar="FOLDER", help="where the demo's kits go (default: a temporary one)")
    p.add_argument("--methods", type=names, default=[], metavar="A,B,…", help="default: fedper,stacking")
    p.add_argument(
        "--masked",
        action="store_true",
        help="mask means, scores, sums of columns and counts (default method: fedper)",
    )


# ---- commands ----


def do_serve(args: Any) -> None:
    from motet.deploy.flare.kits import open_kit
    from motet.deploy.flare.process import become, check_before

    kit = open_kit(args.kit, "server")
    check_before(kit, say)
    say(f"serving {kit.federation} at {kit.host}:{kit.port}; log: {kit.folder / 'log.txt'}")
    become(kit)


def do_join(args: Any) -> int:
    from motet.deploy.flare.kits import open_kit
    from motet.deploy.flare.process import become, check_before
    from motet.deploy.site.join import dry_join, prepare

    if args.dry_run:
        return 0 if dry_join(args) else 1
    check_before(open_kit(args.kit, "site"), say)
    kit = prepare(args, say)
    say(f"joining {kit.federation} as {kit.party}; log: {kit.folder / 'log.txt'}")
    become(kit)
    return 0


def do_ledger(args: Any) -> None:
    from msgspec import to_builtins

    from motet.deploy.flare.kits import FederationError, open_kit
    from motet.deploy.site.ledger import ledger_text, read_ledger

    kit = open_kit(args.kit, "site")
    lines, damage = read_ledger(kit.folder / "kept")
    found = {"lines": to_builtins(lines), "damage": damage}
    print(json.dumps(found) if args.json else ledger_text(lines, damage))
    if damage:
        raise FederationError(f"the ledger of {kit.party} is damaged: {damage[0]}")


def do_scores(args: Any) -> None:
    from motet.deploy.flare.kits import FederationError, open_kit
    from motet.deploy.site.own_scores import read_scores, scored_runs, scores_text

    kit = open_kit(args.kit, "site")
    known = scored_runs(kit.folder / "kept")
    run = args.run or (known[-1] if known else "")
    if run not in known:
        listed = ", ".join(known) or "none yet"
        raise FederationError(f"{kit.party} has no scores of run {run!r}; there are: {listed}")
    rows = read_scores(kit.folder / "kept", run)
    print(json.dumps({"run": run, "scores": rows}) if args.json else scores_text(run, rows))


def do_reset(args: Any) -> None:
    from motet.deploy.flare.kits import open_kit
    from motet.deploy.site.reset import reset

    print("\n".join(reset(open_kit(args.kit, "site"), args.run)))


def do_disable(args: Any) -> None:
    from motet.deploy.flare.admin import AdminSession
    from motet.deploy.flare.kits import open_kit

    admin = AdminSession(open_kit(args.kit, "server"))
    (admin.enable if args.undo else admin.disable)(args.site)
    admin.close()
    print(f"{args.site} is {'let in again' if args.undo else 'not let in any more'}")


def do_run(args: Any) -> None:
    from motet.deploy.flare.kits import open_kit
    from motet.deploy.server.job_chain import run_federated
    from motet.deploy.server.run_files import make_order

    kit, (path, words) = open_kit(args.kit, "server"), split_words(args.words)
    order = make_order(
        kit.federation, path, words, args.min_sites, args.min_replies, args.timeout, consent_of(args)
    )
    say(order.recipe.digest())
    folder = run_federated(kit, order, say, args.patience)
    print_summary(folder, args.json)
    say(f"\nsaved: {folder}\nnext:  motet show {folder} --clients\n       motet report {folder}")


def do_status(args: Any) -> None:
    from motet.deploy.flare.kits import open_kit
    from motet.deploy.server.status import read_status, status_text

    found = read_status(open_kit(args.kit, "server"))
    print(json.dumps(found) if args.json else status_text(found))


def do_stop(args: Any) -> None:
    from motet.deploy.flare.kits import open_kit
    from motet.deploy.server.status import stop

    print(stop(open_kit(args.kit, "server"), everything=args.all))


def do_demo(args: Any) -> None:
    from motet.deploy.demo import demo

    print(demo(Path(args.folder) if args.folder else None, args.methods, say, args.masked))
