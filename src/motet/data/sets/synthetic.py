"""Synthetic classification with clients that differ in their inputs (page) or in everything (fedprox).

page: Chen et al. 2024 (PAGE), after FedDyn (Acar et al. 2021). One labeller W, b ~ N(0, 1) for all;
    client i: B_i ~ N(0, beta), m_i ~ N(B_i, 1)^dim, x ~ N(m_i, diag(j^-1.2)), y = argmax(W'x + b).
    Of 375 rows of a client, 300 are its own and the last 75 are pooled at the server. Differs from the
    paper, which uses its test rows for choices too: the 300 are 210 train, 30 validation and 60 test; a third of
    the pooled rows are the server's proxy set, and two thirds its test set.
fedprox: Li et al. 2020, Synthetic(alpha, beta). Client k: u_k ~ N(0, alpha), W_k, b_k ~ N(u_k, 1),
    B_k ~ N(0, beta), v_k ~ N(B_k, 1)^dim, x ~ N(v_k, diag(j^-1.2)), y = argmax softmax(W_k x + b_k).
    Sizes are lognormal(4, 2) + 50. As in their code, alpha and beta are standard deviations.

Every client has a random generator of its own, so that the first 50 clients of 100 are those of 50. Many clients of
page (10,000 and more) are drawn when they are needed, and only the first hundred of them pool rows at the server.
Knows how rows are drawn. Does not know how they are used.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256

import numpy as np
import torch

from motet.client import Batch, ClientData, Column
from motet.client.population import MANY, NumberedNames, Population
from motet.data.client_views import batches
from motet.data.federated import PARTS, DataError, FederatedData, Pool, refuse
from motet.data.splits.assignment import client_names, generator

_POOLING = 100  # of many clients, those that pool rows at the server
_CHUNK = 1 << 10  # rows that are labelled at once; few enough for one thread, which is fastest here


def load(
    *,
    seed: int,
    generator: str = "page",  # page (one labeller, different inputs) | fedprox (labellers differ too)
    clients: int = 100,  # number of clients
    dim: int = 0,  # features; 0: as in the paper, 30 (page) or 60 (fedprox)
    classes: int = 0,  # classes; 0: as in the paper, 30 (page) or 10 (fedprox)
    samples: int = 375,  # page: rows of each client, pooled ones included
    alpha: float = 0.0,  # fedprox: how much labellers differ; page has one labeller for all
    beta: float = 1.0,  # how much inputs differ
    cap: int = 5000,  # fedprox: most rows of a client; its sizes have a heavy tail
) -> Pool | FederatedData:
    """The rows of all clients, or of many what draws them."""
    if generator not in ("page", "fedprox"):
        raise DataError(f"generator is {generator!r}; expected 'page' or 'fedprox'")
    least = {"clients": (clients, 1), "samples": (samples, 15), "cap": (cap, 50), "dim": (dim, 0)}
    least |= {"classes": (classes or 2, 2)}
    refuse([f"{k} is {got}; expected at least {low}" for k, (got, low) in least.items() if got < low])
    if generator == "page" and clients >= MANY:
        return many_of_page(seed, clients, dim or 30, classes or 30, samples, beta)
    if generator == "page":
        return page(seed, clients, dim or 30, classes or 30, samples, beta)
    return fedprox(seed, clients, dim or 60, classes or 10, alpha, beta, cap)


def page(seed: int, clients: int, dim: int, classes: int, samples: int, beta: float) -> Pool:
    shares = parts(samples)
    x = np.empty((clients * samples, dim), np.float32)
    # own rows, proxy and server's test rows, each (clients, rows, dim)
    spots = _blocks(x, clients, (sum(shares[:3]), *shares[3:]))
    for i in range(clients):
        draw(seed, i, beta, [spot[i] for spot in spots])
    w, b = labeller(seed, dim, classes)
    own = np.tile(np.repeat(np.arange(3), shares[:3]), clients)
    part = np.concatenate([own, np.repeat([3, 4], [clients * n for n in shares[3:]])])
    owner = np.concatenate([np.repeat(np.arange(clients), spot.shape[1]) for spot in spots])
    return _pool(x, label(x, w, b), classes, owner, clients, part)


def draw(seed: int, client: int, beta: float, spots: list[np.ndarray]) -> None:
    """Fill arrays (rows, dim) with examples of one client of page, one array after another."""
    rng, dim = generator(seed, "page", client), spots[0].shape[1]
    spread = (np.arange(1, dim + 1) ** -0.6).astype(np.float32)  # the root of j^-1.2
    middle = np.asarray(rng.normal(rng.normal(0, beta), 1, dim), np.float32)
    for spot in spots:
        rng.standard_normal(dtype=np.float32, out=spot)
        spot *= spread
        spot += middle


def many_of_page(seed: int, clients: int, dim: int, classes: int, samples: int, beta: float) -> FederatedData:
    """As `page`, with each client's rows drawn when it is asked for: the same rows."""
    shares, (w, b) = parts(samples), labeller(seed, dim, classes)
    few = page(seed, _POOLING, dim, classes, samples, beta)
    own = partial(one_of_page, seed, dim, shares, beta, w, b, few.columns)
    words = repr(("page", seed, clients, dim, classes, samples, beta)).encode()
    sizes = np.broadcast_to(np.array(shares[:3]), (clients, 3))
    population = Population(NumberedNames(clients), sizes, own, sha256(words).hexdigest())
    proxy, test = (
        Batch.of(torch.from_numpy(few.x[at]), torch.from_numpy(few.y[at]))
        for at in (few.part == 3, few.part == 4)
    )
    notes = [
        f"clients' rows are drawn when they are needed; the server's rows are those of {_POOLING} clients"
    ]
    return FederatedData(
        "synthetic", population, {}, "classes", classes, few.classes, few.columns, (dim,),
        proxy=proxy, server_test=test, notes=notes, given_tests=True,
    )  # fmt: skip


