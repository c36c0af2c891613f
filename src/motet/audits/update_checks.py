"""Who sends updates without work behind them, or says it has more examples than it has: found in recorded replies.

An update is how a reply differs from what was sent. Zero updates, updates that were sent before, updates that share no
direction with anybody's, one's own earlier ones included (noise), two clients with the same updates, and weights that
exceed the rows are named, each with the number that shows it.
Knows updates and weights of clients. Does not know models, data or scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import torch

from motet.audits.recorded_replies import RecordedAsk
from motet.core import Client
from motet.guard.pairs.chain import float_leaves, origin, update_of

Array = np.ndarray[Any, Any]
_NOTHING = 1e-6  # of the median length of updates: shorter ones are zero
_SAME = 1e-5  # of a length: updates that differ by less are the same
_MOST_ROUNDS = 50  # rounds whose updates are compared, evenly spaced over none: the first ones
_NOISE = 0.3  # of what is usual: a client whose updates agree less with all others and with its own is noise
_USUAL = 0.1  # agreement that others must have, so that noise can be told from them
_NEAR = 0.25  # of the next smallest distance: two clients that are nearer have the same rows
_CLOSE = 0.1  # distance (1 - cosine) that two clients with the same rows have at most
_SHARE = 0.5  # of the rounds in which something must hold
_MORE = 1.01  # times its rows: a weight above is inflated


@dataclass
class Updates:
    """Updates of each client, round by round, and what they weighed."""

    sent: list[dict[Client, Array]] = field(default_factory=list)  # by round: {client: update}
    moved: list[Array | None] = field(
        default_factory=list
    )  # by round: how the model that is sent moved before it
    weights: list[dict[Client, float]] = field(default_factory=list)
    last: Array | None = None

    def add(self, asks: Sequence[RecordedAsk]) -> None:
        """The updates of a round: replies to the ask that got most numbers."""
        if len(self.sent) >= _MOST_ROUNDS:
            return
        found = [(r, {c: flat_update(v, r.ask.sent_to(c)) for c, v in r.replies.items()}) for r in asks]
        found = [(r, u) for r, u in found if u and all(len(v) > 1 for v in u.values())]
        if not found:
            return
        recorded, updates = max(found, key=lambda pair: max(map(len, pair[1].values())))
        message = flat(recorded.ask.send) if recorded.ask.each is None else np.zeros(0)
        known = self.last is not None and len(message) and message.shape == self.last.shape
        self.moved.append(message - self.last if known else None)  # type: ignore[operator]
        self.last = message
        self.sent.append(updates)
        own = recorded.ask.weights is None  # else the method says what replies weigh
        self.weights.append(dict(recorded.weights) if own else {})

    def of(self, client: Client) -> list[tuple[int, Array]]:
        return [(t, found[client]) for t, found in enumerate(self.sent) if client in found]

    @property
    def clients(self) -> list[Client]:
        return sorted({c for found in self.sent for c in found})


def flat(tree: Any) -> Array:
    values = float_leaves(tree)[0]
    return torch.cat([v.double().reshape(-1) for v in values]).numpy() if values else np.zeros(0)


def flat_update(reply: Any, sent: Any) -> Array:
    values = float_leaves(reply)[0]
    return torch.cat(update_of(values, origin(reply, sent))).numpy() if values else np.zeros(0)


def named_by_updates(updates: Updates, noised: bool = False) -> dict[Client, str]:
    """Who is named for what its updates show. Where all updates are `noised` for privacy, nobody is named for noise:
    an honest client with few rows has most of it."""
    found: dict[Client, str] = {}
    usual = usual_length(updates)
    for c in updates.clients:
        if why := idle(updates.of(c), usual) or replayed(updates, c):
            found[c] = why
    working = [c for c in updates.clients if c not in found]
    found |= {} if noised else noise(updates, working)
    return found | same_rows(updates, [c for c in working if c not in found])


def usual_length(updates: Updates) -> float:
    lengths = [float(np.linalg.norm(u)) for found in updates.sent for u in found.values()]
    return float(np.median([v for v in lengths if v > 0] or [0.0]))


def idle(own: Sequence[tuple[int, Array]], usual: float) -> str:
    zero = sum(float(np.linalg.norm(u)) <= _NOTHING * usual for _, u in own)
    if not own or zero < max(1.0, _SHARE * len(own)):
        return ""
    return f"free rider: its update is zero in {zero} of {len(own)} rounds"


def replayed(updates: Updates, client: Client) -> str:
    """Whether updates are those that the client sent before, or how the model moved before."""
    own, again = updates.of(client), 0
    for k, (t, u) in enumerate(own):
        length = float(np.linalg.norm(u))
        before = [v for _, v in own[:k] if v.shape == u.shape]
        if (moved := updates.moved[t]) is not None and moved.shape == u.shape:
            before.append(moved)
        again += any(length and float(np.linalg.norm(u - v)) <= _SAME * length for v in before)
    if len(own) < 2 or again < _SHARE * (len(own) - 1):
        return ""
    return f"free rider: in {again} of {len(own)} rounds it sends an update that was there before"


def noise(updates: Updates, clients: Sequence[Client]) -> dict[Client, str]:
    """Clients whose updates agree with nobody's, not even with their own of the round before."""
    agreement = {c: agrees(updates, c) for c in clients}
    known = {c: a for c, a in agreement.items() if a is not None}
    if len(known) < 3:
        return {}
    found = {}
    for c, (others, own) in known.items():
        rest = [a for d, a in known.items() if d != c]
        usual = float(np.median([max(a) for a in rest]))
        if usual > _USUAL and max(others, own) < _NOISE * usual:
            found[c] = (
                f"free rider: its updates are noise (they agree with others' by {others:.2f} and with its own by "
                f"{own:.2f}; usual is {usual:.2f})"
            )
    return found


