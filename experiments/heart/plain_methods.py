"""APFL and MOON on Fed-Heart-Disease by a plain PyTorch loop with FL4Health's details: where do gaps come from.

    python -m experiments.heart.plain_methods

15 rounds of 100 steps by AdamW, whose state stays over rounds, with batches of 4. APFL: two logistic models whose
probabilities are mixed; alpha has a rate of its own and takes a step after the first batch of a round, with 0.02 alpha
added to its slope. MOON: a hidden layer of 10 units, dropout before the head, no contrast in the first round. Settings
are chosen by the validation loss of other seeds. Every hospital keeps the model of the round with its lowest validation
loss, after the mean was taken; beside it stand one round for all, and the last. All settings and seeds are trained side
by side, as a first axis of every tensor.
Knows the rows of the data set heart. Does not use motet's methods, engines or training loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from experiments.heart.plain_ditto import BATCH, ROUNDS, STEPS, hospitals
from torch import Tensor
from torch.nn.functional import cosine_similarity, dropout, softplus

TUNING, TABLE = (100, 101, 102), (42, 43, 44, 45, 46)  # seeds
RATES = (0.001, 0.01, 0.1)
LEAST = 1e-7  # of a probability in a logarithm
DECAY, BETAS, SMALL = 0.01, (0.9, 0.999), 1e-8  # torch's defaults of AdamW
Weights = list[Tensor]  # (copies, ...)


@dataclass
class Rows:
    """One hospital's rows, of every copy: (copies, rows, columns) and (copies, rows)."""

    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def batch(self, order: Tensor, step: int) -> tuple[Tensor, Tensor]:
        x, y = self.train
        many = -(-x.shape[1] // BATCH)  # an epoch's last batch has fewer rows
        rows = order[:, (step % many) * BATCH : (step % many) * BATCH + BATCH]
        return x.gather(1, rows[..., None].expand(-1, -1, x.shape[2])), y.gather(1, rows)


def stacked(seeds: tuple[int, ...], settings: int) -> list[Rows]:
    """Rows of each hospital, for each seed and, seed by seed, each setting."""
    drawn = [hospitals(seed) for seed in seeds]

    def part(hospital: int, name: str) -> tuple[Tensor, Tensor]:
        pairs = [getattr(of[hospital], name) for of in drawn for _ in range(settings)]
        return torch.stack([x for x, _ in pairs]), torch.stack([y[:, 0] for _, y in pairs])

    return [Rows(part(h, "train"), part(h, "val"), part(h, "test")) for h in range(4)]


def cost(p: Tensor, y: Tensor) -> Tensor:
    """Binary cross-entropy of each copy."""
    p = p.clamp(LEAST, 1 - LEAST)
    return -(y * p.log() + (1 - y) * (1 - p).log()).mean(1)


class AdamW:
    """torch's, with a rate of each copy."""

    def __init__(self, weights: Weights, rate: Tensor) -> None:
        self.rate, self.steps = rate, 0
        self.m, self.v = ([torch.zeros_like(w) for w in weights] for _ in range(2))

    def step(self, weights: Weights, grads: Weights) -> None:
        self.steps += 1
        for w, g, m, v in zip(weights, grads, self.m, self.v, strict=True):
            rate = self.rate.reshape(-1, *[1] * (w.ndim - 1))
            m.lerp_(g, 1 - BETAS[0])
            v.lerp_(g * g, 1 - BETAS[1])
            up, down = m / (1 - BETAS[0] ** self.steps), (v / (1 - BETAS[1] ** self.steps)).sqrt() + SMALL
            with torch.no_grad():
                w.mul_(1 - rate * DECAY).sub_(rate * up / down)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x @ weight + bias[:, None]


def first_weights(seeds: int, settings: int, *sizes: tuple[int, int]) -> Weights:
    """As torch draws a linear layer's; all settings of a seed begin alike."""
    found = []
    for inputs, outputs in sizes:
        for shape in ((inputs, outputs), (outputs,)):
            drawn = (2 * torch.rand(seeds, *shape) - 1) / inputs**0.5
            found.append(drawn.repeat_interleave(settings, 0))
    return [w.requires_grad_() for w in found]


def averaged(all_of: list[Weights], sizes: list[int]) -> None:
    with torch.no_grad():
        for same in zip(*all_of, strict=True):
            mean = sum(n * w for n, w in zip(sizes, same, strict=True)) / sum(sizes)
            for w in same:
                w.copy_(mean)


def orders(rows: Rows) -> Tensor:
    return torch.rand(rows.train[1].shape).argsort(1)


# ---- APFL ----


def apfl(federation: list[Rows], rate: Tensor, alpha_rate: Tensor, settings: int) -> Tensor:
    alphas = [torch.full((len(rate),), 0.5) for _ in federation]
    shared = [first_weights(len(rate) // settings, settings, (13, 1)) for _ in federation]
    own = [[w.detach().clone().requires_grad_() for w in ws] for ws in shared]
    averaged([*shared, *own], [1, *[0] * 7])  # all begin alike
    made = [(AdamW(w, rate), AdamW(v, rate)) for w, v in zip(shared, own, strict=True)]
    found = []
    for _ in range(ROUNDS):
        for i, rows in enumerate(federation):
            order = orders(rows)
            for step in range(STEPS):
                x, y = rows.batch(order, step)
                order = orders(rows) if (step + 1) % -(-order.shape[1] // BATCH) == 0 else order
                slope = both_steps(x, y, shared[i], own[i], alphas[i], made[i])
                if step == 0:
                    alphas[i] = (alphas[i] - alpha_rate * slope).clamp(0, 1)
        averaged(shared, [len(r.train[1][0]) for r in federation])
        found.append([scored(r, mixed, shared[i], own[i], alphas[i]) for i, r in enumerate(federation)])
    return torch.stack([torch.stack(row) for row in found])


def mixed(x: Tensor, shared: Weights, own: Weights, alpha: Tensor) -> Tensor:
    p, q = (linear(x, *w)[..., 0].sigmoid() for w in (own, shared))
    return alpha[:, None] * p + (1 - alpha[:, None]) * q


def both_steps(
    x: Tensor, y: Tensor, shared: Weights, own: Weights, alpha: Tensor, made: tuple[AdamW, AdamW]
) -> Tensor:
    """A step of the shared model, then one of its own; the slope of alpha."""
    loss = cost(mixed(x, shared, own, torch.zeros_like(alpha)), y).sum()
    made[0].step(shared, list(torch.autograd.grad(loss, shared)))
    loss = cost(mixed(x, shared, own, alpha), y).sum()
    grads = torch.autograd.grad(loss, [*shared, *own])
    g_w, g_v = list(grads[: len(shared)]), list(grads[len(shared) :])
    made[1].step(own, g_v)
    slope = 0.02 * alpha
    for w, v, a, b in zip(shared, own, g_w, g_v, strict=True):
        wide = alpha.reshape(-1, *[1] * (w.ndim - 1))
        slope = slope + ((v - w).detach() * (wide * b + (1 - wide) * a)).flatten(1).sum(1)
    return slope


def scored(rows: Rows, predict: object, *model: object) -> Tensor:
    """Validation loss and test accuracy of each copy."""
    with torch.no_grad():
        p, q = (predict(x, *model) for x in (rows.val[0], rows.test[0]))  # type: ignore[operator]
        right = ((q > 0.5) == (rows.test[1] > 0.5)).float().mean(1)
        return torch.stack([cost(p, rows.val[1]), right])


# ---- MOON ----


def moon(federation: list[Rows], rate: Tensor, mu: Tensor, settings: int, drop: float = 0.3) -> Tensor:
    nets = [first_weights(len(rate) // settings, settings, (13, 10), (10, 1)) for _ in federation]
    averaged(nets, [1, 0, 0, 0])
    made, found = [AdamW(net, rate) for net in nets], []
    before: list[Weights] = [[] for _ in federation]
    for _ in range(ROUNDS):
        for i, rows in enumerate(federation):
            received, order = [w.detach().clone() for w in nets[i]], orders(rows)
            for step in range(STEPS):
                x, y = rows.batch(order, step)
                order = orders(rows) if (step + 1) % -(-order.shape[1] // BATCH) == 0 else order
                loss = contrasted(x, y, nets[i], received, before[i], mu, drop)
                made[i].step(nets[i], list(torch.autograd.grad(loss, nets[i])))
            before[i] = [w.detach().clone() for w in nets[i]]
        averaged(nets, [len(r.train[1][0]) for r in federation])
        found.append([scored(r, predicted, nets[i]) for i, r in enumerate(federation)])
    return torch.stack([torch.stack(row) for row in found])


def features(x: Tensor, net: Weights) -> Tensor:
    return linear(x, *net[:2]).relu()


def predicted(x: Tensor, net: Weights, drop: float = 0.0) -> Tensor:
    return linear(dropout(features(x, net), drop), *net[2:])[..., 0].sigmoid()


def contrasted(
    x: Tensor, y: Tensor, net: Weights, received: Weights, before: Weights, mu: Tensor, drop: float
) -> Tensor:
    loss = cost(predicted(x, net, drop), y)
    if before:
        z, z_glob, z_prev = (features(x, w) for w in (net, received, before))
        apart = cosine_similarity(z, z_prev, -1) - cosine_similarity(z, z_glob, -1)
        loss = loss + mu * softplus(apart / 0.5).mean(1)
    return loss.sum()


# ---- both ----

METHODS = {"apfl": (apfl, (0.01, 0.1, 1.0)), "moon": (moon, (0.001, 0.1, 1.0, 5.0, 10.0))}


def main() -> None:
    torch.set_num_threads(1)
    for name, (method, strengths) in METHODS.items():
        tried, seeds = list(product(RATES, strengths)), (*TUNING, *TABLE)
        federation = stacked(seeds, len(tried))
        rate, strength = (torch.tensor([t[k] for _ in seeds for t in tried]) for k in (0, 1))
        torch.manual_seed(0)
        found = method(federation, rate, strength, len(tried))  # (rounds, hospitals, 2, copies)
        found = found.reshape(*found.shape[:3], len(seeds), len(tried))
        losses = found[:, :, 0].amin(0).mean(0)[: len(TUNING)].mean(0)
        for k, (one, loss) in enumerate(zip(tried, losses, strict=True)):
            ours = accuracies(found[..., len(TUNING) :, k])
            said = [f"{100 * a.mean():.1f} ± {100 * a.std():.1f}" for a in ours]
            mark = " (chosen)" if k == int(losses.argmin()) else ""
            print(
                f"{name} {one}: validation loss {loss:.3f}{mark}; own rounds {said[0]}, one {said[1]}, last {said[2]}"
            )


def accuracies(found: Tensor) -> list[Tensor]:
    """Mean of hospitals, by seed: of each hospital's own best round, of one round for all, and of the last."""
    losses, right = found[:, :, 0], found[:, :, 1]  # (rounds, hospitals, seeds)
    own = right.gather(0, losses.argmin(0)[None])[0].mean(0)
    one = right.mean(1).gather(0, losses.mean(1).argmin(0)[None])[0]
    return [own, one, right[-1].mean(0)]


if __name__ == "__main__":
    main()
