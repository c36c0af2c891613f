"""A visit: one verb at one client, in one turn.

Engines, sites, dry runs and expected replies all go through here, so that a verb sees the same examples and
the same seed wherever its client lives. What a verb is given stays as it is: a change in place would reach other
clients on one engine and not on another. So versions and sums of all tensors are compared before and after it.
Knows one client's examples and one method. Does not know where clients live, nor what is done with replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from operator import is_
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from motet.client.data import Batch, ClientData, ClientTest, Data, seed_of
from motet.errors import MotetError
from motet.trusted_code import is_own, own_definition, own_line

if TYPE_CHECKING:
    from motet.core import Client, Method, Part, Tree, Verb

FAILURES = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError
)  # fmt: skip
_NAMED = 3  # changed things that a message names
_MAKE_NEW = (
    "make new tensors and dicts: `w = w * 0.9`, not `w[k].mul_(0.9)`; `keep | {'v': v}`, not `keep['v'] = v`; "
    "what was made with clone() may be changed"
)
_KEEP = (
    "a method stays as it is: what a client remembers is returned as `keep`, what the server does by `round`"
)
_IN_PYTHON = "@verb(solo=True) runs a verb as ordinary Python, one client after another"
# What would help, by words of messages: mostly torch's, of what cannot be done for many clients at once.
_HELP = {
    "cannot assign to field": _KEEP,
    "data-dependent control flow": f"torch.where chooses without an if on a tensor; {_IN_PYTHON}",
    "dynamic shape": f"torch.where keeps shapes where a mask or nonzero does not; {_IN_PYTHON}",
    "calling .item()": f"compute with the tensor itself; {_IN_PYTHON}",
    "have storage": f"compute with torch, not with NumPy; {_IN_PYTHON}",
    "randomness error": "draw with data.chance(many) or data.dice(many), which are the same on every engine",
    "inplace arithmetic": "make a new tensor: `x = x + y`, not `x.add_(y)`",
    "match the broadcast shape": "make a new tensor: `x = x + y`, not `x.add_(y)`",
    "`data` under vmap": _MAKE_NEW,
    "with `.data` under": _MAKE_NEW,
}


class MethodFailed(MotetError):
    """Code of a method failed; says what, when and, of a person's own code, in which line."""


class VerbFailed(MethodFailed):
    """A verb failed at a client; says which, where and when."""


@dataclass(frozen=True)
class Visit:
    """One client in one turn; `seed` and `round` are the turn's."""

    method: Method
    client: Client
    client_data: ClientData
    seed: int
    round: int

    @cached_property
    def data(self) -> Data:
        return examples(self.client_data, self.seed, self.client, self.round)

    def test(self, part: Part) -> ClientTest:
        return ClientTest(self.data, tested(self.client_data, part))

    def joined(self) -> Tree:
        """What a client keeps before it is first asked anything."""
        return join(self.method, self.data, self.round, self.client)

    def perform(self, verb: Verb, sent: Tree, keep: Tree, data: Any = None) -> tuple[Tree, Tree]:
        """The reply and what is kept; `data` are the client's examples, unless others are given."""
        return perform(verb, sent, keep, self.data if data is None else data, self.round, self.client)


def examples(client_data: ClientData, seed: int, client: Client, number: int) -> Data:
    """A client's training and validation examples, with its own seed of the turn whose seed and number are given."""
    train, val = client_data.train.take(), client_data.val.take()
    n, own = torch.tensor(client_data.n), torch.tensor(seed_of(seed, client))
    columns, augment, weight = client_data.columns, client_data.augment, None
    if client_data.weighted:
        weight, val = train.evened().live, val.evened()
    noise = None if client_data.noise is None else torch.tensor(client_data.noise, dtype=torch.float64)
    how = client_data.private
    return Data(train.x, train.y, n, own, val, columns, augment, torch.tensor(number), weight, noise, how)


def tested(client_data: ClientData, part: Part) -> Batch:
    """The examples that a client is scored on."""
    return (client_data.val if part == "val" else client_data.test).take()


