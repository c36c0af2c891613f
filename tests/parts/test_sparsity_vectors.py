"""Sparsity vectors by hand, and noise by its formula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn
from torch.func import vmap

from motet import nets
from motet.client import Batch, Data, Task
from motet.client.activations import zero_masks
from motet.parts import sparsity_vectors
from motet.vec import Vec

ONE_LAYER = sparsity_vectors.Measure(layers=1)


def data_of(x: Tensor, n: int | None = None, seed: int = 5) -> Data:
    y, none = torch.zeros(len(x), dtype=torch.int64), Batch.of(x[:0], torch.zeros(0, dtype=torch.int64))
    return Data(x, y, torch.tensor(n or len(x)), torch.tensor(seed), none)


def tiny() -> Task:
    """Two units see (x, -x), then one unit each sees them as they are: ReLU layers of 2 and 2 channels."""
    net = nn.Sequential(
        nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2)
    )
    net[0].weight.data = torch.tensor([[1.0], [-1.0]])
    net[2].weight.data = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    return Task(net, "classes", 2)


def test_a_sparsity_vector_by_hand() -> None:
    # x = 2, 1, -1, 0. First layer: unit 1 is zero for -1 and 0 (1/2), unit 2 for 2, 1 and 0 (3/4).
    # Second layer: unit 1 is x+: zero for -1 and 0 (1/2). Unit 2 is |x|: zero for 0 (1/4).
    v = sparsity_vectors.mean_vector(tiny(), tiny().w0, data_of(torch.tensor([[2.0], [1.0], [-1.0], [0.0]])))
    assert v.tolist() == [(1 / 2 + 1 / 2) / 2, (3 / 4 + 1 / 4) / 2]


def test_only_the_first_layers_count_if_asked() -> None:
    x = torch.tensor([[2.0], [1.0], [-1.0], [0.0]])
    assert sparsity_vectors.mean_vector(tiny(), tiny().w0, data_of(x), ONE_LAYER).tolist() == [1 / 2, 3 / 4]


def test_in_an_image_zeros_are_counted_over_positions() -> None:
    conv = nn.Conv2d(1, 2, 1)
    conv.weight.data, conv.bias.data = torch.tensor([1.0, 0.0]).reshape(2, 1, 1, 1), torch.tensor([0.0, -1.0])
    task = Task(nn.Sequential(conv, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 2)), "classes", 2)
    x = torch.tensor([[1.0, -1.0], [2.0, 3.0]]).reshape(1, 1, 2, 2)
    v = sparsity_vectors.mean_vector(task, task.w0, data_of(x))
    assert v.tolist() == [1 / 4, 1.0]  # the second channel is zero everywhere


@pytest.mark.parametrize("rows", [3, 128, 300])
def test_padding_changes_no_vector(rows: int) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 6, generator=g)
    torch.manual_seed(0)
    task = Task(nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 2)), "classes", 2)
    padded = torch.cat([x, torch.zeros(50, 6)])
    bare, full = (sparsity_vectors.mean_vector(task, task.w0, data_of(t, rows)) for t in (x, padded))
    assert len(bare) == 32 and bare.min() >= 0 and bare.max() <= 1
    assert torch.allclose(bare, full, atol=1e-6)


@pytest.mark.parametrize("name", ["vgg11", "resnet34", "mobilenet_v1", "cnn", "mlp"])
def test_networks_for_images_have_vectors_and_vmap_gives_the_same(name: str) -> None:
    task = Task(nets.build(name, {}, (3, 16, 16), 5, "classes", 0), "classes", 5)
    x = torch.randn(2, 4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    one = torch.stack([sparsity_vectors.mean_vector(task, task.w0, data_of(rows)) for rows in x])

    def both(rows: Tensor) -> Tensor:
        return sparsity_vectors.mean_vector(task, task.w0, data_of(rows))

    assert one.shape == (2, 32) and one.min() >= 0 and one.max() <= 1 and one.std() > 0
    assert torch.allclose(one, vmap(both)(x), atol=0.02)  # a sum that is zero up to rounding may flip
    many = len(task.zero_masks(task.w0, x[0], 3))
    assert many == (1 if name == "mlp" else 3)  # also in residual blocks, whose ReLUs are no layers


def test_a_gate_of_an_lstm_counts_as_zero_where_it_is_less_than_half_open() -> None:
    options = {"hidden": 10, "layers": 1}
    task = Task(nets.build("lstm", options, (7,), 5, "classes", 0), "classes", 5)
    x = torch.randint(0, 5, (2, 6, 7), generator=torch.Generator().manual_seed(0))
    gates = task.zero_masks(task.w0, x[0], 3)
    assert [g.shape for g in gates] == [(6, 10, 7)] * 3  # those that let in, keep and let out, at each step
    first = task.w0["codes.weight"][x[0, :, 0]] @ task.w0["lstm.weight_ih_l0"].T
    first = first + task.w0["lstm.bias_ih_l0"] + task.w0["lstm.bias_hh_l0"]  # the state before is zero
    for gate, rows in zip(gates, (slice(0, 10), slice(10, 20), slice(30, 40)), strict=True):
        assert torch.equal(gate[..., 0], first[:, rows] <= 0)
    one = torch.stack([sparsity_vectors.mean_vector(task, task.w0, data_of(rows)) for rows in x])
    assert torch.allclose(
        one, vmap(lambda r: sparsity_vectors.mean_vector(task, task.w0, data_of(r)))(x), atol=0.02
    )
    assert torch.equal(task.predict(task.w0, x[0]), task.predict(task.w0, x[0]))


def test_recording_stops_the_network_early_and_leaves_it_as_it_was() -> None:
    task = tiny()
    x = torch.tensor([[1.0]])
    before = task.predict(task.w0, x)
    assert len(task.zero_masks(task.w0, x, 1)) == 1
    assert torch.equal(task.predict(task.w0, x), before)
    ran = []
    zero_masks(lambda: ran.append(torch.relu(torch.ones(1))), first=1)
    assert not ran


def test_statistics_that_are_local_are_the_clients_own() -> None:
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1), nn.ReLU(), nn.Linear(1, 2))
    net.statistics = "local"  # type: ignore[assignment]
    task = Task(net, "classes", 2)
    w = Vec(dict(task.w0) | {"0.weight": torch.ones(1, 1)})
    v = sparsity_vectors.mean_vector(task, w, data_of(torch.tensor([[10.0], [11.0], [12.0], [30.0]])))
    assert v.tolist() == [3 / 4]  # the mean is 15.75


# ---- noise ----


def test_noise_has_the_scale_of_the_formula() -> None:
    v, n = torch.zeros(32), torch.tensor(900)
    draws = torch.stack(
        [sparsity_vectors.VectorNoise(1.0).on_vector(v, n, torch.tensor(seed)) for seed in range(500)]
    )
    assert sparsity_vectors.VectorNoise(1.0).scale(900, 32) == pytest.approx(3.7306 * 32**0.5 / 900, rel=1e-4)
    assert float(draws.std()) == pytest.approx(
        float(sparsity_vectors.VectorNoise(1.0).scale(900, 32)), rel=0.02
    )
    assert abs(float(draws.mean())) < 1e-3


def test_without_epsilon_nothing_is_added() -> None:
    v = torch.rand(4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sparsity_vectors.VectorNoise(0.0).on_vector(v, torch.tensor(9), torch.tensor(1)), v)


def test_exchanging_an_example_moves_a_vector_by_no_more_than_the_sensitivity() -> None:
    x = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
    data = data_of(x)
    here = sparsity_vectors.mean_vector(tiny(), tiny().w0, data)
    for value in (-9.0, 0.0, 9.0):
        other = replace(data, x=torch.cat([torch.tensor([[value]]), x[1:]]))
        moved = (sparsity_vectors.mean_vector(tiny(), tiny().w0, other) - here).norm()
        assert float(moved) <= 2**0.5 / 20 + 1e-6


def test_gaussian_noise_is_the_least_that_suffices() -> None:
    def lost(sigma: float, epsilon: float) -> float:
        """Balle and Wang's delta, by scipy."""
        a, b = 1 / (2 * sigma), epsilon * sigma
        return float(norm.cdf(a - b) - np.exp(epsilon) * norm.cdf(-a - b))

    for epsilon in (0.1, 1.0, 10.0):
        sigma = sparsity_vectors.gaussian(epsilon)
        assert lost(sigma, epsilon) == pytest.approx(sparsity_vectors.DELTA, rel=1e-3)
    assert sparsity_vectors.gaussian(1.0) < np.sqrt(
        2 * np.log(1.25e5)
    )  # Dwork and Roth's, which is larger than needed
    assert 0 < sparsity_vectors.gaussian(1000.0) < sparsity_vectors.gaussian(100.0)


