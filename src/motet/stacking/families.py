"""The families of models that a stack can be made of, private or meta: forests, boosting, linear models, a search.

Knows scikit-learn's models and a few settings of each. Does not know rows or stacks.
"""

from __future__ import annotations

import warnings
from typing import Any

_OF_TREES = "`sklearn.utils.parallel.delayed` should be used with"


def model_of(what: Any, task: str, seed: int, *, trees: int = 100, cv: int = 3) -> Any:
    """An unfitted model of a family, or an unfitted copy of the estimator that was given."""
    from sklearn.base import clone

    families = {
        "forest": lambda: forest(task, seed, trees),
        "boosting": lambda: boosting(task, seed, trees),
        "linear": lambda: linear(task),
        "search": lambda: search(task, seed, cv),
    }
    if what is not None and not isinstance(what, str):
        return clone(what)
    if (what or "forest") not in families:
        raise ValueError(f"a model is {what!r}; expected {', '.join(families)}, or an estimator")
    return families[what or "forest"]()


def library_of(*families: str) -> str:
    """The library that makes a client's own models of these families, with its version; forests are scikit-learn's
    own unless a caller asks for others."""
    import sklearn

    return f"{', '.join(dict.fromkeys(families))}: scikit-learn {sklearn.__version__}"


def weights_for(model: Any, weight: Any) -> dict[str, Any]:
    """What a model's `fit` is given so that rows count by their weights; nothing where they have none."""
    if weight is None:
        return {}
    steps = getattr(model, "steps", None)  # of a pipeline: each must be told
    return {f"{name}__sample_weight": weight for name, _ in steps} if steps else {"sample_weight": weight}


def forest(task: str, seed: int, trees: int = 100) -> Any:
    """scikit-learn's random forest, for one thread."""
    from sklearn import ensemble

    hide_warnings_of_trees()
    name = "RandomForestClassifier" if task == "classes" else "RandomForestRegressor"
    return getattr(ensemble, name)(n_estimators=trees, random_state=seed % 2**31, n_jobs=1)


def hide_warnings_of_trees() -> None:
    """scikit-learn replaces the process's warning filters for every tree. Where clients work in threads the filters
    can be lost in between, and it then warns of every tree, thousands of times in a run. The sentence is about its
    own code, and is not shown."""
    shown = warnings.showwarning
    if getattr(shown, "hides_trees", False):
        return

    def show(message: Warning | str, *about: Any) -> None:
        if not str(message).startswith(_OF_TREES):
            shown(message, *about)

    quiet: Any = show
    quiet.hides_trees = True
    warnings.showwarning = quiet


def boosting(task: str, seed: int, trees: int = 100) -> Any:
    from sklearn import ensemble

    kind = "Classifier" if task == "classes" else "Regressor"
    make = getattr(ensemble, f"HistGradientBoosting{kind}")
    return make(max_iter=trees, random_state=seed % 2**31)


def linear(task: str) -> Any:
    """Logistic or ridge regression of standardised columns. As a meta-model it is WrapperFL's."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=500) if task == "classes" else Ridge())


def search(task: str, seed: int, cv: int) -> Any:
    """The best of forests, boosting and linear models with some settings each, by cross-validation."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import Pipeline

    grid = [
        {"model": [forest(task, seed)], "model__min_samples_leaf": [1, 5]},
        {"model": [boosting(task, seed)], "model__max_leaf_nodes": [7, 31]},
        {"model": [linear(task)]},
    ]
    score = "balanced_accuracy" if task == "classes" else "r2"
    return GridSearchCV(Pipeline([("model", linear(task))]), grid, scoring=score, cv=cv, n_jobs=1)
