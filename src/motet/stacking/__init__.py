"""Stacking for one organisation: estimators that take fetched models, and the paper's procedure, fast."""

from typing import Any

__all__ = ["StackedClassifier", "StackedRegressor", "gains"]


def __getattr__(name: str) -> Any:
    """The estimators, which need scikit-learn, when somebody asks for them."""
    if name in __all__:
        from motet.stacking import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
