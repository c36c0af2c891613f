"""The command `motet contributions`: what each client brought to a run of any method, and who is named for what.

Everything heavy is imported when the command needs it, so that `motet --help` answers at once.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from motet.cli.command import Add, add_trust, consent_of, say


def contributions_command(add: Add) -> None:
    p = add(
        "contributions", do_contributions, "play a run again and measure what each client contributed to it"
    )
    p.add_argument("run", help="a run's folder")
    p.add_argument(
        "--shapley",
        default="auto",
        help="auto (exact up to 8 clients in a round, else gtg), exact, gtg, or none",
    )
    p.add_argument("--no-leave-one-out", action="store_true", help="no replay without each client")
    p.add_argument("--by", default="loss", help="what counts on validation rows: loss, or metric (the run's)")
    p.add_argument("--side", default="auto", help="whose models are scored: auto, global or personal")
    p.add_argument("--seed", type=int, default=0, help="of orders that GTG-Shapley draws (default: 0)")
    p.add_argument(
        "--threshold",
        type=float,
        default=0.0,
        help="equal parts below which a client would be served nothing",
    )
    p.add_argument(
        "--versions", type=int, default=1, help="of models that clients would be served by contribution"
    )
    p.add_argument("--graphml", action="store_true", help="who contributes to whom, as GraphML on stdout")
    p.add_argument("--json", action="store_true", help="everything as JSON on stdout")
    p.add_argument("--quiet", action="store_true", help="no progress")
    add_trust(p, "the run's folder")


def do_contributions(args: Any) -> None:
    from motet.audits.measure_contributions import measure
    from motet.cli.main import graphml_of
    from motet.cli.progress import Progress
    from motet.report.contributions import contributions_text, cross_table
    from motet.runs.run import Run
    from motet.trusted_code import require_trust

    if (Path(args.run) / "run.sqlite").exists():  # asked before a display takes over the terminal
        require_trust(Run(args.run).facts.get("settings"), args.run, consent_of(args))
    with Progress(quiet=args.quiet) as progress:
        found = measure(
            args.run, shapley=args.shapley, leave_out=not args.no_leave_one_out, by=args.by, side=args.side,
            seed=args.seed, threshold=args.threshold, versions=args.versions,
            observer=lambda what: progress.observer(None), say=say, trust=consent_of(args),
        )  # fmt: skip
    if args.json:
        print(json.dumps(found))
    elif args.graphml:
        print(graphml_of(found, args.run))
    else:
        width = shutil.get_terminal_size().columns
        lines = contributions_text(found, width)[1:]
        matrix = cross_table(found, most=max(1, (width - 12) // 10))
        print("\n".join([*lines, "", "personal models on validation rows of each client:", *matrix]))
    say(f"\nkept with the run: {args.run}\nnext:  motet report {args.run}\n       motet audit {args.run}")
