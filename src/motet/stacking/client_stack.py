"""What a client of the method Stacking publishes and keeps: models as ONNX with a manifest, never pickled.

The private model becomes ONNX before the meta-model learns from its predictions, so that the meta-model sees
the very predictions that it will combine later. Knows a client's rows, models and their owners. Does not know
servers or rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from motet.client import Data, Task
from motet.published import Feature, Published, defaults, publish
from motet.published.public_choice import in_words
from motet.stacking.catalogue import Catalogue, Tree, checksum, fetched
from motet.stacking.contribution import OWN
from motet.stacking.one_graph import one_graph
from motet.stacking.predictions import Array, predictions
from motet.stacking.stack import ALONE, Stack, StackRows, StackSettings, build, columns
from motet.stacking.validation_findings import Findings, ValidationRows, has_enough_rows

_SEED = "seed"  # of the first stack, in kept trees
_OWNERS = "whom"  # the key in kept and saved trees; it never changes, so that old runs verify and go on


def rows_of(data: Data, task: Task, *, val: bool = False) -> StackRows:
    """The client's real examples (without padding), in the columns that it holds."""
    b = data.val if val else data.all
    live = b.live > 0
    x = held(b.x[live], [c.here for c in data.columns])
    kinds = {c.name: c.kind for c in data.columns if c.here}
    kinds = kinds or {f"x{k}": "number" for k in range(x.shape[1])}
    weight = None if data.weight is None else b.live[live].numpy()
    return StackRows(x, b.y[live].numpy(), kinds, classes_of(task), weight)


def unfit_loss(method: Any) -> str:
    """Why models of a stack cannot learn by the loss of the method's task; "" where it is one of the usual."""
    task: Task = method.task
    if task.kind == "survival":
        return "its models learn classes and numbers, and no times of survival.\nhint: method=fedavg"
    if not task.criterion.usual:
        return "its models are fitted by losses of their own.\nhint: net.loss=auto net.class_weights=none"
    return ""


def unfit_weights(method: Any) -> str:
    """Why public models cannot count rows by weights; "" where they can."""
    if method.public != "dp-linear":
        return ""
    return "its private training bounds what every row counts.\nhint: method.public=linear"


def classes_of(task: Task) -> tuple[str, ...]:
    return tuple(map(str, range(task.outputs))) if task.kind == "classes" else ()


def held(x: Tensor, here: Sequence[bool]) -> Array:
    """Examples as flat rows, in the columns that are held; all of them if nothing is known of columns."""
    flat: Array = x.flatten(1).float().numpy()
    return flat[:, list(here)] if here else flat


def published(model: Any, rows: StackRows, client: str, features: Sequence[Feature] = ()) -> Published:
    """The model as ONNX; without `features`, plain medians and modes fill missing columns."""
    features = features or defaults(rows.x, rows.kinds)
    about: Any = {"task": rows.task, "classes": rows.classes, "privacy": getattr(model, "privacy", None)}
    return publish(model, features, client=client, **about)


def stack_of(how: StackSettings, data: Data, task: Task, served: Catalogue) -> tuple[Stack, Findings]:
    """A stack of ONNX models, and what was found out about the served ones. "auto" is the variant that scores best on
    validation rows, the private model alone among them. Contributions are measured on these rows, too."""
    rows, val = (rows_of(data, task, val=val) for val in (False, True))
    models, unreadable = fetched(served)
    found, refused = predictions(models, rows.x, rows.names, rows.classes)
    shown = predictions({k: models[k] for k in found}, val.x, val.names, val.classes)[0] if len(val.y) else {}
    variants = [how.variant]
    if how.variant == "auto":
        variants = [ALONE, "held-out", "pooled"] if len(val.y) else ["held-out"]  # of equals, the simplest
    measured = ValidationRows(val, shown) if has_enough_rows(val) else None
    seed = int(data.seed)
    stacks = [_onnx_stack(replace(how, variant=v), rows, found, seed, measured) for v in variants]
    best = stacks[0]
    if len(stacks) > 1:
        best = max(stacks, key=lambda s: val.score(s.predict(val.x, val.names, shown)))
    found_out = measured.findings(best) if measured else {"skill": {}, "alike": []}
    return best, {"refused": unreadable | refused, **found_out}


