"""Limits of a policy that the settings of an offered run may break: weights, widths, rates, passes over the rows.

Knows methods' settings and policies. Does not know letters, nor rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from motet.core import Method
from motet.deploy.site.policy import Objection, Policy
from motet.deploy.site.row_shares import is_pass, is_rate


def unbounded(method: Method, most: float) -> list[Objection]:
    """Particles move without a limit of their own; training by gradients is held to the policy letter by letter."""
    bound = getattr(method, "bound", None)
    if bound is None or not most or 0 < bound <= most:
        return []
    text = f"method.bound is {bound:g} (0: any weight), and this site's policy has weight = {most:g}"
    return [Objection("weight", f"{text}; hint: method.bound={most:g}")]


def too_wide(method: Method, rows: int, policy: Policy) -> list[Objection]:
    """Why a network has too many weights: units of a wide one can be made to see one row each."""
    many = sum(v.numel() for v in method.task.w0.values())
    if not policy.weights_per_row or many <= policy.weights_per_row * rows:
        return []
    text = f"the network has {many:,} weights and this site {rows} training rows"
    most = f"{policy.weights_per_row:g}"
    return [Objection("weights", f"{text}, and this site's policy has weights_per_row = {most}")]


def out_of_range(name: str, value: float, policy: Policy) -> list[Objection]:
    most = policy.epochs if is_pass(name) else policy.rate if is_rate(name) else math.inf
    if value <= most:
        return []
    field = "epochs" if is_pass(name) else "rate"
    return [Objection("limits", f"method.{name} is {value:g}, and this site's policy has {field} = {most:g}")]


def too_many_steps(settings: Mapping[str, float], rows: int, policy: Policy) -> list[Objection]:
    """A number of local steps may not be more passes over the rows than a number of epochs may be."""
    steps, batch = settings.get("steps", 0), settings.get("batch", 1)
    if (passes := steps * batch / max(rows, 1)) <= policy.epochs:
        return []
    text = f"method.steps is {steps:g}, some {passes:,.0f} passes over the rows"
    return [Objection("limits", f"{text}, and this site's policy has epochs = {policy.epochs:g}")]


def few(many: int, what: str, least: int) -> str:
    return f"there are {many} {what}, and this site's policy has least_rows = {least}"
