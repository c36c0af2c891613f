"""Dropout and other draws of a network in training: by arithmetic, the same on every engine, off in use."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from motet.client import Batch, Data, Task, descent
from motet.client.client_by_client import why_not_fused
from motet.client.descent import descend
from motet.client.dropout import DrawnByArithmetic, Draws, drawing
from motet.errors import UsageError
from motet.vec import Vec, stack

SYMBOLS = 20


class Encoder(nn.Module):
    """A stranger's transformer, with torch's layers and their usual dropout."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.first = batch_first
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=batch_first)
        self.codes, self.encoder = (
            nn.Embedding(SYMBOLS, 8),
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        )
        self.register_buffer("places", torch.randn(5, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.codes(x.long()) + self.places
        z = self.encoder(z if self.first else z.transpose(0, 1))
        return self.head(z.mean(1 if self.first else 0))


class Attention(nn.Module):
    """Attention whose weights are asked for (torch's other way), functional dropout, a dropped path, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(SYMBOLS, 8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)
        self.inner, self.again, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.again.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        z = self.codes(x.long())
        z = z + self.attention(z, z, z)[0]
        path = z.new_empty(len(z), 1, 1).bernoulli_(0.7) if self.training else 1.0
        z = z + path * self.again(F.dropout(self.inner(z), 0.4, self.training))
        return self.head(z.mean(1))


class Frozen(nn.Module):
    """Only the last layer is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
        self.body.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.body(x).relu(), 0.5, self.training))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)), (5,)),
    "alpha": (lambda: nn.Sequential(nn.Linear(5, 8), nn.SELU(), nn.AlphaDropout(0.5), nn.Linear(8, 3)), (5,)),
    "channels": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(16, 3)),
        (1, 4, 4),
    ),
    "encoder": (Encoder, (5,)),
    "steps first": (lambda: Encoder(batch_first=False), (5,)),
    "attention": (Attention, (5,)),
    "frozen": (Frozen, (5,)),
}
every_net = pytest.mark.parametrize("name", NETS)


@cache
def task_of(name: str) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Task(NETS[name][0](), "classes", 3)


def client(name: str, number: int, n: int) -> Data:
    g = torch.Generator().manual_seed(number)
    x = torch.randint(0, SYMBOLS, (12, *NETS[name][1]), generator=g).float()
    x = x if task_of(name).net.__class__ in (Encoder, Attention) else x / SYMBOLS
    y = torch.randint(0, 3, (12,), generator=g)
    return Data(x, y, torch.tensor(n), torch.tensor(100 + number), Batch.of(x[:1], y[:1]))


def trained(name: str, data: Data, steps: int = 0) -> Vec:
    task = task_of(name)
    return descend(task.loss, task.w0, data, lr=0.1, epochs=2, batch=4, steps=steps)


@every_net
def test_stacked_clients_draw_what_one_client_draws_and_no_generator_is_used(name: str) -> None:
    clients = [client(name, 0, 5), client(name, 1, 9), client(name, 2, 12)]  # batches of 1 and 4 rows
    before = torch.get_rng_state()
    for steps in (0, 4):
        apart = [trained(name, data, steps) for data in clients]
        again = trained(name, clients[0], steps)
        assert all(torch.equal(again[k], a) for k, a in apart[0].items())
        together = torch.func.vmap(lambda data, s=steps: trained(name, data, s))(stack(clients))
        for c, own in enumerate(apart):
            for k, a in own.items():
                torch.testing.assert_close(together[k][c], a, atol=2e-6, rtol=0)
    assert torch.equal(before, torch.get_rng_state())


@every_net
def test_nothing_is_dropped_in_use(name: str) -> None:
    task, data = task_of(name), client(name, 0, 5)
    trained(name, data)
    torch.testing.assert_close(task.predict(task.w0, data.x), task.net.eval()(data.x))


def test_another_seed_and_another_step_drop_others() -> None:
    def kept(seed: int, step: int) -> list[bool]:
        return Draws(torch.tensor(seed), step).kept((40,), 0.5).tolist()  # type: ignore[no-any-return]

    assert kept(1, 0) == kept(1, 0)
    assert len({tuple(kept(*place)) for place in [(1, 0), (1, 1), (2, 0), (2, 1)]}) == 4


