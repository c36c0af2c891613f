"""The end of a run: test scores, scores of clients never seen in training, models with their cards.

Every step can be repeated: a run that is killed here ends with the same results when it is continued.
Knows a trained run and its folder. Does not know how results are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from msgspec import convert, to_builtins
from torch import Tensor

from motet.atomic import write_atomically
from motet.checksums import file_checksum
from motet.client.losses import Criterion
from motet.client.population import Population
from motet.core import SIDES, Method, Tree, Turn
from motet.data.federated import FederatedData, Scaler
from motet.data.fill_missing import shared
from motet.engines.driver import play
from motet.runs.build import scored_of
from motet.runs.cluster import write_losses
from motet.runs.model_files import INDEX, ModelWriter, model_path
from motet.runs.prediction_rows import PredictionRows
from motet.runs.recipe import Recipe
from motet.runs.store import METRICS
from motet.runs.trainer import Best, Trainer
from motet.runs.training_ranges import TrainingRanges
from motet.runs.tree_layout import layout_of
from motet.text import in_markdown, round_name
from motet.vec import Vec

_MODELS = 1000  # personal models of a population that are written
TABLES = ("scores", "rounds", "traffic", "metrics", "clients")


def finish(trainer: Trainer, folder: Path) -> None:
    best = trainer.reported()
    trainer.use_rates(best.halved)
    turn = trainer.turn(best.round)
    score_clients(trainer, best, turn, folder)
    newcomers(trainer, best)
    evaluate_server_test(trainer, best)
    if trainer.recipe.save.models != "none":
        write_models(trainer, best, turn, folder)
    trainer.write_traffic(trainer.number + 1)
    write_losses(trainer.choice.crew, trainer.store)
    trainer.store.flush()
    for table in TABLES:
        write_table(trainer.store.pieces(table), folder / f"{table}.parquet")
    if trainer.stuck():
        trainer.store.set_facts(equilibrium=trainer.last_improvement)
        trainer.store.event(
            "equilibrium",
            f"no improvement on validation examples after {round_name(trainer.last_improvement)}",
        )
    trainer.store.set_files(checksums_of(folder, scored_of(trainer.recipe, trainer.federated.clients_data)))
    record = trainer.method.record(best.state, trainer.state)
    trainer.store.set_facts(status="done", reported=best.round, failure="", record=record)
    trainer.store.event("done", f"reported {round_name(best.round)}")
    trainer.store.commit()


def write_table(pieces: Iterator[pd.DataFrame], path: Path) -> None:
    """One Parquet file of frames with the same columns; they are never held all at once."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    first = pa.Table.from_pandas(next(pieces), preserve_index=False)
    path.unlink(missing_ok=True)  # a file that has this name as well keeps what it holds
    with ParquetWriter(path.absolute(), first.schema) as writer:  # x:y/z would be taken for an address
        writer.write_table(first)
        for piece in pieces:
            writer.write_table(pa.Table.from_pandas(piece, schema=first.schema))


def score_clients(trainer: Trainer, best: Best, turn: Turn, folder: Path) -> None:
    """Test scores of the clients, with what they are compared with: a constant, and the method's own kind alone."""
    rows, extra = PredictionRows(trainer.task), ("constant", "alone", *trainer.method.variants)
    trainer.score(trainer.evaluator, best.state, turn, "test", (*SIDES, *extra), rows.add)
    trainer.score(trainer.evaluator, best.state, turn, "val", extra)
    rows.write(folder)
    trainer.store.set_facts(untrained=untrained(trainer, best.round))


def untrained(trainer: Trainer, upto: int) -> list[int]:
    """How many of how many scored clients no cohort had up to a round, where clients keep models of their own; [] if
    all of them trained."""
    kind = type(trainer.method)
    if kind.join is Method.join or kind.personal is Method.personal or trainer.keeps.nothing:
        return []
    scored = scored_of(trainer.recipe, trainer.federated.clients_data)
    many = trainer.keeps.without(scored, upto)
    return [many, len(scored)] if many else []


def written_files(folder: Path, clients: Iterable[str]) -> list[Path]:
    """All files that a run with these clients may have written, but for its database."""
    tables = [folder / f"{name}.parquet" for name in (*TABLES, "predictions")]
    models = [model_path(folder, client) for client in ("", *clients)]
    cards = [m.with_suffix(".md") for m in models]
    return [folder / "recipe.toml", folder / "models" / INDEX, *tables, *models, *cards]


