"""A site's desk: what one organisation's process does when it is asked.

    desk = Desk("hospital-a", folder, federation, Policy(), site_key(folder / "key"))
    reply = Reply.read(desk.answer(Letter("verb", ...).pack()))

A verb is looked up by name among those of the site's own installed motet; nobody can send code. What the
client keeps is stored together with the reply, before the reply leaves: a repeated ask gets the same reply
again, and nothing is advanced twice. Whatever comes in, an answer goes out: a reply or a refusal.
Knows letters, verbs and the site's safe. Does not know how letters travel.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from motet.core import Method, Tree, Turn, Unfit, Verb, is_verb
from motet.engines.calm import calm
from motet.engines.judge import Job, judge, portrait, rehearsal
from motet.engines.letters import Label, Letter, Reply
from motet.engines.loop import Loop, VerbFailed, all_finite
from motet.federation.policy import Policy, Refused
from motet.federation.safe import Safe, SafeError
from motet.runs import recipe as recipes
from motet.runs.course import method_of, task_of
from motet.runs.recipe import Recipe, RecipeError
from motet.tasks.federation import Federation
from motet.tasks.nets import NetError
from motet.wire import WireError, pack, unpack

log = logging.getLogger("motet.site")
_EXPECTED = (
    Refused, WireError, VerbFailed, SafeError, RecipeError, NetError, Unfit, OSError, MemoryError, ImportError,
)  # fmt: skip
_HISTORY = 2  # rounds whose versions stay, besides those that the server names


class Desk:
    """Answers letters for one client. `federation` holds this client's home alone."""

    def __init__(
        self, name: str, folder: Path, federation: Federation, policy: Policy | None = None, key: bytes = b""
    ) -> None:
        self.name, self.folder, self.federation = name, Path(folder), federation
        self.policy, self.key = policy or Policy(), key
        self.jobs: dict[str, Callable[[Letter], bytes]] = {
            "verb": self.perform, "judge": self.score, "rehearsal": self.score, "portrait": self.paint,
        }  # fmt: skip
        self.one_at_a_time = threading.Lock()
        self._method: tuple[bytes, Method] | None = None

    def answer(self, message: bytes) -> bytes:
        """The reply to a letter, or a refusal with the reason; never an exception for what came in."""
        what = "a message"
        with self.one_at_a_time, calm():
            try:
                letter = Letter.read(message, self.policy.letter_bytes)
                what = f"{letter.job} {letter.verb} of run {letter.run}, round {letter.round}"
                if letter.job not in self.jobs:
                    raise Refused(f"{letter.job} is not for a desk whose data are laid out")
                return self.jobs[letter.job](letter)
            except _EXPECTED as e:
                log.warning("%s: refused %s: %s", self.name, what, e)
                return Reply(refusal=f"{self.name}: {e}").pack()

    # ---- the jobs ----

    def perform(self, letter: Letter) -> bytes:
        """A verb: its reply leaves, and what it keeps stays here."""
        safe, digest = self.safe(letter), mark(letter)
        if (seen := safe.get(letter.label)) is not None and (record := unpack(seen))["digest"] == digest:
            return bytes(record["reply"])
        method = self.method(letter)
        act, engine = look_up(method, letter.verb), self.engine(letter, method)
        keep = self.keep(letter, safe, engine)
        tree, after = engine.guarded(act, self.name, letter.send, keep, engine.data(self.name))
        fine = all_finite(tree)
        reply = self.sized(self.weighed(tree) if fine else Reply(spoilt=True))
        safe.put(letter.label, pack({"digest": digest, "keep": after if fine else keep, "reply": reply}))
        safe.forget(stale(safe.labels(), letter))
        return reply

    def score(self, letter: Letter) -> bytes:
        """Sums of scores, or what training would lead to; nothing is stored."""
        method = self.method(letter)
        job: Job = partial(judge, method)
        if letter.job == "rehearsal":
            job = partial(rehearsal, method, look_up(method, letter.verb))
        return self.sized(self.weighed(self.examined(letter, method, job)))

    def paint(self, letter: Letter) -> bytes:
        """The personal model; only that it was made leaves."""
        method = self.method(letter)
        self.examined(letter, method, partial(portrait, method))
        return Reply(tree={"saved": True}).pack()

    def examined(self, letter: Letter, method: Method, job: Job) -> Tree:
        engine = self.engine(letter, method)
        keep, part = self.keep(letter, self.safe(letter), engine), letter.part
        exam = engine.examinee(self.name, "test" if part == "test" else "val")
        return engine.guarded(job, self.name, letter.send, keep, exam)[0]

    # ---- what the jobs need ----

    def method(self, letter: Letter) -> Method:
        """The method that the letter names, of this site's own motet, as the policy lets it."""
        wanted = pack(letter.recipe)
        if self._method is None or self._method[0] != wanted:
            recipe = read_recipe(letter.recipe, self.policy)
            self._method = wanted, method_of(recipe, task_of(recipe, self.federation))
        if wrong := self.policy.problems(letter, letter.recipe["method"]["name"]):
            raise Refused("; ".join(wrong))
        return self._method[1]

    def engine(self, letter: Letter, method: Method) -> Loop:
        """A loop of one client: what it does is what is done here."""
        engine = Loop(self.federation.homes)
        engine.method = method
        engine.turn = Turn(letter.round, [self.name], [self.name], letter.seed)
        return engine

    def safe(self, letter: Letter) -> Safe:
        return Safe(self.folder / "runs" / quote(letter.run, safe=""), letter.run, self.key)

    def keep(self, letter: Letter, safe: Safe, engine: Loop) -> Tree:
        if letter.base is None:
            return engine.joined(self.name)
        if (record := safe.get(letter.base)) is None:
            round_, number = letter.base
            raise Refused(f"nothing is kept here of ask {number} of round {round_} of run {letter.run}")
        return unpack(record)["keep"]

    def weighed(self, tree: Tree) -> Reply:
        return Reply(tree, self.federation.homes[self.name].n if self.policy.counts else 1)

    def sized(self, reply: Reply) -> bytes:
        packed = reply.pack()
        if len(packed) > self.policy.reply_bytes:
            raise Refused(
                f"the reply has {len(packed)} bytes, and this site's policy has reply_bytes = "
                f"{self.policy.reply_bytes}"
            )
        return packed


