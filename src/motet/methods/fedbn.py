"""FedBN: layers that normalise stay with the clients."""

from __future__ import annotations

from motet.methods.fedavg import FedAvg
from motet.parts.personal_parts import PersonalPart


class FedBN(PersonalPart, FedAvg):
    """FedBN: everything is averaged but the layers that normalise, which fit each client's own features.

    Li et al. 2021, "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", Algorithm 1.
    Differs from the paper: GroupNorm and LayerNorm stay with the clients too, because BatchNorm is not the usual norm
    of motet's networks; models are averaged by numbers of examples, where the paper takes the simple mean.
    A network without such layers makes this FedAvg, and a run says so.
    """

    private_steps = FedAvg.private_steps

    def stays(self) -> tuple[str, ...]:
        return self.task.norms

    def remarks(self) -> list[str]:
        text = "fedbn keeps layers that normalise at the clients, and this network has none: this is fedavg"
        return [] if self.task.norms else [f"{text} (hint: a network with net.norm, say net=resnet18)"]