def agrees(updates: Updates, client: Client) -> tuple[float, float] | None:
    """Mean cosine of a client's updates with the mean of others', and with its own of the round before."""
    with_others, with_own, before = [], [], None
    for t, u in updates.of(client):
        rest = [v for c, v in updates.sent[t].items() if c != client and v.shape == u.shape]
        if rest:
            with_others.append(cosine(u, np.mean(rest, 0)))
        if before is not None and before.shape == u.shape:
            with_own.append(cosine(u, before))
        before = u
    return (float(np.mean(with_others)), float(np.mean(with_own))) if with_others and with_own else None


def cosine(a: Array, b: Array) -> float:
    lengths = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0


def same_rows(updates: Updates, clients: Sequence[Client]) -> dict[Client, str]:
    """Pairs whose updates are far nearer to each other than to anybody else's."""
    far: dict[tuple[Client, Client], float] = {}
    for a, b in combinations(clients, 2):
        both = [
            1 - cosine(f[a], f[b]) for f in updates.sent if a in f and b in f and f[a].shape == f[b].shape
        ]
        if both:
            far[a, b] = float(np.mean(both))
    found: dict[Client, str] = {}
    for (a, b), d in far.items():
        others = [v for pair, v in far.items() if pair != (a, b) and {a, b} & {*pair}]
        if d <= _CLOSE and others and d < _NEAR * min(others):
            for one, other in ((a, b), (b, a)):
                found[one] = f"duplicate: its updates point where {other}'s do (cosine {1 - d:.4f})"
    return found


# ---- numbers of examples ----


def named_by_weights(
    updates: Updates,
    rows: Mapping[Client, float],
    lighter: Mapping[Client, Sequence[Array]],
    own: Mapping[Client, int],
) -> dict[Client, str]:
    """Who weighs more than its rows, and who weighs far more than others to their loss."""
    found = {}
    stated = (
        {c: max(w.get(c, 0.0) for w in updates.weights) for c in updates.clients} if updates.weights else {}
    )
    for c, weight in stated.items():
        if c in rows and weight > _MORE * rows[c] > 0:
            found[c] = f"inflated: it counts as {weight:g} examples and holds {rows[c]:g}"
    level = 1 - 0.05 / max(len(lighter), 1)  # all intervals hold at once
    for c, gains in lighter.items():
        total = np.sum(gains, 0)
        others = np.delete(total, own[c]) if c in own else total
        low, high = t_interval(others, level)
        if low > 0:
            gain = f"{others.mean():.3g} ({low:.3g} to {high:.3g})"
            said = f"if it counted as the median client, others would gain {gain}"
            found[c] = f"{found[c]}; {said}" if c in found else f"weighs too much: {said}"
    return found


def t_interval(values: Array, level: float = 0.95) -> tuple[float, float]:
    """The interval of a mean over sites; everything where there are fewer than two."""
    from scipy import special

    if len(values) < 2:
        return -np.inf, np.inf
    reach = (
        float(special.stdtrit(len(values) - 1, (1 + level) / 2)) * values.std(ddof=1) / np.sqrt(len(values))
    )
    return float(values.mean() - reach), float(values.mean() + reach)
