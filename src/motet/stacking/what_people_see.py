"""What people see of a run of the method Stacking: its summary, its stacks' cards, stacks as files, and variants.

These are functions of the method, which stands first among their arguments.
Knows the server's state and kept stacks. Does not know how runs are stored or shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from motet.client import Data
from motet.stacking import client_choices, client_stack, contribution
from motet.stacking.catalogue import Tree, announced
from motet.stacking.families import library_of


def summary(method: Any, state: Tree) -> dict[str, Any]:
    """Contributions, what each client published and is served, and which library made their own models."""
    trust, catalogue = state["trust"], state["catalogue"]
    served = {c: method.download(state, c) for c in trust}
    return contribution.summary(state) | {
        "published": {c: announced(m) for c, m in catalogue.items()},
        "served": contribution.policies_in_use(trust, served, method.threshold, method.versions),
        "made_with": library_of(method.private, method.meta),
    }


def record(method: Any, reported: Tree, last: Tree) -> dict[str, Any]:
    """The summary of the reported state, with the history of all rounds that ran."""
    return summary(method, reported | {"history": last["history"]})


def remarks(method: Any) -> list[str]:
    return client_choices.remarks(method.outbox, method.terms)


def described(method: Any, own: Sequence[Tree]) -> dict[str, Any]:
    return {"stack": client_stack.described(own[0], method.meta)}


def one_graph(
    method: Any, own: Sequence[Tree], inputs: Mapping[str, Any], target: Mapping[str, Any]
) -> bytes:
    return client_stack.as_one_graph(own[0], inputs, target, method.task)


def variant_model(method: Any, name: str, view: Tree, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
    """The kept stack if it is of this variant, else one that is made for the comparison and then forgotten."""
    same = method.variant == name or (method.variant == "auto" and keep and keep.get("variant") == name)
    how, kept = (method, keep) if same else (replace(method, variant=name), ())
    data = data if same else client_stack.of_first_stack(keep, data)
    model: Callable[[Tensor], Tensor] = how.personal(view, kept, data)
    return model
