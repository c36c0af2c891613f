"""What a run spent of privacy budgets, as numbers and in words.

Knows the facts that a run wrote down. Does not know how budgets are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNCOUNTED = "not counted: scaling of columns, scores and what they chose"
UNITS = {"example": "each training row of a client", "client": "each client with all its rows"}


def spent(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Epsilon of the client that spent most, delta and what they protect; None where training was not private."""
    found = facts.get("privacy") or {}
    known = {"epsilon": "epsilon", "delta": "delta", "privacy": "level", "privacy_noise": "noise"}
    return {name: found.get(key) for name, key in known.items()}


def privacy_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """For the summary of a run; nothing where training was not private."""
    if summary.get("epsilon") is None:
        return []
    what = UNITS.get(summary["privacy"], str(summary["privacy"]))
    delta = f", delta {summary['delta']:.2g}" if summary["delta"] else ""
    text = f"epsilon {summary['epsilon']:.3g}{delta} for {what}"
    return [("privacy", f"{text}; noise: {summary['privacy_noise']}; {UNCOUNTED}")]


def budget_sentence(facts: Mapping[str, Any]) -> str:
    """For evidence: who spent how much; "" where training was not private."""
    found = facts.get("privacy") or {}
    if not found:
        return ""
    clients = "; ".join(f"{c}: {e:.4g}" for c, e in sorted((found.get("clients") or {}).items()))
    what = UNITS.get(found["level"], found["level"])
    delta = (
        f", delta {found['delta']:.2g}" if found.get("delta") else ""
    )  # sites may have found it themselves
    each = f" ({clients})" if clients else ""
    return f"epsilon {found['epsilon']:.4g}{delta} for {what}{each}; noise: {found['noise']}"


def noise_sentence(facts: Mapping[str, Any]) -> str:
    """For evidence: the noise of private training; "" where there was none."""
    found = facts.get("privacy") or {}
    if not found:
        return ""
    sizes = sorted(set((found.get("noise_multipliers") or {}).values()))
    between = f"{sizes[0]:.3g}" if len(sizes) < 2 else f"{sizes[0]:.3g} to {sizes[-1]:.3g}"
    length = (
        f"privacy.max_grad_norm = {found['max_grad_norm']:g}" if "max_grad_norm" in found else "guard.clip"
    )
    return f"Gaussian, {between} times {length}" if sizes else "Gaussian"
