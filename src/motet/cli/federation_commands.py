"""The commands `motet federation ...`: kits, serving, joining, running between organisations.

Everything heavy is imported when a command needs it, so that `motet --help` answers at once.
"""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

from motet.cli.command import Add, group, print_summary, say, split_words

KIT = "the server's kit, which also holds the owner's certificate"


def federation_commands(add: Add) -> None:
    """Add the group of commands."""
    within = group(add, "federation", "organisations on their own machines: kits, serve, join, run")
    kits(within)
    parties(within)
    runs(within)


def kits(within: Add) -> None:
    p = within("create", do_create, "write one kit for the server and one for every site")
    p.add_argument("--name", required=True, help="of the federation")
    p.add_argument("--server", required=True, metavar="HOST", help="name by which sites reach the server")
    p.add_argument("--sites", required=True, type=names, metavar="A,B,…", help="one kit for each")
    p.add_argument("--port", type=int, default=8002, help="the server's only open port (default: 8002)")
    p.add_argument("--to", metavar="FOLDER", help="where kits go (default: the federation's name)")

    p = within("add", do_add, "write kits for new sites; earlier kits stay valid")
    p.add_argument("folder", help="what `create` wrote")
    p.add_argument("--sites", required=True, type=names, metavar="A,B,…")


def parties(within: Add) -> None:
    p = within("serve", do_serve, "be the server")
    p.add_argument("kit", help="the server's kit")

    p = within("join", do_join, "be a site: the data stay here")
    p.add_argument("kit", help="this site's kit")
    p.add_argument("--data", metavar="FILE", help="a .csv or .parquet file (default: as at the last start)")
    p.add_argument("--target", metavar="COLUMN", help="the column to predict")
    p.add_argument("--drop", type=names, default=[], metavar="A,B,…", help="columns that are not used")
    empty, kinds = ("refuse", "mean"), ("auto", "classes", "numbers")
    p.add_argument("--missing", choices=empty, default="refuse", help="what to do with empty cells")
    p.add_argument("--kind", choices=kinds, default="auto", help="what the target holds")
    p.add_argument("--policy", metavar="FILE", help="a TOML file: what may leave this site")
    p.add_argument("--recipe", metavar="FILE", help="the recipe of the dry run (default: fedavg)")
    p.add_argument("--method", help="a method instead of the recipe's")
    p.add_argument("--json", action="store_true", help="the dry run as JSON")
    p.add_argument("--dry-run", action="store_true", help="print what would leave the site, and do not join")

    p = within("ledger", do_ledger, "what left this site, who asked, and what was refused")
    p.add_argument("kit", help="this site's kit")
    p.add_argument("--json", action="store_true", help="as JSON")

    p = within("disable", do_disable, "keep a site out; its certificate is not revoked")
    p.add_argument("kit", help=KIT)
    p.add_argument("site")
    p.add_argument("--undo", action="store_true", help="let it in again")


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

    p = within("status", do_status, "who is there, and how runs go")
    p.add_argument("kit", help=KIT)
    p.add_argument("--json", action="store_true", help="as JSON")

    p = within("stop", do_stop, "stop the run after its round; the same `run` goes on with it")
    p.add_argument("kit", help=KIT)
    p.add_argument("--all", action="store_true", help="and shut the server and all sites down")

    p = within("demo", do_demo, "all of it on this machine: server and three sites, over mutual TLS")
    p.add_argument("--folder", metavar="FOLDER", help="where the demo's kits go (default: a temporary one)")
    p.add_argument("--methods", type=names, default=[], metavar="A,B,…", help="default: fedper,stacking")


def names(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


# ---- commands ----


def do_create(args: Any) -> None:
    from motet.deploy.flare.kits import create

    to = Path(args.to or args.name)
    for kit in create(args.name, args.server, args.sites, to, args.port):
        print(kit)
    say(
        f"\nhand each kit to its party on a channel you both trust; keep {to / 'authority'} to yourself\n"
        f"next:  motet federation serve {to / 'server'}\n"
        f"       motet federation join {to / args.sites[0]} --data FILE --target COLUMN"
    )


def do_add(args: Any) -> None:
    from motet.deploy.flare.kits import add

    for kit in add(Path(args.folder), args.sites):
        print(kit)


def do_serve(args: Any) -> None:
    from motet.deploy.flare.kits import open_kit
    from motet.deploy.flare.process import become

    kit = open_kit(args.kit, "server")
    say(f"serving {kit.federation} at {kit.host}:{kit.port}; log: {kit.folder / 'log.txt'}")
    become(kit)


def do_join(args: Any) -> None:
    from motet.deploy.flare.process import become
    from motet.deploy.site.join import prepare

    kit = prepare(args, say)
    if args.dry_run:
        return
    say(f"joining {kit.federation} as {kit.party}; log: {kit.folder / 'log.txt'}")
    become(kit)


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
    order = make_order(kit.federation, path, words, args.min_sites, args.min_replies, args.timeout)
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

    print(demo(Path(args.folder) if args.folder else None, args.methods, say))
