"""What is to be learned: a network, where it starts, what it predicts, how it is blamed and scored.

Knows networks and losses. Does not know clients or federations.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from motet.local.data import Batch
from motet.vec import Vec

Kind = Literal["classes", "numbers"]
Array = np.ndarray[Any, np.dtype[np.float64]]
# Statistics of a batch belong to nobody in a federation, and global randomness differs between engines.
_REFUSED = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
_ONE_BY_ONE = (nn.modules.conv._ConvNd, nn.RNNBase)


class Task:
    """A network with the weights `w0` that everyone starts from.

    `kind` says whether it tells classes apart (cross-entropy) or predicts numbers (squared error).
    `head` names the parameters of its last layer. `scale` turns predicted numbers into the
    target's own unit.
    """

    def __init__(self, net: nn.Module, kind: Kind, outputs: int, scale: float = 1.0) -> None:
        check_net(net)
        self.net, self.kind, self.outputs, self.scale = net, kind, outputs, scale
        self.w0 = Vec({k: p.detach().clone() for k, p in net.named_parameters()})
        self.head = last_layer(net)
        self.body = tuple(k for k in self.w0 if k not in self.head)
        self.dense = not any(isinstance(m, _ONE_BY_ONE) for m in net.modules())
        self._own = threading.local()
        net.requires_grad_(False)

    def predict(self, w: Vec, x: Tensor) -> Tensor:
        """Scores of shape (examples, classes), or numbers of shape (examples,)."""
        z = self._mine().predict(w, x)
        return z if self.kind == "classes" else z.squeeze(-1)

    def loss(self, w: Vec, batch: Batch) -> Tensor:
        return batch.mean(self.blame(self.predict(w, batch.x), batch.y))

    def blame(self, scores: Tensor, y: Tensor) -> Tensor:
        """The loss of each example."""
        if self.kind == "classes":
            return torch.logsumexp(scores, -1) - scores.gather(-1, y[..., None]).squeeze(-1)  # cross-entropy
        return (scores - y) ** 2

    def tally(self, scores: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Sums from which `marks` makes scores; sums of parts add up to the sum of the whole."""
        live = batch.live
        sums = {"n": live.sum(), "loss": (self.blame(scores, batch.y) * live).sum()}
        if self.kind == "classes":
            right = (scores.argmax(-1) == batch.y) * live
            none = torch.zeros(self.outputs)
            return sums | {
                "right": none.scatter_add(0, batch.y, right),
                "truth": none.scatter_add(0, batch.y, live),
            }
        miss, y = (scores - batch.y) * self.scale, batch.y * self.scale
        return sums | {
            "abs": (miss.abs() * live).sum(),
            "sq": (miss**2 * live).sum(),
            "y": (y * live).sum(),
            "yy": (y**2 * live).sum(),
        }

    def _mine(self) -> Puppet:
        """Weights are put in place of the network's own: every thread needs a network to itself."""
        if not hasattr(self._own, "puppet"):
            with _disable_current_modes():  # a recording may be going on, and the copy is no part of it
                self._own.puppet = Puppet(copy.deepcopy(self.net))
        mine: Puppet = self._own.puppet
        return mine


class Puppet:
    """A network that any weights can be put into: torch's functional_call without its checks,
    which take as long as a small network."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        names = {id(p): name for name, p in net.named_parameters()}  # one name for weights that layers share
        places = [(m._parameters, key, p) for m in net.modules() for key, p in m._parameters.items()]
        self.slots: list[tuple[str, dict[str, Any], str]] = [
            (names[id(p)], params, key) for params, key, p in places if p is not None
        ]
        self.blank = [p for _, _, p in places if p is not None]

    def predict(self, w: Vec, x: Tensor) -> Tensor:
        for name, params, key in self.slots:
            params[key] = w[name]
        try:
            z: Tensor = self.net(x)
        finally:
            for (_, params, key), blank in zip(self.slots, self.blank, strict=True):
                params[key] = blank
        return z


def marks(kind: Kind, sums: Mapping[str, Tensor]) -> dict[str, Array]:
    """Scores from the stacked sums of several clients; the first is the one a client cares about."""
    s = {k: v.double().numpy() for k, v in sums.items()}
    n = np.maximum(s["n"], 1)
    loss = s["loss"] / n
    if kind == "classes":
        truth, right = s["truth"], s["right"]
        recall = right / np.maximum(truth, 1)
        balanced = recall.sum(-1) / np.maximum((truth > 0).sum(-1), 1)  # absent classes do not count
        return {"accuracy": right.sum(-1) / n, "balanced": balanced, "loss": loss}
    spread = s["yy"] - s["y"] ** 2 / n
    r2 = np.where(spread > 0, 1 - s["sq"] / np.where(spread > 0, spread, 1), 0.0)
    return {"rmse": np.sqrt(s["sq"] / n), "mae": s["abs"] / n, "r2": r2, "loss": loss}


def better(kind: Kind) -> int:
    """+1 where a larger first mark is better (accuracy), -1 where a smaller one is (rmse)."""
    return 1 if kind == "classes" else -1


def last_layer(net: nn.Module) -> tuple[str, ...]:
    """The names of the parameters of the last module that has any of its own."""
    owners = [name.rpartition(".")[0] for name, _ in net.named_parameters()]
    return tuple(k for k, _ in net.named_parameters() if k.rpartition(".")[0] == owners[-1])


def check_net(net: nn.Module) -> None:
    for name, module in net.named_modules():
        if isinstance(module, _REFUSED) and getattr(module, "p", 1.0) > 0:
            raise ValueError(
                f"layer {name!r} of the network is a {type(module).__name__}, which motet does not train: "
                "batch statistics have no owner in a federation, and dropout draws from a global generator.\n"
                "hint: use GroupNorm or LayerNorm for normalising, and weight decay (method.decay) for dropout"
            )
    if not any(True for _ in net.parameters()):
        raise ValueError("the network has no parameters to train")
    if buffers := [name for name, _ in net.named_buffers()]:
        raise ValueError(
            f"the network has buffers ({', '.join(buffers)}), and a buffer is neither shared nor kept.\n"
            "hint: make it a parameter, or a plain attribute if it never changes"
        )
