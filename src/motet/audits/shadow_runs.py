"""Membership inference: was a row among the training rows? By loss, by shadow models, and by likelihood ratios.

Shadow runs train with the run's own recipe, guards included, on rows drawn anew: of each client's rows as many are
training rows as in the run, and the others are not. So the attacker of shadow models and LiRA knows the recipe and rows
like those of the clients, the very rows among them; that is as much as an attacker can know.
Loss threshold: Yeom et al. 2018. Shadow models: Shokri et al. 2017, with logistic regression as the attack model.
LiRA: Carlini et al. 2022, "Membership Inference Attacks From First Principles", online, with variances that all rows
share, as they advise for few shadow models.
Knows runs, models and losses of rows. Does not know what is done with the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from motet.audits.attack_figures import Array, Figure, membership_figure
from motet.audits.cross_site import personal_predictors
from motet.audits.replay import OpenedRun, replaying
from motet.client import Batch, ClientData, predicted, seed_of
from motet.client.metrics import probabilities
from motet.core import Client
from motet.runs.build import Resolved
from motet.runs.recipe import Recipe
from motet.runs.run import NoProgress
from motet.runs.trainer import Observer, Trainer

SEEN_BY = {"global": "server, every client", "personal": "whoever gets the model"}
Scores = dict[str, Array]  # by side: (rows, outputs) of all pools, one client after another


@dataclass(frozen=True)
class Pools:
    """All rows of each client, and which of them the run trained with."""

    rows: Mapping[Client, Batch]
    members: Array  # (all rows,) bool

    @classmethod
    def of(cls, data: Mapping[Client, ClientData]) -> Pools:
        rows, members = {}, []
        for c in sorted(data):
            parts = [p.take() for p in (data[c].train, data[c].val, data[c].test)]
            rows[c] = Batch(*(torch.cat([getattr(p, k) for p in parts]) for k in ("x", "y", "live")))
            members.append(np.arange(len(rows[c])) < len(parts[0]))
        return cls(rows, np.concatenate(members))

    @property
    def y(self) -> Array:
        return np.concatenate([b.y.numpy() for b in self.rows.values()])


def scores_of(trainer: Trainer, pools: Pools) -> Scores:
    """What the reported models say of every row: each client's own, and the global one."""
    best = trainer.reported()
    own = personal_predictors(trainer, len(pools.rows))
    found: dict[str, list[Array]] = {
        "personal": [predicted(own[c], b).numpy() for c, b in pools.rows.items()]
    }
    model = trainer.method.global_model(best.state)
    if model is not None:
        everyone = partial(trainer.task.predict, model)
        found["global"] = [predicted(everyone, b).numpy() for b in pools.rows.values()]
    return {side: np.concatenate(some) for side, some in found.items()}


def row_scores(task: Any, scores: Array, y: Array) -> Array:
    """How well a model knows each row: the log-odds of its class, or its error with the sign turned."""
    if task.kind != "classes":
        loss = task.per_example_loss(torch.from_numpy(scores), torch.from_numpy(y))
        return np.asarray(-loss.double().numpy())
    p = np.clip(probabilities(scores)[np.arange(len(y)), y].astype(float), 1e-9, 1 - 1e-9)
    return np.asarray(np.log(p) - np.log1p(-p))


# ---- shadow runs ----


def shadow_of(resolved: Resolved, pools: Pools, number: int, rounds: int) -> tuple[Resolved, Array]:
    """The same recipe on rows drawn anew, for as many rounds as the reported model had; and who is a member."""
    settings = resolved.recipe.settings
    train = settings["train"] | {"rounds": rounds, "evaluate": rounds, "patience": 0, "report": "last"}
    recipe = Recipe(settings | {"train": train, "seed": settings["seed"] + 1 + number})
    rng = np.random.default_rng(seed_of(settings["seed"], "shadow", number))
    data, members = {}, []
    for c, old in sorted(resolved.training.clients_data.items()):
        rows, n = pools.rows[c], len(old.train)
        chosen = np.zeros(len(rows), bool)
        chosen[rng.permutation(len(rows))[:n]] = True
        inside, outside = (taken(rows, at) for at in (chosen, ~chosen))
        data[c] = replace(old, train=inside, val=outside, test=outside)
        members.append(chosen)
    fewer = replace(resolved.federated, clients_data=data, unseen={})
    return replace(resolved, recipe=recipe, federated=fewer, training=fewer), np.concatenate(members)


