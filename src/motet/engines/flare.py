"""The flare engine: clients are organisations, asked by letters over NVIDIA FLARE's Collab group calls.

An ask becomes one letter for each site, sent to all of them at once. A site that does not answer in time, or
whose process is gone, is absent: for the rest of the job it is not asked again. Fewer than `min_replies` answers
and the round does not count. What a client keeps never comes here: `keeps` holds only the label of the version
that is at the client, so that a letter can say from which one the client is to start.
Knows letters, labels and who is there. Does not know what happens at a site.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from motet.client.visit import name_of
from motet.core import SIDES, Ask, Client, Method, Part, Tree, Turn
from motet.engines.evaluate import See, evaluation_request
from motet.engines.expected_replies import ExpectedReplies
from motet.engines.letters import BEGINS_ANEW, Letter, LetterJob, Reply
from motet.engines.loop import Loop, all_finite, stacked
from motet.errors import MotetError
from motet.wire import WireError

_SHORT = 1000  # bytes; a refusal that is one word is shorter
Post = Callable[[Mapping[Client, bytes]], tuple[dict[Client, bytes], dict[Client, str]]]
"""Carries letters; brings back the replies that came, and why the others did not."""


class TooFew(MotetError):
    """Fewer sites answered than a round needs; the round does not count, and can be tried again."""


class Flare(Loop):
    """A Loop whose clients live elsewhere."""

    name = "flare"

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
    ) -> None:
        super().__init__({})
        self.clients = sorted(clients)
        self.post, self.run, self.recipe = post, run, dict(recipe or {})
        self.min_replies, self.limit, self.expect = min_replies, limit, expect
        self.present = set(clients if present is None else present)
        self.number = 0  # of the next ask within the round
        self.n: dict[Client, int] = {}  # number of examples of each site, from its last reply
        self.away: dict[Client, str] = {}  # who did not answer last time, and why
        self.anew: dict[
            Client, int
        ] = {}  # who gave up what it kept, and in which round; for the run's record

    # ---- asks ----

    def begin(self, method: Method, turn: Turn) -> None:
        super().begin(method, turn)
        self.number = 0

    def replies(self, ask: Ask) -> Iterator[tuple[Client, Tree]]:
        """Replies that can be used, in the order of names; what is kept at each site has a new label."""
        label = (self.turn.number, self.number)
        self.number += 1
        like = self.expect.like(self.method, self.turn, ask) if self.expect else None
        found = self.call_sites(
            "verb", ask.messages(), like, verb=name_of(ask.verb), learn=ask.learn, number=label[1]
        )
        self.check_enough(self.where(ask.verb), len(found), len(ask.to))
        for client, reply in found.items():
            if reply.spoilt or not all_finite(reply.tree):
                self.refused.append((client, name_of(ask.verb), self.turn.number))
                continue
            self.n[client] = reply.n
            self.keeps.put(client, label)
            yield client, reply.tree

    def check_enough(self, what: str, came: int, asked: int) -> None:
        if came < (need := min(self.min_replies, asked)):
            away = "; ".join(f"{c}: {why}" for c, why in sorted(self.away.items())) or "no site gave a reason"
            raise TooFew(f"{what}: {came} of {asked} sites answered, and {need} must ({away})")

    def weight(self, ask: Ask, client: Client) -> float:
        return float(self.n[client] if ask.weights is None else ask.weights[client])

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
        found = self.call_sites("evaluate", sent, like, part=part)
        there = len(self.present)  # a site whose policy keeps scores back is there all the same
        self.check_enough(f"scores, round {self.turn.number}", there, len(self.clients))
        return stacked((c, reply.tree) for c, reply in found.items())

    def evaluate_trained(self, method: Method, asks: list[Ask], turn: Turn) -> tuple[list[Client], Tree]:
        self.method, self.turn = method, dataclasses.replace(turn, number=turn.number - 1)
        found = {c: reply for ask in asks for c, reply in self.after_training(ask).items()}
        return stacked((c, reply.tree) for c, reply in found.items())

    def after_training(self, ask: Ask) -> dict[Client, Reply]:
        return self.call_sites("evaluate_trained", ask.messages(), verb=name_of(ask.verb), part="test")

    def personal_models(self, method: Method, state: Tree, turn: Turn) -> Iterator[tuple[Client, Tree]]:
        """Every site saves its personal model; none of them comes here."""
        self.method, self.turn = method, turn
        self.call_sites("save_model", {c: method.download(state, c) for c in self.clients})
        yield from ()

    # ---- letters ----

    def call_sites(
        self, job: LetterJob, sent: Mapping[Client, Tree], like: Tree = None, **more: Any
    ) -> dict[Client, Reply]:
        """What sites that are there answer, by name; who fails to answer is not asked again in this job."""
        letters = {c: self.letter(job, c, tree, **more) for c, tree in sent.items() if c in self.present}
        if not letters:
            return {}
        came, failed = self.post(letters)
        if anew := [c for c, message in came.items() if self.begins_anew(c, message)]:
            more_came, more_failed = self.post({c: self.letter(job, c, sent[c], **more) for c in anew})
            came, failed = came | more_came, failed | more_failed
        found: dict[Client, Reply] = {}
        for client in sorted(letters):
            if client in failed:
                self.lose(client, failed[client])
                continue
            try:
                reply = Reply.read(came[client], self.limit, like, loose=more.get("learn") == "all")
            except WireError as e:
                reply = Reply(refusal=f"its reply cannot be read: {e}")
            if reply.refusal:
                self.away[client] = reply.refusal
            else:
                found[client] = reply
                self.away.pop(client, None)
        return found

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

    def lose(self, client: Client, why: str) -> None:
        self.present.discard(client)
        self.away[client] = why


def group_calls(timeout: float) -> Post:
    """Letters carried by FLARE, from within a running job; every site has `timeout` seconds to answer."""
    from nvflare.collab import collab

    def post(letters: Mapping[Client, bytes]) -> tuple[dict[Client, bytes], dict[Client, str]]:
        groups: dict[bytes, list[Client]] = {}
        for client, letter in letters.items():
            groups.setdefault(letter, []).append(client)
        calls = [
            collab.get_clients(who)(blocking=False, timeout=timeout).answer(letter)
            for letter, who in groups.items()
        ]
        came: dict[Client, bytes] = {}
        failed: dict[Client, str] = {}
        for call in calls:
            came |= dict(call)
            failed |= {site: str(error.cause) for site, error in call.failures.items()}
        if collab.is_aborted:
            raise TooFew(f"FLARE ended the job, because a site's worker died or the server stops; {failed}")
        return came, failed

    return post
