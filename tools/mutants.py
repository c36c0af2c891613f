"""Small faults in the sources, and which of them the tests catch.

    PYTHONPATH=tools pytest -p mutants --covered build/covered -n 2 --dist loadgroup   # which test runs which line
    python tools/mutants.py draw build/covered faults.json            # 60 faults by seed, in lines of core rooms
    python tools/mutants.py run build/covered faults.json caught.json # two at a time, at most 90 s each
    python tools/mutants.py compare caught.json caught-later.json     # what was caught before and is missed now

A fault is one of: another sign, another index, another comparison, another constant, a statement left out. For each,
the tests that cover its line are run, quickest first, until one fails. What survives counts as missed. A fault is
found again in later sources by its line and its function, wherever these have moved. Needs `pip install coverage`.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "motet"
ROOMS = ("core.py", "client/", "engines/", "guard/", "privacy/", "deploy/site/", "wire/")
MOST_SECONDS = 90
MOST_TESTS = 400  # of those that cover a line, the quickest


# ---- which test runs which line: a plugin of pytest ----


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--covered", help="a folder: what each test covers, and how long it takes")


class Watch:
    """Measures each test's lines in the rooms where faults are drawn."""

    def __init__(self, folder: Path) -> None:
        import coverage

        folder.mkdir(parents=True, exist_ok=True)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self.seconds: dict[str, float] = {}
        self.durations = folder / f"seconds-{worker}.json"
        inside = [f"{SOURCE}/{r}{'*' if r.endswith('/') else ''}" for r in ROOMS]
        self.cover = coverage.Coverage(
            str(folder / f"lines-{worker}.sqlite"), include=inside, config_file=False
        )

    def pytest_sessionstart(self) -> None:
        self.cover.start()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.cover.switch_context(item.nodeid)
        began = time.perf_counter()
        yield
        self.seconds[item.nodeid] = time.perf_counter() - began
        self.cover.switch_context("")

    def pytest_sessionfinish(self) -> None:
        self.cover.stop()
        self.cover.save()
        self.durations.write_text(json.dumps(self.seconds))


def pytest_configure(config: pytest.Config) -> None:
    if folder := config.getoption("--covered", None):
        config.pluginmanager.register(Watch(Path(folder).absolute()))


def covering(folder: Path) -> tuple[dict[tuple[str, int], set[str]], dict[str, float]]:
    """The tests of each line, and how long each test takes."""
    import coverage

    tests: dict[tuple[str, int], set[str]] = {}
    for file in folder.glob("lines-*.sqlite"):
        data = coverage.CoverageData(str(file))
        data.read()
        for path in data.measured_files():
            place = str(Path(path).relative_to(SOURCE))
            for line, contexts in data.contexts_by_lineno(path).items():
                tests.setdefault((place, line), set()).update(c for c in contexts if c)
    seconds: dict[str, float] = {}
    for file in folder.glob("seconds-*.json"):
        seconds |= json.loads(file.read_text())
    return tests, seconds


# ---- faults ----


@dataclass(frozen=True)
class Fault:
    file: str
    line: int
    function: str
    kind: str
    before: str
    after: str
    tests: list[str]  # those that cover the line, the quickest first


OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def changed(node: ast.AST) -> tuple[str, ast.AST] | None:
    """The kind of fault that a piece of code can have, and the piece with it."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.BinOp | ast.BoolOp) and type(new.op) in OPERATORS:
        new.op = OPERATORS[type(new.op)]()  # type: ignore[assignment]
        return "sign", new
    if isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.USub):
        return "sign", new.operand
    if isinstance(new, ast.Compare) and type(new.ops[0]) in OPERATORS:
        new.ops[0] = OPERATORS[type(new.ops[0])]()  # type: ignore[call-overload]
        return "comparison", new
    if (
        isinstance(new, ast.Subscript)
        and isinstance(new.slice, ast.Constant)
        and type(new.slice.value) is int
    ):
        new.slice.value += 1
        return "index", new
    if isinstance(new, ast.Constant) and type(new.value) in (bool, int, float):
        new.value = not new.value if isinstance(new.value, bool) else new.value + 1
        return "constant", new
    if isinstance(new, ast.Assign | ast.AugAssign | ast.Expr) and not is_text(new):
        return "left out", ast.Pass()
    return None


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def faults_of(path: Path) -> Iterator[tuple[int, str, str, str, str]]:
    """Every fault that fits on one line inside a function: line, function, kind, the line before and after."""
    text = path.read_text()
    lines = text.splitlines()
    for outer in ast.walk(ast.parse(text)):
        if not isinstance(outer, ast.FunctionDef):
            continue
        for node in (n for statement in outer.body for n in ast.walk(statement)):
            first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
            if not first or first != last or (made := changed(node)) is None:
                continue
            line = lines[first - 1].encode()
            start, end = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
            after = (line[:start] + f"{ast.unparse(made[1])}".encode() + line[end:]).decode()
            if isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare):
                after = (line[:start] + f"({ast.unparse(made[1])})".encode() + line[end:]).decode()
            yield first, outer.name, made[0], lines[first - 1], after


def draw(folder: Path, many: int, seed: int) -> list[Fault]:
    """As many faults of each kind as of any other, in lines that are drawn by the seed."""
    tests, seconds = covering(folder)
    kinds: dict[str, list[Fault]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        place = str(path.relative_to(SOURCE))
        if not place.startswith(ROOMS):
            continue
        for line, function, kind, before, after in dict.fromkeys(faults_of(path)):
            names = sorted(tests.get((place, line), ()), key=lambda t: (seconds.get(t, 0.0), t))[:MOST_TESTS]
            kinds.setdefault(kind, []).append(Fault(place, line, function, kind, before, after, names))
    rng, found = random.Random(seed), list[Fault]()
    for kind in sorted(kinds):
        found += rng.sample(kinds[kind], min(len(kinds[kind]), -(-many // len(kinds))))
    return found[:many]


def place_of(fault: dict[str, Any], source: Path) -> tuple[Path, int] | None:
    """Where the fault's line is now: in the same file, else in a function of the same name, else anywhere once."""
    places = [
        (p, k)
        for p in sorted(source.rglob("*.py"))
        for k, line in enumerate(p.read_text().splitlines())
        if line.strip() == fault["before"].strip()
    ]
    same = [(p, k) for p, k in places if str(p.relative_to(source)) == fault["file"]]
    inside = [(p, k) for p, k in same or places if function_at(p, k + 1) == fault["function"]]
    near = sorted(inside or same, key=lambda at: abs(at[1] + 1 - fault["line"]))
    if near:
        return near[0]
    return places[0] if len(places) == 1 else None


