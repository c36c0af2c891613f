"""What the players of a game see and choose: scores of models, actions, and what actions stand for.

What clients do is safe under vmap. Knows models, examples, and agents with actions in [-1, 1]. Does not
know what a player is rewarded for.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from motet.client import Batch, Data, Task, slices
from motet.parts import agents, players
from motet.parts.agents import AgentSettings
from motet.vec import Vec, unstack

Tree = dict[str, Any]
AGENT = AgentSettings(  # of the server and of the clients, unless a method says otherwise
    gamma=0.0, warm_up=0, initial_action=0.9, noise_rate=1.0, noise_decay=200, normalise_rewards=True
)
_AT_ONCE = 8  # models scored together


def loss_and_accuracy(task: Task, predict: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """Of a predictor on some examples, (2,); where targets are numbers, 1 / (1 + loss) stands for the accuracy."""
    many, loss, right = torch.zeros(()), torch.zeros(()), torch.zeros(())
    for part in slices(batch):
        scores = predict(part.x)
        many = many + part.live.sum()
        loss = loss + (task.per_example_loss(scores, part.y, part.live) * part.live).sum()
        right = right + ((scores.argmax(-1) == part.y) * part.live).sum() if task.kind == "classes" else right
    loss = loss / many
    return torch.stack([loss, right / many if task.kind == "classes" else 1 / (1 + loss)])


def local_loss_and_accuracy(task: Task, w: Vec, data: Data) -> Tensor:
    """Of a model on the client's validation examples, or on its training examples where it has no others."""
    val, train = data.val, data.all
    live = torch.cat([val.live, train.live * (val.live.sum() == 0)])
    batch = Batch(torch.cat([val.x, train.x]), torch.cat([val.y, train.y]), live)
    return loss_and_accuracy(task, task.at_home(partial(task.predict, w), data), batch)


def accuracies(task: Task, models: Vec, batch: Batch) -> Tensor:
    """Of stacked models (many, …) on the same examples: (many,)."""

    def one(w: Vec) -> Tensor:
        return loss_and_accuracy(task, partial(task.predict, w), batch)[1]

    if task.dense and task.stackable:
        return torch.as_tensor(vmap(one, chunk_size=_AT_ONCE)(models))
    many = len(next(iter(models.values())))
    return torch.stack([one(w) for w in unstack(models, many)])


def evenly_spaced(batch: Batch, most: int) -> Batch:
    """At most so many of the examples, evenly spaced; all of them if `most` is 0."""
    step = max(1, -(-len(batch) // most)) if most else 1
    return Batch(batch.x[::step], batch.y[::step], batch.live[::step])


def move(
    agent: agents.Agent,
    last: tuple[Tensor, Tensor, Tensor],
    now: Tensor,
    seed: Tensor | int,
    spec: agents.AgentSpec,
    since: int = 0,
) -> tuple[Tensor, agents.Agent]:
    """A player's next action. `last` is the last (state, action, reward), `now` the state that it led to:
    remember it, learn, and act on `now`.

    The first `since` + 1 calls remember nothing: there is no transition yet.
    """
    (state, action, reward), when = last, agent["acted"] > since
    reward, agent = agents.relative_reward(agent, reward, spec, when)
    agent = agents.remember(agent, state, action, reward, now, when)
    return players.act(players.learn(agent, seed, spec), now, seed, spec)


def initial_leader(spec: agents.AgentSpec, seed: Tensor) -> Tree:
    """What a leader keeps before its first action: its agent, the last state, action and reward, and the state
    that they led to."""
    s, a, r = torch.zeros(spec.states), torch.zeros(spec.actions), torch.zeros(())
    return {"agent": players.initial(spec, seed), "s": s, "a": a, "r": r, "now": s.clone()}


def lead(me: Tree, bonus: Tensor, seed: Tensor, spec: agents.AgentSpec) -> tuple[Tensor, Tree]:
    """A leader's action, and what it keeps. The last action has earned a bonus since.

    The first action is not remembered: there was no state before it.
    """
    last = me["s"], me["a"], me["r"] + bonus
    a, agent = move(me["agent"], last, me["now"], seed, spec, since=1)
    return a, me | {"agent": agent, "s": me["now"], "a": a}


def assign_seats(seats: dict[str, int], players: Set[str], many: int) -> dict[str, int] | None:
    """Which of `many` positions in a state or action belongs to which player; None if there are too few.

    Newcomers get free seats; where these are too few, the seats of players who have left are free too.

    >>> assign_seats({"a": 0, "b": 1}, {"b", "c"}, 2)
    {'b': 1, 'c': 0}
    """
    new = sorted(players - set(seats))
    if len(seats) + len(new) > many:
        seats = {c: k for c, k in seats.items() if c in players}
    free = [k for k in range(many) if k not in set(seats.values())]
    if len(new) > len(free):
        return None
    return seats | dict(zip(new, free, strict=False))


def rescale(action: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """[-1, 1] onto low … high, affinely.

    >>> rescale(torch.tensor([-1.0, 0.0, 1.0]), 1, 20).tolist()
    [1.0, 10.5, 20.0]
    """
    return low + (action + 1) / 2 * (high - low)


def rescale_log(action: Tensor, low: float, high: float) -> Tensor:
    """[-1, 1] onto low … high, so that equal differences are equal ratios.

    >>> rescale_log(torch.tensor([-1.0, 0.0, 1.0]), 0.001, 0.1).mul(1000).round().tolist()
    [1.0, 10.0, 100.0]
    """
    return low * (high / low) ** ((action + 1) / 2)


def shares(action: Tensor, floor: float = 0.0) -> Tensor:
    """An action in [-1, 1]^n as n weights that sum to one: in proportion to the action on the scale floor … 1.

    >>> shares(torch.tensor([0.0, 1.0])).tolist(), shares(torch.tensor([-1.0, 1.0]), 0.25).tolist()
    ([0.3333333333333333, 0.6666666666666666], [0.2, 0.8])
    """
    u = rescale(action.double(), floor, 1)
    u = u if float(u.detach().sum()) > 0 else torch.ones_like(u)  # nobody has weight: all have the same
    return u / u.sum()


def weighted_mean(replies: Any, p: Tensor) -> Any:
    """Of stacked models, or of any stacked trees of numbers (many, …), sum p_i w_i."""
    return pytree.tree_map(lambda v: torch.tensordot(p, v.to(p.dtype), dims=1).to(v.dtype), replies)
