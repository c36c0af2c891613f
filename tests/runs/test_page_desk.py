"""What PAGE's desk-scale tables rest on: fixed features of images and text, and differences with their intervals."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from motet.report.certainty import two_shares
from motet.runs import experiment as experiments

sys.path.insert(0, str(experiments.own_folder().parent))
from experiments.page import features, paired


def run(seed: int, local: dict[str, float], server: float | None) -> Any:
    """What `paired` reads of a run."""
    facts = {"server_test": None if server is None else {"accuracy": server}}
    return SimpleNamespace(seed=seed, facts=facts, of=lambda side: pd.Series(local, dtype=float))


def test_clients_are_paired_by_name_and_those_of_two_seeds_are_different_clients() -> None:
    own = [run(0, {"a": 0.6, "b": 0.8}, None), run(1, {"a": 0.5, "b": 0.9}, None)]
    other = [run(0, {"b": 0.7, "a": 0.5}, None), run(1, {"a": 0.4, "b": 0.6}, None)]
    found = paired.of_clients(list(zip(own, other, strict=True)))
    assert found is not None
    assert found.units == 4
    assert found.mean == pytest.approx((0.1 + 0.1 + 0.1 + 0.3) / 4)


def test_one_seed_of_the_global_model_has_the_interval_of_two_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "server_rows", lambda _: 400)
    found = paired.of_server([(run(0, {}, 0.5), run(0, {}, 0.4))])
    assert found is not None
    assert (found.low, found.high) == two_shares(0.5, 0.4, 400)
    assert found.mean == pytest.approx(0.1)


def test_several_seeds_of_the_global_model_are_paired_seed_by_seed() -> None:
    some = [(run(s, {}, 0.5 + s / 100), run(s, {}, 0.4)) for s in range(3)]  # gains 0.10, 0.11, 0.12
    found = paired.of_server(some)
    assert found is not None
    assert found.mean == pytest.approx(0.11)
    assert found.high - found.mean == pytest.approx(4.3027 * 0.01 / 3**0.5, abs=1e-5)  # t with two degrees


def test_a_method_without_a_global_model_has_no_global_difference() -> None:
    assert paired.of_server([(run(0, {}, 0.5), run(0, {}, None))]) is None
    assert paired.shown(None) == "–"


def test_every_reading_of_page_converges_where_both_sides_have() -> None:
    sides = experiments.module_of(experiments.find("page/table2"), "procedure").sides
    assert sides("PAGE as published") == sides("PAGE") == ["global", "after_training"]


def test_filters_have_no_mean_and_are_always_the_same() -> None:
    filters = features.random_filters()
    assert filters.mean((2, 3)).abs().max() < 1e-6
    assert torch.equal(filters, features.random_filters())


def test_features_do_not_see_how_bright_an_image_is_but_for_its_mean_colours() -> None:
    rng = np.random.default_rng(0)
    dark = rng.integers(0, 100, (2, 16, 16, 3)).astype(np.uint8)
    fields = features.FILTERS * 2 * features.GRID**2
    found, lighter = features.features(dark), features.features(dark + np.uint8(100))
    assert found.shape == (2, fields + 3 * features.COLOURS**2)
    assert torch.allclose(found[:, :fields], lighter[:, :fields], atol=1e-4)
    assert torch.allclose(lighter[:, fields:] - found[:, fields:], torch.tensor(100 / 255), atol=1e-5)


def test_features_of_an_image_do_not_depend_on_the_others() -> None:
    images = np.random.default_rng(1).integers(0, 256, (3, 16, 16, 3)).astype(np.uint8)
    assert torch.allclose(features.features(images)[1:2], features.features(images[1:2]), atol=1e-6)


def test_the_first_images_of_each_class_and_part_are_taken() -> None:
    y, part = np.array([1, 0, 1, 0, 1, 0]), np.array([-1, -1, -1, -1, 4, 4])
    assert features.first_of_each(y, part, {-1: 1, 4: 9}).tolist() == [0, 1, 4, 5]