def checksums_of(folder: Path, clients: Iterable[str]) -> dict[str, str]:
    """Of the files that the run wrote, by path; its recipe is in the database, and the file is a copy to change."""
    files = [file for file in written_files(folder, clients) if file.name != "recipe.toml" and file.exists()]
    return {file.relative_to(folder).as_posix(): file_checksum(file.read_bytes()) for file in files}


def newcomers(trainer: Trainer, best: Best) -> None:
    """Clients never seen in training: as they arrive, and after one visit whose replies are discarded."""
    clients_data = trainer.federated.unseen
    if not clients_data:
        return
    engine = trainer.choice.build(clients_data)
    names = engine.scored = scored_of(trainer.recipe, engine.clients)
    arrival = trainer.turn(best.round)
    trainer.score(engine, best.state, arrival, "test", {"personal": "arrival", "global": "global"})
    turn = trainer.turn(best.round + 1)
    visit = Turn(turn.number, names, names, turn.seed, turn.proxy)
    met = trainer.method.after_visit(best.state, play(engine, trainer.method.for_visit(), best.state, visit))
    trainer.write_refusals(engine.refused)
    trainer.score(engine, met, visit, "test", {"personal": "visit"})


def evaluate_server_test(trainer: Trainer, best: Best) -> None:
    """The global model on the server's own test set, where there is one."""
    server_test, model = trainer.federated.server_test, trainer.method.global_model(best.state)
    if server_test is None or model is None:
        return
    if trainer.task.statistics == "local":
        trainer.store.event(
            "note", "no server test: batch statistics are local, and the global model has none"
        )
        return
    examples = server_test.take()
    scores = trainer.evaluator.server_scores(trainer.task, model, examples)
    found = trainer.task.measured(["server"], scores[None], examples.y[None], examples.live[None])
    trainer.store.set_facts(server_test=only_numbers(found))


# ---- models ----


def write_models(trainer: Trainer, best: Best, turn: Turn, folder: Path) -> None:
    """The global model and, if the recipe says so, every client's; equal ones once, and a card for each."""
    (folder / "models").mkdir(exist_ok=True)
    scores, run = test_scores(trainer, best.round), (trainer.recipe, trainer.federated, best.round)
    writer = ModelWriter(folder)

    def write(client: str, tree: Tree, facts: dict[str, Any]) -> None:
        tensors, layout = in_file(tree)
        writer.write(client, tensors, facts | layout)
        write_atomically(model_path(folder, client).with_suffix(".md"), card(facts))

    model, budget = trainer.method.global_model(best.state), trainer.store.facts().get("privacy") or {}
    if model is not None:
        write("", model, facts_of(*run, "", {}) | spent_by(budget, ""))
    if trainer.recipe.save.models == "all":
        call, covered = "", covers_personal(budget, trainer.method)
        models = trainer.evaluator.personal_models(trainer.method, best.state, turn)
        if isinstance(trainer.federated.clients_data, Population):
            models = islice(models, _MODELS)
            many = f"{len(trainer.federated.clients_data):,} clients"
            trainer.store.event("models", f"personal models of at most {_MODELS:,} of {many} are written")
        for client, tree in models:
            call = call or calls(trainer, best, turn, client)
            more = {"call": call} | trainer.method.described(tree) | spent_by(budget, client, covered)
            write(client, tree, facts_of(*run, client, scores.get(client, {})) | more)
    writer.close()


def calls(trainer: Trainer, best: Best, turn: Turn, client: str) -> str:
    """The function that a personal model's trees are arguments of: `predict` of the task, or one of the method."""
    if type(trainer.method).personal is Method.personal:
        return "predict"
    return trainer.evaluator.model_function(trainer.method, best.state, turn, client)


def in_file(tree: Tree) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A model's tensors by name, and how to put them together again; weights alone need no such fact."""
    trees = tree if isinstance(tree, tuple | list) else (tree,)
    if all(isinstance(t, Vec) for t in trees):
        return named(tree), {}
    tensors = {name: v.contiguous() for name, v in _walk(trees, ()) if isinstance(v, Tensor)}
    return tensors, {"layout": layout_of(trees)}


def named(tree: Tree) -> dict[str, Tensor]:
    """A tree's tensors by name; one Vec keeps the network's own names."""
    while isinstance(tree, tuple | list) and len(tree) == 1:
        tree = tree[0]
    return {name: v.contiguous() for name, v in _walk(tree, ()) if isinstance(v, Tensor)}


