"""How many losses and numbers of sketches may still leave a site.

Knows contracts and the ledger's counts. Does not know what the numbers are.
"""

from __future__ import annotations

import torch

from motet.core import Tree
from motet.deploy.site.contract import Contract
from motet.deploy.site.ledger import Ledger
from motet.deploy.site.policy import RefusedByPolicy
from motet.vec import leaves


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
