"""Vec: named tensors that add, scale and measure like one long vector, so that code reads like the formula.

Knows tensors and their names. Does not know what they are weights of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class Vec(dict[str, Tensor]):
    """Named tensors as one vector.

    >>> w = Vec(a=torch.tensor([1.0, 2.0]), b=torch.tensor(3.0))
    >>> float((w - 0.5 * w).sq())
    3.5
    """

    def map(self, f: Callable[..., Tensor], other: Any = None) -> Vec:
        if isinstance(other, dict):
            return Vec({k: f(a, other[k]) for k, a in self.items()})
        return Vec({k: f(a, other) for k, a in self.items()})

    def __add__(self, o: Any) -> Vec:
        return self.map(lambda a, b: a + b, o)

    def __sub__(self, o: Any) -> Vec:
        return self.map(lambda a, b: a - b, o)

    def __mul__(self, o: Any) -> Vec:
        return self.map(lambda a, b: a * b, o)

    __rmul__ = __mul__

    def __truediv__(self, o: Any) -> Vec:
        return self.map(lambda a, b: a / b, o)

    def __neg__(self) -> Vec:
        return self * -1.0

    def dot(self, o: Vec) -> Tensor:
        return torch.stack([(a * o[k]).sum() for k, a in self.items()]).sum()

    def sq(self) -> Tensor:
        """The squared length."""
        return self.dot(self)

    def zeros(self) -> Vec:
        return self.map(lambda a, _: torch.zeros_like(a))

    def pick(self, names: Iterable[str]) -> Vec:
        wanted = set(names)
        return Vec({k: v for k, v in self.items() if k in wanted})

    def drop(self, names: Iterable[str]) -> Vec:
        unwanted = set(names)
        return Vec({k: v for k, v in self.items() if k not in unwanted})

    @classmethod
    def join(cls, **parts: Vec) -> Vec:
        """Several vectors as one, so that one descent can train them together; `split` takes them apart.

        >>> both = Vec.join(w=Vec(a=torch.tensor(1.0)), theta=Vec(a=torch.tensor(2.0)))
        >>> list(both), both.split("theta", "w")
        (['w a', 'theta a'], [{'a': tensor(2.)}, {'a': tensor(1.)}])
        """
        return cls({f"{part} {k}": v for part, vec in parts.items() for k, v in vec.items()})

    def split(self, *parts: str) -> list[Vec]:
        """The vectors that were joined under these names, in the order of the names."""
        return [Vec({k[len(p) + 1 :]: v for k, v in self.items() if k.startswith(f"{p} ")}) for p in parts]

    def where(self, condition: Tensor, o: Vec) -> Vec:
        """self where `condition` holds, else o; a vector of conditions chooses along the first axis."""

        def choose(a: Tensor, b: Tensor) -> Tensor:
            wide = condition.reshape(condition.shape + (1,) * (a.ndim - condition.ndim))
            return torch.where(wide, a, b)

        return self.map(choose, o)


pytree.register_pytree_node(
    Vec,
    lambda v: (list(v.values()), list(v.keys())),
    lambda values, keys: Vec(zip(keys, values, strict=True)),
    serialized_type_name="motet.Vec",
)


def leaves(tree: Any) -> list[Any]:
    return pytree.tree_leaves(tree)


def stack(trees: list[Any]) -> Any:
    """Trees of one shape, as one tree whose tensors have a first axis more."""
    flat = [pytree.tree_flatten(t) for t in trees]
    columns = zip(*(values for values, _ in flat), strict=True)
    return pytree.tree_unflatten([torch.stack([torch.as_tensor(v) for v in c]) for c in columns], flat[0][1])


def unstack(tree: Any, many: int) -> list[Any]:
    """The rows of a stacked tree, each with memory of its own."""
    values, spec = pytree.tree_flatten(tree)
    return [pytree.tree_unflatten([v[i].clone() for v in values], spec) for i in range(many)]
