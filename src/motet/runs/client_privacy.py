"""The privacy budget of whole clients: the noise of a run's means, and what it costs.

Epsilon is that of one client with all its rows, against everybody who sees the models but neither single updates nor
cohorts' draws. Neighbours differ by one client, whose updates count as zero or not. With fixed cohorts no draw
is taken for a secret: each round in which a client takes part counts fully. With Poisson draws every round counts, at
the rate of the draw, which must then stay secret.
Knows recipes, cohorts and accountants. Does not train.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from motet.core import Client, Method
from motet.guard.accounting import NoisySteps, epsilon_of_rounds, noise_of_rounds
from motet.guard.pairs.client_noise import ClientNoise
from motet.runs.example_privacy import usual_delta
from motet.runs.method_asks import asks_in
from motet.runs.recipe_text import RecipeError
from motet.runs.sections import GuardSettings, PrivacySettings

_RARE = 1e-6  # largest chance that a Poisson draw of the whole run is empty


@dataclass(frozen=True)
class ClientLevelBudget:
    """The budget that all clients of a run share."""

    settings: PrivacySettings
    delta: float
    noise: float  # multiplier
    rate: float  # at which a client is drawn, where the draw is a secret; else 1
    cohort: float  # clients that are expected in a round
    rounds: int  # until epsilon is spent
    most: int  # rounds that count for the client that is drawn most often

    def allowed(self, cohort: Sequence[Client], number: int) -> list[Client]:
        return list(cohort) if number < self.rounds else []

    def left(self, cohort: Sequence[Client], spent: Mapping[Client, int], played: int) -> list[Client]:
        """The cohort, if all of it has a round left after so many, rounds that are done again included: noise is that
        of whole cohorts."""
        most = min(self.most, self.rounds)
        counts = [played] if self.settings.sampling == "poisson" else [spent.get(c, 0) for c in cohort]
        return list(cohort) if all(many < most for many in counts) else []

    def planned(self) -> Mapping[Client, NoisySteps]:
        """What the whole run may cost any client."""
        return {"": NoisySteps(self.noise, self.rate, min(self.most, self.rounds))}

    def spent_in(self, cohort: Sequence[Client]) -> Iterator[tuple[Client, int, float, float]]:
        """What a round is for the record: (client, releases, noise multiplier, rate)."""
        yield from ((c, 1, self.noise, self.rate) for c in cohort)

    def guard(self, guard: GuardSettings) -> ClientNoise:
        s = self.settings
        return ClientNoise(
            guard.clip, self.noise, self.cohort, s.noise, s.sampling == "poisson", s.clip_quantile
        )

    def facts(self, rounds: Mapping[Client, int], played: int) -> dict[str, Any]:
        """For the run's record, after so many rounds of each client, and so many of the run."""
        poisson = self.settings.sampling == "poisson"
        counted = {c: played if poisson else many for c, many in rounds.items()}
        spent = {c: epsilon_of_rounds(self.noise, self.rate, many, self.delta) for c, many in counted.items()}
        return {
            "level": "client", "epsilon": max(spent.values(), default=0.0), "delta": self.delta, "accountant": "pld",
            "noise": f"arithmetic, for studies; added by {self.settings.noise}", "sampling": self.settings.sampling,
            "clients": spent, "rounds": dict(rounds), "noise_multipliers": dict.fromkeys(rounds, self.noise),
        }  # fmt: skip


def client_level_budget(
    settings: PrivacySettings, clients: int, cohort: float, cohorts: Sequence[Sequence[Client]]
) -> ClientLevelBudget:
    """The budget of a run with these cohorts, `cohort` clients each; RecipeError where there can be none."""
    rounds, poisson = len(cohorts), settings.sampling == "poisson"
    delta = settings.delta or usual_delta(clients)
    if delta * clients >= 1:
        raise RecipeError(
            f"privacy.delta is {delta:g}, and there are {clients} clients: delta must be below 1 / {clients}, else "
            f"whole clients may be seen\nhint: privacy.delta={usual_delta(clients):g}"
        )
    rate = cohort / clients if poisson else 1.0
    if poisson and rounds * (1 - rate) ** clients > _RARE:
        raise RecipeError(
            f"privacy.sampling is poisson, and with {cohort:g} of {clients} clients in a round some round would draw "
            "nobody\nhint: a larger train.cohort, or privacy.sampling=fixed"
        )
    if poisson and settings.noise == "clients":
        raise RecipeError(
            "privacy.sampling is poisson, and privacy.noise is clients: the noise of a sum would follow the draw\n"
            "hint: privacy.noise=server, or privacy.sampling=fixed"
        )
    counted = rounds if poisson else max(Counter(c for some in cohorts for c in some).values(), default=0)
    noise = settings.noise_multiplier or noise_of_rounds(settings.epsilon, rate, max(1, counted), delta)
    made = ClientLevelBudget(settings, delta, noise, rate, cohort, rounds, counted)
    if settings.clip_quantile:
        _ = made.guard(GuardSettings(clip=1.0)).of_updates  # refuses rounds of too few clients
    return until_spent(made, counted) if settings.epsilon and settings.noise_multiplier else made