def look_up(method: Method, name: str) -> Verb:
    """A verb of the method by its name; nothing else of it can be called."""
    found = getattr(type(method), name, None) if name.isidentifier() else None
    if found is None or not callable(found) or not is_verb(found):
        raise Refused(f"{name!r:.80} is no verb of {type(method).__name__}")
    bound: Verb = getattr(method, name)
    return bound


def read_recipe(told: Tree, policy: Policy) -> Recipe:
    """The recipe that a letter holds. It names things of this site's own motet; what would import modules
    by name is refused, unless the site's owner trusts it."""
    if set(told) != {"method", "net", "seed"} or not all(
        isinstance(told[k], dict) for k in ("method", "net")
    ):
        raise Refused("the letter's recipe must have the sections method and net, and a seed")
    words = [v for part in (told["method"], told["net"]) for v in part.values() if isinstance(v, str)]
    if odd := [w for w in words if ":" in w and w not in policy.trusted]:
        raise Refused(
            f"{odd[0]!r:.80} would import a module, and this site's policy does not list it as trusted"
        )
    return recipes.check(told)


def mark(letter: Letter) -> str:
    """Tells a repeated ask from another one with the same label."""
    return sha256(replace(letter, spare=()).pack()).hexdigest()


def stale(labels: set[Label], letter: Letter) -> set[Label]:
    """Versions that nobody can go back to any more."""
    named = {letter.label, *letter.spare} | ({letter.base} if letter.base else set())
    return {v for v in labels - named if v[0] < letter.round - _HISTORY}
