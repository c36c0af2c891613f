"""LG-FedAvg: each client has a representation of its own, and the head is shared."""

from __future__ import annotations

from motet.methods.fedavg import FedAvg
from motet.parts.personal_parts import PersonalPart, refuse_without_body


class LGFedAvg(PersonalPart, FedAvg):
    """LG-FedAvg: each client learns a representation of its own, on which one shared head works. FedPer the other way.

    Liang et al. 2020, "Think Locally, Act Globally: Federated Learning with Local and Global Representations",
    Algorithm 1. As in the paper, heads are averaged by numbers of examples, and far less is sent than in FedAvg.
    Differs from the paper: clients start from the common initial weights; the paper's experiments start from a model
    that FedAvg trained. Representations have no loss of their own beside the task's.
    """

    private_steps = FedAvg.private_steps

    def check(self) -> None:
        super().check()
        refuse_without_body(self, "gives each client a body of its own under a shared head")

    def stays(self) -> tuple[str, ...]:
        return self.task.body