def _walk(tree: Tree, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Leaves with the path of names that leads to each."""
    if isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _walk(value, (*path, str(key)))
    else:
        yield ".".join(path), tree


def test_scores(trainer: Trainer, number: int) -> dict[str, dict[str, float]]:
    trainer.store.flush()
    found: dict[str, dict[str, float]] = {}
    for frame in trainer.store.pieces("scores"):
        rows = frame[(frame["part"] == "test") & (frame["side"] == "personal") & (frame["round"] == number)]
        kept = rows.drop(columns=["round", "part", "side"]).set_index("client")
        found |= {str(c): {str(k): float(v) for k, v in row.dropna().items()} for c, row in kept.iterrows()}
    return found


def variants_in(scores: pd.DataFrame, reported: int | None) -> pd.DataFrame:
    """Scores of the reported round by client and part, of sides that are compared; none for most methods."""
    sides = ("alone", "held-out", "pooled", "personal")
    rows = scores[(scores["round"] == reported) & scores["side"].isin(sides)]
    if not rows["side"].isin(sides[1:3]).any():
        return rows.iloc[:0].rename(columns={"side": "variant"})
    first = [c for c in ("part", "client", "side", "n") if c in rows]
    rows = rows.assign(side=pd.Categorical(rows["side"], sides, ordered=True)).sort_values(first[:3])
    kept = [*first, *(c for c in rows if c in METRICS)]
    return rows[kept].astype({"side": str}).rename(columns={"side": "variant"}).reset_index(drop=True)


def only_numbers(scores: Mapping[str, Tensor]) -> dict[str, float]:
    """The metrics that one client, or the server, has."""
    return {k: float(v[0]) for k, v in scores.items() if k in METRICS and not v[0].isnan()}


def facts_of(
    recipe: Recipe, f: FederatedData, number: int, client: str, scores: Mapping[str, float]
) -> dict[str, Any]:
    """What a model's file says of it; `client` is "" for the global model."""
    client_data = f.clients_data.get(client)
    ruler = f.rulers.get(client or next(iter(f.clients_data), ""))
    flags = [c.name for c in f.columns if c.kind == "flag" and not c.group]
    return {
        "client": client,
        "method": recipe["method"],
        "data": recipe["data"]["name"],
        "net": recipe["net"],
        "seed": recipe.seed,
        "round": number,
        "kind": f.kind,
        "classes": list(f.classes),
        "columns": [c.name for c in f.columns],
        "absent": [c.name for c in client_data.columns if not c.here] if client_data else [],
        "shape": list(f.shape),
        "inputs": scaling(f, ruler) | filling(f, client),
        "ranges": to_builtins(TrainingRanges.of(f, client, recipe.privacy.on)),
        "reading": f.reading,
        "target": target_unit(recipe, f),
        "examples": {"train": client_data.n, "val": len(client_data.val), "test": len(client_data.test)}
        if client_data
        else {},
        "test": dict(scores),
        **({"flags": flags} if flags else {}),
    } | ({"weighted": True} if client_data and client_data.weighted else {})


def spent_by(budget: Mapping[str, Any], client: str, covered: bool = True) -> dict[str, Any]:
    """What a model's file says of privacy: what this client spent, or for the global model the one that spent most.
    `covered`: whether the model itself is private, and not only what left the client."""
    if not budget:
        return {}
    spent = (budget.get("clients") or {}).get(client, budget["epsilon"])
    found = {k: budget.get(k) for k in ("level", "delta", "noise")} | {"epsilon": spent}
    return {"privacy": found | ({} if covered else {"covered": False})}


def covers_personal(budget: Mapping[str, Any], method: Method) -> bool:
    """Whether a budget covers personal models: that of single rows does, that of whole clients if these models are
    made of what the server sent alone."""
    made_of_sent = type(method).personal is Method.personal and method.task.statistics != "local"
    return budget.get("level") != "client" or made_of_sent


def target_unit(recipe: Recipe, f: FederatedData) -> dict[str, Any]:
    """What turns outputs into predictions: output * scale + offset, of exp(output) where `link` says so."""
    if recipe.loss.loss != "poisson":
        return {"scale": f.scale, "offset": f.offset}
    rate = Criterion("poisson", scale=f.scale, offset=f.offset).rate
    return {"scale": rate, "offset": 0.0, "link": "exp"}


def predicts(f: dict[str, Any]) -> str:
    """What a model predicts, for its card."""
    if f["kind"] == "classes":
        return ", ".join(map(in_markdown, f["classes"]))
    if f["kind"] == "survival":
        return "the logarithm of a relative risk: the larger it is, the earlier the event is expected"
    loss = f["net"].get("loss", "squared")
    level = f"{f['net'].get('quantile', 0.5):g}"
    known = {"absolute": "the median of a number", "quantile": f"the {level} quantile of a number",
             "poisson": "a rate: the mean of a count"}  # fmt: skip
    return known.get(loss, "a number")


def scaling(f: FederatedData, ruler: Scaler | None) -> dict[str, Any]:
    """What raw inputs are standardised with: by column of a table, or by channel of bytes of images."""
    if f.pixels:
        channels = {"mean": f.pixels.mean, "std": f.pixels.std}
        return {k: [[[255 * v]] for v in values] for k, values in channels.items()}
    return {"mean": ruler.middle.tolist(), "std": ruler.spread.tolist()} if ruler else {}


def filling(f: FederatedData, client: str) -> dict[str, Any]:
    """What fills empty cells of new rows, if cells were empty in training; for the global model, the mean of it."""
    if not f.fills:
        return {}
    fill = f.fills[client] if client in f.fills else shared(np.stack(list(f.fills.values())))
    return {"fill": fill.tolist()}


_VARIANTS = {
    "held-out": "its meta-model learned from rows that the private model had not seen (held-out)",
    "pooled": "its meta-model learned from the same rows as the private model (pooled)",
    "alone": "the private model alone: on validation examples no stack was better",
    "mean": "the mean of all models: there were too few rows, or rows of one class, for a meta-model",
}


def stack_lines(stack: Mapping[str, Any]) -> list[str]:
    """Whose models a stack is made of, for its card."""
    meta = f", a {stack['meta']} combines them" if stack["meta"] else ""
    lines = [
        f"- A stack of {len(stack['models'])} models{meta}; {_VARIANTS.get(stack['variant'], stack['variant'])}."
    ]
    for m in stack["models"]:
        whose = "its own private model" if not m["owner"] else f"of {in_markdown(m['owner'])}"
        part = "" if m["importance"] is None else f", importance {m['importance']:.0%}"
        note = f" Privacy: {in_markdown(m['privacy'])}." if m["privacy"] else ""
        lines.append(
            f"  - {whose}: {in_markdown(m['what'])}{part}; made with {in_markdown(m['made_with'])}.{note}"
        )
    return lines


def privacy_line(p: Mapping[str, Any]) -> str:
    what = {"example": "each of a client's training rows", "client": "each client with all its rows"}[
        p["level"]
    ]
    delta = f", delta {p['delta']:.2g}" if p["delta"] else ""
    spent = f"epsilon {p['epsilon']:.3g}{delta} for {what}"
    line = f"- What left clients has differential privacy: {spent}; noise: {in_markdown(p['noise'])}."
    if p.get("covered", True):
        return line
    return f"{line} This model has none: it was trained without noise, and is for its client alone."


def card(f: dict[str, Any]) -> str:
    """A model card that a person can read; names of classes, columns and clients are text and nothing else."""
    method = in_markdown(", ".join(f"{k} {v}" for k, v in f["method"].items() if k != "name"))
    whose = f"the personal model of client {in_markdown(f['client'])}" if f["client"] else "the global model"
    name, data, net = (in_markdown(str(v)) for v in (f["method"]["name"], f["data"], f["net"]["name"]))
    lines = [
        f"# {whose[0].upper()}{whose[1:]}",
        "",
        f"- Trained by motet's {name} ({method}) on {data}, seed {f['seed']}; "
        f"this is {round_name(f['round'])}, chosen on validation examples.",
        *(stack_lines(f["stack"]) if "stack" in f else [f"- Network: {net}, input {tuple(f['shape'])}."]),
        f"- Predicts: {predicts(f)}.",
    ]
    if f["columns"]:
        lines.append(f"- Features, in order: {', '.join(map(in_markdown, f['columns']))}.")
    if "mean" in f["inputs"]:
        lines.append(
            "- Features are standardised first; mean and std are in the file's metadata under `inputs`."
        )
    if "fill" in f["inputs"]:
        how = in_markdown(str(f["reading"].get("missing", "mean")))
        lines.append(f"- Empty cells are filled with what training rows say ({how}), under `inputs` too.")
    if f["columns"] and "ranges" in f:
        lines.append(convert(f["ranges"], TrainingRanges).card())
    if f["examples"]:
        e = f["examples"]
        lines.append(
            f"- The client's examples: {e['train']} training, {e['val']} validation, {e['test']} test."
        )
    if f.get("privacy"):
        lines.append(privacy_line(f["privacy"]))
    if f["test"]:
        how = ", each counting by its weight" if f.get("weighted") else ""
        scores = ", ".join(f"{k} {v:.4g}" for k, v in f["test"].items())
        lines.append(f"- On its own test examples{how}: {scores}.")
    lines += ["", "It was trained on these clients' data, and was not tested on anybody else's."]
    return "\n".join(lines) + "\n"
