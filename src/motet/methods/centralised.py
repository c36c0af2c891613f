"""Centralised: one model trained on all rows in one place."""

from __future__ import annotations

from motet.methods.fedavg import FedAvg


class Centralised(FedAvg):
    """Centralised: one model trained on the rows of all clients in one place.

    A baseline of ours, for comparisons. It is FedAvg (McMahan et al. 2017, Algorithm 1) with a single
    client that holds everyone's training rows. The run pools the rows, and scores the model on every client's own test
    examples. Possible in simulation only.
    """

    private_steps = FedAvg.private_steps
