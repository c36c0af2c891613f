"""What players see: scores of models at home and at the server, and the same ones stacked."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from motet.client import Batch, ClientData, Task
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.methods.page import PAGE
from motet.parts import games
from motet.vec import stack
from rounds import after, server_examples, turn


def test_a_client_sees_its_validation_examples_or_else_those_it_trains_on(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    h = clients_data["c03"]
    clients_data["c03"] = ClientData(h.train, Batch.of(h.val.x[:0], h.val.y[:0]), h.test)
    here = Loop(clients_data)
    here.begin(PAGE(task), turn(here, 0))
    for client, part in (("c02", clients_data["c02"].val), ("c03", h.train)):
        examples = part.take()
        right = task.predict(task.w0, examples.x).argmax(-1) == examples.y
        found = games.local_loss_and_accuracy(task, task.w0, here.data(client)).tolist()
        assert found == pytest.approx([task.loss(task.w0, examples).item(), right.float().mean().item()])


def test_stacked_models_score_as_one_by_one(task: Task, clients_data: dict[str, ClientData]) -> None:
    here, examples = Vmap(clients_data), server_examples(40)
    after(PAGE(task, epochs_max=3), here, 1, examples)
    models = [here.keeps.get(c)["w"] for c in here.clients]
    alone = [games.loss_and_accuracy(task, partial(task.predict, w), examples)[1] for w in models]
    assert torch.equal(games.accuracies(task, stack(models), examples), torch.stack(alone))
    assert len({float(a) for a in alone}) > 1


def test_proxy_rows_are_evenly_spaced_and_no_more_than_asked() -> None:
    examples = server_examples(10)
    assert [len(games.evenly_spaced(examples, most)) for most in (0, 3, 4, 10, 99)] == [10, 3, 4, 10, 10]
    assert torch.equal(games.evenly_spaced(examples, 3).x, examples.x[::4])


def test_seats_run_out() -> None:
    assert games.assign_seats({"a": 0}, {"a", "b", "c"}, 2) is None
