"""Measures motet beside its peers and beside a plain PyTorch loop, one process at a time.

    python benchmarks/bench.py [--work W1,W2,W3,W4] [--sides plain,flwr,pfl,pfllib,flbench,motet] [--quick]

Knows in which order sides are run. What a run is stands in runs.py, how results are written in tables.py.
Results go to benchmarks/results/, with --quick to benchmarks/results/quick/. Stop it at any time: runs that
were made with the same code, data and settings are not made again, unless --fresh.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import runs
import tables
from runs import SIDES, Book, Run, Side
from workloads import FAMILIES, WORKS, Work, generate

PAIRED = ("W2", "W3")  # minutes long and sensitive to the machine's mood: plain and motet take turns
TURNS = ("plain", "motet")  # the groups that take turns; peers are further apart and run once
QUICK = {"W1": 3, "W2": 2, "W3": 1, "W4": 2}  # rounds


@dataclass(frozen=True)
class Plan:
    families: list[str]
    groups: list[str]
    quick: bool
    fresh: bool
    pairs: int
    data: Path
    results: Path
    code: str
    asked_rounds: int

    def rounds(self, family: str, work: Work) -> int:
        return self.asked_rounds or (QUICK[family] if self.quick else work.rounds)

    def works(self, family: str) -> list[Work]:
        works = [WORKS[name] for name in FAMILIES[family]]
        return [work for work in works if work.clients <= 1000] if self.quick else works

    def sides(self, family: str) -> list[Side]:
        asked = [side for side in SIDES if family in side.families and side.group in self.groups]
        for side in (side for side in asked if not side.here):
            print(f"{side.name}: skipped, {side.checkout} names no folder", file=sys.stderr)
        return [side for side in asked if side.here]


def plan() -> Plan:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", default="W1,W2,W3,W4", help="families, with commas")
    parser.add_argument(
        "--sides", default="plain,flwr,pfl,pfllib,flbench,motet", help="groups of sides, with commas"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few rounds of each, to see that all sides run"
    )
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured before")
    parser.add_argument(
        "--pairs", type=int, default=5, help="how often plain and motet take turns in W2 and W3"
    )
    parser.add_argument("--data", type=Path, default=runs.HERE / ".data")
    parser.add_argument(
        "--results",
        type=Path,
        default=runs.HERE / "results",
        help="folder of results; of busy machines: another",
    )
    parser.add_argument("--rounds", type=int, default=0, help="default: as many as the workload says")
    asked = parser.parse_args()
    families, groups = asked.work.split(","), asked.sides.split(",")
    refuse(parser, "--work", families, list(FAMILIES))
    refuse(parser, "--sides", groups, sorted({side.group for side in SIDES}))
    results = asked.results.resolve() / ("quick" if asked.quick else "")
    pairs = 1 if asked.quick else asked.pairs
    code = runs.code_version()
    data = asked.data.resolve()
    return Plan(families, groups, asked.quick, asked.fresh, pairs, data, results, code, asked.rounds)


def refuse(parser: argparse.ArgumentParser, option: str, given: list[str], known: list[str]) -> None:
    unknown = [word for word in given if word not in known]
    if unknown:
        parser.error(f"{option}: {', '.join(unknown)} unknown, expected some of {', '.join(known)}")


@dataclass(frozen=True)
class Bench:
    """One work, its sides and the book that its runs are kept in."""

    plan: Plan
    family: str
    work: Work
    book: Book

    def key(self, side: Side, repetition: int) -> Run:
        return runs.key(side, self.work, self.plan.rounds(self.family, self.work), repetition, self.plan.code)

    def known(self, side: Side, repetition: int) -> bool:
        """Whether this run was made before and may stand for a new one."""
        return not self.plan.fresh and self.book.find(self.key(side, repetition)) is not None

    def run(self, side: Side, repetition: int, turn: str = "") -> bool:
        """Make one run and keep it; says whether it worked."""
        run = runs.perform(side, self.work, self.plan.data, self.key(side, repetition), turn)
        self.book.keep(run)
        print(tables.brief(run), file=sys.stderr, flush=True)
        return "error" not in run

    def take_turn(self, sides: list[Side], repetition: int) -> None:
        """One turn of all paired sides, each time with another one first.

        A ratio is worth something only if its two runs lie side by side: if a side had to be run and
        worked, the others of this turn are run again too, even if they had been measured before.
        """
        first = repetition % len(sides)
        queue, turn = sides[first:] + sides[:first], runs.now()
        old = [side for side in queue if self.known(side, repetition)]
        worked = [self.run(side, repetition, turn) for side in queue if side not in old]
        if any(worked):
            for side in old:
                self.run(side, repetition, turn)

    def all(self) -> None:
        """All sides, those that take turns first."""
        generate(self.work, self.plan.data)
        sides = self.plan.sides(self.family)
        if self.plan.fresh:  # of an older run with more turns nothing must stay
            self.book.forget({side.name for side in sides})
        paired = [side for side in sides if self.family in PAIRED and side.group in TURNS]
        for repetition in range(self.plan.pairs if paired else 0):
            self.take_turn(paired, repetition)
        for side in sides:
            if side not in paired and not self.known(side, 0):
                self.run(side, 0)


def main() -> None:
    asked = plan()
    for family in asked.families:
        for work in asked.works(family):
            Bench(asked, family, work, Book(asked.results / f"{family}.json")).all()
        tables.write(asked.results, shlex.join(["python", "benchmarks/bench.py", *sys.argv[1:]]))
    print((asked.results / "README.md").read_text())


if __name__ == "__main__":
    main()
