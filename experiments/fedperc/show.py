"""The paper's other views of the same runs: accuracy by group and by client, groups found, and Figure 6.

Serves all experiments of this folder that have no show.py of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

GROUPS = 4  # consecutive clients form a group


def show(done: list[Any], table: dict[str, Any], out: Path) -> list[str]:
    from motet.report.read import read

    runs = [(d.planned.row, d.planned.seed, read([d.folder])[0]) for d in done if not d.failure]
    if not runs:
        return []
    scores = pd.DataFrame({(row, seed): run.of("personal") for row, seed, run in runs}) * 100
    clients = scores.T.groupby(level=0, sort=False).mean().T  # mean over seeds; (clients, rows)
    clients.index = [f"client{i}" for i in range(1, len(clients) + 1)]
    (out / "clients.md").write_text(markdown(clients.T))
    group = [f"cluster{i * GROUPS // len(clients) + 1}" for i in range(len(clients))]
    by_group = clients.groupby(group).mean().T
    by_group["Avg"] = clients.mean()
    (out / "clusters.md").write_text(markdown(by_group))
    figure6([run for row, _, run in runs if row == "BaseLine"], out / "figure6.png")
    lines = [
        "",
        "Tables III and IV: means over the clients of each true group",
        by_group.round(2).to_string(),
    ]
    kinds = pd.DataFrame({(row, seed): of_each_kind(run.folder) for row, seed, run in runs}).T
    lines += ["", "On images of classes that a group shares, and of a client's own:"]
    lines += [kinds.groupby(level=0, sort=False).mean().round(2).to_string(), ""]
    return [*lines, *agreements(runs), f"also: {out}/clients.md, clusters.md, figure6.png"]


def of_each_kind(folder: Path) -> dict[str, float]:
    """Accuracy in percent of clients' models on test images of classes that the whole group trains on, and of others.

    All clients' images count alike. The models are those of the round that was reported.
    """
    import torch

    from motet.runs.build import resolve
    from motet.runs.recipe import Recipe
    from motet.runs.store import Store
    from motet.runs.trainer import Trainer
    from motet.wire import unpack

    store = Store(folder)
    facts = store.facts()
    trainer, number = Trainer(resolve(Recipe(facts["settings"])), store), facts["reported"]
    method, state = trainer.method, unpack(store.state(number))
    evaluator = trainer.choice.build(trainer.federated.clients_data, trainer.keeps)
    evaluator.begin(method, trainer.turn(number))
    size = len(evaluator.clients) // GROUPS
    right: dict[str, list[float]] = {"shared": [], "own": []}
    for i, client in enumerate(evaluator.clients):
        group = evaluator.clients[i // size * size :][:size]
        everyone = set.intersection(*({*evaluator.clients_data[c].train.take().y.tolist()} for c in group))
        tested = evaluator.client_test(client, "test")
        own = trainer.task.at_home(
            method.personal(method.download(state, client), evaluator.keep(client), tested.data), tested.data
        )
        with torch.no_grad():
            hits = (own(tested.examples.x).argmax(1) == tested.examples.y).tolist()
        for hit, label in zip(hits, tested.examples.y.tolist(), strict=True):
            right["shared" if label in everyone else "own"].append(hit)
    return {kind: 100 * sum(hits) / max(len(hits), 1) for kind, hits in right.items()}


def markdown(frame: pd.DataFrame) -> str:
    head = "| method | " + " | ".join(frame.columns) + " |"
    rows = [f"| {name} | " + " | ".join(f"{v:.2f}" for v in row) + " |" for name, row in frame.iterrows()]
    return "\n".join([head, "| --- " * (len(frame.columns) + 1) + "|", *rows]) + "\n"


def agreements(runs: list[Any]) -> list[str]:
    """How well the groups that each row made agree with the true ones."""
    from motet.parts.clusters import agreement

    said = []
    for row, seed, run in runs:
        groups = (run.facts.get("record") or {}).get("groups")
        if groups and len(set(groups.values())) > 1:
            truth = [i * GROUPS // len(groups) for i in range(len(groups))]
            found = [groups[c] for c in sorted(groups)]
            said.append(
                f"{row}, seed {seed}: adjusted Rand index of its groups {agreement(found, truth):.2f}"
            )
    return said


def figure6(runs: list[Any], file: Path) -> None:
    """The global model on its way, seed by seed."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.4))
    for run in runs:
        past = run.val[run.val["side"] == "global"]
        axes.plot(past["round"] + 1, 100 * past["score"], label=f"seed {run.seed}")
    axes.set(xlabel="round", ylabel="validation accuracy in percent", title="The global model W_g")
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
