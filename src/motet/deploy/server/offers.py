"""What a server tells sites of a run: the part of the recipe that letters hold, the offer, and how sums are masked.

Knows recipes and letters. Does not know sites' answers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from motet.engines.letters import Letter
from motet.engines.masked_asks import MaskSettings
from motet.guard.accounting import epsilon_of_rounds
from motet.runs.build import guards_at_sites
from motet.runs.client_privacy import budget_at_sites, noise_of_site
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


def masks_of(recipe: Recipe) -> MaskSettings | None:
    """How sums of sites' replies are masked; None where they are not."""
    guard, noise = recipe.guard, 0.0
    if recipe.privacy.level == "client":
        noise = noise_of_site(budget_at_sites(recipe.privacy, guard, recipe.train.rounds).noise, guard)
    return MaskSettings(guard.mask_bits, guard.mask_range, guard.min_in_sum, noise) if guard.masked else None


def asked_of_sites(recipe: Recipe) -> dict[str, Any]:
    """What a server knows of its sites' budgets: what the recipe gives each of them. What they spent stays there."""
    settings, sites = recipe.privacy, recipe.guard.min_in_sum
    if not settings.on or not (settings.epsilon or settings.delta):
        return {}
    epsilon, noise = settings.epsilon, "each site's own, from its system's generator"
    if settings.level == "client":
        budget = budget_at_sites(settings, recipe.guard, recipe.train.rounds)
        epsilon = epsilon_of_rounds(budget.noise, 1.0, budget.rounds, budget.delta)
        noise = f"shares of sites, from their systems' generators; {sites} sites of a sum carry all of it"
    if not epsilon:
        return {}
    said = f"{noise}; the sites' ledgers have what was spent"
    return {
        "privacy": {
            "level": settings.level,
            "epsilon": epsilon,
            "delta": settings.delta or None,
            "noise": said,
        }
    }
