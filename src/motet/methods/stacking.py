"""Stacking: clients publish models of any kind, and each learns from its own rows which ones to trust."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from motet.client import Data
from motet.core import Count, Method, NotNegative, Positive, Share, Talk, Tree, Turn, collect, verb
from motet.published import defaults
from motet.stacking import client_stack, contribution
from motet.stacking.catalogue import (
    admitted,
    affordable,
    check_published,
    check_stack_reply,
    digest,
    fetched,
    reasons,
)
from motet.stacking.stack import OWN, Stack, StackSettings, fitted

_HISTORY = 3  # rounds of contributions that are remembered


class Stacking(Method):
    """Stacking: clients publish models of any kind, and each learns from its own rows which ones to trust.

    Cantu-Cervini 2024, "Personalized Federated Learning via Stacking", sections 3 and 4, Figure 1. A client
    publishes a model of all its rows. It fetches the public models of others and divides its rows into Train
    and Meta Train: its private model learns from Train, its meta-model from the predictions of the private and
    the fetched models for Meta Train. It reports how important each model is to the meta-model, normalised:
    its contribution scores. The server keeps a catalogue of public models and all scores. A client publishes in
    its first round, and stacks again when the models it is served have changed. The models of clients that
    left are in no stack from the next round on.

    Differs from the paper: models are ONNX and run in a child process after checks; what a client is served may
    depend on its contribution (threshold, versions), on a budget of bytes, and on columns; a client with
    fewer than eight rows or one class predicts the mean of all models.
    """

    public: Literal["forest", "boosting", "linear", "dp-linear"] = "forest"  # the family of published models
    private: Literal["forest", "boosting", "linear"] = "forest"  # the family of models that are never sent
    meta: Literal["forest", "linear"] = "forest"  # the model that combines predictions; linear is WrapperFL's
    trees: Count = 10  # of every forest, and rounds of boosting; the paper has 100
    variant: Literal["held-out", "pooled", "auto"] = "held-out"  # rows of the meta-model: Meta Train, or all
    share: Share = 0.25  # of the rows that are Meta Train, if held out
    importance: Literal["mdi", "permutation", "shapley"] = "mdi"  # how contributions are measured
    noise: NotNegative = 0.0  # in published defaults of columns, in deviations (the paper's epsilon)
    budget: NotNegative = 0.0  # megabytes of models that a client fetches; 0: no limit
    threshold: NotNegative = 0.0  # contribution below which a client is served nothing; 1: an equal part
    epsilon: Positive = 1.0  # privacy budget of a dp-linear model
    versions: Count = 1  # of each dp-linear model, each with four times the budget of the one before; who
    # contributes more is served one with more budget (all versions together spend the sum)

    unfit_loss, unfit_weights = client_stack.unfit_loss, client_stack.unfit_weights

    def start(self, turn: Turn) -> Tree:
        return {"catalogue": {}, "trust": {}, "history": [], "stacked": {}, "refused": {}}

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        here = set(turn.clients)
        models, trust, stacked = (
            {c: v for c, v in s[key].items() if c in here} for key in ("catalogue", "trust", "stacked")
        )
        if new := [c for c in turn.cohort if c not in models]:
            replies = yield collect(self.publish, new)  # public models: everyone may see them
            good, refused = admitted(replies)
            models, s = models | good, s | {"refused": s["refused"] | refused}
        s = s | {"catalogue": models, "trust": trust}
        served = {c: self.download(s, c) for c in turn.cohort}
        if changed := {c: served[c] for c in turn.cohort if stacked.get(c) != digest(served[c])}:
            replies = yield collect(self.stack, list(changed), each=changed)  # contribution scores of each
            trust |= {c: trust_of(c, r["trust"], served[c]) for c, r in replies.items()}
            stacked |= {c: digest(served[c]) for c in replies}
            s = s | {"refused": s["refused"] | reasons(replies, models)}
        history = [*s["history"], contribution.in_strength(trust)][-_HISTORY:]
        return s | {"trust": trust, "stacked": stacked, "history": history}

    def download(self, s: Tree, client: str) -> Tree:
        """The models that a client is served: those of others, as far as its contribution and budget allow."""
        if not contribution.served(s["trust"], [client], self.threshold):
            return {}
        earned = contribution.tier(s["trust"], client, self.versions)
        others = {c: m[min(earned, len(m) - 1)] for c, m in s["catalogue"].items() if c != client}
        mine, trust = s["catalogue"].get(client, [None])[0], s["trust"].get(client)
        return affordable(others, mine, self.budget, trust)

    def global_model(self, s: Tree) -> None:
        return None

    def metrics(self, s: Tree) -> dict[str, float]:
        own = contribution.self_importance(s["trust"])
        riders = contribution.free_riders(s["history"], list(s["trust"]))
        mean = sum(own.values()) / max(len(own), 1)
        return {"models": len(s["catalogue"]), "self_importance": mean, "free_riders": len(riders)}

    def summary(self, s: Tree) -> dict[str, Any]:
        riders = contribution.free_riders(s["history"], list(s["trust"]))
        return {"trust": s["trust"], "free_riders": riders, "refused": s["refused"]}

    # ---- clients ----

    @verb(solo=True, check=check_published)
    def publish(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        rows, seed = client_stack.rows_of(data, self.task), int(data.seed)
        features = defaults(rows.x, rows.kinds, "noise" if self.noise else "plain", self.noise, seed)
        if self.public == "dp-linear":
            budgets = [self.epsilon * 4**k for k in range(self.versions)]
            models = [client_stack.dp_linear(rows, e, seed + k) for k, e in enumerate(budgets)]
        else:
            models = [fitted(self.public, rows, seed + 1, self.trees)]
        return [client_stack.published(m, rows, "public", features).tree() for m in models], keep

    @verb(solo=True, check=check_stack_reply)
    def stack(self, served: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        stack, refused = self.build(served, data)
        return {"trust": stack.importances, "refused": refused}, client_stack.to_tree(stack, served)

    def build(self, served: Tree, data: Data) -> tuple[Stack, dict[str, str]]:
        """A stack of the private model and the served models that may run, and why others may not."""
        rows, val = (client_stack.rows_of(data, self.task, val=val) for val in (False, True))
        models, unreadable = fetched(served)
        how = StackSettings(self.private, self.meta, self.trees, self.variant, self.share, self.importance)
        stack, refused = client_stack.stack_of(how, rows, val, models, int(data.seed))
        return stack, unreadable | refused

    @verb(solo=True)
    def personal(self, served: Tree, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        """The kept stack; a client that has none, or whose served models have changed, builds one first."""
        if not client_stack.is_current(keep, served):
            keep = client_stack.to_tree(self.build(served, data)[0], served)
        return partial(self.answer, client_stack.predictor(keep, served, [c.here for c in data.columns]))

    @verb(solo=True)
    def alone(self, served: Tree, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        """A private model, which here learns from all of the client's training rows."""
        how = StackSettings(self.private, trees=self.trees)
        return partial(self.answer, client_stack.alone(how, data, self.task))

    def answer(self, own: Tree, x: Tensor) -> Tensor:
        """Logarithms of probabilities, or numbers."""
        scores = torch.from_numpy(client_stack.predict(own, x, client_stack.classes_of(self.task)))
        return scores.clamp(min=1e-6).log() if self.task.kind == "classes" else scores[:, 0]

    def parts_trained(self, n: int) -> tuple[int, ...]:
        """All examples are behind a public model; Train and Meta rows are behind contribution scores."""
        return (n,) if self.variant == "pooled" else (meta := round(self.share * n), n - meta)


def trust_of(client: str, shares: Tree, served: Tree) -> dict[str, float]:
    """Contribution scores by client: the private model's are the client's own; models not served count nothing."""
    others = {owner: float(v) for owner, v in shares.items() if owner in served}
    return contribution.normalised({client: float(shares.get(OWN, 0.0)), **others})