def one_of_page(
    seed: int,
    dim: int,
    shares: tuple[int, ...],
    beta: float,
    w: np.ndarray,
    b: np.ndarray,
    columns: tuple[Column, ...],
    client: int,
) -> ClientData:
    """The rows of one client."""
    x = np.empty((sum(shares[:3]), dim), np.float32)
    draw(seed, client, beta, [x])
    views = batches(torch.from_numpy(x), torch.from_numpy(label(x, w, b)), None, np.array([shares[:3]]))
    return ClientData(*views[0], columns)


def parts(samples: int) -> tuple[int, ...]:
    """Numbers of a client's train, val, test, proxy and server test rows: 210, 30, 60, 25, 50 of 375."""
    train, val, proxy = (round(samples * k / 375) for k in (210, 30, 25))
    own = round(samples * 300 / 375)
    counts = (train, val, own - train - val, proxy, samples - own - proxy)
    assert len(counts) == len(PARTS)
    return counts


def _blocks(x: np.ndarray, clients: int, rows: tuple[int, ...]) -> list[np.ndarray]:
    """Views of x, one after the other, of shape (clients, rows, dim)."""
    ends = np.cumsum([clients * n for n in rows])[:-1]
    return [v.reshape(clients, n, x.shape[1]) for v, n in zip(np.split(x, ends), rows, strict=True)]


def labeller(seed: int, dim: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The weights (dim, classes) and biases (classes,) that page's clients share."""
    rng = generator(seed, "labeller")
    return rng.standard_normal((dim, classes)), rng.standard_normal(classes)


def label(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The class with the highest score, in blocks of rows."""
    chunks = (x[i : i + _CHUNK] for i in range(0, len(x), _CHUNK))
    return np.concatenate([(c.astype(np.float64) @ w + b).argmax(1) for c in chunks])


def fedprox(seed: int, clients: int, dim: int, classes: int, alpha: float, beta: float, cap: int) -> Pool:
    spread = np.arange(1, dim + 1) ** -0.6
    xs, ys, capped = [], [], 0
    for k in range(clients):
        rng = generator(seed, "fedprox", k)
        size = int(rng.lognormal(4, 2)) + 50
        capped += size > cap
        u, middle = rng.normal(0, alpha), rng.normal(rng.normal(0, beta), 1, dim)
        w, b = rng.normal(u, 1, (dim, classes)), rng.normal(u, 1, classes)
        x = rng.normal(middle, spread, (min(size, cap), dim)).astype(np.float32)
        xs.append(x)
        ys.append(label(x, w, b))
    owner = np.repeat(np.arange(clients), [len(y) for y in ys])
    pool = _pool(np.concatenate(xs), np.concatenate(ys), classes, owner, clients)
    if capped:
        pool.notes.append(f"{capped} of {clients} clients are cut to {cap} rows (option cap)")
    return pool


def _pool(
    x: np.ndarray,
    y: np.ndarray,
    classes: int,
    owner: np.ndarray,
    clients: int,
    part: np.ndarray | None = None,
) -> Pool:
    columns = tuple(Column(f"x{j}") for j in range(1, x.shape[1] + 1))
    labels = tuple(map(str, range(classes)))
    return Pool(x, y, "classes", labels, columns, owner, client_names(clients), part, scaling="none")
