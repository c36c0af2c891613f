"""Flower: its simulation with the Ray backend, one CPU per client, FedAvg and federated evaluation.

Knows flwr. The clients are in flwr_clients.py and run the same training lines as plain_side.py, with
`--variant optim` those with torch.optim.SGD. The first round includes the start of Ray's workers, because
Flower starts them while the server is already running.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from common import Clock, Order, OwnStdout, TreePeak, line, order

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}

from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

import flwr_clients
import nets

RESOURCES = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"num_cpus": 2, "log_to_driver": False},
}


class TimedFedAvg(FedAvg):
    """FedAvg that notes when each round's evaluation has been averaged, and what it was."""

    def __init__(self, clients: int, clock: Clock) -> None:
        super().__init__(min_train_nodes=clients, min_evaluate_nodes=clients, min_available_nodes=clients)
        self.clients, self.clock, self.score = clients, clock, 0.0

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        replies = list(replies)
        answered = sum(reply.has_content() for reply in replies)
        if answered < self.clients:
            raise RuntimeError(f"round {server_round}: {answered} of {self.clients} clients answered")
        metrics = super().aggregate_evaluate(server_round, replies)
        self.score = float(metrics["accuracy"])
        self.clock.lap(self.score)
        return metrics


def server(asked: Order, strategy: TimedFedAvg) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        start = ArrayRecord(nets.build(asked.work.net).state_dict())
        strategy.clock.begin()
        strategy.start(grid=grid, initial_arrays=start, num_rounds=asked.rounds)

    return app


def main() -> None:
    asked, out, peak = order(("", "optim")), OwnStdout(), TreePeak(os.getpid())
    told = {flwr_clients.WORK: asked.work.name, flwr_clients.DATA: str(asked.data)}
    os.environ |= {**told, flwr_clients.VARIANT: asked.variant}
    strategy = TimedFedAvg(asked.work.clients, Clock())
    run_simulation(server(asked, strategy), flwr_clients.app, asked.work.clients, backend_config=RESOURCES)
    if len(strategy.clock.seconds) < asked.rounds:
        sys.exit(f"Flower finished {len(strategy.clock.seconds)} of {asked.rounds} rounds")
    out.say(line("flwr", asked, strategy.clock, strategy.score, peak.stop(), ("flwr", "ray")))


if __name__ == "__main__":
    main()
