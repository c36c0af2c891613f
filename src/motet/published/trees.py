"""Trees as ONNX's TreeEnsembleRegressor: forests, single trees and histogram boosting of scikit-learn.

Written here and not by skl2onnx, which forgets where missing values go, rounds thresholds, does not know
histogram boosting of scikit-learn 1.9, and takes several times as long. Forests of scikit-learn-intelex contain
scikit-learn's trees. Knows trees and ONNX. Does not know what was learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from motet.published.graph import assemble, two_classes

_FORESTS = frozenset(
    f"{kind}{what}"
    for kind in ("RandomForest", "ExtraTrees", "DecisionTree", "ExtraTree")
    for what in ("Classifier", "Regressor")
)


@dataclass(frozen=True)
class EnsembleTree:
    """A tree by nodes: rows with x[feature] <= threshold go left; a node without a left one is a leaf."""

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray  # -1 at leaves
    right: np.ndarray
    missing_left: np.ndarray  # whether rows without a value go left
    value: np.ndarray  # (nodes, targets)


def writes(model: Any) -> bool:
    """Whether `to_onnx` knows this model."""
    return type(model).__name__ in _FORESTS or type(model).__name__.startswith("HistGradientBoosting")


def to_onnx(model: Any, features: int) -> Any:
    """The fitted model as a ModelProto: probabilities of its own classes, or numbers."""
    if type(model).__name__.startswith("HistGradientBoosting"):
        return _boosting(model, features)
    if getattr(model, "n_outputs_", 1) != 1:
        raise ValueError("the model has several targets\nhint: publish a model of one target")
    hard = type(model).__module__.partition(".")[0] in ("sklearnex", "daal4py")
    fitted = getattr(model, "estimators_", [model])
    trees = [_of_forest(t, hasattr(model, "classes_"), hard) for t in fitted]
    node = ensemble(trees, "p", scale=1 / len(trees))
    columns = len(getattr(model, "classes_", ["a number"]))
    if columns == 2:
        return assemble([node, *two_classes("p", "y")], [("one", [1.0])], features, 2)
    return assemble([node], [], features, columns, last="p")


def ensemble(
    trees: Sequence[EnsembleTree], to: str, scale: float = 1.0, base: Sequence[float] | np.ndarray = ()
) -> Any:
    """The sum of the trees' outputs, times `scale`, as an operator that reads x."""
    from onnx import helper

    sizes = [len(t.left) for t in trees]
    tree = np.repeat(np.arange(len(trees)), sizes)
    node = np.concatenate([np.arange(n) for n in sizes])
    left, right, feature, missing = (
        np.concatenate([getattr(t, k) for t in trees]) for k in ("left", "right", "feature", "missing_left")
    )
    value = np.concatenate([t.value for t in trees]) * scale
    leaf = left < 0
    named = (value != 0) | (np.arange(value.shape[1]) == 0)
    # onnxruntime adds the base of a target only to rows that reach a leaf which names the target. A base that all
    # targets share does not change a softmax.
    if len(base) and np.ptp(base) > 0:
        named |= ~(value != 0).any(1, keepdims=True)
    at, target = np.nonzero(leaf[:, None] & named)
    made = helper.make_node(
        "TreeEnsembleRegressor", ["x"], [to], domain="ai.onnx.ml", n_targets=value.shape[1]
    )
    _put(made, "nodes_treeids", tree)
    _put(made, "nodes_nodeids", node)
    _put(made, "nodes_featureids", np.where(leaf, 0, feature))
    _put(made, "nodes_truenodeids", np.where(leaf, 0, left))
    _put(made, "nodes_falsenodeids", np.where(leaf, 0, right))
    _put(made, "nodes_missing_value_tracks_true", ~leaf & missing.astype(bool))
    _put(made, "nodes_values", np.where(leaf, 0, below(np.concatenate([t.threshold for t in trees]))))
    _put(made, "target_treeids", tree[at])
    _put(made, "target_nodeids", node[at])
    _put(made, "target_ids", target)
    _put(made, "target_weights", value[at, target])
    if len(base):
        _put(made, "base_values", np.asarray(base))
    modes = helper.make_attribute("nodes_modes", ["LEAF"])
    modes.strings[:] = [b"LEAF" if end else b"BRANCH_LEQ" for end in leaf.tolist()]
    made.attribute.append(modes)
    return made


