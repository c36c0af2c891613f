"""The flare engine: clients are organisations, asked by letters over NVIDIA FLARE's Collab group calls.

An ask becomes one letter for each site, sent to all of them at once. A site that does not answer in time, or
whose process is gone, is absent: for the rest of the job it is not asked again. A site whose reply cannot be what
was asked for is excluded, with the reason: it is not asked again, in later jobs neither. Fewer than `min_replies`
answers and the round does not count. What a client keeps never comes here: `keeps` holds only the label of the
version that is at the client, so that a letter can say from which one the client is to start.
Knows letters, labels and who is there. Does not know what happens at a site.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from motet.client.visit import name_of
from motet.core import SIDES, Ask, Client, Method, Part, Tree, Turn, is_solo
from motet.engines.evaluate import See, evaluation_request
from motet.engines.expected_replies import ExpectedReplies, odd_forms, outsized
from motet.engines.file_letters import Files, batches, lacking
from motet.engines.letters import BEGINS_ANEW, JOB_LEARNS, LEARN, Label, Letter, LetterJob, Reply, asked_in
from motet.engines.loop import Loop, all_finite, stacked
from motet.engines.masked_asks import MaskSettings, masked_mean
from motet.engines.masked_scores import masked_scores
from motet.engines.meter import Meter
from motet.engines.site_scores import ScoreRules
from motet.errors import MotetError
from motet.guard.pairs.chain import ArrivedWrong
from motet.text import printable, round_name
from motet.wire import FileNames, WireError, named

_SHORT = 1000  # bytes; a refusal that is one word is shorter
_AGAIN = (
    3  # times that a letter is repeated: a site may begin anew, and lack files, and lose some of them again
)
Received = Callable[..., None]
"""Writes down replies that came: by client, then job, verb, learn, round and ask."""
Summed = tuple[list[Client], float]  # whose replies, and the largest weight
Post = Callable[[Mapping[Client, bytes]], tuple[dict[Client, bytes], dict[Client, str]]]
"""Carries letters; brings back the replies that came, and why the others did not."""


class TooFew(MotetError):
    """Fewer sites answered than a round needs; the round does not count, and can be tried again."""


class Flare(Loop):
    """A Loop whose clients live elsewhere."""

    name = "flare"
    meter: Meter

    def __init__(
        self,
        clients: Sequence[Client],
        post: Post,
        run: str = "",
        recipe: Mapping[str, Any] | None = None,
        *,
        present: Sequence[Client] | None = None,
        min_replies: int = 1,
        limit: int = 256 << 20,
        expect: ExpectedReplies | None = None,
        explain: Callable[[str], str] = str,
        lasting: Container[str] = (),
    ) -> None:
        super().__init__({})
        self.clients = sorted(clients)
        self.post, self.run, self.recipe = post, run, dict(recipe or {})
        self.min_replies, self.limit, self.expect = min_replies, limit, expect
        self.explain, self.lasting = explain, lasting  # refusals in words, and those that stay refusals
        self.present = set(clients if present is None else present)
        self.number = 0  # of the next ask within the round
        # Numbers of rows of each site by part, as they were agreed on before training, else as they were first said:
        # weights in means, whatever a later reply says. Sites that are `uncounted` say none, and weigh 1.
        self.rows: dict[Client, dict[str, int]] = {}
        self.uncounted: set[Client] = set()
        self.away: dict[Client, str] = {}  # who did not answer last time, and why
        self.refusals: dict[Client, str] = {}  # what each site refused last, and why
        self.excluded: dict[Client, str] = {}  # whose reply cannot be what was asked for, and why
        self.anew: dict[Client, int] = {}  # who gave up what it kept, and in which round
        self.masks: MaskSettings | None = None  # of a run whose means are masked sums
        self.unit = 0.0  # the largest weight, where numbers of rows stay at sites: all rows together
        self.hides_scores = False  # whether scores come in masked sums alone
        self.scorings: Counter[tuple[int, str]] = Counter()  # of such sums, by round and part
        self.spreads: dict[str, dict[str, Any]] = {}  # of scores over sites, the last ones by part
        self.summed: dict[Label, Summed] = {}  # whose replies were to be unmasked together, by ask
        self.received: Received = lambda *_, **__: None
        self.meter = Meter()
        self.names = FileNames()

    # ---- asks ----

    def begin(self, method: Method, turn: Turn) -> None:
        super().begin(method, turn)
        self.number = 0

    def replies(self, ask: Ask) -> Iterator[tuple[Client, Tree]]:
        """Replies that can be used, in the order of names; what is kept at each site has a new label."""
        label = (self.turn.number, self.number)
        self.number += 1
        found = self.call_sites(
            "verb", ask.messages(), verb=name_of(ask.verb), learn=ask.learn, number=label[1]
        )
        whole = self.arrived(ask, {c: r for c, r in found.items() if not r.spoilt})
        whole = self.without(whole, self.of_other_form(ask, {c: r.tree for c, r in whole.items()}))
        finite = {c: r for c, r in whole.items() if all_finite(r.tree)}
        finite = self.without(finite, outsized(ask, {c: r.tree for c, r in finite.items()}))
        came = [c for c in found if c not in self.excluded]
        idle = len(self.present.difference(ask.to)) if self.is_any_form(ask) else 0
        self.check_enough(self.where(ask.verb), len(came) + idle, len(ask.to) + idle)
        for client in came:
            if client not in finite:
                self.refused.append((client, name_of(ask.verb), self.turn.number))
                continue
            self.rows.setdefault(client, {}).setdefault("train", finite[client].n)
            self.keeps.put(client, label)
            yield client, finite[client].tree

    def mean(self, ask: Ask) -> Tree:
        return super().mean(ask) if self.masks is None else masked_mean(self, ask, self.masks)

    def guarded(self, ask: Ask, client: Client, reply: Tree, weight: float) -> Tree:
        return reply  # it went through guards at its site

    def arrived(self, ask: Ask, replies: Mapping[Client, Reply]) -> dict[Client, Reply]:
        """Replies as sites' guards let them be read; who sent what no guard made is excluded."""
        if self.chain is None or not self.guards(ask):
            return dict(replies)
        found, wrong = dict[Client, Reply](), dict[Client, str]()
        for client, reply in replies.items():
            try:
                found[client] = replace(reply, tree=self.chain.arrive(reply.tree, ask.sent_to(client)))
            except ArrivedWrong as e:
                wrong[client] = f"its reply is not what was asked for: {e}"
        self.without(replies, wrong)
        return found

    def of_other_form(self, ask: Ask, replies: Mapping[Client, Tree]) -> dict[Client, str]:
        """Whose replies are not of the form that a blank client's reply has, and why."""
        like = self.expect.like(self.method, self.turn, ask) if self.expect else None
        own = getattr(ask.verb, "check", None)
        return odd_forms(replies, like, own, loose=ask.learn == "all", any_form=self.is_any_form(ask))

    def is_any_form(self, ask: Ask) -> bool:
        """Whether replies may differ from client to client, and nothing is made of all of them together: who is there
        and was not asked then counts as one that answered."""
        return is_solo(ask.verb) and ask.learn == "all"

    def check_enough(self, what: str, came: int, asked: int) -> None:
        if came < (need := min(self.min_replies, asked)):
            away = "; ".join(f"{c}: {why}" for c, why in sorted(self.away.items())) or "no site gave a reason"
            raise TooFew(f"{what}: {came} of {asked} sites answered, and {need} must ({away})")

    def enough_left(self) -> bool:
        """Whether a round can still count: sites that are away may come back, excluded ones do not."""
        left = set(self.clients) - set(self.excluded)
        return len(left) >= max(1, min(self.min_replies, len(self.clients)))

    def weight(self, ask: Ask, client: Client) -> float:
        return float(self.rows[client]["train"] if ask.weights is None else ask.weights[client])

    def evaluate(
        self,
        method: Method,
        state: Tree,
        turn: Turn,
        part: Part,
        sides: Sequence[str] = SIDES,
        see: See | None = None,
    ) -> tuple[list[Client], Tree]:
        """As in the loop; predictions stay at their sites, so `see` is shown none."""
        self.method, self.turn = method, turn
        sent = {c: evaluation_request(method, state, method.download(state, c), sides) for c in self.clients}
        like = self.expect.scores(method, self.turn, sent[self.clients[0]]) if self.expect else None
        if self.hides_scores:
            return masked_scores(self, "evaluate", sent, part, like=like)
        found = self.sound_scores(self.call_sites("evaluate", sent, part=part), like, part)
        there = len(self.present)  # a site whose policy keeps scores back is there all the same
        self.check_enough(f"scores, {round_name(self.turn.number)}", there, len(self.clients))
        return stacked(found.items())

    def evaluate_trained(self, method: Method, asks: list[Ask], turn: Turn) -> tuple[list[Client], Tree]:
        self.method, self.turn = method, dataclasses.replace(turn, number=turn.number - 1)
        if self.hides_scores:
            sent, verb = {c: m for ask in asks for c, m in ask.messages().items()}, name_of(asks[0].verb)
            return masked_scores(self, "evaluate_trained", sent, "test", verb)
        found = {c: reply for ask in asks for c, reply in self.after_training(ask).items()}
        return stacked(self.sound_scores(found).items())

    def after_training(self, ask: Ask) -> dict[Client, Reply]:
        return self.call_sites("evaluate_trained", ask.messages(), verb=name_of(ask.verb), part="test")

    def sound_scores(
        self, found: Mapping[Client, Reply], like: Tree = None, part: Part | None = None
    ) -> dict[Client, Tree]:
        """Scores that can be scores, with the agreed numbers of rows, by side or (without `part`) by part.

        A minority of sites whose losses no sound model has is excluded; where they are more, training diverged.
        """
        trees = {c: r.tree for c, r in found.items()}
        trees = self.without(trees, odd_forms(trees, like))
        rules, sound, wrong = ScoreRules.of(self.method.task), dict[Client, Tree](), dict[Client, str]()
        for client, tree in trees.items():
            try:
                sides = {k: self.counted(rules, client, part or k, s) for k, s in by_side(tree).items()}
                sound[client] = sides
            except WireError as e:
                wrong[client] = f"its scores cannot be used: {e}"
        sound = self.without(sound, wrong)
        lost = {c for c, tree in sound.items() if any(map(rules.lost, tree.values()))}
        few = len(lost) <= (len(sound) - 1) // 2
        return self.without(
            sound, dict.fromkeys(lost if few else (), "its loss is one that no sound model has")
        )

    def counted(self, rules: ScoreRules, client: Client, part: str, scores: Tree) -> Tree:
        if client in self.uncounted:
            return rules.check(scores, counted=False)
        known = self.rows.setdefault(client, {})
        checked = rules.check(scores, known.get(part))
        known.setdefault(part, int(checked["n"]))
        return checked

    def personal_models(self, method: Method, state: Tree, turn: Turn) -> Iterator[tuple[Client, Tree]]:
        """Every site saves its personal model; none of them comes here."""
        self.method, self.turn = method, turn
        found = self.call_sites("save_model", {c: method.download(state, c) for c in self.clients})
        odd = [c for c, r in found.items() if not isinstance(r.tree, dict) or r.tree.get("saved") is not True]
        self.without(found, dict.fromkeys(odd, "it did not say whether it saved its model"))
        yield from ()

    # ---- letters ----

    def call_sites(
        self,
        job: LetterJob,
        sent: Mapping[Client, Tree],
        own: Mapping[Client, dict[str, Any]] | None = None,
        **more: Any,
    ) -> dict[Client, Reply]:
        """What sites that are there answer, by name; who fails to answer is not asked again in this job. `own`: what
        letters of single sites have besides."""
        sent, files = self.with_names({c: tree for c, tree in sent.items() if c in self.present})
        own = own or {}
        letters = {c: self.letter(job, c, tree, **more | own.get(c, {})) for c, tree in sent.items()}
        if not letters:
            return {}
        came, failed = self.posted(job, letters, **more)
        for _ in range(_AGAIN):
            wanted = lacking(came, files)
            anew = [c for c, message in came.items() if self.begins_anew(c, message)]
            if not wanted and not anew:
                break
            failed |= self.bring(wanted, files)
            again = {
                c: self.letter(job, c, sent[c], **more | own.get(c, {}))
                for c in {*anew, *wanted}
                if c not in failed
            }
            more_came, more_failed = self.posted(job, again, **more)
            came, failed = came | more_came, failed | more_failed
        return self.usable(job, letters, came, failed, more.get("verb") or job)

    def usable(
        self,
        job: LetterJob,
        letters: Mapping[Client, bytes],
        came: Mapping[Client, bytes],
        failed: Mapping[Client, str],
        what: str,
    ) -> dict[Client, Reply]:
        """Replies that can be read and are no refusals; the others are written down by site."""
        found: dict[Client, Reply] = {}
        for client in sorted(letters):
            if client in failed or client not in came:
                self.lose(client, failed.get(client, "no answer"))
                continue
            try:
                found[client] = self.read(job, came[client])
            except WireError as e:
                self.exclude(client, f"its reply to {what} cannot be read: {e}")
        refusals = {c: r.refusal for c, r in found.items() if r.refusal}
        for client in found:
            if client in refusals:
                self.refuse(job, client, refusals[client])
            else:
                self.away.pop(client, None)
        return {c: r for c, r in found.items() if c not in refusals}

    def with_names(self, sent: Mapping[Client, Tree]) -> tuple[dict[Client, Tree], dict[Client, Files]]:
        """What is sent to each client, with names in place of files, and its files; only published models are files."""
        if not self.method.has_public_models:
            return dict(sent), {}
        found = {c: named(tree, self.names) for c, tree in sent.items()}
        return {c: tree for c, (tree, _) in found.items()}, {c: files for c, (_, files) in found.items()}

    def bring(
        self, wanted: Mapping[Client, Sequence[str]], files: Mapping[Client, Files]
    ) -> dict[Client, str]:
        """Send files to those that lack them; who did not answer, and why. A site that cannot store a file says so
        when the letter that names it comes again."""
        failed: dict[Client, str] = {}
        for some in batches(wanted, files):
            letters = {c: self.letter("files", c, tree) for c, tree in some.items() if c not in failed}
            failed |= self.posted("files", letters)[1]
        return failed

    def posted(self, job: LetterJob, letters: Mapping[Client, bytes], **more: Any) -> tuple[
        dict[Client, bytes], dict[Client, str]
    ]:  # fmt: skip
        """Letters carried; what came is written down before anything is read of it."""
        if not letters:
            return {}, {}
        came, failed = self.post(letters)
        learn, verb = LEARN[more["learn"]] if "learn" in more else "", more.get("verb", "")
        self.received(came, job, verb, learn, self.turn.number, more.get("number", 0))
        for client, letter in letters.items():
            what, up = verb if job == "verb" else job, length(came.get(client))
            self.meter.count(client, what, learn or JOB_LEARNS[job], up, len(letter))
        return came, failed

    def read(self, job: LetterJob, message: bytes) -> Reply:
        return Reply.read(message, self.limit) if job == "verb" else Reply.read_for(job, message)

    def refuse(self, job: LetterJob, client: Client, refusal: str) -> None:
        """Remember a site's refusal. One that its policy repeats for ever keeps it out of training; who refuses to be
        scored, or to save its model, trains all the same."""
        if job == "verb" and refusal in self.lasting:
            self.exclude(client, self.explain(refusal))
            return
        self.refusals[client] = self.explain(refusal)
        if job == "verb":
            self.away[client] = self.refusals[client]

    def begins_anew(self, client: Client, message: bytes) -> bool:
        """Whether a site says that it gave up what it kept; it is then asked as one that has just joined."""
        if len(message) > _SHORT or self.keeps.get(client) is None:
            return False
        try:
            if Reply.read(message).refusal != BEGINS_ANEW:
                return False
        except WireError:
            return False
        self.keeps.forget(client)
        self.anew[client] = self.turn.number
        return True

    def letter(self, job: LetterJob, client: Client, tree: Tree, **more: Any) -> bytes:
        versions = self.keeps.versions.get(client, {})
        base = self.keeps.get(client, self.turn.number)
        spare = tuple(v for v in versions.values() if v != base)
        at, seed = self.turn.number, self.turn.seed
        return Letter(
            job, self.run, at, seed=seed, recipe=self.recipe, send=tree, base=base, spare=spare, **more
        ).pack()

    def asked_now(self, job: LetterJob, verb: str, asked: bytes) -> bytes:
        """What the masks of a sum in this turn follow from."""
        turn = self.turn
        return asked_in(
            Letter(job, self.run, turn.number, seed=turn.seed, verb=verb, recipe=self.recipe), asked
        )

    def lose(self, client: Client, why: str) -> None:
        self.present.discard(client)
        self.away[client] = printable(why)

    def exclude(self, client: Client, why: str) -> None:
        """From now on the run goes without a site, and says why."""
        self.lose(client, why)
        self.excluded[client] = self.away[client]

    def without(self, found: Mapping[Client, Any], wrong: Mapping[Client, str]) -> dict[Client, Any]:
        """What was found, but for the sites that are excluded for these reasons."""
        for client, why in wrong.items():
            self.exclude(client, why)
        return {c: v for c, v in found.items() if c not in wrong}


def length(reply: Any) -> int:
    """Bytes of what came; what is no message counts as an empty one."""
    return len(reply) if isinstance(reply, bytes) else 0


def by_side(tree: Tree) -> dict[str, Tree]:
    if not isinstance(tree, dict):
        raise WireError("they are not given by side")
    return tree
