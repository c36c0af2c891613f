"""FL-bench's FedAvg, called from a checkout that MOTET_FLBENCH names.

Knows FL-bench's server, data set and model. Its own `train` runs the rounds, one client after another as is its
default, and `test_client_models` scores the new model on all local test sets. Favours: no scores before and after each
client's training, no logs and pictures. FL-bench divides images above 1 by 255; ours are left as they are.
"""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import nn

import nets
import steps
from checkout import source
from common import Clock, Order, OwnStdout, line, order, own_peak
from workloads import Arrays, load

COMMIT = source("MOTET_FLBENCH")
# torchvision's package is built for CUDA; beside torch for CPUs its compiled operators are missing, and its import asks
# for these. FL-bench's FedAvg uses none of them.
OPERATORS = None if torch.version.cuda else torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms") if OPERATORS else ():
    OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from data.utils.datasets import DATASETS, BaseDataset  # noqa: E402
from src.server import fedavg  # noqa: E402
from src.utils.functional import parse_args  # noqa: E402
from src.utils.models import DecoupledModel  # noqa: E402

NAME = "benchmark"


class Rows(BaseDataset):
    """All clients' examples, those for training first; not scaled again."""

    def __init__(self, arrays: Arrays, classes: int, **transforms: Callable[..., Any]) -> None:
        x = np.concatenate([part.reshape(-1, *part.shape[2:]) for part in (arrays.train_x, arrays.test_x)])
        y = np.concatenate([part.reshape(-1) for part in (arrays.train_y, arrays.test_y)])
        super().__init__(torch.from_numpy(x), torch.from_numpy(y), list(range(classes)), **transforms)

    def _rescale_data(self) -> None:
        pass


class Net(DecoupledModel):
    """The workload's network in FL-bench's two parts."""

    def __init__(self, net: str) -> None:
        super().__init__()
        built = nets.build(net, channels_last=net != "linear")
        if isinstance(built, nets.ResNet18):
            self.base, self.classifier, built.head = built, built.head, nn.Identity()
        else:
            layers = list(built) if isinstance(built, nn.Sequential) else [built]
            self.base, self.classifier = nn.Sequential(*layers[:-1]), layers[-1]


class Server(fedavg.FedAvgServer):
    """FL-bench's server, with a clock."""

    def __init__(self, args: DictConfig, asked: Order) -> None:
        self.asked, self.clock, self.score = asked, Clock(), 0.0
        super().__init__(args)

    def init_model(self, **given: Any) -> None:
        super().init_model(model=Net(self.asked.work.net))

    def display_metrics(self) -> None:
        """Called at the end of a round."""
        found = self.test_results[self.current_epoch + 1]["all_clients"]["before"]["test"]
        self.score = found.accuracy / 100
        self.clock.lap(self.score)


def settings(asked: Order) -> DictConfig:
    work = asked.work
    test = {"client": {"interval": 1, "finetune_epoch": 0, "train": False, "val": False, "test": True}}
    common = {
        "join_ratio": 1.0, "global_epoch": asked.rounds, "local_epoch": work.epochs, "batch_size": work.batch,
        "client_side_evaluation": False, "test": test, "use_cuda": False, "verbose_gap": 10**9, "save_log": False,
        "save_learning_curve_plot": False, "save_metrics": False,
    }  # fmt: skip
    given = {"dataset": {"name": NAME}, "optimizer": {"name": "sgd", "lr": work.lr}, "common": common}
    return parse_args(DictConfig(given), "fedavg", None)


def partition(work: Any) -> dict[str, Any]:
    """Which rows are whose, as FL-bench's own file has it."""
    clients, first_test = list(range(work.clients)), work.clients * work.train
    indices = [
        {
            "train": list(range(c * work.train, (c + 1) * work.train)),
            "val": [],
            "test": list(range(first_test + c * work.test, first_test + (c + 1) * work.test)),
        }
        for c in clients
    ]
    separation = {"train": clients, "val": clients, "test": clients, "total": work.clients}
    return {"data_indices": indices, "separation": separation}


def prepare(asked: Order, folder: Path) -> None:
    """Files and names that FL-bench looks for."""
    work, arrays = asked.work, load(asked.work, asked.data)
    place = folder / "data" / NAME
    place.mkdir(parents=True)
    (place / "args.json").write_text(json.dumps({"dataset": NAME, "split": "sample"}))
    (place / "partition.pkl").write_bytes(pickle.dumps(partition(work)))
    fedavg.FLBENCH_ROOT = folder
    runtime = SimpleNamespace(output_dir=str(folder / "out"))
    fedavg.HydraConfig = SimpleNamespace(get=lambda: SimpleNamespace(runtime=runtime))
    DATASETS[NAME] = lambda root, args, **transforms: Rows(arrays, work.classes, **transforms)


def main() -> None:
    asked, out = order(), OwnStdout()
    steps.lone_thread()
    if asked.work.net != "linear":
        torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as folder:
        prepare(asked, Path(folder))
        server = Server(settings(asked), asked)
        server.clock.begin()
        server.train()
    out.say(line("flbench", asked, server.clock, server.score, own_peak(), (), COMMIT))


if __name__ == "__main__":
    main()
