"""pfl-research: FederatedAveraging on its simulated backend with its PyTorch model.

Knows pfl. pfl brings its own training loop, which goes through a client's examples in their stored order.
After every round the new model is scored on all local test sets by pfl's backend: what pfl evaluates by
itself is the model before the update, and the training sets twice over.
"""

from __future__ import annotations

import os

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.algorithm_utils import run_train_eval
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, TrainMetricName, Weighted, get_overall_value
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import nets
import steps
from common import Clock, Order, OwnStdout, TreePeak, Work, line, order
from workloads import load

TORCHRUN = "TORCHELASTIC_RUN_ID" in os.environ
LAUNCHED = os.getppid() if TORCHRUN else os.getpid()  # the process that the harness started
NEVER = 10**9  # rounds between pfl's own evaluations; it still makes one in the first round


class Task(nn.Module):
    """The net with the two functions that pfl asks of a model."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.net = nets.build(work.net, channels_last=work.net != "linear")

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.net(x), y)

    @torch.inference_mode()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"accuracy": Weighted((self.net(x).argmax(1) == y).sum().item(), len(y))}


def federated(x: list[Tensor], y: list[Tensor]) -> FederatedDataset:
    """All clients in turn, each kept as tensors that pfl slices into batches once."""
    clients = [PyTorchTensorDataset((x[i], y[i]), user_id=str(i)) for i in range(len(y))]
    return FederatedDataset(clients.__getitem__, get_user_sampler("minimize_reuse", range(len(clients))))


def backend(asked: Order) -> SimulatedBackend:
    arrays, channels_last = load(asked.work, asked.data), asked.work.net != "linear"
    return SimulatedBackend(
        federated(steps.tensors(arrays.train_x, channels_last), list(torch.from_numpy(arrays.train_y))),
        federated(steps.tensors(arrays.test_x, channels_last), list(torch.from_numpy(arrays.test_y))),
    )


class Score(TrainingProcessCallback):
    """Scores the new model on all local test sets, then ends the clock's lap."""

    def __init__(
        self, algorithm: FederatedAveraging, clients_data: SimulatedBackend, context: CentralContext
    ) -> None:
        self.algorithm, self.clients_data, self.context = algorithm, clients_data, context
        self.clock, self.value = Clock(LAUNCHED), 0.0

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.clock.begin()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        # Not homes.gather_results: it ends the event loop that pfl's next round needs.
        [(_, metrics)] = run_train_eval(self.algorithm, self.clients_data, model, (self.context,))
        name = TrainMetricName("accuracy", Population.VAL, after_training=False)
        self.value = float(get_overall_value(metrics[name]))
        self.clock.lap(self.value)
        return False, Metrics()


def simulate(asked: Order) -> Score:
    work, clients_data, task = asked.work, backend(asked), Task(asked.work)
    rounds = NNAlgorithmParams(asked.rounds, NEVER, work.clients, 0)
    local = NNTrainHyperParams(
        local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch
    )
    whole = NNEvalHyperParams(local_batch_size=None)
    algorithm = FederatedAveraging()
    score = Score(
        algorithm, clients_data, CentralContext(0, True, work.clients, Population.VAL, rounds, local, whole)
    )
    # A server step of 1.0 makes the mean of the clients' changes FedAvg's mean of weights.
    model = PyTorchModel(task, torch.optim.SGD, torch.optim.SGD(task.parameters(), lr=1.0))
    algorithm.run(rounds, clients_data, model, local, whole, [score])
    return score


def main() -> None:
    asked, out = order(("", "single")), OwnStdout()
    steps.lone_thread()
    if asked.work.net != "linear" and not TORCHRUN:
        torch.set_num_threads(2)
    leader = int(os.environ.get("RANK", "0")) == 0
    peak = TreePeak(LAUNCHED) if leader else None
    score = simulate(asked)
    if peak:
        out.say(line("pfl", asked, score.clock, score.value, peak.stop(), ("pfl",)))


if __name__ == "__main__":
    main()
