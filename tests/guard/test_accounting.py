"""What private steps and rounds cost: Opacus' own numbers, and the noise for a wanted epsilon."""

from __future__ import annotations

import math
import sys

import pytest

from motet.errors import UsageError
from motet.guard.accounting import (
    NoisySteps,
    epsilon_of,
    epsilon_of_rounds,
    noise_for,
    noise_of_rounds,
)

accountants = pytest.importorskip("opacus.accountants")
WAYS = [(1.0, 0.1, 100), (4.0, 0.5, 60), (20.0, 0.02, 1500)]


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_epsilon_is_opacus_own(kind: tuple[float, float, int], accountant: str) -> None:
    book = accountants.create_accountant(accountant)
    for _ in range(kind[2]):
        book.step(noise_multiplier=kind[0], sample_rate=kind[1])
    ours = epsilon_of([NoisySteps(*kind)], 1e-4, accountant)  # type: ignore[arg-type]
    assert ours == pytest.approx(book.get_epsilon(1e-4), rel=0.01)


def test_auto_takes_the_smaller_bound_and_steps_add_up() -> None:
    kind = NoisySteps(4.0, 0.5, 60)
    each = [epsilon_of([kind], 1e-4, way) for way in ("rdp", "prv")]  # type: ignore[arg-type]
    assert epsilon_of([kind], 1e-4) == min(each)
    assert epsilon_of([NoisySteps(4.0, 0.5, 20), NoisySteps(4.0, 0.5, 40)], 1e-4) == min(each)
    assert epsilon_of([], 1e-4) == 0 and epsilon_of([NoisySteps(0.0, 0.5, 1)], 1e-4) == math.inf


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_noise_for_an_epsilon_costs_that_epsilon(epsilon: float) -> None:
    noise = noise_for(epsilon, 1e-4, 0.1, 100, "rdp")
    assert 0.99 * epsilon <= epsilon_of([NoisySteps(noise, 0.1, 100)], 1e-4, "rdp") <= epsilon


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-4), (-1.0, 1e-4), (1.0, 0.0), (1.0, 1.0)])
def test_budgets_that_are_none_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        noise_for(epsilon, delta, 0.1, 10)


def test_without_opacus_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(UsageError, match=r"pip install 'motet\[dp\]'"):
        epsilon_of([NoisySteps(3.21, 0.1, 7)], 1e-4)


def test_rounds_of_whole_clients_agree_with_the_same_steps() -> None:
    pytest.importorskip("dp_accounting")
    ours = epsilon_of_rounds(2.0, 0.2, 50, 1e-5)
    assert ours == pytest.approx(epsilon_of([NoisySteps(2.0, 0.2, 50)], 1e-5, "prv"), rel=0.02)
    assert epsilon_of_rounds(2.0, 1.0, 50, 1e-5) > ours
    # one Gaussian release: delta = Phi(1/2z - ez) - e^e Phi(-1/2z - ez), here solved for e by the accountant
    e, z = epsilon_of_rounds(3.0, 1.0, 1, 1e-5), 3.0

    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    assert phi(0.5 / z - e * z) - math.exp(e) * phi(-0.5 / z - e * z) == pytest.approx(1e-5, rel=0.05)
    noise = noise_of_rounds(1.0, 1.0, 10, 1e-5)
    assert 0.99 <= epsilon_of_rounds(noise, 1.0, 10, 1e-5) <= 1.0
