"""FedBABU that leaves out an epoch's last batch if it is not full, as PFLlib does.

Knows how local training is called. Does not know data or networks.
"""

from __future__ import annotations

from typing import Any

from motet.client import Data
from motet.methods import fedbabu
from motet.vec import Vec


class FedBABU(fedbabu.FedBABU):
    """FedBABU on full batches alone.

    Oh et al. 2022, Algorithm 1. Differs from motet's: rows that fill no batch are left out of an epoch.
    """

    def descend(self, loss: Any, w: Vec, data: Data, **how: Any) -> Vec:
        return super().descend(loss, w, data, **how, drop_last=True)
