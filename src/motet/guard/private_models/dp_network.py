"""Networks that are trained with differential privacy: logistic regression and several layers.

DP-SGD, Abadi et al. 2016, Algorithm 1: batches are drawn by Poisson sampling, each example's gradient is
clipped to a length, Gaussian noise is added to their sum. The noise for a wanted (epsilon, delta) and the
budget that was spent come from Opacus' accountant; neighbours differ by one row.

What the guarantee takes as public: the number of rows, the classes, bounds of the columns, all settings.
Noise comes from the system's generator. With a `random_state` it can be drawn again, and protects nobody who may know
the seed.
Knows rows and classes. Does not know clients or manifests of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor, nn

from motet.client.chance import Chance, chance_of
from motet.guard.accounting import Accountant, NoisySteps, epsilon_of, noise_for
from motet.guard.private_models.ranges import Ranges
from motet.published.graph import assemble
from motet.published.manifest import Privacy
from motet.published.networks import operators


@dataclass(eq=False, repr=False)
class DPNetwork(ClassifierMixin, BaseEstimator):
    """A classifier like scikit-learn's; `bounds` are pairs (lowest, highest) of each column."""

    hidden: tuple[int, ...] = ()
    epsilon: float = 1.0
    delta: float = 1e-5
    bounds: Any = None
    classes: Sequence[Any] | None = None
    epochs: int = 20
    batch: int = 256
    lr: float = 2.0
    clip: float = 1.0
    accountant: Accountant = "rdp"
    random_state: int | None = None

    def fit(self, x: np.ndarray, y: np.ndarray) -> DPNetwork:
        x, y = np.asarray(x, np.float32), np.asarray(y)
        self.classes_ = np.unique(y) if self.classes is None else np.asarray(self.classes)
        self.n_features_in_ = x.shape[1]
        self.ranges_ = Ranges.of(self.bounds, x.shape[1])
        chance = chance_of(self.random_state)
        self.net_ = _net((x.shape[1], *self.hidden, len(self.classes_)), chance)
        self._train(torch.as_tensor(self.ranges_.scaled(x)), self._codes(y), chance)
        return self

    def _codes(self, y: np.ndarray) -> Tensor:
        codes = np.searchsorted(self.classes_, y)
        if (codes >= len(self.classes_)).any() or (self.classes_[codes] != y).any():
            raise ValueError(
                f"y has classes that are not among {list(self.classes_)[:5]}\nhint: they are sorted"
            )
        return torch.as_tensor(codes)

    def _train(self, x: Tensor, y: Tensor, chance: Chance) -> None:
        rate = min(1.0, self.batch / len(x))
        steps = max(1, round(self.epochs / rate))
        sigma = noise_for(self.epsilon, self.delta, rate, steps, self.accountant)
        self.spent_ = epsilon_of([NoisySteps(sigma, rate, steps)], self.delta, self.accountant)
        w = {k: v.detach() for k, v in self.net_.named_parameters()}
        for step in range(steps):
            chosen = chance.uniform(len(x)) < rate
            total = clipped(self.net_, w, x[chosen], y[chosen], self.clip)
            lr = self.lr * (1 - step / steps)  # slower and slower: late noise is averaged out
            for k in w:
                shaken = total[k] + sigma * self.clip * chance.normal(w[k].shape)
                w[k] = w[k] - lr * shaken / (rate * len(x))
        self.net_.load_state_dict(w)

    @torch.no_grad()
    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.net_(torch.as_tensor(self.ranges_.scaled(x))).softmax(1).numpy())

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.classes_[self.predict_proba(x).argmax(1)])

    @property
    def privacy(self) -> Privacy:
        """For the manifest: the budget that was spent, and what it takes for granted."""
        repeats = "" if self.random_state is None else "; the noise is drawn from a seed"
        note = f"{self.accountant} accountant; rows, classes and bounds are taken as public{repeats}"
        return Privacy("DP-SGD", self.spent_, self.delta, note)

    def to_onnx(self) -> Any:
        from onnx import helper

        before, constants = self.ranges_.operators("z")
        nodes, more, last, columns = operators(self.net_, "z", self.n_features_in_)
        end = helper.make_node("Softmax", [last], ["y"], axis=1)
        return assemble([*before, *nodes, end], [*constants, *more], self.n_features_in_, columns)


@dataclass(eq=False, repr=False)
class DPLogistic(DPNetwork):
    """Logistic regression."""

    hidden: tuple[int, ...] = field(default=(), init=False)
    lr: float = 4.0


def clipped(net: nn.Module, w: dict[str, Tensor], x: Tensor, y: Tensor, length: float) -> dict[str, Tensor]:
    """The sum of the examples' gradients, each as long as `length` at most."""
    from torch.func import functional_call, grad, vmap

    def loss(w: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        scores = functional_call(net, w, (row[None],))
        return nn.functional.cross_entropy(scores, label[None])

    if not len(x):
        return {k: torch.zeros_like(v) for k, v in w.items()}
    each = vmap(grad(loss), (None, 0, 0))(w, x, y)
    long = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
    share = (length / long.clamp(min=1e-12)).clamp(max=1.0)
    return {k: torch.tensordot(share, g, 1) for k, g in each.items()}


def _net(widths: tuple[int, ...], chance: Chance) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(zip(widths, widths[1:], strict=False)):
        linear = nn.Linear(a, b)
        with torch.no_grad():  # logistic regression begins at 0, layers before others as He et al. 2015
            spread = (2 / a) ** 0.5 if i < len(widths) - 2 else 0.0
            linear.weight.copy_(chance.normal((b, a)) * spread)
            linear.bias.zero_()
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
