"""Gradient inversion: an example from the update of a client that trained with this example alone.

Where the first layer is linear and has a bias, its input can be read off: the rows of the weights' update are the
input times the bias's (Phong et al. 2018). Otherwise an input is searched whose gradient points where the update does
(Geiping et al. 2020, cosine distance and total variation), and the label is that whose bias rose (Zhao et al. 2020).
One example is the easiest case for the attacker: an update of many examples mixes them.
After masks the server has whole numbers modulo 2^64 that look drawn at random; the attack reads them as an update.
Knows updates, networks and masks. Does not know runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from motet.audits.attack_figures import Figure, clopper_pearson
from motet.audits.recorded_replies import Recorder
from motet.client import Batch, ClientData, Task, seed_of
from motet.core import Client, Method, Turn
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.errors import MotetError
from motet.guard.masks.in_process import LocalSum
from motet.guard.pairs.chain import Chain, Leaving, float_leaves, with_floats
from motet.vec import Vec

RECOVERED = 0.9  # correlation with the example from which it counts as recovered
_FEWEST = 6  # numbers of an example: guesses at random reach the correlation with less than 1 % of such
_STEPS = 300  # of the search
_SMOOTH = 1e-3  # what total variation counts
_OTHERS = 2  # clients beside the attacked one in a masked sum


@dataclass(frozen=True)
class OneExample:
    """One example, and the update that a client sent which trained with it alone."""

    x: Tensor  # as the network sees it
    y: Tensor
    sent: Vec
    reply: Vec
    private: Vec | None = None  # the same of a client that trained by private steps, where the run has them


def one_example(method: Method, task: Task, data: ClientData, row: int, seed: int) -> OneExample:
    """Let a client with one training row take part in the first round; ValueError where nothing can be inverted."""
    train = data.train.take()
    rows = Batch(train.x[row : row + 1], train.y[row : row + 1], torch.ones(1))
    single = ClientData(rows, data.val, data.val, data.columns)
    sent, reply = first_round(method, single, seed)
    how = replace(single, noise=data.noise, private=data.private)
    private = first_round(method, how, seed)[1] if data.private else None
    x = task.pixels.normalise(rows.x) if task.pixels else rows.x
    return OneExample(x[0].float(), rows.y[0], sent, reply, private)


def first_round(method: Method, single: ClientData, seed: int) -> tuple[Vec, Vec]:
    """What a client was sent, and its reply."""
    loop = Loop({"one": single})
    engine = Recorder(loop, loop)
    state = start(engine, method, Turn(-1, ["one"], ["one"], seed))
    play(engine, method, state, Turn(0, ["one"], ["one"], seed_of(seed, "inversion")))
    for asked in engine.asks:
        sent, reply = asked.ask.sent_to("one"), asked.replies.get("one")
        if isinstance(sent, Vec) and isinstance(reply, Vec) and list(sent) == list(reply):
            return sent, reply
    raise ValueError("no reply of its first round is a model of the form that was sent")


# ---- the attack ----


def inverted(task: Task, sent: Vec, reply: Vec, shape: Sequence[int]) -> Tensor:
    """The example that an update seems to be of."""
    update = reply - sent
    found = first_linear(update, math.prod(shape))
    if found:
        weight, bias = (update[k].double() for k in found)
        return (bias @ weight / (bias @ bias).clamp(min=1e-30)).reshape(*shape).float()
    return searched(task, sent, update, shape)


def first_linear(update: Vec, inputs: int) -> tuple[str, str] | None:
    """Names of weights and bias of a linear layer that sees the example itself."""
    for name, v in update.items():
        bias = f"{name.removesuffix('weight')}bias"
        if name.endswith("weight") and v.ndim == 2 and v.shape[1] == inputs and bias in update:
            return name, bias
        if v.ndim > 1:
            return None  # another layer comes first
    return None


def searched(task: Task, w: Vec, update: Vec, shape: Sequence[int]) -> Tensor:
    """An input whose gradient points where the update does."""
    bias = next((k for k in task.head if k.endswith("bias")), None)
    label = update[bias].argmax() if bias and task.kind == "classes" else torch.zeros(())
    names = [k for k in update if k not in task.norms]
    goal = torch.cat([-update[k].reshape(-1) for k in names])
    generator = torch.Generator().manual_seed(0)
    with (
        torch.enable_grad(),
        sdpa_kernel(SDPBackend.MATH),
    ):  # torch's quick attention can be derived once only
        x = torch.randn(1, *shape, generator=generator).mul_(0.1).requires_grad_()
        weights = {k: v.detach().clone().requires_grad_(k in names) for k, v in w.items()}
        steps = torch.optim.Adam([x], lr=0.1)
        for _ in range(_STEPS):
            steps.zero_grad()
            loss = task.loss(Vec(weights), Batch(x, label[None], torch.ones(1)))
            slopes = torch.autograd.grad(
                loss, [weights[k] for k in names], create_graph=True, allow_unused=True
            )
            flat = torch.cat(
                [torch.zeros_like(weights[k]).reshape(-1) if g is None else g.reshape(-1)
                 for k, g in zip(names, slopes, strict=True)]
            )  # fmt: skip
            cost = 1 - torch.nn.functional.cosine_similarity(flat, goal, dim=0) + _SMOOTH * variation(x)
            cost.backward()  # type: ignore[no-untyped-call]
            steps.step()
    return x.detach()[0]


def variation(x: Tensor) -> Tensor:
    if x.ndim < 4:
        return x.new_zeros(())
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()


# ---- what guards leave of an update ----


def after_chain(chain: Chain, example: OneExample, seed: int) -> Vec:
    """The reply as it arrives through guards that clip, compress or add noise."""
    message, _ = chain.leave(example.reply, Leaving(example.sent, 1.0, seed), {})
    came: Vec = chain.arrive(message, example.sent)
    return came


def after_masks(example: OneExample, bits: int, span: float) -> Vec:
    """What the server has of a reply in a masked sum of three: whole numbers, read as numbers of a reply."""
    values = float_leaves(example.reply)[0]
    flat = torch.cat([v.double().reshape(-1) for v in values]).numpy()
    step = LocalSum(bits, span, recorded=True)
    inputs = {"one": (flat, 1.0)} | {f"other {i}": (np.zeros_like(flat), 1.0) for i in range(_OTHERS)}
    server, _ = step.run(inputs)
    message = next(note for kind, client, note in step.view if kind == "masked" and client == "one")
    numbers = server.terms.numbers
    words = np.frombuffer(message, numbers.dtype)[:-1]
    signed = words.view(np.int64 if bits == 64 else np.int32).astype(np.float64) * 2.0**-numbers.fraction
    parts = torch.split(torch.from_numpy(signed), [v.numel() for v in values])
    shaped = [p.reshape(v.shape).to(v.dtype) for p, v in zip(parts, values, strict=True)]
    found: Vec = with_floats(example.reply, shaped)
    return found


# ---- figures ----


def correlation(a: Tensor, b: Tensor) -> float:
    """Of two examples; 0 where one is flat."""
    x, y = (v.double().reshape(-1) - v.double().mean() for v in (a, b))
    lengths = float(x.norm() * y.norm())
    found = float(x @ y) / lengths if lengths > 0 and math.isfinite(lengths) else 0.0
    return found if math.isfinite(found) else 0.0


@dataclass(frozen=True)
class Inversions:
    """What was found of some examples under one guard."""

    guard: str
    truth: list[Tensor]
    found: list[Tensor]
    guessed: Tensor  # the mean example, which needs no update

    def figure(self) -> Figure:
        good = [correlation(t, f) for t, f in zip(self.truth, self.found, strict=True)]
        guess = [correlation(t, self.guessed) for t in self.truth]
        right, many = sum(r > RECOVERED for r in good), len(good)
        low, high = clopper_pearson(right, many)
        by_guess = sum(r > RECOVERED for r in guess) / many
        more = {
            "guard": self.guard,
            "correlation": float(np.median(good)),
            "guess_correlation": float(np.median(guess)),
            "examples": many,
            "first": {
                "shape": list(self.truth[0].shape),
                "truth": self.truth[0].reshape(-1).tolist(),
                "found": scaled(self.found[0], self.truth[0]).reshape(-1).tolist(),
            },
        }
        on = f"update of one example, {self.guard}"
        what = f"share recovered (correlation above {RECOVERED:g})"
        return Figure("gradient inversion", on, "server", what, right / many, low, high, by_guess,
                      f"{many} examples", more)  # fmt: skip


def scaled(found: Tensor, truth: Tensor) -> Tensor:
    """With the truth's mean and spread, so that pictures can be compared; numbers that are not finite are 0."""
    clean = torch.nan_to_num(found.double(), nan=0.0, posinf=0.0, neginf=0.0)
    spread = clean.std() if clean.std() > 0 else torch.ones((), dtype=torch.float64)
    return (clean - clean.mean()) / spread * truth.double().std() + truth.double().mean()


