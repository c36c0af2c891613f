"""Evaluation at a client: the only code that sees the examples a client is tested on.

It runs where the client lives. Models predict client by client or under vmap; metrics are computed from the
predictions of many clients at once, outside of vmap. Between organisations only metrics leave a client.
Knows methods' predictors and tasks' metrics. Does not know how clients are stored or stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from motet.client import Batch, ClientTest, Task, predicted
from motet.core import SIDES, Client, Method, Tree, Verb
from motet.vec import Vec, leaves

See = Callable[[list[Client], Tree], None]  # is shown the predictions of some clients
_AT_ONCE = 64  # clients that are measured together, unless
_CELLS = 1 << 22  # they have more numbers than this
_TRUTH = ("y", "live", "x")


def evaluation_request(method: Method, state: Tree, download: Tree, sides: Sequence[str] = SIDES) -> Tree:
    """What a client is sent for it; `same` says that the personal model is the global one, to score it once."""
    model = method.global_model(state) if "global" in sides else None
    plain = "personal" in sides and type(method).personal is Method.personal
    same = model is not None and model is download and plain
    return {
        "global": () if model is None else model,
        "download": download,
        "same": same,
        "sides": list(sides),
    }


def predictions(method: Method, sent: Tree, keep: Tree, who: ClientTest) -> tuple[Tree, Tree]:
    """What the models of the sides that are asked for predict for the examples, and the truth; () for a
    personal model that is the global one."""
    task: Task = method.task
    found: Tree = truth(task, who.examples)

    def add(side: str, own: Any) -> None:
        if own is None:
            return
        try:
            found[side] = predicted(task.at_home(own, who.data), who.examples)
        except RuntimeError as e:
            if why := other_shapes(task, own):
                raise ValueError(f"the {side} model: {why}") from e
            raise

    if "global" in sent["sides"] and sent["global"] != ():
        add("global", partial(task.predict, sent["global"]))
    if "personal" in sent["sides"] and sent["same"]:
        found["personal"] = ()
    elif "personal" in sent["sides"]:
        add("personal", method.personal(sent["download"], keep, who.data))
    if "alone" in sent["sides"]:
        add("alone", method.alone(sent["download"], keep, who.data))
    for name in [n for n in method.variants if n in sent["sides"]]:
        add(name, method.variant_model(name, sent["download"], keep, who.data))
    if "constant" in sent["sides"]:
        found["constant"] = constant(task, who.data.all, len(who.examples))
    return found, keep


def other_shapes(task: Task, own: Any) -> str:
    """Which weight of a model does not fit the network, in words; "" if all do."""
    trees = own.args if isinstance(own, partial) else ()
    for k, v in [pair for tree in trees if isinstance(tree, Vec) for pair in tree.items()]:
        if k in task.w0 and v.shape != task.w0[k].shape:
            return f"its weight {k} is {tuple(v.shape)}, the network's is {tuple(task.w0[k].shape)}"
    return ""


def truth(task: Task, examples: Batch) -> Tree:
    """What predictions are compared with; features too if the metric needs them."""
    more = {"x": examples.x} if task.scores_need_inputs else {}
    return {"y": examples.y, "live": examples.live} | more


def constant(task: Task, train: Batch, rows: int) -> Tensor:
    """What a client would predict that knows its own training targets alone: the frequencies of the classes, each
    counted once more so that none is 0, or the number that costs least (the mean)."""
    if task.kind != "classes":
        return task.criterion.constant(train.y, train.live).expand(rows)
    counts = torch.ones(task.outputs).scatter_add(0, train.y, train.live)
    return (counts / counts.sum()).log().expand(rows, -1)


def predictions_trained(
    method: Method, train: Verb, sent: Tree, keep: Tree, who: ClientTest
) -> tuple[Tree, Tree]:
    """Train once more, and let the very model that training gives predict; what would be kept is discarded."""
    reply, fresh = train(sent, keep, who.data)
    own = method.task.at_home(method.trained_model(sent, reply, fresh, who.data), who.data)
    parts = (("val", who.data.val), ("test", who.examples))
    return {p: truth(method.task, b) | {"trained": predicted(own, b)} for p, b in parts}, keep


def personal_model(method: Method, sent: Tree, keep: Tree, who: ClientTest) -> tuple[Tree, Tree]:
    """The personal model itself as a tree, for saving at the client."""
    own: Any = method.task.at_home(method.personal(sent, keep, who.data), who.data)
    if not isinstance(own, partial):
        raise TypeError(
            f"{type(method).__name__}.personal returned a {type(own).__name__}; it must return "
            "functools.partial(self.task.predict, weights), which can be saved"
        )
    return own.args, keep


def model_function(method: Method, sent: Tree, keep: Tree, who: ClientTest) -> tuple[Tree, Tree]:
    """The name of the function that a personal model's trees are arguments of."""
    own: Any = method.personal(sent, keep, who.data)
    return str(own.func.__name__), keep


# ---- metrics ----


def measured(task: Task, clients: list[Client], found: Tree) -> Tree:
    """Metrics by side, each (clients,), of stacked predictions; or of the predictions of each part."""
    if "y" not in found:
        return {part: measured(task, clients, inside)["trained"] for part, inside in found.items()}
    sides = {side: z for side, z in found.items() if side not in _TRUTH}
    scores = {
        side: task.measured(clients, z, found["y"], found["live"], found.get("x"))
        for side, z in sides.items()
        if isinstance(z, Tensor)
    }
    return {side: scores[side if side in scores else "global"] for side in sides}


def scores_at_home(method: Method, client: Client, job: Verb, sent: Tree, keep: Tree, who: ClientTest) -> Any:
    """The metrics of one client by side: all that leaves where the client is an organisation."""
    found, keep = job(sent, keep, who)
    scores = measured(method.task, [client], padded([found]))
    return pytree.tree_map(lambda v: v[0], scores), keep


def groups(found: Iterable[tuple[Client, Tree]]) -> Iterator[tuple[list[Client], Tree]]:
    """Predictions of clients, one by one, as stacked predictions of some of them at a time."""
    clients: list[Client] = []
    trees: list[Tree] = []
    held = 0
    for client, tree in found:
        clients.append(client)
        trees.append(tree)
        held += sum(t.numel() for t in leaves(tree) if isinstance(t, Tensor))
        if len(clients) == _AT_ONCE or held > _CELLS:
            yield clients, padded(trees)
            clients, trees, held = [], [], 0
    if clients:
        yield clients, padded(trees)


def padded(trees: list[Tree]) -> Tree:
    """Predictions of clients stacked, each padded with zeros to the longest."""
    first = trees[0]
    if isinstance(first, dict):
        return {k: padded([t[k] for t in trees]) for k in first}
    if not isinstance(first, Tensor):
        return first
    out = first.new_zeros((len(trees), max(map(len, trees)), *first.shape[1:]))
    for place, v in zip(out, trees, strict=True):
        place[: len(v)] = v
    return out
