"""The contract of a run: what one site lets the server ask in it, made at the site when the run is offered.

    contract = derive(run, recipe, method, client_data, layout, rounds, needs, policy)
    contract.check(letter)

It follows from the site's own installed code and its own policy. A letter chooses nothing in it: whether a verb is
averaged or collected is read from the method's text, how often it may come from the method, its settings are those
of the offer. It is stored in the run's folder, every line of the ledger names its hash, and a dry run shows it.
Knows letters, methods and policies. Does not know rows, nor how letters are carried.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal, get_args

import msgspec

from motet.checksums import BLANK, FIELD, is_whole, with_checksum
from motet.client import ClientData, seed_of
from motet.core import Method, MethodUnfit, Tree
from motet.data.federated import DataError
from motet.deploy.site.ledger import SCORING_JOBS, Ledger, LedgerRolledBack, name_of_ask
from motet.deploy.site.offered_guards import clip_of, guard_in, uncut, unmasked
from motet.deploy.site.offered_limits import few, out_of_range, too_many_steps, too_wide, unbounded
from motet.deploy.site.policy import Masked, Need, Objection, Policy, RefusedByPolicy
from motet.deploy.site.row_shares import settings_of, share_of_row, with_even_batches
from motet.deploy.site.score_budget import check_scorings
from motet.deploy.site.storage import EncryptedStateError
from motet.deploy.site.training_budget import PrivateTerms
from motet.deploy.site.work_limits import LimitReached
from motet.engines.letters import LEARN, Letter
from motet.guard.masks.refused import MaskRefused
from motet.nets import NetError
from motet.runs.recipe import RecipeError
from motet.runs.versions import source_digest, versions
from motet.text import round_name
from motet.wire import WireError

SERVER = "server"  # what FLARE calls the one party that may ask
Clause = Literal[
    "caller", "recipe", "method", "verb", "learn", "publish", "asks", "losses", "rounds", "bytes", "letter", "layout",
    "sums", "counts", "scores", "categories", "rows", "weights", "weight", "limits", "files", "state", "reset",
    "masks", "privacy", "ledger", "data", "error",
]  # fmt: skip
_CLAUSES: tuple[tuple[type[BaseException], Clause], ...] = (  # of errors that name none themselves
    (WireError, "letter"), (LimitReached, "limits"), (MemoryError, "limits"), (DataError, "data"),
    (MaskRefused, "masks"), (RecipeError, "recipe"), (NetError, "recipe"), (MethodUnfit, "recipe"),
    (EncryptedStateError, "state"), (LedgerRolledBack, "ledger"),
)  # fmt: skip
_QUESTIONS = 20  # among which all losses may be shared before a count is less uncertain than the policy says
_SCORINGS = 8  # letters that score models in a round: two parts, some sides, and once more at the end
_FILES = 1000  # letters that bring files in a round
_STEPS, _ATTEMPTS = (
    4,
    10,
)  # letters of one masked sum besides the ask itself, and times that a sum may be begun anew
_JOBS = {"evaluate": ("scores", _SCORINGS), "evaluate_trained": ("scores", 2), "save_model": ("nothing", 2)}


@dataclass(frozen=True)
class AskRule:
    """One thing that may be asked: a verb, or another job of a run."""

    ask: str
    learn: str  # average, collect, scores or nothing
    per_round: int  # letters of different content in a round
    in_all: int
    numbers: int = 0  # most numbers of one reply, for losses and sketches; 0: it sends none of these


@dataclass(frozen=True)
class Contract:
    """All that letters of one run are held to."""

    run: str
    caller: str
    motet: str  # the site's own code that answers
    policy: str  # sha256 of the policy under which it was made
    recipe: str  # sha256 of the recipe that letters must hold
    method: str
    layout: str  # sha256 of the layout of columns and of the rows
    seed: int  # of the recipe, from which every round's seed follows
    rounds: int
    asks: tuple[AskRule, ...]
    rows: dict[str, int]  # training, validation and test rows
    least_rows: int
    settings: dict[str, float]  # settings through which a reply could be inverted
    share: float  # largest share of one row in a reply that was trained
    weight: float  # largest weight that may be sent; 0: any, for networks of more than one layer
    noise: float  # on every loss and number of a sketch, for a row that counts 1: scale of Laplace's distribution
    loss_bound: float  # largest loss of one row; 0: any
    losses: int  # losses and numbers of sketches that may leave, over all runs
    score_noise: float  # rows by which every score stays uncertain
    scores: bool | Masked
    counts: bool | Masked
    reply_bytes: int
    letter_bytes: int
    letter_seconds: float
    letter_memory: int
    sites: tuple[str, ...] = ()  # whose replies may be in one sum with this site's
    masked: bool = False  # whether replies that are averaged leave masked
    min_in_sum: int = 3  # fewest replies in a masked sum
    clip: float = 0.0  # longest update that leaves; 0: any
    mask_bits: int = 64  # of each number of a masked reply
    mask_range: float = 1024.0  # largest number of one
    private: PrivateTerms | None = None  # how training is private; None: it is not

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    def stored(self) -> bytes:
        """The contract as a file, with a checksum."""
        return with_checksum(json.dumps({FIELD: BLANK} | asdict(self), indent=1).encode())

    @classmethod
    def read(cls, stored: bytes) -> Contract:
        hint = "hint: let the server offer the run again"
        try:
            if is_whole(stored):
                return msgspec.json.decode(stored, type=cls)
            why = "its checksum does not match"
        except (msgspec.MsgspecError, UnicodeDecodeError) as e:
            why = str(e)
        raise RefusedByPolicy(f"the stored contract of the run cannot be read: {why}\n{hint}", "state")

    @property
    def hash(self) -> str:
        return sha256(self.text().encode()).hexdigest()

    def rule(self, ask: str, learn: str = "") -> AskRule | None:
        return next((r for r in self.asks if r.ask == ask and learn in ("", r.learn)), None)

    def sets_in_round(self, verb: str, policy: Policy) -> int:
        """With how many different sets of sites replies to a verb may be summed in one round: as many as the method
        asks for them. That is one, but for a swarm, whose epochs are asks."""
        rule = self.rule(verb)
        return max(rule.per_round // policy.repeats, 1) if rule else 1

    # ---- letters ----

    def check(self, letter: Letter, policy: Policy) -> None:
        """Refuse a letter that the contract does not cover."""
        if wrong := next(self.broken_by(letter, policy), None):
            raise RefusedByPolicy(wrong.text, wrong.clause)

    def broken_by(self, letter: Letter, policy: Policy) -> Iterator[Objection]:
        run = f"run {letter.run[:80]!r}"
        if letter.run != self.run or policy_hash(policy) != self.policy:
            yield Objection("recipe", f"{run} was not offered under this site's present policy")
        if recipe_hash(letter.recipe) != self.recipe:
            other = name_of_method(letter.recipe) != self.method
            clause = "method" if other else "recipe"
            yield Objection(
                clause, f"{run} was offered with another {clause}: {self.method} with its own settings"
            )
        if not -1 <= letter.round < self.rounds:
            yield Objection(
                "rounds", f"{run} was offered with {self.rounds} rounds, and {round_name(letter.round)} came"
            )
        if letter.seed != turn_seed(self.seed, round_of(letter)):
            yield Objection("recipe", f"{run}: the recipe gives {round_name(letter.round)} another seed")
        yield from self.of_ask(letter)

    def of_ask(self, letter: Letter) -> Iterator[Objection]:
        verb = letter.job in ("verb", "evaluate_trained")
        if verb and self.rule(letter.verb) is None:
            yield Objection("verb", f"{letter.verb[:80]!r} is no verb that {self.method} asks for")
        if letter.job == "verb" and self.rule(letter.verb, LEARN[letter.learn]) is None:
            how = " or ".join(r.learn for r in self.asks if r.ask == letter.verb)
            yield Objection(
                "learn",
                f"{self.method} asks for {letter.verb} by {how}, and the letter by {LEARN[letter.learn]}",
            )
        if letter.job == "mask" and not self.masked:
            yield Objection("masks", "the run was offered without masked sums")
        if letter.job == "verb" and letter.learn == "mean" and self.masked != bool(letter.masked):
            how = "masked" if self.masked else "unmasked"
            yield Objection("masks", f"the run was offered with {how} means, and the letter wants another")
        if letter.job == "verb" and letter.learn == "all" and letter.masked:
            yield Objection("masks", "replies that are collected are in no masked sum")
        if letter.job == "files" and self.rule("files") is None:
            yield Objection("letter", f"{self.method} sends no files to sites")
        if letter.job == "evaluate_trained" and self.private:
            yield Objection("privacy", "a second training for scores would be no part of the budget")
        if letter.job in SCORING_JOBS:
            yield from self.of_scores(bool(letter.masked))
            parts = ("val", "test") if letter.job == "evaluate_trained" else (letter.part,)
            for part in (p for p in parts if 0 < self.rows[p] < self.least_rows):
                yield Objection("rows", few(self.rows[part], f"{part} rows", self.least_rows))

    def of_scores(self, masked: bool) -> Iterator[Objection]:
        """Why scores may not leave, in the clear or masked."""
        if not self.scores:
            yield Objection("scores", "this site's policy lets no scores leave (scores = false)")
        elif masked and not self.masked:
            yield Objection("masks", "the run was offered without masked sums")
        elif not masked and self.scores == "masked":
            text = 'this site\'s policy lets scores leave in masked sums alone (scores = "masked")'
            yield Objection("scores", f"{text}\nhint: guard.masked=true")

    def check_budget(self, letter: Letter, digest: str, ledger: Ledger, policy: Policy) -> None:
        """Refuse what comes too often. The same letter once more tells nothing new, and does not count."""
        ask = name_of_ask(letter.job, letter.verb)
        rule, known = self.rule(ask), ledger.asks[letter.run, letter.round, ask]
        if rule is None or digest in known:
            return
        if len(known) >= rule.per_round or ledger.in_all[letter.run, ask] >= rule.in_all:
            raise RefusedByPolicy(
                f"{ask} may come {rule.per_round} times in a round and {rule.in_all} in all, and did", "asks"
            )
        if letter.job in SCORING_JOBS:
            check_scorings(ledger, letter, policy)
        one_more = (letter.run, letter.round) not in ledger.rounds
        if letter.job == "verb" and one_more and len(ledger.rounds) >= policy.rounds:
            raise RefusedByPolicy(
                f"this site's policy has rounds = {policy.rounds}, and they are used up", "rounds"
            )

    def same_run(self, other: Contract) -> Objection | None:
        """Why another contract cannot take the place of this one in a run that has begun."""
        for name in ("recipe", "rounds", "layout"):
            if getattr(self, name) != getattr(other, name):
                clause = "method" if self.method != other.method else name
                return Objection(clause, f"run {self.run[:80]!r} began here with another {clause}")
        return None


# ---- making one ----


def derive(
    run: str,
    recipe: Tree,
    method: Method,
    client_data: ClientData,
    layout: str,
    rounds: int,
    needs: Sequence[Need],
    policy: Policy,
    sites: Sequence[str] = (),
    private: PrivateTerms | None = None,
) -> Contract:
    """The contract of a run, whether or not the policy has objections to it."""
    guard = guard_in(recipe)
    n, quiet = client_data.n, not policy.noise
    return Contract(
        run, SERVER, f"{versions()['motet']} (source {source_digest()[:12]})", policy_hash(policy),
        recipe_hash(recipe), name_of_method(recipe), layout, recipe.get("seed", 0), rounds,
        tuple(ask_rules(recipe, method, needs, rounds, policy)),
        {"train": n, "val": len(client_data.val), "test": len(client_data.test)}, policy.least_rows,
        settings_of(method), share_of_row(method, client_data), 0.0 if method.task.body else policy.weight,
        0.0 if quiet or not method.measuring else noise_scale(policy, n), 0.0 if quiet else policy.loss_bound,
        policy.losses, policy.score_noise, policy.scores, policy.counts,
        policy.reply_bytes, policy.letter_bytes, policy.letter_seconds, policy.letter_memory,
        tuple(sorted(sites)), guard.masked, max(policy.min_in_sum, guard.min_in_sum), clip_of(guard, policy),
        guard.mask_bits, guard.mask_range,
        private,
    )  # fmt: skip


def ask_rules(
    recipe: Tree, method: Method, needs: Sequence[Need], rounds: int, policy: Policy
) -> Iterator[AskRule]:
    """Verbs as the method's text has them, then scores and what ends a run."""
    most = method.most_asks()
    for need in (n for n in needs if n.learn in LEARN.values()):
        numbers = 2 * need.numbers if need.verb in method.measuring else 0
        yield AskRule(need.verb, need.learn, most * policy.repeats, 2 * most * (rounds + 1), numbers)
    for job, (learn, many) in _JOBS.items():
        in_one = many * policy.repeats
        yield AskRule(
            job, learn, in_one, 2 * (rounds + 1) + in_one
        )  # rounds are scored once, the last one more
    if guard_in(recipe).masked:
        steps = _STEPS * (most + _SCORINGS) * policy.repeats
        yield AskRule("mask", "nothing", _ATTEMPTS * steps, 2 * steps * (rounds + 1) + _ATTEMPTS * steps)
    if method.has_public_models:
        yield AskRule("files", "nothing", _FILES, _FILES * (rounds + 1))