def test_laplace_noise_has_the_scale_of_the_formula() -> None:
    noise, n = sparsity_vectors.VectorNoise(2.0, "laplace"), torch.tensor(900)
    drawn = torch.stack([noise.on_vector(torch.zeros(32), n, torch.tensor(seed)) for seed in range(500)])
    assert noise.scale(900, 32) == pytest.approx(32 / 900 / 2)
    assert float(drawn.abs().mean()) == pytest.approx(32 / 900 / 2, rel=0.03)
    assert abs(float(drawn.mean())) < 1e-3


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("clip", [0.0, 0.7])
def test_no_example_moves_a_reply_by_more_than_the_noise_hides(kind: Any, clip: float) -> None:
    noise, n, width = sparsity_vectors.VectorNoise(1.0, kind, clip), 10, 6
    unit = sparsity_vectors.gaussian(1.0) if kind == "gaussian" else 1.0
    power = 2 if kind == "gaussian" else 1
    g = torch.Generator().manual_seed(0)
    for _ in range(200):
        one, other = torch.rand(2, width, generator=g).round()  # corners of the cube are the farthest
        a, b = (sparsity_vectors.clipped(v[None], clip)[0] - 0.5 for v in (one, other))
        assert float((a - b).norm(p=power)) / n <= noise.scale(n, width) / unit + 1e-6
        products = torch.outer(a, a) - torch.outer(b, b)
        assert float(products.norm(p=power)) / n <= noise.scale(n, width, True) / unit + 1e-6


