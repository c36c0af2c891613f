"""How clear the house is: what a reader has to open, measured, beside the goal for each number.

    python tools/house.py            # a table, about ten seconds
    python tools/house.py --json

The numbers at the beginning were measured by this script, some elsewhere by other rules. Right guesses of
strangers, hops of a progress line and the time of `make test` are measured by hand.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "motet"
sys.path.insert(0, str(ROOT / "tests"))

# What is measured: its number when the rebuilding began (commit 57ac651), and the goal.
GOALS: dict[str, tuple[int, int]] = {
    "tokens of code, without imports and docstrings": (526_575, 450_000),
    "lines": (75_182, 61_000),
    "files": (558, 270),
    "modules with one importer": (130, 45),
    "files of methods/ and parts/": (79, 60),
    "names of Method": (44, 16),
    "files that a run of fedavg on digits passes through": (171, 120),
    "functions that it passes through": (1_318, 950),
    "functions called between play and a client's verb": (30, 8),
    "files of PAGE in methods/ and parts/": (14, 3),
    "files that a message to a site walks through": (36, 20),
    "modules loaded to import fedavg": (36, 18),
    "modules loaded to predict": (97, 40),
    "modules loaded by a site's service": (222, 90),
}

_SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT} | {
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def tokens_of(text: str) -> int:
    """Tokens that are neither comments, layout, imports nor texts that stand alone (docstrings).

    >>> tokens_of("import os\\n'''A text.'''\\nx = 1  # one\\n")
    3
    """
    outside: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Import | ast.ImportFrom) or (alone and isinstance(node.value.value, str)):  # type: ignore[attr-defined]
            outside.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(t.type not in _SKIPPED and t.start[0] not in outside for t in found)


def loaded(statement: str) -> int:
    """How many modules of motet a fresh process has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(sum(m.partition('.')[0] == 'motet' for m in sys.modules))"
    return int(
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    )


_WALK = f"""
import sys, threading
home, files, functions = {str(SOURCE) + "/"!r}, set(), set()
def watch(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(home) and code.co_name != "<module>":
        files.add(code.co_filename)
        functions.add((code.co_filename, code.co_firstlineno, code.co_name))
threading.setprofile(watch)
sys.setprofile(watch)
from motet.cli.main import main
try:
    main(["run", "method=fedavg", "data=digits", "train.rounds=2", "--out", sys.argv[1]])
except SystemExit:
    pass
sys.setprofile(None)
print(len(files), len(functions))
"""


def walk_of_a_run() -> tuple[int, int]:
    """Files and functions that one run of the command line passes through."""
    with tempfile.TemporaryDirectory() as place:
        words = [sys.executable, "-c", _WALK, f"{place}/run"]
        files, functions = (
            subprocess.run(words, check=True, capture_output=True, text=True, cwd=place)
            .stdout.splitlines()[-1]
            .split()
        )
    return int(files), int(functions)


def calls_before_a_verb() -> int:
    """Functions with names that are called between `play` and the first line of a verb, on the vmap engine."""
    from motet.core import verb
    from motet.engines.driver import play
    from motet.engines.vmap import Vmap
    from motet.methods.fedavg import FedAvg
    from rounds import TWO, one_number, turn

    found: set[tuple[str, str]] = set()

    class Looking(FedAvg):
        @verb
        def train(self, w, keep, data):  # type: ignore[no-untyped-def]
            sys.setprofile(None)
            return w, keep

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        ours = code.co_filename.startswith((f"{SOURCE}/engines", f"{SOURCE}/client", f"{SOURCE}/core"))
        if event == "call" and ours and not code.co_name.startswith(("<", "__")):
            found.add((code.co_filename, code.co_qualname))

    method = Looking(one_number(), lr=0.1)
    engine = Vmap(TWO)
    sys.setprofile(watch)
    try:
        play(engine, method, method.task.w0, turn(engine, 0))
    finally:
        sys.setprofile(None)
    return len(found)


def names_of_method() -> int:
    """Names that a method may give another meaning: functions and attributes of the class, facets counted."""
    from motet.core import Method

    kept = {"task"}
    return len([n for n in {*vars(Method), *Method.__annotations__} - kept if not n.startswith("_")])


def files_of_a_message() -> int:
    sys.path.insert(0, str(ROOT / "tests" / "deploy"))
    from test_letter_walk import files_of_a_letter

    with tempfile.TemporaryDirectory() as place:
        return len(files_of_a_letter(Path(place)))


def measured() -> dict[str, int]:
    sys.path.insert(0, str(ROOT / "tests"))
    from test_names import with_one_importer

    paths = sorted(SOURCE.rglob("*.py"))
    texts = {p: p.read_text() for p in paths}
    files, functions = walk_of_a_run()
    page = (
        "import motet.methods.page, sys\n"
        "[sys.modules.pop(m) for m in [*sys.modules] if m.startswith('motet') and m.split('.')[1:2] not in "
        "(['methods'], ['parts']) or m in ('motet.methods', 'motet.parts')]"
    )
    numbers = [
        sum(map(tokens_of, texts.values())),
        sum(t.count("\n") for t in texts.values()),
        len(paths),
        len(with_one_importer({p: ast.parse(t) for p, t in texts.items()})),
        sum(len([*(SOURCE / room).glob("*.py")]) for room in ("methods", "parts")),
        names_of_method(),
        files,
        functions,
        calls_before_a_verb(),
        loaded(page),
        files_of_a_message(),
        loaded("import motet.methods.fedavg"),
        loaded("import motet.runs.predict"),
        loaded("import motet.deploy.site.service"),
    ]
    return dict(zip(GOALS, numbers, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    found = measured()
    if as_json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'':52}{'now':>9}{'began at':>10}{'goal':>9}")
    for what, number in found.items():
        began, goal = GOALS[what]
        print(f"{what:52}{number:9,}{began:10,}{goal:9,}{'' if number > goal else '  reached'}")


if __name__ == "__main__":
    main()
