"""How much of a trained reply one row is, and batches that leave no row alone.

A reply is where local training ends: the sum of its steps' directions, each the mean of a batch. Rows of a small batch
count more than others, and steps do not count alike: a pull to a fixed point (weight decay, FedProx's mu) makes a step
forget those before it, momentum makes the first steps count more. A server chooses these settings.
Knows settings of methods and numbers of rows. Does not know rows, letters or policies.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from motet.client import ClientData
from motet.core import Method
from motet.deploy.site.loss_limits import heaviest_row

_STEPS = 20_000  # last steps of a round that are looked at: a share in more of them is smaller
_BETA1 = 0.9  # of Adam
_SHOWN = ("batch", "steps", "decay", "momentum")  # besides passes and rates
_PASSES = (
    "tune",
    "mix_first",
    "inner",
    "stretch",
    "trees",
    "tries",
)  # settings that repeat work, besides epochs


@dataclass(frozen=True)
class StepWeights:
    """How much each step of local training counts where it ends."""

    pull: float = (
        0.0  # share of the way back to a fixed point in each step, 0 to 1; 1: a step forgets all before
    )
    momentum: float = 0.0  # of sgd
    adam: bool = False

    @classmethod
    def of(cls, method: Method) -> StepWeights:
        rates = [v for k, v in settings_of(method).items() if is_rate(k)]
        penalty = getattr(method, "penalty", float)()
        momentum = float(getattr(method, "momentum", 0.0))
        pull = max(rates, default=0.0) * penalty / max(1 - momentum, 1e-9)
        kept = max(1 - pull, 0.0) ** int(getattr(method, "inner", 1))  # pfedme pulls so often in each step
        return cls(1 - kept, momentum, getattr(method, "optimiser", "sgd") != "sgd")

    def last(self, steps: int) -> np.ndarray:
        """(steps,) sizes of what a unit of each step's gradient has become after the last step."""
        kept = 1 - self.pull
        if self.adam:  # its m is a mean of gradients, corrected for its start
            at = np.arange(1, steps + 1)
            corrected = kept ** (steps - at) / (1 - _BETA1**at)
            made = np.zeros(steps)
            for t in range(steps - 1, -1, -1):
                made[t] = corrected[t] + (_BETA1 * made[t + 1] if t + 1 < steps else 0.0)
            return made
        found, way, speed = np.zeros(steps), 0.0, 1.0
        for t in range(steps - 1, -1, -1):
            way = kept * way + speed  # where the weights are, as far as this gradient moved them
            found[t], speed = way, self.momentum * speed
        return found


def largest_share(method: Method, n: int) -> float:
    """The largest share of one row in a reply that was trained on n rows; 0 for one that trains in no batches.

    >>> from motet.methods.fedavg import FedAvg
    >>> [round(largest_share(FedAvg(None, batch=16, decay=d), 33), 2) for d in (0, 5, 10)]
    [0.33, 0.57, 1.0]
    """
    if not hasattr(method, "batch"):
        return 0.0
    return max((_share(method, rows) for rows in method.parts_trained(n)), default=1.0)


def _share(method: Method, rows: int) -> float:
    """Of one part of the rows. In each epoch a row is in one batch; it may be the one that counts most every time."""
    if rows < 1:
        return 1.0
    batch = min(int(method.batch), rows)  # type: ignore[attr-defined]
    whole, rest = divmod(rows, batch)
    sizes = np.array([batch] * whole + [rest] * (rest > 0))  # of an epoch's batches
    steps = int(getattr(method, "steps", 0)) or len(sizes) * max(epochs_of(method), 1)
    spare = max(steps - _STEPS, 0) // len(sizes) * len(sizes)  # whole epochs at the start
    steps -= spare
    weights = StepWeights.of(method).last(steps)
    shares = weights / np.resize(sizes, steps)
    most = sum(shares[k : k + len(sizes)].max() for k in range(0, steps, len(sizes)))
    return float(min(1.0, most / weights.sum()))


def epochs_of(method: Method) -> int:
    """The fewest epochs of one training: with fewer of them, an epoch's last rows count no less."""
    found = [getattr(method, k) for k in ("epochs", "epochs_min") if hasattr(method, k)]
    return int(min(found, default=1))


def share_of_row(method: Method, own: ClientData) -> float:
    """The largest share of one row, with the weight that the loss gives it."""
    return min(1.0, largest_share(method, own.n) * heaviest_row(method.task.criterion, own.train.y))


def with_even_batches(method: Method, n: int, least: int) -> Method:
    """The same method with the nearest size of batches that leaves no batch of fewer than `least` of n rows: the rows
    of a small one at an epoch's end could be told from two replies. A size that is itself too small stays, and is
    refused.

    >>> from motet.methods.fedavg import FedAvg
    >>> [with_even_batches(FedAvg(None, batch=b), 33, 10).batch for b in (16, 5, 11, 64)]
    [17, 5, 11, 64]
    """
    batch, parts = int(getattr(method, "batch", n)), method.parts_trained(n)
    if batch < least or n < least or all(_even(p, batch, least) for p in parts):
        return method
    sizes = sorted(range(least, max(parts) + 1), key=lambda b: (abs(b - batch), -b))
    fits = next(b for b in sizes if all(_even(p, b, least) for p in parts))
    return replace(method, batch=fits)  # type: ignore[call-arg]


def _even(rows: int, batch: int, least: int) -> bool:
    return rows <= batch or rows % batch == 0 or rows % batch >= least


# ---- settings by what they do ----


def settings_of(method: Method) -> dict[str, float]:
    """Batch, passes over rows, learning rates and what pulls them back, by name; all as floats, so that a contract
    that was stored and read again has the same hash."""
    found = ((f.name, getattr(method, f.name)) for f in fields(method))
    some = ((k, v) for k, v in found if k in _SHOWN or is_pass(k) or is_rate(k))
    return {k: v if v == "auto" else float(v) for k, v in some}


def is_pass(name: str) -> bool:
    return "epochs" in name or name in _PASSES


def is_rate(name: str) -> bool:
    return name in ("lr", "lr_min", "lr_max") or (name.endswith("_lr") and name != "server_lr")
