"""Stacking: clients publish models of any kind, and each learns from its own rows whose to trust.

Cantu-Cervini 2024, "Personalized Federated Learning via Stacking", sections 3 and 4. The server keeps a
catalogue of public models and the contribution graph. A client publishes once; it stacks the models it is
served on its own rows whenever they have changed, and tells how important each was. A newcomer does both
in its first round; the model of a client that left is in no stack from the next round on.

Differs from the paper: models are ONNX and run in a child process after checks; what a client is served may
depend on its contribution (threshold, versions), on a budget of bytes, and on columns; a client with fewer than eight
rows or one class takes the mean of all models.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from motet.client import Data
from motet.core import Count, Method, NotNegative, Positive, Share, Talk, Tree, Turn, collect, verb
from motet.published import Published, defaults
from motet.stacking import contribution
from motet.stacking import stack as stacks
from motet.stacking.catalogue import admitted, affordable, digest, fetched, mark

_HISTORY = 3  # rounds of contributions that are remembered


class Stacking(Method):
    public: Literal["forest", "boosting", "linear", "dp-linear"] = "forest"  # the family of published models
    private: Literal["forest", "boosting", "linear"] = "forest"  # the family of models that stay at home
    meta: Literal["forest", "linear"] = "forest"  # what learns whom to trust; linear is WrapperFL's
    trees: Count = 10  # of every forest, and rounds of boosting; the paper has 100
    variant: Literal["held-out", "pooled", "auto"] = "held-out"  # which rows teach the meta-model
    share: Share = 0.25  # of the rows, held out for the meta-model
    importance: Literal["mdi", "permutation", "shapley"] = "mdi"  # how contributions are measured
    noise: NotNegative = 0.0  # in published defaults of columns, in deviations (epsilon)
    budget: NotNegative = 0.0  # megabytes of models that a client fetches; 0: no limit
    threshold: NotNegative = 0.0  # contribution below which a client is served nothing; 1: an equal part
    epsilon: Positive = 1.0  # privacy budget of a dp-linear model
    versions: Count = 1  # of each dp-linear model, each with four times the budget of the one before; who
    # contributes more is served one with more budget (all versions together spend the sum)

    def start(self, turn: Turn) -> Tree:
        return {"catalogue": {}, "trust": {}, "history": [], "stacked": {}, "refused": {}}

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        here = set(turn.clients)
        models = {c: m for c, m in s["catalogue"].items() if c in here}
        trust = {c: t for c, t in s["trust"].items() if c in here}
        if new := [c for c in turn.cohort if c not in models]:
            told = yield collect(self.publish, new)  # public models: everyone may see them
            good, wrong = admitted(told)
            models, s = models | good, s | {"refused": s["refused"] | wrong}
        s = s | {"catalogue": models, "trust": trust}
        menus = {c: self.download(s, c) for c in turn.cohort}
        stacked = {c: mark for c, mark in s["stacked"].items() if c in here}
        if changed := [c for c in turn.cohort if stacked.get(c) != digest(menus[c])]:
            said = yield collect(self.stack, changed, each={c: menus[c] for c in changed})
            trust = trust | {c: as_trust(c, r["trust"], menus[c]) for c, r in said.items()}
            stacked |= {c: digest(menus[c]) for c in said}
            refused = {c: why for r in said.values() for c, why in r["refused"].items()}
            s = s | {"refused": s["refused"] | refused}
        history = [*s["history"], contribution.in_strength(trust)][-_HISTORY:]
        return s | {"trust": trust, "stacked": stacked, "history": history}

    def download(self, s: Tree, client: str) -> Tree:
        """The models that a client is served: nobody its own."""
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

    @verb(solo=True)
    def publish(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        rows, seed = self.rows(data), int(data.seed)
        told = defaults(rows.x, rows.kinds, "noise" if self.noise else "plain", self.noise, seed)
        if self.public != "dp-linear":
            model = stacks.fitted(self.public, rows, seed + 1, self.trees)
            return [stacks.published(model, rows, "public", told).tree()], keep
        budgets = [self.epsilon * 4**k for k in range(self.versions)]
        private = [stacks.dp_linear(rows, e, seed + k) for k, e in enumerate(budgets)]
        return [stacks.published(m, rows, "public", told, privacy=m.privacy).tree() for m in private], keep

    @verb(solo=True)
    def stack(self, menu: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        stack, refused = self.stacked(menu, data)
        return {"trust": stack.trust, "refused": refused}, as_keep(stack, menu)

    def stacked(self, menu: Tree, data: Data) -> tuple[stacks.Stack, dict[str, str]]:
        """A stack of the models that may run, and why the others may not."""
        rows, val = self.rows(data), self.rows(data, val=True)
        models, wrong = fetched(menu)
        said, refused = stacks.opinions(models, rows.x, rows.names)
        more = stacks.opinions(models, val.x, val.names)[0] if self.variant == "auto" and len(val.y) else {}
        how = stacks.StackSettings(
            self.private, self.meta, self.trees, self.variant, self.share, self.importance
        )
        return stacks.build(how, rows, said, val, more, int(data.seed)), wrong | refused

    def rows(self, data: Data, *, val: bool = False) -> stacks.StackRows:
        """Real examples in the columns that the client holds."""
        b = data.val if val else data.all
        live = b.live > 0
        x = b.x[live].flatten(1).float().numpy()
        kinds = {c.name: c.kind for c in data.columns if c.here}
        if data.columns:
            x = x[:, [c.here for c in data.columns]]
        kinds = kinds or {f"x{k}": "number" for k in range(x.shape[1])}
        classes = tuple(map(str, range(self.task.outputs))) if self.task.kind == "classes" else ()
        return stacks.StackRows(x, b.y[live].numpy(), kinds, classes)

    @verb(solo=True)
    def personal(self, menu: Tree, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        """Who has not stacked these models yet, or lost one of them, does it now."""
        if not keep or any(c not in menu or mark(menu[c]) != d for c, d in keep["whom"].items()):
            keep = as_keep(self.stacked(menu, data)[0], menu)
        whom = {c: menu[c] for c in keep["whom"]}
        here = tuple(c.here for c in data.columns)
        return partial(
            self.answer, {"whom": whom, "private": keep["private"], "meta": keep["meta"], "here": here}
        )

    def answer(self, own: Tree, x: Tensor) -> Tensor:
        """Logarithms of probabilities, or numbers."""
        flat = x.flatten(1).float().numpy()
        flat = flat[:, list(own["here"])] if own["here"] else flat
        private = Published.from_tree(own["private"])
        names = private.manifest.names
        meta = Published.from_tree(own["meta"]) if own["meta"] else None
        said, refused = stacks.opinions(fetched(own["whom"])[0], flat, names)
        if refused:
            raise ValueError(f"models that were stacked do not run any more: {refused}")
        stack = stacks.Stack(private, meta, tuple(own["whom"]), {}, "")
        found = torch.from_numpy(np.array(stack.says(said, flat, names), np.float32))
        return found.clamp(min=1e-6).log() if self.task.kind == "classes" else found[:, 0]


def as_trust(client: str, shares: Tree, menu: Tree) -> dict[str, float]:
    """Importances under clients' names: one's private model is one's own, and others must have been served."""
    others = {k: float(v) for k, v in shares.items() if k in menu}
    return contribution.normalised({client: float(shares.get(stacks.OWN, 0.0)), **others})


def as_keep(stack: stacks.Stack, menu: Tree) -> Tree:
    whom = {c: mark(menu[c]) for c in stack.whom}
    return {"private": stack.private.tree(), "meta": stack.meta.tree() if stack.meta else (), "whom": whom}
