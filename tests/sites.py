"""Three sites for tests: their data, their services, and the same federation on the loop engine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from motet.client import Batch, ClientData
from motet.core import Method, Turn
from motet.data.federated import FederatedData
from motet.deploy.site.contract import SERVER, turn_seed
from motet.deploy.site.ledger import RUN_JOBS
from motet.deploy.site.policy import Policy
from motet.deploy.site.service import CONTRACT, SiteService
from motet.deploy.site.storage import site_key
from motet.engines.driver import play, start
from motet.engines.flare import Flare, Post
from motet.engines.letters import Letter
from motet.engines.loop import Loop
from motet.runs import recipe as recipes
from motet.runs.build import method_of, task_of
from motet.vec import leaves
from motet.wire import WireError, unpack

ROUNDS = 3
RUN = 100  # rounds that are offered
SITES = ("a", "b", "c")
FEATURES, CLASSES = 6, 3


def examples(kind: int, many: int, generator: torch.Generator) -> Batch:
    centres = torch.linspace(-1.5, 1.5, CLASSES * FEATURES).reshape(CLASSES, FEATURES).roll(kind, 0)
    y = torch.randint(0, CLASSES, (many,), generator=generator)
    return Batch.of(centres[y] + torch.randn(many, FEATURES, generator=generator), y)


def clients_data() -> dict[str, ClientData]:
    g = torch.Generator().manual_seed(0)
    return {
        site: ClientData(*(examples(i % 2, n, g) for n in (11 + 6 * i, 6, 9))) for i, site in enumerate(SITES)
    }


def federation(of: Mapping[str, ClientData]) -> FederatedData:
    names = tuple(str(k) for k in range(CLASSES))
    return FederatedData("sites", dict(of), {}, "classes", CLASSES, names, (), (FEATURES,))


WAYS: dict[str, dict[str, Any]] = {  # methods with settings under which clients or the server train otherwise
    "fedavg adam, steps": {"optimiser": "adam", "lr": 0.01, "steps": 3},
    "fedavg adamw, cosine": {
        "optimiser": "adamw", "decay": 0.1, "lr": 0.01, "schedule": {"kind": "cosine", "warm_up": 1, "over": ROUNDS}
    },
    "fedper+fedperc": {"k": 2},
    "scaffold+dapfl": {},
    "fedper+fedopt steps": {"server_optimiser": "yogi", "schedule": {"kind": "step", "every": 1, "over": ROUNDS}},
}  # fmt: skip


def recipe(label: str) -> dict[str, Any]:
    """What letters say of a method: its settings, a small network and a seed."""
    method = label.partition(" ")[0]
    said = {"name": method} | WAYS.get(label, {})
    whole = recipes.read(more={"method": said, "net": {"name": "mlp", "hidden": [8]}, "seed": 1})
    usual = {
        f.name: f.default for f in fields(recipes.method_class(method))
    }  # in place of rates that are left open
    settings = {k: usual[k] if v == "auto" else v for k, v in whole["method"].items()}
    return {"method": settings, "net": whole["net"], "seed": 1}


def method(settings: dict[str, Any]) -> Method:
    checked = recipes.check(settings)
    return method_of(checked, task_of(checked, federation(clients_data())))


class OfferedSite(SiteService):
    """A site to which every run is offered before its first letter, as jobs do."""

    def answer(self, message: bytes, caller: str = SERVER) -> bytes:
        with suppress(WireError, OSError):
            letter = Letter.read(message, self.policy.letter_bytes)
            if letter.job in RUN_JOBS and not (self.rows.run_folder(letter.run) / CONTRACT).exists():
                offer = Letter("offer", letter.run, recipe=letter.recipe, send={"rounds": RUN})
                super().answer(offer.pack(), caller)
        return super().answer(message, caller)


def service(site: str, folder: Path, policy: Policy | None = None) -> SiteService:
    """These sites have few rows, and let numbers of few rows leave, as on the loop engine."""
    return OfferedSite(
        site, folder, federation({site: clients_data()[site]}), lenient(policy), site_key(folder / "key")
    )


def lenient(policy: Policy | None = None) -> Policy:
    few = {"least_rows": 1, "largest_share": 1.0, "noise": 0.0, "secret_orders": False, "losses": 1_000_000}
    return replace(policy or Policy(learn="collect"), **few)


def in_process(services: Mapping[str, SiteService]) -> Post:
    """Letters carried in this process."""
    return lambda letters: ({site: services[site].answer(letter) for site, letter in letters.items()}, {})


def server_examples(many: int = 8) -> Batch:
    x = torch.linspace(-2, 2, many * FEATURES).reshape(FEATURES, many).T.cos()
    return Batch.of(x, torch.arange(many) % CLASSES)


def turn(number: int) -> Turn:
    cohort = SITES if number % 2 else SITES[:2]
    return Turn(number, cohort, SITES, turn_seed(1, number), server_examples())


def go(method: Method, engine: Loop, first: int = 0, last: int = ROUNDS, state: Any = None) -> Any:
    if first == 0:
        state = start(engine, method, turn(-1))
    for number in range(first, last):
        state = play(engine, method, state, turn(number))
    return state


def outcome(method: Method, engine: Loop, state: Any, keeps: Mapping[str, Any]) -> list[Any]:
    """The state, what sites keep, and how everyone scores."""
    _, found = engine.evaluate(method, state, turn(ROUNDS - 1), "test")
    scores = [v.nan_to_num(-1) for v in leaves(found)]  # a client with one class has no AUC
    kept = [v for site in SITES for v in leaves(keeps.get(site, ()))]
    return [_numbers(v) for v in (*leaves(state), *kept, *scores)]


def _numbers(v: Any) -> Any:
    return torch.as_tensor(list(v.encode()) if isinstance(v, str) else v).double()


def expected(method: Method) -> list[Any]:
    """The outcome on the loop engine."""
    loop = Loop(clients_data())
    state = go(method, loop)
    return outcome(method, loop, state, {s: loop.keeps.get(s, ROUNDS) or () for s in SITES})


def gap(a: list[Any], b: list[Any]) -> float:
    assert len(a) == len(b)
    return max([float((p - q).abs().max()) for p, q in zip(a, b, strict=True) if p.numel()], default=0.0)


def kept(engine: Flare, services: Mapping[str, SiteService], run: str) -> dict[str, Any]:
    """What sites keep, read from their storage, as only a test may."""
    found = {}
    for site in SITES:
        if (label := engine.keeps.get(site)) is not None:
            record = services[site].states(Letter("verb", run)).get(tuple(label))
            found[site] = unpack(record)["keep"]
    return found
