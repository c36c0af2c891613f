"""The ledger of a site: a line for all that left it and for all that it refused, who asked, and under which contract.

A line is JSON in plain ASCII, so that nothing in a letter can end it or begin another. It holds the hash of the
line before it: a line that is changed, left out or put in breaks the chain; `read_ledger` says where, and privacy
budgets, which rest on all lines, are not spent any more. A line is written before the reply leaves, so that nothing
leaves unwritten; after a crash a line may stand for a reply that never left. The ledger of an older motet,
`ledger.tsv`, is still counted, and the chain begins with its hash.
Knows lines and files. Does not know what is in a letter, nor what a policy allows.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from hashlib import sha256
from json import dumps
from pathlib import Path

from filelock import FileLock
from msgspec import DecodeError, Struct, ValidationError, json, to_builtins
from msgspec.structs import replace

from motet.atomic import write_atomically
from motet.engines.letters import BEFORE, LACKS_FILES, LEARN, Letter
from motet.errors import MotetError
from motet.guard.accounting import NoisySteps
from motet.text import aligned, round_name

_TEXT = 200  # characters of a name that are written down
_REASON = 2000  # of a reason for a refusal
RUN_JOBS = (
    "verb",
    "evaluate",
    "evaluate_trained",
    "save_model",
    "files",
    "mask",
)  # letters of a run that was offered
ASKS_FOR_FILES = (
    LACKS_FILES  # a clause that refuses nothing: the letter names files that the site does not have
)
NO_VERB = "-"  # in a line of a sum of scores, of columns or counts, or of replies without numbers
SCORING_JOBS = ("evaluate", "evaluate_trained")
_OLD = "ledger.tsv"  # time, run, round, ask, job, verb, learn, bytes


class LedgerRolledBack(MotetError):
    """A ledger that lost lines which it had: an older copy took its place, its end was cut off, or one was changed."""


class LedgerLine(Struct, frozen=True, omit_defaults=True):
    """One message and what became of it."""

    time: str = ""
    caller: str = ""
    job: str = ""
    verb: str = ""
    learn: str = ""
    part: str = ""  # which rows were scored
    run: str = ""
    round: int = -1
    ask: int = 0
    letter: str = ""  # sha256 of the letter
    bytes: int = 0  # of the reply
    sha256: str = ""  # of the reply
    numbers: int = 0  # losses or numbers of a sketch that left
    model: str = ""  # the published model that left, in words
    epsilon: float = 0.0  # its privacy budget
    sum_of: str = ""  # whose replies were unmasked together, of a masked sum's last step
    sum_for: str = ""  # sha256 of what was asked and replied: the same replies, whatever the letter is called
    sum_as: str = ""  # how replies were weighed in the sum
    sum_verb: str = ""  # the verb whose replies these were, or NO_VERB; "" in lines of an older motet
    noise: float = 0.0  # noise multiplier of private steps behind the reply
    rate: float = 0.0  # at which rows were drawn for them
    steps: int = 0  # how many there were
    again: bool = False  # the reply left before, and left once more
    contract: str = ""  # sha256 of the run's contract
    clause: str = ""  # what of the contract or the policy refused the letter; "" for a reply
    text: str = ""  # the reason of a refusal, which stays here
    previous: str = ""  # sha256 of the line before

    @classmethod
    def about(cls, letter: Letter, caller: str, digest: str) -> LedgerLine:
        names = {k: getattr(letter, k)[:_TEXT] for k in ("job", "verb", "run")}
        learn = LEARN[letter.learn] if letter.job == "verb" else ""
        part = letter.part if letter.job == "evaluate" else ""
        return cls(
            caller=caller[:_TEXT],
            learn=learn,
            part=part,
            round=letter.round,
            ask=letter.number,
            letter=digest,
            **names,
        )

    @property
    def what(self) -> str:
        """For the log."""
        asked = (
            f"{self.job} {self.verb!r} of run {self.run!r}, {round_name(self.round)}"
            if self.job
            else "a message"
        )
        return f"{asked}, from {self.caller!r}"

    def refused(self, clause: str, text: str) -> LedgerLine:
        return replace(self, clause=clause, text=text[:_REASON])


class Ledger:
    """The ledger of one site, and what its policy counts: rounds, asks and numbers that left, over all runs."""

    def __init__(self, folder: Path) -> None:
        self.path, self.old = folder / "ledger.jsonl", folder / _OLD
        self.rounds: set[tuple[str, int]] = set()  # (run, round) in which a verb was answered
        self.asks: dict[tuple[str, int, str], set[str]] = defaultdict(
            set
        )  # letters answered in a round, by ask
        self.in_all: dict[tuple[str, str], int] = defaultdict(int)  # the same in all rounds of a run
        self.numbers: dict[str, int] = defaultdict(int)  # losses and numbers of sketches that left, by run
        self.budgets: dict[str, float] = {}  # epsilon of published models, by hash of the reply
        self.private: list[tuple[str, NoisySteps]] = []  # steps behind replies, with the run
        self.trained: set[str] = set()  # runs in which a verb was answered
        self.sums: dict[
            str, tuple[str, str]
        ] = {}  # whose replies were summed with this site's, and how, by reply
        # the same by verb and round of a run
        self.sets: dict[tuple[str, int, str], list[tuple[str, str]]] = defaultdict(list)
        self.cohorts: set[str] = set()  # with whose sums and counts this site's were summed before runs
        self.scorings = 0  # letters that scored models, over all runs
        self.tests: dict[str, int] = defaultdict(int)  # of these, letters that scored test rows, by run
        self.read, self.last = 0, ""  # how far the file was read, and the hash of the last line
        self.stamp = stamp_of(folder)
        self.hashes: set[str] = set()  # of all lines
        self.damage = ""  # where the chain of lines is broken first
        self.lock = FileLock(self.path.with_suffix(".lock"), mode=0o600)
        if self.old.exists():
            self.rounds |= old_rounds(self.old.read_bytes())
            self.trained |= {run for run, _ in self.rounds}
            self.last = sha256(self.old.read_bytes()).hexdigest()
        if self.path.exists():
            with self.lock:
                self.catch_up()

    def catch_up(self) -> None:
        """Count what is in the file and was not read yet: another process of this site may have written it. Who holds
        the lock reads whole lines."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.read)
            content = file.read()
        self.read += len(content)
        for raw in filter(None, content.split(b"\n")):
            if (line := parsed(raw)) is not None:  # else a crash cut it off, and the next line names it
                if line.previous != self.last and not self.damage:
                    self.damage = f"line {len(self.hashes) + 1} does not follow the line before it"
                self.count(line)
            self.last = sha256(raw).hexdigest()
            self.hashes.add(self.last)

    def check_not_rolled_back(self) -> None:
        """Refuse a ledger that does not have the line which the stamp names, or that became shorter. Lines that other
        processes wrote are counted before."""
        if not self.path.exists() and not self.read and not self.stamp.exists():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.lock:
            self.check_under_lock()

    def check_under_lock(self) -> None:
        stamped = self.stamp.read_text().strip() if self.stamp.exists() else ""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size >= self.read:
            self.catch_up()
        if size < self.read or (stamped and stamped not in self.hashes):
            raise LedgerRolledBack(rolled_back(self.path, self.stamp))

    def count(self, line: LedgerLine) -> None:
        if not line.clause and line.round == BEFORE and line.sum_of:
            self.cohorts.add(line.sum_of)
        if line.clause or line.job not in RUN_JOBS or line.round == BEFORE:
            return
        key = line.run, line.round, name_of_ask(line.job, line.verb)
        if line.letter not in self.asks[key]:
            self.asks[key].add(line.letter)
            self.in_all[line.run, key[2]] += 1
            self.numbers[line.run] += line.numbers
            self.scorings += line.job in SCORING_JOBS
            self.tests[line.run] += line.part == "test"
        if line.sum_of:
            self.sums[line.sum_for] = line.sum_of, line.sum_as
            sets = self.sets[line.run, line.round, line.sum_verb or line.verb]
            # in lines of an older motet, that may be the verb after which models were scored: the first line counts
            if (now := (line.sum_of, line.sum_as)) not in sets and (line.sum_verb or not sets):
                sets.append(now)
        if line.epsilon:
            self.budgets[line.sha256] = line.epsilon  # the same models once more tell nothing new
        if line.steps and not line.again:
            self.private.append((line.run, NoisySteps(line.noise, line.rate, line.steps)))
        if line.job == "verb":
            self.rounds.add((line.run, line.round))
            self.trained.add(line.run)

    def write(self, line: LedgerLine, check: Callable[[], None] = lambda: None) -> None:
        """Add a line; it is on the disk when this returns. `check` may refuse private steps and masked sums, when all
        lines of other processes are counted and none can come between."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.lock:
            self.check_under_lock()
            if line.steps or line.sum_of:
                check()
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            raw = ascii_json(replace(line, time=now, previous=self.last))
            opened = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                whole = not self.read or os.pread(opened, 1, self.read - 1) == b"\n"
                os.write(opened, raw + b"\n" if whole else b"\n" + raw + b"\n")
                os.fsync(opened)
            finally:
                os.close(opened)
            self.catch_up()
            write_atomically(self.stamp, f"{self.last}\n", private=True)

    def check_unchanged(self) -> None:
        """Refuse to count budgets by a ledger of which lines were changed, left out or put in."""
        if self.damage:
            raise LedgerRolledBack(changed(self.path, self.stamp, self.damage))

    def spent_by_others(self, run: str) -> tuple[int, int]:
        """Rounds, and losses and numbers of sketches, of all runs but one."""
        rounds = sum(r != run for r, _ in self.rounds)
        return rounds, sum(many for r, many in self.numbers.items() if r != run)

    def began(self, run: str) -> bool:
        """Whether anything of a run's training or scoring left."""
        return any(r == run and many for (r, _), many in self.in_all.items())


