"""PFLlib's FedAvg, called from a checkout that MOTET_PFLLIB names.

Knows PFLlib's server and client. Its own `train` runs the rounds. It scores at the start of a round, after it has sent
the model, so a lap lasts from one scoring to the next. Favours: examples are kept in memory where PFLlib reads files in
every round, and training sets are not scored. One change for equal steps: the short last batch of an epoch counts.
With `--variant evaluate` scoring is PFLlib's own, training sets included.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

import nets
import steps
from checkout import source
from common import Clock, Order, OwnStdout, line, order, own_peak
from workloads import load

COMMIT = source("MOTET_PFLLIB", "system")

from flcore.clients import clientavg, clientbase  # noqa: E402
from flcore.servers import serveravg, serverbase  # noqa: E402

Examples = list[tuple[Tensor, Tensor]]


class Finished(Exception):
    """All rounds were scored; PFLlib would train once more."""


class Client(clientavg.clientAVG):
    """PFLlib's client, whose last batch may be short."""

    def load_train_data(self, batch_size: int | None = None) -> DataLoader[Any]:
        examples = clientbase.read_client_data(self.dataset, self.id, is_train=True)
        return DataLoader(examples, batch_size or self.batch_size, drop_last=False, shuffle=True)


class Server(serveravg.FedAvg):
    """PFLlib's server, with a clock."""

    def __init__(self, args: SimpleNamespace, asked: Order) -> None:
        super().__init__(args, 0)
        self.asked, self.clock, self.score = asked, Clock(), 0.0

    def evaluate(self, acc: Any = None, loss: Any = None) -> None:
        if self.clock.last == 0.0:  # before the first round: the initial model is not scored
            return self.clock.begin()
        if self.asked.variant == "evaluate":
            super().evaluate()
            self.score = self.rs_test_acc[-1]
        else:
            _, counts, right, _ = self.test_metrics()
            self.score = sum(right) / sum(counts)
        self.clock.lap(self.score)
        if len(self.clock.seconds) == self.asked.rounds:
            raise Finished


def settings(asked: Order) -> SimpleNamespace:
    """What PFLlib's main.py would put together for a plain FedAvg with all clients on the CPU."""
    work = asked.work
    return SimpleNamespace(
        algorithm="FedAvg", dataset=work.name, device="cpu", goal="test", save_folder_name="items",
        model=nets.build(work.net, channels_last=work.net != "linear"), num_classes=work.classes,
        num_clients=work.clients, join_ratio=1.0, random_join_ratio=False, client_drop_rate=0.0,
        batch_size=work.batch, local_learning_rate=work.lr, local_epochs=work.epochs, global_rounds=asked.rounds,
        learning_rate_decay=False, learning_rate_decay_gamma=1.0, eval_gap=1, few_shot=0, top_cnt=100,
        auto_break=False, train_slow_rate=0.0, send_slow_rate=0.0, time_select=False, time_threthold=10_000,
        dlg_eval=False, dlg_gap=100, batch_num_per_client=2, num_new_clients=0, fine_tuning_epoch_new=0,
    )  # fmt: skip


def keep_in_memory(asked: Order) -> None:
    """PFLlib asks for a client's examples by number; it gets the workload's."""
    arrays = load(asked.work, asked.data)
    parts = {
        True: (torch.from_numpy(arrays.train_x), torch.from_numpy(arrays.train_y)),
        False: (torch.from_numpy(arrays.test_x), torch.from_numpy(arrays.test_y)),
    }
    held: dict[tuple[bool, int], Examples] = {}

    def read(dataset: str, client: int, is_train: bool = True, few_shot: int = 0) -> Examples:
        if (is_train, client) not in held:
            x, y = parts[is_train]
            held[is_train, client] = list(zip(x[client], y[client], strict=True))
        return held[is_train, client]

    clientbase.read_client_data = serverbase.read_client_data = read
    serveravg.clientAVG = Client


def main() -> None:
    asked, out = order(("", "evaluate")), OwnStdout()
    steps.lone_thread()
    if asked.work.net != "linear":
        torch.set_num_threads(2)
    keep_in_memory(asked)
    server = Server(settings(asked), asked)
    try:
        server.train()
    except Finished:
        out.say(line("pfllib", asked, server.clock, server.score, own_peak(), (), COMMIT))


if __name__ == "__main__":
    main()
