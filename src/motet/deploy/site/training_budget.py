"""Private training at a site: its noise, and a budget that ends before anything leaves.

    terms = private_terms(recipe, method, own, rounds)  # at the offer: noise, rate and steps of a round
    line = spending(line, terms, policy, ledger)         # before each reply

The ledger has the private steps of every reply that left, over all runs, and an accountant composes them. What was
published besides counts by its own epsilon, which is added. Noise comes from the operating system's generator.

A budget is that of one row. Where whole sites are protected, an update is cut and gets the site's share of a masked
sum's noise: so much that the fewest replies which a sum may have carry all of it. One row may turn an update round,
by twice the length of the cut. So such a reply counts as a step on all rows with half of the sum's noise.
Knows policies, ledgers and accountants. Does not know letters, nor rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from msgspec.structs import replace as struct_with

from motet.client import ClientData
from motet.client.data import PrivateSteps
from motet.core import Method
from motet.deploy.site.ledger import Ledger, LedgerLine
from motet.deploy.site.policy import Need, Objection, Policy, RefusedByPolicy
from motet.guard.accounting import NoisySteps, epsilon_of
from motet.guard.pairs.client_noise import ClientNoise
from motet.runs.client_privacy import budget_at_sites, check_one_mean, not_at_sites
from motet.runs.example_privacy import check_coverage, check_network, example_budget
from motet.runs.recipe import Recipe

CLAUSE = "privacy"


@dataclass(frozen=True)
class PrivateTerms:
    """How one site's replies of one run are private; a part of the run's contract."""

    noise_multiplier: float  # of a step; of whole clients, of a sum of the fewest replies
    rate: float  # at which each row is drawn for a step
    steps: int  # of one reply
    max_grad_norm: float  # longest gradient of a row; of whole clients, longest update that noise is made for
    level: Literal["example", "client"] = "example"
    sites: int = 0  # of whole clients: fewest replies of a sum, which together carry its noise
    replies: int = 0  # most replies of this run, which together cost the recipe's epsilon; 0: it has none

    def taken(self, replies: int = 1) -> NoisySteps:
        noise = self.noise_multiplier / 2 if self.of_sites else self.noise_multiplier
        return NoisySteps(noise, self.rate, self.steps * replies)

    @property
    def of_sites(self) -> bool:
        return self.level == "client"

    @property
    def share(self) -> float:
        """Of whole clients: the deviation of this site's share of the noise."""
        return self.noise_multiplier * self.max_grad_norm / math.sqrt(self.sites)

    def protected(self, own: ClientData) -> ClientData:
        """The rows with what makes training on them private, by noise that nobody can draw again."""
        if self.of_sites:
            return own
        return replace(
            own, noise=self.noise_multiplier, private=PrivateSteps(self.max_grad_norm, system=True)
        )

    def guard(self, clip: float) -> ClientNoise:
        """Of whole clients: the guard of updates that are cut to `clip`. The noise hides others' updates too, so that
        a site which cuts its own shorter adds no less."""
        multiplier = self.noise_multiplier * self.max_grad_norm / clip
        return ClientNoise(clip, multiplier, self.sites, by="clients", system=True)


def private_terms(
    recipe: Recipe, method: Method, own: ClientData, rounds: int, sites: int = 0
) -> PrivateTerms | None:
    """The terms that a recipe asks for, with this site's number of rows, among so many sites (0: not known yet); None
    where it asks for none."""
    settings = recipe.privacy
    if not settings.on:
        return None
    if settings.level == "client":
        return whole_site_terms(recipe, method, rounds, sites)
    check_coverage(method, recipe["method"]["name"])
    check_network(method, {"": own})
    found = example_budget(settings, method, {"": own.n}, [[""]] * rounds).clients[""]
    most = found.rounds if settings.epsilon else 0
    return PrivateTerms(found.noise, found.rate, found.steps, settings.max_grad_norm, replies=most)


