"""The command `motet forget`: a run without one of its clients, and what that costs the others.

Everything heavy is imported when the command needs it, so that `motet --help` answers at once.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.cli.command import Add, add_trust, consent_of, say

if TYPE_CHECKING:
    from motet.runs.forget import Forgotten
    from motet.runs.trainer import Observer
    from motet.trusted_code import Consent


def forget_command(add: Add) -> None:
    p = add(
        "forget", do_forget, "play a run again as if a client had never been there, and show what that costs"
    )
    p.add_argument("run", help="a run's folder")
    p.add_argument("client", help="the client's name")
    p.add_argument("--out", metavar="FOLDER", help="the new run's folder (default: beside the old one)")
    p.add_argument(
        "--delete-old", action="store_true", help="delete the old run once the new one is finished"
    )
    p.add_argument("--json", action="store_true", help="what it costs the others as JSON on stdout")
    p.add_argument("--quiet", action="store_true", help="no progress")
    add_trust(p, "the run's folder")


def do_forget(args: Any) -> None:
    from motet.cli.progress import Progress
    from motet.report.price import price_text
    from motet.runs.forget import delete_old
    from motet.runs.run import Run
    from motet.trusted_code import require_trust

    old = Path(args.run)
    if (old / "run.sqlite").exists():  # asked before a display takes over the terminal
        require_trust(Run(old).facts.get("settings"), old, consent_of(args))
    with Progress(quiet=args.quiet) as progress:
        done = forgotten(old, args.client, args.out, progress.observer(None), say, consent_of(args))
    found = done.price
    if args.json:
        print(json.dumps({"folder": str(done.after.folder), "client": args.client, "price": found}))
    elif found is None:
        say(f"{old} was not finished: it has no test scores to compare with")
    else:
        print(price_text(args.client, found))
    what_remains(done, delete_old(old) if args.delete_old else None)


def forgotten(
    folder: str | Path,
    client: str,
    to: str | Path | None,
    observer: Observer,
    say: Callable[[str], None],
    trust: Consent,
) -> Forgotten:
    """Play a run again without a client, measure what that costs the others, and keep that with the new run."""
    from motet.runs.forget import forget, keep_price

    done = forget(folder, client, to, observer, say, trust)
    done = replace(done, price=price_of(done))
    keep_price(done)
    return done


def price_of(done: Forgotten) -> dict[str, Any] | None:
    """What it costs the others; None where the old run has no test scores."""
    from motet.report.price import price
    from motet.report.read import read

    before, after = read([done.before.folder, done.after.folder])
    return None if before.trouble or after.trouble else price(before, after)


def what_remains(done: Forgotten, left: list[str] | None) -> None:
    """Say where the client still is, and delete copies of its rows if the old run was deleted."""
    from motet.runs.forget import copies

    old, client = done.before.folder, done.client
    say(f"\nsaved: {done.after.folder}, which never had {client}")
    if left is None:
        holds = (
            f"{old} is as it was: it holds {client}'s model, scores and predictions, and models of others that learned "
            "from its rows. --delete-old deletes it; copies, exports and reports are yours to find."
        )
        say(textwrap.fill(holds, 80, break_long_words=False, break_on_hyphens=False))
    else:
        say(f"deleted: {old}" + (f", but for what others put there: {', '.join(left[:5])}" if left else ""))
    for line in copies(done, delete=left is not None):
        say(f"- {line}")
    say(
        f"The data themselves are not touched.\nnext:  motet verify {done.after.folder}\n"
        f"       motet report {done.after.folder}"
    )
