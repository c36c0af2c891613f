"""Personal models at a site: saved there at the end of a run, once, and used there.

A model that is there is never replaced: who predicts with it relies on it. A run that is interrupted while it
ends saves the same bytes again, which is fine.
Knows predictors and files. Does not know letters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from motet.atomic import write_atomically
from motet.checksums import BLANK, FIELD, with_checksum
from motet.client import ClientTest, predicted
from motet.core import Method, Tree
from motet.data.federated import FederatedData
from motet.deploy.site.policy import RefusedByPolicy
from motet.runs.finish import card, facts_of, named, only_numbers
from motet.runs.model_files import write_weights
from motet.runs.recipe import Recipe
from motet.vec import Vec
from motet.wire import pack


@dataclass(frozen=True)
class PersonalModel:
    """A personal model: the trees of its predictor, what is called with them, and its scores at the site."""

    trees: Tree
    call: str  # a function of the method, or `predict` of its task
    scores: dict[str, float]
    more: dict[str, Any] = field(default_factory=dict)  # what its card says besides

    @classmethod
    def of(cls, method: Method, sent: Tree, keep: Tree, who: ClientTest) -> tuple[PersonalModel, Tree]:
        own: Any = method.task.at_home(method.personal(sent, keep, who.data), who.data)
        tested = who.examples
        found = method.task.measured([""], predicted(own, tested)[None], tested.y[None], tested.live[None])
        scores = only_numbers(found) if len(tested) else {}
        about = method.described(own.args)
        return cls(own.args, getattr(own.func, "__name__", ""), scores, about), keep


def save_personal_model(
    path: Path, model: PersonalModel, recipe: Recipe, federated: FederatedData, number: int, site: str
) -> None:
    """A model's file and a card beside it, in the clear: they are the site's own, to be used there.

    Weights go into a safetensors file; what holds anything else, say other models, into motet's wire format.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings = recipe.settings | {"data": {"name": Path(federated.name).name}}
    facts = (
        facts_of(Recipe(settings), federated, number, site, model.scores) | {"call": model.call} | model.more
    )
    if all(isinstance(tree, Vec) for tree in model.trees):
        write_once(path.with_name(path.name + ".safetensors"), write_weights, named(model.trees), facts)
    else:
        content = with_checksum(pack({FIELD: BLANK, "facts": json.dumps(facts), "trees": model.trees}))
        write_once(path.with_name(path.name + ".motet"), write_atomically, content)
    write_once(path.with_name(path.name + ".md"), write_atomically, card(facts))


def write_once(path: Path, write: Callable[..., None], *content: Any) -> None:
    """A file that stays as it was first written, for its owner alone; other bytes for it are refused."""
    draft = path.with_name(path.name + ".new")
    write(draft, *content)
    draft.chmod(0o600)
    try:
        os.link(draft, path)  # fails where the file exists: nothing can come between looking and writing
    except FileExistsError:
        if path.read_bytes() != draft.read_bytes():
            raise RefusedByPolicy(
                f"{path} is finished, and what came for it is another model.\n"
                "hint: to let the run write it anew, move the file away",
                "state",
            ) from None
    finally:
        draft.unlink()
