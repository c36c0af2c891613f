"""Models that were fitted on data frames, as models of plain arrays, which is what is published.

A column transformer finds its columns by name, XGBoost keeps names of columns: both become places in the order of
the published features. Knows fitted models. Does not know ONNX.
"""

from __future__ import annotations

import copy
from typing import Any


def of_arrays(model: Any) -> Any:
    """The same fitted model, which reads columns by their places; nothing changes where it does already."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        return model
    made = copy.deepcopy(model)
    place = {str(n): k for k, n in enumerate(names)}
    for part in _parts(made):
        if type(part).__name__ == "ColumnTransformer":
            part.transformers = [_placed(t, place) for t in part.transformers]
            part.transformers_ = [_placed(t, place) for t in part.transformers_]
            part._columns = [columns for _, _, columns in part.transformers]
        if hasattr(part, "get_booster"):
            booster = part.get_booster()
            booster.feature_names = booster.feature_types = (
                None  # of a flag, the converter looks for no threshold
            )
        if hasattr(part, "feature_names_in_"):
            _without_names(part)
    return made


def _parts(model: Any) -> list[Any]:
    """A model, the steps of a pipeline, and what a column transformer holds."""
    inside = [part for _, part in getattr(model, "steps", ())]
    inside += [t for _, t, *_ in getattr(model, "transformers_", ()) if not isinstance(t, str)]
    return [model, *(p for part in inside for p in _parts(part))]


def _placed(step: Any, place: dict[str, int]) -> Any:
    name, part, columns = step
    one = isinstance(columns, str)
    found = [place[str(c)] if isinstance(c, str) else c for c in ([columns] if one else _listed(columns))]
    return name, part, found[0] if one else found


def _listed(columns: Any) -> list[Any]:
    return [] if callable(columns) else list(columns)


def _without_names(part: Any) -> None:
    try:
        del part.feature_names_in_
    except AttributeError:  # XGBoost and LightGBM compute it
        return
