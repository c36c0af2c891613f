"""Stacking: `build` combines a private model with models of others; estimators and contributions on top of it.

Knows rows, models and their owners. Does not know engines, rounds or how models are sent.
"""

from typing import Any

__all__ = ["Stack", "StackRows", "StackSettings", "StackedClassifier", "StackedRegressor", "build", "gains"]


def __getattr__(name: str) -> Any:
    """Imports scikit-learn and onnxruntime only when a name is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from motet.stacking import estimators, stack

    return getattr(stack, name) if hasattr(stack, name) else getattr(estimators, name)
