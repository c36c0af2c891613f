"""What private steps cost: epsilon of noisy steps, and the noise for a wanted epsilon.

Steps of DP-SGD are counted by Opacus' accountants: Renyi differential privacy (rdp), and numerical composition (prv,
Gopi et al. 2021), which is tighter for most settings. Both are upper bounds, so that `auto` takes the smaller one.
Rounds of client-level noise are counted by Google's dp-accounting (privacy loss distributions).
Neighbours of steps differ by one row, which is there or not. Both libraries are imported here and nowhere else.
Knows numbers. Does not know rows, clients or methods.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from motet.errors import need

Accountant = Literal["auto", "rdp", "prv"]
_CLOSE = 0.005  # share of the wanted epsilon that may be left unspent
_TRIES = 60
LEAST_NOISE = 0.01  # multiplier: epsilon of a single full step is then above 5,000
_LARGE = 40.0  # epsilon above which no second bound is looked for: the grid of prv grows with it


class NoisySteps(NamedTuple):
    """Steps of the same noise multiplier and sampling rate."""

    noise: float
    rate: float
    steps: int


def epsilon_of(history: Sequence[NoisySteps], delta: float, accountant: Accountant = "auto") -> float:
    """The epsilon of all these steps together; infinite without noise, 0 without steps."""
    return _epsilon(merged(history), delta, accountant)


def merged(history: Sequence[NoisySteps]) -> tuple[NoisySteps, ...]:
    """Steps of one kind counted together, in the order in which they first came.

    >>> merged([NoisySteps(1.0, 0.1, 5), NoisySteps(2.0, 0.1, 5), NoisySteps(1.0, 0.1, 2)])
    (NoisySteps(noise=1.0, rate=0.1, steps=7), NoisySteps(noise=2.0, rate=0.1, steps=5))
    """
    found: dict[tuple[float, float], int] = {}
    for noise, rate, steps in history:
        found[noise, rate] = found.get((noise, rate), 0) + steps
    return tuple(NoisySteps(*kind, steps) for kind, steps in found.items() if steps)


@lru_cache(maxsize=4096)
def _epsilon(history: tuple[NoisySteps, ...], delta: float, accountant: Accountant) -> float:
    if not history:
        return 0.0
    if min(kind.noise for kind in history) <= 0:
        return math.inf
    if accountant != "auto":
        return _by_opacus(history, delta, accountant)
    by_renyi = _by_opacus(history, delta, "rdp")
    if by_renyi > _LARGE:
        return by_renyi
    try:
        return min(by_renyi, _by_opacus(history, delta, "prv"))
    except (
        ArithmeticError,
        MemoryError,
        RuntimeError,
        ValueError,
    ):  # too much or too little noise for its grid
        return by_renyi


def _by_opacus(history: tuple[NoisySteps, ...], delta: float, accountant: str) -> float:
    book = opacus_accountants().create_accountant(accountant)
    book.history = [tuple(kind) for kind in history]
    with warnings.catch_warnings():  # that another order of Renyi's divergence might be tighter
        warnings.simplefilter("ignore")
        found = float(book.get_epsilon(delta))
    if not math.isfinite(found) or found < 0:
        raise ArithmeticError(f"the accountant {accountant} finds epsilon {found}")
    return found


def opacus_accountants() -> Any:
    need("counting a privacy budget", "dp", "opacus")
    from opacus import accountants

    return accountants


@lru_cache(maxsize=4096)
def noise_for(
    epsilon: float, delta: float, rate: float, steps: int, accountant: Accountant = "auto"
) -> float:
    """How many times the clipping length the noise must be, so that all steps cost `epsilon` at most.

    The logarithm of epsilon falls nearly linearly with that of the noise, so that a few tries between a bound below
    and one above are enough.
    """
    check_budget(epsilon, delta)

    def cost(noise: float) -> float:
        return epsilon_of([NoisySteps(noise, rate, steps)], delta, accountant)

    low, high = LEAST_NOISE, max(1.0, rate * math.sqrt(steps) / epsilon)
    while (above := cost(high)) > epsilon:
        low, high = high, 2 * high
        if high > 1e7:
            raise too_small(epsilon, steps, accountant)
    below = cost(low)
    for _ in range(_TRIES):
        if above >= epsilon * (1 - _CLOSE) or high / low < 1 + 1e-6:
            break
        middle = between(low, below, high, above, epsilon)
        found = cost(middle)
        low, below, high, above = (
            (middle, found, high, above) if found > epsilon else (low, below, middle, found)
        )
    return high


def between(low: float, below: float, high: float, above: float, wanted: float) -> float:
    """The next try: where a line through the logarithms would meet the wanted cost, or the middle."""
    aim = wanted * (1 - _CLOSE / 2)
    share = 0.5
    if math.isfinite(below) and above > 0 and below > above:
        share = (math.log(below) - math.log(aim)) / (math.log(below) - math.log(above))
    return float(low * (high / low) ** min(0.95, max(0.05, share)))


def check_budget(epsilon: float, delta: float) -> None:
    if not epsilon > 0 or not 0 < delta < 1:
        raise ValueError(f"epsilon is {epsilon} and delta {delta}; they are above 0, and delta below 1")


def too_small(epsilon: float, steps: int, accountant: str) -> ValueError:
    return ValueError(
        f"epsilon {epsilon:g} is too small for {steps} steps by the accountant {accountant!r}\n"
        "hint: a larger epsilon, fewer steps, or the accountant prv"
    )


# ---- rounds of noise on whole clients ----


@lru_cache(maxsize=1024)
def epsilon_of_rounds(noise: float, rate: float, rounds: int, delta: float) -> float:
    """The epsilon of so many rounds in which a client takes part with this rate (1: always), by privacy loss
    distributions; the noise is that of the sum, as a multiple of the clipping length."""
    if not rounds:
        return 0.0
    if noise <= 0:
        return math.inf
    need("counting budgets of whole clients", "dp", "dp_accounting")
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    gaussian = dp_accounting.GaussianDpEvent(noise)
    one = gaussian if rate >= 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)
    book = PLDAccountant().compose(dp_accounting.SelfComposedDpEvent(one, rounds))
    return float(book.get_epsilon(delta))


@lru_cache(maxsize=1024)
def noise_of_rounds(epsilon: float, rate: float, rounds: int, delta: float) -> float:
    """The noise with which so many rounds cost `epsilon` at most."""
    check_budget(epsilon, delta)
    low, high = LEAST_NOISE, 1.0
    while epsilon_of_rounds(high, rate, rounds, delta) > epsilon:
        low, high = high, 2 * high
        if high > 1e7:
            raise too_small(epsilon, rounds, "pld")
    while high / low > 1 + _CLOSE / 2:
        middle = math.sqrt(low * high)
        if epsilon_of_rounds(middle, rate, rounds, delta) > epsilon:
            low = middle
        else:
            high = middle
    return high