def stamp_of(folder: Path) -> Path:
    """Where the hash of a ledger's last line stands besides: outside of its folder, beside the site's key."""
    return folder.with_name(f"{folder.name}.stamp")


def rolled_back(path: Path, stamp: Path) -> str:
    return (
        f"the ledger {path} was rolled back: it does not have the line that {stamp.name} names as its last, so that "
        "budgets which were spent would be spent again\n"
        f"hint: restore the newest ledger; if it is lost for good, delete {stamp} and let the policy's budgets be "
        "smaller by what was spent since"
    )


def changed(path: Path, stamp: Path, where: str) -> str:
    return (
        f"the ledger {path} was changed: {where}, so that nobody knows what was spent\n"
        f"hint: restore the newest whole ledger; if it is lost for good, put this one aside, delete {stamp} and let "
        "the policy's budgets be smaller by what was spent"
    )


def name_of_ask(job: str, verb: str) -> str:
    """What is counted together: a verb, or another job of a run."""
    return verb if job == "verb" else job


def parsed(raw: bytes) -> LedgerLine | None:
    try:
        return json.decode(raw, type=LedgerLine)
    except (DecodeError, ValidationError, UnicodeDecodeError):
        return None


def ascii_json(line: LedgerLine) -> bytes:
    """One line, whatever the texts hold: all but plain ASCII is escaped."""
    return dumps(to_builtins(line)).encode("ascii")


