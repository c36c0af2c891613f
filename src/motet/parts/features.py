"""What the last layer of a network sees: a client's examples as features of a fixed body.

A head that is trained alone needs each example's features once, and not in every step.
Knows one client's examples. Does not know what the features are for.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from motet.client import Batch, Data, Task
from motet.vec import Vec

_SLICE = 128  # examples in one forward pass


def seen_by_head(task: Task, w: Vec, data: Data) -> Data:
    """The client's data with features in place of examples, padding included; images are not augmented."""
    w = task.at_home(partial(task.predict, w), data).args[0]  # its own statistics, where they are local
    val = Batch(features(task, w, data.val.x), data.val.y, data.val.live)
    return replace(data, x=features(task, w, data.x), val=val, augment=False)


def features(task: Task, w: Vec, x: Tensor) -> Tensor:
    """(examples, features) of the last layer's input."""
    return torch.cat([task.predict_from(w, some)[1] for some in torch.split(x, _SLICE)])