def inversions(
    method: Method,
    task: Task,
    data: dict[Client, ClientData],
    guards: dict[str, Callable[[OneExample, int], Vec]],
    many: int,
    seed: int,
) -> list[Inversions]:
    """Invert updates of so many examples, drawn over all clients, under each guard."""
    if (numbers := math.prod(next(iter(data.values())).train.shape)) < _FEWEST:
        raise ValueError(
            f"an example has {numbers} numbers, and fewer than {_FEWEST} are recovered by chance"
        )
    rng = np.random.default_rng(seed_of(seed, "inverted rows"))
    clients = sorted(data)
    guessed = torch.stack([_seen(task, data[c]).mean(0) for c in clients]).mean(0)
    examples = []
    for k in range(many):
        client = clients[int(rng.integers(len(clients)))]
        examples.append(
            one_example(method, task, data[client], int(rng.integers(data[client].n)), seed_of(seed, k))
        )
    return [
        Inversions(
            name,
            [e.x for e in examples],
            [inverted(task, e.sent, leave(e, k), e.x.shape) for k, e in enumerate(examples)],
            guessed,
        )
        for name, leave in guards.items()
    ]


def _seen(task: Task, data: ClientData) -> Tensor:
    """A client's validation examples as the network sees them."""
    x = (data.val if len(data.val) else data.train).take().x
    return (task.pixels.normalise(x) if task.pixels else x).float()


REASONS = (
    MotetError,
    ValueError,
    KeyError,
    AttributeError,
    TypeError,
)  # why a method's update cannot be inverted
