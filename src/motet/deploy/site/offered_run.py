"""A run as it is offered to a site: its contract, or the reasons why the site takes no part.

Knows contracts, policies and ledgers. Does not know letters' bytes, nor where contracts are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from motet.client import ClientData
from motet.core import Method
from motet.deploy.site.contract import Contract, derive, objections
from motet.deploy.site.ledger import Ledger
from motet.deploy.site.loss_limits import loss_objections
from motet.deploy.site.policy import Need, Policy, RefusedByPolicy
from motet.deploy.site.publications import SitePublisher
from motet.deploy.site.training_budget import private_terms, training_objections
from motet.engines.letters import Letter
from motet.runs.recipe import Recipe


@dataclass(frozen=True)
class OfferedRun:
    """What a site knows of a run that is offered to it."""

    letter: Letter
    recipe: Recipe
    method: Method
    own: ClientData
    layout: str
    rounds: int
    needs: Sequence[Need]
    sites: Sequence[str]
    trial: SitePublisher

    def contract(self, policy: Policy, ledger: Ledger, before: Contract | None) -> Contract:
        """The run's contract, if the whole run is within the policy; `before` is that of a run which has begun."""
        letter, method, own = self.letter, self.method, self.own
        terms = private_terms(self.recipe, method, own, self.rounds, len(self.sites))
        made = derive(
            letter.run, letter.recipe, method, own, self.layout, self.rounds, self.needs, policy, self.sites, terms
        )  # fmt: skip
        wrong = objections(made, method, self.needs, policy, ledger.spent_by_others(letter.run))
        wrong += loss_objections(method.task, own) + self.trial.objections()
        wrong += training_objections(policy, ledger, terms, self.needs, self.rounds, letter.run)
        if before and (other := before.same_run(made)):
            wrong.insert(0, other)
        if wrong:
            raise RefusedByPolicy("; ".join(o.text for o in wrong), wrong[0].clause)
        return made