def _onnx_stack(
    how: StackSettings,
    rows: StackRows,
    found: Mapping[str, Array],
    seed: int,
    measured: ValidationRows | None = None,
) -> Stack:
    stack = build(how, rows, found, seed, prepare=lambda model: published(model, rows, OWN))
    if stack.meta is None:
        return stack
    shares = stack.importances
    if measured and how.importance != "mdi":
        shares = measured.importances(stack, how, seed)
    features = [Feature(name) for name in columns(stack.owners, stack.meta.n_features_in_)]
    return replace(stack, meta=published(stack.meta, rows, "meta", features), importances=shares)


def to_tree(stack: Stack, models: Catalogue, data: Data | None = None) -> Tree:
    """What a client keeps of its stack: its own two models, the checksums of the others' models, and the seed of the
    `data` that it was made of."""
    owners = {owner: checksum(models[owner]) for owner in stack.owners}
    meta = stack.meta.tree() if stack.meta else ()
    about = {"variant": stack.variant, "shares": dict(stack.importances), "step": stack.step}
    seed = {} if data is None else {_SEED: data.seed}
    return {"private": stack.private.tree(), "meta": meta, _OWNERS: owners, **about, **seed}


def of_first_stack(keep: Tree, data: Data) -> Data:
    """The same examples with the seed of the client's first stack, so that a later stack differs by what was served
    alone, and what is made for a comparison is the same whichever round is reported. Without a stack, the turn's."""
    return replace(data, seed=keep[_SEED]) if keep and _SEED in keep else data


def is_current(keep: Tree, models: Catalogue) -> bool:
    """Whether a client keeps a stack, and each of its models is among these models, unchanged."""
    owners = keep[_OWNERS].items() if keep else ()
    return bool(keep) and all(c in models and checksum(models[c]) == known for c, known in owners)


def predictor(keep: Tree, models: Catalogue, here: Sequence[bool]) -> Tree:
    """All that `predict` needs: the kept stack with the others' models themselves, and the columns held."""
    return {_OWNERS: {c: models[c] for c in keep[_OWNERS]}, "here": tuple(here)} | {
        k: keep[k] for k in ("private", "meta", "variant", "shares", "step") if k in keep
    }


def described(own: Tree, meta: str) -> dict[str, Any]:
    """A stack for its card: its variant, and each model with its family, its budget and how much it is relied on."""
    models, _ = fetched(own[_OWNERS])
    parts = {OWN: Published.from_tree(own["private"]), **models}
    shares = own.get("shares", {})
    return {
        "variant": own.get("variant", ""),
        "meta": meta if own["meta"] else "",
        "models": [
            {
                "owner": "" if name == OWN else name,
                "what": in_words(model.manifest),
                "made_with": model.manifest.made_with,
                "privacy": model.manifest.privacy.note,
                "importance": shares.get(name),
            }
            for name, model in parts.items()
        ],
    }


def as_one_graph(own: Tree, inputs: Mapping[str, Any], target: Mapping[str, Any], task: Task) -> bytes:
    return one_graph(own, own[_OWNERS], inputs, target, classes_of(task))


def alone(how: StackSettings, data: Data, task: Task) -> Tree:
    """As `predictor`, of a private model without the models of others, which learns from all training rows."""
    rows = rows_of(data, task)
    stack = _onnx_stack(replace(how, variant=ALONE), rows, {}, int(data.seed))
    return predictor(to_tree(stack, {}), {}, [c.here for c in data.columns])


def predict(own: Tree, x: Tensor, classes: Sequence[str]) -> Array:
    """(rows, classes) or (rows, 1): predictions of a stack for examples."""
    private = Published.from_tree(own["private"])
    meta = Published.from_tree(own["meta"]) if own["meta"] else None
    models, _ = fetched(own[_OWNERS])
    rows, names = held(x, own["here"]), private.manifest.names
    found, refused = predictions(models, rows, names, classes)
    if refused:
        raise ValueError(f"models of the stack do not run any more: {refused}")
    step = float(own.get("step", 0.0))  # earlier stacks learned from predictions that were not rounded
    stack = Stack(private, meta, tuple(own[_OWNERS]), {}, tuple(classes), step=step)
    return np.asarray(stack.predict(rows, names, found), np.float32)
