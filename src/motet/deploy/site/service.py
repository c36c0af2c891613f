"""A site's service: what one organisation's process does with the letters that it gets.

    service = SiteService("hospital-a", folder, SiteTable(...), Policy(), site_key(folder / "key"))
    reply = Reply.read(service.answer(Letter("verb", ...).pack()))

A verb is found by its name among those of the site's own installed motet; nobody can send code. What the
client keeps is stored together with the reply, before the reply leaves: a repeated ask gets the same reply
again, and nothing is advanced twice. Whatever comes in, an answer goes out: a reply or a refusal.
Knows letters, verbs and what the site stores. Does not know how letters are carried.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from msgspec.structs import replace

from motet.client.visit import Visit, single_threaded
from motet.core import Method, Tree, Verb
from motet.data.federated import FederatedData
from motet.deploy.agreement.site_replies import own_version
from motet.deploy.site.disclosure import check_scored, with_enough_rows, without_counts
from motet.deploy.site.needs import needs_of
from motet.deploy.site.personal_models import PersonalModel, save_personal_model
from motet.deploy.site.policy import Policy, RefusedByPolicy, check_weights, find_verb, read_recipe
from motet.deploy.site.reset import was_reset
from motet.deploy.site.storage import EncryptedState, Ledger, SiteRows
from motet.deploy.site.table import SiteTable
from motet.engines.evaluate import predictions, predictions_trained, scores_at_home
from motet.engines.letters import BEGINS_ANEW, Label, Letter, Reply
from motet.engines.loop import all_finite
from motet.errors import MotetError
from motet.runs.build import method_of, task_of
from motet.runs.recipe import Recipe
from motet.wire import WireError, pack, unpack

log = logging.getLogger("motet.site")
_EXPECTED = (MotetError, OSError, MemoryError, ImportError)
# A letter that is well formed and makes no sense, or an error of ours; so the log says where.
_UNEXPECTED = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError
)  # fmt: skip
_HISTORY = 2  # rounds whose versions stay, besides those that the server names


class SiteService:
    """Answers letters for one client. `data` is the site's table, or federated data with this client alone."""

    def __init__(
        self,
        name: str,
        folder: Path,
        data: FederatedData | SiteTable,
        policy: Policy | None = None,
        key: bytes = b"",
    ) -> None:
        self.name, self.folder = name, Path(folder)
        self.policy, self.key = policy or Policy(), key
        self.rows = SiteRows(self.folder, data, self.policy, key)
        self.ledger = Ledger(self.folder / "ledger.tsv")
        self.jobs: dict[str, Callable[[Letter], bytes]] = {
            "describe": self.describe, "measure": self.measure, "layout": self.use_layout,
            "offer": self.check_offer, "verb": self.run_verb, "evaluate": self.evaluate,
            "evaluate_trained": self.evaluate, "save_model": self.save_model,
        }  # fmt: skip
        self.one_at_a_time = threading.Lock()
        self._method: tuple[bytes, FederatedData, Recipe, Method] | None = None

    def answer(self, message: bytes) -> bytes:
        """The reply to a letter, or a refusal with the reason; never an exception for what came in."""
        what = "a message"
        with self.one_at_a_time, single_threaded():
            try:
                letter = Letter.read(message, self.policy.letter_bytes)
                what = f"{letter.job} {letter.verb!r} of run {letter.run!r}, round {letter.round}"
                return self.jobs[letter.job](letter)
            except _EXPECTED as e:
                log.warning("%s: refused %.300s: %s", self.name, what, e)
                anew = isinstance(e, RefusedByPolicy) and e.clause == BEGINS_ANEW
                return Reply(refusal=BEGINS_ANEW if anew else f"{self.name}: {e}").pack()
            except _UNEXPECTED as e:
                log.exception("%s: cannot answer %.300s", self.name, what)
                return Reply(refusal=f"{self.name}: {type(e).__name__}: {e}").pack()

    # ---- before a run: what the site holds, and whether it takes part ----

    def describe(self, letter: Letter) -> bytes:
        return self.sent(letter, Reply(self.rows.describe() | own_version()))

    def measure(self, letter: Letter) -> bytes:
        if not self.policy.sums:
            raise RefusedByPolicy(
                "this site's policy lets no sums of columns leave.\nhint: data.scale=client", "sums"
            )
        return self.sent(letter, Reply(self.rows.measure(letter.send)))

    def use_layout(self, letter: Letter) -> bytes:
        """Lay the rows out as all sites agreed."""
        began = bool(self.states(letter).labels())
        client_data = self.rows.use_layout(letter.run, letter.send, began).clients_data[self.name]
        rows = {"train": client_data.n, "val": len(client_data.val), "test": len(client_data.test)}
        return self.sent(letter, Reply(rows if self.policy.counts else {}))

    def check_offer(self, letter: Letter) -> bytes:
        """Whether a whole run is within the policy; a dry run at this site shows what the run needs."""
        rounds = letter.send.get("rounds") if isinstance(letter.send, dict) else None
        if type(rounds) is not int or rounds < 1:
            raise WireError("an offer says how many rounds it wants")
        method, name = self.method(letter), letter.recipe["method"]["name"]
        needs = needs_of(method, self.rows.of(letter.run))
        spent = self.ledger.rounds - {(letter.run, str(r)) for r in range(-1, rounds)}
        if wrong := self.policy.objections(name, needs, rounds, len(spent)):
            raise RefusedByPolicy("; ".join(wrong))
        return Reply({"accepted": True}).pack()

    # ---- during a run ----

    def run_verb(self, letter: Letter) -> bytes:
        """A verb: its reply leaves, and what it keeps stays here."""
        states, digest = self.states(letter), digest_of(letter)
        if (seen := states.get(letter.label)) is not None and (known := unpack(seen))["digest"] == digest:
            return bytes(known["reply"])
        method = self.method(letter)
        verb, visit = find_verb(method, letter.verb), self.visit(letter, method)
        check_weights(method, letter.send)
        if not self.ledger.allows(letter, self.policy.rounds):
            raise RefusedByPolicy(
                f"this site's policy has rounds = {self.policy.rounds}, and they are used up"
            )
        keep = self.keep(letter, states, visit)
        tree, after = visit.perform(verb, letter.send, keep)
        fine = all_finite(tree)
        reply = self.sent(letter, self.weighted(letter, tree) if fine else Reply(spoilt=True))
        states.put(letter.label, pack({"digest": digest, "keep": after if fine else keep, "reply": reply}))
        states.forget(outdated(states.labels(), letter))
        return reply

    def evaluate(self, letter: Letter) -> bytes:
        """Metrics of models as they are or as training would leave them; predictions stay, nothing is stored."""
        method = self.method(letter)
        made: Verb = partial(predictions, method)
        if letter.job == "evaluate_trained":
            made = partial(predictions_trained, method, find_verb(method, letter.verb))
        parts = ("val", "test") if letter.job == "evaluate_trained" else (letter.part,)
        check_scored(self.rows.of(letter.run).clients_data[self.name], parts, self.policy.least_rows)
        scores = self.tested(letter, method, partial(scores_at_home, method, self.name, made))
        return self.sent(
            letter, self.weighted(letter, scores if self.policy.counts else without_counts(scores))
        )

    def save_model(self, letter: Letter) -> bytes:
        """The personal model becomes a file here; only that it was made leaves."""
        method = self.method(letter)
        model: PersonalModel = self.tested(
            replace(letter, part="test"), method, partial(PersonalModel.of, method)
        )
        assert self._method is not None
        path = self.folder / "models" / quote(letter.run, safe="")
        save_personal_model(path, model, self._method[2], self.rows.of(letter.run), letter.round, self.name)
        return self.sent(letter, Reply({"saved": True}))

    def tested(self, letter: Letter, method: Method, job: Verb) -> Tree:
        """What a job gives that also sees the examples on which this client is scored."""
        visit = self.visit(letter, method)
        check_weights(method, letter.send)
        keep = self.keep(letter, self.states(letter), visit)
        return visit.perform(job, letter.send, keep, visit.test(letter.part))[0]

    # ---- what the jobs need ----

    def method(self, letter: Letter) -> Method:
        """The method that the letter names, of this site's own motet, as far as the policy allows it."""
        federated, wanted = self.rows.of(letter.run), pack(letter.recipe)
        if self._method is None or self._method[0] != wanted or self._method[1] is not federated:
            recipe = read_recipe(letter.recipe, self.policy)
            method = method_of(recipe, task_of(recipe, federated))
            self._method = wanted, federated, recipe, method
        if wrong := self.policy.problems(letter, letter.recipe["method"]["name"]):
            raise RefusedByPolicy("; ".join(wrong))
        return self._method[3]

    def visit(self, letter: Letter, method: Method) -> Visit:
        own = self.rows.of(letter.run).clients_data[self.name]
        client_data = with_enough_rows(own, self.policy.least_rows)
        return Visit(method, self.name, client_data, letter.seed, letter.round)

    def states(self, letter: Letter) -> EncryptedState:
        return EncryptedState(self.rows.run_folder(letter.run), letter.run, self.key)

    def keep(self, letter: Letter, states: EncryptedState, visit: Visit) -> Tree:
        if letter.base is None:
            return visit.joined()
        if (known := states.get(letter.base)) is None:
            number, ask = letter.base
            if was_reset(states.folder):
                text = f"what was kept of run {letter.run} was set aside by `motet federation reset`; it begins anew"
                raise RefusedByPolicy(text, clause=BEGINS_ANEW)
            raise RefusedByPolicy(f"nothing is kept here of ask {ask} of round {number} of run {letter.run}")
        return unpack(known)["keep"]

    def weighted(self, letter: Letter, tree: Tree) -> Reply:
        n = self.rows.of(letter.run).clients_data[self.name].n
        return Reply(tree, n if self.policy.counts else 1)

    def sent(self, letter: Letter, reply: Reply) -> bytes:
        """The reply as bytes, within the policy's limit, and written into the ledger before it leaves."""
        packed = reply.pack()
        if len(packed) > self.policy.reply_bytes:
            raise RefusedByPolicy(self.policy.too_large(letter.verb or letter.job, len(packed)))
        self.ledger.write(letter, len(packed))
        return packed


def digest_of(letter: Letter) -> str:
    """Tells a repeated ask from another one with the same label."""
    return sha256(replace(letter, spare=()).pack()).hexdigest()


def outdated(labels: set[Label], letter: Letter) -> set[Label]:
    """Versions that nobody can go back to any more."""
    named = {letter.label, *letter.spare} | ({letter.base} if letter.base else set())
    return {v for v in labels - named if v[0] < letter.round - _HISTORY}