def noise_scale(policy: Policy, n: int) -> float:
    """Laplace's scale for a mean of n rows that count 1 each.

    Half of the numbers of a reply are flags, so that losses / 2 questions may be asked. To find one value of one row
    takes some ten questions that build on each other. Whoever shares all of them among 20 has losses / 40 for each,
    whose mean is then uncertain by `noise` rows: scale * sqrt(2) * n / sqrt(losses / 40) = noise.

    >>> round(noise_scale(Policy(noise=1.0, losses=20_000), 1000), 4)
    0.0158
    """
    return policy.noise * math.sqrt(policy.losses / (4 * _QUESTIONS)) / n


def protected_method(method: Method, n: int, policy: Policy) -> Method:
    """The method as this site runs it on its n training rows."""
    bounded = method.bounded(policy.loss_bound) if policy.noise else method
    return with_even_batches(bounded, n, policy.least_rows) if policy.secret_orders else bounded


def check_whole(method: Method) -> None:
    """Refuse an offer that leaves settings open, which a run never does."""
    if left := [f.name for f in fields(method) if getattr(method, f.name) == "auto"]:
        raise RefusedByPolicy(f"the offer leaves settings of the method open: {', '.join(left)}", "recipe")


def objections(
    contract: Contract, method: Method, needs: Sequence[Need], policy: Policy, spent: tuple[int, int] = (0, 0)
) -> list[Objection]:
    """Why the run of a contract may not begin here; `spent`: rounds and losses of other runs."""
    rounds, losses = spent
    wrong = policy.objections(contract.method, needs, contract.rounds, rounds)
    rows = method.rows_trained(contract.rows["train"])
    if rows < policy.least_rows:
        wrong.append(Objection("rows", few(rows, "training rows behind a reply", policy.least_rows)))
    batch = contract.settings.get("batch", math.inf)
    if batch < min(policy.least_rows, contract.rows["train"]):
        wrong.append(Objection("rows", few(int(batch), "rows in a batch (method.batch)", policy.least_rows)))
    if contract.share > policy.largest_share:
        text = f"with {rows} rows and batch = {batch:g} one row is {contract.share:.0%} of a reply"
        wrong.append(
            Objection("rows", f"{text}, and this site's policy has largest_share = {policy.largest_share:g}")
        )
    wrong += too_wide(method, contract.rows["train"], policy)
    wrong += [o for k, v in contract.settings.items() for o in out_of_range(k, v, policy)]
    wrong += too_many_steps(contract.settings, rows, policy)
    asked = numbers_sent(needs, method, contract.rounds)
    if losses + asked > policy.losses:
        text = f"the run sends up to {asked:,} losses or numbers of sketches after {losses:,} of earlier runs"
        hint = "hint: fewer train.rounds, or fewer numbers in each"
        wrong.append(
            Objection("losses", f"{text}, and this site's policy has losses = {policy.losses:,}; {hint}")
        )
    return (
        wrong
        + unbounded(method, contract.weight)
        + unmasked(contract.masked, contract.sites, contract.min_in_sum, needs, policy)
        + uncut(method, policy)
    )