def test_draws_do_not_depend_on_how_long_an_axis_is() -> None:
    """A padded batch has the draws of one that is not, whichever axis holds the examples."""
    small, large = (Draws(torch.tensor(3), 1).whole(shape) for shape in [(2, 3, 4), (5, 6, 4)])
    assert torch.equal(small, large[:2, :3])


def test_a_share_p_is_dropped_and_the_rest_is_larger_by_as_much() -> None:
    x = torch.ones(400, 100)
    with DrawnByArithmetic(Draws(torch.tensor(0), 0)) as mode:
        z = F.dropout(x, 0.3)
    assert mode.used and set(z.unique().tolist()) == {0.0, z.max().item()}
    assert z.max().item() == pytest.approx(1 / 0.7)
    assert (z == 0).float().mean().item() == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / 40000))


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    x = torch.randn(400, 400, generator=torch.Generator().manual_seed(0))
    with DrawnByArithmetic(Draws(torch.tensor(0), 0)):
        z = F.alpha_dropout(x, 0.2, training=True)
    assert z.mean().item() == pytest.approx(0, abs=0.02) and z.var().item() == pytest.approx(1, abs=0.03)


def test_whole_channels_are_dropped() -> None:
    with DrawnByArithmetic(Draws(torch.tensor(0), 0)):
        z = F.dropout2d(torch.ones(6, 5, 4, 4), 0.5)
    assert torch.equal(z.amax((2, 3)), z.amin((2, 3))) and 0 < (z == 0).float().mean() < 1


def test_attention_without_dropout_is_torchs_own() -> None:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 4, 8, generator=g) for _ in range(3))
    usual = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    with DrawnByArithmetic(Draws(torch.tensor(0), 0)):
        # a chance so small that nothing is dropped goes the way that drops
        ours = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=1e-9)
    torch.testing.assert_close(ours, usual)


@pytest.mark.parametrize("name", ["encoder", "attention"])
def test_attention_of_stacked_clients_takes_no_quick_path_in_use(name: str) -> None:
    task, x = task_of(name), client(name, 0, 5).x
    models = [task.w0, task.w0.map(lambda a, _: a * 1.1)]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")  # torch warns where it does clients one after another
        together = torch.func.vmap(lambda w: task.predict(w, x))(stack(models))
        apart = torch.stack([task.predict(w, x) for w in models])
    torch.testing.assert_close(together, apart, atol=2e-6, rtol=0)


def test_a_model_that_a_loss_is_given_predicts_without_dropout() -> None:
    task, data = task_of("dense"), client("dense", 0, 5)
    with drawing(Draws(torch.tensor(0), 0)):
        torch.testing.assert_close(task.predict(task.w0, data.x), task.net.eval()(data.x))
        u = task.w0.map(lambda a, _: a.clone().requires_grad_())
        assert not torch.allclose(task.predict(u, data.x), task.net.eval()(data.x))


def test_only_what_is_not_frozen_is_trained_and_travels() -> None:
    assert list(task_of("frozen").w0) == ["head.weight", "head.bias"]
    after = trained("frozen", client("frozen", 0, 5))
    assert list(after) == ["head.weight", "head.bias"]
    assert not torch.equal(after["head.bias"], task_of("frozen").w0["head.bias"])


def test_torchs_own_recurrent_layers_use_the_weights_they_are_given() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.gru(x.reshape(len(x), 2, 3))[0][:, -1])

    task, x = Task(Recurrent(), "classes", 2), torch.ones(2, 6)
    assert not task.stackable and "recurrent" in task.why_not_stacked
    assert torch.equal(task.predict(task.w0.zeros(), x), torch.zeros(2, 2))
    data = Data(x, torch.tensor([0, 1]), torch.tensor(2), torch.tensor(0), Batch.of(x, torch.zeros(2)))
    after = descend(task.loss, task.w0, data, lr=0.5, batch=1)
    assert not torch.equal(after["gru.weight_hh_l0"], task.w0["gru.weight_hh_l0"])


def test_dropout_between_layers_of_an_lstm_is_refused_with_a_hint() -> None:
    net = nn.Sequential(nn.LSTM(3, 4, 2, dropout=0.5), nn.Linear(4, 2))
    with pytest.raises(UsageError, match="(?s)LSTM with dropout=0.5.*hint: .*nn.Dropout between"):
        Task(net, "classes", 2)


