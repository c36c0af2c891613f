"""What a server tells sites of a run: the part of the recipe that letters hold, and the offer.

Knows recipes and letters. Does not know sites' answers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from motet.engines.letters import Letter
from motet.runs.build import guards_at_sites
from motet.runs.recipe import Recipe


def sites_recipe(recipe: Recipe) -> dict[str, Any]:
    """What letters hold of a recipe; a user's own metric is computed at sites, motet's others need no name."""
    held = {"method": recipe["method"], "net": recipe["net"], "seed": recipe.seed} | guards_at_sites(recipe)
    own = ":" in recipe.train.metric
    return held | ({"train": {"metric": recipe.train.metric}} if own else {})


def offer(run: str, recipe: Recipe, sites: Collection[str]) -> Letter:
    """The offer of a run, with all sites whose replies may be in one sum."""
    send = {"rounds": recipe.train.rounds, "sites": sorted(sites)}
    return Letter("offer", run, recipe=sites_recipe(recipe), send=send)
