"""PFA: one model for all, then clients whose data look alike train it on in groups.

Liu et al. 2021, "PFA: Privacy-preserving Federated Adaptation for Effective Model Personalization", as
Yang et al. 2022 (FedPerC) compare with it: `warm_up` rounds of FedAvg make W_g; each client is described by
how sparse W_g's activations are on its data (parts/clusters.py); FedAvg goes on inside the groups from W_g.

In the first round after the warm-up those who attend are sketched, grouped, and train in their groups. Who
comes later is sketched in the first round it attends and joins the group with the nearest centre; centres
stay. Until then it uses W_g. W_g stays the provider's global model.
With epsilon > 0 a sketch is (epsilon, 1e-5)-differentially private in single examples. That speaks of the
sketch alone, not of models, and is spent once: again only if the reply was lost.

The network that is listened to is W_g itself, as in PFA's code, or `extractor`, a second one with default
options that FedAvg trains beside it, as in FedPerC (there: vgg11).

Differs from the papers: "threshold" groups whoever is linked by pairs within the threshold; how PFA makes
groups of distances is not public. Which channels are compared is drawn at random (PFA's code draws 20 of one
layer). Sketches are bounded to [0, 1], whatever is sent; nobody is moved to another group later.
FedPerC's settings: warm_up 50, epochs 4, batch 64, lr 0.01, momentum 0.5, then 30 rounds.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from motet.core import Count, NoReply, NotNegative, Talk, Tree, Turn, Unfit, average, collect, verb
from motet.local import Data, Task, seed_of
from motet.methods.fedavg import FedAvg
from motet.parts import clusters
from motet.vec import Vec


class PFA(FedAvg):
    warm_up: Annotated[int, ">= 0"] = 1  # first rounds, of FedAvg, which make the global model W_g
    grouping: Literal["kmeans", "threshold", "random", "none"] = "kmeans"  # how groups are found
    k: Annotated[int, ">= 0"] = 4  # kmeans, random: how many groups; 0 = by silhouettes
    threshold: NotNegative = 0.1  # threshold: the distance within which two sketches are alike
    layers: Count = 3  # how many of the first activations are looked at
    channels: Count = 32  # how many channels of each are compared
    extractor: str = ""  # the network that is listened to, say vgg11; "" = the global model itself
    epsilon: NotNegative = 0.0  # privacy of a sketch, by Gaussian noise; 0 = no noise

    def start(self, turn: Turn) -> Tree | Talk:
        check(self)
        state = {"phase": 0, "w": self.task.w0, "members": {}, "centres": torch.zeros(0, 0), "models": []}
        listens = self.extractor and self.grouping not in ("random", "none")
        return state | {"eye": self.eye.w0} if listens else state

    @property
    def eye(self) -> Task:
        """The task of the network that is listened to."""
        task: Task = self.task.other(self.extractor) if self.extractor else self.task
        return task

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        if s["phase"] == 0 and turn.number < self.warm_up:
            s = s | {"w": (yield average(self.train, turn.cohort, send=s["w"]))}
            return s | {"eye": (yield average(self.look, turn.cohort, send=s["eye"]))} if "eye" in s else s
        s = yield from self.admit(s, turn)
        present = [[c for c in turn.cohort if s["members"].get(c) == g] for g in range(len(s["models"]))]
        active = [g for g, who in enumerate(present) if who]
        means = yield [average(self.train, present[g], send=s["models"][g]) for g in active]
        fresh = {g: mean for g, mean in zip(active, means, strict=True) if mean is not None}
        return s | {"models": [fresh.get(g, old) for g, old in enumerate(s["models"])]}

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
        bounded = {c: found[c].double().clamp(0, 1) for c in sorted(found)}
        s = s if s["phase"] else self.grouped(s, bounded, turn)
        joined = {c: self.place(s, c, v, turn) for c, v in bounded.items()}
        return s | {"members": dict(sorted((joined | s["members"]).items()))}

    def grouped(self, s: Tree, sketches: dict[str, Tensor], turn: Turn) -> Tree:
        rows, seed = torch.stack(list(sketches.values())).numpy(), seed_of(turn.seed, "groups")
        labels = clusters.grouped(rows, self.grouping, self.k, self.threshold, seed)
        return s | {
            "phase": 1,
            "members": dict(zip(sketches, labels.tolist(), strict=True)),
            "centres": torch.from_numpy(clusters.centres(rows, labels)),
            "models": [self.shared(s["w"])] * (int(labels.max()) + 1),
        }

    def place(self, s: Tree, client: str, v: Tensor, turn: Turn) -> int:
        """The group of a newcomer: the nearest one, or any where groups are random."""
        if self.grouping == "random":
            return seed_of(turn.seed, "group", client) % len(s["models"])
        return clusters.nearest(v.numpy(), s["centres"].numpy())

    def letter(self, s: Tree) -> dict[str, Vec]:
        """What a client is sent for its sketch."""
        return {"eye": s.get("eye", s["w"])}

    @verb
    def look(self, eye: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return self.descend(self.eye.loss, eye, data), keep

    @verb
    def sketch(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        if self.grouping in ("random", "none"):
            return torch.zeros(0), keep
        v = clusters.sketch(self.eye, sent["eye"], data, self.layers, self.channels)
        return clusters.noised(v, data.n, self.epsilon, data.seed), keep

    def shared(self, w: Vec) -> Vec:
        """What a group has in common of a model."""
        return w

    def general(self, s: Tree) -> Vec:
        w: Vec = s["w"]
        return w

    def view(self, s: Tree, client: str) -> Tree:
        group = s["members"].get(client)
        return s["w"] if group is None else s["models"][group]

    def visited(self, s: Tree, after: Tree) -> Tree:
        return s | {"members": after["members"]} if s["phase"] else s


def check(method: PFA) -> None:
    if method.grouping == "random" and not method.k:
        raise Unfit("grouping is random and k is 0: nothing says how many groups.\nhint: say method.k=4")
    if method.grouping in ("random", "none"):
        return
    try:
        eye = method.eye
    except ValueError as e:
        raise Unfit(f"method.extractor: {e}") from e
    if not eye.body:
        raise Unfit(
            "groups are found by a network's activations, and this network of one layer has none.\n"
            "hint: use a network with more than one layer, say net=mlp, or method.grouping=none"
        )
    if method.epsilon and eye.statistics == "local":
        raise Unfit(
            f"epsilon is {method.epsilon:g}, and with local statistics an example may change what the network "
            "makes of all others, so that the noise would promise nothing.\n"
            "hint: net.norm=group, or net.statistics=shared"
        )
