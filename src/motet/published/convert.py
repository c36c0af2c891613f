"""Fitted models of several libraries as ONNX with one input x (rows, features) and one output y.

y holds probabilities (rows, classes) or numbers (rows, 1), all in 32 bits. Knows the converters. Does not
know manifests, or whether a model may leave.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from motet.errors import need
from motet.published import trees
from motet.published.framed_models import of_arrays
from motet.published.graph import OPSET, OPSET_ML, one_output, spread
from motet.published.manifest import Feature
from motet.published.pipelines import Values, by_steps, pipeline_to_onnx

KEEPS_ROWS = frozenset(
    [
        "KNeighborsClassifier",
        "KNeighborsRegressor",
        "RadiusNeighborsClassifier",
        "RadiusNeighborsRegressor",
        "SVC",
        "SVR",
        "NuSVC",
        "NuSVR",
        "OneClassSVM",
        "GaussianProcessClassifier",
        "GaussianProcessRegressor",
        "KernelRidge",
        "LabelPropagation",
        "LabelSpreading",
    ]
)  # models whose parameters are rows of the training data

_TREES = {"sklearnex": ("sklearnex",), "daal4py": ("sklearnex",)}  # forests of scikit-learn-intelex


def convert(
    model: Any, features: Sequence[Feature], task: str, classes: tuple[str, ...], values: Values
) -> tuple[Any, str]:
    """The model as an ONNX ModelProto, and what it was made with. `values` has what columns of text hold."""
    many = len(features)
    if (given := as_onnx(model)) is not None:
        which = (
            len(given.graph.output) - 1 if classes else 0
        )  # a converter's labels come before its probabilities
        return one_output(given, which, len(classes) or 1), "ONNX as given"
    if hasattr(model, "to_onnx"):
        return model.to_onnx(), "motet"
    if _is_torch(model):
        from motet.published.networks import to_onnx

        return to_onnx(model, many, task), _with("torch")
    if classes and not hasattr(model, "predict_proba"):
        raise ValueError(
            "it predicts classes without probabilities (it has no predict_proba)"
            "\nhint: LogisticRegression has them; CalibratedClassifierCV gives them to other models"
        )
    _check_fitted(model)
    model = chosen(model)
    predictor = partial(_predictor, task=task, classes=classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # converters warn of versions that are newer than themselves
        if by_steps(model, [f.name for f in features]):
            return pipeline_to_onnx(model, features, values, predictor)
        return predictor(model, many)


def _check_fitted(model: Any) -> None:
    """Refuse a model of scikit-learn that has learned nothing yet."""
    if not hasattr(model, "__sklearn_tags__"):
        return
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(model)
    except NotFittedError as e:
        raise ValueError("it is not fitted yet\nhint: model.fit(x, y) before motet.publish(model, …)") from e


def chosen(model: Any) -> Any:
    """Of a search the model that it chose."""
    return getattr(model, "best_estimator_", model)


def _predictor(model: Any, features: int, task: str, classes: tuple[str, ...]) -> tuple[Any, str]:
    """A predictor of numbers, with one output."""
    if hasattr(model, "to_onnx"):
        return model.to_onnx(), "motet"
    model, root = of_arrays(model), type(model).__module__.partition(".")[0]
    if trees.writes(model):
        made, used = trees.to_onnx(model, features), _with(*_TREES.get(root, ("sklearn",)))
    elif root in ("xgboost", "lightgbm"):
        made, used = _boosted(model, root, features), _with(root, "onnxmltools")
    else:
        made, used = _sklearn(model, features), _with("sklearn", "skl2onnx")
    made = one_output(made, 1 if len(made.graph.output) > 1 and classes else 0, len(classes) or 1)
    return (spread(made, places(model, classes), len(classes)) if classes else made), used


def as_onnx(model: Any) -> Any:
    """The ModelProto that a model is, or that its bytes or its file hold; None for a fitted model."""
    if type(model).__name__ == "ModelProto":
        return model
    if isinstance(model, str | Path):
        model = Path(model).read_bytes()
    if not isinstance(model, bytes):
        return None
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.ModelProto.FromString(model)
    except DecodeError as e:
        raise ValueError(f"it is not ONNX, or cut off: {e}") from e


def steps(model: Any) -> list[Any]:
    """A pipeline's parts, the predictor last; anything else alone."""
    model = chosen(model)
    return [part for _, part in model.steps] if type(model).__name__ == "Pipeline" else [model]