def numbers_sent(needs: Sequence[Need], method: Method, rounds: int) -> int:
    """How many losses or numbers of sketches a run sends at most, if nothing is repeated."""
    sizes = {n.verb: n.numbers for n in needs if n.verb in method.measuring}
    return sum(method.numbers_measured(verb, many, rounds) for verb, many in sizes.items())


# ---- hashes and clauses ----


def recipe_hash(recipe: Tree) -> str:
    return sha256(json.dumps(recipe, sort_keys=True, default=repr).encode()).hexdigest()


@lru_cache(maxsize=8)
def policy_hash(policy: Policy) -> str:
    return sha256(json.dumps(asdict(policy), sort_keys=True).encode()).hexdigest()


def name_of_method(recipe: Any) -> str:
    method = recipe.get("method") if isinstance(recipe, Mapping) else None
    return str(method.get("name", ""))[:80] if isinstance(method, Mapping) else ""


def round_of(letter: Letter) -> int:
    """The round in which the work is done: models that training would leave are those of the next one."""
    step = letter.job == "mask" and isinstance(letter.send, dict) and bool(letter.send.get("exact"))
    return letter.round + (1 if letter.job == "evaluate_trained" or (step and letter.verb) else 0)


def turn_seed(seed: int, number: int) -> int:
    """The seed of a round, as every run has it."""
    return seed_of(seed, "turn", number)


def clause_of(error: BaseException) -> Clause:
    """What leaves of an error: one word."""
    if isinstance(error, RefusedByPolicy):
        return error.clause if error.clause in get_args(Clause) else "error"  # type: ignore[return-value]
    return next((clause for kind, clause in _CLAUSES if isinstance(error, kind)), "error")
