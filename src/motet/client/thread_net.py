"""A network that any weights can be put into, and which networks can be trained at all.

Parameters that are frozen (requires_grad is False) and buffers are part of the network: they are the same for
everybody, are never trained and never travel. BatchNorm's statistics are weights without a gradient (batchnorm.py).
Knows modules, parameters and buffers. Does not know losses, tasks or clients.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace as Namespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from motet.client.batchnorm import POLICIES, is_training, statistics
from motet.client.devices import CPU, moved
from motet.client.dropout import DrawnByArithmetic, Draws, draws_here, without_generators
from motet.errors import UsageError
from motet.vec import Vec

_HALF = (torch.float16, torch.bfloat16)
NORMS = nn.modules.batchnorm._BatchNorm
_one_at_a_time = threading.RLock()  # threads that look at their networks' first call


def trained_weights(net: nn.Module) -> dict[str, Tensor]:
    """What is trained and what travels: parameters that are not frozen, and statistics of BatchNorm."""
    buffers = dict(net.named_buffers())
    trained = {k: p for k, p in net.named_parameters() if p.requires_grad}
    own = {name for name, _ in norms_of(net)}
    return trained | {k: buffers[k] for k in statistics(buffers) if k.rpartition(".")[0] + "." in own}


def norms_of(net: nn.Module) -> list[tuple[str, Any]]:
    """BatchNorm layers by their names, each with a dot; without those of parts that stay as in use."""
    still = {
        id(m) for part in net.modules() if getattr(part, "stays_as_in_use", False) for m in part.modules()
    }
    return [(f"{k}.", m) for k, m in net.named_modules() if isinstance(m, NORMS) and id(m) not in still]


class ThreadNet:
    """A network that any weights can be put into: torch's functional_call without its checks,
    which take as long as a small network."""

    def __init__(self, net: nn.Module, trained: Sequence[str], policy: str = "") -> None:
        self.net, self.policy = net, policy
        names = {id(p): name for name, p in net.named_parameters()}  # one name for weights that layers share
        places = [(m._parameters, key, p) for m in net.modules() for key, p in m._parameters.items()]
        places = [(params, key, p) for params, key, p in places if p is not None and names[id(p)] in trained]
        self.slots: list[tuple[str, dict[str, Any], str]] = [
            (names[id(p)], params, key) for params, key, p in places
        ]
        self.blank = [p for _, _, p in places]
        self.recurrent: list[Any] = [m for m in net.modules() if is_plain_recurrent(m)]
        self.multihead = any(isinstance(m, nn.MultiheadAttention) for m in net.modules())
        self.buffers = {k: (b, b._version) for k, b in net.named_buffers() if k not in trained}
        self.norms = norms_of(net)
        self.found: dict[int, Measured] | None = None
        self.last = net.get_submodule(last_layer(net, trained)[0].rpartition(".")[0])
        self.draws = True  # whether it draws while it trains; found out the first time
        self.watched: set[bool] = (
            set()
        )  # whether its draws were looked for in training (True) and in use (False)
        without_fast_path(net.eval())
        for name, norm in self.norms:
            norm._buffers["num_batches_tracked"] = None  # the running mean forgets at a fixed rate
            self.buffers.pop(name + "num_batches_tracked", None)

    def predict(self, w: Vec, x: Tensor) -> Tensor:
        for name, params, key in self.slots:
            params[key] = w[name]
        for layer in self.recurrent:  # it has a second list of its weights
            layer._flat_weights = [getattr(layer, name) for name in layer._flat_weights_names]
        draws = draws_here()
        # A model that a loss is only given, say a teacher, predicts as in use: without dropout.
        train = draws is not None and any(a.requires_grad for a in w.values())
        if self.net.training != train:
            self.net.train(train)
        if self.norms:
            self.set_statistics(w, len(x))
        try:
            with attention_in_plain_steps(self.multihead, x, *(w[name] for name, _, _ in self.slots[:1])):
                z = self.drawn(x, draws) if draws and train and self.draws else self.run(x)
        finally:
            for (_, params, key), blank in zip(self.slots, self.blank, strict=True):
                params[key] = blank
        if self.found is not None:
            self.found.setdefault(id(w), Measured(w)).add(self.norms, len(x))
        if self.buffers:
            self.check_buffers()
        return z

    def check_buffers(self) -> None:
        """A buffer is the same for everybody and for good; one that the network changes would be lost."""
        now = dict(self.net.named_buffers())
        if changed := [k for k, (b, v) in self.buffers.items() if now.get(k) is not b or b._version != v]:
            raise UsageError(
                f"the network changes its buffers while it runs ({', '.join(changed)}), and a buffer is neither "
                "shared nor kept.\nhint: make it a parameter, or use BatchNorm, whose statistics motet knows"
            )

    def drawn(self, x: Tensor, draws: Draws) -> Tensor:
        """The network in training, with what it draws from `draws`."""
        with DrawnByArithmetic(draws) as mode:
            z = self.run(x)
        self.draws = mode.used
        return z

    def run(self, x: Tensor) -> Tensor:
        """The network as it is. The first time that it trains and that it predicts, its draws are looked for."""
        if self.net.training in self.watched:
            return self.net(x)  # type: ignore[no-any-return]
        with refused_checkpoints():
            z = without_generators(self.net, x, "trains" if self.net.training else "predicts")
        self.watched.add(self.net.training)
        return z

    def set_statistics(self, w: Vec, rows: int) -> None:
        """Give BatchNorm layers their statistics. A batch of one has none and is treated as in use."""
        measuring = self.found is not None
        train = rows > 1 and self.policy != "shared" and (is_training() or measuring)
        for name, norm in self.norms:
            norm.training = train
            norm.momentum = 1.0 if measuring else 0.1
            for key in ("running_mean", "running_var"):
                value = w[name + key].detach()  # training with averaged statistics changes it in place
                keep = train and (measuring or self.policy == "local")
                norm._buffers[key] = value.clone() if keep else value

    @contextmanager
    def head_inputs(self) -> Iterator[list[Tensor]]:
        """Inside, each input of the last layer is appended to the list."""
        inputs: list[Tensor] = []
        hook = self.last.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
        try:
            yield inputs
        finally:
            hook.remove()

    @contextmanager
    def measuring(self) -> Iterator[dict[int, dict[str, Tensor]]]:
        """Inside, what is predicted is measured; afterwards the means over all batches, by the weights' id."""
        means: dict[int, dict[str, Tensor]] = {}
        self.found = {}
        try:
            yield means
            means |= {key: m.mean() for key, m in self.found.items()}
        finally:
            self.found = None


