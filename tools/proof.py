"""The proof that a change of the house changed no result: digests of what every method computes, in every way.

    python tools/proof.py record before.json             # plays everything, about four minutes on one core
    python tools/proof.py compare before.json            # plays it again, and lists what differs
    python tools/proof.py compare before.json --only page

A case is one run: a method on an engine, by messages between sites, or in one of the ways in `WAYS`. Its digest covers
the values of the final state, of what clients keep, of all scores, and of predictions; not the names of keys, nor the
layout of files. Digests hold on one kind of processor: elsewhere the older commit has to be recorded again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import sqlite3
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # sites.py: three sites in this process

COMBINED = [
    "fedper+fedopt", "fedper+ifca", "fedper+cfl", "fedper+fedperc", "scaffold+dapfl", "feddyn+page", "scaffold+page"
]  # fmt: skip
QUICK: dict[str, dict[str, Any]] = {
    "stacking": {"trees": 3},
    "fedper+ifca": {"k": 2},
    "fedper+fedperc": {"k": 2},
}
ENGINES = {
    "loop": {"name": "loop", "compile": "no"},
    "vmap": {"name": "vmap", "compile": "no"},
    "chunks": {"name": "vmap", "compile": "no", "chunk": 2},
    "threads": {"name": "threads", "workers": 2},
}
WINE = {"name": "wine", "clients": 5, "alpha": 1.0, "server_test": 0.2, "proxy": 0.5, "unseen": 0}
MLP = {"name": "mlp", "hidden": [8]}
USUAL: dict[str, Any] = {
    "data": WINE, "net": MLP, "rounds": 3, "evaluate": 1, "engine": ENGINES["vmap"], "save": {"checkpoint": 0.0}
}  # fmt: skip
COSINE = {"schedule": {"kind": "cosine", "warm_up": 1}}
HALF = {"cohort": 0.6}
WAYS: dict[str, dict[str, Any]] = {
    **{
        f"unseen with a schedule, {m}": {"method": {"name": m, **COSINE}, "data": WINE | {"unseen": 0.4}}
        for m in ("fedavg", "ditto", "scaffold", "fedrep", "apfl", "finetune")
    },
    "unseen, page": {"method": "page", "data": WINE | {"unseen": 0.4}},
    **{f"half a cohort, {m}": {"method": m, **HALF} for m in ("ditto", "scaffold", "page", "stacking")},
    **{
        f"private rows, {m}": {"method": m, "privacy": {"level": "example", "epsilon": 5.0}}
        for m in ("fedavg", "ditto", "fedper", "local")
    },
    "private clients": {"privacy": {"level": "client", "noise_multiplier": 0.5}, "guard": {"clip": 1.0}},
    "masked": {"guard": {"masked": True}},
    "masked private clients": {
        "privacy": {"level": "client", "noise_multiplier": 0.5, "noise": "clients"},
        "guard": {"masked": True, "clip": 1.0},
    },
    "compressed": {"method": "scaffold", "guard": {"bits": 8, "top": 0.5}},
    **{f"mean {m}": {"guard": {"mean": m}} for m in ("median", "trimmed", "krum")},
    **{f"attack {a}": {"guard": {"attack": a, "attackers": 0.4}} for a in ("nan", "flip", "replay")},
    **{f"optimiser {o}": {"optimiser": o} for o in ("adam", "adamw")},
    "momentum, decay, clip": {"momentum": 0.9, "decay": 0.01, "clip": 1.0},
    "steps": {"steps": 4},
    "after training": {"method": "ditto", "after_training": True},
    "class weights": {"net": MLP | {"loss": "focal", "class_weights": "balanced"}},
    "server optimiser": {"method": {"name": "fedopt", "server_optimiser": "yogi"}},
    "numbers": {"method": "ditto", "data": {"name": "diabetes", "clients": 5}},
    "quantiles": {"net": MLP | {"loss": "quantile", "quantile": 0.9}, "data": {"name": "diabetes", "clients": 5}},
    "images": {"data": {"name": "digits", "clients": 4}, "net": {"name": "cnn"}, "engine": ENGINES["threads"]},
    "images in groups": {
        "method": {"name": "fedperc", "k": 2}, "data": {"name": "digits", "clients": 4}, "net": {"name": "cnn"},
        "engine": ENGINES["threads"],
    },
    "features of their own": {"method": "stacking", "data": WINE | {"features": 0.6}, "net": {"name": "auto"}},
    "population": {
        "method": "ditto", "data": {"name": "synthetic", "clients": 10_000}, "cohort": 20, "evaluate_clients": 50,
    },
    "compiled": {"engine": {"name": "vmap", "compile": "yes"}, "method": "ditto"},
    **{f"left open, {m}": {"method": m, "engine": {}, "evaluate": 0} for m in ("fedavg", "ditto", "swarm", "page")},
}  # fmt: skip
RESUMED = ("fedavg", "ditto", "scaffold", "page", "fedperc", "swarm", "stacking")


def names() -> list[str]:
    """All cases, the long ones first."""
    from motet.runs.recipe import method_names

    methods = [*method_names(), *COMBINED]
    return [
        *(f"{m} on {e}" for m in methods for e in ENGINES),
        *(f"{m} resumed" for m in RESUMED),
        *WAYS,
        *(f"{m} by messages" for m in methods),
        *(f"{m} as a recipe" for m in methods),
    ]


# ---- one case ----


def play(case: str) -> dict[str, str]:
    """The digests of a case, by what they are of."""
    try:
        if case in WAYS:
            return simulated({"method": "fedavg"} | WAYS[case])
        method, _, way = case.partition(" ")
        settings = {"method": {"name": method, **QUICK.get(method, {})}}
        if way == "by messages":
            return by_messages(method)
        if way == "as a recipe":
            return {"recipe": digest([as_recipe(method)])}
        if way == "resumed":
            return simulated(settings, stop_after=1)
        return simulated(settings | {"engine": ENGINES[way.removeprefix("on ")]})
    except Exception as e:  # noqa: BLE001 a refusal is an outcome as well, as long as it stays the same
        words = traceback.format_exception_only(e)[-1].strip()
        return {"refused": words.splitlines()[0][:200]}


def simulated(settings: Mapping[str, Any], stop_after: int | None = None) -> dict[str, str]:
    import motet

    with tempfile.TemporaryDirectory() as out:
        if stop_after is not None:
            with suppress(StoppedHere):
                motet.run(**USUAL | settings, out=out, on_round=stop_in(stop_after))
        run = motet.run(**USUAL | settings, out=out)
        db = sqlite3.connect(run.folder / "run.sqlite")
        return {
            "state": digest(leaves_of(db, "SELECT tree FROM states")),
            "keeps": digest(leaves_of(db, "SELECT tree FROM keeps")),
            "scores": digest(numbers(run.scores)),
            "predictions": digest(numbers(predictions(run.folder))),
        }


class StoppedHere(Exception):
    """Ends a run in the middle, as a kill would."""


def stop_in(number: int) -> Callable[[Any], None]:
    def stop(end: Any) -> None:
        if end.round == number:
            raise StoppedHere

    return stop


def predictions(folder: Path) -> Any:
    import pandas as pd

    file = folder / "predictions.parquet"
    return pd.read_parquet(file) if file.exists() else pd.DataFrame()


def numbers(frame: Any) -> list[bytes]:
    """Every column's values in the order of rows, sorted by the columns that are words."""
    words = [c for c in frame.columns if not is_number(frame[c])]
    frame = frame.sort_values([*words, *(c for c in frame.columns if c in ("round", "row"))], kind="stable")
    return [frame[c].to_numpy(dtype=float).tobytes() for c in frame.columns if c not in words and c != "n"]


