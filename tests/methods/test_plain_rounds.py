"""FedCP, GPFL and SuPerFed against loops of their own in plain torch: rounds of clients that come and stay away.

The loops know nothing of motet's training: full batches, autograd, and the papers' formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from motet.client import ClientData, Task
from motet.core import Turn
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.parts.several_models import other_start
from motet.runs.recipe import method_class
from rounds import turn

HOW: dict[str, Any] = {"lr": 0.3, "epochs": 2, "batch": 64}
COHORTS = [["c00", "c01"], ["c01", "c02"], ["c00", "c02"]]
HEAD = ["2.weight", "2.bias"]
Weights = dict[str, Tensor]
engines = pytest.mark.parametrize("engine", [Loop, Vmap])


@pytest.fixture
def three(clients_data: dict[str, ClientData]) -> dict[str, ClientData]:
    return {c: clients_data[c] for c in ("c00", "c01", "c02")}  # 5, 8 and 11 rows


def played(name: str, task: Task, engine: Any, **how: Any) -> tuple[Any, Any, Any, Any]:
    """The method, its engine, and its state before and after the rounds."""
    method = method_class(name)(task, **HOW, **how)
    first = state = start(engine, method, turn(engine, -1))
    for number, cohort in enumerate(COHORTS):
        state = play(engine, method, state, Turn(number, cohort, engine.clients, number))
    return method, engine, first, state


def rows(data: dict[str, ClientData]) -> Iterator[tuple[list[str], list[tuple[str, Tensor, Tensor]]]]:
    """The cohort of each round, and its clients' examples."""
    for cohort in COHORTS:
        yield cohort, [(c, data[c].train.x, data[c].train.y) for c in cohort]


def trained(w: Weights, loss: Callable[[Weights], Tensor]) -> Weights:
    for _ in range(HOW["epochs"]):
        p = {k: a.detach().clone().requires_grad_() for k, a in w.items()}
        slopes = torch.autograd.grad(loss(p), list(p.values()), allow_unused=True)
        w = {
            k: a.detach() - HOW["lr"] * (0 if g is None else g)
            for (k, a), g in zip(p.items(), slopes, strict=True)
        }
    return w


def mean(models: list[Weights], sizes: list[int]) -> Weights:
    return {k: sum(n * w[k] for n, w in zip(sizes, models, strict=True)) / sum(sizes) for k in models[0]}  # type: ignore[misc]


def features(w: Weights, x: Tensor) -> Tensor:
    return torch.tanh(x @ w["0.weight"].T + w["0.bias"])


def top(w: Weights, f: Tensor) -> Tensor:
    return f @ w["2.weight"].T + w["2.bias"]


def part(w: Weights, name: str) -> Weights:
    return {k[len(name) + 1 :]: a for k, a in w.items() if k.startswith(name + " ")}


def same(found: Weights, expected: Weights) -> None:
    assert set(found) == set(expected)
    for k, a in expected.items():
        torch.testing.assert_close(found[k], a, atol=2e-5, rtol=0)