class Measured:
    """Sums of the statistics of batches, each counted by its rows."""

    def __init__(self, w: Vec) -> None:
        self.w, self.rows, self.sums = w, 0, dict[str, Tensor]()  # w stays alive, so that its id does

    def add(self, norms: Sequence[tuple[str, nn.Module]], rows: int) -> None:
        self.rows += rows
        for name, norm in norms:
            for key in ("running_mean", "running_var"):
                value = torch.as_tensor(norm._buffers[key]) * rows
                self.sums[name + key] = value + self.sums.get(name + key, 0)

    def mean(self) -> dict[str, Tensor]:
        return {k: v / self.rows for k, v in self.sums.items()}


@contextmanager
def attention_in_plain_steps(multihead: bool, *values: Tensor) -> Iterator[None]:
    """Under vmap, attention is computed by products of matrices: torch's quick kernels know no stacked clients."""
    if any(map(is_stacked, values)):
        with sdpa_kernel(SDPBackend.MATH), NoQuickPath() if multihead else nullcontext():
            yield
    else:
        yield


class NoQuickPath(TorchFunctionMode):
    """Changes nothing: nn.MultiheadAttention takes its quick path only where no such mode is on."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def refused_checkpoints() -> Iterator[None]:
    """Inside, torch.utils.checkpoint is refused: it runs layers again when this call's weights and draws are gone."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise UsageError(
            "the network uses torch.utils.checkpoint, which runs layers again after motet took its weights out.\n"
            "hint: call the layers directly"
        )

    parts = {"_checkpoint_without_reentrant_generator": refuse, "CheckpointFunction": Namespace(apply=refuse)}
    with _one_at_a_time:
        before = {name: getattr(checkpoint, name) for name in parts}
        vars(checkpoint).update(parts)
        try:
            yield
        finally:
            vars(checkpoint).update(before)


def is_stacked(a: Tensor) -> bool:
    """Whether vmap is under way over this tensor, perhaps inside of a derivative."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(a):
        if functorch.is_batchedtensor(a):
            return True
        a = functorch.get_unwrapped(a)
    return False


def is_plain_recurrent(module: nn.Module) -> bool:
    """Whether it is torch's own RNN, LSTM or GRU."""
    own = (nn.RNN.forward, nn.LSTM.forward, nn.GRU.forward)
    return isinstance(module, nn.RNNBase) and type(module).forward in own


def why_not_stacked(net: nn.Module) -> str:
    """Why the network cannot be trained for many clients at once; "" if it can."""
    if getattr(net, "statistics", "") in ("averaged", "local"):
        return "the network has batch statistics, and padding would be in them"
    for module in net.modules():
        if reason := getattr(module, "one_by_one", ""):
            return str(reason)
    if any(map(is_plain_recurrent, net.modules())):
        return "the network has a recurrent layer of torch's, for which there is no batched step"
    return ""


def mixes_rows(net: nn.Module, shape: Sequence[int]) -> bool:
    """Whether what the network says of a row depends on the other rows of a batch, in training or in use.

    Rows are of zeros and ones, which are codes of words too. A network that draws at random says two things of the
    same rows: it is compared only where it says one. BatchNorm is compared as in use; its policies are elsewhere.
    """
    rows = torch.randint(0, 2, (3, *shape), generator=torch.Generator().manual_seed(0)).float()
    for training in (False, True):
        copied = copy.deepcopy(net).train(training)
        for module in copied.modules():
            if isinstance(module, NORMS):
                module.eval()
        with torch.no_grad():
            alone, again, with_more = copied(rows[:2]), copied(rows[:2]), copied(rows)[:2]
        near = 1e-4 * (1 + float(alone.nan_to_num(0, 0, 0).abs().max()))
        # Equal infinities are close to each other: a logarithm of 0 says nothing of other rows.
        if torch.equal(alone, again) and not torch.allclose(alone, with_more, rtol=0, atol=near):
            return True
    return False