def perform(
    verb: Verb, sent: Tree, keep: Tree, data: Any, number: int, client: Client = ""
) -> tuple[Tree, Tree]:
    """Call a verb; whatever goes wrong becomes a VerbFailed that names client, verb and round."""
    try:
        return performed(verb, sent, keep, data)
    except Exception as e:
        if not is_failure(e):
            raise
        raise VerbFailed(f"{place(verb, number, client)}: {explained(e, verb)}") from e


def performed(verb: Verb, sent: Tree, keep: Tree, data: Any) -> tuple[Tree, Tree]:
    """What a verb returns, if it is what every verb must return; also under vmap."""
    method = verb.args[0] if isinstance(verb, partial) else getattr(verb, "__self__", None)
    rows = vars(data) if isinstance(data, ClientTest) else {"data": data}
    given = Given(method, rows, sent=sent, keep=keep)
    returned = verb(sent, keep, data)
    given.check()
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(f"it returned {type(returned).__name__}; a verb must return a pair (reply, keep)")
    return returned


def join(method: Method, data: Data, number: int, client: Client = "") -> Tree:
    """What a client keeps before it is first asked anything."""
    try:
        given = Given(method, {"data": data})
        keep = method.join(data)
        given.check()
        return keep
    except Exception as e:
        if not is_failure(e):
            raise
        raise VerbFailed(f"{place(method.join, number, client)}: {explained(e, method.join)}") from e


# ---- what a verb is given stays as it is ----


class Given:
    """What code of a method is given, as it was before; `check` refuses changes of tensors and arrays in place, and of
    entries of dicts and lists.

    A tensor counts its changes. It does not count those through its `.data` or an array that shares its memory. So
    checksums are compared too, where a method, a network or a loss is a person's own. Verbs of motet's own are
    tested, and may take no longer than a tenth of a millisecond: with them, only versions of features are compared.
    """

    def __init__(self, method: Any, rows: Mapping[str, Any], **trees: Tree) -> None:
        summed: list[Any] = []
        self.method = method
        self.trees = {f"{name}.x": part.x for name, part in rows.items()}
        kind: type = type(method)
        if is_own(kind) or (method is not None and method.task.own_code):
            self.trees = {**trees, **rows, "self.task.w0": method.task.w0}
            # torch changes nothing around versions of tensors that are stacked, as rows are under vmap
            summed = [v for v in values_in(rows) if isinstance(v, Tensor) and unstacked(v) is v]
            summed += values_in((*trees.values(), method.task.w0))
        self.values = values_in(self.trees)
        self.versions = list(map(version, self.values))
        self.summed = list({id(v): v for v in summed if isinstance(v, Tensor)}.values())
        self.sums = sums_of(self.summed)

    def check(self) -> None:
        """Raise TypeError if anything is not as it was."""
        now, versions, sums = values_in(self.trees), list(map(version, self.values)), sums_of(self.summed)
        whole = len(now) == len(self.values) and all(map(is_, now, self.values))
        if whole and versions == self.versions and sums == self.sums:
            return
        same = {id(v): new == old for v, new, old in zip(self.values, versions, self.versions, strict=True)}
        same |= {id(v): False for v, new, old in zip(self.summed, sums, self.sums, strict=True) if new != old}
        named = [(id(v), place) for name, tree in self.trees.items() for place, v in places_in(name, tree)]
        found = list({v: place for v, place in reversed(named) if not same.get(v)}.values())[::-1]
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        what = ", ".join(found[:_NAMED]) or "the entries of a dict or list"
        plain = self.method is None or is_own(type(self.method))
        whose = [] if plain else list(map(own_definition, self.method.task.own_code))
        said = [f"it changes what it was given: {what}{more}", *filter(None, whose), f"hint: {_MAKE_NEW}"]
        raise TypeError("\n".join(said))


def values_in(tree: Tree) -> list[Any]:
    """All values in a tree, rows among them."""
    found: list[Any] = []
    for v in parts_of(tree):
        if isinstance(v, dict | list | tuple | Data | Batch):
            found += values_in(v)
        else:
            found.append(v)
    return found


