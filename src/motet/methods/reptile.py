"""Reptile: the server goes a part of the way to the mean of what clients trained, and clients tune its model."""

from __future__ import annotations

from motet.core import Positive, Talk, Tree, Turn, average
from motet.methods.finetune import FineTune
from motet.parts.step_lengths import stepped
from motet.vec import Vec


class Reptile(FineTune):
    """Reptile: the server goes a part of the way to where clients' training led, so that its model is soon tuned.

    Nichol et al. 2018, "On First-Order Meta-Learning Algorithms", Algorithm 2 (batched); Jiang et al. 2019 show what
    it is among federated methods. Clients count alike, whatever their numbers of examples.
    Differs from the paper: training at clients is counted in epochs, and the server's step does not shrink over rounds.
    With server_lr 1 and clients of one size this is FineTune.
    """

    server_lr: Positive = (
        1.0  # how far the server goes to the mean of clients' models (epsilon); 1 = to the mean
    )

    def round(self, w: Vec, turn: Turn) -> Tree | Talk:
        mean = yield average(self.train, turn.cohort, send=w, weights=dict.fromkeys(turn.cohort, 1.0))
        return stepped(w, mean, self.server_lr)
