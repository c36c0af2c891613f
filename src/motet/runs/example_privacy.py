"""The privacy budgets of clients whose rows are protected one by one: who has which noise, and what it costs.

    budget = example_budget(recipe, method, clients_data)   # before training: every step that will be taken is known
    budget.clients["a"].noise, budget.epsilon("a", rounds=10)

Epsilon is that of one training row of one client, against everybody who sees what leaves the client, for all rounds
together. Numbers of rows are taken as known. Neighbours differ by one row, which is there or not.
Knows recipes, numbers of rows and accountants. Does not train.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from motet.client import ClientData
from motet.client.batches import batches_in_epoch
from motet.client.data import PrivateSteps
from motet.client.population import Population
from motet.core import Client, Method
from motet.guard.accounting import NoisySteps, epsilon_of, noise_for
from motet.runs.recipe_text import RecipeError
from motet.runs.sections import PrivacySettings


@dataclass(frozen=True)
class ClientBudget:
    """What one client's training costs."""

    noise: float  # multiplier
    rate: float  # at which each row is drawn for a step
    steps: int  # of a round
    rounds: int  # in which the client takes part, at most

    def after(self, rounds: int) -> list[NoisySteps]:
        return [NoisySteps(self.noise, self.rate, self.steps * rounds)]


@dataclass(frozen=True)
class Budget:
    """The budgets of all clients of a run."""

    settings: PrivacySettings
    delta: float
    clients: Mapping[Client, ClientBudget]
    last: Mapping[Client, int]  # the last round in which each may take part; -1: none
    least: int = 1  # fewest clients of a round: masked sums have no fewer

    def epsilon(self, client: Client, rounds: int) -> float:
        """What a client has spent after so many rounds."""
        return epsilon_of(self.clients[client].after(rounds), self.delta, self.settings.accountant)

    def allowed(self, cohort: Sequence[Client], number: int) -> list[Client]:
        """Those of a round's cohort whose budget is enough for it; nobody where they are too few for a round."""
        left = [c for c in cohort if number <= self.last[c]]
        return left if len(left) >= self.least else []

    def left(self, cohort: Sequence[Client], spent: Mapping[Client, int], played: int) -> list[Client]:
        """Those of a cohort who have a round left after so many of their own, rounds that are done again included."""
        able = [c for c in cohort if spent.get(c, 0) < self.clients[c].rounds]
        return able if len(able) >= self.least else []

    def protected(self, client: Client, data: ClientData, system: bool = False) -> ClientData:
        """The client's examples, with what makes training on them private."""
        how = PrivateSteps(self.settings.max_grad_norm, system)
        return replace(data, noise=self.clients[client].noise, private=how)

    def planned(self) -> Mapping[Client, NoisySteps]:
        """All steps that each client may take in this run."""
        return {c: own.after(own.rounds)[0] for c, own in self.clients.items()}

    def spent_in(self, cohort: Sequence[Client]) -> Iterator[tuple[Client, int, float, float]]:
        """What a round is for the record: (client, steps, noise multiplier, rate)."""
        for client in cohort:
            own = self.clients[client]
            yield client, own.steps, own.noise, own.rate

    def facts(self, rounds: Mapping[Client, int], played: int) -> dict[str, Any]:
        """For the run's record: who spent how much."""
        spent = {c: self.epsilon(c, rounds.get(c, 0)) for c in self.clients}
        return {
            "level": "example", "epsilon": max(spent.values(), default=0.0), "delta": self.delta,
            "max_grad_norm": self.settings.max_grad_norm, "accountant": self.settings.accountant,
            "noise": "arithmetic, for studies", "clients": spent, "rounds": dict(rounds),
            "noise_multipliers": {c: b.noise for c, b in self.clients.items()},
        }  # fmt: skip


def example_budget(
    settings: PrivacySettings,
    method: Method,
    rows: Mapping[Client, int],
    cohorts: Sequence[Sequence[Client]],
    least: int = 1,
) -> Budget:
    """Budgets for clients with so many rows that are drawn for these rounds, each of `least` clients or more;
    RecipeError where there can be none."""
    drawn: dict[Client, list[int]] = {c: [] for c in rows}
    for number, cohort in enumerate(cohorts):
        for client in cohort:
            drawn[client].append(number)
    delta = settings.delta or usual_delta(max(rows.values()))
    check_rows(settings, delta, rows)
    made = {c: client_budget(settings, delta, method, n, len(drawn[c])) for c, n in rows.items()}
    if settings.epsilon and not any(b.rounds for b in made.values()):
        raise RecipeError(
            f"privacy.noise_multiplier is {settings.noise_multiplier:g}, with which the first round costs more than "
            f"privacy.epsilon, {settings.epsilon:g}, at every client\nhint: more noise, or a larger epsilon"
        )
    last = {c: last_round(drawn[c], b.rounds, len(cohorts)) for c, b in made.items()}
    budget = Budget(settings, delta, made, last, least)
    if not any(budget.allowed(cohort, number) for number, cohort in enumerate(cohorts)):
        raise RecipeError(
            f"no round has {least} clients whose budget is enough for it: privacy.noise_multiplier is "
            f"{settings.noise_multiplier:g} and privacy.epsilon {settings.epsilon:g}\n"
            "hint: more noise, a larger epsilon or train.cohort, or guard.masked=false"
        )
    return budget


