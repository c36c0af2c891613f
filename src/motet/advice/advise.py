"""`motet advise` as an object: what is known of a federation before training, and what a short probe predicts.

Knows how the parts of advice come together. Does not know how they are printed (advice_text.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from motet.advice.before_training import Fit, Plain, Skew, fitting, skew_of, smallest_gain, smallest_mean_gain
from motet.advice.predicted_gains import Gains, best, gains_of
from motet.advice.probe import ALONE, Cost, Probed, one_round, probe
from motet.data.survey import survey
from motet.errors import UsageError
from motet.runs.build import federated_data
from motet.runs.choose_metric import chosen_metric
from motet.runs.recipe import Recipe, Settings

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Advice:
    """What is known before training, and the probe's predictions where there was one."""

    survey: Plain
    metric: str
    skew: Skew
    fits: tuple[Fit, ...]
    weights: int  # of the network
    cost: Cost  # of one client's round of FedAvg
    rounds: int = 0  # of the probe; 0: none was made
    probed: tuple[Probed, ...] = ()
    gains: dict[str, Gains] = field(default_factory=dict)  # by method

    @property
    def best(self) -> Gains | None:
        """The method with the highest predicted mean gain."""
        return best(self.gains)

    @property
    def test_rows(self) -> dict[str, int]:
        return {c["client"]: c["test"] for c in self.survey["clients"] if not c["unseen"]}

    @property
    def smallest_mean_gain(self) -> float:
        """The smallest mean gain of accuracy that a study on these test rows is likely to show."""
        return smallest_mean_gain(list(self.test_rows.values()))

    @property
    def clients(self) -> pd.DataFrame:
        """A row for each client: rows, label skew, what its test rows can show, and what the probe predicts."""
        import pandas as pd

        rows = [c for c in self.survey["clients"] if not c["unseen"]]
        known = [(c["client"], c["train"], c["test"], c["distance"], smallest_gain(c["test"])) for c in rows]
        frame = pd.DataFrame(known, columns=["client", "train", "test", "label_distance", "smallest_gain"])
        if (found := self.best) is None:
            return frame
        predicted = {g.client: (g.predicted, g.low, g.high) for g in found.clients}
        nothing = (np.nan,) * 3
        frame[["predicted", "low", "high"]] = [predicted.get(c, nothing) for c in frame["client"]]
        return frame

    def plain(self) -> dict[str, Any]:
        """For machines."""
        methods = {m: {k: v for k, v in asdict(g).items() if k != "clients"} for m, g in self.gains.items()}
        return {
            "metric": self.metric,
            "skew": asdict(self.skew) | {"words": self.skew.words},
            "fits": [asdict(fit) for fit in self.fits],
            "weights": self.weights,
            "cost": asdict(self.cost),
            "smallest_mean_gain": self.smallest_mean_gain,
            "probe": {"rounds": self.rounds, "methods": methods, "best": self.best and self.best.method},
            "failed": {p.method: p.failure for p in self.probed if p.failure},
            "clients": self.clients.to_dict("records"),
        }

    def __repr__(self) -> str:
        from motet.advice.advice_text import as_text

        return as_text(self, 100)

    def _repr_html_(self) -> str:
        """For a notebook."""
        import html

        return f"<pre>{html.escape(repr(self))}</pre>"


def advise(recipe: Recipe, rounds: int = 0, say: Callable[[str], Any] = print) -> Advice:
    """What is known of the recipe's data; with `rounds`, also a probe of as many rounds."""
    federated = federated_data(recipe)
    if len(federated.clients_data) < 2:
        raise UsageError(
            "there is one client, and nobody to federate with\nhint: name the column of clients, data.client=…"
        )
    found = asdict(survey(federated, test=False))  # what is tried may not rest on test rows
    skew = skew_of(found)
    settings = _open_settings(recipe)
    fits = tuple(fitting(found, skew))
    weights, cost = one_round(settings)
    known = Advice(found, chosen_metric(recipe, federated)[0], skew, fits, weights, cost)
    return _with_probe(known, settings, rounds, say) if rounds else known


def _with_probe(known: Advice, settings: Settings, rounds: int, say: Callable[[str], Any]) -> Advice:
    probed = probe(settings, [ALONE, *(fit.method for fit in known.fits)], rounds, say)
    alone, others = probed[0], [p for p in probed[1:] if not p.failure]
    if alone.failure:
        raise UsageError(f"training alone could not be probed: {alone.failure}")
    found = {p.method: gains for p in others if (gains := gains_of(p, alone, len(others)))}
    return replace(known, rounds=rounds, probed=tuple(probed), gains=found)


def _open_settings(recipe: Recipe) -> Settings:
    """The sections that do not depend on the method."""
    return {k: v for k, v in recipe.settings.items() if k in ("seed", "data", "net", "train", "engine")}
