"""An averaged reply as it leaves a site through the guards of the recipe and of the site's policy.

Knows letters, contracts and guards. Does not know masks, nor rows.
"""

from __future__ import annotations

from dataclasses import replace

from motet.client import seed_of
from motet.client.visit import Visit
from motet.core import Method, Tree
from motet.deploy.site.contract import Contract
from motet.deploy.site.offered_guards import guard_in
from motet.engines.letters import Letter
from motet.guard.pairs.chain import Chain, Leaving
from motet.runs.build import chain_of


def left_through_guards(
    letter: Letter, method: Method, contract: Contract, visit: Visit, tree: Tree, kept: Tree
) -> tuple[Tree, Tree]:
    """What leaves in place of a reply, and what guards keep: as on any other engine."""
    chain = chain_of(replace(guard_in(letter.recipe), clip=contract.clip))
    if contract.private and contract.private.of_sites:
        chain = Chain((contract.private.guard(contract.clip),))
    if chain is None or letter.learn != "mean" or letter.verb in method.measuring:
        return tree, kept
    seed = seed_of(seed_of(visit.seed, visit.client), "guard", letter.verb)
    about = Leaving(letter.send, float(visit.client_data.n), seed)
    message, own = chain.leave(tree, about, kept.get(letter.verb, {}))
    return message, kept | {letter.verb: own}