def test_other_draws_of_a_network_are_refused_with_a_hint() -> None:
    class Noisy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.randn_like(x))

    task, x = Task(Noisy(3, 2), "classes", 2), torch.ones(2, 3)
    data = Data(x, torch.tensor([0, 1]), torch.tensor(2), torch.tensor(0), Batch.of(x, torch.zeros(2)))
    with pytest.raises(UsageError, match="(?s)randn_like.*hint: .*torch.nn.Dropout"):
        descend(task.loss, task.w0, data, lr=0.5)


def test_a_buffer_that_the_network_changes_is_refused_and_one_that_stays_is_not() -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.seen += len(x)
            return super().forward(x)

    task = Task(Counting(), "classes", 2)
    with pytest.raises(UsageError, match="(?s)changes its buffers.*seen.*hint: "):
        task.predict(task.w0, torch.ones(2, 3))


def test_a_network_of_which_all_is_frozen_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no parameter that is not frozen(?s:.*)hint: "):
        Task(nn.Linear(2, 2).requires_grad_(False), "classes", 2)


def test_steps_with_draws_are_not_generated_client_by_client() -> None:
    task, data = task_of("dense"), client("dense", 0, 5)
    assert "draws random numbers" in why_not_fused(task.loss, task.w0, data.x, data.y, 4)


def test_steps_with_draws_that_inductor_compiled_agree_with_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descent, "_UNROLL", 1)  # a third of the time to compile
    clients = [client("dense", 0, 5), client("dense", 1, 9)]
    with descent.compiled_steps(True):
        together = torch.func.vmap(lambda data: trained("dense", data))(stack(clients))
    for c, data in enumerate(clients):
        for k, a in trained("dense", data).items():
            torch.testing.assert_close(together[k][c], a, atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: x * float(np.random.rand()),
        lambda x: x * random.random(),
        lambda x: x + torch.empty_like(x).cauchy_(),
        lambda x: torch.native_dropout(x, 0.5, True)[0],
        lambda x: torch.ops.aten.dropout(x, 0.5, True),
        lambda x: x + torch.binomial(torch.full_like(x, 5), torch.full_like(x, 0.5)),
    ],
    ids=["numpy", "python", "cauchy", "native", "aten", "binomial"],
)
def test_draws_from_a_global_generator_are_refused_however_they_are_made(draw: Callable[..., Tensor]) -> None:
    class Drawing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(draw(x) if self.training else x)

    task, x = Task(Drawing(3, 2), "classes", 2), torch.ones(2, 3)
    data = Data(x, torch.tensor([0, 1]), torch.tensor(2), torch.tensor(0), Batch.of(x, torch.zeros(2)))
    task.predict(task.w0, x)
    with pytest.raises(UsageError, match="(?s)global generator while it trains.*hint: "):
        descend(task.loss, task.w0, data, lr=0.5)


def test_dropout_that_is_left_on_in_use_is_refused_with_a_hint() -> None:
    class LeftOn(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(F.dropout(x, 0.5))  # torch's default is training=True

    task = Task(LeftOn(3, 2), "classes", 2)
    with pytest.raises(UsageError, match=r"(?s)while it predicts.*hint: .*dropout\(x, p, self.training\)"):
        task.predict(task.w0, torch.ones(2, 3))


def test_a_network_whose_first_step_is_of_stacked_clients_is_watched_too() -> None:
    class Drawing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * random.random() if self.training and self.hidden else F.dropout(x))

    for hidden in (False, True):
        net = Drawing(5, 3)
        net.hidden = hidden  # type: ignore[assignment]
        task, clients = Task(net, "classes", 3), stack([client("dense", 0, 5), client("dense", 1, 9)])
        steps = torch.func.vmap(lambda data, task=task: descend(task.loss, task.w0, data, lr=0.1, batch=4))
        if not hidden:
            assert torch.isfinite(steps(clients)["weight"]).all()
            continue
        with pytest.raises(UsageError, match="global generator while it trains"):
            steps(clients)


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_run_again_for_the_gradient_are_refused(reentrant: bool) -> None:
    """They would run with other weights and other draws than those of the step."""

    class Again(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = checkpoint(super().forward, x, use_reentrant=reentrant)
            return found

    task = Task(Again(3, 2), "classes", 2)
    with pytest.raises(UsageError, match="(?s)torch.utils.checkpoint.*hint: "):
        task.predict(task.w0, torch.ones(2, 3))