def without_fast_path(net: nn.Module) -> None:
    """Let transformers run the same operations whether they train or not: torch's quick ones know no vmap."""
    for module in net.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # what torch asks before it takes the quick path
        if isinstance(module, nn.TransformerEncoder):
            module.enable_nested_tensor = module.use_nested_tensor = False


def move_attributes(net: nn.Module, device: torch.device) -> None:
    """Put tensors that are attributes or buffers of layers, say a table of positions, and frozen weights where the
    network runs. Other parameters and statistics are given at each call."""
    for module in net.modules() if device != CPU else ():
        for name, value in list(vars(module).items()):
            if name not in ("_parameters", "_buffers", "_modules"):
                vars(module)[name] = moved(value, device)
        for table in (module._buffers, module._parameters):
            table |= {k: v if v is None or v.requires_grad else moved(v, device) for k, v in table.items()}


def last_layer(net: nn.Module, trained: Sequence[str]) -> tuple[str, ...]:
    """Of the names of weights, those of the last module that has any of its own: the one that was found to run last
    (`find_last_run`), or else the one that was defined last."""
    own = [k for k in trained if k not in statistics(trained)]
    places = [k.rpartition(".")[0] for k in own]
    last = runs_last if (runs_last := getattr(net, "runs_last", None)) in places else places[-1]
    return tuple(k for k, place in zip(own, places, strict=True) if place == last)


@contextmanager
def find_last_run(net: nn.Module, outputs: int) -> Iterator[list[Tensor]]:
    """Inside, the network runs once, and its scores are put into the list; then it knows its last layer also where that
    was not defined last (`runs_last`), whether what it returns is just what that layer gives (`ends_in_head`), and
    whether the layer sees one row of features for each example (`head_sees_rows`)."""
    order: list[str] = []
    seen: dict[str, tuple[Tensor | None, Tensor]] = {}
    scores: list[Tensor] = []

    def note(name: str) -> Any:
        def finished(_: nn.Module, given: Any, found: Any) -> None:
            seen[name] = given[0] if given else None, found

        return finished

    hooks = [
        hook
        for name, module in net.named_modules()
        if any(p.requires_grad for p in module.parameters(recurse=False))
        for hook in (
            module.register_forward_pre_hook(lambda _, given, name=name: order.append(name)),
            module.register_forward_hook(note(name)),
        )
    ]
    try:
        yield scores
    finally:
        for hook in hooks:
            hook.remove()
    known: Any = net
    known.ends_in_head = known.head_sees_rows = False
    if order and isinstance(last := net.get_submodule(order[-1]), nn.Linear) and last.out_features == outputs:
        features, found = seen[order[-1]]
        known.runs_last, known.head_sees_rows = order[-1], features is not None and features.ndim == 2
        # The same tensor or a view of it: nothing was computed behind the layer.
        known.ends_in_head = known.head_sees_rows and scores[0].data_ptr() == found.data_ptr()


def check_net(net: nn.Module) -> None:
    norms = {id(norm) for _, norm in norms_of(net)}
    for name, module in net.named_modules():
        if isinstance(module, nn.RNNBase) and module.dropout > 0:
            raise UsageError(
                f"layer {name!r} of the network is a {type(module).__name__} with dropout={module.dropout:g} between "
                "its layers, which torch draws from a global generator.\n"
                "hint: stack layers without it, and put nn.Dropout between them"
            )
        if id(module) in norms and (policy := getattr(net, "statistics", None)) not in POLICIES:
            given = "is not set" if policy is None else f"is {policy!r}"
            raise UsageError(
                f"layer {name!r} of the network is a {type(module).__name__}, and the network's attribute "
                f"statistics, which says whose statistics it uses, {given}.\n"
                f"hint: set it to one of {', '.join(POLICIES)} (docs/guides/networks.md), or use GroupNorm or LayerNorm"
            )
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            raise UsageError(
                f"layer {name!r} of the network is a {type(module).__name__} that tracks statistics, which are neither "
                "shared nor kept.\nhint: track_running_stats=False, or GroupNorm"
            )
    half = {k: p.dtype for k, p in net.named_parameters() if p.requires_grad and p.dtype in _HALF}
    for name, dtype in list(half.items())[:1]:
        raise UsageError(
            f"weight {name!r} of the network is {str(dtype).removeprefix('torch.')}, and clients train in "
            "float32: small steps are lost in 16 bits.\n"
            "hint: net.float(); frozen layers may stay as they are"
        )
    if not any(p.requires_grad for p in net.parameters()):
        frozen = " that is not frozen" if any(True for _ in net.parameters()) else "s"
        raise UsageError(
            f"the network has no parameter{frozen} to train.\nhint: let its last layer be trained"
        )
