"""What every network must keep. A network is tested because its function is there."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from motet.client.dropout import DrawnByArithmetic, Draws
from motet.nets import NetError, build, names, source
from motet.settings import fields_of

ROW, GREY, COLOUR = (7,), (1, 8, 8), (3, 16, 16)
SHAPES = [(), ROW, (4, 5), GREY, COLOUR, (2, 3, 4, 4)]  # (), (4, 5) and the last are neither rows nor images
OUTPUTS = 4
every_net = pytest.mark.parametrize("name", names())
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def examples(many: int, shape: tuple[int, ...]) -> Tensor:
    """Whole numbers below OUTPUTS: features for most networks, codes of symbols for an LSTM."""
    return torch.randint(0, OUTPUTS, (many, *shape), generator=torch.Generator().manual_seed(0)).float()


@cache
def built(name: str, shape: tuple[int, ...]) -> nn.Module | str:
    """The network with its default options, or the message with which it refuses the shape."""
    try:
        return build(name, {}, shape, OUTPUTS, "classes", seed=1)
    except NetError as e:
        return str(e)


def smallest(name: str) -> tuple[tuple[int, ...], nn.Module]:
    """The first shape that the network takes, and the network."""
    found = [(s, n) for s in (ROW, GREY, COLOUR) if isinstance(n := built(name, s), nn.Module)]
    assert found, f"{name} takes neither rows nor images: {built(name, COLOUR)}"
    return found[0]


@every_net
@every_shape
def test_a_shape_is_taken_or_refused_with_a_hint(name: str, shape: tuple[int, ...]) -> None:
    net = built(name, shape)
    if isinstance(net, str):
        assert f"net {name!r}" in net and "\nhint: " in net and str(shape) in net
        return
    for many in (1, 3):
        scores = net.eval()(examples(many, shape))
        assert scores.shape == (many, OUTPUTS) and bool(torch.isfinite(scores).all())


@every_net
def test_the_last_layer_is_linear_and_named_head(name: str) -> None:
    _, net = smallest(name)
    assert [k for k, _ in net.named_parameters()][-2:] == ["head.weight", "head.bias"]
    assert isinstance(net.head, nn.Linear) and net.head.out_features == OUTPUTS


@every_net
def test_nothing_is_drawn_in_use_and_by_arithmetic_alone_in_training(name: str) -> None:
    shape, net = smallest(name)
    before, x = torch.get_rng_state(), examples(3, shape)
    assert torch.equal(net.eval()(x), net.eval()(x))
    trained = []
    for _ in range(2):
        with DrawnByArithmetic(Draws(torch.tensor(0), 0)):
            trained.append(net.train()(x))
    assert torch.equal(*trained) and torch.equal(torch.get_rng_state(), before)


@every_net
def test_only_batchnorm_has_buffers_and_a_net_with_it_names_its_policy(name: str) -> None:
    shape, net = smallest(name)
    variants = [net]
    if "norm" in fields_of(source(name)):
        variants += [build(name, {"norm": "batch"}, shape, OUTPUTS, "classes", seed=1)]
    for variant in variants:
        norms = [m for m in variant.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        assert {id(b) for m in norms for b in m.buffers()} == {id(b) for b in variant.buffers()}
        assert hasattr(variant, "statistics") == bool(norms)


@every_net
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    shape, net = smallest(name)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    same, other = (build(name, {}, shape, OUTPUTS, "classes", seed) for seed in (1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    weights = [list(n.parameters()) for n in (net, same, other)]
    assert all(map(torch.equal, weights[0], weights[1]))
    zero = not any(bool(p.any()) for p in weights[0])  # as logistic regression starts
    assert zero or not all(map(torch.equal, weights[0], weights[2]))


@every_net
def test_a_net_and_its_options_are_described(name: str) -> None:
    assert source(name).__doc__
    assert [k for k, field in fields_of(source(name)).items() if not field.comment] == []
