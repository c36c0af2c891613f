"""Stacking: clients publish models of any kind, and each learns from its own rows which ones to trust."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from motet.client import Data
from motet.core import (
    NOT_A_SETTING,
    Count,
    Method,
    NotNegative,
    Positive,
    Share,
    Talk,
    Tree,
    Turn,
    collect,
    verb,
)
from motet.errors import need
from motet.published import Published
from motet.published.public_choice import Family, PublicChoice
from motet.stacking import client_stack, contribution, what_people_see
from motet.stacking.catalogue import (
    admitted,
    affordable,
    check_published,
    check_stack_reply,
    digest,
    of_present,
    reasons,
    seen,
)
from motet.stacking.client_choices import models_of_client, terms_by_client, wishes
from motet.stacking.contribution import How
from motet.stacking.stack import Stack, StackSettings, Variant
from motet.stacking.validation_findings import Findings


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

    has_public_models = True
    variants = ("held-out", "pooled")
    public: Family = "forest"  # the family of published models
    public_of: tuple[str, ...] = ()  # other choices: "client-3: dp-linear epsilon=1 columns=age"
    outbox: str = ""  # in a simulation: a folder with CLIENT.onnx and .json, which these clients publish
    private: Literal["forest", "boosting", "linear"] = "forest"  # the family of models that are never sent
    meta: Literal["forest", "linear"] = "forest"  # the model that combines predictions; linear is WrapperFL's
    trees: Count = 10  # of every forest, and rounds of boosting; the paper has 100
    variant: Variant = "held-out"  # rows of the meta-model: Meta Train, or all; auto may also choose alone
    share: Share = 0.25  # of the rows that are Meta Train, if held out
    importance: How = "permutation"  # of contributions, on validation rows; mdi is the paper's, on Meta rows
    noise: NotNegative = 0.0  # in published defaults of columns, in deviations (the paper's epsilon)
    budget: NotNegative = 0.0  # megabytes of models that a client fetches; 0: no limit
    threshold: NotNegative = 0.0  # contribution below which a client is served nothing; 1: an equal part
    epsilon: Positive = 1.0  # privacy budget of a dp model, the defaults of its columns included
    versions: Count = 1  # of a dp model, each with four times the budget: more for who contributes more
    own: Any = field(default=None, metadata=NOT_A_SETTING)  # what an organisation chose, and its store
    terms: Any = field(default=None, metadata=NOT_A_SETTING)  # in a simulation: clients' units, classes

    def at_site(self, own: Any) -> Stacking:
        return replace(self, own=own)

    def in_simulation(self, federated: Any) -> Stacking:
        return replace(self, terms=terms_by_client(federated, self.public_of))

    unfit_loss, unfit_weights = client_stack.unfit_loss, client_stack.unfit_weights

    def check(self) -> None:
        super().check()
        need("stacking", "stacking", "onnx", "onnxruntime", "networkx")

    def start(self, turn: Turn) -> Tree:
        return {"catalogue": {}, "trust": {}, "history": [], "stacked": {}, "refused": {}, "seen": {}}

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        models, trust, stacked = of_present(s, turn.clients)
        if new := [c for c in turn.cohort if c not in models]:
            wished = wishes(self.public_of, self.outbox, new, self.terms)
            replies = yield collect(self.publish, new, each=wished)  # public models: everyone may see them
            good, refused = admitted(replies)
            models, s = models | good, s | {"refused": s["refused"] | refused}
        s = s | {"catalogue": models, "trust": trust}
        served = {c: self.download(s, c) for c in turn.cohort}
        if changed := {c: served[c] for c in turn.cohort if stacked.get(c) != digest(served[c])}:
            replies = yield collect(self.stack, list(changed), each=changed)  # contribution scores of each
            # who is served nothing has nothing new to say of others: what it found out before stays
            heard = {c: r for c, r in replies.items() if served[c] or c not in trust}
            trust |= {c: contribution.trust_of(c, r["trust"], served[c]) for c, r in heard.items()}
            stacked |= {c: digest(served[c]) for c in replies}
            s = s | {"refused": s["refused"] | reasons(replies, served), "seen": seen(s, replies, served)}
        return s | {
            "trust": trust,
            "stacked": stacked,
            "history": contribution.remembered(s["history"], trust),
        }

    def download(self, s: Tree, client: str) -> Tree:
        """The models that a client is served: those of others, as far as its contribution and budget allow."""
        if not contribution.served(s["trust"], [client], self.threshold):
            return {}
        earned = contribution.tier(s["trust"], client, self.versions)
        others = {c: m[min(earned, len(m) - 1)] for c, m in s["catalogue"].items() if m and c != client}
        mine, trust = (s["catalogue"].get(client) or [None])[0], s["trust"].get(client)
        return affordable(others, mine, self.budget, trust)

    def global_model(self, s: Tree) -> None:
        return None

    def metrics(self, s: Tree) -> dict[str, float]:
        return contribution.metrics(s)

    remarks, record = what_people_see.remarks, what_people_see.record
    summary, described = what_people_see.summary, what_people_see.described
    one_graph, variant_model = what_people_see.one_graph, what_people_see.variant_model

    # ---- clients ----

    @verb(solo=True, check=check_published)
    def publish(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return [m.tree() for m in self.public_models(data, sent)], keep

    def public_models(self, data: Data, wish: Tree = ()) -> Sequence[Published]:
        """What a client publishes: as the recipe says, unless an organisation chose something of its own."""
        usual = PublicChoice(self.public, self.epsilon, self.trees, self.versions, noise=self.noise)
        return models_of_client(usual, self.own, wish, client_stack.rows_of(data, self.task), int(data.seed))

    @verb(solo=True, check=check_stack_reply)
    def stack(self, served: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        data = client_stack.of_first_stack(keep, data)
        stack, findings = self.build(served, data)
        return {"trust": stack.importances, **findings}, client_stack.to_tree(stack, served, data)

    def build(self, served: Tree, data: Data) -> tuple[Stack, Findings]:
        """A stack of the private model and the served models that may run, and what was found out about these."""
        how = StackSettings(self.private, self.meta, self.trees, self.variant, self.share, self.importance)
        return client_stack.stack_of(how, data, self.task, served)

    @verb(solo=True)
    def personal(self, served: Tree, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        """The kept stack; a client that has none, or whose served models have changed, builds one first."""
        if not client_stack.is_current(keep, served):
            keep = client_stack.to_tree(
                self.build(served, client_stack.of_first_stack(keep, data))[0], served
            )
        return partial(self.answer, client_stack.predictor(keep, served, [c.here for c in data.columns]))

    @verb(solo=True)
    def alone(self, served: Tree, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        """A private model, which here learns from all of the client's training rows."""
        how, data = StackSettings(self.private, trees=self.trees), client_stack.of_first_stack(keep, data)
        return partial(self.answer, client_stack.alone(how, data, self.task))

    def answer(self, own: Tree, x: Tensor) -> Tensor:
        """Logarithms of probabilities, or numbers."""
        scores = torch.from_numpy(client_stack.predict(own, x, client_stack.classes_of(self.task)))
        return scores.clamp(min=1e-6).log() if self.task.kind == "classes" else scores[:, 0]

    def parts_trained(self, n: int) -> tuple[int, ...]:
        """All examples are behind a public model; Train and Meta rows are behind contribution scores."""
        return (n,) if self.variant == "pooled" else (meta := round(self.share * n), n - meta)
