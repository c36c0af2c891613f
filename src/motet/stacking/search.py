"""Models to choose among by cross-validation, for private and for meta-models.

Knows scikit-learn's models and a few settings of each. Does not know stacks.
"""

from __future__ import annotations

from typing import Any

from motet.stacking.forests import forest


def linear(task: str) -> Any:
    """WrapperFL's meta-model: logistic regression of classes, least squares with a little ridge of numbers."""
    from sklearn import linear_model
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = linear_model.LogisticRegression(max_iter=1000) if task == "classes" else linear_model.Ridge(1e-3)
    return make_pipeline(StandardScaler(), model)


def searched(task: str, seed: int, cv: int) -> Any:
    """The best of forests, boosting and linear models with some settings each, by cross-validation."""
    from sklearn import ensemble
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import Pipeline

    kind = "Classifier" if task == "classes" else "Regressor"
    boosting = getattr(ensemble, f"HistGradientBoosting{kind}")(random_state=seed)
    grid = [
        {"model": [forest(task, seed, plain=True)], "model__min_samples_leaf": [1, 5]},
        {"model": [boosting], "model__max_leaf_nodes": [7, 31]},
        {"model": [linear(task)]},
    ]
    score = "balanced_accuracy" if task == "classes" else "r2"
    return GridSearchCV(Pipeline([("model", linear(task))]), grid, scoring=score, cv=cv, n_jobs=1)


def model_of(what: Any, task: str, seed: int, cv: int) -> Any:
    """A model to be fitted: "forest", "linear", "search", or a copy of the estimator that was given."""
    from sklearn.base import clone

    if what is None or what == "forest":
        return forest(task, seed, plain=True)
    if what == "linear":
        return linear(task)
    if what == "search":
        return searched(task, seed, cv)
    if isinstance(what, str):
        raise ValueError(f"a model is {what!r}; expected forest, linear, search, or an estimator")
    return clone(what)