def function_at(path: Path, line: int) -> str:
    """The innermost function around a line."""
    around = [
        n
        for n in ast.walk(ast.parse(path.read_text()))
        if isinstance(n, ast.FunctionDef) and n.lineno <= line <= (n.end_lineno or 0)
    ]
    return max(around, key=lambda n: n.lineno).name if around else ""


def try_one(fault: dict[str, Any], tests: list[str]) -> str:
    """What became of a fault: caught, missed, too slow, no test, or gone."""
    found = place_of(fault, SOURCE)
    if found is None:
        return "gone"
    if not tests:
        return "no test"
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(ROOT / "src", f"{place}/src", ignore=shutil.ignore_patterns("__pycache__"))
        for name in (
            "tests",
            "docs",
            "experiments",
            "README.md",
            "CHANGELOG.md",
            "CONTRIBUTING.md",
            "pyproject.toml",
        ):
            Path(place, name).symlink_to(ROOT / name)
        file = Path(place, "src", "motet", found[0].relative_to(SOURCE))
        lines = file.read_text().splitlines()
        old = lines[found[1]]
        lines[found[1]] = old[: len(old) - len(old.lstrip())] + fault["after"].strip()
        file.write_text("\n".join(lines) + "\n")
        env = os.environ | {"PYTHONPATH": f"{place}/src", "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
        try:
            done = subprocess.run(
                words, cwd=place, env=env, capture_output=True, text=True, timeout=MOST_SECONDS
            )
        except subprocess.TimeoutExpired:
            return "too slow"
        return {0: "missed", 1: "caught", 2: "caught"}.get(
            done.returncode, f"pytest ended with {done.returncode}"
        )


def run(folder: Path, faults: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each fault with its outcome. Which tests cover it is read anew: lines and tests may have moved."""
    tests, seconds = covering(folder)

    def outcome(fault: dict[str, Any]) -> dict[str, Any]:
        found = place_of(fault, SOURCE)
        names: list[str] = []
        if found:
            covered = tests.get((str(found[0].relative_to(SOURCE)), found[1] + 1), set())
            names = sorted(covered, key=lambda t: (seconds.get(t, 0.0), t))[:MOST_TESTS]
        what = try_one(fault, names)
        print(
            f"{what:10}{fault['file']}:{fault['line']} {fault['kind']}: {fault['after'].strip()}", flush=True
        )
        return {k: v for k, v in fault.items() if k != "tests"} | {"outcome": what, "tests": len(names)}

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(outcome, faults))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("draw", "run", "compare"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--many", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.what == "draw":
        folder, to = given.files
        found = [asdict(f) | {"tests": len(f.tests)} for f in draw(folder, given.many, given.seed)]
        to.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{len(found)} faults, {sum(not f['tests'] for f in found)} of them in lines without a test")
        return 0
    if given.what == "run":
        folder, faults, to = given.files
        outcomes = run(folder, json.loads(faults.read_text()))
        to.write_text(json.dumps(outcomes, indent=1) + "\n")
        print(f"{sum(o['outcome'] == 'caught' for o in outcomes)} of {len(outcomes)} faults are caught")
        return 0
    before, after = (json.loads(f.read_text()) for f in given.files)
    lost = [b for a, b in zip(before, after, strict=True) if a["outcome"] == "caught" != b["outcome"]]
    for fault in lost:
        print(f"{fault['outcome']} now: {fault['file']}:{fault['line']} {fault['after'].strip()}")
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
