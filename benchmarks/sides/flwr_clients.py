"""Flower's clients: a ClientApp that trains and scores one client per message.

Knows flwr and torch. It is a module of its own so that Ray's workers import it once and keep the opened
data and the net between messages; an app inside the script would be shipped and built anew every time.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

import nets
import steps
from common import WORKS, Work
from workloads import Arrays, load

# Environment variables that tell workers what they work on, and how.
WORK, DATA, VARIANT = "BENCH_WORK", "BENCH_DATA", "BENCH_VARIANT"

app = ClientApp()


@cache
def work() -> Work:
    return WORKS[os.environ[WORK]]


@cache
def arrays() -> Arrays:
    return load(work(), Path(os.environ[DATA]), mmap=True)


@cache
def net() -> nn.Module:
    steps.lone_thread()
    return nets.build(work().net, channels_last=work().net != "linear")


@cache
def examples(part: str, client: int) -> tuple[Tensor, Tensor]:
    """One client's examples, kept by this worker in case that the client comes back to it."""
    x = torch.from_numpy(getattr(arrays(), f"{part}_x")[client].copy())
    y = torch.from_numpy(getattr(arrays(), f"{part}_y")[client].copy())
    return (x if x.ndim < 4 else x.contiguous(memory_format=torch.channels_last)), y


def received(message: Message) -> nn.Module:
    net().load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net()


@app.train()
def train(message: Message, context: Context) -> Message:
    client = int(context.node_config["partition-id"])
    x, y = examples("train", client)
    model, number = received(message), int(message.content["config"]["server-round"])
    learn = steps.train_with_optimizer if os.environ[VARIANT] == "optim" else steps.train
    learn(model, x, y, work(), steps.shuffle(number, client))
    reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(reply), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    x, y = examples("test", int(context.node_config["partition-id"]))
    metrics = MetricRecord({"num-examples": len(y), "accuracy": steps.accuracy(received(message), x, y)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