def below(threshold: np.ndarray) -> np.ndarray:
    """The largest 32-bit numbers that are not above the thresholds; they divide 32-bit numbers in the same way."""
    near = threshold.astype(np.float32)
    return np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)


def _put(node: Any, name: str, values: np.ndarray) -> None:
    """Add an attribute; much faster than onnx's helper, which looks at the type of every number."""
    from onnx import AttributeProto

    if values.dtype.kind == "f":
        made = node.attribute.add(name=name, type=AttributeProto.FLOATS)
        made.floats.extend(values.astype(np.float32).tolist())
    else:
        made = node.attribute.add(name=name, type=AttributeProto.INTS)
        made.ints.extend(values.astype(np.int64).tolist())


def _of_forest(fitted: Any, classes: bool, hard: bool) -> EnsembleTree:
    t = fitted.tree_
    value = t.value[:, 0, :]
    if classes:
        value = _softened(t) if hard else value / value.sum(1, keepdims=True)
        value = value[:, 1:] if value.shape[1] == 2 else value
    missing = getattr(t, "missing_go_to_left", np.zeros(t.node_count, bool))
    return EnsembleTree(t.feature, t.threshold, t.children_left, t.children_right, missing, value)


def _softened(t: Any) -> np.ndarray:
    """Probabilities in the nodes of scikit-learn-intelex's trees, which hold only the most frequent class.

    Of two classes, the impurity g = 2 p (1 - p) and the number of rows give the share p back. Of more
    classes it does not.
    """
    most, rows = t.value[:, 0, :], t.weighted_n_node_samples
    if most.shape[1] != 2 and (t.impurity[t.children_left < 0] > 0).any():
        raise ValueError(
            "a forest of scikit-learn-intelex with more than two classes does not hold its leaves' probabilities"
            "\nhint: train the forest that is published with scikit-learn's own class"
        )
    share = (1 + np.sqrt(np.maximum(0, 1 - 2 * t.impurity))) / 2
    share = np.round(share * rows) / rows
    first = most.argmax(1)[:, None] == np.arange(most.shape[1])
    return np.where(first, share[:, None], 1 - share[:, None] if most.shape[1] == 2 else 0.0)


def _boosting(model: Any, features: int) -> Any:
    from onnx import helper

    if model.is_categorical_ is not None or model._preprocessor is not None:
        raise ValueError(
            "histogram boosting with categorical features is not published\nhint: use numbers and flags"
        )
    outputs = model.n_trees_per_iteration_
    trees = [_of_boosting(p.nodes, k, outputs) for step in model._predictors for k, p in enumerate(step)]
    node = ensemble(trees, "raw", base=np.ravel(model._baseline_prediction))
    if hasattr(model, "classes_"):
        if outputs > 1:
            last = helper.make_node("Softmax", ["raw"], ["y"], axis=1)
            return assemble([node, last], [], features, outputs)
        odds = helper.make_node("Sigmoid", ["raw"], ["p"])
        return assemble([node, odds, *two_classes("p", "y")], [("one", [1.0])], features, 2)
    if model._loss.link.__class__.__name__ == "LogLink":
        return assemble([node, helper.make_node("Exp", ["raw"], ["y"])], [], features, 1)
    return assemble([node], [], features, 1, last="raw")


def _of_boosting(nodes: np.ndarray, target: int, targets: int) -> EnsembleTree:
    leaf = nodes["is_leaf"].astype(bool)
    value = np.zeros((len(nodes), targets))
    value[:, target] = nodes["value"]
    left, right = (np.where(leaf, -1, nodes[k].astype(np.int64)) for k in ("left", "right"))
    threshold = np.where(leaf, 0.0, nodes["num_threshold"])
    return EnsembleTree(nodes["feature_idx"], threshold, left, right, nodes["missing_go_to_left"], value)