def keeps_rows(model: Any) -> str | None:
    """The name of a part whose parameters are rows of the training data, if there is one."""
    inside = model.get_params(deep=True).values() if hasattr(model, "get_params") else ()
    return next((type(m).__name__ for m in (model, *inside) if type(m).__name__ in KEEPS_ROWS), None)


def places(model: Any, classes: Sequence[str]) -> list[int]:
    """Which of `classes` each column of the model's probabilities is."""
    known = list(getattr(model, "classes_", range(len(classes))))
    by_name = {name: i for i, name in enumerate(classes)}
    if all(str(k) in by_name for k in known):
        return [by_name[str(k)] for k in known]
    if all(not isinstance(k, str) and int(k) == k and 0 <= k < len(classes) for k in known):
        return [int(k) for k in known]
    raise ValueError(
        f"the model knows the classes {[str(k) for k in known[:5]]}, which are not among {list(classes)[:5]}"
        "\nhint: classes are the names of all classes; train the model on names, or on their positions 0, 1, 2 …"
    )


def _with(*packages: str) -> str:
    """Names and versions of modules, which are loaded by now."""
    return ", ".join(f"{p} {_version(p)}".strip() for p in packages)


def _version(package: str) -> str:
    """As the module says it, or as it was installed."""
    if package == "sklearnex":
        return version("scikit-learn-intelex")
    return str(getattr(sys.modules[package], "__version__", ""))


def _sklearn(model: Any, features: int) -> Any:
    need("a model of scikit-learn as ONNX", "stacking", "skl2onnx")
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    model = _plain(model)
    options = {"zipmap": False} if hasattr(model, "predict_proba") else None
    return to_onnx(
        model,
        initial_types=[("x", FloatTensorType([None, features]))],
        options=options,
        target_opset={"": OPSET, "ai.onnx.ml": OPSET_ML},
    )


def _boosted(model: Any, root: str, features: int) -> Any:
    need("a boosted model as ONNX", "stacking", "onnxmltools")
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    types = [("x", FloatTensorType([None, features]))]
    if root == "xgboost":
        return onnxmltools.convert_xgboost(model, initial_types=types, target_opset=15)
    return onnxmltools.convert_lightgbm(model, initial_types=types, target_opset=15, zipmap=False)


def _plain(model: Any) -> Any:
    """The model as the converter knows it."""
    name = type(model).__name__
    if name == "VotingClassifier":
        model = copy.copy(model)
        model.flatten_transform = False  # only transform() uses it, which is not needed here
    if name == "LinearDiscriminantAnalysis":  # predicts like logistic regression, and is converted wrongly
        from sklearn.linear_model import LogisticRegression

        plain = LogisticRegression()
        for k in ("coef_", "intercept_", "classes_", "n_features_in_"):
            setattr(plain, k, getattr(model, k))
        return plain
    return model


def _is_torch(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def at_home(model: Any, x: Any, task: str, classes: tuple[str, ...]) -> Any:
    """The original model's predictions for rows as it knows them, in the columns of the published model."""
    import numpy as np

    if _is_torch(model):
        import torch

        from motet.published.networks import Answer

        with torch.no_grad():
            return Answer(model, task, x.shape[1]).eval()(torch.as_tensor(x)).numpy()
    if task == "numbers":
        return np.asarray(model.predict(x)).reshape(len(x), -1)
    p = np.zeros((len(x), len(classes)))
    p[:, places(model, classes)] = model.predict_proba(x)
    return p
