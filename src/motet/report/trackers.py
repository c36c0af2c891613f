"""Runs in people's own trackers: TensorBoard, MLflow, Weights & Biases and trackio.

What a run's store holds is sent: every number has a name, a round and a value. So a tracker may be started beside a
run, after it, or again after a kill; a run knows nothing of it. TensorBoard's folder and MLflow's run remember what
they were sent, so that no number comes twice. Knows the store and each tracker's few calls.
"""

from __future__ import annotations

import importlib
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from motet.atomic import write_atomically
from motet.errors import UsageError
from motet.runs.store import Store
from motet.text import nearest

_ENDED = ("done", "failed")


class Number(NamedTuple):
    """One number of a run."""

    name: str  # validation/personal/accuracy, bytes/up, client/client-03/validation/personal/accuracy, …
    round: int  # the first round is 0
    value: float
    kind: str = "rounds"  # clients' own numbers and test scores are remembered apart: "client test"


Sent = dict[str, int]  # the last round that was sent, by kind of number


class Tracker(Protocol):
    """Somewhere that numbers of one run are sent to."""

    def send(self, numbers: list[Number]) -> None: ...
    def sent(self) -> Sent: ...
    def remember(self, sent: Sent) -> None: ...
    def close(self) -> None: ...


# ---- what a store holds ----


def numbers(folder: Path, clients: bool = False) -> Iterator[Number]:
    """All numbers of a run; test scores come with the round that is reported, once the run is done."""
    with closing(Store(folder)) as store:
        facts = store.facts()
        frames = {name: store.frame(name) for name in ("scores", "rounds", "metrics")}
    scores, metric = frames["scores"], str(facts.get("metric", "accuracy"))
    known = [c for c in scores.columns if c in {metric, "loss", "accuracy"}]
    parts = {"val": "validation"} | ({"test": "test"} if facts.get("status") == "done" else {})
    if len(scores):
        some = scores[scores["part"].isin(parts)]
        for (number, part, side), rows in some.groupby(["round", "part", "side"], sort=True):
            place, kind = f"{parts[part]}/{side}", "test" if part == "test" else "rounds"
            for name in known:
                yield Number(f"{place}/{name}", int(number), float(rows[name].mean()), kind)
            if clients:
                for client, value in zip(rows["client"], rows[metric], strict=True):
                    name = f"client/{client}/{place}/{metric}"
                    yield Number(name, int(number), float(value), f"client {kind}")
    for row in frames["rounds"].to_dict("records"):
        yield Number("seconds", int(row["round"]), float(row["seconds"]))
        yield Number("bytes/up", int(row["round"]), float(row["up"]))
        yield Number("bytes/down", int(row["round"]), float(row["down"]))
    for row in frames["metrics"].to_dict("records"):
        yield Number(f"method/{row['name']}", int(row["round"]), float(row["value"]))


def settings(folder: Path) -> dict[str, Any]:
    """The run's settings, `method.lr: 0.1`, for a tracker's table."""
    with closing(Store(folder)) as store:
        found = store.facts().get("settings") or {}
    flat = {"seed": found.get("seed", 0)}
    for section, values in found.items():
        if isinstance(values, Mapping):
            flat |= {
                f"{section}.{k}": v if isinstance(v, int | float | bool) else str(v)
                for k, v in values.items()
            }
    return flat


def follow(
    folder: Path, tracker: Tracker, *, clients: bool = False, wait: Callable[[], bool] = lambda: False
) -> int:
    """Send what is new, and go on as long as the run trains and `wait` says so; returns how many were sent."""
    many, sent = 0, tracker.sent()
    while True:
        with closing(Store(folder)) as store:
            ended = store.facts().get("status") in _ENDED
        found = [n for n in numbers(folder, clients) if math.isfinite(n.value) and is_new(n, sent)]
        tracker.send(found)
        many += len(found)
        if found:
            sent = sent | {k: max(n.round for n in found if n.kind == k) for k in {n.kind for n in found}}
            tracker.remember(sent)
        if ended or not wait():
            return many


def is_new(number: Number, sent: Sent) -> bool:
    """
    >>> sent = {"rounds": 3, "test": 2}
    >>> [is_new(Number("", 3, 0.5, kind), sent) for kind in ("rounds", "test", "client rounds", "client test")]
    [False, False, True, True]
    """
    if number.kind.endswith("test"):
        return number.kind not in sent
    return number.round > sent.get(number.kind, -2)


def mark_of(folder: Path) -> str:
    """A word that tells this run from another one in the same folder."""
    with closing(Store(folder)) as store:
        facts = store.facts()
    return blake2b(repr((facts.get("identity"), facts.get("created"))).encode(), digest_size=4).hexdigest()


def every(seconds: float) -> Callable[[], bool]:
    """Waits before the next look."""

    def wait() -> bool:
        time.sleep(seconds)
        return True

    return wait


