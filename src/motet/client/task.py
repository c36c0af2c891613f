"""What is to be learned: a network, its initial weights, its predictions, its loss and its metrics.

Knows networks and losses. Does not know clients or federations.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from motet.client.activations import zero_masks
from motet.client.data import Batch, Data
from motet.client.devices import CPU, here, moved
from motet.client.losses import USUAL, Criterion, Kind, why_loss_not_stacked
from motet.client.metrics import OwnMetric, metrics, probabilities
from motet.client.own_loss import OwnLoss
from motet.client.thread_net import (
    NORMS,
    ThreadNet,
    check_net,
    last_layer,
    move_attributes,
    trained_weights,
    why_not_stacked,
)
from motet.errors import UsageError
from motet.trusted_code import is_own
from motet.vec import Vec

Array = np.ndarray[Any, Any]
_EVERY_NORM = (NORMS, nn.GroupNorm, nn.LayerNorm, nn.modules.instancenorm._InstanceNorm)
_ONE_BY_ONE = (nn.modules.conv._ConvNd, nn.RNNBase)
_MEASURED = 256  # examples at once from which a client measures its statistics
_SLICE = 512  # examples predicted at once


@dataclass(frozen=True)
class Pixels:
    """Mean and standard deviation of each channel, where black is 0 and white is 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalise(self, x: Tensor) -> Tensor:
        """Bytes (n, channels, height, width) as floats of mean 0 and spread 1; other tensors as they are."""
        if x.dtype != torch.uint8:
            return x
        mean, std = (255 * torch.tensor(v).reshape(-1, 1, 1) for v in (self.mean, self.std))
        return (x.float() - mean) / std


