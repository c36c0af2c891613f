"""CFL: FedAvg in groups; a group whose clients pull in different directions is split in two."""

from __future__ import annotations

from typing import Annotated, Any

from motet.core import Method, NoReply, Positive, Talk, Tree, Turn, collect
from motet.methods.fedavg import FedAvg
from motet.parts.clusters import bipartition
from motet.parts.groups_around import refuse_other_rounds, shared_model
from motet.parts.several_models import flat, mean_of
from motet.vec import Vec


class CFL(FedAvg):
    """CFL: FedAvg in groups; a group whose clients still pull, and in different directions, is split in two.

    Sattler et al. 2020, "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy
    Constraints", Algorithms 1 and 2. Where the mean update of a group is short and a client's is not, the group has
    reached a stationary point that is none of its clients'. It is then split by cosine similarity of updates, so that
    the largest similarity across both halves is as small as can be (single linkage).
    Differs from the paper: eps is relative, the mean update against the longest one, because lengths depend on network
    and rate; clients of a group count alike; a group is split only when all of its clients took part in the round. A
    client that comes later joins the largest group. The server sees every client's model.
    """

    private_steps = FedAvg.private_steps

    strength = "eps"
    eps: Positive = 0.4  # a group is split when its mean update is shorter than this share of the longest one
    first: Annotated[int, ">= 0"] = 5  # rounds before the first split

    @classmethod
    def around(cls, base: type[Method]) -> type[Method]:
        """The same groups around a method whose clients train and send one model."""
        refuse_other_rounds(base, FedAvg, ("round", "download", "after_visit"))
        said = {
            "__doc__": f"{base.__doc__}\n    In groups of CFL.",
            "__module__": base.__module__,
            "strength": "eps",
        }
        return type(f"{base.__name__}{cls.__name__}", (cls, base), said)

    def start(self, turn: Turn) -> Tree | Talk:
        return {"models": [shared_model(self, super().start(turn))], "groups": {}}

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        groups = s["groups"] | {c: self.largest(s) for c in sorted(turn.cohort) if c not in s["groups"]}
        s = {"models": list(s["models"]), "groups": groups}
        there = [[c for c in sorted(turn.cohort) if groups[c] == g] for g in range(len(s["models"]))]
        present = [g for g, members in enumerate(there) if members]
        # collect, not average: updates are compared with each other.
        found = yield [collect(self.train, there[g], send=s["models"][g]) for g in present]
        if not any(found):
            raise NoReply(f"cfl, round {turn.number + 1}: nobody answered")
        for g, replies in zip(present, found, strict=True):
            self.update(s, g, replies or {}, turn.number)
        return s

    def update(self, s: Tree, g: int, replies: dict[str, Vec], number: int) -> None:
        """The mean of a group's models; or of its halves, the second as a new group."""
        names, old = sorted(replies), s["models"][g]
        whole = {c for c, group in s["groups"].items() if group == g} == set(names)
        halves = self.halves([replies[c] - old for c in names]) if whole and number >= self.first else []
        if not names:
            return
        for label in {*halves} or {0}:
            half = [c for c, h in zip(names, halves or [0] * len(names), strict=True) if h == label]
            mean = mean_of([replies[c] for c in half])
            if label:
                s["groups"] = s["groups"] | dict.fromkeys(half, len(s["models"]))
                s["models"].append(mean)
            else:
                s["models"][g] = mean

    def halves(self, updates: list[Vec]) -> list[int]:
        """0 or 1 for each update; [] where the group stays together."""
        rows = flat(updates)
        if len(rows) < 2 or rows.mean(0).norm() >= self.eps * rows.norm(dim=1).max():
            return []
        unit = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-300)
        return bipartition((unit @ unit.T).numpy()).tolist()

    def largest(self, s: Tree) -> int:
        members = list(s["groups"].values())
        return max(range(len(s["models"])), key=members.count)

    def global_model(self, s: Tree) -> Vec | None:
        return super().global_model(s["models"][0]) if len(s["models"]) == 1 else None

    def download(self, s: Tree, client: str) -> Tree:
        return s["models"][s["groups"].get(client, self.largest(s))]

    def after_visit(self, s: Tree, after: Tree) -> Tree:
        known = {c: g for c, g in after["groups"].items() if g < len(s["models"])}
        return s | {"groups": known | s["groups"]}

    def summary(self, s: Tree) -> dict[str, Any]:
        return {"groups": s["groups"]}