# ---- trackers ----


class TensorBoard:
    def __init__(self, folder: Path, to: str) -> None:
        summary, output = (_module(f"tensorboard.summary{m}", "tensorboard") for m in ("", "._output"))
        self.mark, place = mark_of(folder), Path(to or "tensorboard") / folder.name
        if self._read(place).get("run", self.mark) != self.mark:  # a run that was run anew has another chart
            place = place.with_name(f"{place.name}-{self.mark}")
        self.place = place
        self.writer = summary.Writer(output.DirectoryOutput(str(place)))

    def send(self, numbers: list[Number]) -> None:
        for n in numbers:
            self.writer.add_scalar(n.name, n.value, n.round)
        self.writer.flush()

    def sent(self) -> Sent:
        return dict(self._read(self.place).get("sent", {}))

    def remember(self, sent: Sent) -> None:
        write_atomically(self.place / "sent.json", json.dumps({"run": self.mark, "sent": sent}) + "\n")

    @staticmethod
    def _read(place: Path) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found = json.loads((place / "sent.json").read_text())
            return found if isinstance(found, dict) else {}
        return {}

    def close(self) -> None:
        self.writer.close()


class MLflow:
    def __init__(self, folder: Path, to: str) -> None:
        self.mlflow = _module("mlflow", "mlflow")
        try:
            self.client = self.mlflow.MlflowClient(tracking_uri=to or None)
            found = self.client.get_experiment_by_name("motet")
        except (self.mlflow.exceptions.MlflowException, ImportError) as e:
            raise UsageError(
                f"MLflow cannot use {to or 'its usual place'}: {str(e).splitlines()[0]}\n"
                "hint: start its server (mlflow server), and --to http://127.0.0.1:5000"
            ) from e
        experiment = found.experiment_id if found else self.client.create_experiment("motet")
        mark = f"{folder.name} {mark_of(folder)}"
        known = self.client.search_runs([experiment], filter_string=f"tags.`motet.run` = '{mark}'")
        if known:
            self.run = known[0].info.run_id
            return
        self.run = self.client.create_run(experiment, run_name=folder.name).info.run_id
        for name, value in settings(folder).items():
            self.client.log_param(self.run, name, value)
        self.client.set_tag(self.run, "motet.run", mark)

    def send(self, numbers: list[Number]) -> None:
        metric, now = self.mlflow.entities.Metric, int(time.time() * 1000)
        made = [metric(known_to_mlflow(n.name), n.value, now, n.round) for n in numbers]
        for first in range(0, len(made), 500):  # the most that one call may hold is 1,000
            self.client.log_batch(self.run, metrics=made[first : first + 500])

    def sent(self) -> Sent:
        return dict(json.loads(self.client.get_run(self.run).data.tags.get("motet.sent", "{}")))

    def remember(self, sent: Sent) -> None:
        self.client.set_tag(self.run, "motet.sent", json.dumps(sent))

    def close(self) -> None:
        self.client.set_terminated(self.run)


def known_to_mlflow(name: str) -> str:
    """The name with the codes of characters that MLflow refuses in their place.

    >>> known_to_mlflow("client/Ward <3>/loss")
    'client/Ward _3c_3_3e_/loss'
    """
    return re.sub(r"[^/\w.\- :]", lambda m: f"_{ord(m[0]):x}_", name)


class _LikeWandb:
    """Weights & Biases, and trackio, which has the same calls."""

    module = "wandb"

    def __init__(self, folder: Path, to: str) -> None:
        self.run = _module(self.module, self.module).init(
            project=to or "motet", name=folder.name, config=settings(folder)
        )

    def send(self, numbers: list[Number]) -> None:
        by_round: dict[int, dict[str, float]] = {}
        for n in numbers:
            by_round.setdefault(n.round, {})[n.name] = n.value
        for number in sorted(by_round):
            self.run.log(by_round[number] | {"round": number})

    def sent(self) -> Sent:
        return {}  # every call makes a run of its own there

    def remember(self, sent: Sent) -> None: ...

    def close(self) -> None:
        self.run.finish()


class Wandb(_LikeWandb):
    module = "wandb"


class Trackio(_LikeWandb):
    module = "trackio"


TRACKERS: dict[str, Callable[[Path, str], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": Wandb,
    "trackio": Trackio,
}


def tracker_named(name: str) -> Callable[[Path, str], Tracker]:
    if name not in TRACKERS:
        raise UsageError(f"there is no tracker {name!r}\nhint: {nearest(name, sorted(TRACKERS))}")
    return TRACKERS[name]


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as e:
        ours = package in ("tensorboard", "mlflow")
        hint = "'motet[trackers]'" if ours else package
        raise UsageError(f"{package} is not installed\nhint: pip install {hint}") from e
