"""PFA: one model for all, then clients whose data look alike train it on in groups.

Liu et al. 2021, "PFA: Privacy-preserving Federated Adaptation for Effective Model Personalization", as
Yang et al. 2022 (FedPerC) compare with it: `warm_up` rounds of FedAvg make W_g; each client is described by
how sparse W_g's activations are on its data (parts/sketches.py); FedAvg goes on inside the groups from W_g.

In the first round after the warm-up those who attend are sketched, grouped, and train in their groups. Who
comes later is sketched in the first round it attends and joins the group with the nearest centre; centres
stay. Until then it uses W_g. W_g stays the provider's global model.
With epsilon > 0 what a client says of its examples to be grouped is differentially private in single
examples. That speaks of the sketch alone, not of models, and is spent once: again only if the reply was lost.

The network that is listened to is W_g itself, as in PFA's code, or `extractor`, a second one that FedAvg
trains beside it, as in FedPerC (there: vgg11), unless it comes with weights.

Differs from the papers: "threshold" groups whoever is linked by pairs within the threshold; how PFA makes
groups of distances is not public. Which channels are compared is drawn at random (PFA's code draws 20 of one
layer). Sketches are bounded to [0, 1], whatever is sent. Mahalanobis's distance, trials of k and moves are
options of our own; FedPerC speaks of "several trials with randomly chosen clients" and does not say what
decides: here, half of the clients train one round in groups, and the least mean validation loss decides.
FedPerC's settings: warm_up 50, epochs 4, batch 64, lr 0.01, momentum 0.5, then 30 rounds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from motet.client import Data, Task, seed_of
from motet.core import Count, MethodUnfit, NoReply, NotNegative, Talk, Tree, Turn, average, collect, verb
from motet.methods.fedavg import FedAvg
from motet.parts import clusters, sketches
from motet.vec import Vec


class PFA(FedAvg):
    warm_up: Annotated[int, ">= 0"] = 1  # first rounds, of FedAvg, which make the global model W_g
    grouping: Literal["kmeans", "threshold", "random", "none"] = "kmeans"  # how groups are found
    k: Annotated[int, ">= 0"] = 4  # kmeans, random: how many groups; 0 = as `choose` says
    choose: Literal["silhouette", "trials"] = "silhouette"  # kmeans: what says how many, where k is 0
    threshold: NotNegative = 0.1  # threshold: the distance within which two sketches are alike
    distance: Literal["euclidean", "mahalanobis"] = "euclidean"  # mahalanobis: by the examples' spread
    layers: Count = 3  # how many of the first activations are looked at
    channels: Count = 32  # how many channels of each are compared
    extractor: str = ""  # the network that is listened to, say "vgg11 width=0.5"; "" = the global model
    epsilon: NotNegative = 0.0  # privacy of what is said to be grouped; 0 = no noise
    noise: Literal["gaussian", "laplace"] = "gaussian"  # epsilon: which noise; gaussian has a delta of 1e-5
    reach: NotNegative = 0.0  # epsilon: how far from 1/2 an example's vector may be, say 1; 0 = any
    move: Annotated[int, ">= 0"] = 0  # every so many rounds, who does better elsewhere moves; 0 = never

    def start(self, turn: Turn) -> Tree | Talk:
        check(self)
        state = {"phase": 0, "w": self.task.w0, "members": {}, "rows": {}, "models": []}
        state["centres"] = torch.zeros(0, 0)
        return state | {"eye": self.eye.w0} if self.extractor and self.listens else state

    @property
    def listens(self) -> bool:
        """Whether groups come from sketches."""
        return self.grouping not in ("random", "none")

    @property
    def eye(self) -> Task:
        """The task of the network that is listened to."""
        task: Task = self.task.other(self.extractor) if self.extractor else self.task
        return task

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        if s["phase"] == 0 and turn.number < self.warm_up:
            return (yield from self.warm(s, turn))
        s = yield from self.admit(s, turn)
        s = yield from self.moved(s, turn)
        present = [[c for c in turn.cohort if s["members"].get(c) == g] for g in range(len(s["models"]))]
        active = [g for g, who in enumerate(present) if who]
        means = yield [average(self.train, present[g], send=s["models"][g]) for g in active]
        fresh = {g: mean for g, mean in zip(active, means, strict=True) if mean is not None}
        return s | {"models": [fresh.get(g, old) for g, old in enumerate(s["models"])]}

    def warm(self, s: Tree, turn: Turn) -> Talk:
        s = s | {"w": (yield average(self.train, turn.cohort, send=s["w"]))}
        if "eye" in s and "weights=" not in self.extractor:
            s = s | {"eye": (yield average(self.look, turn.cohort, send=s["eye"]))}
        return s

    # ---- who belongs together ----

    def admit(self, s: Tree, turn: Turn) -> Talk:
        """Everyone who attends and has no group yet gets one."""
        strangers = [c for c in turn.cohort if c not in s["members"]]
        if not strangers:
            return s
        try:  # to be compared, each sketch must be seen
            found = yield collect(self.sketch, strangers, send=self.letter(s))
        except NoReply:
            found = {}
        if not found:
            return s
        rows = {c: found[c].double().clamp(0, 1) for c in sorted(found)}
        s = s if s["phase"] else (yield from self.grouped(s, rows, turn))
        if not s["phase"]:
            return s
        rows = {c: v @ s["ruler"] if "ruler" in s else v for c, v in rows.items()}
        joined = {c: self.place(s, c, v, turn) for c, v in rows.items()}
        members = dict(sorted((joined | s["members"]).items()))
        return s | {"members": members, "rows": dict(sorted((s["rows"] | rows).items()))}

    def grouped(self, s: Tree, sketched: dict[str, Tensor], turn: Turn) -> Talk:
        who, rows = list(sketched), torch.stack(list(sketched.values()))
        if self.distance == "mahalanobis" and self.listens:
            (spread,) = yield [average(self.spread, who, send=self.letter(s))]
            if spread is None:  # nobody answered: another round will tell
                return s
            moments, noise = spread["moments"].double().numpy(), float(spread["noise"])
            found = clusters.ruler(moments, (rows.mean(0) - 0.5).numpy(), noise)
            s = s | {"ruler": torch.from_numpy(found)}
            rows = rows @ s["ruler"]
        labels = yield from self.labels(s, who, rows.numpy(), turn)
        return s | {
            "phase": 1,
            "members": dict(zip(who, labels.tolist(), strict=True)),
            "centres": torch.from_numpy(clusters.centres(rows.numpy(), labels)),
            "models": [self.shared(s["w"])] * (int(labels.max()) + 1),
        }

    def labels(self, s: Tree, who: list[str], rows: clusters.Rows, turn: Turn) -> Talk:
        k, seed = self.k, seed_of(turn.seed, "groups")
        if self.grouping == "kmeans" and not k and self.choose == "trials":
            few = np.sort(np.random.default_rng(seed).permutation(len(who))[: max(len(who) // 2, 1)])
            losses = {}
            for k in range(1, clusters.most(len(few)) + 1):
                teams = dict(zip([who[i] for i in few], clusters.kmeans(rows[few], k, seed), strict=True))
                losses[k] = yield from self.tried(s, teams)
            k = min(losses, key=lambda k: losses[k])
        return clusters.grouped(rows, self.grouping, k, self.threshold, seed)

    def tried(self, s: Tree, teams: dict[str, int]) -> Talk:
        """The mean validation loss of some clients after a round of FedAvg in teams."""
        names = sorted(set(teams.values()))
        means = yield [average(self.trial, [c for c in teams if teams[c] == g], send=s["w"]) for g in names]
        models = {g: s["w"] if mean is None else mean for g, mean in zip(names, means, strict=True)}
        (loss,) = yield [average(self.doubt, list(teams), each={c: models[g] for c, g in teams.items()})]
        return float("inf") if loss is None else float(loss)

    def moved(self, s: Tree, turn: Turn) -> Talk:
        """Who does better on validation examples with another group's model goes over to it."""
        who = [c for c in turn.cohort if c in s["members"]]
        if not self.move or turn.number % self.move or not who:
            return s
        each = {c: {"models": s["models"], "own": torch.tensor(s["members"][c])} for c in who}
        (found,) = yield [collect(self.prefer, who, each=each)]  # groups are the server's to know
        chosen = {c: min(max(int(g), 0), len(s["models"]) - 1) for c, g in (found or {}).items()}
        return s | {"members": s["members"] | chosen}

    def place(self, s: Tree, client: str, v: Tensor, turn: Turn) -> int:
        """The group of a newcomer: the nearest one, or any where groups are random."""
        if self.grouping == "random":
            return seed_of(turn.seed, "group", client) % len(s["models"])
        return clusters.nearest(v.numpy(), s["centres"].numpy())

    def letter(self, s: Tree) -> dict[str, Vec]:
        """What a client is sent for its sketch."""
        return {"eye": s.get("eye", s["w"])}

    @property
    def hiding(self) -> sketches.Hiding:
        """Of each thing that is said: a sketch, and with Mahalanobis's distance the spread, half of epsilon each."""
        share = 0.5 if self.distance == "mahalanobis" else 1.0
        return sketches.Hiding(self.epsilon * share, self.noise, self.reach if self.epsilon else 0.0)

    # ---- what clients do ----

    @verb
    def look(self, eye: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return self.descend(self.eye.loss, eye, data), keep

    @verb
    def sketch(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        if not self.listens:
            return torch.zeros(0), keep
        hide, n = self.hiding, sketches.live(data).sum()
        v = sketches.sketch(self.eye, sent["eye"], data, self.layers, self.channels, hide.reach)
        return hide.sketch(v, n, data.seed), keep

    @verb
    def spread(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        hide, n = self.hiding, sketches.live(data).sum()
        m = sketches.spread(self.eye, sent["eye"], data, self.layers, self.channels, hide.reach)
        return {"moments": hide.spread(m, n, data.seed), "noise": hide.variance(n, len(m))}, keep

    @verb
    def trial(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return self.descend(self.task.loss, w, data), keep

    @verb
    def doubt(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return self.task.loss(w, data.val), keep

    @verb
    def prefer(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        losses = torch.stack([self.task.loss(self.whole(m, keep), data.val) for m in sent["models"]])
        stays = losses.min() >= losses.gather(0, sent["own"][None])[0]
        return torch.where(stays, sent["own"], losses.argmin()), keep

    # ---- what is whose ----

    def shared(self, w: Vec) -> Vec:
        """What a group has in common of a model."""
        return w

    def whole(self, model: Vec, keep: Tree) -> Vec:
        """A client's model with what its group has in common."""
        return model

    def global_model(self, s: Tree) -> Vec:
        w: Vec = s["w"]
        return w

    def download(self, s: Tree, client: str) -> Tree:
        group = s["members"].get(client)
        return s["w"] if group is None else s["models"][group]

    def after_visit(self, s: Tree, after: Tree) -> Tree:
        return s | {"members": after["members"]} if s["phase"] else s

    def summary(self, s: Tree) -> dict[str, Any]:
        """Groups, and where sketches lie to each other in two dimensions."""
        rows = torch.stack(list(s["rows"].values())) if s["rows"] else torch.zeros(0, 0)
        if not rows.numel():
            return {"groups": s["members"]}
        flat, share = clusters.flat(rows.numpy())
        places = {c: xy for c, xy in zip(s["rows"], flat.tolist(), strict=True)}
        known = [c for c in s["rows"] if c in s["members"]]
        labels = np.array([s["members"][c] for c in known])
        quality = clusters.silhouette(torch.stack([s["rows"][c] for c in known]).numpy(), labels)
        return {"groups": s["members"], "places": places, "share": share, "silhouette": quality}


def check(method: PFA) -> None:
    if method.grouping == "random" and not method.k:
        raise MethodUnfit(
            "grouping is random and k is 0: nothing says how many groups.\nhint: say method.k=4"
        )
    if not method.listens:
        return
    try:
        eye = method.eye
    except ValueError as e:
        raise MethodUnfit(f"method.extractor: {e}") from e
    if not eye.body:
        raise MethodUnfit(
            "groups are found by a network's activations, and this network of one layer has none.\n"
            "hint: use a network with more than one layer, say net=mlp, or method.grouping=none"
        )
    if method.move and method.task.statistics == "local":
        raise MethodUnfit(
            "who moves compares models with its own statistics, which none of them has.\nhint: move=0"
        )
    if method.epsilon and eye.statistics == "local":
        raise MethodUnfit(
            f"epsilon is {method.epsilon:g}, and with local statistics an example may change what the network "
            "makes of all others, so that the noise would promise nothing.\n"
            "hint: net.norm=group, or net.statistics=shared"
        )
