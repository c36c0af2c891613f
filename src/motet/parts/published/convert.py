"""Fitted models of several libraries as ONNX with one input x (rows, features) and one output y.

y holds probabilities (rows, classes) or numbers (rows, 1), all in 32 bits. Knows the converters. Does not
know manifests, or whether a model may leave.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from motet.parts.published.graph import one_output, spread

OPSET, OPSET_ML = 18, 3  # what the converters of scikit-learn are asked for
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


def convert(model: Any, features: int, task: str, classes: tuple[str, ...]) -> tuple[Any, str]:
    """The model as an ONNX ModelProto, and what it was made with."""
    if hasattr(model, "to_onnx"):
        return model.to_onnx(), "motet"
    if _is_torch(model):
        from motet.parts.published.networks import to_onnx

        return to_onnx(model, features, task), _with("torch")
    root = type(model).__module__.partition(".")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # converters warn of versions that are newer than themselves
        if root in ("xgboost", "lightgbm"):
            made = one_output(_boosted(model, root, features), 1 if classes else 0, len(classes) or 1)
            used = _with(root, "onnxmltools")
        else:
            made = one_output(_sklearn(model, features), 1 if classes else 0, len(classes) or 1)
            used = _with("sklearn", "skl2onnx")
    return (spread(made, places(model, classes), len(classes)) if classes else made), used


def steps(model: Any) -> list[Any]:
    """A pipeline's parts, the predictor last; anything else alone."""
    return [part for _, part in model.steps] if type(model).__name__ == "Pipeline" else [model]


def places(model: Any, classes: Sequence[str]) -> list[int]:
    """Which of `classes` each column of the model's probabilities is."""
    known = list(getattr(model, "classes_", range(len(classes))))
    by_name = {name: i for i, name in enumerate(classes)}
    if all(str(k) in by_name for k in known):
        return [by_name[str(k)] for k in known]
    if all(not isinstance(k, str) and int(k) == k and 0 <= k < len(classes) for k in known):
        return [int(k) for k in known]
    raise ValueError(
        f"the model knows the classes {known[:5]}, which are not among {list(classes)[:5]}"
        "\nhint: classes are the names of all classes; the model is taught names, or their places 0, 1, 2 …"
    )


def _with(*packages: str) -> str:
    """Names and versions of modules, which are loaded by now."""
    return ", ".join(f"{p} {getattr(sys.modules[p], '__version__', '')}".strip() for p in packages)


def _sklearn(model: Any, features: int) -> Any:
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
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    types = [("x", FloatTensorType([None, features]))]
    if root == "xgboost":
        return onnxmltools.convert_xgboost(model, initial_types=types, target_opset=15)
    return onnxmltools.convert_lightgbm(model, initial_types=types, target_opset=15, zipmap=False)


def _plain(model: Any) -> Any:
    """scikit-learn's own class where a faster one was used, and what the converter knows of it."""
    from sklearn import ensemble
    from sklearn.ensemble._forest import BaseForest

    root, name = type(model).__module__.partition(".")[0], type(model).__name__
    if root in ("sklearnex", "daal4py") and isinstance(model, BaseForest):
        plain = getattr(ensemble, name)(**model.get_params())
        known = ("estimators_", "n_outputs_", "n_features_in_", "classes_", "n_classes_")
        for k in known:
            if hasattr(model, k):
                setattr(plain, k, getattr(model, k))
        return plain
    if name == "VotingClassifier":
        plain = copy.copy(model)
        plain.flatten_transform = False  # says how transform() answers, which nobody asks here
        return plain
    return model


def _is_torch(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)
