"""How PFA and FedPerC group clients by sparsity vectors: settings, parts of a round, and the verbs these ask for.

A method inherits from `Grouping` and FedAvg and writes its own round, of which grouping is one line:
`s = yield from self.admit(s, turn)`. The state is a dict: W_g, the global model; groups, {client: its group};
models, one for each group, empty before clients are grouped; vectors, {client: its sparsity vector V}; centres,
the mean V of each group; whitening, the matrix of Mahalanobis distances, and extractor, the weights of a second
network that measures V, where these are used. It is a base class, and not a function that is given verbs, because
a site reads from a method's own text which asks it will get.

Clients of the first round after the warm-up are grouped. A client that comes later gets its vector in its first
round, and joins the group with the nearest centre; centres stay fixed.

Our own additions: Mahalanobis distances and layers side by side, because the paper's Euclidean distances of means over
layers do not find the groups of its own experiments (experiments/fedperc/grouping); off by default: k by trials, moves
between groups, private vectors.
With epsilon > 0, what leaves a client to be grouped is differentially private in single examples. That holds for
the vector alone, not for models, and epsilon is spent once; a second time only if the reply was lost.
Knows asks and tensors. Does not know what of a model a group shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from motet.client import Data, Task, seed_of
from motet.client.descent_rule import Loss
from motet.core import (
    Count,
    Method,
    MethodUnfit,
    NoReply,
    NotNegative,
    Talk,
    Tree,
    Turn,
    average,
    collect,
    verb,
)
from motet.parts import clusters, sparsity_vectors
from motet.vec import Vec

_LOSS = 10.0  # what one example counts in a validation loss that gets noise, where shares count 1: examples are fewer


class Grouping(Method):
    """Settings, parts of a round and verbs of a method that groups clients by sparsity vectors."""

    beyond_budget = "sparsity vectors are measured on rows and leave"

    measuring = ("sparsity", "second_moments", "validation_loss", "best_group")
    warm_up: Annotated[int, ">= 0"] = 1  # first rounds, in which FedAvg trains the global model W_g
    grouping: Literal["kmeans", "threshold", "random", "none"] = "kmeans"  # how groups are found
    k: Annotated[int, ">= 0"] = 4  # kmeans, random: number of groups; 0 = found by choose_k
    choose_k: Literal["silhouette", "trials"] = "silhouette"  # k = 0: by silhouettes, or validation loss
    threshold: NotNegative = (
        1.0  # threshold: clients whose vectors are within this distance are linked; unit: distance
    )
    distance: Literal["mahalanobis", "euclidean"] = (
        "mahalanobis"  # of vectors: by examples' covariance, or euclidean as in the paper
    )
    extractor: str = ""  # network that measures sparsity, say "vgg11 width=0.5"; "" = the global model
    extractor_layers: Count = 3  # how many of its first activation layers are measured
    extractor_channels: Count = 32  # how many channels of each layer are measured, the same for all clients
    extractor_join: sparsity_vectors.Join = "beside"  # layers side by side, or their mean as in the paper
    epsilon: NotNegative = 0.0  # differential privacy of what is sent to be grouped; 0 = no noise
    noise: Literal["gaussian", "laplace"] = "gaussian"  # epsilon > 0: kind of noise; gaussian has delta 1e-5
    vector_clip: NotNegative = 0.0  # epsilon > 0: largest distance of example vectors from 1/2; 0 = any
    regroup_every: Annotated[int, ">= 0"] = 0  # every so many rounds clients may change groups; 0 = never

    if TYPE_CHECKING:  # these are FedAvg's

        def train(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]: ...
        def descend(self, loss: Loss, w: Vec, data: Data, **how: Any) -> Vec: ...

    def start(self, turn: Turn) -> Tree | Talk:
        check(self)
        state = {"W_g": self.task.w0, "groups": {}, "models": [], "vectors": {}, "centres": torch.zeros(0, 0)}
        return state | {"extractor": self.measured.w0} if self.extractor and self.needs_vectors else state

    @property
    def needs_vectors(self) -> bool:
        return self.grouping not in ("random", "none")

    @property
    def measured(self) -> Task:
        """The task of the network whose activations are measured."""
        task: Task = self.task.other(self.extractor) if self.extractor else self.task
        return task

    # ---- what a group shares: a method's own choice ----

    def group_model(self, W_g: Vec) -> Vec:
        """What a group shares of a model; it starts from W_g."""
        return W_g

    def client_model(self, model: Vec, keep: Tree) -> Vec:
        """A client's whole model, given its group's."""
        return model

    @property
    def tries_numbers(self) -> bool:
        """Whether the number of groups is found by training with each."""
        return self.grouping == "kmeans" and not self.k and self.choose_k == "trials"

    def shows_differences(self) -> str:
        if not self.tries_numbers:
            return ""
        return (
            "method.choose_k is trials, which sums the same replies in groups of different sizes, and the differences "
            "of masked sums would show single replies\nhint: method.choose_k=silhouette, or method.k"
        )

    # ---- parts of a round ----

    def is_warm_up(self, s: Tree, turn: Turn) -> bool:
        return turn.number < self.warm_up and not s["models"]

    def update_extractor(self, s: Tree, turn: Turn) -> Talk:
        """A round of FedAvg for the extractor, unless it is W_g itself or comes with weights."""
        if "extractor" not in s or "weights=" in self.extractor:
            return s
        return s | {"extractor": (yield average(self.train_extractor, turn.cohort, send=s["extractor"]))}

    def admit(self, s: Tree, turn: Turn) -> Talk:
        """Every client of this round that has no group yet gets one."""
        new = [c for c in turn.cohort if c not in s["groups"]]
        if not new:
            return s
        try:  # vectors are compared with each other, so the server must see each of them
            replies = yield collect(self.sparsity, new, send=self.sparsity_request(s))
        except NoReply:
            return s
        V = {c: replies[c].double().clamp(0, 1) for c in sorted(replies)}  # bounded, whatever was sent
        if V and not s["models"]:
            s = yield from self.form_groups(s, V, turn)
        return self.joined(s, V, turn) if s["models"] else s

    def form_groups(self, s: Tree, V: dict[str, Tensor], turn: Turn) -> Talk:
        clients, rows = list(V), torch.stack(list(V.values()))
        if self.distance == "mahalanobis" and self.needs_vectors:
            (found,) = yield [average(self.second_moments, clients, send=self.sparsity_request(s))]
            if found is None:  # nobody answered: groups are formed in a later round
                return s
            s = s | {"whitening": whitening(rows, found)}
            rows = rows @ s["whitening"]
        labels = yield from self.labels(s, clients, rows.numpy(), turn)
        return s | {
            "groups": dict(zip(clients, labels.tolist(), strict=True)),
            "models": [self.group_model(s["W_g"])] * (int(labels.max()) + 1),
            "centres": torch.from_numpy(clusters.centres(rows.numpy(), labels)),
        }

    def labels(self, s: Tree, clients: list[str], rows: clusters.Vectors, turn: Turn) -> Talk:
        """The group of each row."""
        k, seed = self.k, seed_of(turn.seed, "groups")
        if self.grouping == "kmeans" and not k and self.choose_k == "trials":
            k = yield from self.best_k(s, clients, rows, seed)
        return clusters.labels_of(rows, self.grouping, k, self.threshold, seed)

    def best_k(self, s: Tree, clients: list[str], rows: clusters.Vectors, seed: int) -> Talk:
        """The k with the least validation loss, where half of the clients train one round in k groups."""
        half = np.sort(np.random.default_rng(seed).permutation(len(clients))[: max(len(clients) // 2, 1)])
        losses = {}
        for k in range(1, clusters.largest_k(len(half)) + 1):
            labels = clusters.kmeans(rows[half], k, seed)
            losses[k] = yield from self.trial(s, {clients[i]: g for i, g in zip(half, labels, strict=True)})
        return min(losses, key=lambda k: losses[k])

    def trial(self, s: Tree, groups: dict[str, int]) -> Talk:
        """The mean validation loss of some clients after one round of FedAvg in groups, from W_g."""
        names = sorted(set(groups.values()))
        members = [[c for c in groups if groups[c] == g] for g in names]
        means = yield [average(self.train, clients, send=s["W_g"]) for clients in members]
        models = {g: s["W_g"] if mean is None else mean for g, mean in zip(names, means, strict=True)}
        each = {c: models[g] for c, g in groups.items()}
        (loss,) = yield [average(self.validation_loss, list(groups), each=each)]
        return float("inf") if loss is None else float(loss)

    def joined(self, s: Tree, V: dict[str, Tensor], turn: Turn) -> Tree:
        """The state in which clients with these vectors have a group: the nearest, or a random one."""
        V = {c: v @ s["whitening"] if "whitening" in s else v for c, v in V.items()}
        if self.grouping == "random":
            found = {c: seed_of(turn.seed, "group", c) % len(s["models"]) for c in V}
        else:
            found = {c: clusters.nearest(v.numpy(), s["centres"].numpy()) for c, v in V.items()}
        groups, vectors = found | s["groups"], s["vectors"] | V
        return s | {"groups": dict(sorted(groups.items())), "vectors": dict(sorted(vectors.items()))}

    def regroup(self, s: Tree, turn: Turn) -> Talk:
        """Clients move to the group whose model has the least loss on their validation examples."""
        clients = [c for c in turn.cohort if c in s["groups"]]
        if not self.regroup_every or turn.number % self.regroup_every or not clients:
            return s
        each = {c: {"models": s["models"], "own": torch.tensor(s["groups"][c])} for c in clients}
        (found,) = yield [collect(self.best_group, clients, each=each)]  # the server must know the groups
        chosen = {c: min(max(int(g), 0), len(s["models"]) - 1) for c, g in (found or {}).items()}
        return s | {"groups": s["groups"] | chosen}

    def present(self, s: Tree, turn: Turn) -> dict[int, list[str]]:
        """The clients of this round by group; groups without any are left out."""
        found = {g: [c for c in turn.cohort if s["groups"].get(c) == g] for g in range(len(s["models"]))}
        return {g: clients for g, clients in found.items() if clients}

    def sparsity_request(self, s: Tree) -> dict[str, Vec]:
        """What a client is sent to measure its sparsity vector."""
        return {"extractor": s.get("extractor", s["W_g"])}

    # ---- what clients do ----

    @verb
    def train_extractor(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return self.descend(self.measured.loss, w, data), keep

    @verb
    def sparsity(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return self.sparsity_vector(sent["extractor"], data), keep

    @verb
    def second_moments(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        noise, n = self.vector_noise, sparsity_vectors.real_examples(data).sum()
        m = sparsity_vectors.second_moments(self.measured, sent["extractor"], data, self.vector_measure)
        return {"moments": noise.on_moments(m, n, data.seed), "noise": noise.variance(n, len(m))}, keep

    @verb
    def validation_loss(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return self.task.loss(w, data.val), keep

    @verb
    def best_group(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        losses = torch.stack([self.task.loss(self.client_model(m, keep), data.val) for m in sent["models"]])
        return self.least(losses, sent["own"]), keep

    def least(self, losses: Tensor, own: Tensor) -> Tensor:
        """The group of least loss; a client's own where others are no better."""
        return torch.where(losses.min() >= losses.gather(0, own[None])[0], own, losses.argmin())

    def sparsity_vector(self, w: Vec, data: Data) -> Tensor:
        """The client's V, with noise if epsilon is set; empty where groups do not depend on it."""
        if not self.needs_vectors:
            return torch.zeros(0)
        noise, n = self.vector_noise, sparsity_vectors.real_examples(data).sum()
        V = sparsity_vectors.mean_vector(self.measured, w, data, self.vector_measure)
        return noise.on_vector(V, n, data.seed)

    @property
    def vector_measure(self) -> sparsity_vectors.Measure:
        clip = self.vector_noise.clip
        return sparsity_vectors.Measure(
            self.extractor_layers, self.extractor_channels, clip, self.extractor_join
        )

    @property
    def vector_noise(self) -> sparsity_vectors.VectorNoise:
        """Of each reply. With Mahalanobis distances there are two, and each gets half of epsilon."""
        epsilon = self.epsilon * (0.5 if self.distance == "mahalanobis" else 1.0)
        return sparsity_vectors.VectorNoise(epsilon, self.noise, self.vector_clip if self.epsilon else 0.0)

    # ---- what the rest of motet asks of a method ----

    def most_asks(self) -> int:
        """A trial trains and scores once for each number of groups."""
        return 1 + (clusters.MOST if self.tries_numbers else 0)

    def numbers_measured(self, verb: str, reply: int, rounds: int) -> int:
        """A client is measured when it comes; a trial scores once for each number of groups; then groups change."""
        times = {"validation_loss": self.most_asks(), "best_group": 1 + rounds // max(self.regroup_every, 1)}
        return max(reply, 1) * times.get(verb, 1)

    def noised(self, verb: str, sent: Tree, reply: Tree, draw: Callable[[Sequence[int]], Tensor]) -> Tree:
        if (
            verb == "second_moments"
        ):  # products of two numbers between -1/2 and 1/2, the same above the diagonal
            half = draw(reply["moments"].shape).triu() / 2
            return reply | {"moments": reply["moments"] + (half + half.triu(1).T).to(reply["moments"])}
        if verb == "best_group":  # a name: which of the models fits best
            return reply
        many = _LOSS if verb == "validation_loss" else 1.0
        return reply + many * draw(reply.shape).to(reply)

    def global_model(self, s: Tree) -> Vec:
        W_g: Vec = s["W_g"]
        return W_g

    def download(self, s: Tree, client: str) -> Tree:
        group = s["groups"].get(client)
        return s["W_g"] if group is None else s["models"][group]

    def after_visit(self, s: Tree, after: Tree) -> Tree:
        return s | {"groups": after["groups"]} if s["models"] else s

    def summary(self, s: Tree) -> dict[str, Any]:
        """Groups, and vectors in their first two principal components."""
        V = s["vectors"]
        rows = torch.stack(list(V.values())) if V else torch.zeros(0, 0)
        if not rows.numel():
            return {"groups": s["groups"]}
        places, share = clusters.principal_components(rows.numpy())
        known = [c for c in V if c in s["groups"]]
        labels = np.array([s["groups"][c] for c in known])
        quality = clusters.silhouette(torch.stack([V[c] for c in known]).numpy(), labels)
        by_client = dict(zip(V, places.tolist(), strict=True))
        return {"groups": s["groups"], "places": by_client, "share": share, "silhouette": quality}


def whitening(rows: Tensor, found: Tree) -> Tensor:
    """The matrix of Mahalanobis distances, from clients' vectors and the mean reply of `second_moments`."""
    moments, noise = found["moments"].double().numpy(), float(found["noise"])
    return torch.from_numpy(clusters.whitening(moments, (rows.mean(0) - 0.5).numpy(), noise))


def updated(models: list[Vec], groups: dict[int, list[str]], means: list[Vec | None]) -> list[Vec]:
    """The groups' models, where a group's mean replaces its model if one came."""
    new = {g: mean for g, mean in zip(groups, means, strict=True) if mean is not None}
    return [new.get(g, old) for g, old in enumerate(models)]


def check(method: Grouping) -> None:
    """Refuse settings that do not fit together, all faults at once."""
    if wrong := list(complaints(method)):
        raise MethodUnfit("\n".join(wrong))


def complaints(method: Grouping) -> Iterator[str]:
    if method.grouping == "random" and not method.k:
        yield "grouping is random and k is 0, so the number of groups is unknown.\nhint: method.k=4"
    if method.regroup_every and method.task.statistics == "local":
        yield (
            f"regroup_every is {method.regroup_every}, and with local BatchNorm statistics a client has none for "
            "the models of other groups.\nhint: method.regroup_every=0, or net.norm=group"
        )
    try:
        network = method.measured if method.needs_vectors else None
    except ValueError as e:
        yield f"method.extractor: {e}"
        return
    if network and not network.body:
        yield (
            "clients are grouped by a network's activations, and a network of one layer has none.\n"
            "hint: use a network with more than one layer, say net=mlp, or method.grouping=none"
        )
    if network and method.epsilon and network.statistics == "local":
        yield (
            f"epsilon is {method.epsilon:g}, and with local BatchNorm statistics one example changes the "
            "activations of all others, so that the noise would guarantee nothing.\n"
            "hint: net.norm=group, or net.statistics=shared"
        )