class Task:
    """A network with the weights `w0` that everyone starts from.

    `kind` says whether it tells classes apart, predicts numbers, or ranks risks (survival); `criterion` is the loss
    that it is trained by: without one cross-entropy, squared error, or Cox's partial likelihood.
    `head` names the parameters of its last layer, `body` those of the others, `norms` those of layers that normalise
    (BatchNorm with its statistics, GroupNorm, LayerNorm). `scale` and `offset` turn predicted numbers into the
    target's own unit. `own` is a metric of the user's own. `pixels` says how bytes of images are normalised.
    `statistics` is whose statistics BatchNorm layers use (client/batchnorm.py), "" without such layers. `build`
    makes another network for the same examples by its name, for methods that want a second one.
    """

    def __init__(
        self,
        net: nn.Module,
        kind: Kind,
        outputs: int,
        scale: float = 1.0,
        pixels: Pixels | None = None,
        build: Callable[[str], nn.Module] | None = None,
        offset: float = 0.0,
        own: OwnMetric | None = None,
        criterion: Criterion | None = None,
    ) -> None:
        check_net(net)
        self.net, self.kind, self.outputs, self.scale, self.pixels = net, kind, outputs, scale, pixels
        self.build, self.offset, self.own = build, offset, own
        self.criterion = criterion or Criterion(USUAL[kind], scale=scale, offset=offset)
        self._others: dict[str, Task] = {}
        self.statistics: str = getattr(net, "statistics", "")
        self._w0 = {CPU: Vec({k: p.detach().clone() for k, p in trained_weights(net).items()})}
        self.head = last_layer(net, tuple(self.w0))
        self.body = tuple(k for k in self.w0 if k not in self.head)
        self.norms = tuple(
            k for k in self.w0 if isinstance(net.get_submodule(k.rpartition(".")[0]), _EVERY_NORM)
        )
        self.dense = not any(isinstance(m, _ONE_BY_ONE) for m in net.modules())
        self.why_not_stacked = why_not_stacked(net) or why_loss_not_stacked(self.criterion, kind, outputs)
        self.stackable = not self.why_not_stacked
        self._own = threading.local()

    @property
    def w0(self) -> Vec:
        """The initial weights, on the device that the visit under way computes on."""
        device = here()
        if device in self._w0:
            return self._w0[device]
        with _disable_current_modes():
            made: Vec = moved(self._w0[CPU], device)
        if torch._C._functorch.peek_interpreter_stack() is None:  # else it belongs to a transform that ends
            self._w0[device] = made
        return made

    @w0.setter
    def w0(self, w: Vec) -> None:
        self._w0 = {CPU: w}

    def __getstate__(self) -> dict[str, Any]:
        """For another process of the same owner: threads' own networks stay here."""
        return {k: v for k, v in vars(self).items() if k not in ("_own", "own_code")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _own=threading.local())

    @cached_property
    def own_code(self) -> tuple[Any, ...]:
        """What of the network and the loss is a person's own, or of another library."""
        nets = {type(m): type(m).forward for m in self.net.modules() if is_own(type(m))}
        loss = self.criterion.own
        return (*nets.values(), *([] if loss is None else [loss]))

    @property
    def width(self) -> int:
        """How many features the last layer, which must be linear, sees."""
        found = [self.w0[k].shape[1] for k in self.head if self.w0[k].ndim == 2]
        if not found:
            raise UsageError(
                f"the method needs a network with a linear last layer; the last one here has {', '.join(self.head)}.\n"
                "hint: end the network with torch.nn.Linear(features, outputs)"
            )
        return found[0]

    def frozen_note(self) -> str:
        """What of the network clients train and send, where that is not all of it; "" where it is."""
        frozen = sum(p.numel() for k, p in self.net.named_parameters() if k not in self.w0)
        if not frozen:
            return ""
        sent = sum(a.numel() for a in self.w0.values())
        kib = [f"{4 * many / 1024:,.1f}" for many in (sent, sent + frozen)]
        return (
            f"clients train and send {sent:,} of the network's {sent + frozen:,} weights, {kib[0]} KiB of {kib[1]}; "
            "the others are frozen"
        )

    def other(self, name: str) -> Task:
        """The same task with another network, always the same one for a name."""
        if name not in self._others:
            if self.build is None:
                raise UsageError(f"nobody said how to build {name!r} here.\nhint: give Task a `build`")
            how = self.kind, self.outputs, self.scale, self.pixels
            self._others[name] = Task(self.build(name), *how, offset=self.offset, criterion=self.criterion)
        return self._others[name]

    def predict(self, w: Vec, x: Tensor) -> Tensor:
        """Scores of shape (examples, classes), or numbers of shape (examples,)."""
        return self._shaped(self._mine().predict(w, self.pixels.normalise(x) if self.pixels else x))

    def predict_from(self, w: Vec, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and the features that the head sees, (examples, features)."""
        with self._mine().head_inputs() as features:
            z = self.predict(w, x)
        return z, features[-1]

    def zero_masks(self, w: Vec, x: Tensor, first: int) -> list[Tensor]:
        """Where the first activations of the network would be zero under a ReLU: for each of them
        (examples, channels, ...), true or false. A network without activations that can be recorded
        (activations.py) is measured by the features that its head gets."""
        masks = zero_masks(lambda: self.predict(w, x), first)
        return masks or [self.predict_from(w, x)[1] <= 0]

    def top(self, head: Vec, features: Tensor) -> Tensor:
        """What a head makes of features; the network's last layer must be linear."""
        names = [k.rpartition(".")[2] for k in head]
        return self._shaped(nn.functional.linear(features, **dict(zip(names, head.values(), strict=True))))

    def _shaped(self, z: Tensor) -> Tensor:
        return z if self.kind == "classes" else z.squeeze(-1)

    def at_home(self, own: Any, data: Data) -> Any:
        """A predictor, a partial of weights, with this client's own statistics where they are local."""
        if self.statistics != "local":
            return own
        with self._mine().measuring() as found:
            for x in data.x[: int(data.n)].split(_MEASURED):
                own(x)
        if found and not any(id(a) in found for a in own.args):
            raise TypeError(f"{own.func.__name__} predicts with weights that are none of its arguments")
        measured = [Vec(dict(a) | found[id(a)]) if id(a) in found else a for a in own.args]
        return partial(own.func, *measured)

    def weights_at_home(self, w: Vec, data: Data) -> Vec:
        """The weights as this client predicts with them: with its own statistics, where they are local."""
        found: Vec = self.at_home(partial(self.predict, w), data).args[0]
        return found

    def loss(self, w: Vec, batch: Batch) -> Tensor:
        return batch.mean(self.per_example_loss(self.predict(w, batch.x), batch.y, batch.live))

    def loss_of_part(self, part: Vec, batch: Batch, rest: Vec) -> Tensor:
        """The loss of a network of which one part is trained and the rest is fixed."""
        return self.loss(Vec(rest | part), batch)

    def loss_over(self, w: Vec, batch: Batch) -> Tensor:
        """As `loss`, of any number of examples: they are predicted a few at a time."""
        scores = predicted(partial(self.predict, w), batch)
        return batch.mean(self.per_example_loss(scores, batch.y, batch.live))

    def curved_loss(self, w: Vec, batch: Batch) -> Tensor:
        """As `loss`, with a curvature that decides on a learning rate where the loss itself has none."""
        per_row = self.criterion.curved().of_rows(self.predict(w, batch.x), batch.y, batch.live)
        return batch.mean(per_row)

    def per_example_loss(self, scores: Tensor, y: Tensor, live: Tensor | None = None) -> Tensor:
        """The loss of each example; those of survival depend on the others, of which `live` are real."""
        return self.criterion.of_rows(scores, y, live)

    def measured(
        self, clients: Sequence[str], scores: Tensor, y: Tensor, live: Tensor, x: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Every metric of stacked predictions (clients, rows, ...) by name, each (clients,), with `n`. `x` are the
        features, which a loss of the user's own may need."""
        z, truth, rows = scores.numpy(), y.numpy(), live.numpy()
        found = metrics(self.kind, z, truth, rows, self.scale, self.criterion)
        if isinstance(self.own, OwnLoss):
            found["own"] = self.own.of_scores(clients, scores, y, live, x)
        elif self.own:
            found["own"] = self.own.of(clients, self.in_own_unit(truth), self.answers(z), rows)
        return {k: torch.from_numpy(v) for k, v in found.items()}

    @property
    def scores_need_inputs(self) -> bool:
        return isinstance(self.own, OwnLoss) and self.own.takes_inputs

    def answers(self, scores: Array) -> Array:
        """Predictions as people read them: probabilities, numbers in the target's own unit, or logarithms of risks."""
        if self.kind == "classes":
            return probabilities(scores)
        return self.in_own_unit(self.criterion.numbers(scores))

    def in_own_unit(self, y: Array) -> Array:
        """Targets as the data have them: positions of classes as they are, numbers in their own unit."""
        return y if self.kind == "classes" else y * self.scale + self.offset

    def _mine(self) -> ThreadNet:
        """Weights are put in place of the network's own: every thread needs a network to itself, on each device."""
        nets: dict[torch.device, ThreadNet] = vars(self._own).setdefault("nets", {})
        device = here()
        if device not in nets:
            # A recording or a derivative may be going on. The copy is no part of it: its frozen weights stay.
            with _disable_current_modes(), temporarily_clear_interpreter_stack():
                net = copy.deepcopy(self.net)
                move_attributes(net, device)
                nets[device] = ThreadNet(net, tuple(self._w0[CPU]), self.statistics)
        return nets[device]


def slices(examples: Batch) -> Iterator[Batch]:
    """The examples, a few at a time: what a network remembers of them in between takes memory."""
    for first in range(0, max(len(examples.x), 1), _SLICE):
        rows = slice(first, first + _SLICE)
        yield Batch(examples.x[rows], examples.y[rows], examples.live[rows])


def predicted(predict: Callable[[Tensor], Tensor], examples: Batch) -> Tensor:
    """A predictor's scores of some examples."""
    parts = [predict(part.x) for part in slices(examples)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