def old_rounds(content: bytes) -> set[tuple[str, int]]:
    """(run, round) of the verbs in a ledger of an older motet."""
    lines = (line.split("\t") for line in content.decode(errors="replace").splitlines())
    return {(w[1], int(w[2])) for w in lines if len(w) == 8 and w[4] == "verb" and w[2].lstrip("-").isdigit()}


# ---- for the site's owner ----


def read_ledger(folder: Path) -> tuple[list[LedgerLine], list[str]]:
    """All lines of a site's ledger, and where its chain is damaged."""
    old, path = folder / _OLD, folder / "ledger.jsonl"
    last = sha256(old.read_bytes()).hexdigest() if old.exists() else ""
    content = path.read_bytes() if path.exists() else b""
    lines, damage = list[LedgerLine](), list[str]()
    for number, raw in enumerate(content.split(b"\n")[:-1], 1):
        if (line := parsed(raw)) is None:
            damage.append(f"line {number} is no line of a ledger: it was changed, or cut off by a crash")
        else:
            if line.previous != last:
                damage.append(
                    f"line {number} does not follow the line before it: lines were changed or left out"
                )
            lines.append(line)
        last = sha256(raw).hexdigest()
    if content and not content.endswith(b"\n"):
        damage.append("the last line is cut off")
    stamp = stamp_of(folder)
    if stamp.exists() and stamp.read_text().strip() not in hashes_of_lines(folder):
        damage.append(rolled_back(path, stamp).split("\n")[0])
    return lines, damage


def hashes_of_lines(folder: Path) -> list[str]:
    """Of each line of a site's ledger; each covers all lines before it. One that is being written is not counted."""
    path = folder / "ledger.jsonl"
    content = path.read_bytes() if path.exists() else b""
    return [sha256(raw).hexdigest() for raw in content.split(b"\n")[:-1]]


def ledger_text(lines: list[LedgerLine], damage: list[str]) -> str:
    """A plain table of the ledger, and whether its chain is whole."""
    head = ("time", "caller", "run", "round", "asked", "learns", "bytes", "what became of it")
    rows = [
        (
            x.time,
            printable(x.caller),
            printable(x.run)[:24],
            str(x.round + 1) if x.round >= 0 else "-",
            asked(x),
            x.learn,
            f"{x.bytes:,}",
            fate(x),
        )
        for x in lines
    ]
    verdict = [f"damaged: {why}" for why in damage] or [f"{len(lines)} lines, and the chain is whole"]
    return "\n".join([*aligned([head, *rows], right=[3, 6]), "", *verdict])


def asked(line: LedgerLine) -> str:
    return printable(f"{line.job} {line.verb}".strip() or "?")


def fate(line: LedgerLine) -> str:
    if line.clause == ASKS_FOR_FILES:
        return printable(f"asked for files: {line.text}")[:120]
    if line.clause:
        return printable(f"refused, {line.clause}: {line.text}")[:120]
    what = f", {printable(line.model)}" if line.model else ""
    what += f", {line.steps} private steps of noise {line.noise:.3g}" if line.steps else ""
    what += f", unmasks the sum of {printable(line.sum_of)}" if line.sum_of else ""
    again = " once more" if line.again else ""
    return f"left{again} {line.sha256[:12]}, contract {line.contract[:12] or '-'}{what}"


def printable(text: str) -> str:
    """Without what could move a terminal's cursor or break a line."""
    return "".join(c if c.isprintable() else "?" for c in text)
