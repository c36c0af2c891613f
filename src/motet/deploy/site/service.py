"""A site's service: what one organisation's process does with the letters that it gets.

    service = SiteService("hospital-a", folder, SiteTable(...), Policy(), site_key(folder / "key"))

A verb is found by its name among those of the site's own installed motet; nobody can send code. What the
client keeps is stored together with the reply, before the reply leaves: a repeated ask gets the same reply
again, and nothing is advanced twice. Whatever comes in, an answer goes out: a reply or a refusal.
Knows letters, verbs and what the site stores. Does not know how letters are carried.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from motet.atomic import write_atomically
from motet.client import seed_of
from motet.client.visit import Visit, single_threaded
from motet.core import Method, Tree, Verb
from motet.data.federated import FederatedData
from motet.deploy.site.contract import (
    SERVER,
    Contract,
    check_whole,
    clause_of,
    protected_method,
    recipe_hash,
    round_of,
)
from motet.deploy.site.disclosure import check_scored, scores_to_say, with_enough_rows
from motet.deploy.site.guarding import left_through_guards
from motet.deploy.site.ledger import Ledger, LedgerLine, LedgerRolledBack
from motet.deploy.site.masking import SiteSums, SumRules, check_written
from motet.deploy.site.measured_numbers import numbers_left
from motet.deploy.site.needs import needs_of
from motet.deploy.site.noise import laplace_noise
from motet.deploy.site.offered_run import OfferedRun
from motet.deploy.site.own_scores import write_scores
from motet.deploy.site.personal_models import PersonalModel, save_personal_model
from motet.deploy.site.policy import Policy, RefusedByPolicy, check_weights, find_verb, read_recipe
from motet.deploy.site.publications import Publications
from motet.deploy.site.reset import was_reset
from motet.deploy.site.said_before import SaidBefore
from motet.deploy.site.score_noise import scoring
from motet.deploy.site.site_identity import SiteIdentity
from motet.deploy.site.storage import EncryptedState, SiteRows, outdated
from motet.deploy.site.stored_files import LacksFiles, StoredFiles
from motet.deploy.site.table import SiteTable
from motet.deploy.site.training_budget import spending
from motet.deploy.site.work_limits import limited
from motet.engines.evaluate import predictions, predictions_trained
from motet.engines.letters import BEFORE, BEGINS_ANEW, Letter, Reply, parts_scored
from motet.engines.loop import all_finite
from motet.engines.score_sums import score_names, score_numbers
from motet.errors import MotetError
from motet.runs.build import method_of, task_of
from motet.runs.recipe import Recipe
from motet.text import round_name
from motet.wire import WireError, pack, unpack

log = logging.getLogger("motet.site")
_EXPECTED = (MotetError, OSError, MemoryError, ImportError)
# A letter that is well formed and makes no sense, or an error of ours; so the log says where.
_UNEXPECTED = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError
)  # fmt: skip
_NAME = 200  # characters of a run's or a verb's name
CONTRACT = "contract.json"  # in a run's folder


class SiteService:
    """Answers letters for one client. `data` is the site's table, or federated data with this client alone."""

    def __init__(
        self,
        name: str,
        folder: Path,
        data: FederatedData | SiteTable,
        policy: Policy | None = None,
        key: bytes = b"",
        identity: SiteIdentity | None = None,
    ) -> None:
        self.name, self.folder = name, Path(folder)
        self.policy, self.key = policy or Policy(), key
        self.rows = SiteRows(self.folder, data, self.policy, key)
        self.secret = key or os.urandom(32)  # of the noise
        self.ledger = Ledger(self.folder)
        self.sums = SiteSums(name, identity, self.ledger)
        self.before = SaidBefore(name, self.rows, self.policy, self.sums)
        self.files = StoredFiles(self.folder / "files", self.secret, self.policy.stored_bytes)
        self.awaited: dict[str, frozenset[str]] = {}  # of each run: files that were asked for last
        self.publications = Publications(self.folder, key, self.policy, self.ledger)
        self.jobs: dict[str, Callable[[Letter], bytes]] = {
            "describe": self.say, "measure": self.say, "count": self.say, "layout": self.use_layout,
            "offer": self.check_offer, "verb": self.run_verb, "evaluate": self.evaluate,
            "evaluate_trained": self.evaluate, "save_model": self.save_model, "files": self.store_files,
            "mask": self.mask_step,
        }  # fmt: skip
        self.one_at_a_time = threading.Lock()
        self.line = LedgerLine()  # of the letter that is being answered
        self._contract: Contract | None = None
        self._method: tuple[str, FederatedData, Recipe, Method] | None = None

    def answer(self, message: bytes, caller: str = SERVER) -> bytes:
        """The reply to a letter, or a refusal with its clause; never an exception for what came in. `caller` is who
        sent it, as FLARE found out: the server alone is answered."""
        with self.one_at_a_time, single_threaded():
            self.line = LedgerLine(caller=caller[:_NAME])
            try:
                self.check_caller(caller)
                self.ledger.check_not_rolled_back()
                with self.limits():
                    letter = Letter.read(message, self.policy.letter_bytes)
                self.line = LedgerLine.about(letter, caller, letter.digest)
                self.check_name(letter)
                return self.jobs[letter.job](letter)
            except _EXPECTED as e:
                log.warning("%s: refused %.300s: %s", self.name, self.line.what, e)
                return self.refused(e, str(e))
            except _UNEXPECTED as e:
                log.exception("%s: cannot answer %.300s", self.name, self.line.what)
                return self.refused(e, f"{type(e).__name__}: {e}")

    def decline(self, objection: str, caller: str = SERVER) -> bytes:
        """The answer in a job in which this site takes no part; the objection may leave."""
        with self.one_at_a_time:
            self.line = LedgerLine(caller=caller[:_NAME])
            word = objection.partition(":")[0] if caller == SERVER else "caller"
            self.write_refusal(word, f"this site takes no part in the job: {objection}")
        return Reply(refusal=objection if caller == SERVER else word).pack()

    def refused(self, error: BaseException, why: str) -> bytes:
        """One word leaves; the reason stays in the log and in the ledger. Of files that are not here, their names."""
        self.write_refusal(clause := clause_of(error), why)
        return Reply(error.asked_for if isinstance(error, LacksFiles) else (), refusal=clause).pack()

    def write_refusal(self, clause: str, why: str) -> None:
        try:
            self.ledger.write(self.line.refused(clause, why))
        except (OSError, LedgerRolledBack):
            log.exception("%s: cannot write into the ledger", self.name)

    def check_caller(self, caller: str) -> None:
        if caller != SERVER:
            raise RefusedByPolicy(f"{caller[:_NAME]!r} asked, and only the server may", "caller")

    def check_name(self, letter: Letter) -> None:
        if len(letter.run) > _NAME or len(letter.verb) > _NAME:
            raise RefusedByPolicy(f"names of runs and verbs have at most {_NAME} characters", "letter")

    # ---- before a run: what the site holds, and whether it takes part ----

    def say(self, letter: Letter) -> bytes:
        with self.limits():
            reply = self.before.answer(letter)
        return self.sent(letter, reply)

    def use_layout(self, letter: Letter) -> bytes:
        """Lay the rows out as all sites agreed."""
        began = self.ledger.began(letter.run) or bool(self.states(letter).labels())
        with self.limits():
            client_data = self.rows.use_layout(letter.run, letter.send, began).clients_data[self.name]
        rows = {"train": client_data.n, "val": len(client_data.val), "test": len(client_data.test)}
        return self.sent(letter, Reply(rows if self.policy.counts is True else {}))

    def check_offer(self, letter: Letter) -> bytes:
        """Make the run's contract and store it, if the whole run is within the policy."""
        rounds = letter.send.get("rounds") if isinstance(letter.send, dict) else None
        if type(rounds) is not int or not 1 <= rounds < 1 << 40:
            raise WireError("an offer says how many rounds it wants")
        check_whole(method := self.method(letter))
        federated, layout = self.rows.of(letter.run), self.rows.layout_hash(letter.run)
        trial, own = self.publications.of(federated, layout, trial=True), federated.clients_data[self.name]
        with self.limits():
            needs = needs_of(method.at_site(trial), federated)
        sites = msgspec.convert(letter.send.get("sites", []), list[str])
        before = self.stored_contract(letter.run) if self.ledger.began(letter.run) else None
        assert self._method is not None
        offered = OfferedRun(letter, self._method[2], method, own, layout, rounds, needs, sites, trial)
        made = offered.contract(self.policy, self.ledger, before)
        write_atomically(self.contract_file(letter.run), made.stored(), private=True)
        self._contract = made
        self.line = replace(self.line, contract=made.hash)
        return self.sent(letter, Reply({"accepted": True}))

    # ---- during a run ----

    def agreed(self, letter: Letter) -> Contract:
        """The contract of the letter's run; a letter that it does not cover is refused."""
        if self._contract is None or self._contract.run != letter.run:
            self._contract = self.stored_contract(letter.run)
        if (contract := self._contract) is None:
            raise RefusedByPolicy(f"run {letter.run!r} was not offered to this site", "recipe")
        self.line = replace(self.line, contract=contract.hash)
        contract.check(letter, self.policy)
        if contract.layout != self.rows.layout_hash(letter.run):
            raise RefusedByPolicy(f"run {letter.run!r} was offered with another layout of columns", "layout")
        return contract

    def run_verb(self, letter: Letter) -> bytes:
        """A verb: its reply leaves, and what it keeps stays here."""
        contract, states = self.agreed(letter), self.states(letter)
        if (seen := states.get(letter.label)) and (known := unpack(seen))["digest"] == self.line.letter:
            return self.sent_again(self.sums.leaving(letter, self.line.letter, bytes(known["reply"])))
        contract.check_budget(letter, self.line.letter, self.ledger, self.policy)
        if contract.private:
            self.line = spending(self.line, contract.private, self.policy, self.ledger)
        letter, method, own = self.with_files(letter), self.method(letter), None
        if method.has_public_models:
            own = self.publications.of(self.rows.of(letter.run), contract.layout)
            method = method.at_site(own)
        verb, visit = find_verb(method, letter.verb), self.visit(letter, method)
        check_weights(method, letter.send, contract.weight)
        with self.limits():
            keep, guard = self.keep(letter, states, visit)
            tree, after = visit.perform(verb, letter.send, keep)
        if fine := all_finite(tree):
            tree = self.protected(letter, method, contract, tree)
            if contract.clip or "guard" in letter.recipe:
                tree, guard = left_through_guards(letter, method, contract, visit, tree, guard)
        if own:
            self.line = replace(self.line, model=own.said.what, epsilon=own.said.epsilon)
        reply = (self.weighted(letter, tree) if fine else Reply(spoilt=True)).pack()
        if own and sha256(reply).hexdigest() not in self.ledger.budgets:
            own.check_new()
        out = self.sent(letter, self.sums.leaving(letter, self.line.letter, reply))
        content = {"keep": after if fine else keep, "guard": guard, "reply": reply}
        states.put(letter.label, pack(content | {"digest": self.line.letter}))
        states.forget(outdated(states.labels(), letter))
        return out

    def protected(self, letter: Letter, method: Method, contract: Contract, tree: Tree) -> Tree:
        """A reply of losses or of a sketch with this site's noise, as far as such numbers are left."""
        if letter.verb not in method.measuring:
            return tree
        many = numbers_left(letter.verb, tree, contract, self.ledger)
        self.line = replace(self.line, numbers=many)
        if not contract.noise:
            return tree
        draw = laplace_noise(self.secret, self.line.letter, contract.noise)
        return method.noised(letter.verb, letter.send, tree, draw)

    def mask_step(self, letter: Letter) -> bytes:
        if letter.round == BEFORE:
            tree, written = self.sums.step(letter, SumRules.before(self.policy))
        else:
            contract = self.agreed(letter)
            contract.check_budget(letter, self.line.letter, self.ledger, self.policy)
            if exact := isinstance(letter.send, dict) and bool(letter.send.get("exact")):
                self.check_scores(letter, contract)
            sets = contract.sets_in_round(letter.verb, self.policy)
            tree, written = self.sums.step(letter, SumRules.of(contract, exact, sets))
        self.line = replace(self.line, **written)  # of the last step: whose replies are in the sum
        return self.sent(letter, Reply(tree))

    def check_scores(self, letter: Letter, contract: Contract) -> None:
        """Refuse a sum of scores that this site will not be in before it begins: nobody then waits for it."""
        if wrong := next(contract.of_scores(masked=True), None):
            raise RefusedByPolicy(wrong.text, wrong.clause)
        own = self.rows.of(letter.run).clients_data[self.name]
        check_scored(own, parts_scored(letter), self.policy.least_rows)

    def evaluate(self, letter: Letter) -> bytes:
        """Metrics of models as they are or as training would leave them; predictions stay, nothing is stored."""
        self.agreed(letter).check_budget(letter, self.line.letter, self.ledger, self.policy)
        letter, method, trained = (
            self.with_files(letter),
            self.method(letter),
            letter.job == "evaluate_trained",
        )
        made: Verb = partial(predictions, method)
        if trained:
            made = partial(predictions_trained, method, find_verb(method, letter.verb))
        own = self.rows.of(letter.run).clients_data[self.name]
        check_scored(own, parts_scored(letter), self.policy.least_rows)
        draw = laplace_noise(self.secret, f"scores {self.line.letter}", 1.0)
        found = self.tested(letter, method, scoring(self.policy, draw, method, self.name, made))
        write_scores(self.folder, letter.run, letter.round, "" if trained else letter.part, found)
        scores = scores_to_say(found, own, method.task.kind, self.policy, bool(letter.masked))
        if not letter.masked:
            return self.sent(letter, self.weighted(letter, scores))
        words = self.sums.exact(letter, score_numbers(scores))
        return self.sent(letter, Reply({"names": score_names(scores), "words": words}))

    def save_model(self, letter: Letter) -> bytes:
        """The personal model becomes a file here; only that it was made leaves."""
        self.agreed(letter).check_budget(letter, self.line.letter, self.ledger, self.policy)
        letter, method = self.with_files(letter), self.method(letter)
        letter = replace(letter, part="test")
        model: PersonalModel = self.tested(letter, method, partial(PersonalModel.of, method))
        assert self._method is not None
        path = self.folder / "models" / quote(letter.run, safe="")
        save_personal_model(path, model, self._method[2], self.rows.of(letter.run), letter.round, self.name)
        return self.sent(letter, Reply({"saved": True}))

    def store_files(self, letter: Letter) -> bytes:
        """Files that the last letter of this run named and that were not here."""
        self.agreed(letter).check_budget(letter, self.line.letter, self.ledger, self.policy)
        with self.limits():
            many = self.files.put_all(letter.send, self.awaited.get(letter.run, ()))
        return self.sent(letter, Reply({"stored": many}))

    def with_files(self, letter: Letter) -> Letter:
        """The letter with files in place of their names; those that are not here are asked for."""
        if self._contract is None or self._contract.rule("files") is None:
            return letter
        try:
            with self.limits():
                return replace(letter, send=self.files.filled(letter.send))
        except LacksFiles as e:
            self.awaited[letter.run] = frozenset(e.asked_for)
            raise

    def tested(self, letter: Letter, method: Method, job: Verb) -> Tree:
        """What a job gives that also sees the examples on which this client is scored."""
        visit = self.visit(letter, method)
        check_weights(method, letter.send, self._contract.weight if self._contract else 0.0)
        with self.limits():
            keep, _ = self.keep(letter, self.states(letter), visit)
            return visit.perform(job, letter.send, keep, visit.test(letter.part))[0]

    # ---- what the jobs need ----

    def method(self, letter: Letter) -> Method:
        """The method that the letter names, of this site's own motet; with noise, its losses are bounded, and with
        orders of this site's own its batches are even."""
        federated, wanted = self.rows.of(letter.run), recipe_hash(letter.recipe)
        if self._method is None or self._method[0] != wanted or self._method[1] is not federated:
            recipe = read_recipe(letter.recipe, self.policy)
            with self.limits():
                method = method_of(recipe, task_of(recipe, federated))
            made = protected_method(method, federated.clients_data[self.name].n, self.policy)
            self._method = wanted, federated, recipe, made
        return self._method[3]

    def contract_file(self, run: str) -> Path:
        return self.rows.run_folder(run) / CONTRACT

    def stored_contract(self, run: str) -> Contract | None:
        file = self.contract_file(run)
        return Contract.read(file.read_bytes()) if file.exists() else None

    def limits(self) -> AbstractContextManager[None]:
        return limited(self.policy.letter_seconds, self.policy.letter_memory)

    def visit(self, letter: Letter, method: Method) -> Visit:
        own = self.rows.of(letter.run).clients_data[self.name]
        client_data = with_enough_rows(own, self.policy.least_rows)
        if self._contract and self._contract.run == letter.run and self._contract.private:
            client_data = self._contract.private.protected(client_data)
        # runs with one seed have other orders too: else their sums could be of nearly the same replies
        secret = seed_of(self.secret.hex(), letter.run, letter.seed)
        seed = secret if self.policy.secret_orders else letter.seed
        return Visit(method, self.name, client_data, seed, round_of(letter))

    def states(self, letter: Letter) -> EncryptedState:
        return EncryptedState(self.rows.run_folder(letter.run), letter.run, self.key)

    def keep(self, letter: Letter, states: EncryptedState, visit: Visit) -> tuple[Tree, Tree]:
        """What the client keeps, and what its guards do."""
        if letter.base is None:
            return visit.joined(), {}
        if (known := states.get(letter.base)) is None:
            number, ask = letter.base
            if was_reset(states.folder):
                text = f"what was kept of run {letter.run} was set aside by `motet federation reset`; it begins anew"
                raise RefusedByPolicy(text, BEGINS_ANEW)
            raise RefusedByPolicy(
                f"nothing is kept here of ask {ask} of {round_name(number)} of run {letter.run}", "state"
            )
        content = unpack(known)
        return content["keep"], content.get("guard", {})

    def weighted(self, letter: Letter, tree: Tree) -> Reply:
        n = self.rows.of(letter.run).clients_data[self.name].n
        return Reply(tree, n if self.policy.counted(bool(letter.masked)) else 1)

    def sent(self, letter: Letter, reply: Reply | bytes) -> bytes:
        """The reply as bytes, within the policy's limit, and written into the ledger before it leaves."""
        packed = reply if isinstance(reply, bytes) else reply.pack()
        if len(packed) > self.policy.reply_bytes:
            wrong = self.policy.too_large(letter.verb or letter.job, len(packed))
            raise RefusedByPolicy(wrong.text, wrong.clause)
        return self.written(packed)

    def sent_again(self, packed: bytes) -> bytes:
        self.line = replace(self.line, again=True)
        return self.written(packed)

    def written(self, packed: bytes) -> bytes:
        self.line = replace(self.line, bytes=len(packed), sha256=sha256(packed).hexdigest())
        sets = self._contract.sets_in_round(self.line.verb, self.policy) if self._contract else 1
        self.ledger.write(self.line, partial(check_written, self.line, self.policy, self.ledger, sets))
        return packed