def last_round(drawn: Sequence[int], enough: int, rounds: int) -> int:
    """The last round for which a budget is enough, of a client that is drawn in these; -1: none. One that is enough for
    all of them limits nothing, also in shadow runs, whose draws are others.

    >>> last_round([0, 2, 5], 2, 8), last_round([0, 2, 5], 3, 8), last_round([0, 2, 5], 0, 8)
    (2, 7, -1)
    """
    if enough == len(drawn):
        return rounds - 1
    return drawn[enough - 1] if enough else -1


def client_budget(
    settings: PrivacySettings, delta: float, method: Method, n: int, rounds: int
) -> ClientBudget:
    """The noise that is given, or that the wanted epsilon needs; with both, rounds until epsilon is spent."""
    rate = 1.0 / float(batches_in_epoch(Batches(int(method.batch)), torch.tensor(n)))  # type: ignore[attr-defined]
    steps = method.private_steps(n)
    if settings.noise_multiplier:
        found = ClientBudget(settings.noise_multiplier, rate, steps, rounds)
        return replace(found, rounds=most_rounds(found, settings, delta)) if settings.epsilon else found
    try:
        noise = noise_for(settings.epsilon, delta, rate, max(1, steps * rounds), settings.accountant)
    except ValueError as e:
        raise RecipeError(str(e)) from e
    return ClientBudget(noise, rate, steps, rounds)


def most_rounds(found: ClientBudget, settings: PrivacySettings, delta: float) -> int:
    """How many rounds the wanted epsilon is enough for."""

    def cost(rounds: int) -> float:
        return epsilon_of(found.after(rounds), delta, settings.accountant)

    low, high = 0, found.rounds
    if cost(high) <= settings.epsilon:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) <= settings.epsilon else (low, middle)
    return low


@dataclass(frozen=True)
class Batches:
    """How rows become batches, for the rate at which they are drawn."""

    batch: int
    drop_last: bool = False
    augment: bool = False


def usual_delta(n: int) -> float:
    """The largest power of ten up to 1 / (10 n).

    >>> usual_delta(100), usual_delta(99), usual_delta(1000)
    (0.001, 0.001, 0.0001)
    """
    return 10.0 ** -math.ceil(math.log10(10 * max(n, 1)) - 1e-9)


def check_rows(settings: PrivacySettings, delta: float, rows: Mapping[Client, int]) -> None:
    """Refuse a delta with which the rows of a client might leave as they are, and clients without rows."""
    client, n = max(rows.items(), key=lambda item: item[1])
    if delta * n >= 1:
        raise RecipeError(
            f"privacy.delta is {delta:g}, and client {client} has {n} training rows: delta must be below 1 / {n}, else "
            f"whole rows may leave\nhint: privacy.delta={usual_delta(n):g}"
        )
    if few := [c for c, n in rows.items() if n < 2]:
        raise RecipeError(
            f"client {few[0]} has {rows[few[0]]} training rows, too few to hide one among them\n"
            "hint: data.without=NAME leaves a client out"
        )


# ---- what cannot be private ----


def check_coverage(method: Method, name: str) -> None:
    """Refuse methods of which a budget would not cover all that leaves."""
    if "private_steps" in vars(type(method)):
        return
    published = (
        "published models have budgets of their own (method.public)" if method.has_public_models else ""
    )
    why = method.beyond_budget or published or "nobody has checked that nothing but private steps sees rows"
    raise RecipeError(
        f"privacy.level is example, and of {name} a budget would not cover all: {why}\n"
        "hint: fedavg, fedprox, mrmtl, ditto, fedper, scaffold and local are covered; docs/guides/privacy.md has all"
    )


def check_network(method: Method, clients_data: Mapping[Client, ClientData]) -> None:
    """Refuse networks and losses whose gradient of one row rests on other rows."""
    task = method.task
    if task.statistics in ("averaged", "local"):
        raise RecipeError(
            f"privacy.level is example, and the network has BatchNorm with {task.statistics} statistics: they mix the "
            "rows of a batch, and no gradient is that of one row\nhint: net.norm=group, or net.statistics=shared"
        )
    if task.kind == "survival":
        raise RecipeError(
            "privacy.level is example, and the loss of survival times compares rows with each other: no gradient is "
            "that of one row\nhint: privacy.level=client"
        )
    if any(d.weighted for d in clients_data.values()):
        raise RecipeError(
            "privacy.level is example, and rows have weights: the weight of a row depends on those of others\n"
            "hint: leave data.weight out"
        )


def check_few_clients(clients_data: Mapping[Client, ClientData]) -> None:
    if isinstance(clients_data, Population):
        raise RecipeError(
            f"privacy.level is example, and there are {len(clients_data):,} clients: budgets of single rows are kept "
            "for fewer than 10,000 clients\nhint: privacy.level=client"
        )