def is_number(column: Any) -> bool:
    return column.dtype.kind in "fiub"


def leaves_of(db: sqlite3.Connection, query: str) -> list[bytes]:
    from motet.vec import leaves
    from motet.wire import unpack

    return [content(v) for (tree,) in db.execute(query) for v in leaves(unpack(tree))]


def content(v: Any) -> bytes:
    """A leaf's values as bytes; a tensor has its type and shape in front."""
    import torch

    if isinstance(v, torch.Tensor):
        return f"{v.dtype}{tuple(v.shape)}".encode() + v.detach().contiguous().numpy().tobytes()
    return repr(v).encode()


def by_messages(method: str) -> dict[str, str]:
    import sites
    from motet.engines.flare import Flare

    with tempfile.TemporaryDirectory() as out:
        settings = sites.recipe(method)
        if method in QUICK:
            settings["method"] |= QUICK[method]
        made = sites.method(settings)
        services = {s: sites.service(s, Path(out) / s) for s in sites.SITES}
        engine = Flare(sites.SITES, sites.in_process(services), "proof", settings)
        state = sites.go(made, engine)
        found = sites.outcome(made, engine, state, sites.kept(engine, services, "proof"))
        return {"outcome": digest([content(v) for v in found])}


def as_recipe(method: str) -> bytes:
    from motet.runs import recipe

    return recipe.read(more={"method": {"name": method}}).toml("motet run recipe.toml").encode()


def digest(pieces: Iterable[bytes]) -> str:
    """Of pieces in any order: a key may be renamed, and a list may become a dictionary."""
    each = sorted(hashlib.sha256(p).digest() for p in pieces)
    return f"{len(each)} {hashlib.sha256(b''.join(each)).hexdigest()[:16]}"


# ---- all cases ----


def prepare() -> None:
    """Each process computes with one thread, and says nothing."""
    import logging
    import warnings

    import torch

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")


def play_all(cases: list[str], jobs: int) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    with multiprocessing.get_context("spawn").Pool(jobs, prepare, maxtasksperchild=40) as pool:
        for case, result in zip(cases, pool.imap(play, cases), strict=True):
            found[case] = result
            print(f"\r{len(found)}/{len(cases)} {case:60}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="cases with this in their names")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    cases = [c for c in names() if given.only in c]
    found = play_all(cases, given.jobs)
    if given.what == "record":
        given.file.write_text(json.dumps(found, indent=1) + "\n")
        refused = {c: r["refused"] for c, r in found.items() if "refused" in r}
        print(f"{len(found)} cases recorded, {len(refused)} of them refusals:")
        for case, words in refused.items():
            print(f"  {case}: {words}")
        return 0
    before = {c: r for c, r in json.loads(given.file.read_text()).items() if given.only in c}
    lines = [f"{c}: not played any more" for c in before if c not in found]
    lines += [f"{c}: new" for c in found if c not in before]
    for case in [c for c in found if c in before]:
        a, b = before[case], found[case]
        if differ := [k for k in {**a, **b} if a.get(k) != b.get(k)]:
            lines.append(
                f"{case}: {', '.join(differ)} differ" + (f" ({b['refused']})" if "refused" in b else "")
            )
    print("\n".join(lines) or f"all {len(found)} cases are equal")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