def parts_of(tree: Tree) -> Iterable[Any]:
    if isinstance(tree, dict):
        return tree.values()
    if isinstance(tree, Data):
        return tree.x, tree.y, tree.n, tree.seed, tree.val, tree.round, tree.weight, tree.noise
    return (tree.x, tree.y, tree.live) if isinstance(tree, Batch) else tree


def places_in(name: str, tree: Tree) -> Iterator[tuple[str, Any]]:
    """All values in a tree, and how Python reaches them."""
    if isinstance(tree, dict):
        inside = [(f"{name}[{k!r}]", v) for k, v in tree.items()]
    elif isinstance(tree, list | tuple):
        inside = [(f"{name}[{i}]", v) for i, v in enumerate(tree)]
    elif isinstance(tree, Data | Batch):
        inside = [(f"{name}.{k}", v) for k, v in vars(tree).items() if isinstance(v, Tensor | Batch)]
    else:
        yield name, tree
        return
    for place, v in inside:
        yield from places_in(place, v)


def version(v: Any) -> int:
    """How often a tensor was changed in place; of an array, a hash of its numbers."""
    if not isinstance(v, Tensor):
        return hash(v.tobytes()) if isinstance(v, np.ndarray) else 0
    v = unstacked(v)
    return 0 if v.is_inference() else v._version


def sums_of(values: list[Tensor]) -> list[int]:
    """Checksums of the bits of tensors that are in this computer's own memory; order counts."""
    return [crc32(bits(v).numpy().data) for v in map(unstacked, values) if v.is_cpu]


def bits(v: Tensor) -> Tensor:
    return v.detach().contiguous().reshape(-1).view(torch.uint8)


def unstacked(v: Tensor) -> Tensor:
    """Under vmap, where a client sees its own part: the stacked tensor of all, which counts changes."""
    while torch._C._functorch.is_functorch_wrapped_tensor(v):
        v = torch._C._functorch.get_unwrapped(v)
    return v


def place(verb: Callable[..., Any], number: int, client: Client = "") -> str:
    """Client, verb and round, for messages; people count rounds from 1."""
    who = f"client {client}, " if client else ""
    what = f"verb {name_of(verb)}" if getattr(verb, "verb", False) else name_of(verb)
    return f"{who}{'scoring' if isinstance(verb, partial) else what}, {when(number)}"


def when(number: int) -> str:
    return f"round {number + 1}" if number >= 0 else "before round 1"


def name_of(verb: Any) -> str:
    return str(getattr(verb, "__name__", "")) or name_of(verb.func)


def is_failure(error: Exception) -> bool:
    """Whether an error is one of a method's code, for people; anything that a person's own code raises is."""
    return isinstance(error, FAILURES) or (not isinstance(error, MotetError) and bool(own_line(error)))


def explained(error: BaseException, code: Any = None) -> str:
    """What an error says, in which line of a person's own code it arose, and what would help. Where it arose in none,
    but `code` is a person's own, that is named: a verb, or a job at the model that a method makes."""
    said, _, hint = str(error).partition("\nhint: ")
    if isinstance(error, LookupError) or not isinstance(error, FAILURES) or not said:
        said = f"{type(error).__name__}: {said}"
    hints = [hint, *(help for words, help in _HELP.items() if words in said)]
    if line := own_line(error):
        hints.append("--trace shows the whole traceback")
    elif isinstance(code, partial):
        line = own_definition(code.args[0].personal) or own_definition(type(code.args[0]))
    elif code is not None:
        line = own_definition(code)
    shown = "; ".join(filter(None, hints))
    return "\n".join([said, *filter(None, [line, shown and f"hint: {shown}"])])


# ---- how a thread computes ----
# Two intra-op threads are far slower beside any other process, and so are numbers near 0 (denormals), which
# the tails of a softmax are full of.


def single_thread() -> None:
    """For a thread of our own: one intra-op thread, and no denormal numbers."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def flushes_denormals() -> bool:
    """Whether this thread already takes denormal numbers for zero."""
    return bool(torch.full((), 1e-38) * 0.01 == 0)


@contextmanager
def single_threaded() -> Iterator[None]:
    """For a caller's thread: as `single_thread`, and afterwards as before."""
    before, flushed = torch.get_num_threads(), flushes_denormals()
    single_thread()
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(flushed)