def whole_site_terms(recipe: Recipe, method: Method, rounds: int, sites: int) -> PrivateTerms:
    """The terms of whole sites. Every site finds the same noise: it follows from the recipe and the number of sites."""
    settings, guard = recipe.privacy, recipe.guard
    if why := not_at_sites(settings, guard):
        raise RefusedByPolicy(why, CLAUSE)
    check_one_mean(method, recipe["method"]["name"], settings.sampling)
    found = budget_at_sites(settings, guard, rounds, sites)
    most = found.rounds if settings.epsilon else 0
    return PrivateTerms(found.noise, 1.0, 1, guard.clip, "client", guard.min_in_sum, most)


def spent(
    policy: Policy, ledger: Ledger, more: Sequence[NoisySteps] = (), besides: str = "", quick: bool = False
) -> float:
    """Epsilon of all that left and of these steps more; of a run `besides`, only what other runs took counts. A
    `quick` bound is a little larger. A ledger that was changed is refused."""
    ledger.check_unchanged()
    history = [steps for run, steps in ledger.private if run != besides]
    found = epsilon_of([*history, *more], policy.delta, "rdp" if quick else "auto")
    return found + sum(ledger.budgets.values())


def spent_by(replies: Sequence[LedgerLine], delta: float) -> float:
    """Epsilon of the private steps behind some lines of a ledger."""
    return epsilon_of([NoisySteps(x.noise, x.rate, x.steps) for x in replies], delta)


def training_objections(
    policy: Policy, ledger: Ledger, terms: PrivateTerms | None, needs: Sequence[Need], rounds: int, run: str
) -> list[Objection]:
    """Why a run may not begin: it is not private and must be, or would spend more than is left."""
    trains = any(need.learn in ("average", "collect") for need in needs)
    if terms is None:
        if not trains or policy.private == "allowed":
            return []
        text = "this site's policy has private = \"required\", and the run's training is not private"
        return [Objection(CLAUSE, f"{text}\nhint: privacy.level=example privacy.epsilon=1")]
    if not policy.epsilon:
        return []
    wanted = spent(policy, ledger, [terms.taken(rounds)], besides=run)
    if wanted <= policy.epsilon * (1 + 1e-9):
        return []
    before = spent(policy, ledger, besides=run)
    return [
        Objection(
            CLAUSE,
            f"with this run epsilon {wanted:.4g} would be spent (delta {policy.delta:g}; {before:.4g} is already), and "
            f"this site's policy has epsilon = {policy.epsilon:g}\n"
            "hint: a smaller privacy.epsilon, fewer rounds, or a larger epsilon in the policy",
        )
    ]


def spending(line: LedgerLine, terms: PrivateTerms, policy: Policy, ledger: Ledger) -> LedgerLine:
    """The ledger's line with the steps of a reply; refused before anything is computed, if too little is left."""
    if terms.replies and sum(run == line.run for run, _ in ledger.private) >= terms.replies:
        raise RefusedByPolicy(
            f"{terms.replies} replies of this run have left, and more would cost more than the recipe's "
            "privacy.epsilon: this site takes no further part",
            CLAUSE,
        )
    taken = terms.taken()
    made = struct_with(line, noise=taken.noise, rate=taken.rate, steps=taken.steps)
    check_left(made, policy, ledger)
    return made


def check_left(line: LedgerLine, policy: Policy, ledger: Ledger) -> None:
    """Refuse a line of private steps for which too little is left; once more when it is written, because another run
    may have spent something meanwhile."""
    if not policy.epsilon or not line.steps or line.again:
        return
    more, most = [NoisySteps(line.noise, line.rate, line.steps)], policy.epsilon * (1 + 1e-9)
    if spent(policy, ledger, more, quick=True) <= most or (wanted := spent(policy, ledger, more)) <= most:
        return
    raise RefusedByPolicy(
        f"with this reply epsilon {wanted:.4g} would be spent, and this site's policy has epsilon = "
        f"{policy.epsilon:g}: the budget is spent, and this site takes no further part",
        CLAUSE,
    )
