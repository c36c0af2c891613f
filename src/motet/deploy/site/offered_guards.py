"""The guards of a run as it is offered to a site: which they are, and why the site's policy does not allow them.

Knows recipes' guards and policies. Does not know letters, nor what guards do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from motet.core import Method, Tree
from motet.deploy.site.policy import Need, Objection, Policy
from motet.runs.sections import GuardSettings


def guard_in(recipe: Tree) -> GuardSettings:
    """The guards that a letter's recipe names."""
    given = recipe.get("guard", {}) if isinstance(recipe, Mapping) else {}
    return GuardSettings(**given) if isinstance(given, dict) else GuardSettings()


def clip_of(guard: GuardSettings, policy: Policy) -> float:
    """The longest update that leaves: the shorter limit of recipe and policy; 0: any."""
    return min((c for c in (guard.clip, policy.clip) if c), default=0.0)


def uncut(method: Method, policy: Policy) -> list[Objection]:
    """Why a policy that clips cannot let a method's replies leave: they are no updates, whose length says something."""
    if not policy.clip or method.replies_updates:
        return []
    text = f"this site's policy has clip = {policy.clip:g}, and what the method's clients send is no update alone"
    return [Objection("limits", text)]


def unmasked(
    masked: bool, sites: Sequence[str], min_in_sum: int, needs: Sequence[Need], policy: Policy
) -> list[Objection]:
    """Why the means of a run may not be as they are offered."""
    averaged = any(n.learn == "average" for n in needs)
    if averaged and policy.masks == "required" and not masked:
        text = "this site's policy has masks = \"required\", and the run's means are not masked"
        few = "\nhint: guard.masked=true; a federation of two sites cannot mask: its owners write masks = "
        return [Objection("masks", f'{text}{few}"allowed"')]
    if masked and averaged and 0 < len(sites) < min_in_sum:
        text = f"the run has {len(sites)} sites, and a masked sum needs {min_in_sum} (min_in_sum)"
        return [Objection("masks", text)]
    return []
