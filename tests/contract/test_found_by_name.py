"""What every method file, data set and network must keep. Each is tested because its file is there."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from motet import methods, nets
from motet.client import Batch, ClientData, Task
from motet.core import Turn
from motet.data import load as data_sets
from motet.data.files import cache
from motet.engines.driver import play
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.methods.fedavg import FedAvg
from motet.nets.layers import NetError
from motet.runs.recipe import RecipeError, method_class, method_names
from motet.vec import leaves

# ---- methods ----

NO_PAPER = {"local", "centralised", "finetune"}  # what papers compare with


@pytest.mark.parametrize("name", method_names())
def test_a_methods_class_says_which_paper_which_algorithm_and_what_differs(name: str) -> None:
    cls = method_class(name)
    text = cls.__doc__ or ""
    assert not text.startswith(f"{cls.__name__}("), "a dataclass without a docstring"
    if name not in NO_PAPER:
        assert re.search(r"\b(19|20)\d\d\b", text), "the year of the paper"
        assert re.search(r"Algorithm|[Ss]ection|[Ee]quation|code", text), "which part of the paper"
        assert re.search(r"Differs from the paper|As in the paper", text)


TWO_CLASSES = "from motet.methods.fedavg import FedAvg\nclass {0}(FedAvg): ...\nclass {1}(FedAvg): ...\n"


@pytest.fixture
def method_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a file that lies beside the methods."""
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])

    def write(name: str, text: str) -> None:
        monkeypatch.delitem(sys.modules, f"motet.methods.{name}", raising=False)
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(f"motet.methods.{file.stem}", None)


@pytest.mark.parametrize("order", [("MyMethod", "Helper"), ("Helper", "MyMethod")])
def test_of_two_classes_the_one_with_the_files_name_is_the_method(method_file: Any, order: Any) -> None:
    method_file("my_method", TWO_CLASSES.format(*order))
    assert method_class("my_method").__name__ == "MyMethod"


def test_two_classes_of_which_none_has_the_files_name_are_refused(method_file: Any) -> None:
    method_file("my_method", TWO_CLASSES.format("First", "Second"))
    with pytest.raises(RecipeError, match="First, Second.*\nhint: call one of them MyMethod"):
        method_class("my_method")


def test_a_method_file_without_a_method_is_refused(method_file: Any) -> None:
    method_file("my_method", "x = 1\n")
    with pytest.raises(RecipeError, match="no class"):
        method_class("my_method")


# ---- data sets ----


@pytest.mark.parametrize("name", data_sets.names())
def test_a_data_set_gives_every_client_rows_of_one_shape_and_targets_that_exist(name: str) -> None:
    if not cache.status(name).here:
        pytest.skip(f"its files are not here: motet data fetch {name}")
    found = data_sets.load(name, {}, seed=0)
    assert found.clients_data and not set(found.clients_data) & set(found.unseen)
    for client in found.clients_data.values():
        batches = [b.take() for b in (client.train, client.val, client.test)]
        assert len(batches[0].x) and len(batches[2].x), "rows to train with and rows to test on"
        assert {tuple(b.x.shape[1:]) for b in batches} == {tuple(found.shape)}
        if found.kind == "classes":
            assert all(((b.y >= 0) & (b.y < found.outputs)).all() for b in batches)
        else:
            assert all(torch.isfinite(b.y).all() for b in batches)


@pytest.mark.parametrize("name", data_sets.names())
def test_a_data_set_that_needs_no_files_is_drawn_by_the_seed(name: str) -> None:
    if hasattr(import_module(f"motet.data.sets.{name}"), "FOLDERS"):
        pytest.skip("it is read from files")
    one, same, other = (data_sets.load(name, {}, seed=seed) for seed in (0, 0, 1))

    def rows(federated: Any) -> list[np.ndarray]:
        return [federated.clients_data[c].train.take().x.numpy() for c in sorted(federated.clients_data)]

    assert all(np.array_equal(a, b) for a, b in zip(rows(one), rows(same), strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(rows(one), rows(other), strict=False))


@pytest.mark.parametrize("name", data_sets.names())
def test_a_data_set_says_what_it_is_in_one_line(name: str) -> None:
    text = import_module(f"motet.data.sets.{name}").__doc__ or ""
    assert 20 < len(text.splitlines()[0]) <= 120  # motet data list prints it


# ---- networks ----

SHAPES = [(6,), (1, 8, 8), (3, 16, 16), (3, 32, 32)]
OUTPUTS = 3


def small(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """The network for the first shape that it takes."""
    for shape in SHAPES:
        try:
            return nets.build(name, {}, shape, OUTPUTS, "classes", 0), shape
        except NetError:
            continue
    raise AssertionError(f"{name} takes none of {SHAPES}")


def clients_with(shape: tuple[int, ...]) -> dict[str, ClientData]:
    """Zeros and ones, which are numbers, pixels and symbols."""
    g = torch.Generator().manual_seed(0)

    def batch(many: int) -> Batch:
        x = torch.randint(0, 2, (many, *shape), generator=g).float()
        return Batch.of(x, torch.randint(0, OUTPUTS, (many,), generator=g))

    return {f"c{n}": ClientData(batch(n), batch(2), batch(2)) for n in (2, 3)}


@pytest.mark.parametrize("name", nets.names())
def test_a_networks_head_comes_last_and_nothing_in_it_draws(name: str) -> None:
    net, shape = small(name)
    task = Task(net, "classes", OUTPUTS)
    assert tuple(task.w0)[-len(task.head) :] == tuple(task.head) and isinstance(net.head, nn.Linear)
    assert not [m for m in net.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    assert task.predict(task.w0, torch.zeros(2, *shape)).shape == (2, OUTPUTS)


@pytest.mark.parametrize("name", nets.names())
def test_a_networks_weights_are_drawn_by_the_seed_alone(name: str) -> None:
    _, shape = small(name)
    torch.manual_seed(5)
    one, same, other = (nets.build(name, {}, shape, OUTPUTS, "classes", s).state_dict() for s in (0, 0, 1))
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert name == "logistic" or not all(torch.equal(one[k], other[k]) for k in one)  # it starts from zero


@pytest.mark.parametrize("name", nets.names())
def test_a_network_learns_the_same_for_stacked_clients(name: str) -> None:
    net, shape = small(name)
    task, clients = Task(net, "classes", OUTPUTS), clients_with(shape)
    method, found = FedAvg(task, batch=2, lr=0.01), []
    for engine in (Loop(clients), Vmap(clients)):
        turn = Turn(0, engine.clients, engine.clients, 1)
        found.append(leaves(play(engine, method, task.w0, turn)))
    start = leaves(task.w0)
    assert max(float((a - b).abs().max()) for a, b in zip(start, found[0], strict=True)) > 0
    assert max(float((a - b).abs().max()) for a, b in zip(*found, strict=True)) < 2e-5
