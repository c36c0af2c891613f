"""The bar: FedAvg in plain PyTorch, with no framework, as fast as we know how to write it.

Knows torch and the standard library. The linear net trains one client after another (threads would only
fight over the interpreter); convolutions train in two Python threads, a copy of the net and one intra-op
thread each, and channels_last images. Variants: `nchw` leaves the images as they are, `optim` takes backward and
torch.optim.SGD instead of autograd.grad and one fused add.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import nets
import steps
from common import Clock, Order, OwnStdout, Work, line, order, own_peak
from workloads import load

VARIANTS = ("", "nchw", "optim")
THREADS = 2


@dataclass
class Clients:
    """Every client's examples, ready to be trained on."""

    train_x: list[Tensor]
    train_y: list[Tensor]
    test_x: list[Tensor]
    test_y: list[Tensor]


class Worker:
    """What one thread owns: a copy of the net, and the sum of the weights that it has trained."""

    def __init__(self, work: Work, channels_last: bool) -> None:
        self.net: nn.Module = nets.build(work.net, channels_last)
        self.weights = [p.data for p in self.net.parameters()]
        self.sum = [torch.zeros_like(w) for w in self.weights]

    def start_from(self, shared: list[Tensor]) -> None:
        torch._foreach_copy_(self.weights, shared)

    def add_up(self) -> None:
        torch._foreach_add_(self.sum, self.weights)

    def hand_over(self) -> list[Tensor]:
        """The sum; the next round's starts from zero."""
        total = self.sum
        self.sum = [torch.zeros_like(w) for w in total]
        return total


class Crew:
    """Runs a function of (worker, client) for all clients, in one thread or two."""

    def __init__(self, work: Work, channels_last: bool) -> None:
        self.threads = 1 if work.net == "linear" else THREADS
        self.workers = [Worker(work, channels_last) for _ in range(self.threads)]
        self.mine = threading.local()
        self.spare = iter(self.workers)
        self.pool = ThreadPoolExecutor(self.threads, initializer=self.enter)

    def enter(self) -> None:
        steps.lone_thread()
        self.mine.worker = next(self.spare)

    def each(self, clients: int, task: Callable[[Worker, int], float]) -> Iterator[float]:
        if self.threads == 1:
            return iter([task(self.workers[0], client) for client in range(clients)])
        return self.pool.map(lambda client: task(self.mine.worker, client), range(clients))


def mean(workers: list[Worker], clients: int) -> list[Tensor]:
    """FedAvg's average: all clients hold equally many examples."""
    total = workers[0].hand_over()
    for worker in workers[1:]:
        torch._foreach_add_(total, worker.hand_over())
    torch._foreach_div_(total, clients)
    return total


def one_round(
    crew: Crew, shared: list[Tensor], data: Clients, work: Work, train: steps.Train, number: int
) -> tuple[list[Tensor], float]:
    """Train everyone, average, score everyone: the new weights and their mean accuracy."""

    def learn(worker: Worker, client: int) -> float:
        worker.start_from(shared)
        train(worker.net, data.train_x[client], data.train_y[client], work, steps.shuffle(number, client))
        worker.add_up()
        return 0.0

    def score(worker: Worker, client: int) -> float:
        return steps.accuracy(worker.net, data.test_x[client], data.test_y[client])

    list(crew.each(work.clients, learn))
    shared = mean(crew.workers, work.clients)
    for worker in crew.workers:
        worker.start_from(shared)
    return shared, sum(crew.each(work.clients, score)) / work.clients


def read(asked: Order, channels_last: bool) -> Clients:
    arrays = load(asked.work, asked.data)
    return Clients(
        steps.tensors(arrays.train_x, channels_last), list(torch.from_numpy(arrays.train_y)),
        steps.tensors(arrays.test_x, channels_last), list(torch.from_numpy(arrays.test_y)),
    )  # fmt: skip


def main() -> None:
    asked, out, clock = order(VARIANTS), OwnStdout(), Clock()
    steps.lone_thread()
    channels_last = asked.work.net != "linear" and asked.variant != "nchw"
    data, crew = read(asked, channels_last), Crew(asked.work, channels_last)
    train = steps.train_with_optimizer if asked.variant == "optim" else steps.train
    shared, score = [w.clone() for w in crew.workers[0].weights], 0.0
    clock.begin()
    for number in range(1, asked.rounds + 1):
        shared, score = one_round(crew, shared, data, asked.work, train, number)
        clock.lap(score)
    out.say(line("plain", asked, clock, score, own_peak(), ()))


if __name__ == "__main__":
    main()