def taken(rows: Batch, at: Array) -> Batch:
    where = torch.from_numpy(np.flatnonzero(at))
    return Batch(rows.x[where], rows.y[where], rows.live[where])


def shadow_scores(
    opened: OpenedRun, pools: Pools, many: int, begun: Callable[[str], Observer | None]
) -> list[tuple[Scores, Array]]:
    """What the models of each shadow run say of every row, and whom it trained with."""
    rounds, found = int(opened.facts["reported"]) + 1, []
    for number in range(many):
        shadow, members = shadow_of(opened.resolved, pools, number, max(rounds, 1))
        with replaying(shadow) as trainer:
            trainer.run(begun(f"shadow run {number + 1}") or NoProgress())
            found.append((scores_of(trainer, pools), members))
    return found


# ---- attacks ----


def membership(
    opened: OpenedRun, target: Scores, pools: Pools, shadows: list[tuple[Scores, Array]]
) -> list[Figure]:
    """All attacks on all models of the run."""
    task, y, members = opened.resolved.task, pools.y, pools.members
    delta = float((opened.facts.get("privacy") or {}).get("delta") or 0.0)
    found = []
    for side in sorted(target):
        if side == "personal" and "global" in target and np.array_equal(target["global"], target[side]):
            continue  # every client's model is the global one
        on, by = f"{side} model{'s' * (side == 'personal')}", SEEN_BY[side]
        known = row_scores(task, target[side], y)
        more: dict[str, Any] = {"delta": delta}
        found.append(membership_figure("loss threshold", on, by, known[members], known[~members], **more))
        if not shadows:
            continue
        more |= {"shadows": len(shadows)}
        if task.kind == "classes":
            guess = shadow_attack(target[side], y, [(s[side], m) for s, m in shadows])
            found.append(membership_figure("shadow models", on, by, guess[members], guess[~members], **more))
        ratio = likelihood_ratios(known, [(row_scores(task, s[side], y), m) for s, m in shadows])
        found.append(membership_figure("LiRA", on, by, ratio[members], ratio[~members], **more))
    return found


def features(scores: Array, y: Array) -> Array:
    """What an attack model sees of a row: its class's log-odds, all probabilities from large to small, its class."""
    p = probabilities(scores).astype(float)
    own = np.clip(p[np.arange(len(y)), y], 1e-6, 1 - 1e-6)
    classes = np.eye(p.shape[1])[y]
    return np.column_stack([np.log(own) - np.log1p(-own), -np.sort(-p, 1)[:, :3], own, classes])


def shadow_attack(target: Array, y: Array, shadows: list[tuple[Array, Array]]) -> Array:
    """The chance that a row is a member, by a model that learned from shadow models."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = np.concatenate([features(s, y) for s, _ in shadows])
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    model.fit(x, np.concatenate([m for _, m in shadows]))
    return np.asarray(model.predict_proba(features(target, y))[:, 1])


def likelihood_ratios(target: Array, shadows: list[tuple[Array, Array]]) -> Array:
    """For each row, how much likelier its score is with the row among the training rows than without."""
    scores, inside = (np.array([s[i] for s in shadows]) for i in (0, 1))
    means, spreads = [], []
    for which in (inside, ~inside):
        many = which.sum(0)
        fallback = scores[which].mean() if which.any() else 0.0
        mean = np.where(many > 0, (scores * which).sum(0) / np.maximum(many, 1), fallback)
        left = ((scores - mean) ** 2 * which).sum() / max(int(which.sum() - (many > 0).sum()), 1)
        means.append(mean)
        spreads.append(max(float(left), 1e-12))
    logs = [-((target - m) ** 2) / (2 * v) - np.log(v) / 2 for m, v in zip(means, spreads, strict=True)]
    return np.asarray(logs[0] - logs[1])
