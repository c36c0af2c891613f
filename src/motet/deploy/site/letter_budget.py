"""What comes too often at a site: asks of a round, rounds, scorings, losses and numbers of sketches.

Knows contracts, the ledger's counts and the policy. Does not know what is asked.
"""

from __future__ import annotations

import torch

from motet.core import Tree
from motet.deploy.site.contract import Contract
from motet.deploy.site.ledger import SCORING_JOBS, Ledger, name_of_ask
from motet.deploy.site.policy import Policy, RefusedByPolicy
from motet.deploy.site.score_budget import check_scorings
from motet.engines.letters import Letter
from motet.vec import leaves


def check_budget(letter: Letter, digest: str, contract: Contract, ledger: Ledger, policy: Policy) -> None:
    """Refuse what comes too often. The same letter once more tells nothing new, and does not count."""
    ask = name_of_ask(letter.job, letter.verb)
    rule, known = contract.rule(ask), ledger.asks[letter.run, letter.round, ask]
    if rule is None or digest in known:
        return
    if len(known) >= rule.per_round or ledger.in_all[letter.run, ask] >= rule.in_all:
        raise RefusedByPolicy(
            f"{ask} may come {rule.per_round} times in a round and {rule.in_all} in all, and did", "asks"
        )
    if letter.job in SCORING_JOBS:
        check_scorings(ledger, letter, policy)
    one_more = (letter.run, letter.round) not in ledger.rounds
    if letter.job == "verb" and one_more and len(ledger.rounds) >= policy.rounds:
        raise RefusedByPolicy(
            f"this site's policy has rounds = {policy.rounds}, and they are used up", "rounds"
        )


def numbers_left(verb: str, tree: Tree, contract: Contract, ledger: Ledger) -> int:
    """How many numbers a reply of losses or of a sketch has; more than are left are refused."""
    many, rule = sum(torch.as_tensor(v).numel() for v in leaves(tree)), contract.rule(verb)
    if rule and rule.numbers and many > rule.numbers:
        raise RefusedByPolicy(
            f"{verb} sends {rule.numbers} numbers at most, and {many} were asked for", "asks"
        )
    if sum(ledger.numbers.values()) + many > contract.losses:
        raise RefusedByPolicy(
            f"this site's policy has losses = {contract.losses:,}, and they are used up", "losses"
        )
    return many
