"""GroupTune: groups train whole models, as in PFA, and each client tunes the head at home, as far as it helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated

from torch import Tensor

from motet.client import Batch, Data
from motet.core import Positive, Tree
from motet.methods.pfa import PFA
from motet.parts.features import seen_by_head
from motet.parts.personal_parts import refuse_what_follows_head
from motet.vec import Vec


class GroupTune(PFA):
    """GroupTune: groups train whole models, as in PFA, and each client tunes the head at home, as far as it helps.

    Our own successor of FedPerC (Yang et al. 2022, Algorithm 1). A head that is averaged over a group learns the
    classes that its clients share from all their examples, and forgets those that are one client's own. A head
    that never leaves home remembers them, and learns the shared ones from one client alone.
    Differs from the paper: a group averages the head, too, as in PFA. A client that uses the model tunes the head
    on its own examples, with the body fixed. After every epoch it looks at its validation loss, and it keeps the
    head with the least one, the group's included. Nothing more than in PFA leaves a client.
    With `tune` 0, or without validation examples, this is PFA.
    tune_rate was chosen on a seed that no table reports (experiments/fedperc/cifar100-small).
    """

    strength = "tune"
    tune: Annotated[int, ">= 0"] = 8  # most epochs in which the head is tuned at home; 0 = PFA
    tune_rate: Positive = 0.2  # learning rate of the head at home, as a share of lr

    def check(self) -> None:
        super().check()
        refuse_what_follows_head(self, "tunes the last layer on features")

    def personal(self, w: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, Vec(w | self.tuned_head(w, data)))

    def tuned_head(self, w: Vec, data: Data) -> Vec:
        """The head with the least validation loss among the group's and those after each epoch at home."""
        z = seen_by_head(self.task, w, data)  # the body is fixed: its features are computed once
        head = best = w.pick(self.task.head)
        least = self.head_loss(best, z.val)
        for epoch in range(self.tune):
            some = replace(z, seed=z.seed + epoch)  # another order of examples in every epoch
            head = self.descend(self.head_loss, head, some, lr=self.tune_rate * self.lr, epochs=1)
            loss = self.head_loss(head, z.val)
            best, least = head.where(loss < least, best), loss.minimum(least)
        return best

    def head_loss(self, head: Vec, batch: Batch) -> Tensor:
        """The task's loss, where examples are features of the last layer."""
        return batch.mean(self.task.per_example_loss(self.task.top(head, batch.x), batch.y, batch.live))

    def epochs_at_evaluation(self) -> int:
        return min(
            self.tune, 1
        )  # the body runs once over the examples, and steps of a head cost next to nothing

    def trained_model(self, w: Vec, reply: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, reply)
