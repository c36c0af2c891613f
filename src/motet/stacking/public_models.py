"""The models that a client publishes: of the family that was chosen for it, as ONNX with a manifest.

A private family spends one budget on the model and on the defaults of its columns, and the manifest states all of
it. At an organisation the noise comes from the system's generator. In a simulation it follows from the run's seed,
so that the run can be repeated; the manifest then says that it protects nobody.
Knows rows, families and budgets. Does not know who fetches the models, nor where they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from motet.errors import UsageError
from motet.published import Feature, Privacy, Published, defaults, publish
from motet.published.public_choice import PublicChoice
from motet.stacking.stack import StackRows, fitted

_RANGE = 3.0  # deviations of a standardised number that private training takes for its range
_HIDDEN = (32,)  # of a private network
ARITHMETIC = "the noise is arithmetic: it follows from the run's seed and protects nobody"


def public_models(choice: PublicChoice, rows: StackRows, seed: int, *, secret: bool) -> list[Published]:
    """All versions of what a client publishes; `secret` draws noise that nobody can draw again."""
    rows = _of_columns(rows, choice.held(rows.names))
    if not choice.is_private:
        mechanism: Any = "noise" if choice.noise else "plain"
        features = defaults(rows.x, rows.kinds, mechanism, choice.noise, seed)
        model = fitted(choice.family, rows, seed + 1, choice.trees)
        return [_published(model, rows, features, _named(choice))]
    features = _private_defaults(choice, rows, seed, secret)
    return [_private(choice, k, rows, features, seed, secret) for k in range(choice.versions)]


def _of_columns(rows: StackRows, names: Sequence[str]) -> StackRows:
    if list(names) == rows.names:
        return rows
    at = [rows.names.index(n) for n in names]
    return replace(rows, x=rows.x[:, at], kinds={n: rows.kinds[n] for n in names})


def _named(choice: PublicChoice) -> str:
    """The family in words."""
    return {
        "forest": f"forest of {choice.trees} trees",
        "boosting": f"boosting of {choice.trees} rounds",
        "linear": "linear model",
        "dp-linear": "private logistic regression",
        "dp-network": "private network",
        "dp-boosting": "private boosting",
    }[choice.family]


def _published(model: Any, rows: StackRows, features: Sequence[Feature], family: str) -> Published:
    privacy = getattr(model, "privacy", None)
    about: Any = {"task": rows.task, "classes": rows.classes, "privacy": privacy, "family": family}
    return publish(model, features, client="public", **about)


# ---- families with a budget ----


def _private(
    choice: PublicChoice, version: int, rows: StackRows, features: Sequence[Feature], seed: int, secret: bool
) -> Published:
    """One version: its budget is that of the model and of the defaults together."""
    epsilon = choice.budgets[version] - choice.for_defaults
    model = _private_model(choice.family, rows, epsilon, None if secret else seed + version)
    made = _published(model, rows, features, _named(choice))
    return replace(made, manifest=replace(made.manifest, privacy=_whole(choice, model.privacy, secret)))


def _whole(choice: PublicChoice, of_model: Privacy, secret: bool) -> Privacy:
    """The claim for a model with its defaults; a note names all versions together."""
    epsilon = (of_model.epsilon or 0.0) + choice.for_defaults
    note = f"{of_model.note.partition('; the noise')[0]}, and so is the scaling of columns"
    note += f"; epsilon {choice.for_defaults:g} of it is for the defaults of columns"
    if choice.versions > 1:
        note += f"; all {choice.versions} versions together spend {choice.spent:g}"
    note += "" if secret else f"; {ARITHMETIC}"
    return Privacy(f"{of_model.mechanism}, private medians", epsilon, of_model.delta, note)


def _private_defaults(choice: PublicChoice, rows: StackRows, seed: int, secret: bool) -> tuple[Feature, ...]:
    bounds = dict(zip(rows.names, _bounds(rows), strict=True))
    return defaults(rows.x, rows.kinds, "dp", choice.for_defaults, seed, bounds, simulated=not secret)


def _bounds(rows: StackRows) -> list[tuple[float, float]]:
    """Ranges of columns. Numbers must be standardised over the whole federation: their range is taken to be three
    deviations, because private training must not look at the data for it."""
    return [(0.0, 1.0) if kind == "flag" else (-_RANGE, _RANGE) for kind in rows.kinds.values()]


def _private_model(family: str, rows: StackRows, epsilon: float, seed: int | None) -> Any:
    if not rows.classes and family != "dp-boosting":
        raise UsageError(
            f"{family} predicts classes, and these targets are numbers.\nhint: public=dp-boosting, or public=linear"
        )
    if family == "dp-boosting" and len(rows.classes) > 2:
        raise UsageError(
            f"{family} knows two classes, and there are {len(rows.classes)}.\nhint: public=dp-network knows more"
        )
    model = _unfitted(family, rows, epsilon, seed)
    return model.fit(np.asarray(rows.x, np.float64 if family == "dp-boosting" else np.float32), rows.y)


def _unfitted(family: str, rows: StackRows, epsilon: float, seed: int | None) -> Any:
    bounds = _bounds(rows)
    if family == "dp-boosting":
        from motet.guard.private_models.dp_boosting import DPBoostingClassifier, DPBoostingRegressor

        number = None if seed is None else seed % 2**31
        about: Any = {"epsilon": epsilon, "bounds": bounds, "random_state": number}
        if rows.classes:
            return DPBoostingClassifier(**about)
        return DPBoostingRegressor(target=(-_RANGE, _RANGE), **about)
    from motet.guard.private_models.dp_network import DPLogistic, DPNetwork

    about = {"epsilon": epsilon, "bounds": bounds, "classes": list(range(len(rows.classes)))}
    about["random_state"] = seed
    return DPLogistic(**about) if family == "dp-linear" else DPNetwork(_HIDDEN, **about)
