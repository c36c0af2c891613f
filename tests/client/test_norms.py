"""Whose statistics BatchNorm uses: averaged ones travel, local ones stay, shared ones never change."""

import pytest
import torch
from torch import nn

from motet.client import Batch, ClientData, Task
from motet.client.batchnorm import statistics
from motet.core import Turn
from motet.engines.driver import play
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.methods.fedavg import FedAvg
from motet.methods.fedprox import FedProx


def net(policy: str) -> nn.Module:
    torch.manual_seed(3)
    made = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    made.statistics = policy
    return made


def task(policy: str) -> Task:
    return Task(net(policy), "classes", 2)


def clients_data(clients: int = 3, n: int = 12) -> dict[str, ClientData]:
    g = torch.Generator().manual_seed(1)

    def some(i: int, n: int) -> Batch:
        x = torch.randn(n, 4, generator=g) + i
        return Batch.of(x, (x[:, 0] > i).long())

    return {f"c{i}": ClientData(some(i, n), some(i, 6), some(i, 6)) for i in range(clients)}


def turn(engine: Loop, number: int = 0) -> Turn:
    return Turn(number, engine.clients, engine.clients, 5 + number)


def test_averaged_statistics_are_the_mean_of_what_torch_would_have_run():
    """One client, one epoch, whole batches: a plain PyTorch loop in train mode gives the same weights."""
    client_data = clients_data(1)["c0"]
    t = task("averaged")
    engine = Loop({"c0": client_data})
    w = play(engine, FedAvg(t, lr=0.1, epochs=1, batch=12), t.w0, turn(engine))
    plain = net("averaged").train()
    loss = nn.functional.cross_entropy(plain(client_data.train.x), client_data.train.y)
    loss.backward()
    with torch.no_grad():
        for p in plain.parameters():
            p -= 0.1 * p.grad
    expected = plain.state_dict()
    assert set(w) == set(expected) - {"1.num_batches_tracked"}
    for k in w:
        torch.testing.assert_close(w[k], expected[k])


def test_averaged_statistics_are_averaged_over_clients():
    t, here = task("averaged"), clients_data(2)
    method = FedAvg(t, lr=0.1, epochs=2, batch=5)
    both = Loop(here)
    w = play(both, method, t.w0, turn(both))
    each = [play(e := Loop({c: h}), method, t.w0, turn(e)) for c, h in here.items()]
    for k in statistics(w):
        torch.testing.assert_close(w[k], (each[0][k] + each[1][k]) / 2)
        assert float((each[0][k] - each[1][k]).abs().max()) > 1e-3


@pytest.mark.parametrize("policy", ["local", "shared"])
def test_local_and_shared_statistics_do_not_leave_a_client(policy):
    t = task(policy)
    engine = Loop(clients_data())
    w = play(engine, FedAvg(t, lr=0.1, epochs=2, batch=5), t.w0, turn(engine))
    for k in statistics(w):
        assert torch.equal(w[k], t.w0[k])
    assert not torch.equal(w["0.weight"], t.w0["0.weight"])


def test_a_client_with_local_statistics_predicts_with_those_of_its_own_training_examples():
    t, here = task("local"), clients_data(2)
    engine = Loop(here)
    engine.begin(FedAvg(t), turn(engine))
    own = t.at_home(FedAvg(t).personal(t.w0, (), None), engine.data("c1"))
    z = here["c1"].train.x @ t.w0["0.weight"].T + t.w0["0.bias"]
    measured = own.args[0]
    torch.testing.assert_close(measured["1.running_mean"], z.mean(0))
    torch.testing.assert_close(measured["1.running_var"], z.var(0))
    alone, among = own(here["c1"].test.x[:1]), own(here["c1"].test.x)[:1]
    torch.testing.assert_close(alone, among)  # what else is asked plays no part


def test_shared_statistics_make_examples_independent_even_in_training():
    t = task("shared")
    loop, stacked = Loop(clients_data()), Vmap(clients_data())
    method = FedAvg(t, lr=0.1, epochs=2, batch=5, decay=0.1, momentum=0.5)
    a, b = (play(e, method, t.w0, turn(e)) for e in (loop, stacked))
    for k in a:
        torch.testing.assert_close(a[k], b[k], atol=1e-5, rtol=1e-4)


def test_decay_momentum_and_a_proximal_term_leave_statistics_alone():
    t = task("averaged")
    engine = Loop(clients_data(1))
    plain = play(engine, FedAvg(t, lr=0.0, batch=12), t.w0, turn(engine))
    other = play(engine, FedProx(t, lr=0.0, batch=12, decay=0.5, momentum=0.9, mu=1.0), t.w0, turn(engine))
    for k in statistics(plain):
        assert torch.equal(plain[k], other[k])


@pytest.mark.parametrize("policy", ["averaged", "local", "shared"])
def test_any_number_of_threads_gives_the_same_bits(policy):
    t = task(policy)
    method = FedAvg(t, lr=0.1, epochs=2, batch=5)
    found = []
    for engine in (Loop(clients_data()), Threads(clients_data(), workers=3)):
        w = play(engine, method, t.w0, turn(engine))
        _, sums = engine.evaluate(method, w, turn(engine), "test")
        found.append((w, sums["personal"]["loss"]))
    (a, x), (b, y) = found
    assert all(torch.equal(a[k], b[k]) for k in a) and torch.equal(x, y)


def test_a_batch_of_one_is_no_error():
    t = task("averaged")
    engine = Loop(clients_data(1, n=11))
    play(engine, FedAvg(t, lr=0.1, batch=5), t.w0, turn(engine))


@pytest.mark.parametrize("policy", ["averaged", "local"])
def test_stacking_clients_is_refused_where_padding_would_enter_the_statistics(policy):
    engine = Vmap(clients_data())
    with pytest.raises(ValueError, match="padding would be in them.\nhint: engine.name=threads"):
        play(engine, FedAvg(task(policy)), task(policy).w0, turn(engine))
