"""Label distributions of clients, from sparsity vectors (PFA, FedPerC) or from contribution scores.

Sparsity vectors are means over examples, so a client's vector is a mixture of the mean vectors of classes. The server
measures those on rows of other clients (here their validation rows: what it may have of its own), and looks for the
mixture. From contribution scores: clients gain by those that hold what they hold, so the distributions of others,
weighted by the scores, are a guess of one's own; others are the colluding clients that know theirs.
The figure is how much nearer (total variation) the guess is than the mean distribution of the others.
Knows vectors, scores and counts of classes. Does not know how runs are played again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from motet.audits.attack_figures import Array, Figure, mean_figure
from motet.audits.recorded_replies import RecordedAsk
from motet.client import Batch, ClientData, Data
from motet.core import Client

_LEAST = 3  # clients
_EACH = 200  # rows of a class that the server measures


def distributions(data: Mapping[Client, ClientData], classes: int) -> dict[Client, Array]:
    """The shares of classes among each client's training and validation rows."""
    found = {}
    for c, d in data.items():
        y = torch.cat([d.train.take().y, d.val.take().y]).numpy()
        found[c] = np.bincount(y, minlength=classes) / max(len(y), 1)
    return found


def apart(p: Array, q: Array) -> float:
    """Total variation distance.

    >>> apart(np.array([1.0, 0.0]), np.array([0.5, 0.5]))
    0.5
    """
    return float(np.abs(p - q).sum() / 2)


def mixture(vector: Array, means: Array) -> Array:
    """Shares of classes whose mean vectors mix to a vector: least squares, none negative, summing to 1."""
    from scipy.optimize import nnls

    heavy = 10.0 * max(float(np.abs(means).max()), 1e-9)  # a row that makes shares sum to 1
    left = np.vstack([means.T, np.full(len(means), heavy)])
    shares = nnls(left, np.append(vector, heavy))[0]
    return np.asarray(shares / shares.sum()) if shares.sum() > 0 else np.full(len(means), 1 / len(means))


def from_vectors(
    recorded: RecordedAsk,
    data: Mapping[Client, ClientData],
    classes: int,
    verb: Callable[..., Any],
    epsilon: float,
) -> Figure | None:
    """What the server learns of labels by vectors that clients sent."""
    truth = distributions(data, classes)
    vectors = {c: np.asarray(r.double().numpy()) for c, r in recorded.replies.items() if len(r)}
    if len(vectors) < _LEAST:
        return None
    gains, errors, guesses = [], [], []
    for client, vector in sorted(vectors.items()):
        others = {c: d for c, d in data.items() if c != client}
        there, means = class_means(others, classes, verb, recorded.ask.sent_to(client))
        shares = np.zeros(classes)
        shares[there] = mixture(vector, means)
        guess = np.mean([truth[c] for c in others], 0)
        errors.append(apart(shares, truth[client]))
        guesses.append(apart(guess, truth[client]))
        gains.append(guesses[-1] - errors[-1])
    more = {"distance": float(np.mean(errors)), "guess_distance": float(np.mean(guesses)), "epsilon": epsilon}
    return mean_figure(
        "label distribution", "sparsity vectors", "server", "total variation gained on guessing",
        np.array(gains), f"{len(gains)} clients", **more,
    )  # fmt: skip


def class_means(
    others: Mapping[Client, ClientData], classes: int, verb: Callable[..., Any], sent: Any
) -> tuple[list[int], Array]:
    """The classes that others' validation rows have, and the vector of each, without noise."""
    rows = [d.val.take() for d in others.values() if len(d.val)]
    x, y = (torch.cat([getattr(b, k) for b in rows]) for k in ("x", "y"))
    there, means = [], []
    for k in range(classes):
        some = x[y == k][:_EACH]
        if len(some):
            labels = torch.full((len(some),), k)
            empty = Batch(some[:0], labels[:0], torch.zeros(0))
            held = Data(some, labels, torch.tensor(len(some)), torch.tensor(0), empty)
            there.append(k)
            means.append(verb(sent, (), held)[0].double().numpy())
    return there, np.array(means)


def from_contributions(
    trust: Mapping[Client, Mapping[Client, float]], data: Mapping[Client, ClientData], classes: int
) -> Figure | None:
    """What contribution scores tell of a client's labels to those who know the labels of others."""
    truth = distributions(data, classes)
    gains, errors, guesses = [], [], []
    for client, row in sorted(trust.items()):
        others = {c: w for c, w in row.items() if c != client and c in truth and w > 0}
        if client not in truth or not others:
            continue
        weights = np.array(list(others.values()))
        shares = weights @ np.array([truth[c] for c in others]) / weights.sum()
        guess = np.mean([d for c, d in truth.items() if c != client], 0)
        errors.append(apart(shares, truth[client]))
        guesses.append(apart(guess, truth[client]))
        gains.append(guesses[-1] - errors[-1])
    if len(gains) < _LEAST:
        return None
    more = {"distance": float(np.mean(errors)), "guess_distance": float(np.mean(guesses))}
    return mean_figure(
        "property inference", "contribution scores", "server, with other clients", "total variation gained on guessing",
        np.array(gains), f"{len(gains)} clients", **more,
    )  # fmt: skip
