"""The command `motet audit`: attacks against what runs let others learn, each with a figure and its interval.

Everything heavy is imported when the command needs it, so that `motet --help` answers at once.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from motet.cli.command import Add, add_trust, consent_of, names, say


def audit_command(add: Add) -> None:
    p = add("audit", do_audit, "attack runs: what the server, other clients and holders of models can learn")
    p.add_argument(
        "runs", nargs="+", metavar="RUN", help="folders of runs; several are drawn against epsilon"
    )
    p.add_argument(
        "--attacks", metavar="A,B", help="some of membership, inversion, labels, property (default: all)"
    )
    p.add_argument(
        "--shadows", type=int, default=16, help="shadow runs to train; 0: loss threshold alone (default: 16)"
    )
    p.add_argument(
        "--examples", type=int, default=10, help="examples whose updates are inverted (default: 10)"
    )
    p.add_argument("--figures", metavar="FOLDER", help="write pictures and their numbers into this folder")
    p.add_argument("--format", default="png", help="of pictures: png, svg or pdf (default: png)")
    p.add_argument("--json", action="store_true", help="everything as JSON on stdout")
    p.add_argument("--quiet", action="store_true", help="no progress")
    add_trust(p, "a run's folder")


def do_audit(args: Any) -> None:
    from motet.audits.run_audit import ATTACKS, audit
    from motet.cli.progress import Progress
    from motet.report.audit_report import audit_text, pictures_of_audits
    from motet.report.pictures import check, write_figures
    from motet.runs.run import Run
    from motet.trusted_code import require_trust

    attacks = ATTACKS if args.attacks is None else names(args.attacks)
    check(args.format)
    for run in (r for r in args.runs if (Path(r) / "run.sqlite").exists()):
        # asked before a display takes over the terminal
        require_trust(Run(run).facts.get("settings"), run, consent_of(args))
    found = []
    for run in args.runs:
        with Progress(quiet=args.quiet) as progress:
            one = audit(
                run, attacks=attacks, shadows=args.shadows, examples=args.examples,
                observer=lambda what: progress.observer(None), say=say, trust=consent_of(args),
            )  # fmt: skip
        found.append((run, one))
    if args.json:
        print(json.dumps([{"run": run, **one} for run, one in found]))
    else:
        width = shutil.get_terminal_size().columns
        print("\n\n".join("\n".join([run, *audit_text(one, width)]) for run, one in found))
    if args.figures:
        drawn = pictures_of_audits([(Path(run).name, one) for run, one in found])
        written = write_figures(drawn, Path(args.figures), args.format, say)
        say("written: " + ", ".join(map(str, written)))
    say(f"\nkept with each run\nnext:  motet report {' '.join(args.runs)}")
