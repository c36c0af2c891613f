"""The end of a run: test examples are scored once, newcomers are met, models are written.

All of it can be done again: a run that is killed here ends the same when it goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torch import Tensor

from motet.client import marks, tally
from motet.core import Method, Tree, Turn
from motet.data.federated import Federation, Ruler
from motet.engines.driver import play
from motet.runs.recipe import Recipe
from motet.runs.trainer import Best, Course


def finish(course: Course, folder: Path) -> None:
    best = course.reported()
    turn = course.turn(best.round)
    course.score(course.bench, best.state, turn, "test")
    newcomers(course, best)
    server_exam(course, best)
    if course.recipe.save.models != "none":
        write_models(course, best, turn, folder)
    for table in ("scores", "rounds", "traffic", "told", "clients"):
        course.store.frame_now(table).to_parquet(folder / f"{table}.parquet")
    if course.stuck():
        course.store.tell(equilibrium=course.risen)
        course.store.event("equilibrium", f"no improvement on validation examples after round {course.risen}")
    record = course.method.record(best.state)
    course.store.tell(status="done", reported=best.round, failure="", record=record)
    course.store.event("done", f"reported round {best.round}")
    course.store.commit()


def newcomers(course: Course, best: Best) -> None:
    """Clients never seen in training: as they arrive, and after one visit whose replies are discarded."""
    homes = course.federation.unseen
    if not homes:
        return
    engine = course.choice.build(homes)
    names = engine.clients
    arrival = course.turn(best.round)
    course.score(engine, best.state, arrival, "test", {"personal": "arrival", "global": "global"})
    turn = course.turn(best.round + 1)
    visit = Turn(turn.number, names, names, turn.seed, turn.proxy)
    met = course.method.visited(best.state, play(engine, course.method, best.state, visit))
    course.write_refusals(engine.refused)
    course.score(engine, met, visit, "test", {"personal": "visit"})


def server_exam(course: Course, best: Best) -> None:
    """The global model on the federation's own test set, where there is one."""
    exam, general = course.federation.exam, course.method.general(best.state)
    if exam is None or general is None:
        return
    if course.task.statistics == "local":
        course.store.event("note", "no exam: statistics are local, and the global model has none of its own")
        return
    sums = tally(course.task, lambda x: course.task.predict(general, x), exam.take())
    stacked = {k: v[None] for k, v in sums.items()}
    course.store.tell(exam={k: float(v[0]) for k, v in marks(course.task.kind, stacked).items()})


# ---- models ----


def write_models(course: Course, best: Best, turn: Turn, folder: Path) -> None:
    """Clients' models go into models/, the global one beside it, so that no client's name can clash with it."""
    (folder / "models").mkdir(exist_ok=True)
    scores = test_scores(course, best.round)
    general = course.method.general(best.state)
    if general is not None:
        write_model(folder / "global", named(general), card_facts(course, best, "", {}))
    everyone, call = course.recipe.save.models == "all", ""
    for client, tree in course.bench.portraits(course.method, best.state, turn) if everyone else ():
        call = call or calls(course, best, client)
        facts = card_facts(course, best, client, scores.get(client, {})) | {"call": call}
        write_model(folder / "models" / quote(client, safe=" "), named(tree), facts)


def calls(course: Course, best: Best, client: str) -> str:
    """The name of the function that a personal model's trees belong to: `predict` of the task, or the method's."""
    method, bench = course.method, course.bench
    if type(method).personal is Method.personal:
        return "predict"
    own: Any = method.personal(method.view(best.state, client), bench.keep(client), bench.data(client))
    return str(own.func.__name__)


def named(tree: Tree) -> dict[str, Tensor]:
    """A tree's tensors by name; one Vec keeps the network's own names."""
    while isinstance(tree, tuple | list) and len(tree) == 1:
        tree = tree[0]
    return {name: v.contiguous() for name, v in _walk(tree, ()) if isinstance(v, Tensor)}


def _walk(tree: Tree, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Leaves with the names that lead to them; several Vecs are told apart by their places."""
    if isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _walk(value, (*path, str(key)))
    else:
        yield ".".join(path), tree


def test_scores(course: Course, number: int) -> dict[str, dict[str, float]]:
    frame = course.store.frame_now("scores")
    rows = frame[(frame["part"] == "test") & (frame["side"] == "personal") & (frame["round"] == number)]
    kept = rows.drop(columns=["round", "part", "side"]).set_index("client")
    return {str(c): {str(k): float(v) for k, v in row.items()} for c, row in kept.iterrows()}


def card_facts(course: Course, best: Best, client: str, scores: Mapping[str, float]) -> dict[str, Any]:
    return facts_of(course.recipe, course.federation, best.round, client, scores)


def facts_of(
    recipe: Recipe, f: Federation, number: int, client: str, scores: Mapping[str, float]
) -> dict[str, Any]:
    """What a model's file says of it; `client` is "" for the global model."""
    home = f.homes.get(client)
    ruler = f.rulers.get(client or next(iter(f.homes), ""))
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
        "absent": [c.name for c in home.columns if not c.here] if home else [],
        "shape": list(f.shape),
        "inputs": scaling(f, ruler),
        "target": {"scale": f.scale, "offset": f.offset},
        "examples": {"train": home.n, "val": len(home.val), "test": len(home.test)} if home else {},
        "test": dict(scores),
    }


def scaling(f: Federation, ruler: Ruler | None) -> dict[str, Any]:
    """What raw inputs are standardised with: by column of a table, or by channel of bytes of images."""
    if f.pixels:
        channels = {"mean": f.pixels.mean, "std": f.pixels.std}
        return {k: [[[255 * v]] for v in values] for k, values in channels.items()}
    return {"mean": ruler.middle.tolist(), "std": ruler.spread.tolist()} if ruler else {}


def write_model(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """A safetensors file and a model card beside it, each put in place in one go."""
    from safetensors.torch import save

    put(path.with_name(path.name + ".safetensors"), save(tensors, {"motet": json.dumps(facts)}))
    put(path.with_name(path.name + ".md"), card(facts).encode())


def put(path: Path, content: bytes) -> None:
    draft = path.with_name(path.name + ".part")
    draft.write_bytes(content)
    os.replace(draft, path)


def card(f: dict[str, Any]) -> str:
    """A model card that a person can read."""
    method = ", ".join(f"{k} {v}" for k, v in f["method"].items() if k != "name")
    whose = (
        f"the personal model of client {f['client']}" if f["client"] else "the global model of the federation"
    )
    lines = [
        f"# {whose[0].upper()}{whose[1:]}",
        "",
        f"- Trained by motet's {f['method']['name']} ({method}) on {f['data']}, seed {f['seed']}; "
        f"this is round {f['round']}, chosen on validation examples.",
        f"- Network: {f['net']['name']}, input {tuple(f['shape'])}.",
        f"- Predicts: {', '.join(f['classes']) if f['kind'] == 'classes' else 'a number'}.",
    ]
    if f["columns"]:
        lines.append(f"- Features, in order: {', '.join(f['columns'])}.")
    if f["inputs"]:
        lines.append(
            "- Features are standardised first; mean and std are in the file's metadata under `inputs`."
        )
    if f["examples"]:
        e = f["examples"]
        lines.append(
            f"- The client's examples: {e['train']} training, {e['val']} validation, {e['test']} test."
        )
    if f["test"]:
        lines.append(
            "- On its own test examples: " + ", ".join(f"{k} {v:.4g}" for k, v in f["test"].items()) + "."
        )
    lines += ["", "It knows only what this federation held. It was not tested on anybody else's examples."]
    return "\n".join(lines) + "\n"