def test_long_vectors_are_clipped_and_others_are_left() -> None:
    v = torch.tensor([[0.5, 0.9], [1.0, 1.0]])
    near = sparsity_vectors.clipped(v, 0.5)
    assert torch.equal(near[0], v[0]) and float((near[1] - 0.5).norm()) == pytest.approx(0.5)
    assert sparsity_vectors.clipped(v, 0.0) is v


def test_validation_examples_count_too() -> None:
    x = torch.tensor([[2.0], [1.0], [-1.0], [0.0]])
    apart = replace(data_of(x[:3]), val=Batch.of(x[3:], torch.zeros(1, dtype=torch.int64)))
    task = tiny()
    for measure in (sparsity_vectors.mean_vector, sparsity_vectors.second_moments):
        assert torch.equal(measure(task, task.w0, data_of(x)), measure(task, task.w0, apart))


def test_second_moments_by_hand() -> None:
    # first layer: units are zero for x = 2: (0, 1), for x = -1: (1, 0); minus 1/2, products are +-1/4
    found = sparsity_vectors.second_moments(
        tiny(), tiny().w0, data_of(torch.tensor([[2.0], [-1.0]])), ONE_LAYER
    )
    assert found.tolist() == [[0.25, -0.25], [-0.25, 0.25]]


def test_layers_side_by_side_keep_what_their_mean_loses() -> None:
    # One image fires in the first layer alone, the other in the second alone: on average they are the same.
    first, second = torch.tensor([[[0.0, 0.0]], [[1.0, 1.0]]]), torch.tensor([[[1.0]], [[0.0]]])
    masks = [first > 0.5, second > 0.5]
    assert sparsity_vectors.zero_shares(masks, 32, "mean").tolist() == [[0.5], [0.5]]
    assert sparsity_vectors.zero_shares(masks, 32, "beside").tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_side_by_side_every_layer_has_its_own_channels() -> None:
    masks = [torch.ones(3, 2, 5) > 0, torch.ones(3, 40) > 0]
    assert sparsity_vectors.zero_shares(masks, 32, "beside").shape == (3, 2 + 32)
    assert sparsity_vectors.zero_shares(masks, 32, "mean").shape == (3, 2)
