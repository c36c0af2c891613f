"""The command `motet evidence`: one signed file about a run, and checking such files.

Everything heavy is imported when the command needs it, so that `motet --help` answers at once.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

from motet.cli.command import Add, say
from motet.errors import UsageError
from motet.text import printable

EPILOG = """
motet evidence RUN                  one page about a run: NAME.evidence.html
motet evidence KIT --run NAME       of a federation's party, signed with its key
motet evidence check FILE           is the file as it was signed
motet evidence check FILE RUN       and is every file of the run (or of the kit)
motet evidence check SERVER SITE …  do the server and its sites say the same
"""


def evidence_command(add: Add) -> None:
    p = add("evidence", do_evidence, "write one signed file about a run, for auditors; or check such files")
    p.epilog, p.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    p.add_argument("what", nargs="+", metavar="RUN | KIT | check FILE …", help="see below")
    p.add_argument(
        "--to", metavar="FILE", help="default: NAME.evidence.html here; FILE.json holds the data alone"
    )
    p.add_argument("--run", default="", metavar="NAME", help="of a kit: which run, if there are several")
    p.add_argument("--key", default="", metavar="FINGERPRINT", help="check: demand this key, or this root")
    p.add_argument("--json", action="store_true", help="write the data alone; check: what was found as JSON")


def do_evidence(args: Any) -> int:
    if args.what[0] == "check":
        return check(args)
    if len(args.what) > 1:
        raise UsageError(
            f"evidence is of one run, and these are {len(args.what)}: {', '.join(args.what)}\n"
            "hint: motet evidence RUN, or motet evidence check FILE …"
        )
    return make(args)


def make(args: Any) -> int:
    from motet.evidence.party_evidence import kit_above, sections_of_party, signer_of
    from motet.evidence.run_sections import COPY, SIMULATED, sections_of_run
    from motet.evidence.signing import local_signer
    from motet.evidence.write import made_of, write

    folder = Path(args.what[0])
    if kit := kit_above(folder):
        inside = folder.resolve().name if folder.resolve() != kit.folder else ""
        signer, (kind, sections) = signer_of(kit), sections_of_party(kit, args.run or inside)
    else:
        signer, sections = local_signer(), sections_of_run(folder)
        kind = COPY if dict(sections)["run"]["federation"] else SIMULATED
    name = dict(sections)["run"]["name"] + (f".{kit.party}" if kit else "")
    to = Path(args.to or f"{name}.evidence.{'json' if args.json else 'html'}")
    if args.json and to.suffix != ".json":
        raise UsageError(f"--json writes data alone, and --to is {to}\nhint: --to {to.with_suffix('.json')}")
    found = made_of(kind, sections, signer)
    print(write(found, signer, to))
    say(f"signed with {signer.about['kind']}, fingerprint {signer.about['fingerprint']}")
    say(f"next:  motet evidence check {to} {folder}")
    return 0


def check(args: Any) -> int:
    from motet.evidence.check_file import check_file, check_folder, checked_text
    from motet.evidence.compare_parties import disagreements

    given = [Path(word) for word in args.what[1:]]
    folders, files = [p for p in given if p.is_dir()], [p for p in given if not p.is_dir()]
    if not files or len(folders) > 1 or (folders and len(files) > 1):
        raise UsageError(
            "a file of evidence is checked, alone or with one run's folder; or the files of a server and its sites\n"
            "hint: motet evidence check FILE [RUN], or motet evidence check SERVER_FILE SITE_FILE …"
        )
    found = [check_file(path, args.key) for path in files]
    for folder in folders:
        check_folder(found[0], folder)
    wrong, fine = disagreements(found) if len(found) > 1 and not any(f.wrong for f in found) else ([], [])
    bad = bool(wrong) or any(f.wrong for f in found)
    if args.json:
        each = [
            {"file": str(f.path), "wrong": f.wrong, "notes": f.notes, "signer": dict(f.about)} for f in found
        ]
        print(json.dumps({"sound": not bad, "files": each, "disagreements": wrong, "agreements": fine}))
        return int(bad)
    print("\n".join(checked_text(f) for f in found))
    for line in [*(f"DISAGREE: {line}" for line in wrong), *(f"agree: {line}" for line in fine)]:
        print(printable(line, 600))
    for line in [] if bad else dict.fromkeys(proof(f.about.get("kind", "")) for f in found):
        say(textwrap.fill(line, 80))
    return int(bad)


def proof(kind: str) -> str:
    """What a signature proves, and what it does not."""
    from motet.evidence.write import PROVES

    return PROVES.get(kind, "")
