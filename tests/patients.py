"""One site with a table of patients for tests: its service, letters to it, and why it refuses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from motet.client import seed_of
from motet.deploy.agreement.handshake import handshake
from motet.deploy.agreement.layout import Layout
from motet.deploy.site.policy import Policy, RefusedByPolicy
from motet.deploy.site.service import SiteService
from motet.deploy.site.table import SiteTable
from motet.engines.letters import Letter, Reply

ROWS = 60
NUMBERS = ["age", "pressure", "sugar"]
METHOD = {"name": "fedavg", "lr": 0.1, "epochs": 1, "batch": 64}
RECIPE = {"method": METHOD, "net": {"name": "logistic"}, "seed": 0}


def patients(rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    numbers = {"age": draw.integers(20, 90, rows), "pressure": draw.normal(130, 20, rows).round(1)}
    more = {"sugar": draw.normal(5.5, 1, rows).round(2), "ward": draw.choice(["east", "west"], rows)}
    return pd.DataFrame(numbers | more | {"ill": draw.choice(["no", "yes"], rows)})


def site(folder: Path, frame: pd.DataFrame, policy: Policy | None = None, **how: Any) -> SiteService:
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / "a.csv", index=False)
    source = SiteTable("a", folder / "a.csv", "ill", **how)
    return SiteService("a", folder / "kept", source, policy, b"k" * 32)


def asked(service: SiteService, job: Any, send: Any = (), run: str = "r", **more: Any) -> Reply:
    return Reply.read(service.answer(Letter(job, run, send=send, **more).pack()))


def refused(service: SiteService, letter: Letter) -> RefusedByPolicy:
    """Why the site refuses a letter, as its own log has it."""
    with pytest.raises(RefusedByPolicy) as e:
        service.jobs[letter.job](letter)
    return e.value


def clause(service: SiteService, job: Any, send: Any) -> str:
    """The clause under which a letter is refused."""
    return refused(service, Letter(job, "r", send=send)).clause


def offered(service: SiteService) -> None:
    """The honest layout is used for the run `r`, and a run of RECIPE is offered."""
    assert not asked(service, "layout", layout_of(service).tree()).refusal
    assert not asked(service, "offer", {"rounds": 2}, recipe=RECIPE).refusal


def in_round(job: Any, send: Any, number: int = 0, **more: Any) -> Letter:
    """A letter of the offered run, with the seed that its round has."""
    seed = seed_of(0, "turn", number + (job == "evaluate_trained"))
    return Letter(job, "r", number, seed=seed, recipe=RECIPE, send=send, **more)


def layout_of(service: SiteService) -> Layout:
    """The layout that the site alone would come to."""
    return handshake(lambda letter: {"a": Reply.read(service.answer(letter.pack()))}, "honest")[1]
