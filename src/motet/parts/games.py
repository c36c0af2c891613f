"""What players of a game see and choose: how good a model is, a move, and what a move stands for.

What clients do is safe under vmap. Knows models, examples, and agents with actions in [-1, 1]. Does not
know what is played for.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial

import torch
from torch import Tensor
from torch.func import vmap

from motet.client import Batch, Data, Task, metric_sums
from motet.parts import agents
from motet.vec import Vec, unstack

_AT_ONCE = 8  # models scored together


def outlook(task: Task, predict: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """Loss and accuracy of a predictor; for numbers, 1 / (1 + loss) stands in for the accuracy."""
    sums = metric_sums(task, predict, batch)
    loss = sums["loss"] / sums["n"]
    share = sums["right"].sum() / sums["n"] if task.kind == "classes" else 1 / (1 + loss)
    return torch.stack([loss, share])


def outlook_at_home(task: Task, w: Vec, data: Data) -> Tensor:
    """Of a model on the client's validation examples, or on those it trains on where it has no others."""
    val, train = data.val, data.all
    live = torch.cat([val.live, train.live * (val.live.sum() == 0)])
    batch = Batch(torch.cat([val.x, train.x]), torch.cat([val.y, train.y]), live)
    return outlook(task, task.at_home(partial(task.predict, w), data), batch)


def accuracies(task: Task, models: Vec, batch: Batch) -> Tensor:
    """Of stacked models (many, …) on the same examples: (many,)."""

    def one(w: Vec) -> Tensor:
        return outlook(task, partial(task.predict, w), batch)[1]

    if task.dense and task.stackable:
        found: Tensor = vmap(one, chunk_size=_AT_ONCE)(models)
        return found
    many = len(next(iter(models.values())))
    return torch.stack([one(w) for w in unstack(models, many)])


def every(batch: Batch, most: int) -> Batch:
    """At most so many of the examples, evenly spaced; all of them if `most` is 0."""
    step = max(1, -(-len(batch) // most)) if most else 1
    return Batch(batch.x[::step], batch.y[::step], batch.live[::step])


def move(
    agent: agents.Agent,
    last: tuple[Tensor, Tensor, Tensor],
    now: Tensor,
    seed: Tensor | int,
    settings: agents.AgentSettings,
    since: int = 0,
) -> tuple[Tensor, agents.Agent]:
    """A player's action: remember which state the last (state, action, reward) led to, learn, and act on it.

    Moves are remembered once `since` of them have been made and forgotten.
    """
    (state, action, reward), when = last, agent["acted"] > since
    reward, agent = agents.surprise(agent, reward, settings, when)
    agent = agents.remember(agent, state, action, reward, now, when)
    return agents.act(agents.learn(agent, seed, settings), now, seed, settings)


def seated(seats: dict[str, int], players: Set[str], many: int) -> dict[str, int] | None:
    """Who has which of `many` seats: newcomers get free ones or those of players who left; None if too few.

    >>> seated({"a": 0, "b": 1}, {"b", "c"}, 2)
    {'b': 1, 'c': 0}
    """
    new = sorted(players - set(seats))
    if len(seats) + len(new) > many:
        seats = {c: k for c, k in seats.items() if c in players}
    free = [k for k in range(many) if k not in set(seats.values())]
    if len(new) > len(free):
        return None
    return seats | dict(zip(new, free, strict=False))


def onto(action: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """[-1, 1] onto low … high, affinely.

    >>> onto(torch.tensor([-1.0, 0.0, 1.0]), 1, 20).tolist()
    [1.0, 10.5, 20.0]
    """
    return low + (action + 1) / 2 * (high - low)


def shares(action: Tensor, floor: float = 0.0) -> Tensor:
    """[-1, 1]^n onto the simplex: in proportion to (a + 1) / 2, or to what that is between `floor` and 1.

    >>> shares(torch.tensor([0.0, 1.0])).tolist(), shares(torch.tensor([-1.0, 1.0]), 0.25).tolist()
    ([0.3333333333333333, 0.6666666666666666], [0.2, 0.8])
    """
    u = onto(action.double(), floor, 1)
    u = u if float(u.detach().sum()) > 0 else torch.ones_like(u)  # whoever wants nobody gets everybody
    return u / u.sum()


def mixture(models: Vec, p: Tensor) -> Vec:
    """Of stacked models (many, …), the mean with weights p."""
    return models.map(lambda v, _: torch.tensordot(p, v.to(p.dtype), dims=1).to(v.dtype))