@engines
def test_rounds_of_fedcp(engine: Any, task: Task, three: dict[str, ClientData]) -> None:
    method, here, first, state = played("fedcp", task, engine(three), lam=2.0)
    shared, h = dict(first), {c: {k: task.w0[k] for k in HEAD} for c in three}

    def divided(w: Weights, policy: Weights, g: Weights, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        f = features(w, x)
        z = F.linear(f * v, policy["weight"], policy["bias"])
        z = F.layer_norm(z, z.shape[1:], policy["scale"], policy["shift"]).relu()
        r = z.reshape(len(x), 2, -1).softmax(1)[:, 0]
        return top(g, r * f) + top(w, (1 - r) * f), f

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        far = (a[:, None] - b).square().sum(-1)
        return sum((torch.exp(-far / (2 * width)).mean() for width in (10, 15, 20, 50)), torch.zeros(()))

    for cohort, clients in rows(three):
        models = []
        for c, x, y in clients:
            g, v = part(shared, "w"), F.normalize(h[c]["2.weight"].sum(0), dim=0)
            before = features(g, x)

            def loss(
                u: Weights, g: Weights = g, v: Tensor = v, x: Any = x, y: Any = y, z: Any = before
            ) -> Tensor:
                scores, f = divided(part(u, "w"), part(u, "policy"), g, v, x)
                return F.cross_entropy(scores, y) + 2.0 * (kernel(f, f) + kernel(z, z) - 2 * kernel(f, z))

            models.append(trained(shared | {f"w {k}": a for k, a in h[c].items()}, loss))
            h[c] = {k: models[-1][f"w {k}"] for k in HEAD}
        shared = mean(models, [three[c].n for c in cohort])
    same(state, shared)
    same(here.keeps.get("c02"), h["c02"])
    x, g = three["c01"].test.x, part(shared, "w")
    v = F.normalize(h["c01"]["2.weight"].sum(0), dim=0)
    expected = divided(g | h["c01"], part(shared, "policy"), g, v, x)[0]
    torch.testing.assert_close(
        method.personal(state, here.keeps.get("c01"), here.data("c01"))(x), expected, atol=1e-4, rtol=0
    )


@engines
def test_rounds_of_gpfl(engine: Any, task: Task, three: dict[str, ClientData]) -> None:
    method, here, first, state = played("gpfl", task, engine(three), lam=0.4)
    shared, h = dict(first), {c: {k: task.w0[k] for k in HEAD} for c in three}

    def turned(u: Weights, f: Tensor, condition: Tensor) -> Tensor:
        gamma, beta = (
            F.layer_norm(
                F.linear(condition, v["weight"], v["bias"]).relu(), condition.shape, v["scale"], v["shift"]
            )
            for v in (part(u, "gamma"), part(u, "beta"))
        )
        return ((gamma + 1) * f + beta).relu()

    def shares(y: Tensor) -> Tensor:
        return torch.bincount(y, minlength=3) / len(y)

    for cohort, clients in rows(three):
        models, E = [], shared["embeddings E"]
        for c, x, y in clients:

            def loss(u: Weights, x: Tensor = x, y: Tensor = y, E: Tensor = E) -> Tensor:
                f = features(part(u, "body"), x)
                own, general = turned(u, f, shares(y) @ E), turned(u, f, E.mean(0))
                cosines = F.cosine_similarity(general[:, None], u["embeddings E"], dim=-1)
                place = (general - E[y]).norm(dim=1).mean()
                return F.cross_entropy(top(u, own), y) + F.cross_entropy(cosines, y) + 0.4 * place

            u = trained(shared | h[c], loss)
            h[c] = {k: u.pop(k) for k in HEAD}
            models.append(u)
        shared = mean(models, [three[c].n for c in cohort])
    same(state, shared)
    same(here.keeps.get("c02"), h["c02"])
    x, y = three["c01"].test.x, three["c01"].train.y
    own = turned(shared, features(part(shared, "body"), x), shares(y) @ shared["embeddings E"])
    found = method.personal(state, here.keeps.get("c01"), here.data("c01"))(x)
    torch.testing.assert_close(found, top(h["c01"], own), atol=1e-4, rtol=0)


@engines
def test_rounds_of_superfed_after_those_of_the_shared_model_alone(
    engine: Any, task: Task, three: dict[str, ClientData]
) -> None:
    method, here, first, state = played("superfed", task, engine(three), first=1, mu=0.05, nu=0.8)
    w, v = dict(first), {c: dict(other_start(task.w0, 1)) for c in three}
    for number, (cohort, clients) in enumerate(rows(three)):
        models = []
        for c, x, y in clients:
            here.begin(method, Turn(number, cohort, here.clients, number))
            lam = float(here.data(c).chance(1, salt=1)[0]) if number else 0.0

            def loss(
                u: Weights, w: Any = w, lam: float = lam, x: Any = x, y: Any = y, on: bool = number > 0
            ) -> Tensor:
                a, b = part(u, "w"), part(u, "v")
                mixed = {k: (1 - lam) * a[k] + lam * b[k] for k in a}
                near = sum(((a[k] - w[k]).square().sum() for k in a), torch.zeros(()))
                flat = [nn.utils.parameters_to_vector(m.values()) for m in (a, b)]
                apart = F.cosine_similarity(*flat, dim=0) ** 2 if on else 0.0
                return F.cross_entropy(top(mixed, features(mixed, x)), y) + 0.05 / 2 * near + 0.8 * apart

            both = {f"w {k}": a for k, a in w.items()} | {f"v {k}": a for k, a in v[c].items()}
            u = trained(both, loss)
            v[c] = part(u, "v")
            models.append(part(u, "w"))
        w = mean(models, [three[c].n for c in cohort])
    same(state, w)
    same(here.keeps.get("c02")["v"], v["c02"])
