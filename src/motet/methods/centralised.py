"""Centralised: what one model could learn if all rows lay in one place. An upper bound for comparing.

FedAvg on a federation of one client that holds everyone's training rows; the run pools the rows
and scores the model on every client's own test examples. Possible in simulation only.
"""

from __future__ import annotations

from motet.methods.fedavg import FedAvg


class Centralised(FedAvg):
    pass