def until_spent(made: ClientLevelBudget, counted: int) -> ClientLevelBudget:
    """With rounds until epsilon is spent; as if everybody took part in every round."""
    if epsilon_of_rounds(made.noise, made.rate, counted, made.delta) <= made.settings.epsilon:
        return made
    low, high = 0, made.rounds
    while high - low > 1:
        middle = (low + high) // 2
        fits = epsilon_of_rounds(made.noise, made.rate, middle, made.delta) <= made.settings.epsilon
        low, high = (middle, high) if fits else (low, middle)
    if not low:
        raise RecipeError(
            f"privacy.noise_multiplier is {made.noise:g}, with which the first round costs more than privacy.epsilon, "
            f"{made.settings.epsilon:g}\nhint: more noise, or a larger epsilon"
        )
    return replace(made, rounds=low)


def not_at_sites(settings: PrivacySettings, guard: GuardSettings) -> str:
    """Why sites cannot protect themselves as whole clients by these settings; "" if they can."""
    if not guard.masked:
        return (
            "privacy.level is client, and guard.masked is false: a site adds its share of a sum's noise, which is too "
            "little for a reply that leaves alone\nhint: guard.masked=true"
        )
    if settings.noise != "clients":
        return (
            "privacy.level is client, and privacy.noise is server: sites add noise themselves, and need trust nobody\n"
            "hint: privacy.noise=clients"
        )
    if settings.sampling != "fixed":
        return (
            "privacy.level is client, and privacy.sampling is poisson: the server draws who is asked, so that the draw "
            "is no secret\nhint: privacy.sampling=fixed"
        )
    if settings.epsilon and not settings.delta:
        return (
            "privacy.level is client, privacy.epsilon is given, and privacy.delta is 0: of a few sites it cannot be "
            "found by their number\nhint: privacy.delta=1e-5"
        )
    return ""


def budget_at_sites(
    settings: PrivacySettings, guard: GuardSettings, rounds: int, sites: int = 1
) -> ClientLevelBudget:
    """The budget of sites that add noise themselves. It is the same for all of them, and for the server: noise is made
    for the fewest replies that a sum may have, and not for those that come."""
    if why := not_at_sites(settings, guard):
        raise RecipeError(why)
    return client_level_budget(settings, max(sites, 1), guard.min_in_sum, [[""]] * rounds)


def noise_of_site(noise: float, guard: GuardSettings) -> float:
    """The deviation of each number of one site's share of the noise.

    >>> noise_of_site(2.0, GuardSettings(clip=0.5, min_in_sum=4))
    0.5
    """
    return noise * guard.clip / math.sqrt(guard.min_in_sum)


def check_one_mean(method: Method, name: str, sampling: str) -> None:
    """Refuse methods that send losses, sketches or models beside updates, whose replies are collected, or whose server
    lets everybody see how many clients a secret draw has."""
    collects = [verb for verb, how in asks_in(type(method)) if how == "collect"]
    if method.measuring:
        what = f"measures rows ({', '.join(method.measuring)})"
    elif collects:
        what = f"collects single replies ({', '.join(collects)})"
    elif sampling == "poisson" and method.counts_cohort:
        raise RecipeError(
            f"privacy.sampling is poisson, and the server's step of {name} depends on how many clients were drawn, "
            "which must stay secret\nhint: privacy.sampling=fixed, or method=fedavg"
        )
    else:
        return
    raise RecipeError(
        f"privacy.level is client, and {name} {what}, which the noise does not cover\n"
        "hint: fedavg, fedprox, fedper, finetune, ditto, mrmtl, scaffold"
    )
