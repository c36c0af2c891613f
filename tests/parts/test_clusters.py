"""Sparsity vectors by hand, noise by its formula, and groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from motet.local import Batch, Data, Task
from motet.local.bends import overheard
from motet.parts import clusters, sketches
from motet.tasks import nets
from motet.vec import Vec


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


def test_a_sketch_by_hand() -> None:
    # x = 2, 1, -1, 0. First layer: unit 1 is zero for -1 and 0 (1/2), unit 2 for 2, 1 and 0 (3/4).
    # Second layer: unit 1 is x+: zero for -1 and 0 (1/2). Unit 2 is |x|: zero for 0 (1/4).
    v = sketches.sketch(tiny(), tiny().w0, data_of(torch.tensor([[2.0], [1.0], [-1.0], [0.0]])))
    assert v.tolist() == [(1 / 2 + 1 / 2) / 2, (3 / 4 + 1 / 4) / 2]


def test_only_the_first_layers_count_if_so_asked() -> None:
    x = torch.tensor([[2.0], [1.0], [-1.0], [0.0]])
    assert sketches.sketch(tiny(), tiny().w0, data_of(x), layers=1).tolist() == [1 / 2, 3 / 4]


def test_in_an_image_zeros_are_counted_over_positions() -> None:
    conv = nn.Conv2d(1, 2, 1)
    conv.weight.data, conv.bias.data = torch.tensor([1.0, 0.0]).reshape(2, 1, 1, 1), torch.tensor([0.0, -1.0])
    task = Task(nn.Sequential(conv, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 2)), "classes", 2)
    x = torch.tensor([[1.0, -1.0], [2.0, 3.0]]).reshape(1, 1, 2, 2)
    v = sketches.sketch(task, task.w0, data_of(x))
    assert v.tolist() == [1 / 4, 1.0]  # the second channel is zero everywhere


@pytest.mark.parametrize("rows", [3, 128, 300])
def test_padding_changes_no_sketch(rows: int) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 6, generator=g)
    torch.manual_seed(0)
    task = Task(nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 2)), "classes", 2)
    padded = torch.cat([x, torch.zeros(50, 6)])
    bare, full = (sketches.sketch(task, task.w0, data_of(t, rows)) for t in (x, padded))
    assert len(bare) == 32 and bare.min() >= 0 and bare.max() <= 1
    assert torch.allclose(bare, full, atol=1e-6)


@pytest.mark.parametrize("name", ["vgg11", "resnet34", "mobilenet_v1", "cnn", "mlp"])
def test_networks_for_images_are_sketched_and_stacking_gives_the_same(name: str) -> None:
    task = Task(nets.build(name, {}, (3, 16, 16), 5, "classes", 0), "classes", 5)
    x = torch.randn(2, 4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    one = torch.stack([sketches.sketch(task, task.w0, data_of(rows)) for rows in x])

    def both(rows: Tensor) -> Tensor:
        return sketches.sketch(task, task.w0, data_of(rows))

    assert one.shape == (2, 32) and one.min() >= 0 and one.max() <= 1 and one.std() > 0
    assert torch.allclose(one, vmap(both)(x), atol=0.02)  # a sum that is zero up to rounding may flip
    many = len(task.silent(task.w0, x[0], 3))
    assert many == (1 if name == "mlp" else 3)  # also in residual blocks, whose ReLUs are no layers


def test_a_recurrent_network_is_asked_for_the_features_that_its_head_sees() -> None:
    task = Task(nets.build("lstm", {"hidden": 10}, (7,), 5, "classes", 0), "classes", 5)
    x = torch.randint(0, 5, (6, 7), generator=torch.Generator().manual_seed(0))
    _, features = task.predict_from(task.w0, x)
    assert sketches.sketch(task, task.w0, data_of(x)).tolist() == pytest.approx(
        (features <= 0).float().mean(0).tolist()
    )


def test_listening_stops_the_network_early_and_leaves_it_as_it_was() -> None:
    task = tiny()
    x = torch.tensor([[1.0]])
    before = task.predict(task.w0, x)
    assert len(task.silent(task.w0, x, 1)) == 1
    assert torch.equal(task.predict(task.w0, x), before)
    ran = []
    overheard(lambda: ran.append(torch.relu(torch.ones(1))), first=1)
    assert not ran


def test_statistics_that_are_local_are_the_clients_own() -> None:
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1), nn.ReLU(), nn.Linear(1, 2))
    net.statistics = "local"  # type: ignore[assignment]
    task = Task(net, "classes", 2)
    w = Vec(dict(task.w0) | {"0.weight": torch.ones(1, 1)})
    v = sketches.sketch(task, w, data_of(torch.tensor([[10.0], [11.0], [12.0], [30.0]])))
    assert v.tolist() == [3 / 4]  # the mean is 15.75


# ---- noise ----


def test_noise_has_the_scale_of_the_formula() -> None:
    v, n = torch.zeros(32), torch.tensor(900)
    draws = torch.stack([sketches.Hiding(1.0).sketch(v, n, torch.tensor(seed)) for seed in range(500)])
    assert sketches.Hiding(1.0).scale(900, 32) == pytest.approx(3.7306 * 32**0.5 / 900, rel=1e-4)
    assert float(draws.std()) == pytest.approx(float(sketches.Hiding(1.0).scale(900, 32)), rel=0.02)
    assert abs(float(draws.mean())) < 1e-3


def test_without_epsilon_nothing_is_added() -> None:
    v = torch.rand(4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sketches.Hiding(0.0).sketch(v, torch.tensor(9), torch.tensor(1)), v)


def test_another_example_moves_a_sketch_by_no_more_than_the_sensitivity() -> None:
    x = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
    data = data_of(x)
    here = sketches.sketch(tiny(), tiny().w0, data)
    for value in (-9.0, 0.0, 9.0):
        other = replace(data, x=torch.cat([torch.tensor([[value]]), x[1:]]))
        moved = (sketches.sketch(tiny(), tiny().w0, other) - here).norm()
        assert float(moved) <= 2**0.5 / 20 + 1e-6


# ---- groups ----


def blobs(groups: int = 3, each: int = 5) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(groups), each)
    return rng.normal(0, 0.01, (len(truth), 8)) + 0.2 * truth[:, None], truth


def test_kmeans_and_links_find_what_is_there() -> None:
    rows, truth = blobs()
    assert clusters.kmeans(rows, 3, seed=1).tolist() == truth.tolist()
    assert clusters.linked(rows, 0.2).tolist() == truth.tolist()
    assert clusters.best_k(rows, seed=1) == 3
    assert clusters.silhouette(rows, truth) > 0.9 > clusters.silhouette(rows, clusters.dealt(15, 3, 0))


def test_links_chain() -> None:
    rows = np.array([[0.0], [9.0], [1.0], [2.0], [3.0]])
    assert clusters.linked(rows, 1.0).tolist() == [0, 1, 0, 0, 0]
    assert clusters.linked(rows, 0.5).tolist() == [0, 1, 2, 3, 4]


def test_few_rows_make_few_groups() -> None:
    assert clusters.kmeans(np.zeros((3, 2)), 4, seed=0).tolist() == [0, 0, 0]
    assert clusters.best_k(np.zeros((2, 2)), seed=0) == 1
    assert clusters.best_k(np.zeros((5, 2)), seed=0) == 2  # nothing to tell: one group all the same
    assert clusters.linked(np.zeros((1, 2)), 0.1).tolist() == [0]


def test_random_groups_are_of_one_size() -> None:
    labels = clusters.dealt(20, 4, seed=3)
    assert np.bincount(labels).tolist() == [5, 5, 5, 5]
    assert labels.tolist() != clusters.dealt(20, 4, seed=4).tolist()


def test_the_nearest_centre() -> None:
    rows, truth = blobs()
    middle = clusters.centres(rows, truth)
    assert middle.shape == (3, 8)
    assert [clusters.nearest(r, middle) for r in rows] == truth.tolist()


def test_agreement_is_the_adjusted_rand_index() -> None:
    a = np.array([0, 0, 1, 1])
    assert clusters.agreement(a, 1 - a) == 1.0
    assert clusters.agreement(a, np.array([0, 1, 0, 1])) == pytest.approx(-0.5)
